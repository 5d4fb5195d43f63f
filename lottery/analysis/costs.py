"""The cost of networks: multiply-adds for one example, compression, theoretical speed-up, steps, seconds and engine."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lottery import config
from lottery.figures.record import Analysis
from lottery.models import multiply_adds
from lottery.pruning import branches, mask_actions, plan
from lottery.runs import store
from lottery.runs.stored import StoredRound, stored_rounds
from lottery.settings import GIVEN
from lottery.text_tables import Table, frame

COLUMNS = (
    "replicate", "branch", "round", "density", "num_kept", "compression", "parameter_compression", "multiply_adds",
    "speedup", "seconds", "steps", "spent_steps", "spent_multiply_adds", "engine",
)  # fmt: skip


def table(run: store.Folder) -> Table:
    """Compute the cost of each network of a run.

    Blalock et al. 2020, https://arxiv.org/abs/2003.03033, ask for compression and for the theoretical speed-up from
    multiply-adds, which no hardware fully reaches.

    Returns:
        A data frame with the columns `COLUMNS`, a row for each row of `results.table`, in its order:
        ``compression`` is 1 / density, of the prunable weights alone (an entry that is masked, but held at another
        value than zero, counts here and below as if it were kept); ``parameter_compression`` counts all trainable
        parameters, with biases and normalisation; ``multiply_adds`` for one example of the run's own data, and
        ``speedup``, the dense network's divided by these, both NaN if unknown; ``seconds`` and ``steps`` of training;
        ``spent_steps`` and ``spent_multiply_adds``, those of all trainings that the network takes, see `spent`;
        ``engine``, "compiled" or "sparse", that trained it. Infinite if nothing is left.
    """
    environment = store.read_environment(run)
    per_entry = environment.get("uses", {})
    at_zero = mask_actions.is_zero(store.read_experiment(run).prune.held_at)
    networks = list(stored_rounds(run))
    all_spent = spent(run, networks)
    rows = []
    dense = others = math.nan  # multiply-adds of the dense network, and trainable parameters that cannot be pruned
    for stored in networks:
        record = stored.record
        used = _used(stored, at_zero)
        num_used = sum(used.values())
        needed = _count(used, per_entry)
        if stored.branch == store.TICKET and stored.round == 0:  # the first round of each replicate
            dense = needed
            # It is the same in every replicate, and reading the weights takes time.
            if math.isnan(others):
                others = _others(stored, environment.get("not_pruned", {}))
        steps = [step for step, *_ in stored.metrics]
        spent_steps, spent_multiply_adds = all_spent[stored.labels]
        computed = {
            "compression": _ratio(record["num_weights"], num_used),
            "parameter_compression": _ratio(record["num_weights"], num_used, beside=others),
            "multiply_adds": needed,
            "speedup": _ratio(dense, needed),
            "steps": max(steps) - min(steps) + record.get("mask_steps", 0),
            "spent_steps": spent_steps,
            "spent_multiply_adds": spent_multiply_adds,
            "engine": stored.engine,
        }
        rows.append({column: record[column] for column in COLUMNS if column in record} | computed)
    floats = "compression", "parameter_compression", "multiply_adds", "speedup", "seconds", "spent_multiply_adds"
    return frame(rows, COLUMNS).astype(dict.fromkeys(floats, float))


def _ratio(whole: float, part: float, beside: float = 0) -> float:
    """Divide two numbers with others `beside` both; NaN if a number is NaN, infinite if nothing is left."""
    return (whole + beside) / (part + beside) if part + beside else math.inf


def spent(run: store.Folder, networks: Sequence[StoredRound]) -> dict[tuple[int, str, int, float], tuple[int, float]]:
    """Count the training steps, and their multiply-adds, that each network of a run takes, by `StoredRound.labels`.

    They are those of its own training, and of every network that it is made from: see `lottery.pruning.plan.rounds_to`
    and ``needs_ticket`` of `lottery.pruning.branches.Branch`. A step takes three times the multiply-adds of its batch:
    one for the forward pass and two for the backward pass, as Evci et al. 2020, https://arxiv.org/abs/1911.11134, count
    them in appendix H. Unknown multiply-adds are NaN.
    """
    experiment = store.read_experiment(run)
    k = experiment.rewind.step
    per_entry = store.read_environment(run).get("uses", {})
    at_zero = mask_actions.is_zero(experiment.prune.held_at)
    batch = experiment.train.batch_size if _knows_batches(run, experiment) else math.nan
    own: dict[tuple[int, int, str], tuple[int, float]] = {}
    dense: dict[int, float] = {}  # multiply-adds for an example of the dense network, the first of each replicate
    for stored in networks:
        record = {**stored.record, "kept": _used(stored, at_zero)}
        if stored.branch == store.TICKET and stored.round == 0:
            dense[stored.replicate] = _count(record["kept"], per_entry)
        first = record.get("first_step", k if stored.round else 0)
        steps = record.get("last_step", experiment.train.num_steps) - first
        whole = dense.get(stored.replicate, math.nan)
        own[stored.replicate, stored.round, stored.branch] = _own(record, steps, batch, whole, per_entry)
    found = {}
    for stored in networks:
        replicate = stored.replicate
        known = branches.find(stored.branch)
        trainings = [own[replicate, stored.round, stored.branch]]
        before = 0  # steps of the dense network
        needs_ticket = stored.record.get("needs_ticket", known is None or known.needs_ticket)
        if stored.branch == store.TICKET or needs_ticket:
            rounds = plan.rounds_to(experiment.prune, stored.round)
            # The cost of a round that is gone is not known, and so is that of what it led to.
            trainings += [own.get((replicate, each, store.TICKET), (0, math.nan)) for each in rounds[:-1]]
            before = 0 if 0 in rounds else k
        elif known is None or known.starts != "end":
            # Where scores were trained in the steps before, no weight was.
            before = stored.record.get("first_step", k) - stored.record.get("mask_steps", 0)
        if before:
            trainings.append((before, 3 * batch * before * dense.get(replicate, math.nan)))
        steps, counts = zip(*trainings, strict=True)
        found[stored.labels] = sum(steps), float(sum(counts))
    return found


def _used(stored: StoredRound, at_zero: bool) -> dict[str, int]:
    """Count the entries of each weight that must be stored and multiplied: those that are kept, or held at no zero."""
    if at_zero:
        return stored.record["kept"]
    stored = dataclasses.replace(stored)  # which lets go of the weights
    return {name: int(np.count_nonzero(mask | (stored.weights[name] != 0))) for name, mask in stored.masks.items()}


def _own(
    record: Mapping[str, Any], steps: int, batch: float, dense: float, per_entry: Mapping[str, int | None]
) -> tuple[int, float]:
    """Count the steps of a network's own training, and their multiply-adds; `dense` for an example of the dense one."""
    batch = _batch(record, batch)
    kept_steps = record.get("kept_steps") or {name: count * steps for name, count in record["kept"].items()}
    # Forward and backward at the density of the network; the gradients of its weights for all entries.
    with_dense_gradients = batch * (2 * _count(record["kept"], per_entry) + dense)
    known = branches.find(record["branch"])
    of_changes = len(record["mask_changes"]) if known and known.needs_gradients else 0
    learned = record.get("mask_steps", 0)
    num_dense = learned + record.get("dense_gradients", of_changes)
    return steps + learned, 3 * batch * _count(kept_steps, per_entry) + num_dense * with_dense_gradients


def _batch(record: Mapping[str, Any], usual: float) -> float:
    """Return the batch size of a network: of a transfer its own, or else the usual."""
    return record.get("overrides", {}).get("train", {}).get("batch_size", usual)


def _count(entries: Mapping[str, int], per_entry: Mapping[str, int | None]) -> float:
    counted = multiply_adds.of_kept(entries, per_entry)
    return math.nan if counted is None else counted


def _others(dense: StoredRound, reasons: Mapping[str, str]) -> int:
    """Count the trainable parameters of a network that are not prunable."""
    trained = (name for name, why in reasons.items() if why not in ("not trainable", "not floating point"))
    return sum(dense.weights[name].size for name in trained)


def total(run: store.Folder, rows: Table = None) -> dict[str, float | int | None]:
    """Compute the cost of a run so far: ``networks``, ``steps``, ``seconds`` with evaluations, and ``examples`` seen.

    Branches are included, and each example is counted as often as it was seen. ``examples`` is None for the caller's
    own data other than pixels of a byte, whose batches may have had another size. `rows` are those of `table`, which
    is read where they are not given.
    """
    if rows is None:
        rows = table(run)
    experiment = store.read_experiment(run)
    examples = None
    if _knows_batches(run, experiment):
        # By network, as a run in training may have more of them by now than when the rows were read.
        steps = rows.set_index(["replicate", "branch", "round"])["steps"].to_dict()
        sizes = {stored.labels[:3]: _batch(stored.record, experiment.train.batch_size) for stored in stored_rounds(run)}
        examples = sum(num * sizes[network] for network, num in steps.items())
    return {
        "networks": len(rows),
        "steps": int(rows["steps"].sum()),
        "seconds": float(rows["seconds"].sum()),
        "examples": examples,
    }


def _knows_batches(run: store.Folder, experiment: config.Experiment) -> bool:
    """Check if batches have the size of the experiment: a ``tf.data.Dataset`` has its own."""
    return experiment.data.name != GIVEN or store.read_environment(run).get("scaling") is not None


COSTS = Analysis(
    table,
    None,
    "Compression, multiply-adds, theoretical speed-up, steps, seconds and engine of each network.",
    columns=COLUMNS[4:-1],
    leave_out=("num_kept", "parameter_compression", "steps", "multiply_adds", "spent_multiply_adds", "spent_steps"),
    keys=("engine",),
)
