"""Every checksum and every invariant of a run, recomputed from its files."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config, files, masks, weights
from lottery.errors import LotteryError
from lottery.pruning import branches, criteria, plan, rewinding
from lottery.runs import store
from lottery.settings import GIVEN

# Loss and accuracy by split and step.
Curves = dict[str, dict[int, tuple[float, float]]]


def verify(run: Path) -> Iterator[tuple[str, list[str]]]:
    """Check a run.

    For each round: the checksum of each file; counts that are exactly the schedule's; masks that lie within those of
    the round before and are what pruning its trained weights gives; masked weights that are zero; that training
    began from the start weights under the masks; and that what is stored is what came of it. For each branch: that it
    keeps and changes of its round what its name says.

    Args:
        run: The run's folder.

    Yields:
        For each replicate and round that is stored, its name and what is wrong with it, each a sentence. A round that
        lies behind a missing one is wrong.

    Raises:
        LotteryError: It is not a run, or its configuration was edited.
    """
    experiment = store.read_experiment(run)
    for replicate in range(1, experiment.run.num_replicates + 1):
        before: tuple[masks.Masks, dict[str, np.ndarray]] | None = None
        scored: dict[str, np.ndarray] = {}  # the weights that the masks of the next round are decided on
        complete = store.complete_rounds(run, replicate)
        # A function of the caller's own may load weights; `not_repeated` says so.
        if complete and not _is_own(experiment) and same_start(run, replicate):
            yield f"replicate {replicate}", ["It starts from the weights of the replicate before it."]
        for path in sorted((run / f"replicate-{replicate}").glob("round-*/round.json")):
            index = int(path.parent.name.removeprefix("round-"))
            if index not in complete:
                yield f"replicate {replicate}, {path.parent.name}", ["A round before it is missing or incomplete."]
            elif index > experiment.prune.num_rounds:
                yield f"replicate {replicate}, {path.parent.name}", ["The experiment has no such round."]
        for index in complete[: experiment.prune.num_rounds + 1]:
            folder, wrong = store.round_path(run, replicate, index), []
            try:
                record, kept, trained = _read(experiment, folder, wrong)
                start = files.read_arrays(store.start_path(run, replicate, experiment.rewind.step if index else 0))
                initial = files.read_arrays(store.start_path(run, replicate))
                if not index and experiment.rewind.step:
                    late = weights.fingerprint(files.read_arrays(store.start_path(run, replicate, 1)))
                    wrong += ["start.safetensors was changed."] * (late != record["rewind_sha256"])
                wrong += _wrong(experiment, replicate, index, initial, start, kept, trained, record, before, scored)
                before = kept, trained
                scored = trained if experiment.prune.iterative or not index else scored
            except (LotteryError, KeyError) as error:
                wrong.append(str(error))
                before = None
            yield f"replicate {replicate}, round {index}", wrong
        for stored in store.rounds(run):
            index, label = stored.index, stored.branch
            if stored.replicate != replicate or label == store.TICKET:
                continue
            wrong = []
            try:
                record, kept, trained = _read(experiment, stored.folder, wrong)
                start = store.StoredRound(run, replicate, index).start
                wrong += _wrong_branch(run, experiment, replicate, index, label, start, kept, trained, record)
            except (LotteryError, KeyError) as error:
                wrong.append(str(error))
            yield f"replicate {replicate}, round {index}, branch {label}", wrong


def not_repeated(run: Path) -> list[str]:
    """What `verify` cannot do with the files of a run alone, in sentences."""
    experiment = store.read_experiment(run)
    said = []
    if _is_own(experiment) and any(same_start(run, number) for number in range(2, experiment.run.num_replicates + 1)):
        said.append("Replicates start from the same weights, so they differ in the order of batches alone.")
    if not plan.is_repeatable(experiment.prune):
        said.append(
            f"The masks of {experiment.prune.criterion} were not computed again: that needs the model and data."
        )
    labels = {stored.branch for stored in store.rounds(run)} - {store.TICKET}
    for label in sorted(labels, key=lambda label: (branches.find(label) is None, label)):
        known = branches.find(label)
        parts = known.needs_model if known else ("masks", "start weights")
        if parts:
            said.append(f"The {' and '.join(parts)} of {label} were not made again: that needs the model.")
    return said


def _is_own(experiment: config.Experiment) -> bool:
    return experiment.model.name == GIVEN or ":" in experiment.model.name


def _read(
    experiment: config.Experiment, folder: Path, wrong: list[str]
) -> tuple[dict[str, Any], masks.Masks, dict[str, np.ndarray]]:
    """What a folder holds, once its checksums are right; what its record says wrongly is added to `wrong`."""
    store.check_files(folder)
    record = store.read_record(folder)
    curves = _curves(folder)
    wrong += _wrong_summary(record, curves)
    steps = experiment.rewind.step if record["round"] else 0, experiment.train.num_steps
    first, last = (record["first_step"], record["last_step"]) if "control" in record else steps
    found = min(curves["validation"]), max(curves["validation"])
    if found != (first, last):
        wrong.append(f"The curve goes from step {found[0]} to {found[1]}, training from {first} to {last}.")
    kept = files.read_masks(folder / "masks.safetensors")
    trained = files.read_arrays(folder / "weights.safetensors")
    masks.check(kept, trained)
    losses = {loss for loss, _ in curves["validation"].values()}
    # A network may never learn; then its weights stay, and so does its loss.
    if len(losses) > 1 and weights.fingerprint(trained) == record["start_sha256"]:
        wrong.append("The stored weights are those that training began from, not those it ended with.")
    counts = masks.num_kept(kept)
    if (
        record["kept"] != counts
        or record["num_kept"] != sum(counts.values())
        or record["density"] != masks.density(kept)
    ):
        wrong.append("The record's counts are not those of the masks.")
    for name, mask in kept.items():
        if np.any(trained[name][~mask] != 0):
            wrong.append(f"{name} has {np.count_nonzero(trained[name][~mask])} masked entries that are not zero.")
    return record, kept, trained


def _wrong(
    experiment: config.Experiment,
    replicate: int,
    index: int,
    initial: dict[str, np.ndarray],
    start: dict[str, np.ndarray],
    kept: masks.Masks,
    trained: dict[str, np.ndarray],
    record: dict[str, Any],
    before: tuple[masks.Masks, dict[str, np.ndarray]] | None,
    scored: dict[str, np.ndarray],
) -> Iterator[str]:
    counts = masks.num_kept(kept)
    ladder = plan.planned(experiment.prune, {name: mask.shape for name, mask in kept.items()}, index)
    for names, expected in ladder.items():
        found = sum(counts[name] for name in names)
        if found != expected[index]:
            yield f"{' + '.join(names)} keeps {found} entries, the schedule says {expected[index]}."
    if not index:
        begun = masks.apply(start, kept)
    elif before is None:
        return
    else:
        begun = rewinding.rewound(experiment.rewind.mode, start, before[1], kept)
    if weights.fingerprint(begun) != record["start_sha256"]:
        yield "Training did not begin from the start weights under the masks."
    if before is not None:
        old = before[0]
        if not masks.is_nested(kept, old):
            yield "An entry that was pruned before has come back."
        if plan.is_repeatable(experiment.prune):
            settings, seed = experiment.prune, experiment.run.seed
            inputs = plan.criterion_inputs(settings, seed, replicate, index, initial, scored, old)
            scores = criteria.CRITERIA[settings.criterion](inputs)
            again = plan.round_masks(experiment.prune, index, scores, old)
            if any(np.any(again[name] != kept[name]) for name in kept):
                yield "The masks are not what pruning the weights of the round before gives."


def _wrong_branch(
    run: Path,
    experiment: config.Experiment,
    replicate: int,
    index: int,
    label: str,
    start: dict[str, np.ndarray],
    kept: masks.Masks,
    trained: dict[str, np.ndarray],
    record: dict[str, Any],
) -> Iterator[str]:
    name, known = record["control"], branches.BRANCHES.get(record["control"])
    if known is None:
        return
    ticket = files.read_masks(store.round_path(run, replicate, index) / "masks.safetensors")
    rng = branches.rng_for(experiment.run.seed, replicate, index, label)
    first, last = record["first_step"], record["last_step"]
    like_the_ticket = branches.BranchStart(trained, ticket, first, last)  # in place of what needs the model
    made = known.function(
        branches.StoredTicket(ticket, start, first, last, rng, lambda: trained, lambda: like_the_ticket)
    )
    if masks.num_kept(kept) != masks.num_kept(made.kept):
        yield f"It does not keep as many entries of each weight as {name} does."
    if sum(masks.num_kept(kept).values()) != sum(masks.num_kept(ticket).values()):
        yield "It does not keep as many entries as the ticket."
    if "masks" not in known.needs_model and any(np.any(made.kept[name] != kept[name]) for name in ticket):
        yield f"Its masks are not those of {name}."
    begun = weights.fingerprint(masks.apply(made.start, kept))
    if "start weights" not in known.needs_model and begun != record["start_sha256"]:
        yield f"Training did not begin from the weights of {name}."


def same_start(run: Path, replicate: int) -> bool:
    """Whether a replicate starts from the weights that the one before it starts from."""
    paths = [store.start_path(run, one) for one in (replicate - 1, replicate)]
    return all(path.exists() for path in paths) and files.read(paths[0]) == files.read(paths[1])


def _curves(folder: Path) -> Curves:
    curves: Curves = {"train": {}, "validation": {}, "test": {}}
    for step, split, loss, accuracy in store.read_metrics(folder):
        curves[split][step] = loss, accuracy
    return curves


def _wrong_summary(record: dict, curves: Curves) -> Iterator[str]:
    """What the record says of losses and accuracies, against the curves."""
    stop = min(curves["validation"], key=lambda step: (curves["validation"][step][0], step))
    last = max(curves["validation"])
    if record["early_stop_step"] != stop:
        yield f"The early-stop step is {record['early_stop_step']}, the curve has its minimum at {stop}."
        return
    for when, step in (("early_stop", stop), ("final", last)):
        for split, short in (("validation", "val"), ("test", "test")):
            recorded = np.array([record[f"{when}_{short}_{what}"] for what in ("loss", "accuracy")], float)
            if not np.array_equal(recorded, curves[split][step], equal_nan=True):
                yield f"The record's {when} {split} loss and accuracy are not those of the curve."


def refuse_damaged(path: Path, settings: config.Experiment) -> None:
    """Refuse a run of which a file is not what was written: its table would show it, its next round build on it."""
    store.read_experiment(path)
    for replicate in range(1, settings.run.num_replicates + 1):
        folder, step = path / f"replicate-{replicate}", settings.rewind.step
        # Also behind a missing round: it will be trained again, and then these count.
        for record in sorted(folder.rglob("round.json")):
            with _to_delete(record.parent, "and the rounds after it to train them again"):
                store.check_files(record.parent)
        if not store.is_stored(path, replicate, 0):
            continue
        for at, key in [(0, "start_sha256")] + [(step, "rewind_sha256")] * bool(step):
            file = store.start_path(path, replicate, at)
            with _to_delete(folder, "to train the replicate again"):
                if weights.fingerprint(files.read_arrays(file)) != store.read_record(folder / "round-00").get(key):
                    raise LotteryError(f"{str(file)!r} is damaged: it is not what the rounds started from.")


@contextlib.contextmanager
def _to_delete(folder: Path, why: str) -> Iterator[None]:
    """Say of what is damaged how to go on."""
    try:
        yield
    except LotteryError as error:
        advice = f"; delete {str(folder)!r} {why}."
        raise LotteryError(str(error) if "; delete " in str(error) else f"{str(error).rstrip('.')}{advice}") from None
