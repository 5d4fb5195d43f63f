"""Every number that a figure of a run shows, against the files of the run.

    python -m tests.scripts.figures_from_files runs/digits-0d51709e

Each kind of `lottery.plots.kinds` is drawn as `lottery plot` draws it, with its options too. Every number is taken out
of what was drawn (lines, bars and their caps, bands, images, texts, ticks) or of the caption, and compared with one that
is computed from ``round.json``, ``metrics.csv``, ``path-*.csv``, masks and weights by json, pandas and NumPy. `lottery` only draws.
Not looked at: overlaps after hidden units are matched; start weights where the mode of rewinding is not "weights".
"""

import collections
import itertools
import json
import math
import re
import statistics
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.numpy
from matplotlib.colors import to_rgb
from safetensors import safe_open
from scipy import stats

from lottery import plots
from lottery.errors import LotteryError

NEAR = 1e-9  # relative; both sides are computed in float64, from whatever the files hold
NUMBER = r"-?[\d,]*\d(?:\.\d+)?(?:e[+-]?\d+)?"
SAID = {"range": "lowest to highest", "t": "95 % t interval for the mean"}
SHORT = {"range": "lowest to highest", "t": "95 % t interval"}
MEASURES = ("relative_distance", "cosine", "sign_changes")
Key = tuple[int, str, int]  # replicate, branch, round
Table = Any  # a pandas data frame, which type checkers take apart wrongly


class Files:
    """What the files of a run say, read without `lottery`.

    Attributes:
        experiment: ``experiment.toml``.
        records: ``round.json`` of every complete network, by replicate, the ticket first, then branches by name.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.experiment = tomllib.loads((run / "experiment.toml").read_text())
        self.records: dict[Key, dict[str, Any]] = {}
        for replicate in range(1, self.experiment["run"]["num_replicates"] + 1):
            found = {}
            for index in range(self.experiment["prune"]["num_rounds"] + 1):
                folder = self.folder((replicate, "ticket", index))
                if not (folder / "round.json").exists():
                    break
                found["", index] = folder / "round.json"
                for path in folder.glob("branch-*/round.json"):
                    found[path.parent.name.removeprefix("branch-"), index] = path
            for (branch, index), path in sorted(found.items()):
                self.records[replicate, branch or "ticket", index] = json.loads(path.read_text())
        self._kept: dict[Key, dict[str, np.ndarray]] = {}

    def folder(self, key: Key) -> Path:
        """Where a network lies."""
        replicate, branch, index = key
        folder = self.run / f"replicate-{replicate}" / f"round-{index:02d}"
        return folder if branch == "ticket" else folder / f"branch-{branch}"

    def branches(self) -> list[str]:
        """Labels in their order, the ticket first."""
        return list(dict.fromkeys(branch for _, branch, _ in self.records))

    def rounds(self, branch: str = "ticket", some: Iterable[int] | None = None) -> dict[int, list[Key]]:
        """The networks of each round of a branch, or of some rounds."""
        wanted = None if some is None else set(some)
        found = collections.defaultdict(list)
        for key in sorted(self.records, key=lambda key: (key[2], key[0])):
            if key[1] == branch and (wanted is None or key[2] in wanted):
                found[key[2]].append(key)
        return dict(found)

    def lasts(self) -> list[int]:
        """The last round of each replicate."""
        lasts: dict[int, int] = {}
        for replicate, _, index in self.records:
            lasts[replicate] = max(index, lasts.get(replicate, 0))
        return list(lasts.values())

    def few(self, most: int = 6) -> list[int]:
        """The rounds that a figure has room for: of those that are read, at most so many."""
        return evenly(evenly(range(max(self.lasts()) + 1), 6), most)

    def density(self, keys: Iterable[Key]) -> float:
        """Mean of the networks' densities."""
        counts = [
            (sum(mask.sum() for mask in self.kept(key).values()), sum(mask.size for mask in self.kept(key).values()))
            for key in keys
        ]
        return statistics.fmean(kept / num for kept, num in counts)

    def kept(self, key: Key) -> dict[str, np.ndarray]:
        """The masks of a network, as the README says how to read them."""
        if key not in self._kept:
            with safe_open(self.folder(key) / "masks.safetensors", "numpy") as file:
                self._kept[key] = {
                    name: np.unpackbits(file.get_tensor(name), count=math.prod(shape)).astype(bool).reshape(shape)
                    for name, shape in json.loads(file.metadata()["shapes"]).items()
                }
        return self._kept[key]

    def weights(self) -> list[str]:
        """Names of the weights that have masks, in the order of the layers."""
        return list(self.kept(next(iter(self.records))))

    def values(self, path: Path, kept: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What a file holds at the entries that are kept, in float64."""
        with safe_open(path, "numpy") as file:
            return {name: file.get_tensor(name)[mask].astype(np.float64) for name, mask in kept.items()}

    def start(self, key: Key) -> dict[str, np.ndarray]:
        """What the survivors of a ticket started from."""
        name = "start" if key[2] and self.experiment["rewind"]["step"] else "initial"
        return self.values(self.run / f"replicate-{key[0]}" / f"{name}.safetensors", self.kept(key))

    @cached_property
    def points(self) -> Table:
        """Every point of the paths that are drawn: with stored statistics, or recomputed ones if there are no others."""
        parts = []
        for path in self.run.glob("connectivity/replicate-*/round-*/path-step_*.csv"):
            if not path.with_suffix(".json").exists():
                continue
            found = re.fullmatch(r".*replicate-(\d+)/round-(\d+)/path-step_(\d+)(-recomputed)?\.csv", path.as_posix())
            assert found, path
            replicate, index, step = map(int, found.groups()[:3])
            place = {"replicate": replicate, "round": index, "step": step, "recomputed": bool(found[4])}
            parts.append(pd.read_csv(path).assign(**place))
        if not parts:
            return pd.DataFrame()
        points = pd.concat(parts, ignore_index=True)
        return points[points["recomputed"] == points["recomputed"].all()]

    def errors(self, index: int, step: int, split: str) -> list[np.ndarray]:
        """The errors along each replicate's path, from alpha 0 to 1."""
        points = self.points
        part = points[(points["round"] == index) & (points["step"] == step) & (points["split"] == split)]
        return [one.sort_values("alpha")["error"].to_numpy() for _, one in part.groupby("replicate")]

    def path_replicates(self, index: int, step: int) -> list[Key]:
        """The rounds whose networks a path of each replicate is between."""
        part = self.points[(self.points["round"] == index) & (self.points["step"] == step)]
        return [(int(replicate), "ticket", index) for replicate in sorted(set(part["replicate"]))]


class Figure:
    """A figure that is being looked at: what was compared so far, and what is wrong.

    Attributes:
        said: What the figure was drawn with, to begin a complaint with.
        caption: The text beside it.
        panels: The axes within the axes, if the figure has panels.
        labels: Of what was looked at, to compare the legend with.
        counts: Of how many replicates each mean is that was looked at, to compare the caption with.
        most: How many replicates a mean could be of.
    """

    def __init__(self, ax: Any, said: str, caption: str) -> None:
        self.ax, self.said, self.panels = ax, said, []
        self.caption = caption.replace("\N{MINUS SIGN}", "-")
        self.artists, self.numbers, self.texts, self.difference = 0, 0, 0, 0.0
        self.wrong: list[str] = []
        self.labels: list[str] = []
        self.counts: list[int] = []
        self.most = 0
        self._looked: set[int] = set()

    def check(self, right: Any, what: str) -> None:
        """Note what is wrong unless it is right."""
        if not right:
            self.wrong.append(f"{self.said}: {what}")

    def saw(self, *artists: Any) -> None:
        """Note that these were looked at."""
        self.artists += len(artists)
        self._looked |= {id(artist) for artist in artists}

    def same(self, what: str, drawn: Any, expected: Any) -> None:
        """Compare numbers that were drawn."""
        drawn, expected = np.asarray(drawn, float), np.asarray(expected, float)
        self.numbers += expected.size
        if drawn.shape != expected.shape:
            return self.check(False, f"{what}: {drawn.shape} numbers are drawn, the files give {expected.shape}")
        off = np.where(np.isnan(drawn) & np.isnan(expected), 0.0, np.abs(drawn - expected))
        self.difference = max(self.difference, float(np.max(off, initial=0)))
        bad = ~(off <= NEAR * np.nan_to_num(np.abs(expected)) + 1e-14)
        if bad.any():
            place = tuple(np.argwhere(bad)[0])
            self.check(False, f"{what}: {bad.sum()} of {bad.size} are off, {drawn[place]} for {expected[place]}")
        return None

    def text(self, drawn: str, template: str, *values: float) -> None:
        """Compare a text with a template like ``"round {:d}, density {:.3g}"``, numbers to the digits that it prints."""
        self.texts += len(values)
        found = re.fullmatch(pattern(template), drawn)
        right = found and rounded(found, template, values)
        self.check(right, f"{drawn!r} should be {template.format(*values)!r}")

    def says(self, template: str, *values: float) -> None:
        """Look for a text with such numbers, as in `text`, in the caption."""
        self.texts += len(values)
        places = re.finditer(pattern(template), self.caption, re.IGNORECASE)
        right = any(rounded(one, template, values) for one in places)
        self.check(right, f"the caption {self.caption!r} does not say {template.format(*values)!r}")

    def label(self, artist: Any, template: str, *values: float) -> None:
        """Compare what the legend calls an artist."""
        self.labels.append(artist.get_label())
        self.text(artist.get_label(), template, *values)

    def line(self, line: Any, x: Any, y: Any, what: str) -> None:
        """Compare the points of a line."""
        self.saw(line)
        self.same(f"{what}, x", line.get_xdata(), x)
        self.same(what, line.get_ydata(), y)

    def inside(self, x: Any, y: Any, what: str) -> None:
        """Note it if a point is beyond the axes."""
        ax = self.panels[0] if self.panels else self.ax
        for axis, values, (one, other) in (("x", x, ax.get_xlim()), ("y", y, ax.get_ylim())):
            slack = 1e-9 * abs(one - other)
            low, high = min(one, other) - slack, max(one, other) + slack
            finite = np.asarray(values, float)[np.isfinite(np.asarray(values, float))]
            self.check(((finite >= low) & (finite <= high)).all(), f"{what} is outside of the {axis} axis")

    def bars(self, container: Any, x: Any, values: Any, what: str, interval: str = "range") -> np.ndarray:
        """Compare means with their bars; returns the means."""
        (mean, low, high), counts = spread(values, interval)
        self.counts += counts
        self.most = max([self.most, *map(len, values)])
        data, caps, bars = container.lines
        self.line(data, x, mean, what)
        several = max(counts) > 1
        self.check(container.has_yerr == several, f"{what}: bars are {'missing' if several else 'drawn'}")
        if several and container.has_yerr:
            known = ~np.isnan(low)
            ends = np.array([one for one in bars[0].get_segments() if len(one) == 2]).reshape(-1, 2, 2)
            self.same(f"{what}, places of bars", ends[:, :, 0], np.stack([x, x], 1)[known])
            self.same(f"{what}, bars", ends[:, :, 1], np.stack([low, high], 1)[known])
            for cap, end in zip(caps, (low, high), strict=True):
                self.line(cap, x, end, f"{what}, caps")
            self.saw(*bars)
        return mean

    def band(self, line: Any, bands: list[Any], at: Any, values: Any, what: str, step: bool = False) -> None:
        """Compare the band around a line, which is the next of those left, at places (of a step, amid it)."""
        (_, low, high), counts = spread(values)
        self.counts += counts
        self.most = max([self.most, *map(len, values)])
        if max(counts) <= 1:
            return None
        if not bands:
            return self.check(False, f"{what} has no band")
        band = bands.pop(0)
        self.saw(band)
        if len(counts) == 1:  # the band of a point has no area
            return None
        self.check(np.allclose(band.get_facecolor()[0][:3], to_rgb(line.get_color())), f"{what}: a band of another")
        at = (np.asarray(at, float)[:-1] + np.asarray(at, float)[1:]) / 2 if step else np.asarray(at, float)
        num = len(at)
        self.same(f"{what}, band", heights(band, at), np.stack([low[:num], high[:num]], 1))
        return None

    def finish(self, what: str = "bars", interval: str = "range") -> None:
        """Compare what the caption says over replicates, the legend and ticks, and note what was not looked at."""
        self.check(not self.ax.get_title(), f"the axes have the title {self.ax.get_title()!r}")
        labels = list(self.labels)
        if self.most:
            counts = [one for one in self.counts if one] or [self.most]
            fewest, most = min(counts), max(counts)
            said = f"{most}" if fewest == most else f"{fewest} to {most}"
            if most == 1:
                whole = "One replicate (n = 1)."
            else:
                labels.append(f"{SHORT[interval]}, n = {said}")
                whole = f"Means of n = {said} replicates, {what}: {SAID[interval]}."
            self.check(
                whole in self.caption or f"{most} replicates." in whole, f"{self.caption!r} should say {whole!r}"
            )
        legend = self.ax.get_legend()
        texts = [text.get_text() for text in legend.get_texts()] if legend else []
        self.check(sorted(texts) == sorted(labels), f"the legend says {texts}, and shown are {labels}")
        for ax in (self.ax, *self.panels):
            every = [*ax.lines, *ax.collections, *ax.patches, *ax.images, *ax.texts]
            unknown = [one for one in every if id(one) not in self._looked]
            self.check(not unknown, f"nothing is known of {unknown}")
        for axes in (*self.ax.figure.axes, *self.ax.child_axes):
            for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
                self._ticks(axis)

    def _ticks(self, axis: Any) -> None:
        places, formatter = axis.get_majorticklocs(), axis.get_major_formatter()
        said = [text.replace("\N{MINUS SIGN}", "-") for text in formatter.format_ticks(places)]
        self.check(not formatter.get_offset(), "the ticks have an offset")
        apart = np.min(np.abs(np.diff(np.asarray(places, float))), initial=np.inf) if len(places) > 1 else 0
        for place, text in zip(places, said, strict=True):
            if text:
                self.texts += 1
                near = abs(float(text) - place) <= max(1e-3 * apart, 1e-5 * abs(place))
                self.check(near, f"a tick at {place} says {text!r}")


def pattern(template: str) -> str:
    """Make a regular expression for a text with other numbers."""
    return f"({NUMBER})".join(map(re.escape, re.split(r"\{:[^}]*\}", template)))


def rounded(found: re.Match[str], template: str, values: Iterable[float]) -> bool:
    """Say if the numbers of a text were printed from values, to the digits of the template's formats."""
    right = True
    specs = re.findall(r"\{:([^}]*)\}", template)
    for number, spec, value in zip(found.groups(), specs, values, strict=True):
        digit = 0.0 if spec == "d" else 10.0 ** -int(spec.lstrip(",")[1:-1])
        if spec.endswith("g"):
            digit *= 10.0 ** (math.floor(math.log10(abs(value))) + 1) if value else 0
        near = abs(float(number.replace(",", "")) - value) <= 0.5001 * digit
        right &= near and len(number) <= len(format(value, spec)) + 1
    return right


def evenly(some: Iterable[int], most: int) -> list[int]:
    """At most so many of some numbers, evenly, the first and the last among them."""
    there = sorted(set(some))
    if len(there) <= max(most, 1):
        return there
    return [there[round(place * (len(there) - 1) / (most - 1))] for place in range(most)]


def spread(values: Any, interval: str = "range") -> tuple[np.ndarray, list[int]]:
    """Means over replicates and the ends of their bars, NaN without one, in three rows; and of how many each mean is."""
    found, counts = [], []
    for some in values:
        known = [float(one) for one in some if one == one]
        counts.append(len(known))
        mean, half = (statistics.fmean(known) if known else math.nan), 0.0
        if interval == "range" and known:
            found.append((mean, min(known), max(known)))
            continue
        if len(known) == 1 or (len(known) == 2 and abs(known[0] - known[1]) <= 1e-6):
            half = math.nan  # the interval is infinite, and has no bar
        elif len(known) > 1:
            half = stats.t.ppf(0.975, len(known) - 1) * statistics.stdev(known) / math.sqrt(len(known))
        found.append((mean, mean - half, mean + half))
    return np.array(found).reshape(-1, 3).T, counts


def heights(band: Any, at: np.ndarray) -> np.ndarray:
    """Lowest and highest end of a band at each place, NaN where there is none."""
    found = np.full((len(at), 2), np.nan)
    for path in band.get_paths():
        ends = path.vertices
        (x0, y0), (x1, y1) = ends[:-1].T[:, None], ends[1:].T[:, None]
        across = (np.minimum(x0, x1) <= at[:, None]) & (at[:, None] <= np.maximum(x0, x1)) & (x0 != x1)
        place = (at[:, None] - x0) / np.where(x0 == x1, 1, x1 - x0)
        y = np.where(place == 1, y1, y0 + (y1 - y0) * place)
        some = across.any(axis=1)
        found[some, 0] = np.where(across, y, np.inf).min(axis=1)[some]
        found[some, 1] = np.where(across, y, -np.inf).max(axis=1)[some]
    return found


def labelled(lines: Iterable[Any]) -> list[Any]:
    """The lines that a legend names."""
    return [line for line in lines if not line.get_label().startswith("_")]


def among(lines: Iterable[Any], label: str) -> list[Any]:
    """The lines of a label."""
    return [line for line in lines if line.get_label() == label]


def known(record: dict[str, Any], key: str) -> float:
    """A number of a record, where JSON has null for NaN."""
    return math.nan if record[key] is None else float(record[key])


# ---- each kind: what is drawn, and what the files give


def look_at_accuracy(figure: Figure, files: Files, full: bool = False, interval: str = "range") -> None:
    ax = figure.ax
    bottom = -math.inf if full else ax.get_ylim()[0]
    containers, marks = list(ax.containers), among(ax.lines, "_below")
    figure.check(len(containers) == len(files.branches()), "not every branch is drawn")
    any_below = False
    for branch, container in zip(files.branches(), containers, strict=False):
        rounds = files.rounds(branch)
        x = [files.density(keys) for keys in rounds.values()]
        values = [[known(files.records[key], "early_stop_test_accuracy") for key in keys] for keys in rounds.values()]
        mean = figure.bars(container, x, values, branch, interval)
        below = mean < bottom
        any_below |= below.any()
        if below.any():
            figure.label(container, branch + "\n(falls to {:.3g})", mean[below].min())
            figure.check(marks, f"{branch} has no marks below")
            for mark in marks[:1]:
                figure.saw(mark)
                figure.same(f"{branch}, marks below", mark.get_xdata(), np.array(x)[below])
                figure.check(mark.get_color() == container.lines[0].get_color(), f"{branch}: marks of another")
            marks = marks[1:]
        else:
            figure.label(container, branch)
        figure.inside(x, mean[~below], branch)
        if branch == "ticket":
            look_at_dense(figure, values[0], interval)
            (centre, low, high), counts = spread(values, interval)
            low, high = (np.where(np.isnan(end), centre, end) for end in (low, high))
            if not full and any(counts):
                low, high = max(np.nanmin(low), 0), min(np.nanmax(high), 1)
                figure.check(low >= bottom and high <= ax.get_ylim()[1], "the ticket's bars leave the axes")
    shown_low, shown_high = ax.get_ylim()
    figure.check(shown_high - shown_low >= 0.02, "the axis is shorter than a fiftieth")
    margin = 0.06 * (shown_high - shown_low)
    figure.check(shown_low >= -margin and shown_high <= 1 + margin, "the axis goes beyond what an accuracy can be")
    if all(files.records[key]["early_stop_test_accuracy"] is None for key in files.records):
        figure.check([text.get_text() for text in ax.texts] == ["no accuracy is measured"], "nothing says why")
        figure.saw(*ax.texts)
    figure.check(("Triangles" in figure.caption) == any_below, "triangles and the caption disagree")
    figure.finish("bars and grey band", interval)


def look_at_dense(figure: Figure, values: list[float], interval: str) -> None:
    """Check the line of the dense network, and its bar as a band."""
    (mean, low, high), counts = spread([values], interval)
    (dense,) = among(figure.ax.lines, "dense")
    figure.label(dense, "dense")
    figure.line(dense, [0, 1], [mean[0]] * 2, "dense")
    if counts[0] > 1 and not np.isnan(low[0]):
        (patch,) = figure.ax.patches
        figure.saw(patch)
        figure.same("dense, band", [patch.get_y(), patch.get_y() + patch.get_height()], [*low, *high])


def look_at_early_stop(figure: Figure, files: Files, interval: str = "range") -> None:
    ax, last, bounds = figure.ax, files.experiment["train"]["num_steps"], among(figure.ax.lines, "_open")
    containers, any_bound = list(ax.containers), False
    for branch in files.branches():
        rounds = {
            index: [key for key in keys if files.records[key]["final_train_loss"] is not None]
            for index, keys in files.rounds(branch).items()
        }
        rounds = {index: keys for index, keys in rounds.items() if keys}
        if not rounds:
            continue
        if not containers:
            return figure.check(False, f"{branch} is not drawn")
        container = containers.pop(0)
        figure.label(container, branch)
        values = [[files.records[key]["early_stop_step"] for key in keys] for keys in rounds.values()]
        x = np.array([files.density(keys) for keys in rounds.values()])
        # Not from the record alone: the step of the lowest validation loss that was measured.
        for key in itertools.chain(*rounds.values()):
            metrics: Table = pd.read_csv(files.folder(key) / "metrics.csv")
            metrics = metrics[metrics["split"] == "validation"]
            lowest = metrics["step"].iloc[int(np.argmin(metrics["loss"]))]
            figure.check(lowest == files.records[key]["early_stop_step"], f"{key}: its lowest loss is at {lowest}")
        mean = figure.bars(container, x, values, branch, interval)
        figure.inside(x, mean, branch)
        if branch == "ticket":
            look_at_dense(figure, values[0], interval)
        censored = np.array([last in some for some in values])
        if censored.any():
            any_bound = True
            if not bounds:
                return figure.check(False, f"{branch} has no open marks")
            figure.line(bounds.pop(0), x[censored], mean[censored], f"{branch}, open")
    if any_bound and containers:
        figure.label(containers[-1], "lower bound")
        figure.saw(*containers.pop().lines[0:1])
    figure.check(not containers and not bounds, "more is drawn than the files have")
    if any_bound:
        figure.says("lowest at the last step")
    return figure.finish("bars and grey band", interval)


def look_at_learning_curves(
    figure: Figure, files: Files, measure: str = "accuracy", split: str = "validation", branch: str = "ticket",
    full: bool = False, most: int = 40,
) -> None:  # fmt: skip
    ax, rounds = figure.ax, files.rounds(branch, files.few())
    curves = {}
    for key in itertools.chain(*rounds.values()):
        table = pd.read_csv(files.folder(key) / "metrics.csv")
        curves[key] = table[table["split"] == split]
    if measure == "accuracy" and all(curve["accuracy"].isna().all() for curve in curves.values()):
        measure = "loss"
        figure.says("No accuracy is measured")
    figure.check(ax.get_ylabel() == f"{split} {measure}", f"the axis says {ax.get_ylabel()!r}")
    num = max(int((curve["step"] > 0).sum()) for curve in curves.values())
    together = max(1, math.ceil(num / most))
    lines, bands = labelled(ax.lines), list(ax.collections)
    figure.check(len(lines) == len(rounds), f"{len(lines)} rounds are drawn of {len(rounds)}")
    every = []
    for line, (index, keys) in zip(lines, rounds.items(), strict=False):
        figure.label(line, "round {:d}, density {:.3g}", index, files.density(keys))
        steps, values = [], []
        for key in keys:
            # The evaluation at step 0, if any, and then so many at a time.
            step, value = curves[key]["step"].to_numpy(float), curves[key][measure].to_numpy(float)
            cuts = [*([0] if step[0] == 0 else []), *range(int(step[0] == 0), len(step), together), len(step)]
            steps.append([step[one:other].mean() for one, other in itertools.pairwise(cuts)])
            values.append([value[one:other].mean() for one, other in itertools.pairwise(cuts)])
        figure.check(all(one == steps[0] for one in steps), f"round {index}: replicates were evaluated at other steps")
        by_step = np.array(values).T
        figure.line(line, steps[0], by_step.mean(axis=1), f"round {index}")
        figure.band(line, bands, steps[0], by_step, f"round {index}")
        figure.check(line.get_drawstyle() == "default", f"round {index} is drawn as steps")
        figure.inside(steps[0], [], f"round {index}")
        every.append(pd.DataFrame({"step": steps[0], "low": by_step.min(axis=1), "high": by_step.max(axis=1)}))
    points = pd.concat(every)
    settled = points[points["step"] >= 0.05 * points["step"].max()]
    figure.inside([], points[["low", "high"]] if full else settled[["low", "high"]], "what is said to be inside")
    low, high = ax.get_ylim()
    if together > 1:
        figure.says("Each point after step 0 is the mean of up to {:d} evaluations", together)
    if "may lie outside" in figure.caption:
        figure.check(not full, "it says that something is outside, and is to show all")
    else:
        figure.check(
            ((points["low"] >= low) & (points["high"] <= high)).all(), "something is outside, and nothing says so"
        )
    figure.says(f"{split} {measure} while training, of {'the ticket' if branch == 'ticket' else branch}.")
    figure.finish("band")


def look_at_layers(figure: Figure, files: Files, branch: str = "ticket") -> None:
    ax, rounds = figure.ax, files.rounds(branch)
    (network,) = among(ax.lines, "the network")
    figure.label(network, "the network")
    figure.line(network, list(rounds), [files.density(keys) for keys in rounds.values()], "the network")
    containers, crosses = list(ax.containers), among(ax.lines, "_collapsed")
    figure.check(len(crosses) == len(files.weights()), "not every weight is drawn")
    emptied = False
    for weight, container, cross in zip(files.weights(), containers, crosses, strict=False):
        values = [[files.kept(key)[weight].mean() for key in keys] for keys in rounds.values()]
        left = [place for place, some in enumerate(values) if any(some)]
        x = [index for place, index in enumerate(rounds) if place in left]
        mean = figure.bars(container, x, [values[place] for place in left], weight)
        figure.counts += [len(some) for some in values]
        figure.label(container, weight)
        figure.inside(x, mean, weight)
        gone = [index for index, some in zip(rounds, values, strict=True) if 0 in some]
        emptied |= bool(gone)
        figure.saw(cross)
        figure.same(f"{weight}, crosses", cross.get_xdata(), gone)
        figure.inside(cross.get_xdata(), cross.get_ydata(), "a cross")
    if emptied:
        figure.label(containers[-1], "nothing is left")
        figure.saw(containers[-1].lines[0])
    figure.check(("Crosses" in figure.caption) == emptied, "crosses and the caption disagree")
    figure.finish()


def look_at_initial_weights(figure: Figure, files: Files, weight: str | None = None) -> None:
    ax, rounds, weight = figure.ax, files.rounds(some=files.few(3)), weight or files.weights()[0]
    starts = {key: files.start(key)[weight] for key in itertools.chain(*rounds.values())}
    lines, bands = labelled(ax.lines), list(ax.collections)
    figure.check(len(lines) == len(rounds), f"{len(lines)} rounds are drawn of {len(rounds)}")
    edges = np.asarray(lines[0].get_xdata(), float)
    # Of 80 bins as few run together as give 100 of the smallest network's to each of 20 bins or more, or as many as can.
    smallest = min(map(len, starts.values()))
    num = next((num for num in (80, 40, 20) if smallest >= 100 * num), 20)
    every = np.concatenate(list(starts.values()))
    low, high = every.min(), every.max()
    figure.same("edges", edges, low + np.arange(num + 1) / num * (high - low))
    for line, (index, keys) in zip(lines, rounds.items(), strict=False):
        figure.label(line, "round {:d}, density {:.3g}", index, files.density(keys))
        values = [
            np.histogram(starts[key], edges)[0] / starts[key].size / np.diff(edges)
            if starts[key].size
            else np.full(num, np.nan)
            for key in keys
        ]
        by_bin = np.array(values).T
        (mean, _, _), _ = spread(by_bin)
        figure.line(line, edges, [*mean, mean[-1]], f"round {index}")
        figure.check(line.get_drawstyle() == "steps-post", f"round {index} is not drawn as steps")
        figure.band(line, bands, edges, by_bin, f"round {index}", step=True)
        figure.inside(edges, mean, f"round {index}")
    figure.check(weight in ax.get_xlabel(), f"the axis says {ax.get_xlabel()!r}")
    figure.finish("band")


def look_at_degrees(figure: Figure, files: Files, weight: str | None = None, side: str = "in") -> None:
    ax, rounds, weight = figure.ax, files.rounds(some=files.few()), weight or files.weights()[0]
    degrees = {}
    for key in itertools.chain(*rounds.values()):
        mask = files.kept(key)[weight]
        stays = mask.ndim - (1 if side == "in" else 2)
        degrees[key] = mask.sum(axis=tuple(axis for axis in range(mask.ndim) if axis != stays))
    most = max(int(some.max()) for some in degrees.values())
    lines, bands = labelled(ax.lines), list(ax.collections)
    figure.check(len(lines) == len(rounds), f"{len(lines)} rounds are drawn of {len(rounds)}")
    for line, (index, keys) in zip(lines, rounds.items(), strict=False):
        figure.label(line, "round {:d}, density {:.3g}", index, files.density(keys))
        fractions = np.array([[np.mean(degrees[key] <= degree) for key in keys] for degree in range(most + 1)])
        x, y = (np.asarray(values, float) for values in line.get_data())
        figure.saw(line)
        figure.same(f"round {index}, ends", [x[0], x[-1]], [0, most])
        figure.check((np.diff(x) > 0).all() and line.get_drawstyle() == "steps-post", f"round {index}: no steps")
        shown = y[np.searchsorted(x, np.arange(most + 1), side="right") - 1]
        figure.same(f"round {index}", shown, fractions.mean(axis=1))
        figure.band(line, bands, range(most + 1), fractions, f"round {index}", step=True)
        figure.inside([], y, f"round {index}")
    fewest = min(int(some.min()) for some in degrees.values())
    figure.inside([fewest, most], [], "the fewest or the most")
    figure.check(ax.get_xlim()[0] >= 0.8 * fewest, "the axis starts far from the fewest")
    least = min((int(some[some > 0].min()) for some in degrees.values() if some.any()), default=1)
    figure.check((ax.get_xscale() == "linear") == (most < 10 * least), f"a {ax.get_xscale()} axis to {most}")
    figure.check(f"({weight})" in ax.get_xlabel(), f"the axis says {ax.get_xlabel()!r}")
    what = {"in": "come into a unit", "out": "leave an input"}[side]
    figure.check(what in ax.get_xlabel(), f"the axis says {ax.get_xlabel()!r}")
    figure.finish("band")


def look_at_inputs(figure: Figure, files: Files, replicate: int = 1) -> None:
    ax, weight = figure.ax, files.weights()[0]
    here = [(replicate, "ticket", index) for index in files.few() if (replicate, "ticket", index) in files.records]
    architecture = json.loads((files.run / "environment.json").read_text()).get("architecture") or {}
    shape = list(architecture.get("input_shape", ()))
    shape = [*shape, 1][:3] if len(shape) in (2, 3) else [0]  # other examples are no images
    expected, several = [], ""
    for key in here:
        kept = files.kept(key)[weight].sum(axis=-1)
        if kept.ndim > 1:  # of a convolution's kernel: rows, columns, channels
            several = "Channels are side by side." if kept.shape[2] > 1 else ""
            expected.append(np.hstack([kept[:, :, channel] for channel in range(kept.shape[2])]))
        elif math.prod(shape) == kept.size:
            several = "Channels are summed." if shape[2] > 1 else ""
            expected.append(kept.reshape(shape).sum(axis=2))
        else:
            expected.append(kept[None])
    figure.check(len(ax.images) == len(ax.texts) == len(expected), f"{len(ax.images)} images of {len(expected)}")
    down = ax.get_ylim()[0] > ax.get_ylim()[1] and ax.get_xlim()[0] < ax.get_xlim()[1]
    figure.check(down, "the axes do not go to the right and down")
    counts = np.concatenate([image[image > 0] for image in expected])
    ends = [min(counts.min(), counts.max() - 1), counts.max()] if counts.size else [0, 1]
    bar = ax.child_axes[0].get_xlabel()
    unread = any((image == 0).any() for image in expected)
    zero = [text.get_text() for text in ax.child_axes[0].texts]
    figure.check(zero == ["0"] * unread, f"beside the bar stands {zero}")
    figure.check(("(log)" in bar) == (ends[1] > 5 * ends[0] > 0), f"the bar says {bar!r} from {ends}")
    for image, text, key, kept in zip(ax.images, ax.texts, here, expected, strict=False):
        what = f"round {key[2]}"
        figure.saw(image, text)
        figure.same(what, image.get_array().filled(0), kept)
        left, right, bottom, top = image.get_extent()
        figure.check(image.origin == "upper" and left < right and top < bottom, f"{what} is not upright")
        figure.same(f"{what}, scale", [*image.get_clim()], ends)
        figure.text(text.get_text(), "round {:d}, density {:.3g}", key[2], files.density([key]))
        above = left == text.get_position()[0] and text.get_position()[1] < top
        figure.check(above, f"{what} stands above another image")
        figure.inside([left, right], [top, bottom], what)
    figure.saw(*ax.patches, *ax.lines)  # frames, and cuts between channels
    figure.says(f"{weight} at each ")
    figure.says("Replicate {:d} (n = 1)", replicate)
    figure.check(several in figure.caption and ("Channels" in figure.caption) == bool(several), "the channels")
    figure.finish()


def look_at_overlap(figure: Figure, files: Files, weight: str = "all") -> None:
    ax, index = figure.ax, min(files.lasts())
    keys = files.rounds()[index]
    names = files.weights() if weight == "all" else [weight]
    flat = [np.concatenate([files.kept(key)[name].ravel() for name in names]) for key in keys]
    sizes = [files.kept(keys[0])[name].size for name in names]
    (image,) = ax.images
    cells = np.full((len(keys), len(keys)), np.nan)
    texts = {tuple(map(int, text.get_position())): text for text in ax.texts}
    figure.check(len(texts) == len(ax.texts) == len(keys) ** 2, f"{len(texts)} texts for {len(keys)} masks")
    for one, other in itertools.product(range(len(keys)), repeat=2):
        text = texts[other, one]
        figure.saw(text)
        if one == other:
            figure.text(text.get_text(), "density\n{:.3g}", flat[one].mean())
            continue
        overlap = np.sum(flat[one] & flat[other]) / np.sum(flat[one] | flat[other])
        common = sum(
            files.kept(keys[one])[name].sum() / size * files.kept(keys[other])[name].sum()
            for name, size in zip(names, sizes, strict=True)
        )
        chance = common / (flat[one].sum() + flat[other].sum() - common)
        figure.text(text.get_text(), "{:.3f}\n({:.3f})", overlap, chance)
        cells[one, other] = overlap - chance
    figure.saw(image)
    figure.same("overlaps - chance", np.ma.filled(image.get_array(), np.nan), cells)
    largest = max(0.01, float(np.nanmax(np.abs(cells))))
    figure.same("the scale of the colours", [*image.get_clim()], [-largest, largest])
    for axis in (ax.xaxis, ax.yaxis):
        figure.same("replicates", [int(text.get_text()) for text in axis.get_ticklabels()], [key[0] for key in keys])
        figure.same("their places", axis.get_ticklocs(), range(len(keys)))
        axis.set_ticks([])  # names, not numbers of an axis
    of = "all weights" if weight == "all" else weight
    figure.says(f"n = {{:d}} replicates at round {{:d}}, {of}.", len(keys), index)
    figure.finish()


def look_at_distance(figure: Figure, files: Files, measure: str = "relative_distance") -> None:
    ax, rounds = figure.ax, files.rounds()
    found: dict[str, list[list[float]]] = {name: [] for name in ("all", *files.weights())}
    for keys in rounds.values():
        for some in found.values():
            some.append([])
        for key in keys:
            before, after = files.start(key), files.values(files.folder(key) / "weights.safetensors", files.kept(key))
            before["all"], after["all"] = (np.concatenate(list(one.values())) for one in (before, after))
            for name, some in found.items():
                some[-1].append(_measured(before[name], after[name], measure))
    x = [files.density(keys) for keys in rounds.values()]
    figure.check(len(ax.containers) == len(found), "not every weight is drawn")
    for (name, values), container in zip(found.items(), ax.containers, strict=False):
        mean = figure.bars(container, x, values, name)
        figure.label(container, "all weights" if name == "all" else name)
        figure.inside(x, mean, name)
    figure.finish()


def _measured(before: np.ndarray, after: np.ndarray, measure: str) -> float:
    size = math.sqrt(np.sum(before**2))
    if measure == "sign_changes":
        signed = before != 0
        changed = (before > 0) != (after > 0)
        return float(np.mean((changed | (after == 0))[signed])) if signed.any() else math.nan
    if measure == "cosine":
        product = size * math.sqrt(np.sum(after**2))
        return float(np.sum(before * after)) / product if product else math.nan
    return math.sqrt(np.sum((after - before) ** 2)) / size if size else math.nan


def _barriers(errors: list[np.ndarray]) -> list[float]:
    return [float(some.max() - (some[0] + some[-1]) / 2) for some in errors]


def look_at_barrier(figure: Figure, files: Files, split: str | None = None) -> None:
    ax, points = figure.ax, files.points
    splits = sorted(set(points["split"])) if split is None else [split]
    part = points[points["round"].isin(evenly(points["round"], 6 // len(splits)))]
    part = part[part["step"].isin(evenly(part["step"], 3))]
    rounds, steps = sorted(set(part["round"])), sorted(set(part["step"]))
    figure.panels = ax.child_axes
    named = {line.get_label(): line for line in labelled(ax.lines)}
    places = list(itertools.product(splits, rounds))
    figure.check(len(figure.panels) == len(places), f"{len(figure.panels)} panels of {len(places)} splits and rounds")
    for step in steps:
        line = named.pop(f"step {step}")
        figure.saw(line)
        figure.label(line, "step {:d}", step)
    figure.check(not named, "the legend has more")
    for panel, (which, index) in zip(figure.panels, places, strict=False):
        paths, bands = list(panel.lines), list(panel.collections)
        density = files.density(files.path_replicates(index, steps[0]))
        figure.text(panel.get_title(), which + ", round {:d}, density {:.3g}", index, density)
        here = [step for step in steps if ((part["round"] == index) & (part["step"] == step)).any()]
        figure.check(len(paths) == len(here), f"{which}, round {index}: not every path is drawn")
        for step in here:
            line, errors = paths.pop(0), files.errors(index, step, which)
            (name,) = among(ax.lines, f"step {step}")
            figure.check(line.get_label() == name.get_label(), f"{index}, {step}, {which}: another's name")
            alphas = np.arange(len(errors[0])) / (len(errors[0]) - 1)
            what = f"round {index}, step {step}, {which}"
            figure.line(line, alphas, np.mean(errors, axis=0), what)
            figure.band(line, bands, line.get_xdata(), np.transpose(errors), what)
            figure.check(line.get_linestyle() == name.get_linestyle(), f"{what}: the style of the other")
            figure.check(line.get_color() == name.get_color(), f"{what}: the legend has another colour")
            figure.inside(alphas, np.mean(errors, axis=0), what)
    _check_remark(figure, files)
    figure.finish("band")


def look_at_instability(figure: Figure, files: Files, over: str = "density") -> None:
    ax, points = figure.ax, files.points
    line, other = ("step", "round") if over == "density" else ("round", "step")
    containers = list(ax.containers)
    splits = sorted(set(points["split"]))
    (stable,) = among(ax.lines, "stable under 2 %")
    figure.label(stable, "stable under {:d} %", 2)
    figure.line(stable, [0, 1], [0.02, 0.02], "stable")
    for value, split in itertools.product(evenly(points[line], 6), splits):
        part = points[(points[line] == value) & (points["split"] == split)]
        if part.empty:  # this split was left out
            continue
        places = [(index, value) if over == "density" else (value, index) for index in sorted(set(part[other]))]
        values = [_barriers(files.errors(index, step, split)) for index, step in places]
        densities = [files.density(files.path_replicates(*place)) for place in places]
        x = densities if over == "density" else [step for _, step in places]
        if not containers:
            return figure.check(False, f"{line} {value}, {split} is not drawn")
        container = containers.pop(0)
        mean = figure.bars(container, x, values, f"{line} {value}, {split}")
        figure.label(container, f"{line} {{:d}}, {split}", value)
        figure.inside(x, mean, f"{line} {value}, {split}")
        style = container.lines[0].get_linestyle()
        figure.check(style == ("-" if split == "test" else "--"), f"{line} {value}, {split}: the style of the other")
    figure.check(not containers, "more is drawn than the files have")
    _check_remark(figure, files)
    return figure.finish()


def _check_remark(figure: Figure, files: Files) -> None:
    recomputed = bool(files.points["recomputed"].any())
    figure.check(("BatchNorm" in figure.caption) == recomputed, "the caption is wrong about BatchNorm")


def look_at_speed(figure: Figure, files: Files, interval: str = "range") -> None:
    ax, last, bounds = figure.ax, files.experiment["train"]["num_steps"], among(figure.ax.lines, "_open")
    (dense,) = among(ax.lines, "dense")
    figure.label(dense, "dense")
    figure.line(dense, [0, 1], [1, 1], "dense")

    def curve(key: Key) -> Table:
        metrics: Table = pd.read_csv(files.folder(key) / "metrics.csv")
        return metrics[metrics["split"] == "validation"]

    containers, any_bound = list(ax.containers), False
    for branch in files.branches():
        x, values, censored = [], [], []
        for index, keys in files.rounds(branch).items():
            shares, open_marks = [], False
            for key in keys if index else ():
                whole, own = curve((key[0], "ticket", 0)), curve(key)
                steps = whole["step"].iloc[int(np.argmin(whole["loss"]))]
                if not steps or files.records[key]["final_train_loss"] is None:
                    continue
                reached = own[own["loss"] <= whole["loss"].min()]["step"]
                open_marks |= reached.empty
                shares.append((last if reached.empty else reached.min()) / steps)
            if shares:
                x.append(files.density(keys))
                values.append(shares)
                censored.append(open_marks)
        if not values:
            continue
        if not containers:
            return figure.check(False, f"{branch} is not drawn")
        container = containers.pop(0)
        figure.label(container, branch)
        mean = figure.bars(container, x, values, branch, interval)
        figure.inside(x, mean, branch)
        if any(censored):
            any_bound = True
            if not bounds:
                return figure.check(False, f"{branch} has no open marks")
            figure.line(bounds.pop(0), np.array(x)[censored], mean[censored], f"{branch}, open")
    if any_bound and containers:
        figure.label(containers[-1], "lower bound")
        figure.saw(*containers.pop().lines[0:1])
    figure.check(not containers and not bounds, "more is drawn than the files have")
    figure.check(("lower bounds" in figure.caption) == any_bound, "open marks and the caption disagree")
    return figure.finish(interval=interval)


def look_at_classes(figure: Figure, files: Files, interval: str = "t") -> None:
    ax, read = figure.ax, files.few()
    (dense,) = among(ax.lines, "dense")
    figure.label(dense, "dense")
    figure.line(dense, [0, 1], [0, 0], "dense")
    shown = evenly([index for index in read if index], 4)
    figure.check(len(ax.containers) == len(shown), "not every round is drawn")

    def right(key: Key) -> dict[int, float]:
        arrays = safetensors.numpy.load_file(files.folder(key) / "predictions.safetensors")
        labels, hits = arrays["label"], arrays["early_stop"] == arrays["label"]
        return {int(label): float(hits[labels == label].mean()) for label in np.unique(labels)}

    for place, (index, container) in enumerate(zip(shown, ax.containers, strict=False)):
        keys = files.rounds()[index]
        gains = {key: (right(key), right((key[0], "ticket", 0))) for key in keys}
        classes = sorted(gains[keys[0]][0])
        values = [[own[label] - whole[label] for own, whole in gains.values()] for label in classes]
        aside = 0.7 * ((place + 0.5) / len(shown) - 0.5)
        figure.label(container, "density {:.3g}", files.density(keys))
        figure.bars(container, [label + aside for label in classes], values, f"round {index}", interval)
    return figure.finish(interval=interval)


LOOKS: dict[str, Callable[..., None]] = {
    "accuracy": look_at_accuracy,
    "speed": look_at_speed,
    "classes": look_at_classes,
    "early_stop": look_at_early_stop,
    "learning_curves": look_at_learning_curves,
    "layers": look_at_layers,
    "initial_weights": look_at_initial_weights,
    "degrees": look_at_degrees,
    "inputs": look_at_inputs,
    "overlap": look_at_overlap,
    "distance": look_at_distance,
    "barrier": look_at_barrier,
    "instability": look_at_instability,
}


def variants(kind: str, files: Files) -> list[dict[str, Any]]:
    """The options that each kind is drawn with, the defaults first."""
    weights, branches = files.weights(), files.branches()
    found: dict[str, list[dict[str, Any]]] = {
        "accuracy": [{"full": True}, {"interval": "t"}],
        "speed": [{"interval": "t"}],
        "early_stop": [{"interval": "t"}],
        "classes": [{"interval": "range"}],
        "learning_curves": [
            {"full": True}, {"most": 10**6}, {"most": 2}, {"measure": "loss", "split": "train", "most": 10**6},
            *({"branch": branch, "measure": "loss"} for branch in branches[1:2]),
        ],
        "layers": [{"branch": branch} for branch in branches[1:2]],
        "initial_weights": [{"weight": weight} for weight in weights[1:]],
        "degrees": [{"side": "out"}, *({"weight": weight} for weight in weights[1:])],
        "inputs": [{"replicate": replicate} for replicate in range(2, len(files.lasts()) + 1)],
        "overlap": [{"weight": weight} for weight in weights],
        "distance": [{"measure": measure} for measure in MEASURES[1:]],
        "barrier": [{"split": "test"}],
        "instability": [{"over": "step"}],
    }  # fmt: skip
    return [{}, *found[kind]]


def compared(
    run: Path, kinds: Iterable[str] | None = None, options: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Draw each kind of figure of a run, and compare every number with the files.

    Args:
        run: The run's folder.
        kinds: Which; every one of `lottery.plots.kinds` if None.
        options: What each is drawn with, once; a figure for each of its `variants` if None.

    Returns:
        A row for each kind: ``kind``, ``figures`` that were drawn, ``artists`` that were looked at, ``numbers`` that
        were compared, ``texts`` (numbers in texts and at ticks), ``difference``, the largest in absolute terms of the
        numbers, ``wrong``, a sentence for each thing that is not as the files say, and ``why`` it is not drawn.
    """
    files = Files(Path(run))
    rows = []
    for kind in plots.kinds() if kinds is None else kinds:
        row: dict[str, Any] = {"kind": kind, "figures": 0, "artists": 0, "numbers": 0, "texts": 0, "difference": 0.0}
        row |= {"wrong": [], "why": _nothing(kind, files)}
        rows.append(row)
        try:
            table = plots.read(files.run, kind)
            for chosen in variants(kind, files) if options is None else [options]:
                ax = plots.drawn(table, kind, **chosen).axes[0]
                said = ", ".join([kind, *(f"{name} {value}" for name, value in chosen.items())])
                figure = Figure(ax, said, plots.caption(table, kind, **chosen))
                LOOKS[kind](figure, files, **chosen)
                row["figures"] += 1
                for name in ("artists", "numbers", "texts", "wrong"):
                    row[name] += getattr(figure, name)
                row["difference"] = max(row["difference"], figure.difference)
        except LotteryError as error:
            if not row["why"]:
                row["wrong"].append(f"{kind} is not drawn: {error}")
        except (LookupError, ValueError) as error:  # such as a line that is not there
            row["wrong"].append(f"{kind} is not drawn as it should be: {error!r}")
        else:
            if row["why"]:
                row["wrong"].append(f"{kind} is drawn, but {row['why']}")
    return rows


def _nothing(kind: str, files: Files) -> str:
    """Why there is nothing to draw, if so."""
    if kind in ("barrier", "instability") and files.points.empty:
        return "no path is measured"
    if kind == "overlap" and len(files.lasts()) < 2:
        return "there is one replicate"
    return ""


def main() -> None:
    """Print what `compared` finds of a run; exit status 1 if anything is wrong."""
    if len(sys.argv) != 2:
        raise SystemExit("Usage: python -m tests.scripts.figures_from_files RUN")
    warnings.simplefilter("error")
    rows = compared(Path(sys.argv[1]))
    print(f"{'kind':16} {'figures':>7} {'artists':>7} {'numbers':>8} {'texts':>6}  largest difference")
    for row in rows:
        told = f"not drawn: {row['why']}" if row["why"] else f"{row['difference']:.1e}"
        print(f"{row['kind']:16} {row['figures']:7} {row['artists']:7} {row['numbers']:8} {row['texts']:6}  {told}")
    wrong = list(itertools.chain(*(row["wrong"] for row in rows)))
    print("\n".join(wrong) or "Every number is the files'.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
