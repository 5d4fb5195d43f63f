"""Real examples for a ticket's network, as it takes them, from the data that the ticket was found on."""

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from lottery import config, data, store
from lottery.errors import LotteryError

NUM_EXAMPLES = 1000


def found(source: Path, provenance: dict[str, Any], path: str = "", num: int = NUM_EXAMPLES) -> np.ndarray:
    """Examples of the validation part, scaled as they were in training.

    Args:
        source: The run or the file that the ticket came from.
        provenance: The ticket's.
        path: A file to read the data from, instead of looking them up.
        num: How many, at most.

    Returns:
        An array, the first axis the example; of the training part where none were split off.

    Raises:
        LotteryError: The data are not there, or not those that the ticket was found on.
    """
    about = provenance.get("data")
    if not isinstance(about, dict):
        raise LotteryError("The ticket does not say which data it was found on.")
    try:
        own = store.read_experiment(source).data if source.is_dir() else None
        # The path that a file names is one of somebody else's machine.
        settings = own or config.Data.model_validate({**provenance["protocol"]["data"], "path": ""})
    except (KeyError, TypeError, ValidationError):
        raise LotteryError("The ticket does not say how its data were split.") from None
    loaded = data.load(settings.model_copy(update={"path": path}) if path else settings)
    if loaded.fingerprint != about.get("sha256"):
        raise LotteryError(f"The data {about.get('name')!r} that are here are not those that the ticket was found on.")
    x = (loaded.validation if len(loaded.validation) else loaded.train).x[:num]
    return (x.astype(np.float32) - loaded.mean) / loaded.deviation if x.dtype == np.uint8 else x
