import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lottery import files, weights
from lottery.analysis import distances, inputs, survivors
from lottery.errors import LotteryError
from lottery.runs import store
from tests.analysis.test_layers import made_run


@pytest.fixture
def known_run(tmp_path, rng):
    """Two replicates and two rounds with known start and trained weights."""
    initial, trained, chains = {}, {}, {}
    for replicate in (1, 2):
        start = {
            "a": rng.normal(size=(12, 5)).astype(np.float32), "b": rng.normal(size=(5, 2)).astype(np.float32),
            "a/bias": np.zeros(5, np.float32),
        }  # fmt: skip
        kept = {"a": rng.random((12, 5)) < 0.5, "b": rng.random((5, 2)) < 0.5}
        initial[replicate] = start
        chains[replicate] = {
            (0, "ticket"): {"a": np.ones((12, 5), bool), "b": np.ones((5, 2), bool)}, (1, "ticket"): kept
        }  # fmt: skip
        for index in (0, 1):
            trained[replicate, index] = {
                name: (value + rng.normal(size=value.shape)).astype(np.float32) for name, value in start.items()
            }
    return made_run(tmp_path, chains, initial, trained=trained), initial, trained, chains


def test_bins_hold_the_start_weights_of_survivors(known_run):
    run, initial, _, chains = known_run
    rows = survivors.table(run, num_bins=7)
    assert list(rows) == list(survivors.COLUMNS) and len(rows) == 2 * 2 * 2 * 7
    for name in ("a", "b"):
        part = rows[rows["weight"] == name]
        every = np.concatenate([initial[replicate][name].ravel() for replicate in (1, 2)])
        # One set of edges for all, without gaps.
        edges = part[["low", "high"]].drop_duplicates().to_numpy()
        assert len(edges) == 7 and (edges[1:, 0] == edges[:-1, 1]).all()
        assert (edges[0, 0], edges[-1, 1]) == (every.min(), every.max())
        for (replicate, index), one in part.groupby(["replicate", "round"]):
            values = initial[replicate][name][chains[replicate][index, "ticket"][name]]
            for low, high, count, last in zip(one["low"], one["high"], one["count"], [*[False] * 6, True], strict=True):
                assert count == sum(low <= value < high or (last and value == high) for value in values.tolist())
            assert one["count"].sum() == len(values)


def test_bins_are_of_the_rounds_that_are_asked_for(known_run):
    run, initial, _, chains = known_run
    rows = survivors.table(run, [1], num_bins=3)
    left = [initial[one]["a"][chains[one][1, "ticket"]["a"]] for one in (1, 2)]
    part = rows[rows["weight"] == "a"]
    assert set(rows["round"]) == {1}
    assert (part["low"].min(), part["high"].max()) == (min(map(np.min, left)), max(map(np.max, left)))
    with pytest.raises(LotteryError, match="num_bins must be .* not 0"):
        survivors.table(run, num_bins=0)


def test_a_weight_of_which_nothing_survives_has_empty_bins(tmp_path):
    start = {"a": np.ones((2, 2), np.float32), "b": np.full((2, 2), 3, np.float32)}
    kept = {"a": np.ones((2, 2), bool), "b": np.zeros((2, 2), bool)}
    rows = survivors.table(made_run(tmp_path, {1: {(0, "ticket"): kept}}, {1: start}), num_bins=4)
    assert rows.groupby("weight")["count"].sum().to_dict() == {"a": 4, "b": 0}
    assert rows[["low", "high"]].notna().all(axis=None)


def test_another_start_than_the_recorded_one_is_refused(known_run, rng):
    run, initial, _, _ = known_run
    initial[2]["b"] += 1
    files.write(store.start_path(run, 2), files.pack_arrays(initial[2]))
    for table in (survivors.table, distances.table):
        with pytest.raises(LotteryError, match="round 0 of replicate 2 did not start from the start weights"):
            table(run)


def test_every_start_of_a_real_run_survives_where_its_mask_says(small_run):
    rows = survivors.table(small_run.path, [0, 3], num_bins=20)
    kept = files.read_masks(store.round_path(small_run.path, 2, 3) / "masks.safetensors")
    last = rows[(rows["replicate"] == 2) & (rows["round"] == 3)].groupby("weight")["count"].sum()
    assert last.to_dict() == {name: int(mask.sum()) for name, mask in kept.items()}
    # Magnitude pruning rarely keeps what started near zero: the middle empties first.
    part = rows[(rows["weight"] == "dense/kernel") & (rows["replicate"] == 1)].pivot(
        index="low", columns="round", values="count"
    )
    share = part[3] / part[0]
    assert share.iloc[[9, 10]].mean() < share.iloc[[3, 4, 15, 16]].mean()


def test_distances_equal_another_computation(known_run):
    run, initial, trained, chains = known_run
    rows = distances.table(run)
    assert list(rows) == list(distances.COLUMNS) and rows["weight"].tolist() == ["all", "a", "b"] * 4
    assert set(rows["branch"]) == {"ticket"}
    for row in rows.to_dict("records"):
        replicate, index = row["replicate"], row["round"]
        kept = chains[replicate][index, "ticket"]
        pairs = [
            (float(start), float(end))
            for name in (kept if row["weight"] == "all" else [row["weight"]])
            for start, end, keep in zip(
                initial[replicate][name].flat, trained[replicate, index][name].flat, kept[name].flat, strict=True
            )
            if keep
        ]
        norm, end = (math.sqrt(sum(pair[side] ** 2 for pair in pairs)) for side in (0, 1))
        moved = math.dist([one for one, _ in pairs], [other for _, other in pairs])
        assert row["start_norm"] == pytest.approx(norm) and row["distance"] == pytest.approx(moved)
        assert row["relative_distance"] == pytest.approx(moved / norm)
        assert row["cosine"] == pytest.approx(sum(one * other for one, other in pairs) / norm / end)
        assert row["sign_changes"] == pytest.approx(sum(one * other < 0 for one, other in pairs) / len(pairs))


def test_distances_where_something_is_zero():
    zeros, ones = np.zeros(3), np.ones(3)
    assert distances.moved(ones, ones) == pytest.approx((3**0.5, 0, 0, 1, 0))
    assert distances.moved(ones, zeros)[:3] == pytest.approx((3**0.5, 3**0.5, 1))
    assert math.isnan(distances.moved(ones, zeros)[3]) and distances.moved(ones, zeros)[4] == 1
    assert distances.moved(zeros, ones)[:2] == pytest.approx((0, 3**0.5))
    assert all(math.isnan(value) for value in distances.moved(zeros, ones)[2:])
    assert distances.moved(zeros[:0], zeros[:0])[:2] == (0, 0)
    assert distances.moved(np.array([0.0, 1, -1, 2]), np.array([1.0, -1, -1, 2]))[4] == pytest.approx(1 / 3)


@pytest.mark.parametrize("mode", ["weights", "fine_tune"])
def test_each_round_is_measured_from_where_it_began(tmp_path, rng, mode):
    start = {"a": rng.normal(size=(4, 4)).astype(np.float32)}
    ended = {"a": start["a"] + np.float32(3)}
    final = {"a": ended["a"] + np.float32(4)}
    kept = {"a": np.ones((4, 4), bool)}
    run = made_run(
        tmp_path, {1: {(0, "ticket"): kept, (1, "ticket"): kept}}, {1: start}, settings={"rewind": {"mode": mode}},
        trained={(1, 0): ended, (1, 1): final},
    )  # fmt: skip
    if mode == "fine_tune":  # what the round began from is what the round before left
        folder = store.round_path(run, 1, 1)
        record = store.read_record(folder) | {"start_sha256": weights.fingerprint(ended)}
        record = {key: value for key, value in record.items() if key not in ("sha256", "record_sha256", "format")}
        store.write_round(folder, kept, final, [], record)
    found = distances.table(run).query("weight == 'a'")["distance"].tolist()
    assert found == pytest.approx([4 * 3, 4 * (7 if mode == "weights" else 4)], rel=1e-6)


@settings(max_examples=30)
@given(hnp.arrays(bool, st.tuples(*[st.integers(1, 4)] * 4)))
def test_pixels_are_where_flatten_puts_them(image_mask):
    # An image of entries (row, column, channel), and units: flattened as Keras' Flatten does it.
    *shape, units = image_mask.shape
    what, kept, of = inputs.counted(image_mask.reshape(-1, units), tuple(shape))
    assert (what, of) == ("input", units) and kept.shape == tuple(shape)
    row, column, channel = (size - 1 for size in shape)
    assert kept[row, column, channel] == sum(image_mask[row, column, channel].tolist())
    assert kept.sum() == image_mask.sum()


def test_keras_flattens_in_the_same_order():
    keras = pytest.importorskip("keras")
    image = np.arange(24, dtype=np.float32).reshape(1, 2, 4, 3)
    flat = np.asarray(keras.layers.Flatten()(image))[0]
    mask = np.zeros((24, 1), bool)
    mask[np.flatnonzero(flat == image[0, 1, 2, 0])] = True
    assert np.argwhere(inputs.counted(mask, (2, 4, 3))[1]).tolist() == [[1, 2, 0]]


@pytest.mark.parametrize(
    ("mask", "shape", "expected"),
    [
        ((12, 5), (3, 4), ("input", (3, 4, 1), 5)),
        ((12, 5), (2, 2, 3), ("input", (2, 2, 3), 5)),
        ((12, 5), (12,), ("input", (1, 12, 1), 5)),
        ((12, 5), (), ("input", (1, 12, 1), 5)),
        ((12, 5), (5, 4), ("input", (1, 12, 1), 5)),  # does not multiply to the inputs
        ((12,), (3, 4), ("input", (1, 12, 1), 1)),
        ((3, 2, 4, 6), (9, 9, 4), ("kernel", (3, 2, 4), 6)),
        ((3, 4, 6), (9, 4), ("kernel", (1, 3, 4), 6)),
        ((2, 3, 5, 4, 6), (9, 9, 9, 4), ("kernel", (6, 5, 4), 6)),
    ],
)
def test_inputs_are_counted_by_the_kind_of_weight(mask, shape, expected):
    what, kept, of = inputs.counted(np.ones(mask, bool), shape)
    assert (what, kept.shape, of) == expected
    assert (kept * of == of * kept.max()).all() and kept.sum() == np.prod(mask)


def keras_config(*layers):
    listed = [{"class_name": name, "config": settings} for name, settings in layers]
    return {"keras": {"class_name": "Sequential", "config": {"layers": listed}}}


DENSE = ("Dense", {"units": 5})


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ({"name": "lenet_300_100", "input_shape": [28, 28]}, (28, 28)),
        (keras_config(("InputLayer", {"batch_shape": [None, 3, 4]}), ("Flatten", {}), DENSE), (3, 4)),
        (keras_config(("InputLayer", {"batch_input_shape": [None, 3, 4, 2]}), DENSE), (3, 4, 2)),
        (keras_config(("InputLayer", {"batch_shape": [None, 3, 4]}), ("Permute", {}), DENSE), ()),
        (keras_config(("InputLayer", {"batch_shape": [None, 3, None]}), ("Flatten", {}), DENSE), ()),
        (
            keras_config(
                ("InputLayer", {"batch_shape": [None, 3, 4]}), ("Dense", {"units": 12, "trainable": False}), DENSE
            ),
            (),
        ),
        (keras_config(*[("InputLayer", {"batch_shape": [None, 3, 4]})] * 2, DENSE), ()),
        ({"class": "Mine", "why": "a class of its own"}, ()),
        ({}, ()),
    ],
)
def test_the_image_is_known_only_where_its_order_is(architecture, expected):
    assert inputs.image_shape(architecture) == expected


def test_inputs_of_a_run(small_run, known_run):
    rows = inputs.table(small_run.path, [0, 3])
    assert list(rows) == list(inputs.COLUMNS) and set(rows["what"]) == {"input"} and set(rows["of"]) == {300}
    assert len(rows) == 2 * 2 * 64 and (rows[rows["round"] == 0]["kept"] == 300).all()
    mask = files.read_masks(store.round_path(small_run.path, 1, 3) / "masks.safetensors")["dense/kernel"]
    grid = rows[(rows["replicate"] == 1) & (rows["round"] == 3)].pivot(index="row", columns="column", values="kept")
    assert isinstance(grid, pd.DataFrame) and (grid.to_numpy() == mask.sum(axis=1).reshape(8, 8)).all()
    # Of the made-up run, the architecture says 3 x 4.
    made = inputs.table(known_run[0])
    assert (made["row"].max(), made["column"].max(), made["channel"].max()) == (2, 3, 0)
    assert set(made["weight"]) == {"a"}
