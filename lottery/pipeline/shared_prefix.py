"""Networks that several experiments share: trained for the first, copied for the others."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lottery import config, files
from lottery.errors import LotteryError
from lottery.executors.executor import Job
from lottery.pruning import plan
from lottery.runs import store
from lottery.runs.store import NetworkId
from lottery.runs.stored import StoredRound
from lottery.weights import fingerprint

Experiments = Mapping[Path, config.Experiment]  # by the folder of the run

OF_THE_WHOLE = ("num_replicates", "controls", "control_rounds")  # keys that do not decide how a network is trained

# Keys of the environment that bits depend on.
COMPUTED_WITH = ("data_sha256", "num_threads", "num_devices", "onednn", "python", "versions", "processor")

# Keys of a record that say how it is stored.
OF_STORING = ("format", "sha256", "record_sha256")


def prefix(experiment: config.Experiment, environment: Mapping[str, Any], number: int) -> str:
    """Write down everything that decides the bits of a round's networks and branches, as a text to compare."""
    tables = experiment.model_dump(mode="json")
    decides: dict[str, Any] = {key: tables[key] for key in ("data", "model", "train")}
    decides["run"] = {key: value for key, value in tables["run"].items() if key not in OF_THE_WHOLE}
    decides["environment"] = {key: environment.get(key) for key in COMPUTED_WITH}
    if number:  # pruning and rewinding do not decide round 0
        prune = tables["prune"]
        if plan.is_open_ended(experiment.prune):  # later rounds do not decide this one
            prune |= {"densities": prune["densities"][:number], "num_rounds": number}
        decides |= {"prune": prune, "rewind": tables["rewind"]}
    return json.dumps(decides, sort_keys=True)


def same(networks: Sequence[Job], experiments: Experiments) -> dict[Job, Job]:
    """Find the networks that need not be trained, each with its original, among all networks, stored or not."""
    environments = {run: store.read_environment(run) for run in experiments}
    originals: dict[tuple[str, NetworkId], list[Job]] = {}
    copies = {}
    # Those that are stored come first, so that they are the originals.
    for job in sorted(networks, key=lambda job: not store.is_stored(job.run, *job.network)):
        text = prefix(experiments[job.run], environments[job.run], job.network.round)
        alike = originals.setdefault((text, job.network), [])
        useful = next((other for other in alike if _has_state(job, other, experiments)), None)
        if useful and not store.is_stored(job.run, *job.network):
            copies[job] = useful
        else:
            alike.append(job)
    return copies


def _has_state(job: Job, original: Job, experiments: Experiments) -> bool:
    """Return True if the weights that a network's run rewinds to are, or will be, stored with the original."""
    step, replicate = experiments[job.run].rewind.step, original.network.replicate
    if job.network.round or step in (0, experiments[original.run].rewind.step):
        return True
    if not store.is_stored(original.run, *original.network):
        return True
    return store.state_path(original.run, replicate, step).exists()


def states(copies: Mapping[Job, Job], experiments: Experiments) -> dict[Path, tuple[int, ...]]:
    """List by run the steps of its dense networks that other runs rewind to."""
    wanted: dict[Path, set[int]] = {}
    for job, original in copies.items():
        step = experiments[job.run].rewind.step
        if not job.network.round and step not in (0, experiments[original.run].rewind.step):
            wanted.setdefault(original.run, set()).add(step)
    return {run: tuple(sorted(steps)) for run, steps in wanted.items()}


def copy_network(job: Job, original: Job, experiment: config.Experiment) -> None:
    """Copy a complete network into the run of another `experiment`, with the start weights of its replicate."""
    store.check_there(job.run)
    network = StoredRound(original.run, *original.network)
    record = {key: value for key, value in network.record.items() if key not in OF_STORING}
    # Every file that the original has is read, whole, before anything is stored.
    parts = network.masks, network.weights, network.metrics
    others = {
        store.EARLY_STOP: network.early_stop if network.has(store.EARLY_STOP) else None,
        store.BUDGET: network.budget if network.has(store.BUDGET) else None,
        store.PREDICTIONS: network.predictions if network.has(store.PREDICTIONS) else None,
    }
    if not network.round:
        # The other run may rewind to another step: the state of that step has its own checksum.
        record.pop("rewind_sha256", None)
        record |= _copy_starts(job, network, experiment.rewind.step)
    folder = store.round_path(job.run, *job.network)
    store.write_round(folder, *parts, record, others)
    store.clear_checkpoints(folder)


def _copy_starts(job: Job, network: StoredRound, step: int) -> dict[str, str]:
    """Copy the initial weights of a replicate, and its state at the rewind step; return what the record says of it."""
    run, replicate = network.run, network.replicate
    files.write(store.start_path(job.run, replicate), files.read(store.start_path(run, replicate)))
    if not step:
        return {}
    if store.read_experiment(run).rewind.step == step:
        source = store.start_path(run, replicate, step)
        recorded = network.record.get("rewind_sha256")
    else:
        source = store.state_path(run, replicate, step)
        recorded = files.read_metadata(source).get("sha256")
    state = files.read_arrays(source)
    if recorded is None or fingerprint(state) != recorded:
        raise LotteryError(f"{str(source)!r} is damaged: its checksum differs from the record.")
    files.write(store.start_path(job.run, replicate, step), files.pack_arrays(state))
    return {"rewind_sha256": recorded}
