"""How many replicates a verdict needs, from the spread between those of a pilot run."""

import math
from pathlib import Path

from lottery import config
from lottery.runs import store
from lottery.statistics import comparison, metric, results, verdicts
from lottery.statistics.power import num_needed
from lottery.text_tables import Table


def needed(
    lines: Table,
    experiment: config.Experiment,
    rule: verdicts.Rule,
    power: float,
    *,
    difference: float | None = None,
    std: float | None = None,
    pilot: Path | None = None,
) -> Table:
    """Add to the rounds of a plan how many replicates show with a power that a pruned round is matching.

    Args:
        lines, experiment: The table of `lottery.pipeline.preview.rounds`, and what it plans.
        rule: Of the verdicts, with the pilot's measure.
        power: In (0, 1).
        difference: The true ticket − dense (of losses as a fraction of the dense loss); None for the mean of the pilot.
        std: The standard deviation of the differences between replicates.
        pilot: In place of `std`, the run that estimates it, at the nearest density.

    Returns:
        The rows of pruned rounds, with ``difference``, ``std``, ``replicates``, for the round by itself, and
        ``for_all_rounds``, which show it for the run as a whole, whatever the other rounds show. NaN beyond
        `lottery.statistics.power.MOST`, and where the pilot cannot tell, or has no round near the density.
    """
    import pandas as pd

    measured, prunes_alike = [], False
    if pilot is not None:
        found = verdicts.differences(metric.scored(results.table(pilot), rule.metric), rule.metric.early_stop)
        measured = found.to_dict("records")
        prunes_alike = store.read_experiment(pilot).prune == experiment.prune
    sign = -1 if rule.metric.is_loss else 1  # from a difference to a gain
    added = []
    # Round 0 is dense, with which all others are compared.
    for planned in lines.iloc[1:].itertuples():
        # A plan that prunes otherwise has other densities in the same rounds.
        near = [line for line in measured if comparison.is_near(line["density"], planned.density, comparison.WITHIN)]
        # By number, for the densities of a plan are estimates where whole units are pruned.
        if prunes_alike:
            near = [line for line in measured if line["round"] == planned.round]
        line = min(near, key=lambda line: abs(line["density"] - planned.density), default={})
        mean = line.get("mean", math.nan) if difference is None else sign * difference
        spread = line.get("std", math.nan) if std is None else std
        num = int(line.get("replicates", 0)) if std is None else None
        distance = mean + rule.tolerance
        row = {"difference": sign * mean, "std": spread, "replicates": math.nan, "for_all_rounds": math.nan}
        if distance > 0 and not math.isnan(spread):
            for key, tests in {"replicates": 1, "for_all_rounds": experiment.prune.num_rounds}.items():
                confidence = 1 - (1 - rule.confidence) / tests
                row[key] = num_needed(distance, spread, num, confidence, power) or math.nan
        added.append(row)
    return pd.concat([lines.iloc[1:].reset_index(drop=True), pd.DataFrame(added)], axis=1)
