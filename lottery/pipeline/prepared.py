"""What a run is made of: the objects that a caller passes, and everything that is made once to train its networks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lottery import config
from lottery.data import Splits, Streams
from lottery.enforcement import Enforcement
from lottery.models import networks
from lottery.pruning.criteria import ScoreFunction
from lottery.pruning.plan import Plan
from lottery.pruning.schedules import Density
from lottery.training.trainer import Trainer


@dataclass(frozen=True)
class Ingredients:
    """Objects that a caller passes where an experiment has names; see `lottery.run` and `lottery.api.Options`."""

    model: Callable[[], Any] | None = None
    data: Any = None
    criterion: ScoreFunction | None = None
    schedule: Density | None = None
    enforcement: Enforcement | None = None
    import_code: bool = False  # import the module of a network that the experiment names as "package.module:function"

    def have_own_model(self, experiment: config.Experiment) -> bool:
        """Return True if the model is the caller's, passed or named, and not one that comes with the package."""
        return self.model is not None or not networks.is_built_in(experiment.model.name)

    def are_observed(self, experiment: config.Experiment) -> bool:
        """Return True if what these objects compute, and not only the experiment's values, makes a run what it is."""
        return self.have_own_model(experiment) or self.criterion is not None or self.enforcement is not None


NOTHING_PASSED = Ingredients()


@dataclass(frozen=True)
class Prepared:
    """Everything a run needs to train."""

    experiment: config.Experiment  # completed with what the caller's objects decide
    build: Callable[[], Any]  # builds the model, with initial weights drawn anew
    data: Splits | Streams
    trainer: Trainer
    plan: Plan
    criterion: ScoreFunction
    notes: tuple[str, ...]  # sentences that a person should read
    # Observes the caller's model and functions: ``reported``, numbers that are the same on other machines but for
    # rounding, and ``example``, the types and shapes that they were observed on; empty without objects of the caller's.
    observe: Callable[[], dict[str, Any]] = dict
    # By replicate, every variable at step 0, where it is drawn already.
    initial: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    learners: dict[str, Any] = field(default_factory=dict)  # by rule, the trainers of scores; see `mask_training`
