"""How often does the interval of an interquartile mean over tasks hold the value for infinitely many replicates?

Scores are normal within each task, with means and standard deviations that differ between tasks.

    python -m tests.scripts.simulate_aggregates               # about a minute
"""

import argparse
import itertools

import numpy as np
import pandas as pd

from lottery.statistics import aggregates

REPLICATES = (3, 5, 10)
TASKS = (2, 5)


def drawn(rng, num, means, deviations):
    """A table of scores, with a row for each replicate of each task."""
    scores = means + deviations * rng.standard_normal((num, len(means)))
    rows = [
        (0.1, "ticket", str(task), replicate + 1, 1, 0.1, 0.5 + score, 0.5, score)
        for (replicate, task), score in np.ndenumerate(scores)
    ]
    return pd.DataFrame(rows, columns=list(aggregates.SCORES))


def simulated(num, tasks, draws):
    """How often the interval of the interquartile mean holds its limit, in a cell."""
    rng, held = np.random.default_rng(12), 0
    for _ in range(draws):
        means, deviations = 0.01 * rng.standard_normal(tasks), 0.005 * rng.lognormal(sigma=0.5, size=tasks)
        many = means + deviations * rng.standard_normal((4000, tasks))
        (line,) = aggregates.summary(drawn(rng, num, means, deviations)).to_dict("records")
        held += line["iqm_low"] <= aggregates.interquartile_mean(many[None])[0] <= line["iqm_high"]
    return held / draws


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=500, help="sets of runs to simulate in each cell")
    options = parser.parse_args()
    aggregates.RESAMPLES = 999  # enough for a share of many intervals
    for num, tasks in itertools.product(REPLICATES, TASKS):
        print(f"{num:2} replicates, {tasks} tasks: {100 * simulated(num, tasks, options.draws):.1f} %", flush=True)


if __name__ == "__main__":
    main()
