"""Masks that are learned: an update of the scores, what is left alone, kills, refusals, and that they learn."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import lottery
from lottery import config, files, interrupts, masks, progress, randomness, weights
from lottery.analysis import costs
from lottery.errors import LotteryError
from lottery.pipeline import branch_training, building, mask_training, network_training, preparing
from lottery.pipeline.prepared import Ingredients
from lottery.pruning import branches, supermasks
from lottery.runs import store, verification
from lottery.runs.stored import StoredRound
from lottery.training.checkpoints import CheckpointInterval
from tests.conftest import contents, quietly, toy_arrays

pytestmark = pytest.mark.usefixtures("traced_once")

NAMES = ["supermask"]
TABLES = {
    "name": "learned",
    "data": {"validation": 40},
    "train": {
        "num_steps": 40, "eval_every": 10, "batch_size": 16, "jit_compile": False, "optimizer": "sgd",
        "learning_rate": 0.1,
    },
    "prune": {"num_rounds": 2, "rate": 0.4},
    "rewind": {"step": 10},
    "run": {"num_replicates": 2},
}  # fmt: skip


def build():
    """A network with everything that must not disturb the scores: a penalty, a norm, statistics, random states."""
    import keras

    layers = keras.layers
    return keras.Sequential([
        keras.Input((6, 6, 1)),
        layers.Conv2D(6, 3, kernel_constraint=keras.constraints.MaxNorm(0.5), name="conv"),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dropout(0.1),
        layers.Dense(3, kernel_regularizer=keras.regularizers.L2(10.0)),
    ])  # fmt: skip


def arrays():
    return toy_arrays(np.random.default_rng(3), 200, 40, shape=(6, 6, 1))


@pytest.fixture(scope="module")
def trained(traced_once, tmp_path_factory):
    """A run with late rewinding, without branches; tests copy it."""
    out = tmp_path_factory.mktemp("learned")
    return lottery.run(TABLES, model=build, data=arrays(), out=out, on_event=quietly, tensorboard=False)


@pytest.fixture(scope="module")
def branched(trained, tmp_path_factory):
    """The run with the branch from both rounds; tests only read it."""
    path = shutil.copytree(trained.path, tmp_path_factory.mktemp("branched") / trained.path.name)
    for name in NAMES:
        branch(path, name)
    return path


def branch(path, name, **options):
    given = {"model": build, "data": arrays(), "on_event": quietly, "tensorboard": False} | options
    return lottery.branch(path, name, [1, 2], **given)


def of(path, name, replicate=1, index=2):
    return StoredRound(path, replicate, index, name)


def test_one_update_of_the_scores(monkeypatch):
    """Compared with NumPy: the forward pass, the gradient, and a step of plain SGD."""
    import keras

    def small():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(7, "tanh"), keras.layers.Dense(3)])

    x, y, *test = toy_arrays(np.random.default_rng(5), 120, 30)
    rate, size = 0.7, 16
    tables = TABLES | {"train": {"num_steps": 1, "batch_size": size, "jit_compile": False}, "rewind": {}}
    prepared = preparing.prepare(config.load(tables), Ingredients(small, (x, y, *test)))
    rng = np.random.default_rng(6)
    start = {name: rng.normal(size=value.shape).astype(np.float32) for name, value in
             building.initial_state(prepared, 1).items()}  # fmt: skip
    counts = {"dense/kernel": 20, "dense_1/kernel": 9}
    monkeypatch.setattr(supermasks, "OPTIMIZER", "sgd")
    monkeypatch.setattr(supermasks, "LEARNING_RATE", rate)
    learner = mask_training.learner(prepared)
    first = mask_training.begin(learner, start, counts, rng)
    dense = masks.ones_like({name: start[name] for name in counts})
    after = learner.train(first, dense, (8, 9)).weights

    (positions,) = randomness.batches(len(prepared.data.train), size, (8, 9))(1)
    batch, labels = np.float64(prepared.data.train.x[positions]), prepared.data.train.y[positions]
    sizes = {name: abs(first[name]) for name in counts}
    factor = {name: sizes[name] >= np.sort(sizes[name], axis=None)[-count] for name, count in counts.items()}
    one, two = (start[name] * factor[name] for name in counts)
    hidden = np.tanh(batch @ one + start["dense/bias"])
    logits = hidden @ two + start["dense_1/bias"]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    error = (odds / odds.sum(axis=1, keepdims=True) - np.eye(3)[labels]) / size
    gradient = {
        "dense/kernel": batch.T @ (error @ two.T * (1 - hidden**2)),
        "dense_1/kernel": hidden.T @ error,
    }
    for name in counts:
        expected = first[name] - rate * np.sign(first[name]) * start[name] * gradient[name]
        np.testing.assert_allclose(after[name], expected, rtol=1e-4, atol=2e-5)
        assert abs(after[name] - first[name]).max() > 0.01
    for name in ("dense/bias", "dense_1/bias"):
        assert np.array_equal(after[name], start[name])


@pytest.mark.parametrize("name", NAMES)
def test_counts_and_what_is_left_alone(branched, name):
    for replicate, index in [(1, 1), (1, 2), (2, 2)]:
        ticket, stored = of(branched, store.TICKET, replicate, index), of(branched, name, replicate, index)
        assert masks.num_kept(stored.masks) == masks.num_kept(ticket.masks)
        initial = store.read_start(branched, replicate)
        fixed = supermasks.fixed_weights(initial, masks.num_kept(ticket.masks))
        for key, mask in stored.masks.items():
            assert np.array_equal(stored.weights[key], np.where(mask, fixed[key], 0))
            assert masks.distance({key: mask}, {key: ticket.masks[key]}) > 0
        for key in ("conv/bias", "dense/bias", "batch_normalization/gamma", "batch_normalization/beta"):
            assert np.array_equal(stored.weights[key], initial[key])
        moved = "batch_normalization/moving_mean"
        assert not np.array_equal(stored.weights[moved], initial[moved])
        record = stored.record
        assert (record["first_step"], record["last_step"], record["mask_steps"]) == (40, 40, 40)
        assert [row[0] for row in stored.metrics] == [40, 40] and record["early_stop_step"] == 40
    assert np.any(of(branched, name, 1).masks["dense/kernel"] != of(branched, name, 2).masks["dense/kernel"])
    # No weight is trained, but steps are taken.
    taken = costs.table(branched).query("branch == @name")["steps"]
    assert len(taken) and set(taken) == {40}


@pytest.mark.parametrize("name", NAMES)
def test_the_trainer_of_scores_computes_what_the_stored_network_computes(trained, tmp_path, name):
    path = shutil.copytree(trained.path, tmp_path / trained.path.name)
    prepared = preparing.prepare(store.read_experiment(path), Ingredients(build, arrays()))
    training = network_training.Training(path, prepared, quietly)
    network = store.NetworkId(1, 2, name)
    branch_training.train_branch(training, network, branches.BRANCHES[name].function)
    stored, learner = of(path, name), mask_training.learner(prepared)
    x = prepared.data.test.x
    scored = np.asarray(learner.model(x, training=False))
    scores = weights.read(learner.model)
    kept = supermasks.kept_by(scores, masks.num_kept(stored.masks))
    assert all(np.array_equal(kept[key], mask) for key, mask in stored.masks.items())
    ordinary = build()
    weights.assign(ordinary, {key: value for key, value in stored.weights.items() if "seed" not in key})
    np.testing.assert_allclose(scored, np.asarray(ordinary(x, training=False)), rtol=1e-5, atol=1e-5)
    accuracy = np.mean(np.argmax(scored, axis=1) == prepared.data.test.y)
    assert stored.record["final_test_accuracy"] == pytest.approx(accuracy, abs=1e-6)


def test_stopped_in_the_middle_and_resumed(branched, trained, traced_once, tmp_path):
    """Every file is equal, also where the trainers are traced anew: draws go on where they stopped."""
    path = shutil.copytree(trained.path, tmp_path / trained.path.name)
    for name in NAMES:
        seen = []

        def watch(event, seen=seen):
            if isinstance(event, progress.Step) and 10 <= event.step < 40:
                seen.append(event.step)

        with pytest.raises(interrupts.Stopped):
            should_stop = lambda seen=seen: 15 * bool(seen)  # noqa: E731
            branch(path, name, on_event=watch, should_stop=should_stop, checkpoint_every=CheckpointInterval(0, 10))
        (file,) = path.rglob("checkpoint-scores.safetensors")
        record = json.loads(files.read_arrays(file)["record"].tobytes())
        assert 0 < record["standing"]["step"] < 40
        traced_once.clear()
        branch(path, name)
    assert not list(path.rglob("checkpoint*"))
    assert contents(path) == contents(branched)


def test_verify_and_recompute(branched, tmp_path):
    run = lottery.load(branched)
    assert run.verify(recompute=True, model=build, data=arrays()) == []
    said = verification.not_repeated(branched)
    assert [f"The masks of {name} were not made again, which needs the model." in said for name in NAMES] == [True]


def test_verify_finds_other_fixed_weights(branched, tmp_path, monkeypatch):
    """Of a network that is whole in itself: another scale makes other weights than the ticket's start."""
    fixed_weights = supermasks.fixed_weights

    def halved(start, counts):
        return {name: value / 2 if name in counts else value for name, value in fixed_weights(start, counts).items()}

    path = shutil.copytree(branched, tmp_path / branched.name)
    monkeypatch.setattr(supermasks, "fixed_weights", halved)
    found = dict(verification.verify(path))
    for name in NAMES:
        said = "Training did not start from the weights of " + name + "."
        assert found[f"replicate 1, round 2, branch {name}"] == [said]
    assert found["replicate 1, round 2"] == []


def test_one_device_alone(tmp_path):
    """Before anything is trained or written, in one sentence."""
    tables = config.merged(TABLES, {"run": {"controls": NAMES}, "train": {"devices": "mirrored"}})
    with pytest.raises(
        LotteryError, match='supermask learns masks only on one device, but train.devices is "mirrored"'
    ):
        lottery.run(tables, model=build, data=arrays(), out=tmp_path, on_event=quietly)
    assert not list(tmp_path.iterdir())


def test_a_learning_rate_that_cannot_begin_later_is_no_matter_where_nothing_is_trained(tmp_path):
    import keras

    def own():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(7, "relu"), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(lambda: 0.1), loss, metrics=["accuracy"])
        return model

    train = {key: TABLES["train"][key] for key in ("eval_every", "batch_size", "jit_compile")} | {"num_steps": 10}
    run = {"num_replicates": 1, "controls": NAMES}
    tables = TABLES | {"train": train, "rewind": {}, "prune": {"num_rounds": 1}, "run": run}
    data = toy_arrays(np.random.default_rng(3), 200, 40)
    done = lottery.run(tables, model=own, data=data, out=tmp_path, on_event=quietly, tensorboard=False)
    assert [name for name in done.table()["branch"] if name in NAMES] == NAMES


def test_a_train_step_that_passes_the_model_by_is_refused():
    """It would train the scores as if they were weights, and mean nothing by the masks."""
    import keras
    import tensorflow as tf

    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self.layers[0](x))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    tables = TABLES | {"train": {"num_steps": 1, "batch_size": 16, "jit_compile": False}, "rewind": {}}
    given = Ingredients(lambda: Own([keras.Input((6,)), keras.layers.Dense(3)]), toy_arrays(np.random.default_rng(3)))
    prepared = preparing.prepare(config.load(tables), given)
    with pytest.raises(LotteryError, match="train_step of the model .* does not call the model itself"):
        mask_training.learner(prepared)


def test_models_of_tf_keras_are_refused(tmp_path):
    tf_keras = pytest.importorskip("tf_keras")

    def theirs():
        return tf_keras.Sequential([tf_keras.layers.Dense(3, input_shape=(6,))])

    data = toy_arrays(np.random.default_rng(3))
    tables = config.merged(TABLES, {"run": {"controls": ["supermask"]}})
    with pytest.raises(LotteryError, match="supermask learns masks only of Keras 3 models, but the model"):
        lottery.run(tables, model=theirs, data=data, out=tmp_path, on_event=quietly)
    assert not list(tmp_path.iterdir())


def test_they_learn(tmp_path):
    """On the digits, sparse masks do far better than the ticket's and than random ones, of weights never trained."""
    tables = {
        "name": "digits",
        "data": {"name": "digits", "validation": 137},
        "train": {"num_steps": 200, "eval_every": 100, "batch_size": 32, "jit_compile": False},
        "prune": {"schedule": "explicit", "densities": [0.1]},
        "run": {"num_replicates": 1, "controls": ["untrained", "supermask"], "control_rounds": [1]},
    }
    run = lottery.run(tables, out=tmp_path, on_event=quietly)

    def random_untrained(ticket):
        drawn = branches.random_mask(ticket)
        fixed = supermasks.fixed_weights(ticket.initial, masks.num_kept(ticket.kept))
        return dataclasses.replace(drawn, start=fixed, first_step=ticket.num_steps, last_step=ticket.num_steps)

    lottery.branch(run.path, random_untrained, [1], on_event=quietly)
    found = run.table().query("round == 1").set_index("branch")["final_test_accuracy"]
    assert found["supermask"] > 0.85, found
    assert found["supermask"] > found[["untrained", "random_untrained"]].max() + 0.2, found
