"""Choose what to keep and where retraining starts: criteria, schedules, ranking, rewinding, branches."""

from lottery.pruning import (
    allocation,
    branches,
    criteria,
    fairness,
    granularity,
    mask_actions,
    plan,
    ranking,
    rewinding,
    schedules,
)
from lottery.pruning.granularity import Granularity
from lottery.pruning.one_shot import prune
from lottery.pruning.ranking import keep_highest

__all__ = [
    "Granularity", "allocation", "branches", "criteria", "fairness", "granularity", "keep_highest", "mask_actions",
    "plan", "prune", "ranking", "rewinding", "schedules",
]  # fmt: skip
