"""Simulate runs with known true differences, and count how often intervals, verdicts and plans keep their promises.

Run with: python -m tests.scripts.simulate_verdicts --runs 10000

A simulated run has 20 rounds. The difference ticket − dense of a replicate is the true difference, plus a part that all
rounds share because they share their dense network, plus a part that goes from round to round. Within the budget of
the dense network a ticket has another difference, with a part of its own. Intervals and p values are computed for all
runs at once, by a twin of `lottery.statistics.intervals` that `check_the_twin` compares with the real functions.
"""

import argparse
import math
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from lottery.statistics import power, results, verdicts

TOLERANCE, LEVEL, NUM_ROUNDS, STD = verdicts.DEFAULT.tolerance, 0.025, 20, 0.003
REPLICATES = (3, 5, 10)
MOST_ADDED = 10  # replicates, by somebody who adds them until a verdict comes
PROCEDURES = ("step-down", "single rounds", "fixed sequence", "Holm")


class Found(NamedTuple):
    """What is counted, and the bound that holds for it: at most, or at least."""

    what: str
    replicates: str
    value: float
    bound: float
    least: bool = False
    runs: int = 10_000

    def holds(self) -> bool:
        """Return True unless the count is on the wrong side by more than three standard errors."""
        error = 3 * math.sqrt(self.bound * (1 - self.bound) / self.runs)
        return self.value >= self.bound - error if self.least else self.value <= self.bound + error


def differences(rng, true, num_runs, num_replicates, std=STD, shared=0.5, along=0.8):
    """Draw differences by run, replicate and round: a share of their variance is dense's, the rest goes along."""
    num_rounds = len(true)
    own = rng.standard_normal((num_runs, num_replicates, num_rounds))
    for index in range(1, num_rounds):
        own[..., index] = along * own[..., index - 1] + math.sqrt(1 - along**2) * own[..., index]
    dense = rng.standard_normal((num_runs, num_replicates, 1))
    return true + std * (math.sqrt(1 - shared) * own - math.sqrt(shared) * dense)


def within_budget(rng, drawn, lost=0.0, std=STD / 3):
    """Draw differences within the budget: those at the early stop, less what is lost on the way, with a spread."""
    return drawn - lost + rng.normal(0, std, drawn.shape)


def summed_up(drawn):
    """Return means, and standard errors, over replicates."""
    return drawn.mean(1), drawn.std(1, ddof=1) / math.sqrt(drawn.shape[1])


def p_values(drawn, bound):
    """Return one-sided p values by run and round that the true means are above a bound."""
    mean, error = summed_up(drawn)
    return special.stdtr(drawn.shape[1] - 1, (bound - mean) / error)


def lower_bounds(drawn):
    """Bound the true means from below for all rounds at once, as `lottery.statistics.verdicts.lower_bound` does."""
    (mean, error), (_, num, num_rounds) = summed_up(drawn), drawn.shape
    return np.maximum(mean + special.stdtrit(num - 1, LEVEL / num_rounds) * error, -TOLERANCE)


def step_down(found, level=LEVEL):
    """Count by run the rounds that `lottery.statistics.significance.step_down` passes."""
    num_runs, num_rounds = found.shape
    alive, counts = np.ones(num_runs, bool), np.zeros(num_runs, int)
    for place in range(num_rounds):
        ordered, num = np.sort(found[:, place:], 1), num_rounds - place
        alive &= (ordered * num / np.arange(1, num + 1)).min(1) <= level
        counts[alive] = place + 1
    return counts


def last_of(passed):
    """Return by run the number of the last round that is passed; 0 if none is."""
    return np.where(passed.any(1), passed.shape[1] - np.argmax(passed[:, ::-1], 1), 0)


def smallest(found, procedure, level=LEVEL):
    """Return by run the round with the smallest density that a procedure shows; 0 if there is none."""
    num_rounds = found.shape[1]
    if procedure == "step-down":
        return step_down(found, level)
    if procedure == "fixed sequence":
        return np.cumprod(found <= level, 1).sum(1)
    if procedure == "single rounds":
        return last_of(found <= level)
    order = np.argsort(found, 1)
    ordered = np.take_along_axis(found, order, 1)
    passed = np.cumprod(ordered <= level / (num_rounds - np.arange(num_rounds)), 1).astype(bool)
    rejected = np.zeros_like(passed)
    np.put_along_axis(rejected, order, passed, 1)
    return last_of(rejected)


TRUE = {
    "no round is": np.full(NUM_ROUNDS, -TOLERANCE),
    "the first half is": np.repeat([0.003, -TOLERANCE], NUM_ROUNDS // 2),
    "every second is": np.tile([0.003, -TOLERANCE], NUM_ROUNDS // 2),
    # As of LeNet on MNIST in round 1 to 20; the last that is winning is round 19.
    "as on MNIST": np.r_[
        0.001, 0.002, 0.0027, 0.0035, 0.004, 0.0046, 0.0055, 0.006, 0.0067, 0.0065, 0.0064, 0.0063, 0.0055, 0.0045,
        0.0038, 0.003, 0.0026, 0.0022, 0, -0.0025,
    ],
}  # fmt: skip


def errors(rng, num_runs):
    """Count false verdicts, of single rounds and of runs, where true differences are at the tolerance."""
    found = []
    for num in REPLICATES:
        drawn = differences(rng, TRUE["no round is"], num_runs, num)
        mean, error = summed_up(drawn)
        half = special.stdtrit(num - 1, 0.975) * error
        covered = (np.abs(mean + TOLERANCE) <= half).mean()
        found.append(Found("coverage of the 95 % interval of a round", str(num), covered, 0.95, True, num_runs))
        p = p_values(drawn, -TOLERANCE)
        found.append(Found("false matching, a round", str(num), (p <= LEVEL).mean(), LEVEL, runs=num_runs))
        # Winning is tested within the budget alone, where a ticket may match that does better later, or not.
        later = differences(rng, np.full(NUM_ROUNDS, 0.02), num_runs, num)
        winning = {"as at the early stop": (drawn, 0.0), "better later": (later, 0.02 + TOLERANCE)}
        for when, (early_stop, lost) in winning.items():
            p_winning = p_values(within_budget(rng, early_stop, lost), -TOLERANCE)
            what = f"false winning, {when}"
            found.append(Found(f"{what}, a round", str(num), (p_winning <= LEVEL).mean(), LEVEL, runs=num_runs))
            value = (step_down(p_winning) > 0).mean()
            found.append(Found(f"{what}, some round (step-down)", str(num), value, 0.05, runs=num_runs))
        found += [named_bound(rng, num_runs, num), *not_special(rng, num_runs, num)]
        for shared, along in ((0.5, 0.8), (0.05, 0.0), (0.9, 0.95)):
            drawn = differences(rng, TRUE["no round is"], num_runs, num, shared=shared, along=along)
            value = (step_down(p_values(drawn, -TOLERANCE)) > 0).mean()
            what = f"false matching, some round (step-down), dense's share {shared:g}, along {along:g}"
            found.append(Found(what, str(num), value, 0.05, runs=num_runs))
        for name in ("the first half is", "every second is"):
            p = p_values(differences(rng, TRUE[name], num_runs, num), -TOLERANCE)
            counts = step_down(p)
            value = ((counts > 0) & (TRUE[name][counts - 1] <= -TOLERANCE)).mean()
            found.append(Found(f"false matching, the round named, {name}", str(num), value, 0.05, runs=num_runs))
    return found


def named_bound(rng, num_runs, num):
    """Count how often the bound in the first line is above the true difference of the round that it names."""
    true = TRUE["as on MNIST"]
    drawn = differences(rng, true, num_runs, num, STD / 2)
    found, every_bound = p_values(drawn, -TOLERANCE), lower_bounds(drawn)
    counts = step_down(found)
    sparsest = np.maximum(counts, 1) - 1
    # The sparsest of the rounds shown whose bound is above zero, or else the sparsest shown.
    is_clear = (every_bound > 0) & (found <= LEVEL) & (np.arange(len(true)) <= sparsest[:, None])
    last_clear = len(true) - 1 - is_clear[:, ::-1].argmax(1)
    named = np.where(is_clear.any(1), last_clear, sparsest)
    bounds = np.take_along_axis(every_bound, named[:, None], 1)[:, 0]
    false = ((counts > 0) & (bounds > true[named])).mean()
    return Found("false bound in the first line", str(num), false, LEVEL, runs=num_runs)


def not_special(rng, num_runs, num, num_controls=4):
    """Count how often a ticket is called not special, where it is better than each control by the tolerance."""
    beside = differences(rng, np.full(num_controls, -TOLERANCE), num_runs, num, along=0.0)
    p = p_values(beside, -TOLERANCE).min(1)
    what = f"false 'not special', {num_controls} controls"
    alone = Found(f"{what}, each by itself", str(num), (p <= LEVEL).mean(), 1.0, runs=num_runs)
    return [alone, Found(what, str(num), (p <= LEVEL / num_controls).mean(), LEVEL, runs=num_runs)]


def procedures(rng, num_runs):
    """Compare how far procedures come: runs with a false verdict, without any, and the median round that is shown."""
    rows = []
    for name, true in TRUE.items():
        real = true > -TOLERANCE
        last = int(np.nonzero(real)[0].max()) + 1 if real.any() else 0
        for num in REPLICATES:
            std = STD / 2 if name == "as on MNIST" else STD
            p = p_values(differences(rng, true, num_runs, num, std), -TOLERANCE)
            for procedure in PROCEDURES:
                counts = smallest(p, procedure)
                false, none = (counts > last).mean(), (counts == 0).mean()
                rows.append((name, num, procedure, false, none, int(np.median(counts)), last))
    heads = ["truly matching", "replicates", "procedure", "false", "none shown", "median round", "of"]
    return pd.DataFrame(rows, columns=heads)


def planned(rng, num_runs, distances=(0.5, 1.0, 2.0), num=200):
    """Simulate the runs that a plan asks for: those with a verdict, by the true standard deviation or from a pilot."""
    found = []
    for distance in distances:  # standard deviations
        for pilot in (None, *REPLICATES):
            if pilot is None:
                nums = np.full(num_runs, power.num_needed(distance, 1.0))
            else:
                stds = np.sqrt(rng.chisquare(pilot - 1, num_runs) / (pilot - 1))
                # Of some only, for time; the others get the number of the next smaller one.
                some = np.sort(stds)[:: max(1, num_runs // num)]
                should_stop = [power.num_needed(distance, one, pilot) or power.MOST for one in some]
                nums = np.array(should_stop)[np.searchsorted(some, stds, "right") - 1]
            mean = distance + rng.standard_normal(num_runs) / np.sqrt(nums)
            std = np.sqrt(rng.chisquare(nums - 1) / (nums - 1))
            told = mean * np.sqrt(nums) / std >= special.stdtrit(nums - 1, 0.975)
            source = "the true standard deviation" if pilot is None else f"a pilot of {pilot}"
            what = f"power, difference + tolerance of {distance:g} std, by {source}"
            found.append(Found(what, f"{np.median(nums):.0f}", told.mean(), power.LEAST, True, num_runs))
    return found


def adding(rng, num_runs):
    """Add replicates one by one until one round is shown to be matching, its true difference at the tolerance."""
    found = []
    for most in (MOST_ADDED, 20):
        drawn = differences(rng, np.array([-TOLERANCE]), num_runs, most)
        told = np.zeros(num_runs, bool)
        for num in range(3, most + 1):
            told |= p_values(drawn[:, :num], -TOLERANCE)[:, 0] <= LEVEL
        found.append(Found("false matching, added one by one", f"3 to {most}", told.mean(), 1.0, runs=num_runs))
    # The rule that is offered: as many as planned, with another seed, after a pilot that could not tell.
    pilot, new = (differences(rng, np.array([-TOLERANCE]), num_runs, num) for num in (3, MOST_ADDED))
    open_still = p_values(pilot, -TOLERANCE)[:, 0] > LEVEL
    value = (p_values(new[open_still], -TOLERANCE) <= LEVEL).mean()
    found.append(Found("false matching, a new run by itself", str(MOST_ADDED), value, LEVEL, runs=num_runs))
    return found


def check_the_twin(rng, num_runs=3, num_rounds=NUM_ROUNDS):
    """Compare the arrays of this script with the functions of `lottery.runs`, on runs that may show anything."""
    true, rule = np.linspace(0.02, -0.02, num_rounds), verdicts.Rule(last_step=10**6)
    for num in REPLICATES[:2]:
        drawn = differences(rng, true, num_runs, num)
        budget = within_budget(rng, drawn, 0.002)
        matching, winning = p_values(drawn, rule.bound), p_values(budget, rule.bound)
        bounds = {True: lower_bounds(budget), False: lower_bounds(drawn)}  # where winning tickets are shown, and not
        for run in range(num_runs):
            judgement = verdicts.Judgement(table_of(drawn[run], budget[run]), rule)
            lines = judgement.rounds
            np.testing.assert_allclose(lines["matching_p"], matching[run], atol=1e-5)
            np.testing.assert_allclose(lines["winning_p"], winning[run], atol=1e-5)
            told = lines["verdict"].isin(("winning", "matching"))
            assert (told == ((matching[run] <= LEVEL) | (winning[run] <= LEVEL))).all()
            assert ((lines["verdict"] == "winning") == (winning[run] <= LEVEL)).all()
            for p, own in (("matching_p", matching), ("winning_p", winning)):
                shown = verdicts.smallest_shown(lines, rule, p)
                assert (shown["round"] if shown else 0) == step_down(own[run : run + 1])[0]
            for line in lines[lines["verdict"] == "winning"].to_dict("records"):
                expected = bounds[judgement.shown["winning"] is not None][run, line["round"] - 1]
                np.testing.assert_allclose(verdicts.lower_bound(judgement, line), expected)


def table_of(drawn, budget):
    """Make the table of a run from differences of accuracies at the early stop and within the budget."""
    rows = []
    for replicate, (gains, others) in enumerate(zip(drawn, budget, strict=True), 1):
        for index, (gain, other) in enumerate(zip([0, *gains], [0, *others], strict=True)):
            row = dict.fromkeys(results.COLUMNS, 0.0) | {"replicate": replicate, "branch": "ticket", "round": index}
            measured = {"early_stop_test_accuracy": 0.9 + gain, "budget_test_accuracy": 0.9 + other}
            rows.append(row | measured | {"density": 0.8**index})
    return pd.DataFrame(rows, columns=list(results.COLUMNS))


def simulated(num_runs, seed=0):
    """Count everything that has a bound."""
    rng = np.random.default_rng(seed)
    return [*errors(rng, num_runs), *planned(rng, num_runs), *adding(rng, num_runs)]


def main() -> None:
    """Print what was counted beside its bounds, and how procedures compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="simulated runs")
    num_runs = parser.parse_args().runs
    check_the_twin(np.random.default_rng(1))
    found = simulated(num_runs)
    width = max(len(one.what) for one in found)
    print(f"{num_runs:,} runs of {NUM_ROUNDS} rounds\n")
    print(f"{'':{width}}  replicates  measured  bound")
    for one in found:
        bound = "" if one.bound == 1 else f"{'≥' if one.least else '≤'} {one.bound:.3f}"
        wrong = "" if one.holds() else "  WRONG"
        print(f"{one.what:{width}}  {one.replicates:>10}  {one.value:8.4f}  {bound}{wrong}")
    print("\nThe smallest density shown to be matching, by procedure: false in how many runs, and how far it comes\n")
    print(procedures(np.random.default_rng(2), num_runs).round(4).to_string(index=False))


if __name__ == "__main__":
    main()
