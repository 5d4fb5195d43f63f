import json
import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from lottery import config, files, masks, weights
from lottery.analysis import curves, inputs, kernels, layers, overlaps
from lottery.errors import LotteryError
from lottery.models.architecture import describe
from lottery.models.graph import DescribedLayer
from lottery.runs import store
from lottery.runs.stored import stored_rounds
from lottery.statistics import results

LENET = {"library": "keras", "name": "lenet_300_100", "input_shape": [3, 4], "num_classes": 2}


def made_run(folder, chains, initial=None, architecture=LENET, settings=None, trained=None, curve=()):
    """A run's folder that nobody trained: by replicate and (round, branch), the masks."""
    tables = {"name": "made", "data": {"name": "digits"}, "run": {"num_replicates": len(chains)}} | (settings or {})
    experiment = config.Experiment(**tables)
    run = folder / f"made-{config.digest(experiment)}"
    files.write(run / "experiment.toml", config.dump(experiment).encode())
    known = dict.fromkeys(("data_sha256", "python", "processor"), "") | {"num_threads": 1, "versions": {}}
    store.write_record(
        run / "environment.json", known | {"digest": config.digest(experiment), "architecture": architecture}
    )
    for replicate, networks in chains.items():
        start = (initial or {}).get(replicate)
        if start is not None:
            files.write(store.start_path(run, replicate), files.pack_arrays(start))
        for (index, branch), kept in networks.items():
            begun = 64 * "0" if start is None else weights.fingerprint(masks.apply(start, kept))
            measured = [column for column in results.COLUMNS if column not in ("last_step", *results.BESIDE_DENSE)]
            record = dict.fromkeys(measured, 0.5) | {"early_stop_step": 1} | {
                "replicate": replicate, "branch": branch, "round": index, "density": masks.density(kept),
                "num_kept": sum(masks.num_kept(kept).values()), "collapsed": [], "start_sha256": begun,
            }  # fmt: skip
            ended = (trained or {}).get((replicate, index)) or start or {"nothing": np.zeros(1, np.float32)}
            store.write_round(store.round_path(run, replicate, index, branch), kept, ended, curve, record)
    return run


@given(hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=4, max_side=5)))
def test_degrees_count_what_comes_into_units_and_out_of_inputs(mask):
    coming, leaving = Counter(), Counter()
    for place in np.argwhere(mask).tolist():
        coming[place[-1]] += 1
        leaving[place[-2]] += 1
    found = layers.degrees_of(mask)
    assert [found[0].tolist(), found[1].tolist()] == [
        [coming[unit] for unit in range(mask.shape[-1])], [leaving[unit] for unit in range(mask.shape[-2])]
    ]  # fmt: skip


def test_a_weight_of_one_axis_has_units_only():
    mask = np.array([True, False, True])
    assert layers.degrees_of(mask)[0].tolist() == [1, 0, 1] and layers.degrees_of(mask)[1].size == 0


def test_the_table_counts_planted_dead_units(tmp_path, rng):
    kernel, dense = np.ones((3, 3, 4, 6), bool), np.ones((6, 5), bool)
    kernel[..., [1, 4]] = False  # two units that nothing comes into
    kernel[:, :, 2] = False  # an input that nothing leaves
    dense[[0, 1, 2]] = False
    nothing = {"conv2d/kernel": kernel & False, "dense/kernel": dense}
    whole = masks.ones_like(nothing)
    run = made_run(
        tmp_path,
        {
            1: {
                (0, "ticket"): whole,
                (1, "ticket"): {"conv2d/kernel": kernel, "dense/kernel": dense},
                (1, "random_mask"): nothing,
            }
        },
    )
    rows = layers.table(run)
    assert list(rows) == list(layers.COLUMNS)
    assert rows["branch"].tolist() == ["ticket"] * 4 + ["random_mask"] * 2 and rows["round"].tolist() == [
        0,
        0,
        1,
        1,
        1,
        1,
    ]
    found = rows[["size", "kept", "inputs", "units", "dead_inputs", "dead_units", "collapsed"]].values.tolist()
    assert found == [
        [216, 216, 4, 6, 0, 0, False], [30, 30, 6, 5, 0, 0, False],
        [216, 9 * 3 * 4, 4, 6, 1, 2, False], [30, 15, 6, 5, 3, 0, False],
        [216, 0, 4, 6, 4, 6, True], [30, 15, 6, 5, 3, 0, False],
    ]  # fmt: skip
    assert rows["weight_density"].tolist() == [1, 1, 0.5, 0.5, 0, 0.5]
    assert rows["density"].tolist() == [1, 1, 123 / 246, 123 / 246, 15 / 246, 15 / 246]
    degrees = layers.degrees(run, [1])
    assert set(degrees["round"]) == {1} and list(degrees) == list(layers.DEGREE_COLUMNS)
    ticket = degrees[(degrees["branch"] == "ticket") & (degrees["weight"] == "conv2d/kernel")]
    assert ticket[["side", "degree", "count"]].values.tolist() == [
        ["in", 0, 2],
        ["in", 27, 4],
        ["out", 0, 1],
        ["out", 36, 3],
    ]


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_inputs_and_units_of_grouped_and_transposed_convolutions(library, tmp_path):
    """Against what the kernel of each layer really has, in a model within a model too."""
    keras = pytest.importorskip(library)
    of = keras.layers
    inner = keras.Sequential([keras.Input((6, 6, 6)), of.Conv2D(4, 3, groups=2), of.Conv2DTranspose(5, 3)])
    first = of.Conv2DTranspose(3, 2, name="first")
    model = keras.Sequential([keras.Input((5, 5, 4)), first, of.Conv2D(6, 1, groups=3), inner, of.Conv2D(7, 1)])
    kept = {name: np.ones(value.shape, bool) for name, value in weights.prunable(model).items()}
    first_kernel, grouped, inner_grouped, transposed, plain = kept
    kept[first_kernel][:, :, 0] = False  # a unit
    kept[first_kernel][..., [1, 2]] = False  # two inputs
    kept[grouped][..., 4:] = False  # the units of the last group, and so its input
    kept[inner_grouped][:, :, 0, 2:] = False  # an input of the second group
    kept[transposed][..., 0] = False
    kept[plain][..., 0] = False
    run = made_run(tmp_path, {1: {(0, "ticket"): kept}}, architecture=describe(model))
    found = layers.table(run).set_index("weight")[["inputs", "units", "dead_inputs", "dead_units"]]
    assert found.T.to_dict("list") == {
        first_kernel: [4, 3, 2, 1], grouped: [3, 6, 1, 2], inner_grouped: [6, 4, 1, 0], transposed: [4, 5, 1, 0],
        plain: [5, 7, 0, 1],
    }  # fmt: skip
    degrees = layers.degrees(run)
    assert (degrees["degree"] * degrees["count"]).sum() == 2 * sum(mask.sum() for mask in kept.values())
    read = inputs.table(run).groupby("channel")[["kept", "of"]].sum()
    assert read.T.to_dict("list") == {0: [8, 12], 1: [0, 12], 2: [0, 12], 3: [8, 12]}


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_inputs_and_units_of_depthwise_convolutions_and_products(library, tmp_path):
    """Each input and each unit is put into its own, and moves what reads it or what it makes."""
    keras = pytest.importorskip(library)
    of = keras.layers
    x = keras.Input((5, 5, 4))
    y = of.DepthwiseConv2D(3, depth_multiplier=2)(x)
    y = of.SeparableConv2D(6, 2, depth_multiplier=3)(y)
    y = of.Reshape((4, 6))(y)
    y = of.MultiHeadAttention(num_heads=2, key_dim=3, value_dim=5)(y, y)
    y = of.EinsumDense("abc,cde->abde", (None, 2, 3))(y)
    model = keras.Model(x, of.EinsumDense("...de,dfe->...df", (2, 7))(y))
    kept = {name: np.ones(value.shape, bool) for name, value in weights.prunable(model).items()}
    depthwise, separable, pointwise, query, key, value, output, made, groups = kept
    kept[depthwise][:, :, 3] = False  # two units of an input, which is all that reads it
    kept[depthwise][:, :, 0, 1] = False  # one unit of another
    kept[separable][:, :, 2, 0] = False
    kept[query][:, 1] = False  # all units of a head
    kept[query][4] = False
    kept[output][0, 2] = False
    kept[output][..., 1:3] = False
    kept[made][..., 2] = False  # a unit of each head
    kept[groups][1, :, 0] = False  # an input of the second group
    kept[groups][0, 5] = False  # a unit of the first
    run = made_run(tmp_path, {1: {(0, "ticket"): kept}}, architecture=describe(model))
    found = layers.table(run).set_index("weight")[["inputs", "units", "dead_inputs", "dead_units"]]
    assert found.T.to_dict("list") == {
        depthwise: [4, 8, 1, 3], separable: [8, 24, 0, 1], pointwise: [24, 6, 0, 0], query: [6, 6, 1, 3],
        key: [6, 6, 0, 0], value: [6, 10, 0, 0], output: [10, 6, 1, 2], made: [6, 6, 0, 2], groups: [6, 14, 1, 1],
    }  # fmt: skip
    degrees = layers.degrees(run)
    assert (degrees["degree"] * degrees["count"]).sum() == 2 * sum(mask.sum() for mask in kept.values())
    read = inputs.table(run).groupby("channel")[["kept", "of"]].sum()
    assert read.T.to_dict("list") == {0: [9, 18], 1: [18, 18], 2: [18, 18], 3: [0, 18]}


WRONG = [3, "Dense", {"class_name": ["Dense"], "config": {"name": 3, "layers": "none", "layer": 1}}, {"config": 7}]


@pytest.mark.parametrize(
    "architecture",
    [
        {"name": "lenet_300_100", "input_shape": 3},
        {"keras": "Sequential"},
        {"keras": {"config": "Sequential"}},
        *({"keras": {"config": {"layers": layers}}} for layers in ("none", 3, WRONG)),
        *(
            {"keras": {"config": {"layers": [{"class_name": kind, "config": settings}]}}}
            for kind, settings in (
                ("EinsumDense", {"name": "dense", "equation": "..."}),
                ("EinsumDense", {"name": "dense", "equation": 3}),
                ("InputLayer", {"batch_shape": 3}),
            )
        ),
    ],
)
def test_a_configuration_that_is_none_is_left_out(tmp_path, architecture):
    kept = {"dense/kernel": np.ones((2, 3), bool)}
    run = made_run(tmp_path, {1: {(0, "ticket"): kept}, 2: {(0, "ticket"): kept}}, architecture=architecture)
    assert layers.table(run)[["inputs", "units"]].iloc[0].tolist() == [2, 3]
    assert inputs.table(run)["kept"].tolist() == 2 * [3, 3]
    if "keras" in architecture:
        with pytest.raises(LotteryError, match="Matching needs a chain"):
            overlaps.table(run, 0, matched=True)


@pytest.mark.parametrize(("own", "equation", "shape"), [("kernel", "x,ab->x", (6, 1)), ("bias", "ab,bc->ac", (2, 3))])
def test_axes_that_an_equation_does_not_tell_apart(own, equation, shape):
    layer = DescribedLayer("EinsumDense", {"equation": equation})
    mask = np.arange(6).reshape(2, 3) % 4 > 0
    found, groups = kernels.arranged(f"dense/{own}", mask, {"dense": layer})
    assert found.shape == shape and groups == 1 and found.ravel().tolist() == mask.ravel().tolist()


def test_degrees_of_a_run_add_up(small_run):
    rows, degrees = layers.table(small_run.path), layers.degrees(small_run.path)
    by_weight = degrees.assign(kept=degrees["degree"] * degrees["count"]).groupby(
        ["replicate", "round", "weight", "side"], sort=False
    )
    sums = by_weight[["kept", "count"]].sum().unstack("side")
    for row in rows.to_dict("records"):
        line = sums.loc[(row["replicate"], row["round"], row["weight"])]
        assert line["kept", "in"] == line["kept", "out"] == row["kept"]
        assert (line["count", "in"], line["count", "out"]) == (row["units"], row["inputs"])
    assert len(rows) == 2 * 4 * 3
    total = results.table(small_run.path)["num_kept"].sum()
    assert rows["kept"].sum() == total


def test_rounds_are_chosen_and_refused(small_run):
    found = [(one.replicate, one.round, one.folder.is_dir()) for one in stored_rounds(small_run.path, [2, 0])]
    assert found == [(1, 0, True), (1, 2, True), (2, 0, True), (2, 2, True)]
    with pytest.raises(LotteryError, match=r"Round 7 is not stored in '.*'. It has the rounds 0 to 3"):
        list(stored_rounds(small_run.path, np.array([1, 7])))


def test_a_run_without_rounds_gives_empty_tables(tmp_path):
    run = made_run(tmp_path, {1: {}})
    for found, columns in (
        (layers.table(run), layers.COLUMNS), (layers.degrees(run), layers.DEGREE_COLUMNS), (curves.table(run), curves.COLUMNS)
    ):  # fmt: skip
        assert len(found) == 0 and tuple(found) == columns
    with pytest.raises(LotteryError, match="Round 0 is not stored in .*. It has no round yet"):
        curves.table(run, [0])


def test_curves_keep_every_bit(tmp_path, rng):
    numbers = zip(range(500), rng.random(500) * 10.0 ** rng.integers(-9, 9, 500), rng.random(500), strict=True)
    curve = [(step, ("train", "test")[step % 2], float(loss), float(accuracy)) for step, loss, accuracy in numbers]
    run = made_run(tmp_path, {1: {(0, "ticket"): {"dense/kernel": np.ones((2, 2), bool)}}}, curve=curve)
    assert list(curves.table(run)[list(store.METRICS)].itertuples(index=False, name=None)) == curve


def test_curves_are_those_of_the_files(small_run):
    rows = curves.table(small_run.path, [1, 3])
    assert list(rows) == list(curves.COLUMNS) and set(rows["round"]) == {1, 3} and set(rows["replicate"]) == {1, 2}
    known = results.table(small_run.path).set_index(["replicate", "round"])
    for (replicate, index), part in rows.groupby(["replicate", "round"]):
        lines = (store.round_path(small_run.path, replicate, index) / "metrics.csv").read_text().splitlines()[1:]
        measured = [
            f"{step},{split},{loss},{accuracy}"
            for step, split, loss, accuracy in part[list(store.METRICS)].itertuples(index=False)
        ]
        assert "\n".join(measured) == "\n".join(lines) and set(part["branch"]) == {"ticket"}
        row = known.loc[replicate, index]
        validation = part[part["split"] == "validation"]
        assert validation["loss"].min() == row["early_stop_val_loss"] and set(part["density"]) == {row["density"]}
        assert part["step"].is_monotonic_increasing


def test_curves_of_branches_and_of_models_that_measure_no_accuracy(tmp_path):
    kept = {"dense/kernel": np.eye(3, dtype=bool)}
    chain = {(0, "ticket"): kept, (0, "random_reinit"): kept}
    run = made_run(tmp_path, {1: chain}, curve=[(0, "validation", 1.5, math.nan)])
    rows = curves.table(run)
    assert rows["branch"].tolist() == ["ticket", "random_reinit"]
    assert rows["loss"].tolist() == [1.5, 1.5] and rows["accuracy"].isna().all()


@pytest.mark.parametrize(
    "content",
    [
        "step,split,loss\n1,train,0.5\n",
        "step,split,loss,accuracy\n1,train,oops,1\n",
        "step,split,accuracy,loss\n1,train,0.5,1\n",
        "",
    ],
)
def test_damaged_curves_are_named(tmp_path, content):
    run = made_run(tmp_path, {1: {(0, "ticket"): {"dense/kernel": np.ones((2, 2), bool)}}})
    path = store.round_path(run, 1, 0) / "metrics.csv"
    path.write_text(content)
    with pytest.raises(LotteryError, match=r"metrics\.csv' is damaged"):
        curves.table(run)


def test_nothing_here_imports_tensorflow():
    # In a process of its own: this one has it.
    import subprocess

    names = "curves, distances, inputs, layers, matching, overlaps, survivors"
    code = f"import json, sys; from lottery.analysis import {names}; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, cwd=Path(__file__).parents[2]
        ).stdout
    )
    assert "lottery.analysis.overlaps" in loaded
    assert not {"tensorflow", "keras", "tf_keras", "pandas", "scipy", "matplotlib"} & set(loaded)


def test_degrees_are_summed_up_over_the_units_that_have_them(small_run):
    """From the masks themselves, by NumPy."""
    found = layers.summed(layers.degrees(small_run.path, [2])).set_index(["replicate", "weight", "side"])
    for replicate in (1, 2):
        folder = store.round_path(small_run.path, replicate, 2)
        for name, mask in files.read_masks(folder / "masks.safetensors").items():
            for side, axis in (("in", 0), ("out", 1)):
                degree, row = mask.sum(axis=axis), found.loc[(replicate, name, side)]
                assert (row["num"], row["dead"]) == (len(degree), np.count_nonzero(degree == 0))
                assert (row["least"], row["most"]) == (degree.min(), degree.max())
                assert row["mean"] == pytest.approx(degree.mean())
