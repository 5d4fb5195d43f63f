"""What an experiment would train, and how many replicates a verdict needs, before anything is trained."""

from pathlib import Path
from typing import Any

from rich import filesize

from lottery import config, data, weights
from lottery.errors import LotteryError
from lottery.formatting import counted
from lottery.models import networks
from lottery.pipeline import building, network_training, presets
from lottery.pipeline.prepared import Ingredients
from lottery.pruning import granularity, plan, ranking
from lottery.runs import store
from lottery.runs.store import NetworkId
from lottery.runs.stored import stored_rounds
from lottery.text_tables import Table


def model_of(experiment: config.Experiment, import_code: bool = False) -> Any:
    """Build the model of an experiment. Data are read only where they alone tell the shape of an example.

    For `import_code`, see `lottery.models.networks.builder`.
    """
    name, settings = experiment.model.name, experiment.data
    dataset = data.DATASETS.get(settings.name)
    if not networks.is_built_in(name):
        build = networks.builder(name, import_code=import_code)
    elif dataset and dataset.shape and not settings.path:
        # All data sets whose shape is known before they are loaded have ten classes.
        build = networks.builder(name, dataset.shape, presets.NUM_CLASSES)
    else:
        build = building.builder(experiment, data.load(settings), Ingredients())
    # From any seed: only its layers and the shapes of its weights are looked at.
    return building.build_model(build, 0)


def rounds(experiment: config.Experiment, pilot: Path | None = None, import_code: bool = False) -> Table:
    """List round, density and kept entries of an experiment, from the shapes of a pilot run's weights if there is one.

    Where groups of several sizes are ranked together, which are kept is not known, so the entries are an estimate.

    Raises `LotteryError` if some round would prune nothing, or the pilot has other weights than the experiment.
    """
    import pandas as pd

    settings = experiment.prune
    model = None
    if pilot is None or settings.granularity in granularity.UNITS:
        model = model_of(experiment, import_code)
    units = plan.units_of(settings, model) if model else []
    if pilot is None:
        shapes = {name: value.shape for name, value in weights.read(model).items()}
    else:
        first = next(iter(stored_rounds(pilot)), None)
        if first is None:
            raise LotteryError(f"--from: no round of {str(pilot)!r} is complete yet.")
        own = store.read_experiment(pilot)
        # The data decide the shapes of inputs and outputs.
        if (own.model, own.data.name) != (experiment.model, experiment.data.name):
            raise LotteryError(f"--from: {str(pilot)!r} has another network or other data than the experiment.")
        shapes = {name: mask.shape for name, mask in first.masks.items()}
    planned = plan.Plan(settings, shapes, units)
    planned.check()
    kept = planned.num_entries()
    return pd.DataFrame({"round": range(len(kept)), "density": [num / kept[0] for num in kept], "num_kept": kept})


def sizes(experiment: config.Experiment, num_entries: int) -> dict[str, int]:
    """Count the ``networks``, training ``steps`` and, about, ``bytes`` on disk of an experiment.

    Each network is stored with two sets of weights in single precision, and with masks of one bit for each entry.
    """
    num_replicates, wanted = experiment.run.num_replicates, store.wanted(experiment)
    num = num_replicates * len(wanted)
    spans = [network_training.steps_of(experiment, NetworkId(1, *place)) for place in wanted]
    return {
        "networks": num,
        "steps": num_replicates * sum(last - first for first, last in spans),
        "bytes": num * (8 * num_entries + num_entries // 8),
    }


def sentences(experiment: config.Experiment, num_entries: int) -> list[str]:
    """Say what an experiment would train and store."""
    found = sizes(experiment, num_entries)
    of = f"{len(store.wanted(experiment)):,} for each of {counted(experiment.run.num_replicates, 'replicate')}"
    said = [
        f"{counted(found['networks'], 'network')}, {of}: {found['steps']:,} steps of training.",
        f"About {filesize.decimal(found['bytes'])} of weights and masks on disk.",
    ]
    kind = experiment.prune.grouping.kind
    if kind.is_uneven or (kind.pools and experiment.prune.scope == ranking.GLOBAL):
        said.append("Density and kept are estimates: groups that are ranked together may differ in size.")
    return said
