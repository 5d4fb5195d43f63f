"""Train stored networks again, to compare with what is stored: the one check that proves a curve and its steps."""

import contextlib
import os
import random
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lottery import interrupts, progress, randomness
from lottery.errors import LotteryError
from lottery.executors.scheduler import Job
from lottery.pipeline import environment, onednn, recomputing, worker
from lottery.pipeline.prepared import Ingredients
from lottery.pruning import branches
from lottery.runs import store, verification
from lottery.runs.store import NetworkId
from lottery.runs.stored import StoredRound, stored_rounds

# How far an accuracy may be from the record on another processor: this, or so many standard deviations of the
# other replicates, if that is more. A training that rounds otherwise ends in another network.
APART, DEVIATIONS = 0.02, 4


def verified(run: Path, ingredients: Ingredients, recompute: bool, num_retrained: int) -> list[tuple[str, list[str]]]:
    """Verify a run, and if nothing is wrong train so many of its networks again; see `lottery.Run.verify`."""
    with recomputing.opened(run, ingredients) if recompute else contextlib.nullcontext() as again:
        found = list(verification.verify(run, again))
    if num_retrained and not any(wrong for _, wrong in found):  # what is damaged cannot be trained from
        found += retrained(run, chosen(run, num_retrained), ingredients, progress.silent)
    return found


def chosen(run: Path, num: int) -> list[StoredRound]:
    """Choose networks of a run at random, each at most once; those of functions of the caller's cannot be trained."""
    known = [stored for stored in stored_rounds(run) if _can_be_trained(stored)]
    if not known:
        raise LotteryError(f"No network of {str(run)!r} can be trained again.")
    return random.SystemRandom().sample(known, min(num, len(known)))


def retrained(
    run: Path, networks: list[StoredRound], ingredients: Ingredients, on_event: progress.OnEvent
) -> Iterator[tuple[str, list[str]]]:
    """Train networks of a run again in a temporary folder; yield the name of each, and what differs.

    On the machine of the run, with its versions and number of threads, every file must have the same bytes. Elsewhere
    the accuracies at the early-stop step and at the end are compared; see `APART`. Raises `LotteryError` if the data or
    the model are not those of the run, or a network cannot be trained.
    """
    experiment, recorded = store.read_experiment(run), store.read_environment(run)
    onednn.begin(recorded)
    environment.use_threads(recorded["num_threads"])  # or this process would look like another machine
    elsewhere = recomputing.elsewhere(recorded)
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(randomness.put_back())
        copy = Path(temporary, run.name)
        shutil.copytree(run, copy, copy_function=_linked, ignore=shutil.ignore_patterns("tensorboard", "*.png"))
        recipe = worker.recipe(copy, experiment, ingredients, None)
        trainer = worker.Worker({copy: recipe}, on_event, interrupts.never)
        stack.callback(trainer.close)
        for stored in networks:
            network = NetworkId(stored.replicate, stored.round, stored.branch)
            folder = store.round_path(copy, *network)
            shutil.rmtree(folder)
            trainer.train(Job(copy, network))
            again = StoredRound(copy, *network)
            wrong = _apart(stored, again) if elsewhere else _other_bytes(stored, again)
            yield f"{stored.name}, trained again", wrong
            shutil.rmtree(folder)
            shutil.copytree(stored.folder, folder, copy_function=_linked)  # other networks are made from it


def rule(run: Path, num: int) -> str:
    """Say in a sentence how networks that were trained again were compared."""
    elsewhere = recomputing.elsewhere(store.read_environment(run))
    networks = "1 network was" if num == 1 else f"{num} networks were"
    if not elsewhere:
        return f"{networks} trained again: all their files have the same bytes."
    return (
        f"{networks} trained again: their accuracies at the early-stop step and at the end are within "
        f"{100 * APART:g} points of the record, or {DEVIATIONS} standard deviations of the other replicates. Bits were "
        f"not compared, because this machine has {' and '.join(elsewhere)}."
    )


def _can_be_trained(stored: StoredRound) -> bool:
    branch = branches.find(stored.branch)
    return stored.branch == store.TICKET or (branch is not None and not branch.other_data)


def _linked(source: str, target: str) -> Any:
    """Link a file, which takes no room, or copy it to another disk. What is stored is replaced, never written into."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _other_bytes(stored: StoredRound, again: StoredRound) -> list[str]:
    recorded, found = stored.record["sha256"], again.record["sha256"]
    names = [name for name in recorded if recorded[name] != found.get(name)]
    if not names:
        return []
    steps = ""
    if again.record["early_stop_step"] != stored.record["early_stop_step"]:
        steps = f" Its early-stop step is {again.record['early_stop_step']}, not {stored.record['early_stop_step']}."
    return [f"Other bytes are in {', '.join(names)}.{steps}"]


def _apart(stored: StoredRound, again: StoredRound) -> list[str]:
    wrong = []
    for when, name in (("early_stop", "early-stop"), ("final", "final")):
        key = f"{when}_test_accuracy"
        recorded, found = stored.record[key], again.record[key]
        if recorded is None or found is None:
            continue
        allowed = max(APART, DEVIATIONS * _deviation(stored, key))
        if abs(recorded - found) > allowed:
            wrong.append(
                f"The {name} test accuracy is {found:.4f}, recorded is {recorded:.4f}: more than {allowed:.4f} apart."
            )
    return wrong


def _deviation(stored: StoredRound, key: str) -> float:
    """The standard deviation of an accuracy over the other replicates of a network; 0 if there are fewer than two."""
    values = [
        other.record[key]
        for other in stored_rounds(stored.run)
        if (other.round, other.branch) == (stored.round, stored.branch)
        and other.replicate != stored.replicate
        and other.record[key] is not None
    ]
    return statistics.stdev(values) if len(values) > 1 else 0.0
