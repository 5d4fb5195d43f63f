"""Choose what to keep and where retraining starts: criteria, schedules, ranking, rewinding, branches."""

from lottery.pruning import allocation, branches, criteria, plan, ranking, rewinding, schedules
from lottery.pruning.ranking import keep_highest, prune

__all__ = [
    "allocation", "branches", "criteria", "keep_highest", "plan", "prune", "ranking", "rewinding", "schedules",
]  # fmt: skip
