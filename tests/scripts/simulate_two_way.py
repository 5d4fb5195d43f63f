"""How often do intervals for ticket − dense hold the mean over all seeds and test examples?

Each network is right or wrong on each test example, by a probit model: skill + seed + difficulty of the example + what
this kind of network finds easy in this example + noise. The true difference is then known exactly. Cells differ in the
number of replicates and of test examples, in the accuracies, and in how much seeds and examples matter.

    python -m tests.scripts.simulate_two_way               # some minutes
    python -m tests.scripts.simulate_two_way --replicates 3 --draws 200 --cells
"""

import argparse
import itertools
import math

import numpy as np
from scipy import special

from lottery.statistics import intervals, two_way

RESAMPLES = 400
DIFFICULTY = 1.2  # standard deviation over examples, with that of the noise as the unit

REPLICATES = (3, 5, 10)
EXAMPLES = (360, 2000, 10_000)
ACCURACIES = ((0.62, 0.645), (0.975, 0.98))  # of dense and ticket, as on MNIST-1D and on MNIST
OF_SEEDS = (0.0, 0.03, 0.1)
OF_EXAMPLES = (0.0, 0.7)


def drawn(rng, num, examples, accuracies, of_seeds, of_examples):
    """Draw ticket − dense, right minus right, for each replicate and test example."""
    scale = math.sqrt(of_seeds**2 + DIFFICULTY**2 + of_examples**2 + 1)
    difficulty, right = DIFFICULTY * rng.standard_normal(examples), []
    for accuracy in accuracies:
        own = special.ndtri(accuracy) * scale + difficulty + of_examples * rng.standard_normal(examples)
        skill = of_seeds * rng.standard_normal((num, 1)) + own
        right.append(rng.standard_normal((num, examples), np.float32) > -skill)
    dense, ticket = right
    return ticket.astype(float) - dense


def over_seeds(differences, rng):
    """The t interval over replicates."""
    return intervals.mean_interval(differences.mean(axis=1).tolist())[1:]


def bootstrap(differences, rng):
    """The percentile interval of a paired bootstrap that draws replicates and test examples."""
    num, examples = differences.shape
    # Examples that come out alike in every replicate are interchangeable.
    codes = (differences + 1).T @ 3.0 ** np.arange(num)
    _, first, counts = np.unique(codes, return_index=True, return_counts=True)
    replicates = rng.multinomial(num, [1 / num] * num, size=RESAMPLES) / num
    values = replicates @ differences[:, first]
    # Of replicates that are drawn, the mean over hundreds of examples drawn is normal: drawing them takes long.
    mean, square = (power @ counts / examples for power in (values, values**2))
    drawn = rng.normal(mean, np.sqrt(np.maximum(square - mean**2, 0) / examples))
    return np.quantile(drawn, [0.025, 0.975])


def satterthwaite(differences, rng):
    """A t interval with the degrees of freedom of Welch and Satterthwaite, for the sum of the two variances."""
    num, examples = differences.shape
    seeds, others = differences.mean(axis=1).var(ddof=1) / num, two_way.error_of_examples(differences) ** 2
    both = seeds + others
    degrees = both**2 / (seeds**2 / (num - 1) + others**2 / (examples - 1)) if both else num - 1
    half, mean = special.stdtrit(degrees, 0.975) * math.sqrt(both), differences.mean()
    return mean - half, mean + half


def of_the_package(differences, rng):
    """`lottery.statistics.two_way.interval`."""
    return two_way.interval(differences)[1:]


METHODS = {
    "over seeds": over_seeds,
    "bootstrap of both": bootstrap,
    "Satterthwaite": satterthwaite,
    "two-way": of_the_package,
}


def simulated(cell, draws):
    """For each method: how often the truth is inside, how often it is below, and the mean width."""
    rng = np.random.default_rng(12)
    num, examples, (dense, ticket), *spread = cell
    truth, found = ticket - dense, {name: [] for name in METHODS}
    for _ in range(draws):
        differences = drawn(rng, num, examples, (dense, ticket), *spread)
        for name, method in METHODS.items():
            low, high = method(differences, rng)
            found[name].append((low - 1e-12 <= truth <= high + 1e-12, truth < low - 1e-12, high - low))
    return {name: np.mean(lines, axis=0) for name, lines in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=500, help="runs to simulate in each cell")
    parser.add_argument("--replicates", type=int, nargs="+", default=REPLICATES, help="how many, two or more")
    parser.add_argument("--cells", action="store_true", help="print each cell, not only the summary")
    options = parser.parse_args()
    for num in options.replicates:
        cells = list(itertools.product([num], EXAMPLES, ACCURACIES, OF_SEEDS, OF_EXAMPLES))
        found = []
        for cell in cells:
            found.append(simulated(cell, options.draws))
            if options.cells:
                of = ", ".join(f"{name} {100 * one[0]:.1f} ({one[2]:.4f})" for name, one in found[-1].items())
                print(f"{cell}: {of}", flush=True)
        print(f"\n{num} replicates: coverage in % over {len(cells)} cells of {options.draws:,} runs")
        print(f"{'':18} {'lowest':>7} {'mean':>7} {'highest':>8} {'truth below, most':>18} {'width':>7}")
        for name in METHODS:
            inside, below, width = np.array([one[name] for one in found]).T
            width = np.mean(width / [one["over seeds"][2] for one in found])
            print(
                f"{name:18} {100 * inside.min():7.1f} {100 * inside.mean():7.1f} {100 * inside.max():8.1f} "
                f"{100 * below.max():18.1f} {width:7.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
