"""The object that `lottery.run` and `lottery.load` return."""

import shutil
from functools import partial

import numpy as np
import pytest

import lottery
from lottery import formatting, text_tables
from lottery.errors import LotteryError
from lottery.statistics import two_way


def test_load_gives_the_run_that_run_gave(small_run):
    run = lottery.load(small_run.path)
    assert run == small_run and run.experiment == small_run.experiment
    with pytest.raises(LotteryError, match="is not a run"):
        lottery.load(small_run.path / "replicate-1")


def test_what_a_run_can_be_asked(small_run, tmp_path, short_pages):
    run = lottery.load(small_run.path)
    assert len(run.table()) == 8 and all(isinstance(sentence, str) for sentence in run.verdict())
    ticket = run.ticket(round=2, replicate=2)
    assert np.isclose(ticket.density, run.table().query("replicate == 2 and round == 2")["density"].item())
    assert len(run.tickets()) == 6 and run.verify() == []
    assert run.plot().axes and run.plot("overlap", round=1).axes
    assert "matched" in run.plot("overlap", round=1, matched=True).axes[1].get_ylabel()
    assert len(run.plot("learning_curves", rounds=[1, 3]).axes[0].get_legend_handles_labels()[1]) == 2
    paper = run.plot(style="paper", width=4, title="Mine")
    assert paper.get_figwidth() == 4 and paper.get_suptitle() == "Mine"
    with pytest.raises(LotteryError, match="Did you mean"):
        run.plot("acuracy")
    page = run.report(tmp_path / "page.html")
    assert page.read_text().startswith("<!DOCTYPE html>") or "<html" in page.read_text()


def test_a_notebook_shows_the_verdict_the_table_and_the_figure(small_run, tmp_path):
    text = small_run._repr_html_()
    assert small_run.path.name in text and text.count("<table") == text.count("<svg") == 1
    assert all(lottery.api.html.escape(sentence) in text for sentence in small_run.verdict())
    head = small_run.verdict()[0]
    assert text.startswith(f"<p><b style='color: {text_tables.COLOURS['open']}'>{head}</b></p>")
    assert text.index("<table") < text.index("<svg") and text.count("<tr>") == 1 + 4
    assert (
        f">{formatting.percent(small_run.table()['density'].min())}</td>" in text
        and "?: 2 replicates are too few to decide" in text
    )
    assert str(small_run) == head
    copy = tmp_path / "copy"
    shutil.copytree(small_run.path, copy)
    shutil.rmtree(copy / "replicate-2" / "round-03")
    part = lottery.load(copy)
    assert (
        part.verdict()[0].startswith("With 7 of 8 networks trained so far, ")
        and part.verdict()[0] in part._repr_html_()
    )
    for replicate in (1, 2):
        shutil.rmtree(copy / f"replicate-{replicate}")
    assert "No round is complete yet." in lottery.load(copy)._repr_html_()


def test_what_a_newcomer_looks_for_is_there(small_run):
    """A figure that any notebook shows, the verdict where one prints the run, and one-shot pruning at the top."""
    assert small_run.plot()._repr_png_().startswith(b"\x89PNG")
    assert str(small_run) == small_run.verdict()[0]
    assert lottery.prune is lottery.pruning.prune


def test_a_figure_takes_rounds_where_it_draws_rounds_alone(small_run):
    assert small_run.plot("inputs", rounds=[0, 2]) and small_run.plot("overlap", round=2, matched=False)
    with pytest.raises(LotteryError, match="accuracy has no option 'rounds'"):
        small_run.plot("accuracy", rounds=[0, 2])


@pytest.mark.parametrize("tolerance", [2, -0.002])  # 2 points, or a loss with its sign
def test_a_tolerance_that_is_no_fraction_is_refused(small_run, tolerance, tmp_path):
    reported = partial(small_run.report, tmp_path / "a.html")
    for call in (small_run.verdict, reported, partial(two_way.table, small_run.path)):
        with pytest.raises(LotteryError, match=rf"tolerance must be a fraction in \[0, 1\], not {tolerance}"):
            call(tolerance)


def build_model():
    raise AssertionError("is not called")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (build_model,),
            r"experiment must be tables, not the function build_model. .* lottery\.run\(model=build_model, data=",
        ),
        (({}, build_model), "overrides must be tables, not the function build_model. Pass"),
        (((1, 2, 3, 4),), "experiment must be tables, not tuple. Pass data by name"),
        ((3,), "experiment must be .*not int"),
    ],
)
def test_what_stands_in_the_wrong_place_is_named(arguments, message, tmp_path):
    with pytest.raises(LotteryError, match=message):
        lottery.run(*arguments, out=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", ["train.num_steps=300", ["train.num_steps=300"]])
def test_overrides_as_the_command_line_takes_them_are_refused(small_run, words, tmp_path):
    calls = (
        lambda: lottery.run(None, words, out=tmp_path),
        lambda: lottery.sweep({"sweep": {"prune.rate": [0.2]}}, words, out=tmp_path),
        lambda: lottery.branch(small_run, "transfer", overrides=words),
    )
    for call in calls:
        with pytest.raises(LotteryError, match=r'overrides must be tables, such as \{"train": .*, not .*num_steps=300'):
            call()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weight": {0: 2.0}}, r"class_weight: class weights belong in the data, .*tf\.gather"),
        ({"sample_weight": [1.0]}, "sample_weight: weights of examples belong in the data"),
        ({"validation_data": ()}, "validation_data: .* x_validation, y_validation"),
        ({"epochs": 3}, "epochs: .*num_steps"),
        ({"batch_size": 3}, r'batch_size belongs in the experiment: \{"train": \{"batch_size": ...\}\}'),
        ({"name": "mine"}, r'name belongs in the experiment: \{"name": ...\}'),
        ({"modle": None}, "Unknown argument 'modle'. Did you mean 'model'"),
        ({"prune": {"num_rounds": 2}}, r'prune belongs in the experiment: \{"prune": ...\}'),
        ({"model": "lenet"}, "model must be a function without arguments .* not str"),
    ],
)
def test_what_fit_takes_is_pointed_to_its_place(options, message, tmp_path):
    with pytest.raises(LotteryError, match=message):
        lottery.run({"data": {"name": "digits", "validation": 137}}, out=tmp_path, **options)


@pytest.mark.parametrize("key", ["num_rounds", "model", "criterion", "schedule", "enforcement"])
def test_a_sweep_takes_values_from_its_tables_alone(key):
    with pytest.raises(LotteryError, match=f"{key} belongs in the experiment"):
        lottery.sweep({"sweep": {"prune.rate": [0.2]}}, **{key: 3})


def test_options_that_do_not_exist_are_refused(tmp_path):
    with pytest.raises(LotteryError, match="Unknown argument 'wrokers'. Did you mean 'workers'"):
        lottery.run({}, out=tmp_path, wrokers=2)
    with pytest.raises(LotteryError, match="Unknown argument 'replicates'. Did you mean 'replicate'"):
        lottery.branch(tmp_path, "untrained", replicates=1)
