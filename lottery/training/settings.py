"""The ``[train]`` section of an experiment."""

import itertools
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from lottery.errors import LotteryError, unknown
from lottery.settings import COMPILED, Natural, Positive, Rate, Section

# Keras' own optimizers by the names that `keras.optimizers.get` knows; a test compares.
OPTIMIZERS = (
    "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "ftrl", "lion", "lamb", "muon", "nadam",
    "rmsprop", "sgd",
)  # fmt: skip


# Keys that say how a model is compiled; a model that comes compiled leaves no room for them.
OF_COMPILING = frozenset(("optimizer", "learning_rate", "warmup_steps", "drop_at"))


class Train(Section):
    """One training run."""

    num_steps: Positive = 50_000
    batch_size: Positive = 60
    optimizer: str | dict[str, Any] = "adam"
    learning_rate: Annotated[float, Field(ge=0)] | dict[str, Any] = 1.2e-3
    warmup_steps: Natural = 0
    # Not strict, since TOML has lists, and no tuples.
    drop_at: tuple[Positive, ...] = Field(default=(), strict=False)
    drop_factor: Rate = 0.1
    eval_every: Positive = 100
    test_curve: bool = False
    jit_compile: bool | Literal["auto"] = "auto"
    engine: Literal["auto", "compiled", "sparse"] = "auto"
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = "float32"
    devices: Literal["one", "mirrored"] = "one"

    @property
    def on_several_devices(self) -> bool:
        """True if each network is trained on all devices of a kind."""
        return self.devices != "one"

    @property
    def in_full_precision(self) -> bool:
        """True if networks compute in float32 throughout."""
        return self.precision == "float32"

    @field_validator("optimizer")
    @classmethod
    def _known(cls, optimizer: str | dict[str, Any]) -> str | dict[str, Any]:
        table = optimizer if isinstance(optimizer, dict) else {"name": optimizer}
        for key, value in table.items():
            if key != "name" and type(value) not in (int, float, bool):
                raise LotteryError(f"train.optimizer: {key} must be a number, true or false, not {value!r}.")
        name = table.get("name", "")
        if not isinstance(name, str) or name not in (*OPTIMIZERS, COMPILED):
            raise unknown("train.optimizer", name, OPTIMIZERS)
        return optimizer

    @field_validator("learning_rate")
    @classmethod
    def _named(cls, rate: float | dict[str, Any]) -> float | dict[str, Any]:
        if isinstance(rate, dict) and not isinstance(rate.get("name"), str):
            raise LotteryError(
                "train.learning_rate: a table needs the name of a class in keras.optimizers.schedules, as "
                '{ name = "CosineDecay", initial_learning_rate = 0.1, decay_steps = 1000 }.'
            )
        return rate

    @model_validator(mode="after")
    def _drops_rise(self) -> "Train":
        if any(after <= before for before, after in itertools.pairwise(self.drop_at)):
            raise LotteryError(f"train.drop_at must rise from step to step, not {list(self.drop_at)}.")
        if self.drop_at and self.drop_at[-1] >= self.num_steps:
            raise LotteryError(
                f"train.drop_at must be less than train.num_steps, {self.num_steps}, not {self.drop_at[-1]}."
            )
        if self.warmup_steps > self.num_steps:
            raise LotteryError(
                f"train.warmup_steps must be at most train.num_steps, {self.num_steps}, not {self.warmup_steps}."
            )
        if self.drop_at and isinstance(self.learning_rate, dict):
            raise LotteryError("train.drop_at needs a learning rate that is a number, not a table.")
        return self
