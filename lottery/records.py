"""The sections of an experiment as frozen records that check their values."""

import itertools
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from lottery.errors import LotteryError, unknown

# Keras' own optimisers by the names that `keras.optimizers.get` knows; a test compares.
OPTIMIZERS = (
    "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "ftrl", "lion", "lamb", "muon", "nadam",
    "rmsprop", "sgd",
)  # fmt: skip
# What is there by name. The functions are in the modules of these names, which tests compare.
DATASETS = ("digits", "mnist", "fashion_mnist", "cifar10", "npz")
MODELS = ("lenet_300_100", "lenet_5", "conv_2", "conv_4", "conv_6", "resnet_20", "vgg_11", "vgg_16", "vgg_19")
CRITERIA = (
    "magnitude", "large_final", "small_final", "large_init", "small_init", "large_init_large_final",
    "small_init_small_final", "magnitude_increase", "movement", "random", "snip", "grasp", "synflow",
)  # fmt: skip
BRANCHES = (
    "random_reinit", "random_mask", "random_mask_global", "shuffled_mask", "reshuffled_init", "signed_constant",
    "untrained", "early_bird", "transfer",
)  # fmt: skip
GIVEN = "given"  # data.name, model.name and prune.criterion where a caller passed the objects themselves
COMPILED = "compiled"  # train.optimizer where the caller's model came compiled


def _one_of(key: str, *allowed: str, given: bool = False, import_path: bool = False) -> AfterValidator:
    def check(name: str) -> str:
        if name in allowed or (name == GIVEN and given) or (import_path and (":" in name or _is_resnet(name))):
            return name
        raise unknown(key + (' (or "package.module:function")' if import_path else ""), name, allowed)

    return AfterValidator(check)


def _is_resnet(name: str) -> bool:
    """Whether a name is that of a residual network of He et al. 2016 for 32 x 32 images: 6 n + 2 layers."""
    depth = re.fullmatch(r"resnet_(\d{1,4})", name)
    return bool(depth) and int(depth[1]) > 2 and int(depth[1]) % 6 == 2


def _inside_unit_interval(value: float) -> float:
    if not 0 < value < 1:
        raise PydanticCustomError("fraction", "Input should be a number between 0 and 1, both excluded")
    return value


def _file_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
        raise PydanticCustomError(
            "name", "Input should be letters, digits, '.', '_' and '-', beginning with one of the first two"
        )
    return value


Rate = Annotated[float, AfterValidator(_inside_unit_interval)]
RateOrZero = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Data(_Section):
    """What is trained on."""

    name: Annotated[str, _one_of("data.name", *DATASETS, given=True)] = "mnist"
    path: str = ""
    validation: Positive = 5000
    pixels: Literal["standardize", "unit"] = "standardize"
    augment: tuple[Literal["crop", "flip"], ...] = Field(default=(), strict=False)
    fingerprint: str = ""

    @model_validator(mode="after")
    def _npz_has_a_path(self) -> "Data":
        if self.name == "npz" and not self.path:
            raise LotteryError('data.name = "npz" needs data.path, the file to read.')
        return self


class Model(_Section):
    """The network: a built-in name, or "package.module:function"."""

    name: Annotated[str, _one_of("model.name", *MODELS, given=True, import_path=True)] = "lenet_300_100"
    fingerprint: str = ""


class Train(_Section):
    """One training run."""

    num_steps: Positive = 50_000
    batch_size: Positive = 60
    optimizer: str | dict[str, Any] = "adam"
    learning_rate: Annotated[float, Field(ge=0)] | dict[str, Any] = 1.2e-3
    warmup_steps: Natural = 0
    drop_at: tuple[Positive, ...] = Field(default=(), strict=False)
    drop_factor: Rate = 0.1
    eval_every: Positive = 100
    test_curve: bool = False
    jit_compile: bool | Literal["auto"] = "auto"
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = "float32"

    @field_validator("optimizer")
    @classmethod
    def _known(cls, optimizer: str | dict[str, Any]) -> str | dict[str, Any]:
        table = optimizer if isinstance(optimizer, dict) else {"name": optimizer}
        wrong = [
            f"{key} is {value!r}"
            for key, value in table.items()
            if type(value) not in ((str,) if key == "name" else (int, float, bool))
        ]
        if wrong:
            raise LotteryError(f"train.optimizer: {wrong[0]}, allowed are numbers, true and false.")
        if table.get("name") not in (*OPTIMIZERS, COMPILED):
            raise unknown("train.optimizer", table.get("name", ""), OPTIMIZERS)
        return optimizer

    @field_validator("learning_rate")
    @classmethod
    def _named(cls, rate: float | dict[str, Any]) -> float | dict[str, Any]:
        if isinstance(rate, dict) and not isinstance(rate.get("name"), str):
            example = '{ name = "CosineDecay", initial_learning_rate = 0.1, decay_steps = 1000 }'
            what = "a table needs the name of a class in keras.optimizers.schedules"
            raise LotteryError(f"train.learning_rate: {what}, as {example}.")
        return rate

    @model_validator(mode="after")
    def _drops_rise(self) -> "Train":
        if any(after <= before for before, after in itertools.pairwise(self.drop_at)):
            raise LotteryError(f"train.drop_at must rise from step to step, received {list(self.drop_at)}.")
        if self.drop_at and self.drop_at[-1] >= self.num_steps:
            raise LotteryError(
                f"train.drop_at: received {self.drop_at[-1]}, allowed is less than train.num_steps, {self.num_steps}."
            )
        if self.warmup_steps > self.num_steps:
            received = f"train.warmup_steps: received {self.warmup_steps}"
            raise LotteryError(f"{received}, allowed is at most train.num_steps, {self.num_steps}.")
        if self.drop_at and isinstance(self.learning_rate, dict):
            raise LotteryError("train.drop_at divides a learning rate that is a number; this one is a table.")
        return self


class Prune(_Section):
    """What is pruned, how much, and in how many rounds."""

    criterion: Annotated[str, _one_of("prune.criterion", *CRITERIA, given=True)] = "magnitude"
    scope: Literal["layerwise", "global"] = "layerwise"
    allocation: Literal["rates", "uniform", "erk"] = "rates"
    schedule: Literal["geometric", "linear", "one_shot", "explicit"] = "geometric"
    iterative: bool = True
    rate: Rate = 0.2
    num_rounds: Natural = 20
    final_density: RateOrZero = 0.0
    rates: dict[str, RateOrZero] = {}
    densities: tuple[Rate, ...] = Field(default=(), strict=False)
    num_examples: Positive = 100
    fingerprint: str = ""

    @model_validator(mode="before")
    @classmethod
    def _as_many_rounds_as_densities(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("schedule") == "explicit" and "num_rounds" not in values:
            densities = values.get("densities", ())
            return {**values, "num_rounds": len(densities)} if isinstance(densities, list | tuple) else values
        return values

    @model_validator(mode="before")
    @classmethod
    def _rate_to_a_final_density(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        final, num_rounds = values.get("final_density"), values.get("num_rounds", 20)
        if type(final) is not float or not 0 < final < 1 or type(num_rounds) is not int or num_rounds < 1:
            return values
        rate = 1 - final ** (1 / num_rounds)
        if values.get("rate", rate) != rate:
            raise LotteryError(
                f"prune.rate and prune.final_density: received {values['rate']} and {final}, allowed is one of the two."
            )
        return {**values, "rate": rate}

    @model_validator(mode="after")
    def _densities_are_for_explicit(self) -> "Prune":
        if (self.schedule == "explicit") != bool(self.densities):
            raise LotteryError('prune.densities and prune.schedule = "explicit" go together: give both or neither.')
        if self.densities and len(self.densities) != self.num_rounds:
            raise LotteryError(
                f"prune.densities has {len(self.densities)} entries and prune.num_rounds is {self.num_rounds}; "
                "leave prune.num_rounds out."
            )
        if self.densities and self.rates:
            raise LotteryError('prune.rates says by how much to prune, so it cannot be used with "explicit" densities.')
        if any(after >= before for before, after in itertools.pairwise(self.densities)):
            raise LotteryError(f"prune.densities must fall from round to round, received {list(self.densities)}.")
        if self.final_density and (self.densities or not self.num_rounds):
            raise LotteryError("prune.final_density takes the place of prune.densities, and needs a round.")
        if self.allocation != "rates" and (self.rates or self.scope == "global"):
            raise LotteryError(
                f'prune.allocation = "{self.allocation}" says what each layer keeps: leave out prune.rates and '
                'prune.scope = "global".'
            )
        return self


class Rewind(_Section):
    """Where retraining starts."""

    step: Natural = 0
    mode: Literal["weights", "learning_rate", "none", "sign"] = "weights"


class Run(_Section):
    """How often, from which seed, and how masks are enforced."""

    num_replicates: Positive = 5
    seed: Natural = 0
    controls: tuple[Annotated[str, _one_of("run.controls", *BRANCHES[:-2])], ...] = Field(default=(), strict=False)
    control_rounds: tuple[Natural, ...] = Field(default=(), strict=False)
    enforcement: Literal["constraint", "gradient", "reparameterization", "callback", "tfmot"] = "constraint"
    num_threads: Natural = 0
    strategy: Literal["none", "mirrored"] = "none"


class Experiment(_Section):
    """Everything that decides the result of a run."""

    name: Annotated[str, AfterValidator(_file_name)] = "experiment"
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    prune: Prune = Prune()
    rewind: Rewind = Rewind()
    run: Run = Run()

    @model_validator(mode="after")
    def _sections_fit(self) -> "Experiment":
        step, num_steps = self.rewind.step, self.train.num_steps
        if step >= num_steps:
            raise LotteryError(f"rewind.step: received {step}, allowed is less than train.num_steps, {num_steps}.")
        late = [index for index in self.run.control_rounds if index > self.prune.num_rounds]
        if late:
            raise LotteryError(
                f"run.control_rounds: received {late[0]}, allowed is at most prune.num_rounds, {self.prune.num_rounds}."
            )
        return self
