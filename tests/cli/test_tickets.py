"""What `lottery tickets`, `export`, `compact` and `verify FILE` print and write."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from lottery import formatting, tickets
from lottery.errors import LotteryError
from lottery.tickets import exporting
from tests.scripts.fuzz_tickets import forge


@pytest.fixture
def lottery(lottery_command, monkeypatch):
    # The threads of this process are the other tests' affair.
    monkeypatch.setattr("lottery.pipeline.environment.use_threads", lambda wanted: wanted)
    return lottery_command


@pytest.fixture(scope="module")
def file(small_run, tmp_path_factory):
    return tickets.load(small_run.path, round=3, replicate=2).save(tmp_path_factory.mktemp("t") / "t.safetensors")


def test_formats_are_those_of_the_module(lottery):
    names = ["safetensors", *exporting.EXPORTS]
    files = [one.file for one in exporting.EXPORTS.values()]
    shown = lottery("export", "--help")[1].split("Formats, and the file")[1]
    assert [line.split() for line in shown.splitlines()[1:]] == [
        [name, file] for name, file in zip(names, ["ticket.safetensors", *files], strict=True)
    ]
    assert len({"ticket.safetensors", *files}) == len(names)  # `--format all` writes them to one folder


def test_a_format_whose_masked_entries_were_not_checked_is_not_said_to_hold_them(lottery, file, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "are_held", lambda *_: False)
    printed = lottery("export", file, "--out", tmp_path / "model.npz")[1]
    said = "Masked entries are zero in each file, but for npz, where they could not be checked."
    assert said in " ".join(printed.split())


def test_ls_lists_every_ticket_and_what_the_words_choose(lottery, small_run):
    status, out, _ = lottery("tickets", "ls", small_run.path, "--json")
    rows = json.loads(out)
    assert status == 0 and [(row["replicate"], row["round"]) for row in rows] == [
        (replicate, index) for replicate in (1, 2) for index in (1, 2, 3)
    ]
    table = small_run.table().query("branch == 'ticket'")
    dense = table[table["round"] == 0].set_index("replicate")["early_stop_test_accuracy"]
    for row in rows:
        own = table[(table["replicate"] == row["replicate"]) & (table["round"] == row["round"])].iloc[0]
        assert row["num_kept"] == own["num_kept"]
        assert row["test_accuracy"] == pytest.approx(own["early_stop_test_accuracy"], abs=1e-14)
        assert row["vs_dense"] == pytest.approx(row["test_accuracy"] - dense[row["replicate"]], abs=1e-14)
        for word in filter(None, row["choice"].split(", ")):
            assert tickets.load(small_run.path, round=word).provenance["round"] == row["round"]
    assert any("best" in row["choice"] for row in rows)
    printed = lottery("tickets", "ls", small_run.path)[1]
    assert formatting.percent(rows[0]["density"]) in printed and str(rows[0]["density"]) not in printed


def test_a_ticket_goes_out_is_shown_and_verified(lottery, small_run, tmp_path):
    path = tmp_path / "new" / "ticket.safetensors"
    status, out, err = lottery(
        "export", small_run.path, "--density", 0.5, "--replicate", 2, "--at", "early_stop", "--out", path
    )
    assert status == 0 and f"Written: {path} ({path.stat().st_size:,} bytes)" in out
    ticket = tickets.load(path)
    assert ticket.provenance["round"] == 3 and ticket.provenance["replicate"] == 2
    assert "round 3 of " in err and "replicate 2" in err  # which round is nearest is said
    assert ticket.trained is not None and ticket.provenance["trained_at"] == "early_stop"
    status, out, _ = lottery("tickets", "show", path)
    assert (
        status == 0
        and "the early-stop step" in out
        and f"{ticket.num_kept:,} weights kept" in out
        and "digits" in out
        and "lenet_300_100" in out
    )
    shown = json.loads(lottery("tickets", "show", path, "--json")[1])
    assert shown["provenance"] == ticket.provenance and shown["num_kept"] == ticket.num_kept
    status, out, _ = lottery("verify", path)
    assert status == 0 and "every checksum" in out and "No code from the file is run" in out
    smaller = tmp_path / "start.safetensors"
    assert lottery("export", path, "--start", "--out", smaller)[0] == 0
    assert tickets.load(smaller).trained is None and smaller.stat().st_size < path.stat().st_size
    content = bytearray(path.read_bytes())
    content[-1] ^= 4
    path.write_bytes(content)
    status, out, _ = lottery("verify", path)
    assert status == 1 and "the checksum of mask/" in out and len(out.splitlines()) == 1


def test_a_network_goes_out_and_is_compared_on_the_real_data(lottery, file, small_run, tmp_path):
    import keras

    out = tmp_path / "model.keras"
    status, printed, err = lottery("export", file, "--out", out)
    assert status == 0 and "random inputs" not in err
    assert f"{out.stat().st_size:,}" in printed and "1.0000" in printed
    model, ticket = keras.saving.load_model(out), tickets.load(file)
    rebuilt = ticket.model(trained=True)
    for one, other in zip(model.get_weights(), rebuilt.get_weights(), strict=True):
        assert np.array_equal(one, other)
    assert lottery("export", file, "--start", "--out", out)[0] == 0
    started = keras.saving.load_model(out).get_weights()
    assert all(np.array_equal(one, other) for one, other in zip(started, ticket.model().get_weights(), strict=True))
    status, printed, _ = lottery("export", small_run.path, "--round", "best", "--out", tmp_path / "a.npz")
    assert status == 0 and "npz" in printed


def test_the_data_of_a_strangers_ticket_are_never_downloaded(file, tmp_path, monkeypatch):
    """A file in the working directory is not where data are looked for, unless LOTTERY_DATA names it."""
    from lottery.tickets import from_run

    provenance = tickets.load(file).provenance
    provenance["data"]["name"] = provenance["protocol"]["data"]["name"] = "mnist"
    loaded = []
    monkeypatch.setattr("lottery.data.load", lambda settings: loaded.append(settings))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist.npz").touch()
    for folder in (None, "", str(tmp_path / "other")):
        monkeypatch.delenv("LOTTERY_DATA", raising=False)
        if folder is not None:
            monkeypatch.setenv("LOTTERY_DATA", folder)
        with pytest.raises(LotteryError, match="'mnist' are not in the folder .* and a ticket file downloads none"):
            from_run.examples(file, provenance)
    assert not loaded
    monkeypatch.setenv("LOTTERY_DATA", str(tmp_path))
    with pytest.raises(AttributeError):  # of what stands for the data
        from_run.examples(file, provenance)
    assert loaded


def test_each_format_that_fails_is_named_also_where_all_fail(lottery, tmp_path):
    import keras

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(3)

        def call(self, inputs):
            return self.layer(inputs)

    model = Own()
    model(np.zeros((1, 4), "float32"))
    path = tickets.of(model, {"dense/kernel": np.eye(4, 3, dtype=bool)}).save(tmp_path / "own.safetensors")
    status, printed, err = lottery("export", path, "--format", "all", "--out", tmp_path / "all")
    assert status == 0 and "Written: " in printed
    assert "random inputs" in err and "--data" not in err  # which is refused, as the ticket names no data
    for form in exporting.EXPORTS:
        assert f"Not written: {form}." in printed


def test_a_network_that_predicts_numbers_has_no_classes(lottery, tmp_path):
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    masks = {"dense/kernel": np.ones((4, 1), bool)}
    for accuracy, is_said in ((None, False), (0.5, True)):
        ticket = tickets.of(model, masks, metrics={"early_stop_test_loss": 0.5, "early_stop_test_accuracy": accuracy})
        path = ticket.save(tmp_path / "t.safetensors")
        status, printed, _ = lottery("export", path, "--out", tmp_path / "m.npz")
        assert status == 0 and "Difference" in printed
        assert ("class" in printed) == is_said


def test_a_network_becomes_smaller(lottery, small_run, tmp_path):
    import keras

    from lottery.tickets import from_run

    path, out = tmp_path / "few.safetensors", tmp_path / "small.keras"
    ticket = tickets.load(small_run.path, round=3)
    rng = np.random.default_rng(0)
    masks = {name: mask & (rng.random(mask.shape) < 0.01) for name, mask in ticket.masks.items()}
    trained = {
        name: np.where(masks[name], value, 0) if name in masks else value for name, value in ticket.trained.items()
    }
    tickets.of(ticket.model(), masks, trained=trained, provenance=ticket.provenance).save(path)
    status, printed, _ = lottery("compact", path, "--out", out, "--drop-inputs")
    assert status == 0 and "multiply-adds" in printed and "the smaller model does not take them" in printed
    small, positions = keras.saving.load_model(out), np.load(tmp_path / "small.inputs.npy")
    inputs = from_run.examples(path, ticket.provenance)
    expected = np.asarray(tickets.load(path).model(trained=True)(inputs, training=False))
    found = np.asarray(small(inputs.reshape(len(inputs), -1)[:, positions], training=False))
    assert small.count_params() < 10_000 and np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_the_data_of_a_file_may_be_elsewhere_but_must_be_the_same(lottery, file, tmp_path):
    wrong = tmp_path / "other.npz"
    arrays = {"x_train": np.zeros((300, 8, 8), "uint8"), "y_train": np.arange(300) % 10}
    np.savez(wrong, **arrays, x_test=arrays["x_train"], y_test=arrays["y_train"])
    status, out, err = lottery("export", file, "--out", tmp_path / "m.keras", "--data", wrong)
    assert status == 2 and "not those that the ticket was found on" in err and out == ""
    assert not (tmp_path / "m.keras").exists()


def test_the_data_of_a_file_may_be_elsewhere(lottery, tmp_path, rng):
    import lottery as package
    from tests.conftest import quietly, toy_arrays

    arrays = dict(zip(("x_train", "y_train", "x_test", "y_test"), toy_arrays(rng, shape=(3, 2)), strict=True))
    np.savez(tmp_path / "mine.npz", **arrays)
    tables = {
        "name": "elsewhere",
        "data": {"name": "npz", "path": str(tmp_path / "mine.npz"), "validation": 30},
        "train": {"num_steps": 4, "eval_every": 4, "batch_size": 16},
        "prune": {"num_rounds": 1},
        "run": {"num_replicates": 1, "controls": []},
    }
    run = package.run(tables, out=tmp_path / "runs", on_event=quietly)
    path = tickets.load(run.path, round=1).save(tmp_path / "t.safetensors")
    assert "mine.npz" in path.read_bytes().decode(errors="replace") and str(tmp_path) not in str(path.read_bytes())
    out = tmp_path / "m.npz"
    status, _, err = lottery("export", path, "--out", out)
    assert status == 0 and "compared on random inputs" in err
    status, _, err = lottery("export", path, "--out", out, "--data", tmp_path / "mine.npz")
    assert status == 0 and "random inputs" not in err
    status, _, err = lottery("export", run.path, "--round", 1, "--out", out)
    assert status == 0 and "random inputs" not in err


@pytest.mark.parametrize(
    "edit",
    [
        lambda one: one["provenance"].update(run="\x1b[2J\x1b]0;x\x07", replicate="\x1b[1A", data=[1]),
        lambda one: one["provenance"].update(protocol=[1], data={"name": "\x1b[1A"}),
        lambda one: one.update(architecture={"library": "keras", "class": "\x1b[31m", "why": "\x07"}),
        lambda one: one.update(architecture={"library": "keras", "keras": {"class_name": "\x1b[31m", "config": {}}}),
        lambda one: one.update(provenance={}, metrics={"early_stop_test_accuracy": "x"}),
        lambda one: one["provenance"]["protocol"]["data"].update(name="fashion_mnist"),
    ],
)
def test_a_strangers_words_are_only_shown(lottery, file, tmp_path, monkeypatch, edit):
    """Nothing of a signed file moves the cursor, ends in a traceback or asks the network."""
    import keras

    monkeypatch.setattr(keras.datasets.fashion_mnist, "load_data", lambda: pytest.fail("a download"))
    path = tmp_path / "forged.safetensors"
    path.write_bytes(forge(file.read_bytes(), edit))
    for words in (("tickets", "show", path), ("verify", path), ("export", path, "--out", tmp_path / "m.npz")):
        status, out, err = lottery(*words)
        assert status in (0, 1, 2)
        assert all(char.isprintable() or char == "\n" for char in out + err)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("export", "nowhere.safetensors", "--out", "a.keras"),
            "'nowhere.safetensors' is neither a run nor a ticket file: nothing is there",
        ),
        (("export", "RUN", "--out", "a.keras"), "pass a round (0 to 3, 'best' or 'smallest_matching') or a density"),
        (("export", "RUN", "--round", "9", "--out", "a.keras"), "not stored for replicate 1. It has 0 to 3"),
        (("export", "RUN", "--round", "bets", "--out", "a.keras"), "Did you mean 'best'?"),
        (("export", "RUN", "--density", "2", "--out", "a.keras"), "density must be a fraction in (0, 1], not 2.0"),
        (("export", "RUN", "--round", "1", "--replicate", "7", "--out", "a.keras"), "has replicates 1, 2"),
        (("export", "RUN", "--round", "1", "--out", "a.keras", "--format", "kers"), "Did you mean 'keras'?"),
        (
            ("export", "RUN", "--round", "1", "--out", "a.foo"),
            "a folder, or a file that ends in .keras, .npz, .onnx, .safetensors, .tflite",
        ),
        (
            ("export", "RUN", "--round", "1", "--out", "a.txt", "--format", "tflite"),
            "a file that ends in .tflite for tflite",
        ),
        (("export", "RUN", "--round", "1", "--density", "0.5", "--out", "a.keras"), "Pass round or density, not both"),
        (("export", "a" * 300, "--out", "a.keras"), "File name too long"),
        (("export", "RUN", "--round", "1", "--out", "a" * 300 + ".npz"), "cannot be written: File name too long"),
        (("tickets", "show", "RUN"), "is a folder, not a ticket file"),
        (("compact", "RUN", "--round", "1", "--out", "a.h5"), "must be a file that ends in .keras"),
        (("tickets", "show", "RUN/experiment.toml"), "is not a ticket file that can be trusted"),
        (("verify", "nowhere"), "'nowhere' is neither a run nor a ticket file"),
    ],
)
def test_bad_input_is_one_sentence(lottery, small_run, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    words = [word.replace("RUN", str(small_run.path)) for word in words]
    status, out, err = lottery(*words)
    last = err.strip().splitlines()[-1]
    assert status == 2 and out == "" and last.startswith("lottery: ") and message in last, err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.safetensors", "a.npz"])
def test_a_folder_in_place_of_the_file_is_refused_before_the_ticket_is_loaded(lottery, tmp_path, name):
    (tmp_path / name).mkdir()
    status, out, err = lottery("export", "nowhere", "--out", tmp_path / name)
    assert status == 2 and f"--out must be a file, not the folder {str(tmp_path / name)!r}." in err


def test_what_reads_tickets_never_imports_tensorflow(small_run, file, tmp_path):
    out = tmp_path / "again.safetensors"
    code = f"""
import sys
from lottery.cli import app
for words in (["tickets", "ls", {str(small_run.path)!r}], ["tickets", "show", {str(file)!r}],
              ["export", {str(small_run.path)!r}, "--round", "best", "--out", {str(out)!r}]):
    app(words, standalone_mode=False)
assert not {{"tensorflow", "keras", "tf_keras"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env={**os.environ, "COLUMNS": "80"})
    assert out.exists()
