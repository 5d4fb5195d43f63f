"""The error on the path between two copies of a run's networks, measured and stored."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from lottery import config, connectivity, copies, files, interpolation, jobs, progress, store
from lottery.copies import Place
from lottery.repeating import Logs

# By split, what reports; what recomputes statistics, if anything; and how many points.
Measure = tuple[Mapping[str, Callable[[], Logs]], Callable[[], None] | None, int]


def is_measured(path: Path, settings: config.Experiment, place: Place, recomputed: bool, num_points: int) -> bool:
    """Whether a path between the networks that are stored is there, with so many points."""
    file = copies.path_file(path, *place, recomputed)
    if not (file.exists() and copies.record_file(file).exists()):
        return False
    record, _ = copies.read_path(file)
    return record["num_points"] >= num_points and not copies.misfit(path, settings, place, record["networks"])


def measure_path(job: jobs.Job, path: Path, place: Place, measure: Measure) -> None:
    """Evaluate and store the path between the two copies."""
    (replicate, index, step), loop = place, job.prepared.loop
    evaluations, recompute, num_points = measure
    folders = [copies.network_path(path, job.prepared.experiment, *place, number) for number in copies.ORDERS]
    for folder in folders:
        store.check_files(folder)
    one, other = (files.read_arrays(folder / "weights.safetensors") for folder in folders)
    for name, mask in files.read_masks(folders[0] / "masks.safetensors").items():
        loop.masks[name].assign(mask)
    rows = interpolation.path(loop.model, one, other, evaluations, np.linspace(0, 1, num_points), recompute)
    digests = copies.network_digests(path, job.prepared.experiment, place)
    copies.write_path(copies.path_file(path, *place, recompute is not None), rows, digests)
    tested = [row for row in rows if row[1] == "test"]
    found = connectivity.measured([row[0] for row in tested], [row[3] for row in tested])
    job.report(
        progress.Note(
            f"Replicate {replicate}, round {index}, step {step}: the test-error barrier is "
            f"{100 * found['barrier']:.2f} % ({'' if found['stable'] else 'not '}stable)."
        )
    )
