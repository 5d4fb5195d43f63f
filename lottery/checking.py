"""Every checksum and every invariant of a run, recomputed from its files."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lottery import config, criteria, files, masks, pruning, rewinding, store
from lottery.errors import LotteryError

# Loss and accuracy by split and step.
Curves = dict[str, dict[int, tuple[float, float]]]


def verify(run: Path) -> Iterator[tuple[str, list[str]]]:
    """Check a run.

    For each round: the checksum of each file; counts that are exactly the schedule's; masks that lie within those of
    the round before and are what pruning its trained weights gives; masked weights that are zero; that training
    began from the start weights under the masks; and that what is stored is what came of it.

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
        complete = store.complete_rounds(run, replicate)
        if complete and _same_start(run, replicate):
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
                start = files.read_arrays(run / f"replicate-{replicate}" / "initial.safetensors")
                store.check_files(folder)
                record = store.read_record(folder)
                curves = _curves((folder / "metrics.csv").read_text(encoding="utf-8"))
                wrong = list(_wrong_summary(record, curves))
                kept = files.read_masks(folder / "masks.safetensors")
                trained = files.read_arrays(folder / "weights.safetensors")
                losses = {loss for loss, _ in curves["validation"].values()}
                # A network may never learn; then its weights stay, and so does its loss.
                if len(losses) > 1 and rewinding.fingerprint(trained) == record["start_sha256"]:
                    wrong.append("The stored weights are those that training began from, not those it ended with.")
                wrong += list(_wrong(experiment, index, start, kept, trained, record, before))
                before = kept, trained
            except (LotteryError, KeyError) as error:
                wrong.append(str(error))
                before = None
            yield f"replicate {replicate}, round {index}", wrong


def _wrong(
    experiment: config.Experiment,
    index: int,
    start: dict[str, np.ndarray],
    kept: masks.Masks,
    trained: dict[str, np.ndarray],
    record: dict,
    before: tuple[masks.Masks, dict[str, np.ndarray]] | None,
) -> Iterator[str]:
    masks.check(kept, trained)
    counts = masks.num_kept(kept)
    sizes = {name: mask.size for name, mask in kept.items()}
    ladder = pruning.planned(experiment.prune, sizes, index)
    for names, expected in ladder.items():
        found = sum(counts[name] for name in names)
        if found != expected[index]:
            yield f"{' + '.join(names)} keeps {found} entries, the schedule says {expected[index]}."
    if (
        record["kept"] != counts
        or record["num_kept"] != sum(counts.values())
        or record["density"] != masks.density(kept)
    ):
        yield "The record's counts are not those of the masks."
    for name, mask in kept.items():
        if np.any(trained[name][~mask] != 0):
            yield f"{name} has {np.count_nonzero(trained[name][~mask])} masked entries that are not zero."
    if rewinding.fingerprint(rewinding.rewound(start, kept)) != record["start_sha256"]:
        yield "Training did not begin from the start weights under the masks."
    if before is not None:
        old, weights = before
        if not masks.is_nested(kept, old):
            yield "An entry that was pruned before has come back."
        scores = criteria.CRITERIA[experiment.prune.criterion](
            {name: start[name] for name in old}, {name: weights[name] for name in old}
        )
        again = pruning.round_masks(experiment.prune, index, scores, old)
        if any(np.any(again[name] != kept[name]) for name in kept):
            yield "The masks are not what pruning the weights of the round before gives."


def _same_start(run: Path, replicate: int) -> bool:
    paths = [run / f"replicate-{one}" / "initial.safetensors" for one in (replicate - 1, replicate)]
    return all(path.exists() for path in paths) and files.read(paths[0]) == files.read(paths[1])


def _curves(metrics: str) -> Curves:
    curves: Curves = {"train": {}, "validation": {}, "test": {}}
    for row in csv.DictReader(io.StringIO(metrics)):
        curves[row["split"]][int(row["step"])] = float(row["loss"]), float(row["accuracy"])
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
