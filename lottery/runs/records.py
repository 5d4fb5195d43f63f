"""Records of a run, which a stranger may have written: known types, bounded sizes, and texts that are safe to print."""
# ruff: noqa: RUF012 (pydantic copies defaults)

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from lottery.errors import LotteryError, first_wrong, printable_all
from lottery.settings import MOST, MOST_REPLICATES, MOST_ROUNDS, Schema

ROUND_FILES = (
    "masks.safetensors",
    "weights.safetensors",
    "metrics.csv",
    "early_stop.safetensors",
    "budget.safetensors",
    "predictions.safetensors",
)
LABEL = r"\w[\w.-]{0,199}"  # of a branch, which is a folder's name too

_Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# Most programs read numbers of JSON as doubles, which skip whole numbers beyond 2^53.
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Fraction = Annotated[float, Field(ge=0, le=1)]
_Measured = float | None  # JSON has no NaN


class _Train(Schema, strict=True, extra="allow"):
    batch_size: Annotated[int, Field(ge=1, le=MOST)] = 1


class _Overrides(Schema, strict=True, extra="forbid"):
    # What a transfer changes.
    data: dict[str, Any] = {}
    train: _Train = _Train()


class _Change(Schema, strict=True, extra="forbid"):
    step: _Count
    num_kept: _Count
    pruned: _Count
    grown: _Count


class _Round(Schema, strict=True, extra="allow"):
    # This or an earlier version wrote ``round.json``, so most keys may be absent, and others may be there.
    replicate: Annotated[int, Field(ge=1, le=MOST_REPLICATES)]
    round: Annotated[int, Field(ge=0, le=MOST_ROUNDS)]
    # Known names alone, so that no record makes a reader open any other file.
    sha256: dict[Literal[ROUND_FILES], _Sha]  # type: ignore[valid-type]
    branch: Annotated[str, Field(pattern=f"^{LABEL}$")] = ""
    density: _Fraction = 1.0
    num_kept: _Count = 0
    kept: dict[str, _Count] = {}
    start_sha256: _Sha = ""
    num_weights: Annotated[int, Field(ge=1, le=2**53)] = 1
    collapsed: list[str] = []
    thresholds: dict[str, float | None] = {}
    early_stop_step: _Count = 0
    early_stop_val_loss: _Measured = None
    early_stop_val_accuracy: _Measured = None
    early_stop_test_loss: _Measured = None
    early_stop_test_accuracy: _Measured = None
    dense_loss_step: _Count | None = None
    budget_step: _Count | None = None
    budget_val_loss: _Measured = None
    budget_val_accuracy: _Measured = None
    budget_test_loss: _Measured = None
    budget_test_accuracy: _Measured = None
    final_train_loss: _Measured = None
    final_train_accuracy: _Measured = None
    final_val_loss: _Measured = None
    final_val_accuracy: _Measured = None
    final_test_loss: _Measured = None
    final_test_accuracy: _Measured = None
    seconds: Annotated[float, Field(ge=0, lt=1e12)] = 0.0
    engine: Literal["compiled", "sparse"] = "compiled"
    elsewhere: list[str] = []
    control: str = ""
    mask_changes: list[_Change] = []
    kept_steps: dict[str, _Count] = {}
    first_step: _Count = 0
    last_step: _Count = 0
    mask_steps: _Count = 0
    order: _Count = 0
    rewind_sha256: str = ""
    step_sha256: str = ""
    data_sha256: str = ""
    overrides: _Overrides = _Overrides()


class _Units(Schema, strict=True, extra="forbid"):
    # As `lottery.models.units.Units`.
    size: Annotated[int, Field(ge=1)]
    made_by: Annotated[list[str], Field(min_length=1)]
    read_by: list[str]


class _Environment(Schema, strict=True, extra="allow"):
    # This or an earlier version wrote ``environment.json``: other keys may be there.
    digest: str = ""
    data_sha256: str = ""
    accuracy: str = ""
    scaling: dict[str, Any] | None = None
    num_threads: Annotated[int, Field(ge=0, le=100_000)] = 0
    num_devices: Annotated[int, Field(ge=1, le=100_000)] = 1
    onednn: bool | None = None
    python: str = ""
    versions: dict[str, str] = {}
    processor: str = ""
    platform: str = ""
    commit: str | None = None
    architecture: dict[str, Any] = {}
    not_pruned: dict[str, str] = {}
    uses: dict[str, _Count | None] = {}
    units: list[_Units] = []


class Record(dict[str, Any]):
    """A record, or arrays by name, out of a file: a key that it lacks raises `LotteryError`."""

    def __init__(self, values: dict[str, Any], path: Path):
        super().__init__(values)
        self.path = path

    # `get` does not come here: what an earlier version may lack is read by it.
    def __missing__(self, key: str) -> Any:
        raise LotteryError(f"{str(self.path)!r} has no {key!r}: it is damaged, or an earlier version stored it.")


def of_round(values: dict[str, Any], path: Path) -> Record:
    """Check the content of a ``round.json``, or raise `LotteryError`; every text becomes printable."""
    record = _checked(_Round, values, path)
    if lacking := [name for name in ROUND_FILES[:3] if name not in record["sha256"]]:
        raise LotteryError(f"{str(path)!r} is damaged: it has no checksum of {lacking[0]}.")
    return record


def of_environment(values: dict[str, Any], path: Path) -> Record:
    """Check the content of an ``environment.json``, or raise `LotteryError`; every text becomes printable."""
    # Other keys are allowed, so the schema alone would take a ``round.json``.
    if "replicate" in values:
        raise LotteryError(f"{str(path)!r} is damaged: it is the record of a network.")
    return _checked(_Environment, values, path)


def _checked(schema: type[Schema], values: dict[str, Any], path: Path) -> Record:
    # The result is not used: it has defaults, which would hide what a record lacks.
    try:
        schema.model_validate(values)
    except ValidationError as error:
        raise LotteryError(f"{str(path)!r} is damaged: {first_wrong(error)}") from None
    return Record(printable_all(values), path)
