"""Real examples for a ticket's network, as it takes them, from the data that the ticket was found on."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from lottery import config, data, datasets, store
from lottery.errors import LotteryError

NUM_EXAMPLES = 1000


def found(source: Path, provenance: dict[str, Any], path: str = "", num: int = NUM_EXAMPLES) -> np.ndarray:
    """Examples of the validation part, scaled as they were in training.

    The data of a run are looked for as the run did. Those of a ticket file, which a stranger may have written, are
    never downloaded: they are the digits, or lie in the folder that ``LOTTERY_DATA`` names.

    Args:
        source: The run or the file that the ticket came from.
        provenance: The ticket's.
        path: A file with the four arrays of the data, instead of looking them up.
        num: How many, at most.

    Returns:
        An array, the first axis the example; of the training part where none were split off.

    Raises:
        LotteryError: The data are not there, or not those that the ticket was found on.
    """
    about = provenance.get("data")
    if not isinstance(about, dict):
        raise LotteryError("The ticket does not say which data it was found on.")
    settings = store.read_experiment(source).data if source.is_dir() else _settings(provenance, path)
    if path and settings.name in (config.GIVEN, "npz"):
        loaded = data.split(datasets.read_npz(Path(path)), settings, where=path)
    else:
        loaded = data.load(settings.model_copy(update={"path": path}) if path else settings)
    if loaded.fingerprint != about.get("digest"):
        raise LotteryError(f"The data {settings.name!r} that are here are not those that the ticket was found on.")
    x = (loaded.validation if len(loaded.validation) else loaded.train).x[:num]
    return (x.astype(np.float32) - loaded.mean) / loaded.deviation if x.dtype == np.uint8 else x


def _settings(provenance: dict[str, Any], path: str) -> config.Data:
    """How the data of a ticket file are to be split and scaled, if that needs no download."""
    try:
        # A path that the file names is one of somebody else's machine; and npz needs some.
        settings = config.Data.model_validate({**provenance["protocol"]["data"], "path": path or "unknown"})
    except (KeyError, TypeError, ValidationError):
        raise LotteryError("The ticket does not say how its data were split.") from None
    local = Path(os.environ.get("LOTTERY_DATA", "")) / f"{settings.name}.npz"
    if not path and settings.name != "digits" and not local.is_file():
        raise LotteryError(f"The data {settings.name!r} are not in the folder that LOTTERY_DATA names.")
    return settings.model_copy(update={"path": path})
