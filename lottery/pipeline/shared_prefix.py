"""Networks that several experiments share: trained for the first, copied for the others."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lottery import config, files
from lottery.errors import LotteryError
from lottery.executors.executor import Job
from lottery.runs import store
from lottery.runs.stored import StoredRound
from lottery.weights import fingerprint

OF_THE_WHOLE = ("num_replicates", "controls", "control_rounds")  # keys that do not decide how a network is trained

# Keys of the environment that bits depend on.
COMPUTED_WITH = ("data_sha256", "num_threads", "num_devices", "python", "versions", "processor")


def prefix(experiment: config.Experiment, environment: Mapping[str, Any], index: int) -> str:
    """Write down everything that decides the bits of a round's networks and branches, as a text to compare."""
    tables = experiment.model_dump(mode="json")
    run = {key: value for key, value in tables["run"].items() if key not in OF_THE_WHOLE}
    decides: dict[str, Any] = {**{key: tables[key] for key in ("data", "model", "train")}, "run": run}
    decides["environment"] = {key: environment.get(key) for key in COMPUTED_WITH}
    if index:  # pruning and rewinding do not decide round 0
        prune = tables["prune"]
        by_rate = prune["schedule"] == "geometric" and not prune["final_density"] and not prune["n_of_m"]
        if prune["densities"] or by_rate:
            prune |= {"densities": prune["densities"][:index], "num_rounds": index}
        decides |= {"prune": prune, "rewind": tables["rewind"]}
    return json.dumps(decides, sort_keys=True)


def same(networks: Sequence[Job], settings: Mapping[Path, config.Experiment]) -> dict[Job, Job]:
    """Find the networks that need not be trained, each with its original, among all networks, stored or not."""
    environments = {run: store.read_environment(run) for run in settings}
    same_as: dict[tuple[str, tuple[int, int, str]], list[Job]] = {}
    copies = {}
    for job in sorted(networks, key=lambda one: not store.is_stored(one.run, *one.network)):
        key = prefix(settings[job.run], environments[job.run], job.network[1]), job.network
        before = same_as.setdefault(key, [])
        useful = next((other for other in before if _has_state(job, other, settings)), None)
        if useful and not store.is_stored(job.run, *job.network):
            copies[job] = useful
        else:
            before.append(job)
    return copies


def _has_state(job: Job, original: Job, settings: Mapping[Path, config.Experiment]) -> bool:
    """Check if the weights that a network's run rewinds to are, or will be, stored with the original."""
    (replicate, index, _), step = job.network, settings[job.run].rewind.step
    if index or step in (0, settings[original.run].rewind.step) or not store.is_stored(original.run, *original.network):
        return True
    return store.state_path(original.run, replicate, step).exists()


def states(copies: Mapping[Job, Job], settings: Mapping[Path, config.Experiment]) -> dict[Path, tuple[int, ...]]:
    """List by run the steps of its dense networks that other runs rewind to."""
    wanted: dict[Path, set[int]] = {}
    for job, original in copies.items():
        step = settings[job.run].rewind.step
        if not job.network[1] and step != settings[original.run].rewind.step:
            wanted.setdefault(original.run, set()).add(step)
    return {run: tuple(sorted(steps - {0})) for run, steps in wanted.items()}


def copy_network(job: Job, original: Job, experiment: config.Experiment) -> None:
    """Copy a complete network into the run of another `experiment`, with the start weights of its replicate."""
    store.check_there(job.run)
    (replicate, index, _), step = job.network, experiment.rewind.step
    network, target = StoredRound(original.run, *original.network), store.round_path(job.run, *job.network)
    record = {key: value for key, value in network.record.items() if key not in ("format", "sha256", "record_sha256")}
    # Every file that the original has, whole, or nothing is stored.
    parts = network.masks, network.weights, network.metrics
    early_stop = network.early_stop if network.has(store.EARLY_STOP) else None
    predictions = network.predictions if network.has(store.PREDICTIONS) else None
    if not index:
        files.write(store.start_path(job.run, replicate), files.read(store.start_path(original.run, replicate)))
        rewind_sha256 = record.pop("rewind_sha256", None)
        if step:
            own = store.read_experiment(original.run).rewind.step == step
            late = (store.start_path if own else store.state_path)(original.run, replicate, step)
            recorded = rewind_sha256 if own else files.read_metadata(late).get("sha256")
            state = files.read_arrays(late)
            if fingerprint(state) != recorded:
                raise LotteryError(f"{str(late)!r} is damaged: its checksum differs from the record.")
            record["rewind_sha256"] = recorded
            files.write(store.start_path(job.run, replicate, step), files.pack_arrays(state))
    store.write_round(target, *parts, record, early_stop, predictions)
    store.clear_checkpoints(target)
