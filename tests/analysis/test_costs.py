"""What networks cost, against counting by hand, against `compaction`, and against the files themselves."""

import importlib
import json
import math
import shutil

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lottery
from lottery import masks, plots, weights
from lottery.analysis import costs
from lottery.errors import LotteryError
from lottery.models import multiply_adds, networks
from lottery.pipeline import tensorboard
from lottery.pruning import branches, dynamic
from lottery.runs import store
from lottery.runs.stored import StoredRound
from lottery.statistics import results
from lottery.tickets import chain, compaction
from tests.conftest import quietly


@given(st.dictionaries(st.sampled_from("abcde"), st.tuples(st.integers(0, 50), st.integers(0, 30)), max_size=5))
def test_multiply_adds_are_counted_one_by_one(sizes):
    kept = {name: count for name, (count, _) in sizes.items()}
    per_entry = {name: times for name, (_, times) in sizes.items()}
    assert multiply_adds.of_kept(kept, {**per_entry, "unused": 3}) == sum(
        1 for n in kept for _ in range(kept[n]) for _ in range(per_entry[n])
    )
    for name in kept:
        assert multiply_adds.of_kept(kept, {**per_entry, name: None}) is None
        assert multiply_adds.of_kept(kept, {one: times for one, times in per_entry.items() if one != name}) is None


def total(model):
    per_entry = multiply_adds.per_entry(model)
    return sum(per_entry[name] * math.prod(value.shape) for name, value in weights.prunable(model).items())


@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
def test_the_networks_of_the_field(keras):
    """By hand: LeNet-5 on 28 x 28 has 24 x 24 and 8 x 8 output positions, Conv-2 on 32 x 32 has 32 x 32 twice."""
    keras = importlib.import_module(keras)
    lenet_5 = networks.named("lenet_5")((28, 28), 10, keras)
    conv_2 = networks.named("conv_2")((32, 32, 3), 10, keras)
    assert multiply_adds.per_entry(lenet_5) == {
        "conv2d/kernel": 576,
        "conv2d_1/kernel": 64,
        "dense/kernel": 1,
        "dense_1/kernel": 1,
    }
    assert total(lenet_5) == 576 * 500 + 64 * 25_000 + 800 * 500 + 500 * 10
    assert total(conv_2) == 1024 * (27 * 64 + 576 * 64) + 16_384 * 256 + 256 * 256 + 2560
    for model in (lenet_5, conv_2):
        assert total(model) == compaction.multiply_adds(chain.take_apart(model))
    # Strides, shortcuts of stride 2, and paths that branch: 40.55 million, and two 1 x 1 shortcuts.
    resnet = networks.named("resnet_20")((32, 32, 3), 10, keras)
    stages = (16 * 9 * (3 + 6 * 16) * 1024, 9 * (16 * 32 + 5 * 32 * 32) * 256, 9 * (32 * 64 + 5 * 64 * 64) * 64)
    assert total(resnet) == sum(stages) + 16 * 32 * 256 + 32 * 64 * 64 + 640


def many(keras):
    """One layer of each kind, and two models within: one called twice, one that is a Sequential."""
    layers = keras.layers
    image, words = keras.Input((9, 8, 4)), keras.Input((6,), dtype="int32")
    x = layers.Conv2D(6, (3, 2), strides=2, groups=2, padding="valid")(image)  # 4 x 4
    x = layers.SeparableConv2D(5, 3, padding="same")(layers.DepthwiseConv2D(2)(x))  # 3 x 3
    x = layers.Conv2DTranspose(4, 3, strides=2)(x)  # from 3 x 3
    shared = layers.Dense(3, name="shared")
    inner_input = keras.Input((3,))
    inner = keras.Model(inner_input, layers.Dense(3, name="inside")(inner_input), name="inner")
    y = layers.LSTM(5, return_sequences=True)(layers.Embedding(20, 7)(words))  # 6 steps
    y = layers.Dense(2, name="at_each_step")(layers.Conv1D(3, 2)(y))  # 5 of them
    x, y = (
        shared(layers.Dense(3)(layers.Flatten()(x))),
        keras.Sequential([keras.Input((5, 2)), layers.Flatten(), layers.Dense(3)])(y),
    )
    return keras.Model([image, words], layers.Add()([inner(x), inner(shared(y))]))


@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
def test_every_known_layer(keras):
    counts = multiply_adds.per_entry(many(importlib.import_module(keras)))
    of = {name.removesuffix("/kernel"): times for name, times in counts.items()}
    assert None not in of.values()
    assert (of["conv2d"], of["depthwise_conv2d"], of["conv2d_transpose"], of["conv1d"]) == (16, 9, 9, 5)
    assert {times for name, times in of.items() if name.startswith("separable")} == {9}
    assert {times for name, times in of.items() if name.startswith("lstm")} == {6}
    assert of["embedding/embeddings"] == 0 and of["at_each_step"] == 5 and of["dense"] == 1
    assert of["shared"] == 2 and of["inner/inside"] == 2 and of["sequential/dense"] == 1


def test_unknown_multiply_adds_are_none():
    keras = importlib.import_module("keras")

    class Mine(keras.layers.Dense):
        def call(self, inputs):
            return super().call(inputs) + super().call(-inputs)

    class Named(keras.layers.Dense):
        """A subclass that computes the same."""

    class Whole(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, inputs):
            return self.dense(self.dense(inputs))

    model = keras.Sequential([keras.Input((2,)), Mine(2, name="mine"), Named(2, name="named")])
    assert multiply_adds.per_entry(model) == {"mine/kernel": None, "named/kernel": 1}
    whole = Whole()
    whole(np.zeros((1, 2), np.float32))
    assert multiply_adds.per_entry(whole) == {"dense/kernel": None}
    open_ended = keras.Sequential(
        [
            keras.Input((None, None, 1)),
            keras.layers.Conv2D(2, 3),
            keras.layers.GlobalMaxPooling2D(),
            keras.layers.Dense(2),
        ]
    )
    assert multiply_adds.per_entry(open_ended) == {"conv2d/kernel": None, "dense/kernel": 1}


def test_layers_inside_a_pruning_wrapper_are_counted():
    tf_keras, wrappers = (
        importlib.import_module("tf_keras"),
        importlib.import_module("tensorflow_model_optimization").sparsity.keras,
    )
    layers = tf_keras.layers
    plain = tf_keras.Sequential([layers.Input((6, 6, 1)), layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(2)])
    assert (
        multiply_adds.per_entry(wrappers.prune_low_magnitude(plain))
        == multiply_adds.per_entry(plain)
        == {"conv2d/kernel": 16, "dense/kernel": 1}
    )


def test_the_table_of_a_run(small_run):
    table, rows = costs.table(small_run.path), results.table(small_run.path)
    assert tuple(table.columns) == costs.COLUMNS
    pd.testing.assert_frame_equal(
        table[["replicate", "branch", "round", "density", "num_kept", "seconds"]],
        rows[["replicate", "branch", "round", "density", "num_kept", "seconds"]],
    )
    # A fully connected network multiplies by each entry once, so that both are one over the density.
    np.testing.assert_allclose(table["multiply_adds"], rows["num_kept"])
    np.testing.assert_allclose(table["compression"], 1 / rows["density"])
    biases = 300 + 100 + 10  # are not pruned
    np.testing.assert_allclose(table["parameter_compression"], (50_200 + biases) / (rows["num_kept"] + biases))
    np.testing.assert_allclose(table["speedup"], 50_200 / rows["num_kept"])
    assert (table["steps"] == 110).all()
    seconds = sum(
        json.loads(path.read_text())["seconds"] for path in small_run.path.glob("replicate-*/round-*/round.json")
    )
    expected = {"networks": 8, "steps": 880, "seconds": pytest.approx(seconds), "examples": 880 * 32}
    assert costs.total(small_run.path) == expected
    # The rows of a run in training may be older than its files.
    assert costs.total(small_run.path, table[:3])["examples"] == 330 * 32


def changed(run, copy, per_entry=None):
    """A copy of a run, whose environment may have other multiply-adds for each entry."""
    shutil.copytree(run.path, copy, ignore=shutil.ignore_patterns("replicate-2", tensorboard.FOLDER))
    environment = json.loads((copy / "environment.json").read_text())
    assert environment["uses"] == {"dense/kernel": 1, "dense_1/kernel": 1, "dense_2/kernel": 1}
    if per_entry:
        store.write_record(copy / "environment.json", environment | {"uses": per_entry})
    return copy


def test_multiply_adds_per_entry_weigh_the_weights(small_run, tmp_path):
    per_entry = {"dense/kernel": 100, "dense_1/kernel": 10, "dense_2/kernel": 1}
    table = costs.table(changed(small_run, tmp_path / "run", per_entry))
    dense, last = 19_200 * 100 + 30_000 * 10 + 1000, 9830 * 100 + 15_360 * 10 + 729
    assert table["multiply_adds"][0] == dense and table["multiply_adds"][3] == last
    assert table["speedup"][3] == dense / last != table["compression"][3]


def test_unknown_multiply_adds_per_entry_leave_the_compression(small_run, tmp_path):
    unknown = costs.table(changed(small_run, tmp_path / "other", {"dense/kernel": None}))
    assert unknown[["multiply_adds", "speedup"]].isna().all(axis=None) and unknown["compression"].notna().all()


def test_a_network_without_any_weight_left(small_run, tmp_path):
    copy = changed(small_run, tmp_path / "run")
    folder = store.round_path(copy, 1, 3)
    record = store.read_record(folder)
    arrays, kept = {"a": np.zeros(2)}, {"a": np.zeros(2, bool)}
    record |= {"density": 0.0, "num_kept": 0, "kept": dict.fromkeys(record["kept"], 0)}
    store.write_round(
        folder,
        kept,
        arrays,
        [(40, "validation", 1, 1), (90, "validation", 1, 1)],
        {key: value for key, value in record.items() if "sha256" not in key},
    )
    last = costs.table(copy).iloc[-1]
    assert (last["compression"], last["speedup"], last["multiply_adds"], last["steps"]) == (math.inf, math.inf, 0, 50)
    assert last["parameter_compression"] == (50_200 + 410) / 410  # the biases


def test_what_a_network_takes_counted_by_hand(tmp_path):
    """Rounds before a ticket count, a branch without it trains alone, and a late start takes its dense steps."""
    settings = {
        "name": "spent",
        "data": {"name": "digits", "validation": 137},
        "model": {"name": "lenet_300_100"},
        "train": {"num_steps": 8, "eval_every": 4, "batch_size": 10, "jit_compile": False},
        "prune": {"num_rounds": 2, "rate": 0.5},
        "rewind": {"step": 2},
        "run": {
            "num_replicates": 1,
            "control_rounds": [2],
            "controls": ["random_mask", "untrained", "gradual_long", "rigl"],
        },
    }
    run = lottery.run(settings, out=tmp_path, on_event=quietly)

    def by_gradient(ticket):
        kept = branches.random_mask(ticket).kept
        changes = dynamic.rigl(masks.num_kept(kept), ticket.num_steps, ticket.gradients)
        details = {"needs_ticket": False, "dense_gradients": len(changes)}
        return branches.BranchStart(ticket.initial, kept, 0, ticket.num_steps, 0, changes, details)

    run.branch(by_gradient, [2], on_event=quietly)
    table = costs.table(run.path).set_index(["branch", "round"])
    dense, kept = 50_200, table["num_kept"].to_dict()
    each = 3 * 10  # forward, and backward twice, for each example of a batch
    rounds = [8 * dense, 6 * kept["ticket", 1], 6 * kept["ticket", 2]]
    ramp = [
        dense,
        *(row["num_kept"] for row in StoredRound(run.path, 1, 2, "gradual_long").record["mask_changes"]),
    ]
    places = [0, *(row["step"] for row in StoredRound(run.path, 1, 2, "gradual_long").record["mask_changes"]), 20]
    expected = {
        ("ticket", 0): (8, each * rounds[0]),
        ("ticket", 1): (14, each * sum(rounds[:2])),
        ("ticket", 2): (20, each * sum(rounds)),
        ("random_mask", 2): (8, each * (2 * dense + 6 * kept["random_mask", 2])),
        ("untrained", 2): (14, each * sum(rounds[:2])),
        ("gradual_long", 2): (
            20,
            each * sum(count * (b - a) for count, a, b in zip(ramp, places, places[1:], strict=False)),
        ),
        # At each of six changes: forward and back under the masks, and the gradients of all weights.
        ("rigl", 2): (8, each * 8 * kept["rigl", 2] + 6 * 10 * (2 * kept["rigl", 2] + dense)),
        ("by_gradient", 2): (8, each * 8 * kept["by_gradient", 2] + 6 * 10 * (2 * kept["by_gradient", 2] + dense)),
    }
    for place, (steps, count) in expected.items():
        assert (table["spent_steps"][place], table["spent_multiply_adds"][place]) == (steps, count), place
    by_cost = plots.read(run.path, "accuracy").set_index(["branch", "round"])
    assert by_cost["spent_multiply_adds"].to_dict() == table["spent_multiply_adds"].to_dict()
    ax = plots.drawn(by_cost.reset_index(), "accuracy", by="cost").axes[0]
    drawn = {tuple(line.get_xdata()) for line in ax.lines}
    assert tuple(expected["ticket", index][1] for index in range(3)) in drawn
    with pytest.raises(LotteryError, match="The table has no cost"):
        plots.drawn(run.table(), "accuracy", by="cost")


@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize(("criterion", "steps"), [("snip", 8), ("random", 16)])
def test_one_shot_pruning_takes_the_dense_network_at_most(tmp_path, criterion, steps):
    settings = {
        "name": "once",
        "data": {"name": "digits", "validation": 137},
        "train": {"num_steps": 8, "eval_every": 4, "batch_size": 10, "jit_compile": False},
        "prune": {"num_rounds": 2, "rate": 0.5, "criterion": criterion, "iterative": False},
        "run": {"num_replicates": 1},
    }
    run = lottery.run(settings, out=tmp_path, on_event=quietly)
    assert costs.table(run.path)["spent_steps"].tolist() == [8, steps, steps]
