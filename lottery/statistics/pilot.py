"""How many replicates a verdict needs, from the spread between those of a pilot run."""

import math
from typing import Any

from lottery import config
from lottery.statistics import metric, results, verdicts
from lottery.statistics.power import num_needed
from lottery.text_tables import Table


def needed(lines: Table, experiment: config.Experiment, rule: verdicts.Rule, power: float, **known: Any) -> Table:
    """Add to the rounds of a plan how many replicates show with a power that a pruned round is matching.

    Args:
        lines: The table of `lottery.pipeline.preview.rounds`.
        experiment: The experiment.
        rule: Of the verdicts, with the pilot's measure.
        power: In (0, 1).
        known: ``difference``, the true ticket − dense (of losses as a fraction of the dense loss), None for the mean of
            the pilot; and ``std``, the standard deviation of the differences between replicates, or ``pilot``, the run
            that estimates it.

    Returns:
        The rows of pruned rounds, with ``difference``, ``std``, ``replicates``, for the round by itself, and
        ``for_all_rounds``, which show it for the run as a whole, whatever the other rounds show. NaN beyond
        `lottery.statistics.power.MOST`, and where the pilot cannot tell.
    """
    difference, std, pilot = known.get("difference"), known.get("std"), known.get("pilot")
    measured = {}
    sign = -1 if rule.metric.is_loss else 1  # from a difference to a gain
    if pilot is not None:
        found = verdicts.differences(metric.scored(results.table(pilot), rule.metric), rule.metric.early_stop)
        measured = {line["round"]: line for line in found.to_dict("records")}
    num_rounds, added = experiment.prune.num_rounds, []
    for index in lines["round"][1:]:
        line = measured.get(index, {})
        mean = line.get("mean", math.nan) if difference is None else sign * difference
        spread = std if std is not None else line.get("std", math.nan)
        num = None if std is not None else int(line.get("replicates", 0))
        row: dict[str, float] = {"difference": sign * mean, "std": spread}
        for key, error in {"replicates": 1, "for_all_rounds": num_rounds}.items():
            confidence, distance = 1 - (1 - rule.confidence) / error, mean + rule.tolerance
            can_tell = distance > 0 and spread == spread
            enough = num_needed(distance, spread, num, confidence, power) if can_tell else None
            row[key] = enough or math.nan
        added.append(row)
    import pandas as pd

    return pd.concat([lines.iloc[1:].reset_index(drop=True), pd.DataFrame(added)], axis=1)
