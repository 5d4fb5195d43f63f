"""Every checksum and every invariant of a run, computed again from its files."""

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config, files, masks, randomness, weights
from lottery.errors import LotteryError
from lottery.models import networks
from lottery.pruning import branches, criteria, mask_actions, plan, supermasks
from lottery.runs import siblings, store
from lottery.runs.siblings import collected
from lottery.runs.stored import StoredRound, stored_rounds
from lottery.training.records import ACCURACY_ROUNDING

NOT_PROVED = (
    "Not proved: that the stored weights belong to the steps in the record, and that the curves are right between the "
    "stored states. On the machine of the run, --retrain proves both for the networks that it trains again."
)
DRAWN = ("start weights",)  # what a branch needs the model for, if only to draw initial weights

Curves = dict[str, dict[int, tuple[float, float]]]  # loss and accuracy by split and step


@dataclass(frozen=True)
class Recomputation:
    """What takes the model and the data to check; `pipeline.recomputing` makes it."""

    evaluated: siblings.Evaluated
    # Draws every variable anew for a branch, as when it was trained; None if this machine draws other values.
    fresh: Callable[[StoredRound], masks.Weights | None]
    notes: list[str]  # sentences about what was computed again, and what could not be; complete at the end
    one_sided: Callable[[], list[str]]  # at the end, what is wrong with all differences that rounding made


def verify(run: store.Folder, again: Recomputation | None = None) -> Iterator[tuple[str, list[str]]]:
    """Check a run, and yield the name of each stored network with a sentence for everything that is wrong with it.

    For each round: the checksum of each file; counts that are exactly those of the schedule; masks that lie within
    those of the round before, and are what pruning its trained weights gives; masked weights that are held; training
    that began from the start weights under the masks; a record that agrees with the curve and the predictions. For
    each branch: that it keeps and changes of its round what its name says. For siblings and the paths between them see
    `siblings.wrong`. With `again`, networks are evaluated again, and initial weights drawn again.
    """
    run = Path(run)
    experiment = store.read_experiment(run)
    store.refuse_links(run)
    # A function of the user's own may load its weights; `not_repeated` reports that.
    repeated = same_starts(run, experiment) if networks.is_built_in(experiment.model.name) else []
    for replicate in store.replicates(run, experiment):
        complete = store.complete_rounds(run, replicate)
        if complete and replicate in repeated:
            yield f"replicate {replicate}", ["It starts from the weights of a replicate before it."]
        for path in sorted((run / f"replicate-{replicate}").glob("step-*.safetensors")):
            yield f"replicate {replicate}, {path.stem.replace('-', ' ')}", siblings.wrong_state(path)
        for where, sentence in _out_of_place(run, replicate, experiment.prune.num_rounds):
            yield f"replicate {replicate}, {where}", [sentence]
        dense = StoredRound(run, replicate, 0)
        before = None
        for index in complete[: experiment.prune.num_rounds + 1]:
            stored = StoredRound(run, replicate, index) if index else dense
            wrong, readable = _network(stored, _wrong_round(stored, before, dense), again)
            before = stored if readable else None
            yield stored.name, wrong
        for stored in stored_rounds(run):
            if stored.replicate == replicate and stored.branch != store.TICKET:
                yield stored.name, _network(stored, _wrong_branch(stored, again), again)[0]

    def measured(sibling: StoredRound) -> Iterator[str]:
        yield from _wrong_network(sibling)
        if again:
            yield from again.evaluated(sibling)

    yield from siblings.wrong(run, measured)
    for name in _other_replicates(run, experiment):
        yield name, ["The experiment has no such replicate; remove its folder."]
    if again and (wrong := again.one_sided()):
        yield "all networks", wrong


def _other_replicates(run: Path, experiment: config.Experiment) -> list[str]:
    """List the folders of rounds that are named as a replicate, and belong to none."""
    found = {path.parents[1].name for path in run.glob("replicate-*/round-*/round.json")}
    # After the listing: a run in training may begin a replicate at any time.
    known = {f"replicate-{number}" for number in store.replicates(run, experiment)}
    return sorted(found - known)


def _out_of_place(run: Path, replicate: int, num_rounds: int) -> Iterator[tuple[str, str]]:
    """Yield the folder of each record of a replicate that no table shows, and why."""
    folder = run / f"replicate-{replicate}"
    rounds, others = sorted(folder.glob("round-*/round.json")), sorted(folder.glob("round-*/branch-*/round.json"))
    # After the listing: a run in training may store a round at any time.
    complete = store.complete_rounds(run, replicate)
    for path in rounds:
        index = store.round_of(path.parent.name)
        if index is None:
            yield path.parent.name, "No round has a folder of this name; remove it, or give it its name back."
        elif index not in complete:
            yield path.parent.name, "A round before it is missing or incomplete."
        elif index > num_rounds:
            yield path.parent.name, "The experiment has no such round."
    for path in others:
        round, branch = path.parts[-3:-1]
        if store.round_of(round) not in complete:
            yield f"{round}, {branch.replace('-', ' ', 1)}", "Its round is missing or incomplete."


def is_network(name: str) -> bool:
    """Tell the name of a network, as `verify` yields it, from that of a path or of a state on the way."""
    return ", path " not in name and ", step " not in name


def _network(stored: StoredRound, wrong: Iterator[str], again: Recomputation | None) -> tuple[list[str], bool]:
    """Collect what is wrong with a network, and in its evaluations; False beside it if a file cannot be read."""
    found, readable = collected(wrong)
    if again and readable:
        found += collected(again.evaluated(stored))[0]
    return found, readable


def not_repeated(run: Path, again: Recomputation | None = None) -> list[str]:
    """List what `verify` cannot compute from the files of a run alone, or with `again`, in sentences."""
    experiment = store.read_experiment(run)
    criterion = experiment.prune.criterion
    made = [stored.record for stored in stored_rounds(run, branches=False) if stored.round]
    are_current = all(plan.is_current(experiment.prune, record) for record in made)
    found = []
    has_own_model = not networks.is_built_in(experiment.model.name)
    if has_own_model and same_starts(run, experiment):
        found.append("Replicates start from the same weights, so they differ only in the order of the batches.")
    if not plan.is_repeatable(experiment.prune):
        found.append(f"The masks of {criterion} were not computed again, which needs the model and the data.")
    elif not are_current:
        why = "they were made by an earlier definition of it"
        found.append(f"The masks of {criterion} were not computed again: {why}.")
    labels = {stored.branch for stored in stored_rounds(run)} - {store.TICKET}
    # Functions of the user's come last.
    for label in sorted(labels, key=lambda label: (branches.find(label) is None, label)):
        known = branches.find(label)
        parts = known.needs_model if known else ("masks", "start weights")
        if parts and not (again and parts == DRAWN):
            found.append(f"The {' and '.join(parts)} of {label} were not made again, which needs the model.")
    return found + (again.notes if again else [])


def not_proved(again: Recomputation | None = None) -> list[str]:
    """List what `verify` proves of no run, or not without `again`, in sentences."""
    numbers = [] if again else ["Losses and accuracies were not computed again; --recompute does that."]
    return [*numbers, NOT_PROVED]


def same_starts(run: Path, experiment: config.Experiment) -> list[int]:
    """List the replicates that start from the weights of a replicate before them."""
    seen: set[bytes] = set()
    found = []
    for replicate in store.replicates(run, experiment):
        path = store.start_path(run, replicate)
        if not path.exists():
            continue
        # Of the bytes: the replicates need not be read as arrays, and equal weights are packed alike.
        digest = hashlib.sha256(files.read(path)).digest()
        if digest in seen:
            found.append(replicate)
        seen.add(digest)
    return found


def refuse_damaged(run: Path, experiment: config.Experiment) -> None:
    """Raise `LotteryError` if a file of a run is not as written: its table would show it, later rounds build on it."""
    store.read_experiment(run)
    store.refuse_links(run)
    for replicate in store.replicates(run, experiment):
        folder = run / f"replicate-{replicate}"
        # Rounds behind a missing one too: they count again once that is trained.
        for path in sorted(folder.rglob("round.json")):
            _check_twice(partial(store.check_files, path.parent), store.how_to_train_again(path.parent))
        if not store.is_stored(run, replicate, 0):
            continue
        record = store.read_record(store.round_path(run, replicate, 0))
        # Without late rewinding both are of step 0, and the record has only the second.
        keys = {experiment.rewind.step: "rewind_sha256", 0: "start_sha256"}
        for at, key in sorted(keys.items()):
            advice = f"delete {str(folder)!r} to train the replicate again"
            _check_twice(partial(_check_start, run, replicate, at, record.get(key)), advice)


def _check_start(run: Path, replicate: int, at: int, wanted: str | None) -> None:
    if weights.fingerprint(store.read_start(run, replicate, at)) != wanted:
        file = store.start_path(run, replicate, at)
        raise LotteryError(f"{str(file)!r} is damaged: the rounds started from other weights.")


def _check_twice(check: Callable[[], None], advice: str) -> None:
    """Raise the `LotteryError` of a check, with an advice unless it has its own, only if the check fails again."""
    # A single read may go wrong on a sound disk, and nobody should delete hours of training for that.
    with contextlib.suppress(LotteryError):
        check()
        return
    try:
        check()
    except LotteryError as error:
        text = str(error)
        # A path in it may be of any name.
        has_advice = "; " in re.sub("'.*?'", "", text)
        raise LotteryError(text if has_advice else f"{text.rstrip('.')}; {advice}.") from None


def _wrong_network(stored: StoredRound) -> Iterator[str]:
    # What rounds, branches and siblings share: the record against the curve, the masks and the trained weights.
    curves: Curves = {split: {} for split in store.SPLITS}
    for step, split, loss, accuracy in stored.metrics:
        curves[split][step] = loss, accuracy
    if not curves["validation"]:
        yield "Its curve has no validation loss."
        return
    yield from _wrong_curve(stored, curves)
    yield from _wrong_weights(stored, curves["validation"])
    if stored.has(store.PREDICTIONS):
        yield from _wrong_predictions(stored)


def _wrong_curve(stored: StoredRound, curves: Curves) -> Iterator[str]:
    record, validation = stored.record, curves["validation"]
    first, last = min(validation), max(validation)
    # Masks that change make one network only after the last change.
    settled = max((change["step"] for change in record.get("mask_changes", ())), default=first)
    candidates = [step for step in validation if step >= settled]
    # Of equal losses the first step, as in training.
    stop = min(candidates, key=lambda step: (validation[step][0], step), default=last)
    if record["early_stop_step"] != stop:
        yield f"The early-stop step is {record['early_stop_step']}, but the curve has its minimum at step {stop}."
    else:
        for when, step in (("early_stop", stop), ("final", last)):
            for split in _unlike(stored, when, curves, step):
                yield f"The record's {when} {split} loss and accuracy differ from the curve."
    yield from _wrong_budget(stored, curves)
    branch = branches.find(stored.branch)
    # Earlier versions did not record it, and losses on other data are not compared.
    if "dense_loss_step" in record and not (branch and branch.other_data):
        lowest, _ = StoredRound(stored.run, stored.replicate, 0).measured("early_stop", "validation")
        step = min((step for step in candidates if validation[step][0] <= lowest), default=None)
        recorded = record["dense_loss_step"]
        if recorded != step:
            yield f"It reaches the lowest loss of dense at step {recorded} in the record, but at {step} in the curve."
    if stored.branch == store.TICKET:
        experiment = stored.experiment
        expected = (experiment.rewind.step if stored.round else 0, experiment.train.num_steps)
    else:
        expected = (record["first_step"], record["last_step"])
    if (first, last) != expected:
        yield f"The curve goes from step {first} to {last}, but training from step {expected[0]} to {expected[1]}."


def _unlike(stored: StoredRound, when: str, curves: Curves, step: int) -> Iterator[str]:
    """Yield each split with another loss or accuracy in the record than the curve has at a step."""
    # What was not trained has no curve of the training split.
    trained = ["train"] if when == "final" and step in curves["train"] else []
    for split in ("validation", "test", *trained):
        measured = curves[split].get(step)
        if measured is None or not np.array_equal(stored.measured(when, split), measured, equal_nan=True):
            yield split


def _wrong_budget(stored: StoredRound, curves: Curves) -> Iterator[str]:
    record, validation = stored.record, curves["validation"]
    recorded = record.get("budget_step")
    if (recorded is not None) != stored.has(store.BUDGET):
        yield "The record and the files differ in whether there is a network within the budget."
    if recorded is None:
        return
    budget = StoredRound(stored.run, stored.replicate, 0).record["early_stop_step"]
    within = [step for step in validation if step <= budget]
    step = min(within, key=lambda step: (validation[step][0], step), default=None)
    is_ticket = stored.branch == store.TICKET
    if step is None or not is_ticket or record["early_stop_step"] <= budget or recorded != step:
        yield f"The network within the budget of {budget} steps is at {recorded} in the record, at {step} in the curve."
        return
    for split in _unlike(stored, "budget", curves, step):
        yield f"The record's {split} loss and accuracy within the budget differ from the curve."


def _wrong_weights(stored: StoredRound, validation: dict[int, tuple[float, float]]) -> Iterator[str]:
    record, kept, trained = stored.record, stored.masks, stored.weights
    # A network may never learn: then its weights stay as they are, and so does its loss.
    learned = len({loss for loss, _ in validation.values()}) > 1
    if learned and weights.fingerprint(trained) == record["start_sha256"]:
        yield "The stored weights are the weights before training, not after."
    counts = masks.num_kept(kept)
    expected = {
        "kept": counts,
        "num_kept": sum(counts.values()),
        "num_weights": sum(mask.size for mask in kept.values()),
        "density": masks.density(kept),
        "collapsed": [name for name, count in counts.items() if not count],
    }
    if any(record[key] != value for key, value in expected.items()):
        yield "The record's counts differ from the masks' counts."
    if stored.has(store.EARLY_STOP):
        at_the_end = record["early_stop_step"] == max(validation)
        if at_the_end and weights.fingerprint(stored.early_stop) != weights.fingerprint(trained):
            yield "The weights at the early-stop step differ from those after training, which is the same step."


def _either(stored: StoredRound) -> masks.Weights:
    # Nobody knows which entries are held at zero, so each counts as held at what is stored.
    held_at = stored.experiment.prune.held_at
    if mask_actions.is_zero(held_at):
        return {}
    initial = store.read_start(stored.run, stored.replicate, stored.experiment.rewind.step)
    masks.check(stored.masks, initial)
    always = mask_actions.MASK_ACTIONS[held_at] is mask_actions.initial_value
    # As mask action `initial_value` wants it, every entry is at its initial value, whatever is stored.
    at_initial = {name: (stored.weights[name] == initial[name]) | always for name in stored.masks}
    return mask_actions.values(at_initial, initial)


def _wrong_predictions(stored: StoredRound) -> Iterator[str]:
    label = stored.predictions["label"]
    for when in stored.predictions.keys() - {"label"}:
        accuracy = float(np.mean(stored.predictions[when] == label))
        _, recorded = stored.measured(when, "test")
        # The negation counts NaN as wrong.
        if not abs(accuracy - recorded) <= ACCURACY_ROUNDING:
            yield f"The {when} predictions give a test accuracy of {accuracy:.6f}, but the record has {recorded:.6f}."


def _wrong_round(stored: StoredRound, before: StoredRound | None, dense: StoredRound) -> Iterator[str]:
    # `before` is None where the round before it cannot be read.
    yield from _wrong_network(stored)
    index, replicate, kept = stored.round, stored.replicate, stored.masks
    experiment = stored.experiment
    fits = before is not None and masks.shapes(before.masks) == masks.shapes(kept) == masks.shapes(dense.masks)
    held_at = stored.held_at if fits or not index else _either(stored)
    yield from stored.wrong_held(held_at)
    if not index and experiment.rewind.step:
        late = weights.fingerprint(store.read_start(stored.run, replicate, experiment.rewind.step))
        if late != stored.record["rewind_sha256"]:
            yield "start.safetensors was changed."
    settings = experiment.prune
    planned = plan.of_weights(settings, kept, store.read_environment(stored.run).get("units", ()))
    for names, found, expected in planned.miscounted(index, kept):
        what = f"{' + '.join(names)} keeps {found} {settings.grouping.kind.noun}"
        yield f"{what}, the schedule says {expected}."
    for name in planned.groups.broken(kept):
        yield f'The mask of {name} is not as prune.granularity = "{settings.granularity}" makes masks.'
    if (before or not index) and not stored.began_with(stored.start, held_at):
        yield "Training did not start from the start weights under the masks."
    if before is None:
        return
    if not fits:
        yield "Its masks are of other weights than the masks of the rounds before."
        return
    if not plan.is_from_dense(settings) and not masks.is_nested(kept, before.masks):
        yield "A pruned entry has come back."
    if plan.is_repeatable(settings) and plan.is_current(settings, stored.record):
        rng = randomness.generator(experiment.run.seed, replicate, randomness.SCORES, index)
        scored = (before if settings.iterative else dense).weights
        inputs = planned.criterion_inputs(index, dense.start, scored, before.masks, rng)
        scores = criteria.facts(settings.criterion).score(inputs)
        again = planned.masks(index, scores, before.masks)
        if any(np.any(again[name] != kept[name]) for name in kept):
            yield "The masks differ from those that pruning the round before gives."


def _round_of(
    stored: StoredRound, ticket: StoredRound, known: branches.Branch, fresh: masks.Weights | None
) -> branches.StoredTicket:
    # What the function of a branch is given; what is stored of the branch stands in for what needs the model.
    experiment = stored.experiment
    first = experiment.rewind.step if stored.round else 0
    last = experiment.train.num_steps
    if known.other_data:
        last = stored.record.get("overrides", {}).get("train", {}).get("num_steps", last)
    initial = store.read_start(stored.run, stored.replicate)
    start = dict(stored.weights)
    if known.learns:
        # Nothing is trained once masks are learned, so all but the fixed weights is as it is stored.
        counts = masks.num_kept(ticket.masks)
        fixed = supermasks.fixed_weights(initial, counts)
        start |= {name: fixed[name] for name in counts}
    learned = branches.BranchStart(start, ticket.masks, last, last, held_at=_either(stored))
    rng = branches.rng_for(experiment.run.seed, stored.replicate, stored.round, stored.branch)
    spent = plan.steps_to(experiment.prune, stored.round, experiment.rewind.step, experiment.train.num_steps)
    units = store.read_environment(stored.run).get("units", ())
    shuffled = plan.of_weights(experiment.prune, ticket.masks, units).shuffled(ticket.masks)
    return branches.StoredTicket(
        ticket.masks, ticket.start, first, last, rng, lambda: fresh or stored.weights, initial, spent,
        learned=lambda: learned, at_initial=ticket.at_initial, held_at=ticket.held_at, shuffled=shuffled,
        trained=lambda: ticket.pruned.weights,
    )  # fmt: skip


def _wrong_branch(stored: StoredRound, again: Recomputation | None) -> Iterator[str]:
    # The branch is made again from its round, as far as that needs no model, or with it.
    yield from _wrong_network(stored)
    name = stored.record["control"]
    known = branches.BRANCHES.get(name)
    if known is None:  # a function of the user's may hold masked entries at any values
        yield from stored.wrong_held({} if mask_actions.is_zero(stored.experiment.prune.held_at) else stored.weights)
        return
    ticket = StoredRound(stored.run, stored.replicate, stored.round)
    kept = stored.masks
    if masks.shapes(ticket.masks) != masks.shapes(kept):
        yield "Its masks are of other weights than the masks of its round."
        yield from stored.wrong_held(_either(stored))
        return
    fresh = again.fresh(stored) if again and known.needs_model == DRAWN else None
    round = _round_of(stored, ticket, known, fresh)
    made = known.function(round)
    held_at = made.held_in(round)
    yield from stored.wrong_held(held_at)
    steps: dict[str, Any] = {"first_step": made.first_step, "last_step": made.last_step}
    if known.learns:
        steps["mask_steps"] = made.last_step
    if made.changes:
        steps["kept_steps"] = branches.kept_steps(made)
    # Earlier versions did not record the last of these.
    if any(stored.record.get(key, value) != value for key, value in steps.items()):
        yield f"Its steps are not the steps of {name}."
    changes = [(step, change.num_kept) for step, change in sorted(made.changes.items())]
    counts = changes[-1][1] if changes else masks.num_kept(made.kept)
    if masks.num_kept(kept) != counts:
        yield f"It does not keep as many entries of each weight as {name}."
    recorded = [(change["step"], change["num_kept"]) for change in stored.record.get("mask_changes", ())]
    if recorded != [(step, sum(of_weights.values())) for step, of_weights in changes]:
        yield f"The changes of its masks are not the changes of {name}."
    if masks.total_kept(kept) != masks.total_kept(ticket.masks):
        yield "It does not keep as many entries as the ticket."
    if "masks" not in known.needs_model and any(np.any(made.kept[each] != kept[each]) for each in kept):
        yield f"Its masks differ from the masks of {name}."
    if not fresh and "start weights" in known.needs_model:
        return
    # Masks that change are stored as at the end, and training began under those that the branch makes.
    if changes:
        began = weights.fingerprint(masks.apply(made.start, made.kept)) == stored.record["start_sha256"]
    else:
        began = stored.began_with(made.start, held_at)
    if not began:
        yield f"Training did not start from the weights of {name}."
