"""Ten forgeries of a run that change its verdict, each with right checksums; and what `lottery verify` says of them.

python -m tests.scripts.forge
"""

import csv
import io
import shutil
import tempfile
from pathlib import Path

import numpy as np

import lottery
from lottery import files
from lottery.runs import store
from lottery.runs.stored import StoredRound, stored_rounds
from tests.scripts import forging

TABLES = {
    "name": "forged",
    "data": {"name": "digits", "validation": 137},
    # With so large a rate the loss is lowest before the end.
    "train": {"num_steps": 90, "eval_every": 10, "batch_size": 32, "learning_rate": 0.02, "jit_compile": False},
    "prune": {"num_rounds": 2},
    "run": {"num_replicates": 2, "controls": ["random_mask"], "control_rounds": [2]},
}


def rows_of(stored):
    """The curve as a dict from step and split to loss and accuracy."""
    return {(step, split): (loss, accuracy) for step, split, loss, accuracy in stored.metrics}


def write(stored, rows=None, predictions=None, **changes):
    """Write another curve and other predictions of a network, change its record, and sign it."""
    if rows is not None:
        table = io.StringIO()
        lines = [(step, split, *values) for (step, split), values in sorted(rows.items(), key=lambda item: item[0][0])]
        csv.writer(table, lineterminator="\n").writerows([store.METRICS, *lines])
        (stored.folder / "metrics.csv").write_text(table.getvalue())
    if predictions is not None:
        files.write(stored.folder / store.PREDICTIONS, files.pack_arrays(predictions))
    forging.sign_files(stored.folder, **changes)


def at(run, replicate=1, index=1, branch="ticket"):
    """A network of a run."""
    return StoredRound(run, replicate, index, branch)


def more_right(stored, num, when="early_stop"):
    """Report `num` more test examples as right, or fewer, in the predictions, the curve and the record."""
    predictions = {name: value.copy() for name, value in stored.predictions.items()}
    label, own = predictions["label"], predictions[when]
    if num > 0:
        (places,) = np.nonzero(own != label)
        own[places[:num]] = label[places[:num]]
    else:
        (places,) = np.nonzero(own == label)
        own[places[:-num]] = (label[places[:-num]] + 1) % 10
    accuracy = float(np.float32(np.mean(own == label)))
    rows = rows_of(stored)
    step = {"early_stop": stored.record["early_stop_step"], "final": max(step for step, _ in rows)}[when]
    rows[step, "test"] = rows[step, "test"][0], accuracy
    write(stored, rows, predictions, **{f"{when}_test_accuracy": accuracy})


def name_another_processor(run):
    """Claim that the run was made elsewhere, so that rounding may differ."""
    forging.sign(run / "environment.json", processor="another")


def without_budget(run):
    """Drop what depends on the early-stop step of the dense network, as an earlier version stored runs."""
    for stored in list(stored_rounds(run)):
        named = {name: value for name, value in stored.record["sha256"].items() if name != store.BUDGET}
        (stored.folder / store.BUDGET).unlink(missing_ok=True)
        predictions = {name: value for name, value in stored.predictions.items() if name != "budget"}
        files.write(stored.folder / store.PREDICTIONS, files.pack_arrays(predictions))
        dropped = {key: ... for key in stored.record if key.startswith("budget_") or key == "dense_loss_step"}
        forging.sign(stored.folder / "round.json", sha256=named, **dropped)
        forging.sign_files(stored.folder)


def predictions(run):
    """Four more predictions of tickets are right."""
    for replicate in (1, 2):
        more_right(at(run, replicate), 4)


def predictions_from_elsewhere(run):
    """One more is right, and the run claims another processor."""
    for replicate in (1, 2):
        more_right(at(run, replicate), 1)
    name_another_processor(run)


def one_in_each_network(run):
    """Each ticket has one more, each dense network one fewer."""
    for replicate in (1, 2):
        more_right(at(run, replicate, 0), -1)
        for index in (1, 2):
            more_right(at(run, replicate, index), 1)
    name_another_processor(run)


def worse_controls(run):
    """The controls are worse at the early stop."""
    for replicate in (1, 2):
        more_right(at(run, replicate, 2, "random_mask"), -9)


def validation_accuracy(run):
    """The validation accuracy at the early stop is higher, which chooses the best round."""
    stored = at(run)
    rows, step = rows_of(stored), stored.record["early_stop_step"]
    loss, accuracy = rows[step, "validation"]
    rows[step, "validation"] = loss, float(np.float32(accuracy + 0.01))
    write(stored, rows, early_stop_val_accuracy=rows[step, "validation"][1])


def another_early_stop(run):
    """The early-stop step of tickets is earlier, with its curve."""
    without_budget(run)
    for replicate in (1, 2):
        stored = at(run, replicate)
        rows, old = rows_of(stored), stored.record["early_stop_step"]
        new = 10 if old != 10 else 20
        for split in ("train", "validation", "test"):
            pair = rows.pop((old, split), None), rows.pop((new, split), None)
            rows |= {(step, split): values for step, values in zip((new, old), pair, strict=True) if values}
        write(stored, rows, early_stop_step=new)


def early_stop_of_the_end(run):
    """Dense networks stop at their end, where they are worse: every other loss of their curves is higher."""
    without_budget(run)
    for replicate in (1, 2):
        stored = at(run, replicate, 0)
        rows, last, first = rows_of(stored), 90, stored.record["early_stop_step"]
        lowest = rows[last, "validation"][0]
        for (step, split), (loss, accuracy) in list(rows.items()):
            if split == "validation" and step < last:
                rows[step, split] = max(loss, lowest + 0.01), accuracy
        if first != last:
            del rows[first, "test"]
        shutil.copy(stored.folder / "weights.safetensors", stored.folder / store.EARLY_STOP)
        final = {**stored.predictions, "early_stop": stored.predictions["final"]}
        own = {
            f"early_stop_{split}_{what}": stored.record[f"final_{split}_{what}"]
            for split in ("val", "test")
            for what in ("loss", "accuracy")
        }
        write(stored, rows, final, early_stop_step=last, **own)


def faster(run):
    """Tickets reach the dense network's lowest loss sooner: a loss of the curve between stored states is lower."""
    without_budget(run)
    for replicate in (1, 2):
        dense, stored = at(run, replicate, 0), at(run, replicate)
        rows = rows_of(stored)
        step = next(step for step in (10, 20, 30) if step != stored.record["early_stop_step"])
        lowest = stored.record["early_stop_val_loss"]
        between = max(lowest, dense.record["early_stop_val_loss"])
        rows[step, "validation"] = float(np.float32(between)), rows[step, "validation"][1]
        reached = min(
            (at for (at, split), (loss, _) in rows.items()
             if split == "validation" and loss <= dense.record["early_stop_val_loss"]), default=None,
        )  # fmt: skip
        write(stored, rows, dense_loss_step=reached)


def end_of_the_early_stop(run):
    """The weights after training of dense networks are those at their early stop."""
    for replicate in (1, 2):
        stored = at(run, replicate, 2, "random_mask")
        rows, last = rows_of(stored), 90
        step = stored.record["early_stop_step"]
        if step == last:
            continue
        for split in ("validation", "test"):
            rows[last, split] = rows[step, split]
        shutil.copy(stored.folder / store.EARLY_STOP, stored.folder / "weights.safetensors")
        early = {**stored.predictions, "final": stored.predictions["early_stop"]}
        own = {
            f"final_{split}_{what}": stored.record[f"early_stop_{split}_{what}"]
            for split in ("val", "test")
            for what in ("loss", "accuracy")
        }
        write(stored, rows, early, **own)


def without_a_replicate(run):
    """The replicate that disagrees is gone."""
    shutil.rmtree(run / "replicate-2")


# By what finds each.
FORGERIES = {
    **dict.fromkeys(
        (predictions, predictions_from_elsewhere, one_in_each_network, worse_controls, validation_accuracy),
        "--recompute",
    ),
    **dict.fromkeys((another_early_stop, early_stop_of_the_end, faster, end_of_the_early_stop), "--retrain"),
    without_a_replicate: "first line",
}


def main() -> None:
    """Make a run, forge copies of it, and print what finds each."""
    from typer.testing import CliRunner

    from lottery import cli

    with tempfile.TemporaryDirectory() as folder:
        run = lottery.run(TABLES, out=folder, on_event=lambda event: None).path
        for forge, expected in FORGERIES.items():
            copy = Path(shutil.copytree(run, Path(folder, forge.__name__, run.name)))
            forge(copy)
            options = {"--recompute": ["--recompute"], "--retrain": ["--retrain", "100"], "first line": []}[expected]
            result = CliRunner().invoke(cli.app, ["verify", str(copy), *options])
            lines = result.stdout.splitlines()
            print(f"{forge.__name__:28} {expected:12} status {result.exit_code}: {lines[0]}")


if __name__ == "__main__":
    main()
