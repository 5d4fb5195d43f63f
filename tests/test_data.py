import zipfile

import numpy as np
import pytest

from lottery import data
from lottery.errors import LotteryError
from tests.conftest import toy_arrays


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
        ({"x_test": np.full((60, 6), np.inf, np.float32)}, "x_test holds NaN or infinite"),
        ({"y_train": np.zeros(7, int)}, "x_train has 200 examples and y_train has 7"),
        ({"x_test": np.zeros((60, 5), np.float32)}, r"shape \(6,\) and one of x_test \(5,\)"),
        ({"y_train": np.full(200, 2**32 + 1)}, "label 4294967297"),
        ({"x_test": np.zeros((60, 6), np.uint8)}, "x_train has type float32 and x_test uint8"),
        ({"x_train": np.array([["a"]])}, "allowed are numbers"),
        ({"x_train": np.zeros(200, np.float32)}, "first axis"),
        ({"x_test": np.zeros((0, 6), np.float32), "y_test": np.zeros(0, int)}, "x_test is empty"),
        ({"x_train": np.zeros((10, 6), np.float32), "y_train": np.zeros(10, int)}, "received 20, allowed is less than"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(LotteryError, match=message):
        data.split(arrays(**changes), data.Data(validation=20))


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
    with pytest.raises(LotteryError, match="There is no data file"):
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
    monkeypatch.setitem(data.DATASETS, "mnist", lambda: pytest.fail("downloaded"))
    assert len(data.load(data.Data(name="mnist", validation=20)).train) == 180
    other = tmp_path / "other.npz"
    np.savez(other, **arrays(x_test=np.ones((60, 6), np.float32)))
    assert data.load(data.Data(name="mnist", path=str(other), validation=20)).test.x[0, 0] == 1  # data.path is first


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
    with pytest.raises(LotteryError, match="no single array"):
        data.given(([x_train, x_train[:, :2]], y_train, x_test, y_test), data.Data(validation=20))
    for wrong in (x_train, (x_train, y_train), (1, 2, 3), None):
        with pytest.raises(LotteryError, match="allowed is"):
            data.given(wrong, data.Data(validation=20))
