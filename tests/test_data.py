import multiprocessing
import os
import random
import zipfile

import numpy as np
import pytest

from lottery import config, data, datasets, files
from lottery.errors import LotteryError
from lottery.pipeline import preparing
from tests.conftest import toy_arrays

MNIST1D = data.Data(name="mnist1d", validation=1000)


def arrays(**changes):
    x_train, y_train, x_test, y_test = toy_arrays(np.random.default_rng(0))
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test} | changes


def test_validation_comes_out_of_training_and_nothing_is_lost():
    loaded = data.load(data.Data(name="digits", validation=137))
    assert [len(part) for part in (loaded.train, loaded.validation, loaded.test)] == [1300, 137, 360]
    from sklearn.datasets import load_digits

    theirs = np.round(load_digits(return_X_y=True)[0] * 255 / 16).astype(np.uint8)
    ours = np.concatenate([part.x.reshape(-1, 64) for part in (loaded.train, loaded.validation, loaded.test)])
    assert sorted(map(bytes, ours)) == sorted(map(bytes, theirs))
    again = data.load(data.Data(name="digits", validation=137))
    np.testing.assert_array_equal(again.validation.x, loaded.validation.x)
    assert again.fingerprint == loaded.fingerprint
    assert data.load(data.Data(name="digits", validation=138)).fingerprint != loaded.fingerprint


@pytest.mark.parametrize("shape", [(5, 5), (5, 5, 3), (4, 4, 1)])
def test_scaling_is_the_training_parts_own(shape, rng):
    x_train = rng.integers(0, 256, (300, *shape)).astype(np.uint8)
    x_train[250:] = 255
    given = arrays(
        x_train=x_train, y_train=np.arange(300) % 3, x_test=np.zeros((9, *shape), np.uint8), y_test=np.zeros(9, int)
    )
    loaded = data.split(given, data.Data(validation=100))
    axes = tuple(range(len(shape))) if len(shape) == 3 else None
    np.testing.assert_allclose(loaded.mean, loaded.train.x.mean(axis=axes).reshape(loaded.mean.shape), rtol=1e-5)
    np.testing.assert_allclose(
        loaded.standard_deviation, loaded.train.x.std(axis=axes).reshape(loaded.mean.shape), rtol=1e-5
    )
    assert not np.allclose(loaded.mean, x_train.mean(axis=axes))  # validation does not leak into it
    assert loaded.train.x.dtype == np.uint8
    unit = data.split(given, data.Data(validation=100, pixels="unit"))
    assert (unit.mean, unit.standard_deviation) == (0, 255)


@pytest.mark.parametrize("shape", [(7,), (5, 5), (5, 5, 3)])
def test_unit_norm_gives_every_image_the_length_1_and_a_black_image_stays_black(shape, rng):
    import keras

    x = rng.integers(0, 256, (60, *shape)).astype(np.uint8)
    x[3] = 0
    x[4] = 255
    given = arrays(x_train=x, y_train=np.arange(60) % 3, x_test=x, y_test=np.arange(60) % 3)
    loaded = data.split(given, data.Data(validation=10, pixels="unit_norm"))
    assert {part.x.dtype for part in (loaded.train, loaded.validation, loaded.test)} == {np.dtype(np.uint8)}
    assert loaded.notes == ()
    # What the authors' code calls, on flat images.
    expected = keras.utils.normalize(x.reshape(60, -1)).reshape(x.shape)
    scaled = loaded.scaled(loaded.test.x)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, expected, atol=1e-6)
    assert not scaled[3].any()
    np.testing.assert_allclose(np.linalg.norm(np.delete(scaled, 3, 0).reshape(59, -1), axis=1), 1, rtol=1e-6)


def test_pixels_have_a_name_that_exists():
    with pytest.raises(LotteryError, match=r"data\.pixels must be .*'unit_norm', not 'unitnorm'. Did you mean 'unit"):
        config.load({"data": {"pixels": "unitnorm"}})


def test_floats_are_taken_as_they_are():
    loaded = data.split(arrays(), data.Data(validation=20))
    assert (loaded.mean, loaded.standard_deviation) == (0, 1)


def test_mnist_has_the_published_statistics(mnist_path):
    loaded = data.load(data.Data(name="mnist", path=str(mnist_path)))
    assert [len(part) for part in (loaded.train, loaded.validation, loaded.test)] == [55000, 5000, 10000]
    assert float(loaded.mean[0]) / 255 == pytest.approx(0.1307, abs=5e-4)
    assert float(loaded.standard_deviation[0]) / 255 == pytest.approx(0.3081, abs=5e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.full((200, 6), np.nan, np.float32)}, "x_train holds NaN"),
        ({"x_test": np.full((60, 6), np.inf, np.float32)}, "x_test holds NaN, infinite values"),
        ({"x_test": np.full((60, 6), 1e39)}, "too large for float32"),
        ({"y_train": np.zeros(7, int)}, "x_train has 200 examples and y_train has 7"),
        ({"x_test": np.zeros((60, 5), np.float32)}, r"shape \(6,\), but examples of x_test have shape \(5,\)"),
        ({"y_train": np.full(200, 2**32 + 1)}, "a label of y_train must be .* not 4294967297"),
        ({"x_test": np.zeros((60, 6), np.uint8)}, "x_train has type float32 and x_test uint8"),
        ({"x_train": np.array([["a"]])}, "must hold numbers"),
        ({"x_train": np.zeros(200, np.float32)}, "no axis of features"),
        ({"x_test": np.zeros((0, 6), np.float32), "y_test": np.zeros(0, int)}, "x_test is empty"),
        (
            {"x_train": np.zeros((10, 6), np.float32), "y_train": np.zeros(10, int)},
            "must be less than the 10 .* not 20",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(LotteryError, match=message):
        data.split(arrays(**changes), data.Data(validation=20))


def global_draws():
    """What the global generators draw next, which leaves them where they are."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    drawn = [*np.random.standard_normal(3), *np.random.random(3), random.gauss(), random.random()]
    np.random.set_state(of_numpy)
    random.setstate(of_python)
    return drawn


def made_up():
    """Arrays of the shapes of MNIST-1D, for tests that need not wait for the real ones."""
    rng = np.random.default_rng(5)
    parts = {"train": 5000, "test": 12_000}
    x = {f"x_{part}": rng.normal(size=(num, 40)).astype(np.float32) for part, num in parts.items()}
    return x | {f"y_{part}": np.arange(num, dtype=np.int32) % 10 for part, num in parts.items()}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "datasets"


@pytest.fixture
def generated(cache, monkeypatch):
    """How often MNIST-1D was generated; the arrays are others than those in the code's digest."""
    calls = []

    def generate(num_examples):
        calls.append(os.getpid())
        return made_up()

    monkeypatch.setattr(datasets, "_generate_mnist1d", generate)
    return calls


@pytest.fixture
def pinned(monkeypatch):
    """Arrays that are made up have the checksum in the code."""
    monkeypatch.setitem(datasets.MNIST1D_SHA256, 0, datasets.sha256(made_up()))


def test_mnist1d_is_generated_and_leaves_the_global_generators_alone(cache):
    np.random.seed(7)
    random.seed(7)
    np.random.standard_normal(), random.gauss()  # half of a pair is kept for the next draw
    before = global_draws()
    loaded = data.load(MNIST1D)
    assert global_draws() == before
    assert [part.x.shape for part in (loaded.train, loaded.validation, loaded.test)] == [
        (4000, 40), (1000, 40), (12_000, 40),
    ]  # fmt: skip
    assert loaded.train.x.dtype == np.float32 and (loaded.mean, loaded.standard_deviation) == (0, 1)
    assert list(np.bincount(loaded.test.y)) == [1200] * 10
    for x in (np.concatenate([loaded.train.x, loaded.validation.x]), loaded.test.x):
        assert float(x.mean()) == pytest.approx(0, abs=1e-5) and float(x.std()) == pytest.approx(1, abs=1e-5)
    assert not {*map(bytes, loaded.test.x)} & {*map(bytes, loaded.train.x), *map(bytes, loaded.validation.x)}
    assert loaded.notes == ()  # the arrays are those of the digest in the code
    assert [path.name for path in cache.iterdir()] == [f"lottery-mnist1d-5000-{datasets.MNIST1D_SHA256[0][:8]}.npz"]


@pytest.fixture
def asked(monkeypatch):
    """What the package is asked for, number and seed, of which it makes 120 examples: all of them take seconds."""
    import mnist1d.data

    found, make = [], mnist1d.data.make_dataset

    def fewer(settings):
        found.append((settings.num_samples, settings.seed))
        settings.num_samples = 120
        return make(settings)

    monkeypatch.setattr(mnist1d.data, "make_dataset", fewer)
    return found


def test_the_training_examples_are_those_that_the_package_makes_by_default(cache, asked):
    from mnist1d import data as package

    of_numpy, of_python = np.random.get_state(), random.getstate()
    theirs = package.make_dataset(package.get_dataset_args())
    np.random.set_state(of_numpy)
    random.setstate(of_python)
    ours = data.DATASETS["mnist1d"].load()
    assert asked[0] == asked[1] and not cache.exists()
    np.testing.assert_allclose(ours["x_train"], np.concatenate([theirs["x"], theirs["x_test"]]), rtol=1e-6)
    np.testing.assert_array_equal(ours["y_train"], np.concatenate([theirs["y"], theirs["y_test"]]))


def test_other_numbers_of_examples_are_generated_each_time(cache, asked):
    for _ in range(2):
        few = data.load(data.Data(name="mnist1d", num_examples=120, validation=20))
        assert (len(few.train), len(few.validation), len(few.test)) == (100, 20, 120) and few.notes == ()
    assert asked == 2 * [(120, 42), (12_000, 43)] and not cache.exists()


@pytest.mark.parametrize("num", [30, 200])
def test_fewer_examples_are_chosen_before_the_validation_examples(num):
    settings = data.Data(num_examples=num, validation=20)
    given, all_of_them = data.split(arrays(), settings), data.split(arrays(), data.Data(validation=20))
    assert (len(given.train), len(given.validation)) == (num - 20, 20) and len(given.test) == len(all_of_them.test)
    known = {row.tobytes() for row in arrays()["x_train"]}
    chosen = [row.tobytes() for part in (given.train, given.validation) for row in part.x]
    assert len(set(chosen)) == num and set(chosen) <= known
    assert data.split(arrays(), settings).fingerprint == given.fingerprint
    assert (given.fingerprint == all_of_them.fingerprint) == (num == 200)


def test_numbers_of_examples_that_do_not_fit_are_refused():
    with pytest.raises(LotteryError, match="data.num_examples must be at most the 200 examples .* not 201"):
        data.split(arrays(), data.Data(num_examples=201, validation=20))
    with pytest.raises(
        LotteryError, match="data.validation must be less than the 20 examples .* not 20.*validation = 2"
    ):
        data.split(arrays(), data.Data(name="given", num_examples=20, validation=20))
    # Where the settings tell, before anything is imported.
    for settings in ({"num_examples": 20, "validation": 20}, {"name": "digits", "validation": 1437}):
        with pytest.raises(LotteryError, match="data.validation must be less than the .* examples of "):
            config.load({"data": settings})
    # No number of validation examples would do.
    with pytest.raises(LotteryError, match="need at least 2 examples of mnist, not 1"):
        config.load({"data": {"name": "mnist", "num_examples": 1}})
    with pytest.raises(LotteryError, match="need at least 2 examples of x_train in data, not 1"):
        data.given(tuple(part[:1] for part in arrays().values()), data.Data(name="given"))
    import tensorflow as tf

    stream = tf.data.Dataset.from_tensor_slices((np.zeros((8, 6), np.float32), np.zeros(8, int))).batch(4)
    with pytest.raises(LotteryError, match=r"data.num_examples: .* shorten it with take\(\)"):
        data.given((stream, stream, stream), data.Data(num_examples=4))


def test_what_has_no_effect_on_a_data_set_in_batches_is_said():
    import tensorflow as tf

    stream = tf.data.Dataset.from_tensor_slices((np.zeros((8, 6), np.float32), np.zeros(8, int))).batch(4)
    found = data.given((stream, stream, stream), data.Data(pixels="unit", validation=4))
    assert [note.partition(" ")[0] for note in found.notes] == ["data.validation", "data.pixels"]
    assert data.given((stream, stream, stream), data.Data()).notes == ()


def test_other_data_in_an_override_do_not_get_the_number_of_the_file():
    assert config.load(None).data.num_examples == 24_000
    for changes in ({"name": "digits"}, {"path": "my.npz", "name": "npz"}):
        assert config.load(None, {"data": changes}).data.num_examples == 0
    few = {"name": "digits", "num_examples": 500, "validation": 50}
    assert config.load(None, {"data": few}).data.num_examples == 500


def test_an_error_while_generating_leaves_the_global_generators_alone(cache, monkeypatch):
    import mnist1d.data

    def fail(x, t, settings):
        np.random.random()
        random.random()
        raise MemoryError

    monkeypatch.setattr(mnist1d.data, "transform", fail)
    before = global_draws()
    with pytest.raises(MemoryError):
        data.load(MNIST1D)
    assert global_draws() == before
    assert not cache.exists()


def test_mnist1d_is_generated_once(generated, pinned, cache):
    first = data.load(MNIST1D)
    (file,) = cache.iterdir()
    assert data.load(MNIST1D).fingerprint == first.fingerprint and len(generated) == 1
    content = file.read_bytes()
    damaged = [content[: len(content) // 2], b"", content.replace(first.test.x[5].tobytes(), bytes(160), 1)]
    for number, bad in enumerate(damaged, start=2):
        assert bad != content
        file.write_bytes(bad)
        assert data.load(MNIST1D).fingerprint == first.fingerprint and len(generated) == number
        assert file.read_bytes() == content


def test_validation_examples_of_a_file_are_those_of_the_run(tmp_path, rng):
    arrays = {
        f"x_{part}": rng.random((size, 3), np.float32) for part, size in (("test", 5), ("train", 20), ("validation", 7))
    }
    arrays |= {f"y_{part}": rng.integers(0, 2, size) for part, size in (("test", 5), ("train", 20), ("validation", 7))}
    np.savez(tmp_path / "own.npz", **arrays)
    found = data.load(data.Data(name="npz", path=str(tmp_path / "own.npz")))
    np.testing.assert_array_equal(found.validation.x, arrays["x_validation"])
    np.testing.assert_array_equal(found.train.y, arrays["y_train"])
    # As a caller passes them, for `lottery verify --data`.
    passed = data.given(tuple(data.read_npz(tmp_path / "own.npz").values()), data.Data(name="given"))
    assert passed.fingerprint == found.fingerprint
    # A stored experiment has every key, and its run reads the same file again.
    stored = data.load(data.Data(name="npz", path=str(tmp_path / "own.npz"), validation=5000))
    assert stored.fingerprint == found.fingerprint
    assert "The file has 7 validation examples; data.validation is not used." in stored.notes
    np.savez(tmp_path / "half.npz", **{key: array for key, array in arrays.items() if key != "y_validation"})
    with pytest.raises(LotteryError, match="has only x_validation. It must have both"):
        data.load(data.Data(name="npz", path=str(tmp_path / "half.npz")))


def test_arrays_of_a_file_are_not_compared_with_those_that_are_generated(tmp_path, rng):
    """Under the name mnist1d, too: what the file holds was not generated here."""
    arrays = {f"x_{part}": rng.random((50, 40), np.float32) for part in ("train", "test")}
    arrays |= {f"y_{part}": np.arange(50) % 10 for part in ("train", "test")}
    np.savez(tmp_path / "own.npz", **arrays)
    assert data.load(data.Data(name="mnist1d", path=str(tmp_path / "own.npz"), validation=10)).notes == ()


def test_data_without_an_axis_of_examples_are_refused():
    with pytest.raises(LotteryError, match="its first axis must be the example"):
        data.given((np.array(1.0),) * 4, data.Data(name="given"))


def test_arrays_without_a_length_keep_the_default_number_of_validation_examples():
    """As a tf.Variable, which NumPy can read, and Python cannot ask for its length."""
    import tensorflow as tf

    x, y = tf.Variable(tf.zeros((6000, 2))), np.arange(6000) % 2
    assert len(data.given((x, y, x, y), data.Data(name="given")).validation) == data.Data().validation == 5000


def test_a_cache_with_other_arrays_is_not_believed(generated, pinned, cache):
    """Whole as a file, and with a checksum of its own, but its arrays are not those of the checksum in the code."""
    data.load(MNIST1D)
    (file,) = cache.iterdir()
    kept = data.read_npz(file)
    kept["x_test"][0, 0] += 1
    np.savez(file, **kept, sha256=np.array(datasets.sha256(kept)))
    assert float(data.load(MNIST1D).test.x[0, 0]) == made_up()["x_test"][0, 0] and len(generated) == 2


def test_arrays_without_a_checksum_in_the_code_are_never_kept(generated, cache):
    """Made on a processor that rounds otherwise, or in another number: nobody could tell them from planted arrays."""
    for settings in (MNIST1D, data.Data(name="mnist1d", validation=1000, num_examples=4000)):
        assert data.load(settings).fingerprint == data.load(settings).fingerprint
    assert len(generated) == 4 and not cache.exists()


@pytest.mark.parametrize("why", ["full disk", "no folder"])
def test_without_a_cache_mnist1d_is_generated_each_time(why, generated, pinned, cache, monkeypatch):
    def refuse(path, content):
        raise files.StorageError("the disk is full")

    if why == "full disk":
        monkeypatch.setattr(files, "write", refuse)
    else:
        cache.parent.write_text("a file where a folder is wanted")
    assert data.load(MNIST1D).fingerprint == data.load(MNIST1D).fingerprint
    assert len(generated) == 2


def load_again_and_again(home):
    """In a process of its own: what is loaded while another process removes, makes and replaces the same cache."""
    os.environ["KERAS_HOME"], datasets._generate_mnist1d = str(home), lambda num_examples: made_up()
    datasets.MNIST1D_SHA256[0] = datasets.sha256(made_up())
    found = set()
    for _ in range(20):
        for file in home.glob("datasets/*.npz"):
            file.unlink(missing_ok=True)
        found.add(data.load(MNIST1D).fingerprint)
    return found


def test_processes_may_make_the_cache_at_the_same_time(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(load_again_and_again, [tmp_path] * 2, chunksize=1)
    assert found == [{data.split(made_up(), MNIST1D).fingerprint}] * 2
    assert len(list((tmp_path / "datasets").iterdir())) == 1


def test_arrays_that_round_otherwise_are_used_and_reported(generated):
    loaded = data.load(MNIST1D)
    (note,) = loaded.notes
    assert "mnist1d as generated here differs" in note
    assert loaded.fingerprint == data.split(made_up(), MNIST1D).fingerprint  # which is recorded with the run
    experiment = config.load(None, {"train": {"jit_compile": False}, "data": {"num_examples": 0}})
    assert note in preparing.prepare(experiment).notes


def test_pixels_of_inputs_that_are_no_pixels_are_reported():
    loaded = data.split(arrays(), data.Data(validation=20, pixels="unit"))
    assert (loaded.mean, loaded.standard_deviation) == (0, 1)
    assert loaded.notes == ("data.pixels = 'unit' has no effect: the inputs are float32, not uint8 pixels.",)


def test_files_that_cannot_be_used_are_named(tmp_path):
    whole = tmp_path / "whole.npz"
    np.savez(whole, **arrays())
    assert len(data.load(data.Data(name="npz", path=str(whole), validation=20)).train) == 180
    content = whole.read_bytes()
    for keep in (0, 10, len(content) // 2, len(content) - 30):
        (tmp_path / "cut.npz").write_bytes(content[:keep])
        with pytest.raises(LotteryError, match=r"cut\.npz"):
            data.load(data.Data(name="npz", path=str(tmp_path / "cut.npz"), validation=20))
    flipped = bytearray(content)
    flipped[len(content) // 3] ^= 255
    (tmp_path / "flipped.npz").write_bytes(flipped)
    with pytest.raises(LotteryError, match=r"flipped\.npz"):
        data.load(data.Data(name="npz", path=str(tmp_path / "flipped.npz"), validation=20))
    np.savez(tmp_path / "keys.npz", x_train=np.zeros(3), images=np.zeros(3))
    with pytest.raises(LotteryError, match="lacks y_train, x_test, y_test; it has x_train, images"):
        data.load(data.Data(name="npz", path=str(tmp_path / "keys.npz")))
    with pytest.raises(LotteryError, match=r"There is no data file .*none\.npz.*LOTTERY_DATA"):
        data.load(data.Data(name="npz", path=str(tmp_path / "none.npz")))


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    np.savez(tmp_path / "trap.npz", **arrays(x_train=np.array([Trap()], dtype=object)))
    assert zipfile.is_zipfile(tmp_path / "trap.npz")
    with pytest.raises(LotteryError):
        data.load(data.Data(name="npz", path=str(tmp_path / "trap.npz")))
    assert not (tmp_path / "sprung").exists()


def test_the_folder_of_data_sets_comes_before_a_download(tmp_path, monkeypatch):
    np.savez(tmp_path / "mnist.npz", **arrays())
    monkeypatch.setenv("LOTTERY_DATA", str(tmp_path))
    monkeypatch.setitem(data.DATASETS, "mnist", datasets.Dataset(lambda: pytest.fail("downloaded")))
    assert len(data.load(data.Data(name="mnist", validation=20)).train) == 180
    other = tmp_path / "other.npz"
    np.savez(other, **arrays(x_test=np.ones((60, 6), np.float32)))
    assert data.load(data.Data(name="mnist", path=str(other), validation=20)).test.x[0, 0] == 1  # data.path is first
    # A path of another machine stands for the file of that name.
    moved = data.load(data.Data(name="npz", path="elsewhere/other.npz", validation=20))
    assert moved.test.x[0, 0] == 1 and "no 'elsewhere/other.npz'" in moved.notes[0] and str(other) in moved.notes[0]
    with pytest.raises(LotteryError, match=r"There is no data file 'elsewhere/none\.npz'"):
        data.load(data.Data(name="npz", path="elsewhere/none.npz"))


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_without_network_one_sentence_says_which_file_to_put_where(name, monkeypatch):
    import keras

    def refuse(*_, **__):
        raise Exception(f"URL fetch failure on somewhere/{name}: None -- no network")

    monkeypatch.setattr(getattr(keras.datasets, name), "load_data", refuse)
    with pytest.raises(LotteryError, match=f"put {name}.npz, .*LOTTERY_DATA.*data.path") as caught:
        data.load(data.Data(name=name))
    assert "\n" not in str(caught.value)


def test_given_data_in_the_shapes_that_people_have():
    x_train, y_train, x_test, y_test = toy_arrays(np.random.default_rng(0))
    flat = data.given((x_train, y_train, x_test, y_test), data.Data(validation=20))
    column = data.given((x_train, y_train[:, None], x_test, y_test[:, None]), data.Data(validation=20))
    assert column.train.y.shape == (180, 1)  # a loss would broadcast what is squeezed
    pairs = data.given(((x_train, y_train), (x_test, y_test)), data.Data(validation=20))
    assert flat.fingerprint == pairs.fingerprint
    tenth = data.given((x_train[:9], y_train[:9], x_test, y_test), data.Data())
    assert (len(tenth.train), len(tenth.validation)) == (8, 1)
    fewer = data.given((np.ones((20_000, 2)), np.ones(20_000), x_test[:, :2], y_test), data.Data(num_examples=1000))
    assert (len(fewer.train), len(fewer.validation)) == (900, 100)
    with pytest.raises(LotteryError, match=r"Pass x_train\[:, None\]"):
        data.given((x_train[:, 0], y_train, x_test[:, 0], y_test), data.Data(validation=20))
    for wrong in (x_train, (x_train, y_train), (1, 2, 3), None):
        with pytest.raises(LotteryError, match="must be"):
            data.given(wrong, data.Data(validation=20))


def test_own_validation_arrays_are_the_validation_split():
    x, y, x_test, y_test = toy_arrays(np.random.default_rng(0))
    six = data.given((x[:150], y[:150], x[150:], y[150:], x_test, y_test), data.Data())
    pairs = data.given(((x[:150], y[:150]), (x[150:], y[150:]), (x_test, y_test)), data.Data(validation=50))
    for loaded in (six, pairs):
        assert [len(part) for part in (loaded.train, loaded.validation, loaded.test)] == [150, 50, 60]
        np.testing.assert_array_equal(loaded.validation.x, x[150:])
        np.testing.assert_array_equal(loaded.train.y, y[:150])
    other = data.given((x[:150], y[:150], -x[150:], y[150:], x_test, y_test), data.Data())
    assert six.fingerprint == pairs.fingerprint != other.fingerprint
    with pytest.raises(LotteryError, match="data.validation is 7, but 50 validation examples are passed. Leave"):
        data.given((x[:150], y[:150], x[150:], y[150:], x_test, y_test), data.Data(validation=7))
    with pytest.raises(LotteryError, match=r"but examples of x_validation have shape \(2,\)"):
        data.given((x[:150], y[:150], x[150:, :2], y[150:], x_test, y_test), data.Data())
    with pytest.raises(LotteryError, match="x_validation has 50 examples and y_validation has 9"):
        data.given((x[:150], y[:150], x[150:], y[:9], x_test, y_test), data.Data())


class Batches:
    """As a PyDataset, a loader or a list of batches of another library."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.zeros((20, 6), np.float32), np.zeros(20, np.int32)


def generator():
    yield np.zeros((20, 6), np.float32), np.zeros(20, np.int32)


X, Y, X_TEST, Y_TEST = toy_arrays(np.random.default_rng(0))


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        ((X, Y), "must be .*, not 2 parts"),
        ({"train": (X, Y)}, "must be .*, not dict"),
        ("mnist.npz", "A data set by name or in a file belongs in the experiment"),
        ((Batches(), Batches(), Batches()), "not a Batches. Pass .*from_generator"),
        ((X, Y, Batches(), Y_TEST), "not a Batches"),
        (generator(), "not a generator. Pass .*from_generator"),
        (((X, Y, Y), (X, Y, Y)), "Sample weights go into a tf.data.Dataset"),
        (({"a": X}, Y, {"a": X_TEST}, Y_TEST), "x_train is a dict of a, no single array; pass several inputs"),
        (([X, X], Y, [X_TEST, X_TEST], Y_TEST), "x_train is a list of 2 arrays"),
        (
            ([X, X[:, :2]], Y, [X_TEST, X_TEST], Y_TEST),
            "x_train is a list of arrays of several shapes, no single array",
        ),
        ((np.array([["a"]] * 200), Y, X_TEST, Y_TEST), "x_train must hold numbers, not <U1. Turn strings into"),
    ],
)
def test_what_people_pass_ends_in_a_sentence_that_says_what_to_pass(passed, message):
    with pytest.raises(LotteryError, match=message) as caught:
        data.given(passed, data.Data())
    assert "\n" not in str(caught.value)


def data_sets(x, y, batch=20):
    import tensorflow as tf

    whole = tf.data.Dataset.from_tensor_slices((x, y))
    return whole.batch(batch) if batch else whole


def test_a_data_set_that_is_not_batched_is_refused():
    single = data_sets(X, Y, batch=None)
    with pytest.raises(LotteryError, match="the training data set is not batched"):
        data.given((single, single, single), data.Data())
    good = data_sets(X, Y)
    with pytest.raises(LotteryError, match="the test data set is not batched"):
        data.given((good, good, data_sets(X, np.eye(3)[Y], batch=None)), data.Data())  # vectors of two lengths
    with pytest.raises(LotteryError, match=r"not dicts of image, label. Add \.map"):
        data.given((good.map(lambda x, y: {"image": x, "label": y}),) * 3, data.Data())
    with pytest.raises(LotteryError, match="each a batched tf.data.Dataset, not 2 parts"):
        data.given((good, good), data.Data())
    with pytest.raises(LotteryError, match=r"each a batched tf\.data\.Dataset, not one tf\.data\.Dataset"):
        data.given(good, data.Data())
    with pytest.raises(LotteryError, match="A function of data must return a tf.data.Dataset, not a generator. Pass"):
        data.given((generator,) * 3, data.Data())


def test_strings_and_ragged_tensors_count_by_their_values():
    import tensorflow as tf

    words = ["a b", "b", "c c c"] * 20
    ragged = tf.ragged.constant([[1, 2], [3], []] * 20)
    for values, others in ((words, words[::-1]), (ragged, ragged[::-1])):
        one, same, other = (
            data.given((lambda values=values: data_sets(values, Y[:60]),) * 3, data.Data()).fingerprint
            for values in (values, values, others)
        )
        assert one == same != other
