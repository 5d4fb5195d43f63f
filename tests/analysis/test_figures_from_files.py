"""Every number of every figure is the files', and figures that say something else are noticed."""

import dataclasses
import functools
import shutil

import numpy as np
import pandas as pd
import pytest

from lottery import files, plots
from lottery.analysis import ANALYSES, connectivity, curves, distances, inputs
from lottery.figures import style
from lottery.runs import siblings, store
from tests.scripts.figures_from_files import compared, evenly, spread

MEASURED = ("barrier", "instability")
# Of a small run, the fewest numbers in a figure that would show a fault.
FEWEST = 20


@pytest.fixture
def undrawn(monkeypatch):
    """Leave out the drawing that places alone need: numbers are read from artists."""
    monkeypatch.setattr("matplotlib.figure.Figure.draw_without_rendering", lambda figure: None)
    monkeypatch.setattr("lottery.figures.layout.fit", lambda figure: None)


@pytest.fixture(scope="module")
def run(small_run, tmp_path_factory):
    """The small run with a control that falls, and loses a weight, and with paths between networks, all made up."""
    path = tmp_path_factory.mktemp("figures") / small_run.path.name
    shutil.copytree(small_run.path, path)
    rng, experiment = np.random.default_rng(3), store.read_experiment(path)
    for replicate, index in ((replicate, index) for replicate in (1, 2) for index in (1, 2, 3)):
        ticket = store.round_path(path, replicate, index)
        masks, weights = (
            files.read_masks(ticket / "masks.safetensors"),
            files.read_arrays(ticket / "weights.safetensors"),
        )
        masks = {name: rng.permuted(mask.ravel()).reshape(mask.shape) for name, mask in masks.items()}
        if (replicate, index) == (2, 3):
            masks["dense_1/kernel"][:] = False
        accuracy, num_kept = 0.9 / index - 0.01 * replicate, sum(int(mask.sum()) for mask in masks.values())
        record = store.read_record(ticket) | {
            "branch": "random_mask", "early_stop_test_accuracy": accuracy, "final_test_accuracy": accuracy - 0.02,
            "early_stop_step": (40, 80, 110)[rng.integers(3)], "num_kept": num_kept,
            "density": num_kept / sum(mask.size for mask in masks.values()),
        }  # fmt: skip
        lowest = [
            (step, split, float(step != record["early_stop_step"]) + rng.random() / 9 if step else 3.0, rng.random())
            for step in (0, 40, 80, 110)
            for split in ("train", "validation")[step == 0 :]
        ]
        of_dense = store.read_record(store.round_path(path, replicate, 0))["early_stop_val_loss"]
        reached = [step for step, split, loss, _ in lowest if split == "validation" and loss <= of_dense]
        record["dense_loss_step"] = min(reached, default=None)
        store.write_round(ticket / "branch-random_mask", masks, weights, lowest, record)
        for step in (0, 40):
            alphas = np.linspace(0, 1, 6)
            rows = [(float(at), split, 1.0, float(rng.random())) for at in alphas for split in ("train", "test")]
            pair = siblings.Siblings(path, experiment, replicate, index, step)
            for number in siblings.ORDERS[step == 0 :]:  # the first from step 0 is the run's own
                copy = store.read_record(ticket) | {"branch": pair.branch(number)}
                kept = files.read_masks(ticket / "masks.safetensors")
                store.write_round(pair.network(number).folder, kept, weights, lowest, copy)
            siblings.write_path(pair.path_file(), rows, pair.digests())
    return path


def test_every_number_of_a_run_is_the_files(small_run):
    rows = compared(small_run.path)
    assert [row["kind"] for row in rows] == list(plots.kinds())
    assert [row["wrong"] for row in rows] == [[]] * len(rows)
    assert {row["kind"]: row["why"] for row in rows if row["why"]} == dict.fromkeys(MEASURED, "no path is measured")
    assert all(row["numbers"] > FEWEST and row["artists"] > 4 for row in rows if not row["why"])
    assert all(row["difference"] < 1e-12 for row in rows)


def test_every_number_of_a_run_with_controls_and_paths_is_the_files(run, undrawn):
    rows = [*compared(run, ["accuracy", *MEASURED]), *compared(run, ["early_stop", "layers"], {})]
    assert [row["wrong"] for row in rows] == [[]] * 5 and not any(row["why"] for row in rows)
    assert all(row["numbers"] > FEWEST for row in rows)
    # What the faults below are about is there.
    assert "falls to" in str(plots.drawn(plots.read(run, "accuracy")).axes[0].get_legend_handles_labels()[1])
    assert "lower bound" in str(
        plots.drawn(plots.read(run, "early_stop"), "early_stop").axes[0].get_legend_handles_labels()[1]
    )


def test_rounds_are_chosen_evenly_and_intervals_are_of_students_t():
    assert evenly(range(21), 6) == [0, 4, 8, 12, 16, 20] and evenly([3, 1], 6) == [1, 3] and evenly([4], 3) == [4]
    (mean, low, high), counts = spread([[0.9, 0.92, float("nan")], [0.5]], "t")
    assert list(mean) == pytest.approx([0.91, 0.5]) and counts == [2, 1] and np.isnan([low[1], high[1]]).all()
    assert high[0] - mean[0] == pytest.approx(12.706204736 * 0.01)  # the standard error of two values


# ---- faults: each changes what is drawn, and `compared` has to see it


def _reading(change):
    """Plant a change of the table that a figure is drawn from."""

    def plant(patch, kind):
        one = ANALYSES[kind]
        table = functools.wraps(one.table)(lambda *args, **options: change(one.table(*args, **options)))
        patch.setitem(ANALYSES, kind, dataclasses.replace(one, table=table))

    return plant


def _spread(**columns):
    """Plant a change of what is said over replicates."""

    def plant(patch, kind):
        original = style.spread
        patch.setattr(style, "spread", lambda *args, **options: original(*args, **options).assign(**columns))

    return plant


def _twice(table):
    """Replicate 1 in place of replicate 2."""
    one = table[table["replicate"] == 1]
    return pd.concat([one, one.assign(replicate=2)], ignore_index=True)


def _one_survivor(table):
    """A survivor of the last round of replicate 2 that is counted in a later bin."""
    last = table[(table["replicate"] == 2) & (table["round"] == 3) & (table["weight"] == "dense/kernel")]
    from_bin, to_bin = last.index[40], last.index[44]
    count = table["count"].copy()
    count[from_bin] -= 1
    count[to_bin] += 1
    return table.assign(count=count)


def _of_the_network(table):
    """What chance gives masks of the network's density, whatever that of each weight."""
    density = table["density_one"]
    return table.assign(chance=density / (2 - density))


def _transposed(patch, kind):
    original = inputs.image
    patch.setattr(inputs, "image", lambda *args: original(*args).T)


def _upside_down(patch, kind):
    original = inputs.image
    patch.setattr(inputs, "image", lambda *args: original(*args)[::-1])


def _at_the_last_step(patch, kind):
    """Averages of evaluations that stand where the last of them was made."""
    original = curves._averaged

    def averaged(curves, measure, most):
        found, together = original(curves, measure, most)
        return found.assign(step=found["step"] + 20 * (found["step"] > 0) * (together > 1)), together

    patch.setattr(curves, "_averaged", averaged)


def _from_where_it_ended(patch, kind):
    original = distances.moved
    patch.setattr(distances, "moved", lambda start, trained: original(trained, start))


def _above_the_first_end(patch, kind):
    original = connectivity.error_barrier

    def measured(alphas, errors):
        found = original(alphas, errors)
        return found | {"barrier": found["highest"] - next(iter(errors))}

    patch.setattr(connectivity, "error_barrier", measured)


def _short_ticks(patch, kind):
    from matplotlib.ticker import FuncFormatter

    patch.setattr(style, "plain", lambda axis: axis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:.0f}")))


def _without_marks(patch, kind):
    from matplotlib.axes import Axes

    original = Axes.plot

    def plot(ax, x, y, **options):
        x, y = ([], []) if options.get("label") == "_below" else (x, y)
        return original(ax, x, y, **options)

    patch.setattr(Axes, "plot", plot)


def _another_count(patch, kind):
    original = style.counted
    patch.setattr(style, "counted", lambda points: (original(points)[0] + 1, f"{original(points)[0] + 1}"))


FAULTS = {
    "the lowest in place of the mean": (
        _spread(mean=lambda found: found["low"]),
        "accuracy speed classes learning_curves layers degrees instability",
    ),
    "the bars of one replicate": (
        _spread(high=lambda found: found["mean"]),
        "speed classes early_stop initial_weights barrier",
    ),
    "a replicate twice": (_reading(_twice), "accuracy learning_curves distance"),
    "a replicate left out": (_reading(lambda table: table[table["replicate"] == 1]), "degrees"),
    "rounds one later": (
        _reading(lambda table: table.assign(round=table["round"] + 1)),
        "layers inputs barrier",
    ),
    "the density of the round before": (
        _reading(lambda table: table.assign(density=table["density"] / 0.8)),
        "accuracy early_stop initial_weights",
    ),
    "the end of training in place of the early stop": (
        _reading(lambda table: table.assign(early_stop_test_accuracy=table["final_test_accuracy"])),
        "accuracy",
    ),
    "no marks for what falls": (_without_marks, "accuracy"),
    "another n": (_another_count, "accuracy degrees barrier"),
    "no bound is open": (_reading(lambda table: table.assign(last_step=0)), "early_stop"),
    "averages at the last step": (_at_the_last_step, "learning_curves"),
    "a survivor in another bin": (_reading(_one_survivor), "initial_weights"),
    "fewer in place of at most": (_reading(lambda table: table.assign(degree=table["degree"] + 1)), "degrees"),
    "rows for columns": (_transposed, "inputs"),
    "upside down": (_upside_down, "inputs"),
    "chance for the whole density": (_reading(_of_the_network), "overlap"),
    "another pair": (_reading(lambda table: table.assign(overlap=table["overlap"].shift(-1))), "overlap"),
    "relative to the end": (_from_where_it_ended, "distance"),
    "above the first end": (_above_the_first_end, "instability"),
    "short ticks": (_short_ticks, "accuracy"),
}


# That replicates keep different counts, or that evaluations are averaged.
OPTIONS = {"layers": {"branch": "random_mask"}, "learning_curves": {"most": 2}}


def compared_figure(run, kind):
    (row,) = compared(run, [kind], OPTIONS.get(kind, {}))
    return row


without_fault = functools.cache(compared_figure)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_figure_that_says_something_else_is_noticed(fault, run, undrawn, monkeypatch):
    plant, kinds = FAULTS[fault]
    for kind in kinds.split():
        assert not without_fault(run, kind)["wrong"], kind
        with monkeypatch.context() as patch:
            plant(patch, kind)
            row = compared_figure(run, kind)
        assert row["wrong"] and row["figures"] == 1, kind
