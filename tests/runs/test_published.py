import itertools
import re
from fractions import Fraction

import pandas as pd
import pytest

from lottery import config
from lottery.errors import LotteryError
from lottery.runs import published, results

# Sizes and rates of every layer, from the table of the paper's networks.
LENET = [(784 * 300, "1/5"), (300 * 100, "1/5"), (100 * 10, "1/10")]
CONV_2 = [(27 * 64, "1/10"), (576 * 64, "1/10"), (16384 * 256, "1/5"), (65536, "1/5"), (2560, "1/10")]
CONV_4 = [(27 * 64, "1/10"), (576 * 64, "1/10"), (576 * 128, "1/10"), (1152 * 128, "1/10"), (8192 * 256, "1/5"), (65536, "1/5"), (2560, "1/10")]  # fmt: skip
CONV_6 = [
    *((size, "3/20") for size in (27 * 64, 576 * 64, 576 * 128, 1152 * 128, 1152 * 256, 2304 * 256)),
    (4096 * 256, "1/5"), (65536, "1/5"), (2560, "1/10"),
]  # fmt: skip
RESNET_3X3 = 432 + 6 * 2304 + 4608 + 5 * 9216 + 18432 + 5 * 36864
VGG = [3, 64, 64, 128, 128, *[256] * 4, *[512] * 8]
VGG_3X3 = sum(9 * before * after for before, after in itertools.pairwise(VGG))
GROUPS = {
    "lenet-mnist": (LENET, 0),
    "lenet-mnist-one-shot": (LENET, 0),
    "conv-2-cifar10": (CONV_2, 0),
    "conv-4-cifar10": (CONV_4, 0),
    "conv-6-cifar10": (CONV_6, 0),
    "resnet-20-cifar10": ([(RESNET_3X3 + 512 + 2048, "1/5")], 640),
    "vgg-19-cifar10": ([(VGG_3X3, "1/5")], 5120),
}
DENSE = {"lenet-mnist": 0.9752, "resnet-20-cifar10": 0.9050}
CONTROLS = {"random_reinit": 0.011, "random_mask": 0.03}
ALL = [(name, claim.text) for name, protocol in published.PROTOCOLS.items() for claim in protocol.claims]


def totals(groups, held, num_rounds=20):
    """Survivors, by integers alone: twice the share to be pruned decides which way a half goes."""
    left, found = [(size, Fraction(rate)) for size, rate in groups], []
    for _ in range(num_rounds + 1):
        found.append(sum(size for size, _ in left) + held)
        left = [(size - _half_to_even(size * rate), rate) for size, rate in left]
    return found


def _half_to_even(share):
    whole, rest = divmod(share.numerator, share.denominator)
    return whole + (2 * rest > share.denominator or (2 * rest == share.denominator and whole % 2))


def as_published(name, num_replicates=3):
    """A frame of which every claim of a protocol is true."""
    kept = totals(*GROUPS[name], 21)
    dense, rows = DENSE.get(name, 0.75), []
    gain = 0.035 if name.startswith("conv") else 0.006
    for replicate in range(1, num_replicates + 1):
        for index, count in enumerate(kept):
            density = count / kept[0]
            up = 0.0 if not index else gain if density > 0.05 or name.startswith(("conv", "vgg")) else 0.001
            if name.startswith("resnet"):
                up = 0.0
            networks = {"ticket": up} | ({branch: up - less for branch, less in CONTROLS.items()} if index else {})
            for branch, more in networks.items():
                step = 9000 if not index else 2500 if branch == "ticket" else 8000
                row = {"replicate": replicate, "branch": branch, "round": index, "density": density, "num_kept": count}
                row |= {"early_stop_step": step, "early_stop_test_accuracy": dense + more + 0.0002 * replicate}
                rows.append(dict.fromkeys(results.COLUMNS, 0.0) | row)
    return pd.DataFrame(rows, columns=list(results.COLUMNS))


def moved(rows, column, by, branch="ticket", only=lambda rows: rows["round"] > 0):
    """A copy in which a column of some rows is another."""
    chosen = (rows["branch"] == branch) & only(rows)
    assert chosen.any()
    broken = rows.copy()
    broken.loc[chosen, column] = broken.loc[chosen, column] + by
    return broken


ACCURACY, STEP = "early_stop_test_accuracy", "early_stop_step"


def broken(text, rows):
    """A frame in which one claim, known by its text, is not true, though it nearly is."""
    rounds = [int(number) for number in re.findall(r"round (\d+)", text)]
    first, last = (rounds or [9])[0], (rounds or [9])[-1]

    def at(rows):
        return rows["round"] == last

    if text.startswith("survivors"):
        return moved(rows, "num_kept", 1, only=lambda rows: (rows["round"] == 4) & (rows["replicate"] == 2))
    if text.startswith("test accuracy"):
        return moved(rows, ACCURACY, -0.012, only=lambda rows: rows["round"] == (0 if "dense" in text else last))
    if "random_reinit to ticket" in text:
        return moved(rows, STEP, -5000, branch="random_reinit", only=lambda rows: rows["round"] == 7)
    if text.startswith("early stop before"):
        return moved(rows, STEP, 6500, only=lambda rows: (rows["round"] == 7) & (rows["replicate"] == 2))
    if text.startswith("early stop, dense to ticket"):
        return moved(rows, STEP, 5500, only=at)
    if text.startswith("early stop, density"):
        return moved(rows, STEP, 6500, only=lambda rows: rows["density"].between(0.3, 0.35))
    if "random_" in text:
        branch = re.search("random_[a-z]+", text)[0]
        return moved(rows, ACCURACY, 0.017 if branch == "random_mask" else 0.01, branch=branch, only=at)
    if "rounds 5 to 12" in text:
        return moved(rows, ACCURACY, -0.0061, only=lambda rows: rows["round"] == 12)
    if "density" in text:
        return moved(rows, ACCURACY, -0.04, only=lambda rows: rows["density"].between(0.05, 0.08))
    return moved(rows, ACCURACY, {15: -0.005, 9: -0.005, 6: -0.006}.get(first, -0.016), only=at)


def verdict(name, text, rows):
    (line,) = [line for line in published.checked(rows, published.PROTOCOLS[name]) if line["claim"] == text]
    return line["verdict"]


def test_ladders_are_the_papers_and_come_out_of_the_layers():
    printed = {0: 266200, 1: 213060, 2: 170538, 3: 136511, 5: 87490, 7: 56094, 9: 35981, 12: 18506, 15: 9537, 16: 7650, 18: 4928, 20: 3179}  # fmt: skip
    assert {index: totals(LENET, 0)[index] for index in printed} == printed
    assert [totals(groups, held)[0] for groups, held in GROUPS.values()] == [
        266200, 266200, 4300992, 2425024, 2261184, 270896, 20024000,
    ]  # fmt: skip
    for groups, held in GROUPS.values():
        assert published.survivors([(size, float(Fraction(rate))) for size, rate in groups], 20, held) == totals(
            groups, held
        )
    # The densities at which the paper says what it found, of the rounds at which it is looked for.
    for name, index, left in [("conv-2-cifar10", 14, 4.6), ("conv-2-cifar10", 11, 8.8), ("conv-4-cifar10", 11, 11.1), ("conv-4-cifar10", 12, 9.2)]:  # fmt: skip
        kept = totals(*GROUPS[name])
        assert round(100 * kept[index] / kept[0], 1) == left
    kept = totals([(RESNET_3X3, "1/5")], 640 + 512 + 2048)
    assert round(100 * kept[6] / kept[0], 1) == 27.1


@pytest.mark.parametrize("name", published.PROTOCOLS)
def test_what_was_published_passes(name):
    lines = published.checked(as_published(name), published.PROTOCOLS[name])
    assert [line["claim"] for line in lines if line["verdict"] != "pass"] == []
    assert len({line["claim"] for line in lines}) == len(lines) >= 2
    assert all(re.search(r".+ \(.+\)", line["published"]) and line["measured"] for line in lines)


@pytest.mark.parametrize(("name", "text"), ALL)
def test_every_claim_can_fail(name, text):
    rows = as_published(name)
    assert verdict(name, text, broken(text, rows)) == "fail"
    # In whichever order the rows are.
    assert verdict(name, text, broken(text, rows).sample(frac=1, random_state=3)) == "fail"


@pytest.mark.parametrize(("name", "text"), ALL)
def test_every_claim_is_open_where_the_rows_are_not_there(name, text):
    rows = as_published(name)
    none = published.checked(rows[:0], published.PROTOCOLS[name])
    assert {line["verdict"] for line in none} == {"open"}
    assert all(line["measured"].startswith("not in this run: ") for line in none)
    begun = rows[(rows["branch"] == "ticket") & (rows["round"] < 5)]
    expected = "pass" if text == "test accuracy, dense" else "open"
    assert verdict(name, text, begun) == expected


def test_a_round_that_fails_fails_however_many_are_missing():
    rows = as_published("lenet-mnist")
    text = "ticket − dense, rounds 5 to 12"
    begun = rows[rows["round"] <= 7]
    assert verdict("lenet-mnist", text, begun) == "open"
    assert verdict("lenet-mnist", text, moved(begun, ACCURACY, -0.007, only=lambda rows: rows["round"] == 6)) == "fail"
    without = rows[rows["branch"] != "random_mask"]
    lines = published.checked(without, published.PROTOCOLS["lenet-mnist"])
    assert [line["measured"] for line in lines if line["verdict"] == "open"] == [
        "not in this run: random_mask, round 15"
    ]


def test_what_is_measured_is_said():
    lines = {line["claim"]: line["measured"] for line in published.checked(as_published("lenet-mnist"), published.PROTOCOLS["lenet-mnist"])}  # fmt: skip
    assert lines["test accuracy, dense"] == "0.9756"
    assert lines["ticket − dense, round 15 (3.6 %)"] == "+0.0010"
    assert lines["ticket − random_mask, round 15"] == "+0.0300"
    assert lines["early stop, dense to ticket, round 7"] == "3.60 times (2,500 and 9,000)"
    assert lines["early stop before dense, round 7"] == "in 3 of 3"
    wrong = broken("survivors", as_published("lenet-mnist"))
    assert (
        published.checked(wrong, published.PROTOCOLS["lenet-mnist"])[0]["measured"]
        == "round 4: 109,282 and 109,283, not 109,282"
    )


def test_both_readings_of_the_residual_network_pass_and_a_mixture_does_not():
    rows = as_published("resnet-20-cifar10")
    other = rows.copy()
    other["num_kept"] = other["round"].map(dict(enumerate(totals([(RESNET_3X3, "1/5")], 3200, 21))))
    mixed = rows.copy()
    mixed.loc[mixed["replicate"] == 1, "num_kept"] = other["num_kept"]
    text = "survivors of every round"
    assert [verdict("resnet-20-cifar10", text, one) for one in (rows, other, mixed)] == ["pass", "pass", "fail"]


def test_the_published_settings_are_an_experiments():
    """Each protocol's own settings make an experiment that differs in nothing, and another value of each is said."""
    for name, protocol in published.PROTOCOLS.items():
        sections = {"name": name}
        for key, value in protocol.settings.items():
            section, _, rest = key.partition(".")
            sections.setdefault(section, {})[rest] = value
        experiment = config.Experiment.model_validate(sections)
        assert published.differing(experiment, protocol) == []
        other = sections | {"train": sections["train"] | {"num_steps": 29_000}, "run": {"num_replicates": 2}}
        assert sorted(published.differing(config.Experiment.model_validate(other), protocol)) == [
            "Differs: run.num_replicates is 2, published 5.",
            f"Differs: train.num_steps is 29000, published {protocol.settings['train.num_steps']}.",
        ]
        read = config.Experiment.model_validate(sections | {"data": sections["data"] | {"path": "a.npz"}})
        assert published.differing(read, protocol) == ["The data were read from 'a.npz'."]


def test_a_run_is_compared_by_its_name(small_run, tmp_path, monkeypatch):
    with pytest.raises(LotteryError, match="received 'small', allowed is 'lenet-mnist'") as caught:
        published.compare(small_run.path)
    assert all(repr(name) in str(caught.value) for name in published.PROTOCOLS)
    monkeypatch.setitem(published.PROTOCOLS, "small", published.PROTOCOLS["lenet-mnist"])
    lines, notes = published.compare(small_run.path)
    assert lines[0]["verdict"] == "fail" and "50,200" in lines[0]["measured"]
    assert "1803.03635" in notes[0] and notes[-1].startswith("The paper leaves open: how pixels are scaled")
    assert "Differs: train.num_steps is 110, published 50000." in notes


def test_exit_statuses(small_run, monkeypatch, capsys):
    from typer.testing import CliRunner

    from lottery import cli

    def check():
        return CliRunner().invoke(cli.app, ["check", str(small_run.path)])

    done = check()
    assert isinstance(done.exception, LotteryError)  # which the command line prints, with status 2
    protocol = published.PROTOCOLS["lenet-mnist"]
    monkeypatch.setitem(published.PROTOCOLS, "small", protocol)
    done = check()
    assert done.exit_code == 1 and re.search(r"survivors.* fail", done.output) and "Differs: " in done.output
    monkeypatch.setitem(published.PROTOCOLS, "small", published.Protocol("", {}, (), ("nothing",)))
    done = check()
    assert done.exit_code == 0 and "The paper leaves open: nothing." in done.output
