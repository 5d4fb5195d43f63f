import itertools
import json
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lottery import config
from lottery.errors import LotteryError
from lottery.pipeline import presets
from lottery.statistics import claims, intervals, published, results, tables, verdicts

# Sizes and rates of every layer, from the table of the paper's networks.
LENET = [(784 * 300, "1/5"), (300 * 100, "1/5"), (100 * 10, "1/10")]
CONV_2 = [(27 * 64, "1/10"), (576 * 64, "1/10"), (16384 * 256, "1/5"), (65536, "1/5"), (2560, "1/10")]
CONV_4 = [(27 * 64, "1/10"), (576 * 64, "1/10"), (576 * 128, "1/10"), (1152 * 128, "1/10"), (8192 * 256, "1/5"), (65536, "1/5"), (2560, "1/10")]  # fmt: skip
CONV_6 = [
    *((size, "3/20") for size in (27 * 64, 576 * 64, 576 * 128, 1152 * 128, 1152 * 256, 2304 * 256)),
    (4096 * 256, "1/5"), (65536, "1/5"), (2560, "1/10"),
]  # fmt: skip
RESNET_3X3 = 432 + 6 * 2304 + 4608 + 5 * 9216 + 18432 + 5 * 36864
RESNET_HELD = 2560 + 640  # shortcuts and output layer
VGG = [3, 64, 64, 128, 128, *[256] * 4, *[512] * 8]
VGG_3X3 = sum(9 * before * after for before, after in itertools.pairwise(VGG))
GROUPS = {
    "lenet-mnist": (LENET, 0),
    "lenet-mnist-one-shot": (LENET, 0),
    "conv-2-cifar10": (CONV_2, 0),
    "conv-4-cifar10": (CONV_4, 0),
    "conv-6-cifar10": (CONV_6, 0),
    "resnet-20-cifar10": ([(RESNET_3X3, "1/5")], RESNET_HELD),
    "vgg-19-cifar10": ([(VGG_3X3, "1/5")], 5120),
    "resnet-20-cifar10-lr-rewinding": ([(RESNET_3X3, "1/5")], RESNET_HELD),
}
DENSE = {"lenet-mnist": 0.9752, "resnet-20-cifar10": 0.9050}
CONTROLS = {"random_reinit": 0.011, "random_mask": 0.03}
FILES = published.files()
PUBLISHED = {name: published.read(path) for name, path in FILES.items()}
NUMBERS = {name: [claim for claim in found.claims if claim.what != "settings"] for name, found in PUBLISHED.items()}
ALL = [(name, claim.text) for name, numbers in NUMBERS.items() for claim in numbers]


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


ACCURACY, FINAL, STEP = "early_stop_test_accuracy", "final_test_accuracy", "early_stop_step"


def as_published(name, num_replicates=3):
    """A frame of which every claim of a protocol is true, in every replicate by nearly as much."""
    kept = totals(*GROUPS[name], 21)
    dense, rows = DENSE.get(name, 0.75), []
    gain = 0.035 if name.startswith("conv") else 0.006
    for replicate in range(1, num_replicates + 1):
        for index, count in enumerate(kept):
            density = count / kept[0]
            up = 0.0 if not index else gain if density > 0.05 or name.startswith(("conv", "vgg")) else 0.001
            if name.startswith("resnet"):
                up = 0.0
            lower = {"random_reinit": 0.011, "random_mask": 0.03}
            networks = {"ticket": up} | ({branch: up - less for branch, less in lower.items()} if index else {})
            for branch, more in networks.items():
                step = 9000 if not index else 2500 if branch == "ticket" else 8000
                row = {"replicate": replicate, "branch": branch, "round": index, "density": density, "num_kept": count}
                noise = 0.0002 * replicate + (0.0001 * ((replicate + index) % 3) if index else 0)
                row |= {STEP: step + 100 * ((replicate + index) % 3), "last_step": 50_000}
                row |= {ACCURACY: dense + more + noise, FINAL: dense + more + noise}
                rows.append(dict.fromkeys(results.COLUMNS, 0.0) | row)
    return pd.DataFrame(rows, columns=list(results.COLUMNS))


def moved(rows, column, by, branch="ticket", only=lambda rows: rows["round"] > 0):
    """A copy in which a column of some rows is another."""
    chosen = (rows["branch"] == branch) & only(rows)
    assert chosen.any()
    broken = rows.copy()
    broken.loc[chosen, column] = broken.loc[chosen, column] + by
    return broken


def scattered(rows, column, by, branch="ticket", only=lambda rows: rows["round"] > 0):
    """A copy in which a column goes up in one replicate and down in the next, by so much."""
    broken = rows.copy()
    for replicate, sign in ((1, 1), (2, -1)):
        broken = moved(
            broken, column, sign * by, branch, lambda rows, at=replicate: only(rows) & (rows["replicate"] == at)
        )
    return broken


def target(text):
    """What to change so that a claim, known by its text, is not true: column, amount, branch and rows."""
    rounds = [int(number) for number in re.findall(r"rounds? (\d+)(?: to (\d+))?", text) for number in number if number]
    last = (rounds or [9])[-1]

    def at(rows):
        return rows["round"] == last

    if text.startswith("test accuracy"):
        return ACCURACY, -0.012, "ticket", lambda rows: rows["round"] == 0
    if "test accuracy at the end" in text:
        return FINAL, -0.016, "ticket", at
    if text == "ticket − dense at the end, best round":
        return FINAL, -0.006, "ticket", lambda rows: rows["round"] > 0
    if "at the end" in text:
        return FINAL, -0.04, "ticket", lambda rows: rows["density"].between(0.13, 0.16)
    if "dense − random_reinit" in text:
        return ACCURACY, 0.02, "random_reinit", lambda rows: rows["round"] == 12
    if "early stop, random_reinit" in text:
        return STEP, -5000, "random_reinit", at
    if "early stop, dense" in text:
        return STEP, 6000, "ticket", at
    if text.startswith("early stop, density"):
        return STEP, 9000, "ticket", lambda rows: rows["density"].between(0.3, 0.35)
    if "random_" in text:
        branch = re.search("random_[a-z]+", text)[0]
        return ACCURACY, 0.025 if branch == "random_mask" else 0.01, branch, at
    if "rounds 5 to 12" in text:
        return ACCURACY, -0.0075, "ticket", at
    if "density" in text:
        return ACCURACY, -0.04, "ticket", lambda rows: rows["density"].between(0.07, 0.12)
    return ACCURACY, -0.006 if "3.6" in text or "13.5" in text else -0.03, "ticket", at


def broken(text, rows):
    """A frame in which one claim is not true."""
    if text.startswith("survivors"):
        return moved(rows, "num_kept", 1, only=lambda rows: (rows["round"] == 4) & (rows["replicate"] == 2))
    column, by, branch, only = target(text)
    return moved(rows, column, by, branch, only)


def line_of(name, text, rows):
    (claim,) = [claim for claim in NUMBERS[name] if claim.text == text]
    (line,) = published.checked(rows, [claim])
    return line


def verdict(name, text, rows):
    return line_of(name, text, rows)["verdict"]


def test_every_line_has_one_of_four_kinds_of_source_with_a_link():
    for name, numbers in NUMBERS.items():
        for line in published.checked(as_published(name), numbers):
            assert line["source"] in ("paper", "authors' code", "third party", "our own bound"), line
            assert len(line["reference"]) > 20 and line["stated"] and line["bound"]
            if line["link"].startswith("https://"):
                assert re.fullmatch(r"https://(arxiv\.org/abs/\d{4}\.\d{5}|github\.com/[\w./-]+\.py)", line["link"])
            else:  # a part of this project's documentation
                path, _, part = line["link"].partition("#")
                text = Path(published.__file__).parents[2].joinpath(path).read_text(encoding="utf-8")
                assert f"## {part.replace('-', ' ')}" in text.lower()
        settings = [claim for claim in PUBLISHED[name].claims if claim.what == "settings"]
        assert settings and all(claim.source in ("paper", "authors' code") for claim in settings)
    assert {claim.source for found in PUBLISHED.values() for claim in found.claims} == {
        "paper",
        "authors' code",
        "third party",
        "our own bound",
    }


def test_the_docs_list_every_line_with_its_source():
    page = Path(published.__file__).parents[2].joinpath("docs", "reproductions.md").read_text(encoding="utf-8")
    for line in published.checked(as_published("lenet-mnist"), NUMBERS["lenet-mnist"]):
        assert f"| {' | '.join(line[key] for key in ('claim', 'source', 'stated', 'bound'))} |" in page


def test_what_a_third_party_measured_is_not_called_the_papers():
    kinds = {}
    for line in published.checked(as_published("lenet-mnist"), NUMBERS["lenet-mnist"]):
        kinds.setdefault(line["source"], []).append(line["stated"])
    assert kinds["third party"] == ["0.9752", "+0.0067", "+0.0209"]
    assert kinds["paper"] == [
        "over +0.003", "as dense", "up to +0.0035", "+0.005", "above, from 21.1 % on", "38 % earlier (1.61 times)", "2.51 times",
    ]  # fmt: skip
    numbers = {claim.stated for numbers in NUMBERS.values() for claim in numbers if claim.source != "third party"}
    assert not numbers & {"0.9752", "+0.0067", "+0.0209"}


def test_ladders_are_the_papers_and_come_out_of_the_layers():
    printed = {0: 266200, 1: 213060, 2: 170538, 3: 136511, 5: 87490, 7: 56094, 9: 35981, 12: 18506, 15: 9537, 16: 7650, 18: 4928, 20: 3179}  # fmt: skip
    assert {index: totals(LENET, 0)[index] for index in printed} == printed
    assert [totals(groups, held)[0] for groups, held in GROUPS.values()] == [
        266200, 266200, 4300992, 2425024, 2261184, 270896, 20024000, 270896,
    ]  # fmt: skip
    for groups, held in GROUPS.values():
        layers = [(size, float(Fraction(rate))) for size, rate in groups]
        assert claims.ladder(layers, held, 20) == totals(groups, held)
    for name, numbers in NUMBERS.items():
        for claim in numbers:
            if claim.what == "survivors":
                kept = totals(*GROUPS[name])
                assert claim.stated == f"{kept[0]:,} to {kept[claim.rounds[1]]:,}"
    # The densities at which the paper says what it found, of the rounds at which it is looked for.
    for name, index, left in [
        ("lenet-mnist", 7, 21.1), ("lenet-mnist", 9, 13.5), ("lenet-mnist", 15, 3.6), ("conv-2-cifar10", 14, 4.6),
        ("conv-2-cifar10", 11, 8.8), ("conv-4-cifar10", 11, 11.1), ("conv-4-cifar10", 12, 9.2),
        ("resnet-20-cifar10", 6, 27.1), ("resnet-20-cifar10", 10, 11.8),
    ]:  # fmt: skip
        kept = totals(*GROUPS[name])
        assert round(100 * kept[index] / kept[0], 1) == left


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_was_published_passes(name):
    lines = published.checked(as_published(name), NUMBERS[name])
    assert [line["claim"] for line in lines if line["verdict"] != "pass"] == []
    assert len({line["claim"] for line in lines}) == len(lines) >= 1
    assert all(line["measured"] for line in lines)


@pytest.mark.parametrize(("name", "text"), ALL)
def test_every_claim_can_fail(name, text):
    rows = as_published(name)
    assert verdict(name, text, broken(text, rows)) == "fail"
    # In whichever order the rows are.
    assert verdict(name, text, broken(text, rows).sample(frac=1, random_state=3)) == "fail"


@pytest.mark.parametrize(("name", "text"), [one for one in ALL if not one[1].startswith("survivors")])
def test_every_claim_but_a_count_cannot_tell_where_replicates_disagree_or_there_is_one(name, text):
    rows = as_published(name)
    column, by, branch, only = target(text)
    apart = scattered(rows, column, 2 * abs(by), branch, only)
    if text == "early stop, density 0.675 to 0.176":
        apart = scattered(rows, column, 2400, branch, only)
        apart = moved(apart, column, 4000, branch, only)
    if "early stop, dense" in text:
        apart = scattered(moved(rows, column, 2500, branch, only), column, 4000, branch, only)
    if "early stop, random_reinit" in text:
        apart = scattered(rows, column, 7000, branch, only)
    line = line_of(name, text, apart)
    assert line["verdict"] == "cannot tell", line
    one = line_of(name, text, rows[rows["replicate"] == 1])
    assert one["verdict"] == "cannot tell" and "(1 replicate" in one["measured"]


@pytest.mark.parametrize(("name", "text"), ALL)
def test_every_claim_is_open_where_the_rows_are_not_there(name, text):
    rows = as_published(name)
    none = published.checked(rows[:0], NUMBERS[name])
    assert {line["verdict"] for line in none} == {"open"}
    assert all(line["measured"].startswith("not in this run: ") for line in none)
    begun = rows[(rows["branch"] == "ticket") & (rows["round"] < 5)]
    shown = ("test accuracy, dense", "ticket − dense at the end, best round")  # by any round
    assert verdict(name, text, begun) == ("pass" if text in shown else "open")


def test_a_round_that_fails_fails_however_many_are_missing():
    rows = as_published("lenet-mnist")
    text = "rounds 5 to 12: ticket − dense"
    begun = rows[rows["round"] <= 7]
    assert verdict("lenet-mnist", text, begun) == "open"
    assert verdict("lenet-mnist", text, moved(begun, ACCURACY, -0.009, only=lambda rows: rows["round"] == 6)) == "fail"
    without = rows[rows["branch"] != "random_mask"]
    lines = published.checked(without, NUMBERS["lenet-mnist"])
    assert [line["measured"] for line in lines if line["verdict"] == "open"] == [
        "not in this run: round 15 of random_mask"
    ]


def test_several_rounds_fail_at_95_percent_for_all_of_them_together():
    """In each of eight rounds at the bound, an interval at 95 % is below it in one run of forty."""
    rng, failed, apart = np.random.default_rng(5), 0, 0
    for _ in range(400):
        pairs = pd.DataFrame(rng.normal(0, 0.002, (5, 8)), columns=range(5, 13))
        found = claims.in_each(pairs, range(5, 13), 0.0, "ticket")
        failed += found.verdict == "fail"
        apart += any(intervals.mean_interval(pairs[index].tolist())[2] < 0 for index in pairs)
    assert apart / 400 > 0.1  # one of them by itself
    assert failed / 400 < 0.05


def test_a_range_is_tested_to_both_of_its_ends():
    name, text = "lenet-mnist-one-shot", "ticket − dense, density 0.95 to 0.0517"
    rows = as_published(name)
    assert "at densities 0.8 to 0.0557" in line_of(name, text, rows)["measured"]
    for absent, end in ((rows["round"].isin([1]), 0.95), (rows["round"] > 12, 0.0517)):
        line = line_of(name, text, rows[~absent])
        assert (line["verdict"], line["measured"]) == ("open", f"not in this run: a ticket near density {end}")
    # Rounds outside the range do not count.
    outside = moved(rows, ACCURACY, -0.1, only=lambda rows: rows["density"] < 0.05)
    assert verdict(name, text, outside) == "pass"


def test_what_is_measured_is_said_with_its_interval():
    rows = as_published("lenet-mnist")
    lines = {line["claim"]: line["measured"] for line in published.checked(rows, NUMBERS["lenet-mnist"])}
    assert lines["test accuracy, dense"] == "0.9756 (0.9751 to 0.9761)"
    mean, low, high = intervals.mean_interval(verdicts.paired(rows)[15].tolist())
    assert lines["round 15 (3.6 %): ticket − dense"] == f"{mean:+.4f} ({low:+.4f} to {high:+.4f})"
    assert lines["round 15 (3.6 %): ticket − random_mask"] == "+0.0300 (+0.0300 to +0.0300)"
    assert re.fullmatch(
        r"3\.\d\d times \(3\.\d\d to 3\.\d\d; 2,600 and 9,100 steps\)",
        lines["round 7 (21.1 %): early stop, dense over ticket"],
    )
    wrong = broken("survivors", rows)
    assert (
        published.checked(wrong, NUMBERS["lenet-mnist"])[0]["measured"] == "round 4: 109,282 and 109,283, not 109,282"
    )


def test_sooner_is_a_claim_about_the_mean_and_not_about_each_replicate():
    rows = as_published("lenet-mnist", 5)
    text = "round 7 (21.1 %): early stop, dense over ticket"
    late = moved(rows, STEP, -5000, only=lambda rows: (rows["round"] == 0) & (rows["replicate"] == 2))
    late = moved(late, STEP, 1800, only=lambda rows: (rows["round"] == 7) & (rows["replicate"] == 2))
    step = late.set_index(["branch", "round", "replicate"])[STEP]
    assert step["ticket", 7, 2] > step["ticket", 0, 2]  # later in one replicate
    assert verdict("lenet-mnist", text, late) == "pass"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lenet-mnist", "round 7 (21.1 %): early stop, dense over ticket"),
        ("lenet-mnist", "round 7 (21.1 %): early stop, random_reinit over ticket"),
        ("lenet-mnist-one-shot", "early stop, density 0.675 to 0.176"),
    ],
)
def test_a_step_that_is_only_a_lower_bound_does_not_decide_what_longer_training_could_turn(name, text):
    rows = as_published(name)

    def judged(rows, last_step):
        lines = published.checked(rows.assign(last_step=last_step), NUMBERS[name])
        return next(line["verdict"] for line in lines if line["claim"] == text)

    last = int(rows[STEP].max())
    assert judged(rows, last) == "pass"  # dense or the control might stop even later
    late = broken(text, rows)
    if "random_reinit" in text:
        late = moved(rows, STEP, 6000, only=lambda rows: rows["round"] == 7)
    branch, index = ("random_reinit", 7) if "random_reinit" in text else ("ticket", 0)
    other = late[(late["branch"] == branch) & (late["round"] == index)][STEP]
    assert judged(late, other.max() + 1) == "fail"  # the ticket might stop even later
    assert judged(late, other.min()) == "cannot tell"
    assert judged(rows, 2600) == "cannot tell"


def test_the_interval_of_a_ratio_holds_the_ratio_and_agrees_with_the_difference(rng):
    held = 0
    for _ in range(400):
        ticket = rng.normal(2000, 150, 5)
        other = 1.5 * ticket + rng.normal(0, 200, 5)
        low, high = claims.fieller(other, ticket)
        held += low <= 1.5 <= high
        for end in (low, high):  # at an end, other − end x ticket just is not shown to differ from 0
            _, lower, upper = intervals.mean_interval((other - end * ticket).tolist())
            assert min(abs(lower), abs(upper)) < 1e-6 * 2000
    assert 0.92 < held / 400 < 0.98


def test_one_reading_of_the_residual_network_passes():
    """The paper prunes neither the shortcuts nor the output layer (its appendix I)."""
    rows = as_published("resnet-20-cifar10")
    other = rows.copy()
    other["num_kept"] = other["round"].map(dict(enumerate(totals([(RESNET_3X3 + 2560, "1/5")], 640, 21))))
    text = "survivors, rounds 0 to 10"
    assert [verdict("resnet-20-cifar10", text, one) for one in (rows, other)] == ["pass", "fail"]


def test_the_published_settings_are_an_experiments():
    """Each source's own settings make an experiment that differs in nothing, and another value of each is said."""
    for name, found in PUBLISHED.items():
        sections = {"name": name}
        for key, (_, value) in published.stated(found).items():
            section, _, rest = key.partition(".")
            sections.setdefault(section, {})[rest] = value
        experiment = config.Experiment.model_validate(sections)
        assert published.differing(experiment, found) == []
        read = config.Experiment.model_validate(sections | {"data": sections["data"] | {"path": "a.npz"}})
        assert published.differing(read, found) == ["The data were read from 'a.npz'."]
    found = PUBLISHED["lenet-mnist"]
    other = config.load(presets.named("lenet_mnist"), {"train": {"num_steps": 29_000}, "data": {"pixels": "unit"}})
    assert published.differing(other, found) == [
        "Differs: train.num_steps is 29000 here, and 50000 in the source (paper).",
        "Differs: data.pixels is 'unit' here, and 'unit_norm' in the source (authors' code).",
    ]


def test_what_the_papers_state_of_settings():
    """By hand: a value that somebody changes in a file is still what the paper states."""

    def values(name, *keys):
        return [published.stated(PUBLISHED[name])[key][1] for key in keys]

    assert values("lenet-mnist", "train.num_steps", "train.batch_size", "train.learning_rate") == [50_000, 60, 1.2e-3]
    assert values("lenet-mnist", "prune.iterative", "rewind.step", "data.validation") == [True, 0, 5000]
    assert values("lenet-mnist-one-shot", "prune.iterative") == [False]
    for number, num_steps, rate in ((2, 20_000, 2e-4), (4, 25_000, 3e-4), (6, 30_000, 3e-4)):
        keys = ("train.num_steps", "train.learning_rate", "model.name")
        assert values(f"conv-{number}-cifar10", *keys) == [num_steps, rate, f"conv_{number}"]
    schedule = ("train.num_steps", "train.learning_rate", "train.warmup_steps", "train.drop_at")
    assert values("resnet-20-cifar10", *schedule) == [30_000, 0.03, 20_000, (20_000, 25_000)]
    assert values("vgg-19-cifar10", *schedule) == [112_480, 0.1, 10_000, (56_240, 84_360)]
    names = "resnet-20-cifar10-lr-rewinding", "train.num_steps", "train.drop_at", "model.name"
    assert values(*names) == [63_984, (31_992, 47_813), "resnet_56"]


def test_the_experiments_that_ship_have_the_settings_of_their_papers():
    found = {name: published.differing(own.experiment, own) for name, own in PUBLISHED.items()}
    assert {name: differs for name, differs in found.items() if differs} == {
        "resnet-20-cifar10-lr-rewinding": [
            "Differs: model.name is 'resnet_20' here, and 'resnet_56' in the source (authors' code)."
        ],
    }
    assert set(found) == set(GROUPS)


def test_claims_are_no_part_of_an_experiment(tmp_path):
    for path in FILES.values():
        head, _, _ = path.read_text(encoding="utf-8").partition("[[claim]]")
        (tmp_path / "without.toml").write_text(head, encoding="utf-8")
        without, experiment = config.load(tmp_path / "without.toml"), config.load(path)
        assert experiment == without and config.digest(experiment) == config.digest(without)
        assert "claim" not in config.dump(experiment)


def test_a_claim_that_cannot_be_read_is_a_sentence(tmp_path):
    path = tmp_path / "mine.toml"
    for claim in ('what = "accurcy"', 'what = "accuracy"\nround = "first"', 'what = "accuracy"\nrond = 1'):
        path.write_text(f'name = "mine"\n[[claim]]\nsource = "paper"\nreference = ""\nlink = ""\n{claim}\n')
        with pytest.raises(
            LotteryError, match=r"A \[\[claim\]\] of .*mine.toml' cannot be read: its '(what|round|rond)'"
        ):
            published.read(path)


def test_a_run_is_compared_by_its_name(small_run, tmp_path, monkeypatch):
    with pytest.raises(LotteryError, match="the name of this run, 'small'.* --against NAME: conv_2_cifar10") as caught:
        published.compare(small_run.path)
    presets = [path.stem for path in FILES.values()]
    assert all(name in str(caught.value) for name in presets)
    for wrong in ("nothing", "digits"):  # has no claims
        with pytest.raises(LotteryError, match=f"--against must be 'conv_2_cifar10', .*not '{wrong}'"):
            published.compare(small_run.path, wrong)
    for name in presets:
        lines, notes = published.compare(small_run.path, name)
        expected = published.read(config.shipped()[name]).claims
        assert [line["claim"] for line in lines] == [claim.text for claim in expected if claim.what != "settings"]
        assert any(note.startswith("Differs: ") for note in notes)
    monkeypatch.setattr(published, "files", lambda: FILES | {"small": FILES["lenet-mnist"]})
    lines, notes = published.compare(small_run.path)
    assert lines[0]["verdict"] == "fail" and "50,200" in lines[0]["measured"]
    assert notes[0].startswith("[1] our own bound: counted here") and notes[0].endswith("foundations/pruning.py")
    assert any(re.match(r"\[\d\] paper: .*1803\.03635$", note) for note in notes)
    assert "Differs: train.num_steps is 110 here, and 50000 in the source (paper)." in notes
    shown = tables.published(lines, notes)
    assert shown.rows[0][1] == "our own bound [1]" and {row[1].rpartition(" [")[0] for row in shown.rows} == {
        "our own bound", "paper", "third party",
    }  # fmt: skip


def test_exit_statuses_and_rows(small_run, monkeypatch):
    from typer.testing import CliRunner

    from lottery import cli

    def check(*options):
        return CliRunner().invoke(cli.app, ["check", str(small_run.path), *options])

    done = check()
    assert isinstance(done.exception, LotteryError)  # which the command line prints, with status 2
    done = check("--against", "lenet_mnist")
    assert done.exit_code == 1 and re.search(r"survivors.* fail", done.output)
    monkeypatch.setattr(published, "files", lambda: FILES | {"small": FILES["lenet-mnist"]})
    done = check()
    assert done.exit_code == 1 and re.search(r"survivors.* fail", done.output) and "Differs: " in done.output
    assert done.output.startswith("pass: the whole 95 % interval over replicates meets the bound")
    rows = json.loads(check("--json").output)
    assert [row["claim"] for row in rows] == [claim.text for claim in NUMBERS["lenet-mnist"]]
    assert set(rows[0]) == {"claim", "source", "stated", "bound", "measured", "verdict", "reference", "link"}
    assert check("--csv").output.splitlines()[0].startswith("claim,source,stated,bound,measured,verdict")
    settings = {"what": "settings", "source": "paper", "reference": "", "link": "", "leaves_open": ["nothing"]}
    stated = published.Published(small_run.experiment, [claims.Claim.model_validate(settings)])
    monkeypatch.setattr(published, "read", lambda path: stated)
    done = check()
    assert done.exit_code == 0 and "The paper leaves open: nothing." in done.output
