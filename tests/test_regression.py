"""A whole run of a model that predicts numbers: mean squared error, and no accuracy anywhere."""

import re

import numpy as np
import pytest

import lottery
from lottery import plots
from lottery.analysis import curves
from lottery.runs.stored import StoredRound
from lottery.statistics import results, tables, verdicts
from lottery.statistics.metric import LOSS, metric_of
from tests.conftest import quietly

pytestmark = pytest.mark.usefixtures("traced_once")

EXPERIMENT = {
    "name": "numbers",
    "train": {"num_steps": 60, "batch_size": 20, "eval_every": 20, "jit_compile": False},
    "prune": {"num_rounds": 2},
    "run": {"num_replicates": 2, "controls": ["random_reinit"]},
}


def arrays():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(260, 6)).astype(np.float32)
    y = x @ rng.normal(size=(6, 1)).astype(np.float32) + rng.normal(size=(260, 1)).astype(np.float32) / 10
    return x[:200], y[:200], x[200:], y[200:]


def build(library):
    model = library.Sequential([library.layers.InputLayer((6,)), library.layers.Dense(12, "relu")])
    model.add(library.layers.Dense(1))
    model.compile(library.optimizers.Adam(0.02), "mse")
    return model


def build_keras():
    import keras

    return build(keras)


def build_tf_keras():
    import tf_keras

    return build(tf_keras)


@pytest.fixture(scope="module", params=[build_keras, pytest.param(build_tf_keras, marks=pytest.mark.long)])
def model(request):
    return request.param


@pytest.fixture(scope="module")
def run(traced_once, model, tmp_path_factory):
    return lottery.run(EXPERIMENT, model=model, data=arrays(), out=tmp_path_factory.mktemp("runs"), on_event=quietly)


def test_losses_of_the_table_are_means_of_squared_errors(run, model):
    rows, (_, _, x, y) = run.table(), arrays()
    assert (
        rows[[column for column in rows if "loss" in column and column not in results.BESIDE_DENSE]]
        .notna()
        .all(axis=None)
    )
    assert rows[[column for column in rows if "accuracy" in column]].isna().all(axis=None)
    for row in rows[rows["branch"] == "ticket"].to_dict("records"):
        stored = StoredRound(run.path, row["replicate"], row["round"])
        for values, when in ((stored.weights, "final"), (stored.early_stop, "early_stop")):
            hidden = np.maximum(x @ values["dense/kernel"] + values["dense/bias"], 0)
            predicted = hidden @ values["dense_1/kernel"] + values["dense_1/bias"]
            assert row[f"{when}_test_loss"] == pytest.approx(np.mean((predicted - y) ** 2), rel=1e-4)


def test_the_verdict_is_on_the_loss(run):
    rows = run.table()
    assert metric_of(rows) == LOSS
    first, *others = run.verdict()
    assert "test loss" in first and "accura" not in "".join([first, *others])
    controls = tables.controls(verdicts.of_run(run.path, rows))
    assert "per cent of the dense loss" in controls.key["ticket − branch"]
    row = dict(zip(controls.heads, controls.rows[0], strict=True))
    chains = {
        branch: part.pivot(index="replicate", columns="round", values=LOSS.early_stop)
        for branch, part in rows.groupby("branch")
    }
    tickets, number = chains["ticket"], int(row["round"])
    difference = (tickets[number] - chains["random_reinit"][number]).mean() / tickets[0].mean()
    shown = row["ticket − branch"].removesuffix(" %").replace(",", "")
    assert row["branch"] == "random_reinit" and float(shown) == pytest.approx(100 * difference, abs=0.5)


def test_commands_show_losses_and_no_empty_column(run, lottery_command):
    shown = lottery_command("show", "--long", run.path).stdout
    assert re.search(r"0 +100 % +\d\.\d+ +", shown) and "lower is better." in shown
    listed = lottery_command("tickets", "ls", run.path).stdout
    summed = lottery_command("analyze", "curves", run.path).stdout
    for text in (shown, listed, summed):
        assert "nan" not in text.lower() and "accura" not in text.lower()
    best = run.table().query("branch == 'ticket' and round > 0").groupby("round")["early_stop_val_loss"].mean().idxmin()
    chosen = run.tickets().set_index("choice")["round"]
    assert set(chosen[[name for name in chosen.index if "best" in name]]) == {best}
    assert run.tickets()["test_loss"].notna().all() and "test_accuracy" not in run.tickets()


def test_runs_are_compared_by_the_test_loss(run, model, tmp_path, lottery_command):
    other = lottery.run(
        EXPERIMENT | {"name": "fewer", "run": {"num_replicates": 2}}, {"train": {"num_steps": 40}}, model=model,
        data=arrays(), out=tmp_path, on_event=quietly,
    )  # fmt: skip
    shown = lottery_command("compare", run.path, other.path).stdout
    assert "test loss: at the early-stop step" in shown and "lower is better" in shown and "nan" not in shown
    planned = lottery_command("plan", "--from", run.path)
    assert planned.returncode == 0 and "in per cent of the loss of dense" in " ".join(planned.stdout.split())


def test_figures_and_the_page_are_of_losses(run, tmp_path):
    axes = run.plot().axes[0]
    assert axes.get_ylabel() == "test loss at the early-stop step"
    assert "accura" not in plots.kinds()["accuracy"].title.lower()  # which stands above this figure, too
    assert plots.caption(run.table()).startswith("Test loss at the early-stop step")
    drawn = plots.drawn(curves.table(run.path), "learning_curves", rounds=[0, 2]).axes[0]
    assert drawn.get_ylabel() == "validation loss"
    page = run.report(tmp_path / "page.html").read_text()
    assert "<td>nan" not in page and "test loss" in page
    assert "test accuracy" not in page and "accuracy at the end" not in page
    assert "nan" not in run._repr_html_().lower() and "test loss" in run._repr_html_()


def test_tickets_and_verification(run, model):
    ticket = run.ticket(round="best")
    assert f"test loss {ticket.metrics['early_stop_test_loss']:#.4g}" in repr(ticket)
    assert ticket.metrics["replicates"]["early_stop_test_loss"]["mean"] > 0
    assert run.verify() == [] and run.verify(recompute=True, model=model, data=arrays()) == []
