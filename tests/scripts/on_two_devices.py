"""Checks of a network that is mirrored on two devices. They need a process in which TensorFlow has not started yet, so
`tests/training/test_mirrored.py` runs ``python -m pytest tests/scripts/on_two_devices.py`` in a new one.
"""

import contextlib
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import lottery
from lottery import config, enforcement, files, interrupts, randomness, weights
from lottery.errors import LotteryError
from lottery.pipeline import building, preparing
from lottery.pipeline.prepared import Ingredients
from lottery.runs import store, verification
from lottery.training import checkpoints, mirrored
from tests.conftest import quietly, toy_arrays

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
LIBRARIES = {"keras": keras, "tf_keras": tf_keras}
libraries = pytest.mark.parametrize("library", LIBRARIES)
NUM_STEPS = 40


def few(names, now, later):
    """Cases of which some are left to `-m long`."""
    return pytest.mark.parametrize(
        names,
        [*now, *(pytest.param(*([one] if isinstance(one, str) else one), marks=pytest.mark.long) for one in later)],
    )


def plain(library):
    layers = library.layers
    return lambda: library.Sequential([library.Input((6,)), layers.Dense(20, "relu"), layers.Dense(3, dtype="float32")])


def restless(library):
    """It keeps statistics and, where that can be repeated, draws random numbers."""
    layers = library.layers

    def build():
        random = [layers.Dropout(0.4)] if library is keras else []
        return library.Sequential(
            [library.Input((6,)), layers.Dense(20, "relu"), layers.BatchNormalization(), *random, layers.Dense(3)]
        )

    return build


def arrays(num_test=60):
    return toy_arrays(np.random.default_rng(3), num_train=277, num_test=num_test)


def prepared(build, devices="mirrored", given=None, enforcement="constraint", **train):
    settings = {
        "num_steps": NUM_STEPS,
        "batch_size": 16,
        "eval_every": 15,
        "learning_rate": 0.02,
        "devices": devices,
    } | train
    tables = {"data": {"validation": 77}, "train": settings, "prune": {"num_rounds": 1}}
    tables["run"] = {"enforcement": enforcement}
    return preparing.prepare(config.load(tables), Ingredients(build, given or arrays()))


def half(one, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.random(value.shape) < 0.5 for name, value in weights.read(one.trainer.model).items()}


def trained(one, start=None, kept=None, **options):
    """A training run under masks, with the masks."""
    kept = half(one) if kept is None else kept
    start = weights.read_state(one.trainer.model) if start is None else start
    with contextlib.closing(one.trainer):
        return one.trainer.train(start, kept, (9,), **options)


def bits(result):
    return [
        result.start_sha256,
        repr((result.metrics, result.summary)),
        *(value.tobytes() for value in result.weights.values()),
    ]


def of_each(variable):
    parts = weights.components(variable)
    assert len(parts) == 2
    return [np.array(one.numpy()) for one in parts]


@libraries
def test_the_constraint_holds_on_every_replica(library):
    library, strategy = LIBRARIES[library], tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    rng, layers = np.random.default_rng(0), library.layers
    x, y = rng.normal(size=(64, 6)).astype("float32"), rng.integers(0, 3, 64)
    with strategy.scope():
        library.utils.set_random_seed(0)
        model = library.Sequential([layers.InputLayer((6,)), layers.Dense(8, "relu"), layers.Dense(5), layers.Dense(3)])
        loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(library.optimizers.AdamW(0.01, weight_decay=0.1), loss, jit_compile=False)
    kept = {name: rng.random(value.shape) < 0.4 for name, value in weights.read(model).items()}
    kept["dense_1/kernel"][:] = False
    before = weights.read(model)

    def check(expected):
        for name, variable in weights.prunable(model).items():
            for found in of_each(variable):
                assert found[~kept[name]].tobytes() == expected[name][~kept[name]].tobytes(), name
                assert not kept[name].any() or np.any(found[kept[name]] != before[name][kept[name]])

    class BranchStyle(library.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            check(expected)

    assert strategy.num_replicas_in_sync == 2
    for held_at in (None, "present"):
        expected = weights.read(model) if held_at else {name: np.zeros_like(value) for name, value in before.items()}
        auditor = enforcement.AuditMasks(kept, expected)
        callbacks = [enforcement.EnforceMasks(kept, held_at=held_at), BranchStyle(), auditor]
        model.fit(x, y, batch_size=16, verbose=0, epochs=2, callbacks=callbacks)
        check(expected)
        weights.assign(model, before)
    model.fit(x, y, batch_size=16, verbose=0)  # nothing holds them any more
    now = weights.read(model)
    assert all(np.any(value[~kept[name]] != before[name][~kept[name]]) for name, value in now.items())


@few("library,optimizer", [("keras", "adam"), ("tf_keras", "sgd")], [("keras", "sgd"), ("tf_keras", "adam")])
def test_the_same_batches_lead_to_the_weights_of_one_device(library, optimizer):
    alone = prepared(plain(LIBRARIES[library]), "one", optimizer=optimizer, jit_compile=False)
    both = prepared(plain(LIBRARIES[library]), optimizer=optimizer)
    start = weights.read_state(alone.trainer.model)
    first, second = trained(alone, start), trained(both, start)
    for name, value in first.weights.items():
        assert np.any(value != start[name])
        np.testing.assert_allclose(second.weights[name], value, rtol=0, atol=1e-5, err_msg=name)
    expected = np.array([row[2:] for row in first.metrics])
    np.testing.assert_allclose([row[2:] for row in second.metrics], expected, rtol=0, atol=1e-5)


@few(
    "library,mode,precision",
    [
        ("keras", "constraint", "float32"), ("tf_keras", "constraint", "float32"), ("keras", "callback", "float32"),
        ("tf_keras", "gradient", "float32"), ("keras", "constraint", "mixed_float16"),
    ],
    [
        ("keras", "gradient", "float32"), ("tf_keras", "callback", "float32"), ("keras", "gradient", "mixed_float16"),
        ("keras", "callback", "mixed_float16"), ("tf_keras", "constraint", "mixed_float16"),
        ("tf_keras", "gradient", "mixed_float16"), ("tf_keras", "callback", "mixed_float16"),
    ],
)  # fmt: skip
def test_every_device_holds_the_masks_after_every_step(library, mode, precision):
    one = prepared(plain(LIBRARIES[library]), enforcement=mode, precision=precision, optimizer="adamw")
    kept, model = half(one, 1), one.trainer.model
    with contextlib.closing(one.trainer):
        one.trainer.hold()
        one.trainer.set_masks(kept)
        weights.assign(model, {name: value * kept.get(name, 1) for name, value in weights.read_state(model).items()})
        one.trainer.reset()
        batches, before = one.trainer.loop.batches((9,)), weights.read(model)
        for _ in range(8):
            one.trainer.loop.steps(*batches(1))
            for name, variable in weights.variables(model).items():
                first, second = of_each(variable)
                assert first.tobytes() == second.tobytes(), name
                assert first.dtype == np.float32
                if name in kept:
                    assert not first[~kept[name]].any() and not np.signbit(first[~kept[name]]).any()
                    assert np.any(first[kept[name]] != before[name][kept[name]])


@libraries
def test_statistics_are_one_and_dropout_is_two(library):
    one = prepared(restless(LIBRARIES[library]), optimizer="sgd", learning_rate=0.0)
    start = weights.read_state(one.trainer.model)
    one.trainer.reset()
    one.trainer.loop.steps(*one.trainer.loop.batches((9,))(5))
    state = weights.read_state(one.trainer.model)
    mean, variance = np.zeros(20), np.ones(20)
    for positions in randomness.batches(len(one.data.train), 16, (9,))(5):
        hidden = np.maximum(one.data.train.x[positions] @ start["dense/kernel"] + start["dense/bias"], 0)
        mean = 0.99 * mean + 0.01 * hidden.mean(0)
        # Each device takes it around the mean of its own share.
        variance = 0.99 * variance + 0.01 * (hidden[:8].var(0) + hidden[8:].var(0)) / 2
    np.testing.assert_allclose(state["batch_normalization/moving_mean"], mean, atol=1e-6)
    np.testing.assert_allclose(state["batch_normalization/moving_variance"], variance, atol=1e-6)
    # The states of random layers differ, and nothing else does.
    differing = mirrored.differing(weights.variables(one.trainer.model), state)
    assert list(differing) == (["1/dropout/seed_generator_state"] if library == "keras" else [])


def test_each_device_drops_other_units():
    """By itself, Keras 3 has all drop the same."""
    strategy = mirrored.strategy_for("mirrored")
    with strategy.scope():
        model = keras.Sequential([keras.Input((400,)), keras.layers.Dropout(0.5, seed=3)])
    same = []
    for apart in (lambda model: None, mirrored.draw_apart):
        apart(model)
        drawn = strategy.run(tf.function(lambda: model(tf.ones((1, 400)), training=True)))
        first, second = (np.array(one) for one in drawn.values)
        assert 120 < np.count_nonzero(first) < 280 and 120 < np.count_nonzero(second) < 280
        same.append(np.array_equal(first, second))
    assert same == [True, False]


@few("library,build", [("keras", restless), ("tf_keras", plain)], [("keras", plain), ("tf_keras", restless)])
def test_it_repeats_and_goes_on_from_a_checkpoint_bit_for_bit(library, build, tmp_path):
    def made():
        precision = "mixed_float16" if build is plain else "float32"
        # Its momentum goes on from a checkpoint as Adam's does, and takes half the time to trace on two devices.
        return prepared(build(LIBRARIES[library]), precision=precision, optimizer={"name": "sgd", "momentum": 0.9})

    one = made()
    start = weights.read_state(one.trainer.model)
    whole = bits(trained(one, start))
    assert bits(trained(one, start)) == whole
    file = tmp_path / "checkpoint.safetensors"
    calls = itertools.count()
    with pytest.raises(interrupts.Stopped):
        trained(one, start, checkpointer=checkpoints.Checkpointer(file, should_stop=lambda: 15 * (next(calls) > 2)))
    drops = library == "keras" and build is restless
    assert ("device/1/dropout/seed_generator_state" in files.read_arrays(file)) == drops
    assert bits(trained(made(), start, checkpointer=checkpoints.Checkpointer(file, note=pytest.fail))) == whole


@few(
    "library,num_test",
    [("keras", 3), ("keras", 1001), ("tf_keras", 1001)],
    [("keras", 2), ("keras", 1000), ("keras", 999), ("keras", 2003), ("tf_keras", 2), ("tf_keras", 3)],
)
def test_every_example_is_counted_once(library, num_test):
    given = arrays(num_test)
    logs = prepared(plain(LIBRARIES[library]), given=given).trainer.loop.evaluations["test"]()
    _check_counts(plain(LIBRARIES[library]), given[2:], logs)


@few(
    "library,sizes",
    [("keras", (7, 1)), ("tf_keras", (8, 1, 1))],
    [("keras", (8, 8)), ("keras", (7, 3)), ("tf_keras", (7, 3))],
)
def test_every_example_of_a_data_set_is_counted_once(library, sizes):
    x, y, test_x, test_y = arrays(sum(sizes))
    ends = np.cumsum(sizes)

    def test():
        spec = (tf.TensorSpec((None, 6), tf.float32), tf.TensorSpec((None,), tf.int64))
        cuts = zip(ends - sizes, ends, strict=True)
        parts = [(test_x[first:end], test_y[first:end]) for first, end in cuts]
        return tf.data.Dataset.from_generator(lambda: iter(parts), output_signature=spec)

    train = tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=True)
    one = prepared(plain(LIBRARIES[library]), given=(train, test, test))
    _check_counts(plain(LIBRARIES[library]), (test_x, test_y), one.trainer.loop.evaluations["test"]())


def _check_counts(build, examples, logs):
    model = building.build_model(build, randomness.seed_for(0, 0, randomness.INITIALISATION))
    outputs = np.array(model(examples[0]), np.float64)
    assert float(logs["accuracy"]) == pytest.approx(np.mean(outputs.argmax(1) == examples[1]), abs=1e-6)
    exps = np.exp(outputs - outputs.max(1, keepdims=True))
    losses = -np.log((exps / exps.sum(1, keepdims=True))[np.arange(len(outputs)), examples[1]])
    assert float(logs["loss"]) == pytest.approx(losses.mean(), rel=1e-4)


def test_what_a_step_reports_itself_is_the_mean_over_examples():
    class Own(keras.Sequential):
        def train_step(self, batch):
            logs = super().train_step(batch)
            return {"loss": logs["loss"], "first": tf.reduce_mean(batch[0][:, 0])}

        def test_step(self, batch):
            logs = super().test_step(batch)
            return {"loss": logs["loss"], "first": tf.reduce_mean(batch[0][:, 0])}

    given = arrays(1003)
    one = prepared(lambda: Own([keras.Input((6,)), keras.layers.Dense(3)]), given=given)
    assert any("train_step of its own" in note for note in one.notes)
    assert float(one.trainer.loop.evaluations["test"]()["first"]) == pytest.approx(given[2][:, 0].mean(), abs=1e-5)
    one.trainer.reset()
    seen = randomness.batches(len(one.data.train), 16, (9,))(6)
    logs = one.trainer.loop.steps(*one.trainer.loop.batches((9,))(6))
    assert float(logs["first"]) == pytest.approx(one.data.train.x[seen][..., 0].mean(), abs=1e-5)


@libraries
def test_all_devices_skip_what_overflows_on_one(library):
    """Keras 3 alone would make NaN of it."""
    x, y, *test = arrays()
    x[:, 0] = 0
    x[7] = 30_000
    one = prepared(plain(LIBRARIES[library]), given=(x, y, *test), precision="mixed_float16", learning_rate=1e-6)
    one.trainer.reset()
    batches = one.trainer.loop.batches((9,))
    for _ in range(2):
        one.trainer.loop.steps(*batches(15))
    optimizer = one.trainer.model.optimizer
    scale = optimizer.dynamic_scale if library == "keras" else optimizer._loss_scale._current_loss_scale
    first, second = of_each(scale)
    assert first == second < 2**15
    assert all(np.isfinite(value).all() for value in weights.read_state(one.trainer.model).values())


@few("library", ["keras"], ["tf_keras"])
def test_a_whole_run_finds_masks(library, tmp_path, monkeypatch):
    tables = {
        "name": "two",
        "data": {"validation": 77},
        "train": {"num_steps": 30, "batch_size": 12, "eval_every": 15, "devices": "mirrored"},
        "prune": {"num_rounds": 2, "criterion": "snip"},
        "run": {"num_replicates": 1, "controls": ["random_reinit"], "control_rounds": [2]},
    }
    options = {"model": restless(LIBRARIES[library]), "data": arrays(), "out": tmp_path, "on_event": quietly}
    done = lottery.run(tables, **options)
    assert done.table()["num_kept"].tolist() == [180, 144, 115, 115]
    assert store.read_environment(done.path)["num_devices"] == 2
    given = {key: options[key] for key in ("model", "data", "on_event")}
    lottery.branch(done.path, "random_mask", rounds=[2], **given)
    checked = list(verification.verify(done.path))
    assert len(checked) >= 5 and not [found for _, found in checked if found]
    # With another number of devices, nothing is trained for it any more.
    monkeypatch.setattr(mirrored, "num_devices", lambda model: 3)
    with pytest.raises(LotteryError, match="trains on 2 devices.*has 3 now"):
        lottery.branch(done.path, "shuffled_mask", rounds=[2], **given)
    (done.path / "replicate-1" / "round-02" / "round.json").unlink()
    with pytest.raises(LotteryError, match="trains on 2 devices.*has 3 now"):
        lottery.run(tables, **options)


def test_what_cannot_be_spread_is_refused():
    build = plain(keras)
    with pytest.raises(LotteryError, match="train.batch_size must be a multiple of 2"):
        prepared(build, batch_size=15)
    with pytest.raises(LotteryError, match="jit_compile must be false"):
        prepared(build, jit_compile=True)
    x, y, *test = arrays()
    for batched in ({"batch_size": 16}, {"batch_size": 15, "drop_remainder": True}):
        train = tf.data.Dataset.from_tensor_slices((x, y)).batch(**batched)
        rest = tf.data.Dataset.from_tensor_slices(tuple(test)).batch(16)
        with pytest.raises(LotteryError, match=r"data's batches \(with drop_remainder=True\) must be a multiple of 2"):
            prepared(build, given=(train, rest, rest))

    def under_its_own():
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            return build()

    with pytest.raises(LotteryError, match="without a strategy.*train.devices"):
        prepared(under_its_own, "one")
