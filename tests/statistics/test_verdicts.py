import dataclasses
import math
import statistics

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from lottery import config, text_tables
from lottery.errors import LotteryError
from lottery.formatting import are_numbers
from lottery.statistics import power, results, sentences, tables, verdicts
from lottery.statistics.metric import ACCURACY, LOSS, metric_of
from lottery.statistics.verdicts import Judgement, Rule


def made_up(chains, density=0.8):
    """A tidy table: accuracies by branch, replicate and round; None is a network that is not there yet."""
    rows = []
    for branch, replicates in chains.items():
        for replicate, values in enumerate(replicates, 1):
            for index, value in enumerate(values):
                if value is not None:
                    row = {"replicate": replicate, "branch": branch, "round": index, "density": density**index}
                    row |= {"num_kept": round(1000 * density**index), "early_stop_test_accuracy": value}
                    row |= {"final_test_accuracy": value, "budget_test_accuracy": value}
                    rows.append(dict.fromkeys(results.COLUMNS, 0.0) | row)
    return pd.DataFrame(rows, columns=list(results.COLUMNS))


def headline(rows, rule=verdicts.DEFAULT, trained=None):
    return sentences.headline(Judgement(rows, rule, trained))


def sentences_of(rows, rule=verdicts.DEFAULT, trained=None):
    return sentences.of(Judgement(rows, rule, trained))


def beside(chains, branch, rule=verdicts.DEFAULT):
    """What the ticket is beside a branch, by round."""
    rows = made_up(chains)
    return {
        line["round"]: verdicts.beside(line, rule) for line in Judgement(rows, rule).against(branch).to_dict("records")
    }


ROUNDS = range(1, 9)  # a table of many rounds is judged in little more time than one of few
accuracies = st.integers(1, 4).flatmap(
    lambda num: st.lists(st.lists(st.floats(0, 1), min_size=9, max_size=9), min_size=num, max_size=num)
)
tolerances = st.floats(0, 0.3)
TICKET = [[0.90, 0.93, 0.91, 0.80], [0.91, 0.93, 0.92, 0.82], [0.92, 0.96, 0.93, 0.81]]


@given(accuracies)
@settings(max_examples=15)
def test_differences_are_those_of_a_loop(chain):
    found = verdicts.differences(made_up({"ticket": chain}))
    assert found["round"].tolist() == [*ROUNDS]
    for line in found.to_dict("records"):
        one = [values[line["round"]] - values[0] for values in chain]
        assert line["mean"] == pytest.approx(statistics.mean(one)) and line["replicates"] == len(chain)
        if len(chain) == 1:
            assert math.isnan(line["std"]) and (line["low"], line["high"]) == (-math.inf, math.inf)
        else:
            assert line["std"] == pytest.approx(statistics.stdev(one))
            if np.ptp(one) > 1e-9:
                ends = stats.ttest_1samp(one, 0).confidence_interval()
                assert (line["low"], line["high"]) == pytest.approx((ends.low, ends.high))


@given(accuracies, st.randoms(use_true_random=False), st.lists(st.floats(-0.5, 0.5), min_size=4, max_size=4))
@settings(max_examples=15)
def test_pairs_are_of_one_replicate(chain, random, shifts):
    control = [[random.random() for _ in values] for values in chain]
    rows = made_up({"ticket": chain, "random_mask": control})
    shuffled = rows.sample(frac=1, random_state=random.randrange(1000))
    moved = rows.copy()
    moved["early_stop_test_accuracy"] += moved["replicate"].map(dict(enumerate(shifts, 1)))
    for against in ("dense", "random_mask"):
        found = verdicts.differences(rows, against=against)
        pd.testing.assert_frame_equal(verdicts.differences(shuffled, against=against), found)
        same = verdicts.differences(moved, against=against)
        # What all networks of a replicate have in common is not in a difference; a mean over replicates would keep it.
        np.testing.assert_allclose(same["mean"], found["mean"], atol=1e-9)
        np.testing.assert_allclose(same["std"], found["std"], atol=1e-9)


def test_pairing_is_what_makes_it_tell():
    far_apart = [[0.5, 0.51], [0.7, 0.711], [0.9, 0.909]]
    (line,) = verdicts.judged(made_up({"ticket": far_apart}), Rule(tolerance=0)).to_dict("records")
    assert line["verdict"] == "winning" and line["std"] == pytest.approx(0.001)


@given(accuracies, tolerances)
@settings(max_examples=23)
def test_one_replicate_never_tells(chain, tolerance):
    lines = verdicts.judged(made_up({"ticket": chain[:1]}), Rule(tolerance=tolerance))
    assert set(lines["verdict"]) == {"?"} and lines["needed"].isna().all()
    said = " ".join(sentences_of(made_up({"ticket": chain[:1]}), Rule(tolerance=tolerance)))
    assert "1 replicate cannot show" in said and "winning round" not in said and "matching round" not in said


@given(accuracies, tolerances, tolerances)
@settings(max_examples=23)
def test_verdicts_are_monotone_in_the_tolerance(chain, one, other):
    rank = {"not matching": 0, "?": 1, "matching": 2, "winning": 2}
    strict, lax = (
        verdicts.judged(made_up({"ticket": chain}), Rule(tolerance=tolerance))["verdict"].map(rank)
        for tolerance in sorted((one, other))
    )
    assert (strict <= lax).all()


@given(accuracies, tolerances)
@settings(max_examples=23)
def test_verdicts_are_what_the_interval_says(chain, tolerance):
    assume(len(chain) > 1)
    for line in verdicts.judged(made_up({"ticket": chain}), Rule(tolerance=tolerance)).to_dict("records"):
        one = [values[line["round"]] - values[0] for values in chain]
        if len(one) == 2 and one[0] == one[1]:  # of two that are equal nobody knows the spread
            assert line["verdict"] == "?"
            continue
        half = stats.t.ppf(0.975, len(one) - 1) * statistics.stdev(one) / math.sqrt(len(one))
        low, high = np.mean(one) - half + tolerance, np.mean(one) + half + tolerance
        if min(abs(low), abs(high)) < 1e-8:
            continue
        assert line["verdict"] == ("winning" if low > 0 else "not matching" if high < 0 else "?")
        if line["needed"] == line["needed"]:
            assert line["verdict"] == "?" and line["needed"] > len(one)


def test_verdicts_by_hand():
    # Round 1: 0.03, 0.02, 0.04, deviation 0.01, half of the interval 4.3027 * 0.01 / sqrt(3) = 0.02484.
    lines = verdicts.judged(made_up({"ticket": TICKET}))
    first = lines.iloc[0]
    assert (first["mean"], first["low"], first["high"]) == pytest.approx((0.03, 0.03 - 0.024841, 0.054841), abs=1e-6)
    # Round 2: 0.01 each time. Round 3: -0.1, -0.09, -0.11.
    assert lines["verdict"].tolist() == ["winning", "winning", "not matching"]
    assert verdicts.judged(made_up({"ticket": TICKET}), Rule(tolerance=0.1))["verdict"].tolist() == [
        "winning",
        "winning",
        "?",
    ]
    assert verdicts.judged(made_up({"ticket": TICKET}), Rule("matching"))["verdict"].tolist()[0] == "matching"
    assert verdicts.judged(made_up({"ticket": TICKET}), Rule(confidence=0.999))["verdict"].tolist()[0] == "?"


def test_how_many_would_be_needed():
    rows = made_up({"ticket": [[0.9, 0.91], [0.9, 0.90], [0.9, 0.92]]})
    (line,) = verdicts.judged(rows, Rule(tolerance=0)).to_dict("records")
    # A mean of 0.01 with a deviation of 0.01, which three replicates estimate badly; ten would do if it were known.
    assert (line["verdict"], line["needed"]) == ("?", power.num_needed(0.01, 0.01, 3)) and line["needed"] > 10
    # With a tolerance of 0.002 the distance is 0.012.
    assert verdicts.judged(rows)["needed"].tolist() == [power.num_needed(0.012, 0.01, 3)]
    # A wider interval asks for more.
    two = verdicts.judged(rows, Rule(tolerance=0, confidence=0.975))["needed"]
    assert two.tolist() == [power.num_needed(0.01, 0.01, 3, confidence=0.975)] and two[0] > line["needed"]
    said = sentences_of(rows, Rule(tolerance=0))
    assert f"About {line['needed']:.0f} replicates would show that it is matching" in said[0]
    assert sentences.ADDING in said
    # Of a ticket that is worse by the mean, as many show that it does not match.
    worse = made_up({"ticket": [[0.9, 0.89], [0.9, 0.90], [0.9, 0.88]]})
    (needed,) = verdicts.judged(worse, Rule(tolerance=0))["needed"]
    expected = f"About {needed:.0f} replicates would show that it is not matching, in the test of its own round."
    assert expected in sentences_of(worse, Rule(tolerance=0))[0]
    never = made_up({"ticket": [[0.9, 0.91], [0.9, 0.8901]]})
    assert "2 replicates are too few to decide. The" in sentences_of(never, Rule(tolerance=0))[0]
    assert verdicts.judged(never, Rule(tolerance=0))["needed"].isna().all()
    assert sentences.ADDING not in sentences_of(made_up({"ticket": TICKET}))


def test_a_run_in_progress_gives_what_there_is():
    rows = made_up(
        {"ticket": [[0.9, 0.92, 0.9], [0.9, 0.91], [None, 0.7]], "random_mask": [[None, 0.8], [None, None, 0.1]]}
    )
    found = verdicts.differences(rows)
    assert found[["round", "replicates"]].to_numpy().tolist() == [[1, 2], [2, 1]]
    assert found["mean"].tolist() == pytest.approx([0.015, 0.0])
    control = verdicts.differences(rows, against="random_mask")
    assert control[["round", "replicates"]].to_numpy().tolist() == [[1, 1]] and control["mean"][0] == pytest.approx(
        0.12
    )
    for empty in (rows[:0], made_up({"ticket": [[0.9]]}), made_up({"ticket": [[None, 0.9]]})):
        assert verdicts.differences(empty).empty and verdicts.judged(empty).empty
        assert verdicts.smallest_by_mean(empty) is None
        assert sentences_of(empty) == ["No verdict yet: no pruned round can be compared with dense."]


def test_smallest_densities_with_and_without_a_bound():
    chain = [[0.900, 0.930, 0.911, 0.93, 0.8], [0.910, 0.940, 0.9205, 0.90, 0.81], [0.92, 0.951, 0.9301, 0.91, 0.82]]
    rows = made_up({"ticket": chain})
    shown = verdicts.smallest_shown(verdicts.judged(rows))
    assert shown["round"] == 2 and shown["density"] == pytest.approx(0.64)
    assert verdicts.smallest_by_mean(rows)["round"] == 3
    assert verdicts.smallest_shown(verdicts.judged(made_up({"ticket": chain[:1]}))) is None
    said = sentences_of(rows)
    assert said[0] == "Winning tickets down to 64 % of the weights: there +1.1 points over dense (at least +0.8)."
    assert said[1] == (
        "The table judges each round by itself. In a test of all 4 rounds at once (error 2.5 % for each verdict), the "
        "smallest densities shown are: "
        "winning 64 %, matching 64 %, better than dense 64 %, matching at the end 64 %."
    )
    assert said[2:] == [sentences.ADDING]
    assert sentences_of(rows.query("round < 2"))[1:] == []  # of one round nothing is to be added


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        ([0.80, 0.81, 0.82], verdicts.BETTER),
        ([0.90, 0.95, 0.93], verdicts.CANNOT_TELL),
        ([0.90, 0.89, 0.94], verdicts.CANNOT_TELL),  # though below the ticket's mean
        ([0.909, 0.9195, 0.9301], verdicts.AS_GOOD),
        ([0.98, 0.99, 1.00], verdicts.WORSE),
        ([0.80], verdicts.CANNOT_TELL),
    ],
)
def test_what_a_ticket_is_beside_a_control(control, expected):
    chain = [[0.90, 0.91], [0.91, 0.92], [0.92, 0.93]]
    chains = {"ticket": chain, "random_reinit": [[None, value] for value in control]}
    assert beside(chains, "random_reinit") == {1: expected}
    grid = tables.controls(Judgement(made_up(chains)))
    (row,) = (dict(zip(grid.heads, row, strict=True)) for row in grid.rows)
    assert (row["round"], row["ticket is"]) == ("1", expected)
    assert grid.notes == ["random_reinit tests the initialisation."]


def test_only_controls_of_the_named_round_are_named_and_a_transfer_never():
    rows = made_up(
        {"ticket": TICKET, "random_mask": [[None, None, None, 0.5]] * 3, "transfer-mnist": [[None, 0.5]] * 3}
    )
    said = sentences_of(rows)
    assert "64 % of the weights" in said[0] and "random_mask" not in said[0]
    assert verdicts.judged(rows)["verdict"].tolist() == ["winning", "winning", "not matching"]
    assert [row[:2] for row in tables.controls(Judgement(rows)).rows] == [["random_mask", "3"]]
    assert not [sentence for sentence in said if "transfer" in sentence]


def test_every_round_of_a_control_is_compared():
    control = [[None, 0.92, 0.90, 0.1], [None, 0.94, 0.91, 0.1], [None, 0.95, 0.92, 0.1]]
    chains = {"ticket": TICKET, "untrained": control}
    assert beside(chains, "untrained") == {1: "?", 2: "better", 3: "better"}
    assert tables.controls(Judgement(made_up(chains))).notes == ["untrained tests training."]
    assert set(beside({"ticket": TICKET[:2], "untrained": control[:1]}, "untrained").values()) == {"?"}


def test_the_first_sentence_of_undecided_rounds_is_about_a_ticket_that_keeps_up():
    judgement = Judgement(made_up({"ticket": [[0.9, 0.91, 0.91], [0.9, 0.90, 0.85], [0.9, 0.92, 0.93]]}))
    assert judgement.rounds["verdict"].tolist() == ["?", "?"]
    said = headline(judgement.rows).text
    assert "The sparsest ticket whose mean keeps up with dense has 80 % of the weights, +1.0 points" in said


def test_other_measures():
    rows = made_up({"ticket": TICKET})
    rows["early_stop_step"] = 1000 - 100 * rows["round"] + rows["replicate"]
    found = verdicts.differences(rows, measure="early_stop_step")
    assert found["mean"].tolist() == [-100, -200, -300] and found["low"].tolist() == [-100, -200, -300]


TIMES_THREE = [[None, 0.70, 0.70], [None, 0.71, 0.71], [None, 0.72, 0.72]]


@pytest.mark.parametrize(
    ("chains", "text", "tone"),
    [
        (
            {"ticket": [[0.50, 0.521], [0.60, 0.619], [0.70, 0.723]]},
            "Winning tickets down to 9.1 % of the weights: there +2.1 points over dense (at least +1.6).",
            "good",
        ),
        (
            {"ticket": [[0.9, 0.8995], [0.9, 0.8996], [0.9, 0.8994]]},
            "Winning tickets down to 9.1 % of the weights: there −0.05 points compared with dense (at least −0.07), "
            "within the tolerance of 0.2.",
            "good",
        ),
        (
            {"ticket": [[0.9, 0.9]] * 3},
            "Winning tickets down to 9.1 % of the weights: there as accurate as dense (at least +0.00 points).",
            "good",
        ),
        (
            {"ticket": [[0.9, 0.8], [0.9, 0.81], [0.9, 0.82]]},
            "No winning ticket: every round loses more than 0.2 points to dense. The best has 9.1 % of the weights, "
            "−9.0 points compared with dense (95 % interval −11.5 to −6.5, 3 replicates).",
            "bad",
        ),
        (
            {"ticket": [[0.9, 0.91], [0.9, 0.90], [0.9, 0.92]]},
            "No winning ticket is shown: 3 replicates are too few to decide. The sparsest ticket whose mean keeps up with "
            "dense has 9.1 % of the weights, +1.0 points over dense (95 % interval −1.5 to +3.5, 3 replicates). About 16 "
            "replicates would show that it is matching, in the test of its own round.",
            "open",
        ),
        (
            {"ticket": [[0.9, 0.91], [0.9, 0.85], [0.9, 0.93]]},
            "No winning ticket is shown: 3 replicates are too few to decide. The nearest ticket has 9.1 % of the "
            "weights, −0.3 points compared with dense (95 % interval −10.7 to +10.0, 3 replicates).",
            "open",
        ),
        (
            {"ticket": [[0.9, 0.91], [0.9, 0.89]]},
            "No winning ticket is shown: 2 replicates are too few to decide. The sparsest ticket whose mean keeps up with "
            "dense has 9.1 % of the weights, as accurate as dense (95 % interval −12.7 to +12.7 points, 2 replicates).",
            "open",
        ),
        (
            {"ticket": [[0.9, 0.91], [0.9, 0.91]]},
            "No winning ticket is shown: 2 replicates are too few to decide. The sparsest ticket whose mean keeps "
            "up with dense has 9.1 % of the weights, +1.0 points over dense (in each of 2 replicates).",
            "open",
        ),
        (
            {"ticket": [[0.9, 0.91]]},
            "1 replicate cannot show that a ticket is winning. Here, the sparsest ticket that keeps up with dense has "
            "9.1 % of the weights, +1.0 points over dense.",
            "open",
        ),
        (
            {"ticket": [[0.9, 0.8]]},
            "1 replicate cannot show that a ticket is winning, and here no ticket keeps up with dense. The best has "
            "9.1 % of the weights, −10.0 points compared with dense.",
            "open",
        ),
        ({"ticket": [[0.9]]}, "No verdict yet: no pruned round can be compared with dense.", "open"),
    ],
)
def test_the_headline(chains, text, tone):
    assert headline(made_up(chains, density=0.091)) == (text, tone)


def test_the_headline_names_the_controls():
    chains = {"ticket": [[0.90, 0.93], [0.91, 0.94], [0.92, 0.96]]}
    head = "Winning tickets down to 80 % of the weights: there +3.3 points over dense (at least +1.9)"
    worse = {"random_mask": TIMES_THREE, "random_reinit": TIMES_THREE}
    said = headline(made_up({**chains, **worse})).text
    assert said == f"{head}, and 23.3 points over random_mask, 23.3 over random_reinit."
    same = {"random_mask": [[None, 0.99], [None, 0.93], [None, 0.90]]}
    assert headline(made_up({**chains, **same})).text == f"{head}, but not shown to be better than random_mask."
    more = {"random_reinit": [[None, 0.97], [None, 0.98], [None, 0.99]]}
    said = headline(made_up({**chains, **more, "untrained": TIMES_THREE})).text
    assert said == f"{head}, and 23.3 points over untrained, but not special: random_reinit does as well."
    one = headline(made_up({**chains, "random_mask": TIMES_THREE[:1]})).text
    assert one == f"{head}, but not shown to be better than random_mask."
    # An alternative takes nothing away from the ticket: the table compares the two, the headline does not.
    better = made_up({**chains, "rigl": [[None, 0.97], [None, 0.98], [None, 0.99]]})
    assert headline(better).text == f"{head}." and list(verdicts.judged(better)["special"]) == [""]
    grid = tables.controls(Judgement(better))
    assert grid.rows[0][0] == "rigl" and grid.rows[0][grid.heads.index("ticket is")] == "worse"


def test_the_headline_of_a_run_that_is_not_complete():
    rows = made_up({"ticket": TICKET})
    assert headline(rows, trained=(12, 12)) == headline(rows)
    said = headline(rows, trained=(1200, 5000))
    assert said.text.startswith(
        "With 1,200 of 5,000 networks trained so far, winning tickets down to 64 % of the weights"
    )
    assert said.tone == "good" and sentences_of(rows, trained=(1200, 5000))[0] == said.text


def test_unknown_names_are_refused():
    rows = made_up({"ticket": TICKET, "random_mask": TICKET})
    with pytest.raises(LotteryError, match="Did you mean 'random_mask'"):
        verdicts.differences(rows, against="random_mas")
    with pytest.raises(LotteryError, match="Did you mean 'early_stop_test_accuracy'"):
        verdicts.differences(rows, measure="early_stop_test_acuracy")


@pytest.mark.parametrize(
    ("rewind", "word"),
    [
        ({}, "winning"),
        ({"step": 500}, "matching"),
        ({"mode": "learning_rate"}, "matching"),
        ({"mode": "fine_tune"}, "matching"),
        ({"mode": "sign"}, "matching"),
    ],
)
def test_only_what_starts_from_step_0_can_win(rewind, word):
    experiment = config.Experiment.model_validate({"rewind": rewind})
    rule = verdicts.rule_for(experiment)
    assert (rule.word, rule.margin, rule.last_step) == (word, experiment.train.eval_every, experiment.train.num_steps)
    said = sentences_of(made_up({"ticket": TICKET}), dataclasses.replace(rule, margin=0))
    assert said[0].startswith(f"{word.capitalize()} tickets down to 64 % of the weights: there +1.0 points over dense")
    lines = verdicts.judged(made_up({"ticket": TICKET}), dataclasses.replace(rule, margin=0))
    assert lines["verdict"].tolist() == [word, word, "not matching"]
    assert ("winning" in said[1]) == (lines["early_stop"] != "").all() == (word == "winning")
    assert ("not called winning because they do not start from the weights of step 0" in said[0]) == (word != "winning")


def test_without_an_accuracy_the_sentence_says_so():
    rows = made_up({"ticket": TICKET})
    unknown = rows.assign(early_stop_test_accuracy=np.nan, early_stop_test_loss=np.nan)
    assert metric_of(unknown) == ACCURACY
    assert sentences_of(unknown) == ["The model measures no accuracy, so no ticket can be compared with dense."]


def as_losses(rows, unit=1.0):
    """The same rows with losses in place of accuracies: those of dense have the mean `unit`, and gains are the same."""
    dense = rows[(rows["branch"] == "ticket") & (rows["round"] == 0)]
    found = rows.copy()
    for when in ("early_stop", "budget", "final"):
        values = rows[f"{when}_test_accuracy"]
        found[f"{when}_test_loss"] = unit * (1 + dense[f"{when}_test_accuracy"].mean() - values)
        found[f"{when}_test_accuracy"] = np.nan
    return found


def on_losses(rule):
    return dataclasses.replace(rule, metric=LOSS)


@given(accuracies, tolerances, st.sampled_from([1e-6, 1.0, 3e5]))
@settings(max_examples=15)
def test_a_verdict_on_losses_is_that_on_gains_whatever_the_unit(chain, tolerance, unit):
    control = [[None, *values[2:], 0.5] for values in chain]
    rows = made_up({"ticket": chain, "random_mask": control})
    spread = np.array([np.ptp([values[index] - values[0] for values in chain]) > 1e-4 for index in ROUNDS])
    assume(spread.any())
    losses, rule = as_losses(rows, unit), Rule(tolerance=tolerance)
    assert (metric_of(rows), metric_of(losses)) == (ACCURACY, LOSS)
    expected, found = verdicts.judged(rows, rule), verdicts.judged(losses, on_losses(rule))
    words = ["verdict", "final_verdict", "early_stop", "special", "as_good"]
    near = (expected[["low", "high", "final_low", "final_high"]] + tolerance).abs().min(axis=1) < 1e-6
    pd.testing.assert_frame_equal(found[spread & ~near][words], expected[spread & ~near][words])
    numbers = ["mean", "low", "high", "std", "final_mean", "matching_p"]
    of_gains, of_losses = (lines[spread][numbers].astype(float) for lines in (expected, found))
    np.testing.assert_allclose(of_losses, of_gains, atol=1e-8, rtol=1e-5)


def test_losses_below_zero_have_a_minus_sign_as_all_numbers_of_a_table():
    shown = [LOSS.value(value) for value in (-0.76375, -20_500.0, 0.5)]
    assert shown == ["−0.7638", "−20,500", "0.5000"] and are_numbers(shown)


def test_a_lower_loss_is_better_in_words():
    losses = as_losses(made_up({"ticket": TICKET, "random_reinit": [[None, 0.5]] * 3}), 0.2)
    rule = verdicts.rule_for(config.Experiment(), metric=LOSS)
    assert (rule.tolerance, verdicts.rule_for(config.Experiment(), 0.1, metric=LOSS).tolerance) == (0.02, 0.1)
    first, *others = sentences_of(losses, dataclasses.replace(rule, margin=0))
    assert first == (
        "Winning tickets down to 64 % of the weights: there a test loss 1.00 % below the loss of dense (at most −1.00 %)."
    )
    assert len(others) == 1
    beside = as_losses(made_up({"ticket": TICKET, "random_mask": [[None, None, -8.0]] * 3}))
    assert headline(beside, rule).text.endswith(", and 892 % of the dense loss below random_mask.")
    controls = tables.controls(Judgement(losses, rule))
    assert "in per cent of the dense loss" in controls.key["ticket − branch"]
    assert controls.rows[0][controls.heads.index("ticket is")] == "better"
    grown = {name: losses[name] * (1 + losses["round"]) for name in (LOSS.early_stop, LOSS.budget, LOSS.final)}
    worse = losses.assign(**grown)
    text, tone = headline(worse, rule)
    assert text.startswith(
        "No winning ticket: the loss of every round is more than 2 % above the loss of dense. The best has "
    )
    assert tone == text_tables.BAD
    alone = headline(worse[worse["replicate"] == 1], rule).text
    assert "here no ticket keeps up with dense. The best has 80 % of the weights, with a test loss 9" in alone


def test_a_dense_loss_of_zero_gives_no_verdict_and_the_sentence_says_why():
    rows = made_up({"ticket": TICKET})
    zeros = rows.assign(**dict.fromkeys((ACCURACY.early_stop, ACCURACY.budget, ACCURACY.final), np.nan))
    said = headline(zeros.assign(early_stop_test_loss=rows["round"] / 10), on_losses(verdicts.DEFAULT))
    assert said.text.startswith("No verdict: the mean test loss of the dense networks is 0, so no loss ")


def test_test_examples_of_one_class_give_no_verdict():
    said = sentences.headline(Judgement(made_up({"ticket": TICKET}), most_frequent=1.0))
    assert said.text.startswith("No verdict: all test examples have the same class, ") and said.tone == text_tables.BAD


def test_the_smallest_matching_ticket_of_losses():
    losses = as_losses(made_up({"ticket": [[0.9, 0.91, 0.89, 0.5]] * 2}), 0.2)
    found = verdicts.smallest_by_mean(losses)
    assert found["round"] == 2 and found["difference"] == pytest.approx(0.2 * 0.01)
    assert verdicts.smallest_by_mean(losses, 0)["round"] == 1


def test_the_density_of_a_difference_is_that_of_the_tickets_in_its_pairs():
    rows = made_up({"ticket": [[0.9, 0.8]] * 3, "random_mask": [[None, 0.7], [None, None], [None, 0.6]]})
    pruned = rows["round"] == 1
    rows.loc[pruned, "density"] = rows.loc[pruned, "replicate"] / 10  # as where whole units are pruned
    assert verdicts.differences(rows, against="random_mask")["density"].tolist() == [pytest.approx(0.2)]
    rows = rows[(rows["branch"] == "ticket") | (rows["replicate"] == 3)]
    assert verdicts.differences(rows, against="random_mask")["density"].tolist() == [pytest.approx(0.3)]


def test_the_key_counts_the_replicates_of_verdicts_and_not_those_of_which_only_dense_is_there():
    rows = made_up({"ticket": [[0.9, 0.95], [0.9, 0.8], [0.9, None]]})
    key = tables.rounds(Judgement(rows, Rule(last_step=9)), results.summary(rows)).key
    assert key["?"].startswith("2 replicates are too few to decide")
    assert "2 replicates are too few to decide" in headline(rows).text


def test_equal_differences_have_no_interval_and_tell_nothing():
    rows = made_up({"ticket": [[0.9, 0.8], [0.9, 0.8]], "random_mask": [[None, 0.7], [None, 0.7]]})
    grid = tables.controls(Judgement(rows))
    (row,) = (dict(zip(grid.heads, row, strict=True)) for row in grid.rows)
    assert (row["ticket − branch"], row["ticket is"]) == ("+10.00", "?") and "95 % from" not in row


def with_steps(rows, steps):
    """Put early-stop steps into a table, by replicate and round."""
    tickets = rows["branch"] == "ticket"
    found = [steps[line.replicate - 1][line.round] for line in rows[tickets].itertuples()]
    return rows.assign(early_stop_step=0.0).assign(
        early_stop_step=lambda table: table["early_stop_step"].mask(
            tickets, pd.Series(found, index=rows.index[tickets])
        )
    )


BETTER = [[0.900, 0.930], [0.910, 0.941], [0.920, 0.951], [0.930, 0.960]]


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([(1000, 700), (1000, 800), (1100, 800), (900, 700)], "no later"),
        ([(1000, 1000), (1000, 1000), (1000, 1000), (1000, 1000)], "no later"),
        ([(1000, 1700), (1000, 1600), (1100, 1800), (900, 1700)], "later"),
        ([(1000, 700), (1000, 1800), (1100, 800), (900, 1200)], "?"),
        # Censored: the ticket's stop may be later than the last step, and that of dense too.
        ([(2000, 700), (2000, 2000), (2000, 800), (2000, 700)], "?"),
        ([(2000, 2000), (2000, 2000), (2000, 2000), (2000, 2000)], "?"),
        ([(1000, 2000), (1000, 2000), (1100, 2000), (900, 2000)], "later"),
    ],
)
def test_the_letter_of_the_paper_is_a_column_and_no_part_of_the_verdict(steps, told):
    rows = with_steps(made_up({"ticket": BETTER}), steps)
    rule = Rule(margin=100, last_step=2000)
    (line,) = verdicts.judged(rows, rule).to_dict("records")
    assert (line["early_stop"], line["verdict"]) == (told, "winning")
    pairs = [ticket - dense for dense, ticket in steps]
    assert line["step_mean"] == np.mean(pairs)
    # A rule for other rewinding does not look at steps.
    (line,) = verdicts.judged(rows, dataclasses.replace(rule, word="matching")).to_dict("records")
    assert (line["early_stop"], line["verdict"]) == ("", "matching") and math.isnan(line["winning_p"])


@pytest.mark.parametrize(
    ("within", "verdict", "word"),
    [
        ([0.025, 0.026, 0.024, 0.027], "winning", "Winning"),
        ([-0.001, -0.0012, -0.0009, -0.0011], "winning", "Winning"),
        ([-0.02, -0.021, -0.019, -0.022], "matching", "Matching"),
        ([0.02, -0.021, 0.019, -0.022], "matching", "Matching"),
        ([None] * 4, "matching", "Matching"),  # an earlier version stored it
    ],
)
def test_winning_is_matching_within_the_budget(within, verdict, word):
    rows = made_up({"ticket": BETTER})
    for replicate, gain in enumerate(within, 1):
        place = (rows["replicate"] == replicate) & (rows["round"] == 1)
        rows.loc[place, "budget_test_accuracy"] = math.nan if gain is None else BETTER[replicate - 1][0] + gain
    (line,) = verdicts.judged(rows).to_dict("records")
    assert line["verdict"] == verdict
    text = headline(rows).text
    assert text.startswith(f"{word} tickets down to 80 %") and ("within its steps is not shown" in text) == (
        verdict == "matching"
    )
    if None not in within:
        ends = stats.ttest_1samp(within, 0).confidence_interval()
        assert (line["budget_low"], line["budget_high"]) == pytest.approx((ends.low, ends.high))
        assert line["winning_p"] == pytest.approx(stats.ttest_1samp(within, -0.002, alternative="greater").pvalue, 1e-3)
        assert line["better_p"] == pytest.approx(stats.ttest_1samp(within, 0, alternative="greater").pvalue)


def test_the_speed_is_the_mean_share_of_the_dense_networks_steps():
    rows = made_up({"ticket": BETTER})
    steps = {(1, 0): 1000, (2, 0): 1000, (3, 0): 2000, (4, 0): 500, (1, 1): 500, (2, 1): 700, (3, 1): 800, (4, 1): 400}
    rows["dense_loss_step"] = [steps[line.replicate, line.round] for line in rows.itertuples()]
    assert verdicts.judged(rows)["speed"].tolist() == pytest.approx([(0.5 + 0.7 + 0.4 + 0.8) / 4])
    assert "in 0.6 of the steps of dense" in headline(rows).text
    slow = rows.assign(dense_loss_step=rows["round"].map({0: 1, 1: 1234}))
    assert "in 1,234 times the steps of dense" in headline(slow).text
    rows.loc[(rows["replicate"] == 2) & (rows["round"] == 1), "dense_loss_step"] = math.nan  # it never gets there
    assert verdicts.judged(rows)["speed"].isna().all() and "the steps of dense" not in headline(rows).text


def test_the_bound_of_the_headline_is_that_of_all_rounds_at_once():
    rng = np.random.default_rng(3)
    chains = [[value, *(value + 0.02 + rng.normal(0, 0.003, 4))] for value in rng.normal(0.9, 0.01, 5)]
    rows = made_up({"ticket": chains})
    judgement = Judgement(rows)
    line = judgement.shown["winning"]
    pairs = [chain[line["round"]] - chain[0] for chain in chains]
    ends = stats.ttest_1samp(pairs, 0).confidence_interval(1 - 0.05 / 4)
    assert verdicts.lower_bound(judgement, line) == pytest.approx(ends.low)
    assert f"(at least {100 * ends.low:+.1f})" in headline(rows).text


def test_tickets_as_good_as_dense_are_not_better():
    rows = made_up({"ticket": [[1.0, 1.0, 1.0]] * 3})
    judgement = Judgement(rows)
    assert judgement.shown["winning"]["round"] == 2 and judgement.shown["better than dense"] is None
    assert "better than dense none" in " ".join(sentences.of(judgement))


@pytest.mark.parametrize(("lost", "verdict"), [(1, "winning"), (2, "not matching")])
def test_a_loss_of_just_the_tolerance_is_within_it_whatever_single_precision_makes_of_it(lost, verdict):
    chains = [
        [float(np.float32(number) / np.float32(500)) for number in (right, right - lost)] for right in range(300, 500)
    ]
    furthest = sorted(chains, key=lambda chain: chain[1] - chain[0])
    for chain in [*furthest[:5], *furthest[-5:]]:
        assert verdicts.judged(made_up({"ticket": [chain] * 3}))["verdict"].tolist() == [verdict], chain


def test_losses_of_other_branches_are_no_measure_of_what_is_equal():
    rng = np.random.default_rng(3)
    rows = made_up({"ticket": [[0.01, 0.01 * (1.02 + rng.normal(0, 0.02))] for _ in range(4)]})
    rows["early_stop_test_loss"], rows["early_stop_test_accuracy"] = rows["early_stop_test_accuracy"], math.nan
    far = rows.assign(branch="transfer-far", early_stop_test_loss=1e5)
    (alone,), (beside,) = (verdicts.differences(each).to_dict("records") for each in (rows, pd.concat([rows, far])))
    assert alone == beside and alone["low"] < alone["mean"] < alone["high"]


def test_where_only_matching_is_shown_the_bound_is_of_the_early_stop_and_not_of_the_budget():
    rng = np.random.default_rng(3)
    gains = 0.002 + rng.normal(0, 0.0005, (5, 8))
    rows = made_up({"ticket": [[0.9, *(0.9 + row)] for row in gains]})
    # Within the budget the last round is winning by itself, with p = 0.01, and the rounds before it are not.
    budget = rng.normal(-0.01, 0.02, (5, 8))
    budget[:, 7] = 0.00135 + 0.002 * np.array([-1.26, -0.63, 0, 0.63, 1.26])
    for (replicate, number), gain in np.ndenumerate(budget):
        place = (rows["replicate"] == replicate + 1) & (rows["round"] == number + 1)
        rows.loc[place, "budget_test_accuracy"] = 0.9 + gain
    judgement = Judgement(rows)
    shown = judgement.shown["matching"]
    assert judgement.shown["winning"] is None and shown["verdict"] == "winning" and shown["round"] == 8
    ends = stats.ttest_1samp(gains[:, 7], 0).confidence_interval(1 - 0.05 / 8)
    assert verdicts.lower_bound(judgement, shown) == pytest.approx(ends.low)
    text = headline(rows).text
    assert text.startswith("Matching tickets down to 16.8 % of the weights") and "within its steps is not shown" in text
    named = sentences._clearest(judgement, shown)
    assert f"{100 * named['mean']:+.2f} points over dense" in text
    assert f"(at least {100 * verdicts.lower_bound(judgement, named):+.2f})" in text


def test_a_ticket_that_is_winning_by_itself_is_named_with_the_interval_of_its_budget():
    rows = made_up({"ticket": [[0.9, 0.9 + gain] for gain in (-0.004, 0.002, -0.006, 0.001, -0.005)]})
    budget = [0.003, 0.004, 0.0035, 0.0028, 0.0031]
    rows.loc[rows["round"] == 1, "budget_test_accuracy"] = [0.9 + gain for gain in budget]
    rounds = Judgement(rows).rounds
    assert rounds["verdict"].tolist() == ["winning"]
    text = sentences._nearest(rounds, verdicts.DEFAULT).text
    ends = stats.ttest_1samp(budget, 0).confidence_interval()
    assert f"{100 * np.mean(budget):+.2f} points over dense" in text
    assert f"{100 * ends.low:+.2f} to {100 * ends.high:+.2f}" in text


def test_a_round_that_is_winning_needs_no_more_replicates():
    rows = made_up({"ticket": [[0.9, 0.901], [0.9, 0.905], [0.9, 0.897]]})
    assert verdicts.judged(rows)["needed"].notna().all()
    rows.loc[rows["round"] == 1, "budget_test_accuracy"] = [0.92, 0.921, 0.922]
    (line,) = verdicts.judged(rows).to_dict("records")
    assert line["verdict"] == "winning" and line["low"] < -0.002 and math.isnan(line["needed"])


def test_the_speed_of_a_round_is_of_the_replicates_that_have_it():
    rows = made_up({"ticket": [[0.9, 0.9, 0.9], [0.9, 0.9]]})
    rows["dense_loss_step"] = [1000, 500, 400, 1000, 700]
    assert verdicts.judged(rows)["speed"].tolist() == pytest.approx([0.6, 0.4])


def test_several_controls_do_not_make_it_likelier_that_some_control_does_as_well():
    # A control whose interval ends just within the tolerance: alone it does as well, beside three more nobody knows.
    gains = np.array([-0.004, 0.0, 0.004, 0.0])
    ends = stats.ttest_1samp(gains, 0).confidence_interval()
    control = [value[1] - gain - 0.0019 + ends.high for value, gain in zip(BETTER, gains, strict=True)]
    chains = {"ticket": BETTER, "random_mask": [[None, value] for value in control]}
    assert verdicts.judged(made_up(chains))["special"].tolist() == ["no"]
    worse = {name: [[None, 0.5]] * 4 for name in ("random_reinit", "random_erk", "untrained")}
    assert verdicts.judged(made_up(chains | worse))["special"].tolist() == ["?"]


def test_no_later_is_a_t_interval_below_one_evaluation():
    later = [-150, 50, -100, 0]
    rows = with_steps(made_up({"ticket": BETTER}), [(1000, 1000 + one) for one in later])
    (line,) = verdicts.judged(rows, Rule(margin=50)).to_dict("records")
    ends = stats.ttest_1samp(later, 0).confidence_interval()
    assert (line["step_low"], line["step_high"]) == pytest.approx((ends.low, ends.high))
    assert line["early_stop"] == "?" and ends.high > 50
    (line,) = verdicts.judged(rows, Rule(margin=100)).to_dict("records")
    assert line["early_stop"] == "no later"


def test_both_times_stand_side_by_side():
    rows = made_up({"ticket": BETTER})
    ends = {1: 0.85, 2: 0.86, 3: 0.865, 4: 0.88}
    lower = rows.assign(
        final_test_accuracy=rows["final_test_accuracy"].where(rows["round"] == 0, rows["replicate"].map(ends))
    )
    (line,) = verdicts.judged(lower).to_dict("records")
    pairs = [ends[one] - BETTER[one - 1][0] for one in ends]
    assert line["verdict"] == "winning" and line["final_verdict"] == "not matching"
    assert line["final_mean"] == pytest.approx(np.mean(pairs))
    interval = stats.ttest_1samp(pairs, 0).confidence_interval()
    assert (line["final_low"], line["final_high"]) == pytest.approx((interval.low, interval.high))
    assert "At the end of training the ticket does not match dense: −5.1 points" in headline(lower).text
    assert "At the end of training" not in headline(rows).text
    swapped = lower.assign(
        early_stop_test_accuracy=lower["final_test_accuracy"],
        budget_test_accuracy=lower["final_test_accuracy"],
        final_test_accuracy=lower["early_stop_test_accuracy"],
    )
    head = headline(swapped)
    assert (
        head.tone == "open"
        and "At the end of training the ticket with 80 % of the weights matches dense: +3.0" in head.text
    )


@pytest.mark.parametrize(
    ("control", "special", "as_good"),
    [
        ([0.80, 0.81, 0.82, 0.83], "yes", ""),
        ([0.931, 0.9405, 0.9515, 0.9605], "no", "random_mask"),
        ([0.90, 0.95, 0.93, 0.98], "?", ""),
        ([0.80], "?", ""),
    ],
)
def test_a_ticket_is_not_special_where_a_control_does_as_well(control, special, as_good):
    chains = {"ticket": BETTER, "random_mask": [[None, one] for one in control]}
    (line,) = verdicts.judged(made_up(chains)).to_dict("records")
    assert (line["special"], line["as_good"]) == (special, as_good)
    head = headline(made_up(chains))
    assert ("not special: random_mask does as well" in head.text) == (special == "no") == (head.tone == "open")
    # Another control that does worse does not help; branches that are no controls do not count.
    more = {**chains, "random_reinit": [[None, 0.5]] * 4, "transfer-digits": [[None, 0.99]] * 4}
    assert verdicts.judged(made_up(more))["special"].tolist() == [special]


def test_what_holds_for_a_round_need_not_hold_for_all_at_once():
    good, noise = [0.93, 0.95, 0.945], [0.90, 0.95, 0.89]
    chains = [[0.90 + 0.01 * place, good[place], *[noise[place]] * 8] for place in range(3)]
    rows = made_up({"ticket": chains})
    lines = verdicts.judged(rows)
    assert lines["verdict"].tolist()[0] == "winning" and lines["matching_p"][0] > 0.025 / 9
    assert verdicts.smallest_shown(lines) is None
    head = headline(rows)
    assert head.tone == "open" and "3 replicates are too few to decide for all 9 rounds at once" in head.text
    assert "The sparsest ticket that is winning in the test of its own round has 80 % of the weights" in head.text


def test_another_confidence_gives_other_intervals():
    experiment = config.Experiment()
    rule, other = verdicts.rule_for(experiment), Rule(confidence=0.9875)
    assert rule.confidence == 0.95 and other.level == pytest.approx(0.025 / 4)
    rows = made_up({"ticket": TICKET})
    widths = [verdicts.judged(rows, each).eval("high - low")[0] for each in (rule, other)]
    assert widths[1] > 1.9 * widths[0]
