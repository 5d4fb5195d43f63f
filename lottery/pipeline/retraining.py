"""Train stored networks again, to compare with what is stored: the one check that proves a curve and its steps."""

import contextlib
import os
import random
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lottery import files, interrupts, progress, randomness
from lottery.errors import LotteryError, StorageError
from lottery.executors.scheduler import Job
from lottery.formatting import counted, listed
from lottery.pipeline import environment, recomputing
from lottery.pipeline.network_training import Training
from lottery.pipeline.prepared import Ingredients
from lottery.pipeline.worker import Recipe, Worker
from lottery.pruning import branches
from lottery.runs import store, verification
from lottery.runs.store import NetworkId
from lottery.runs.stored import StoredRound, stored_rounds

# How far an accuracy may be from the record on another processor: this, or so many standard deviations of the
# other replicates, if that is more. A training that rounds otherwise ends in another network.
APART, DEVIATIONS = 0.02, 4
LOSS_APART = 0.1  # the same of a loss, where no accuracy is measured, as a fraction of the record
# What a record may say otherwise of the same network.
_MAY_DIFFER = {"seconds", "sha256", "record_sha256", "engine_reason"}


def verified(run: Path, ingredients: Ingredients, recompute: bool, num_retrained: int) -> list[tuple[str, list[str]]]:
    """Verify a run, and if nothing is wrong train so many of its networks again; see `lottery.Run.verify`."""
    if not isinstance(num_retrained, int | np.integer) or num_retrained < 0:
        raise LotteryError(f"retrain must be a whole number from 0, not {num_retrained!r}.")
    with recomputing.opened(run, ingredients) if recompute else contextlib.nullcontext() as again:
        found = list(verification.verify(run, again))
    # What is damaged cannot be trained from.
    if num_retrained and not any(wrong for _, wrong in found):
        found += retrained(run, chosen(run, num_retrained), ingredients, progress.silent)
    return found


def chosen(run: Path, num: int) -> list[StoredRound]:
    """Choose networks of a run at random, each at most once; those of functions of the caller's cannot be trained."""
    known = [stored for stored in stored_rounds(run) if _can_be_trained(stored)]
    if not known:
        raise LotteryError(f"No network of {str(run)!r} can be trained again.")
    # Of the system, not of a seed: whoever stored the run could know which ones.
    return random.SystemRandom().sample(known, min(num, len(known)))


def retrained(
    run: Path, networks: list[StoredRound], ingredients: Ingredients, on_event: progress.OnEvent
) -> Iterator[tuple[str, list[str]]]:
    """Train networks of a run again in a temporary folder; yield the name of each, and what differs.

    On the machine of the run, with its versions and number of threads, every file must have the same bytes. Elsewhere,
    and for a network that was trained elsewhere, the accuracies at the early-stop step and at the end are compared; see
    `APART`. Raises `LotteryError` if the data or the model are not those of the run, if a network cannot be trained, or
    if the model draws random numbers that nothing can restore.
    """
    experiment, recorded = store.read_experiment(run), store.read_environment(run)
    environment.begin_as(recorded)  # or this process would look like another machine
    elsewhere = environment.elsewhere(recorded)
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(dir=files.temporary_folder()))
        stack.enter_context(randomness.put_back())
        # Not of the run's own name, which may be a dot.
        copy = Path(temporary, "run")
        _copy(run, copy)
        recipe = Recipe(copy, experiment, ingredients)
        worker = Worker({copy: recipe}, on_event, interrupts.never)
        stack.callback(worker.close)
        for stored in networks:
            rounds_otherwise = elsewhere or stored.elsewhere
            network = NetworkId(stored.replicate, stored.round, stored.branch)
            folder = store.round_path(copy, *network)
            # What is stored would be found complete, and not trained.
            shutil.rmtree(folder)
            try:
                training, _ = worker.opened(recipe, stored.replicate)
                if not rounds_otherwise:
                    _check_repeatable(training)
                worker(Job(copy, network))
            # It names the disk that is full, which is not that of the run.
            except StorageError:
                raise
            # The copy that it names is gone before anybody can look at it.
            except LotteryError as error:
                raise LotteryError(str(error).replace(str(copy), str(run))) from None
            again = StoredRound(copy, *network)
            wrong = _apart(stored, again) if rounds_otherwise else _other_bytes(stored, again)
            yield f"{stored.name}, trained again", wrong
            _put_back(stored, again)


def _check_repeatable(training: Training) -> None:
    """Raise `LotteryError` if a model draws random numbers that are others each time."""
    if found := training.prepared.trainer.loop.examined.unrepeatable:
        raise LotteryError(
            f"The networks of {str(training.path)!r} cannot be trained again to the same bits: the model draws random "
            f"numbers by {', '.join(found)}, which nothing can restore."
        )


def _put_back(stored: StoredRound, again: StoredRound) -> None:
    """Put what is stored in place of what was trained again: other networks are made from it."""
    shutil.rmtree(again.folder)
    _copy(stored.folder, again.folder)
    # The dense network writes the weights that its replicate rewinds to.
    starts = store.start_path(again.run, again.replicate).parent
    for path in store.start_path(stored.run, stored.replicate).parent.glob("*.safetensors"):
        (starts / path.name).unlink(missing_ok=True)
        _link(path, starts / path.name)


def rule(run: Path, networks: list[StoredRound]) -> str:
    """Say in a sentence how networks that were trained again were compared."""
    here = environment.elsewhere(store.read_environment(run))
    there = sorted({what for stored in networks for what in stored.elsewhere})
    num = len(networks)
    trained = f"{counted(num, 'network')} {'was' if num == 1 else 'were'}"
    if not here and not there:
        return f"{trained} trained again: all their files have the same bytes."
    why = f", because this machine has {' and '.join(here)}"
    if not here:
        why = f" of networks that were first trained with {' and '.join(there)}"
    return (
        f"{trained} trained again: their accuracies at the early-stop step and at the end are within "
        f"{100 * APART:g} points of the record (losses, where no accuracy is measured, within {100 * LOSS_APART:g} %), "
        f"or {DEVIATIONS} standard deviations of the other replicates. Bits were not compared{why}."
    )


def _can_be_trained(stored: StoredRound) -> bool:
    branch = branches.find(stored.branch)
    return stored.branch == store.TICKET or (branch is not None and not branch.other_data)


def _copy(folder: Path, to: Path) -> None:
    """Copy what is stored in a folder, and in those below, into new folders, which can be written to."""
    with files.readable_errors(to):
        to.mkdir()
        for path in folder.iterdir():
            # A run that is in training writes and removes these at any time, and no network is made from them.
            if path.name.startswith((".", "checkpoint", "tensorboard")):
                continue
            copied = _copy if path.is_dir() else _link
            copied(path, to / path.name)


def _link(source: Path, target: Path) -> None:
    """Link a file, which takes no room, or copy it to another disk. What is stored is replaced, never written into."""
    try:
        # A link to a symbolic link would lead out of the copy.
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _other_bytes(stored: StoredRound, again: StoredRound) -> list[str]:
    recorded, found = stored.record["sha256"], again.record["sha256"]
    # Earlier versions stored fewer files, that of the early-stop step among them.
    names = recorded.keys() | found.keys() if store.EARLY_STOP in recorded else recorded.keys()
    wrong = [name for name in sorted(names) if recorded.get(name) != found.get(name)]
    keys = (stored.record.keys() & again.record.keys()) - _MAY_DIFFER
    other = [key for key in sorted(keys) if stored.record[key] != again.record[key]]
    sentences = []
    if wrong:
        sentences.append(f"Other bytes are in {', '.join(wrong)}.")
    if other:
        sentences.append(f"Its record differs in {listed(other)}.")
    return sentences


def _apart(stored: StoredRound, again: StoredRound) -> list[str]:
    wrong = []
    for when in ("early_stop", "final"):
        loss, accuracy = stored.measured(when, "test")
        loss_again, accuracy_again = again.measured(when, "test")
        kind, recorded, found, least = "accuracy", accuracy, accuracy_again, APART
        if np.isnan(accuracy) and np.isnan(accuracy_again):
            kind, recorded, found, least = "loss", loss, loss_again, LOSS_APART * abs(loss)
        allowed = max(least, DEVIATIONS * _deviation(stored, f"{when}_test_{kind}"))
        if not abs(recorded - found) <= allowed:
            name = when.replace("_", "-")
            wrong.append(
                f"The {name} test {kind} is {found:.4f}, but {recorded:.4f} in the record: more than {allowed:.4f} "
                "apart."
            )
    return wrong


def _deviation(stored: StoredRound, key: str) -> float:
    """The standard deviation of a number over the other replicates of a network; 0 if there are fewer than two."""
    values = [
        other.record[key]
        for other in stored_rounds(stored.run)
        if (other.round, other.branch) == (stored.round, stored.branch)
        and other.replicate != stored.replicate
        and other.record[key] is not None
    ]
    return statistics.stdev(values) if len(values) > 1 else 0.0
