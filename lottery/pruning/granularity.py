"""Granularities: which entries of the weights are kept or pruned together, and how their scores become one."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import masks as masks_module
from lottery import weights
from lottery.errors import LotteryError, unknown
from lottery.masks import Masks, Scores, Shapes
from lottery.models import units
from lottery.models.units import Units
from lottery.pruning.ranking import check_numbers


def l1(values: np.ndarray, present: np.ndarray, sizes: Any) -> np.ndarray:
    """The sum of a group's scores, which for absolute values is their L1 norm; or their mean."""
    # Not a product with `present`: zero times infinity is NaN.
    return np.where(present, values, 0).sum(axis=0) / sizes


def l2(values: np.ndarray, present: np.ndarray, sizes: Any) -> np.ndarray:
    """The root of the sum, or of the mean, of a group's squared scores, none of which may be negative."""
    if np.any(values[present] < 0):
        raise LotteryError(
            'prune.norm = "l2" squares the scores, and some are negative; use prune.norm = "l1", the sum of scores.'
        )
    return np.sqrt((np.where(present, values, 0) ** 2).sum(axis=0) / sizes)


def largest(values: np.ndarray, present: np.ndarray, sizes: Any) -> np.ndarray:
    """The highest of a group's scores; 0 of a group without any, as their sum."""
    highest = np.where(present, values, -np.inf).max(axis=0)
    return np.where(present.any(axis=0), highest, 0)


def first_kept(values: np.ndarray, present: np.ndarray, sizes: Any) -> np.ndarray:
    """The score of a group's first entry that is kept; 0 of a group without any.

    For scores that are drawn at random: a sum or a maximum of draws would tell how many entries a group has.
    """
    places = present.argmax(axis=0)[None]
    return np.where(present.any(axis=0), np.take_along_axis(values, places, axis=0)[0], 0)


# A function of scores in double precision, (entries of a group, groups), of an array that is True where an entry is
# still kept, and of what to divide the sums of groups by, to make them means.
Norm = Callable[[np.ndarray, np.ndarray, Any], np.ndarray]
# By the name in ``prune.norm``.
NORMS: dict[str, Norm] = {"l1": l1, "l2": l2, "max": largest}


@dataclass(frozen=True)
class Granularity:
    """What is kept or pruned as one, by a name in `GRANULARITIES`, with its settings; see ``[prune]``."""

    name: str = "weight"
    norm: str = "l1"
    block: tuple[int, ...] = ()
    n_of_m: tuple[int, ...] = ()

    @property
    def kind(self) -> "Kind":
        """What is known of every granularity of this name."""
        return GRANULARITIES[self.name]


class Groups:
    """The groups of the entries of some weights. Here each entry is a group by itself.

    Such are the tickets of Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635.
    """

    def __init__(self, weights: Shapes, how: Granularity, removable: Sequence[Units] = ()) -> None:
        self.weights = weights
        # Of arrays with an element for each group, by the weight under whose name groups are ranked.
        self.shapes = weights
        self.how = how

    def scored(self, name: str) -> list[str]:
        """List the weights whose entries make the scores of the groups that are ranked under a name."""
        return [name]

    def pool(self, scores: Scores, masks: Masks, is_mean: bool, norm: Norm | None = None) -> Scores:
        """Make a score of each group from its kept entries, a mean if groups of other sizes are ranked beside it.

        `norm` takes the place of the one that the granularity names.
        """
        return scores

    def alive(self, masks: Masks) -> Masks:
        """Find the groups of which an entry is kept."""
        return masks

    def expand(self, alive: Masks) -> Masks:
        """Make the masks of the weights that keep some groups: the inverse of `alive`."""
        return alive

    def broken(self, masks: Masks) -> list[str]:
        """List the weights whose masks keep a part of a group."""
        expected = self.expand(self.alive(masks))
        return [name for name, mask in masks.items() if np.any(mask != expected[name])]

    def shuffled(self, masks: Masks, rng: np.random.Generator) -> Masks:
        """Draw masks of the same structure at random, which keep as many groups of each weight."""
        raise NotImplementedError  # single entries have no structure; see `Plan.shuffled`

    def counts(self, num_rounds: int) -> dict[str, list[int]]:
        """Count what each round keeps of each weight, where that follows from the granularity."""
        return {}


class _Pooled(Groups):
    """Groups of several entries, whose scores are pooled."""

    def _members(self, name: str, arrays: Mapping[str, np.ndarray], fill: Any = 0) -> np.ndarray:
        """Arrange entries as (entries of a group, groups), with `fill` where there is no entry."""
        raise NotImplementedError

    def _sizes(self, name: str) -> np.ndarray:
        """Count the entries of each group, which may be fewer at the border of a matrix."""
        # Views of a single element: those of the other weights are not read, and take no time.
        whole = {weight: np.broadcast_to(True, shape) for weight, shape in self.weights.items()}
        return self._members(name, whole, False).sum(axis=0)

    def pool(self, scores: Scores, masks: Masks, is_mean: bool, norm: Norm | None = None) -> Scores:
        _check_scores(masks, scores)
        pooled, norm = {}, norm or NORMS[self.how.norm]
        for name, shape in self.shapes.items():
            # In double precision: sums in single precision would round to ties that the scores do not have.
            values = self._members(name, scores).astype(np.float64)
            present = self._members(name, masks, False)
            check_numbers(name, values[present])
            # Beside groups of other sizes the mean counts, so that a group is not kept for its size alone.
            are_uneven = np.unique(self._sizes(name)).size > 1
            divisors = np.maximum(present.sum(axis=0), 1) if is_mean or are_uneven else 1
            pooled[name] = norm(values, present, divisors).reshape(shape)
        return pooled

    def alive(self, masks: Masks) -> Masks:
        return {
            name: np.reshape(self._members(name, masks, False).any(axis=0), shape)
            for name, shape in self.shapes.items()
        }

    def shuffled(self, masks: Masks, rng: np.random.Generator) -> Masks:
        drawn: Masks = {}
        for name, present in self.alive(masks).items():
            sizes = self._sizes(name)
            kept = present.reshape(-1).copy()
            # Among groups of one size, so that as many entries are kept.
            for size in np.unique(sizes):
                kept[sizes == size] = rng.permutation(kept[sizes == size])
            drawn[name] = kept.reshape(present.shape)
        return self.expand(drawn)


class MadeUnits(_Pooled):
    """All weights into a unit of a layer; with it, those out of it.

    The filters of Li et al. 2017, https://arxiv.org/abs/1608.08710, section 3.1, ranked by the sum of absolute weights;
    for Dense layers, the same without windows. Layers whose outputs are added up, as in residual networks, share their
    units: their scores are pooled, and a unit goes from all of them. Units of the output layer, and of layers of the
    other kind, stay.
    """

    def __init__(self, weights: Shapes, how: Granularity, removable: Sequence[Units] = ()) -> None:
        super().__init__(weights, how)
        self._removable = {unit["made_by"][0]: unit for unit in removable}
        # Layers that share units are ranked as one, under the name of the first.
        self.shapes = {name: (int(unit["size"]),) for name, unit in self._removable.items()}
        for first, unit in self._removable.items():
            fits = [weights[name][-1] == unit["size"] for name in unit["made_by"] if name in weights]
            fits += [weights[name][-2] % unit["size"] == 0 for name in unit["read_by"] if name in weights]
            if not all(fits) or len(fits) < len(unit["made_by"]) + len(unit["read_by"]):
                raise LotteryError(f"The units of {first} do not fit the shapes of the weights.")

    def scored(self, name: str) -> list[str]:
        """List the kernels of the layers that share units."""
        return self._removable[name]["made_by"]

    def _members(self, name: str, arrays: Mapping[str, np.ndarray], fill: Any = 0) -> np.ndarray:
        kernels = [np.asarray(arrays[kernel]) for kernel in self.scored(name)]
        return np.concatenate([kernel.reshape(-1, kernel.shape[-1]) for kernel in kernels])

    def alive(self, masks: Masks) -> Masks:
        """Find the units that are kept, also where nothing goes into them, as nothing is left of the layer before."""
        found = super().alive(masks)
        for first, unit in self._removable.items():
            for name in unit["read_by"]:
                # What goes out of a unit goes with it.
                rows = masks[name].any(axis=(*range(masks[name].ndim - 2), -1))
                found[first] |= rows.reshape(-1, unit["size"]).any(axis=0)
        return found

    def expand(self, alive: Masks) -> Masks:
        """Keep what goes into and out of the units that are kept."""
        masks = {name: np.ones(shape, dtype=bool) for name, shape in self.weights.items()}
        for first, unit in self._removable.items():
            for name in unit["made_by"]:
                masks[name] &= alive[first]
            for name in unit["read_by"]:
                # After Flatten a unit has a row for each position of its window, and units change fastest.
                masks[name] &= np.resize(alive[first], masks[name].shape[-2])[:, None]
        return masks


class Blocks(_Pooled):
    """Blocks of a kernel as a matrix of (inputs, outputs), where the inputs are all its axes but the last.

    As the block sparsity of TensorFlow Model Optimization (tfmot), which knows matrices only: its ``AVG`` is the
    norm ``l1``, its ``MAX`` the norm ``max``. It keeps every block that scores as much as the last block that it
    keeps, so ties make it keep more. Blocks at the lower and right border may be smaller; here they count with the
    entries that they have, and all blocks of such a matrix by their means. tfmot pads the matrix on all sides
    before it pools and masks blocks from the upper left corner, so that it ranks such a matrix by windows that are
    not its blocks.
    """

    def __init__(self, weights: Shapes, how: Granularity, removable: Sequence[Units] = ()) -> None:
        super().__init__(weights, how)
        height, width = how.block
        self._matrices = {name: (math.prod(shape[:-1]), (shape or (1,))[-1]) for name, shape in weights.items()}
        self.shapes = {
            name: (-(-rows // height), -(-columns // width)) for name, (rows, columns) in self._matrices.items()
        }

    def _members(self, name: str, arrays: Mapping[str, np.ndarray], fill: Any = 0) -> np.ndarray:
        (height, width), (rows, columns), (down, across) = self.how.block, self._matrices[name], self.shapes[name]
        border = (0, down * height - rows), (0, across * width - columns)
        padded = np.pad(np.asarray(arrays[name]).reshape(rows, columns), border, constant_values=fill)
        return padded.reshape(down, height, across, width).transpose(1, 3, 0, 2).reshape(height * width, -1)

    def expand(self, alive: Masks) -> Masks:
        """Keep every entry of the blocks that are kept."""
        masks = {}
        for name, kept in alive.items():
            rows, columns = self._matrices[name]
            whole = kept.repeat(self.how.block[0], axis=0).repeat(self.how.block[1], axis=1)
            masks[name] = whole[:rows, :columns].reshape(self.weights[name]).copy()
        return masks


class NOfM(Groups):
    """The n highest of every m consecutive entries along the inputs, for each output.

    Mishra et al. 2021, https://arxiv.org/abs/2104.08378, section 3.1, of which 2 of 4 is what NVIDIA's sparse tensor
    cores multiply. The inputs are the last axis of a kernel but one: for a convolution, the input channels at each
    position of its window. If m does not divide them, the last group is as if padded with zeros: it keeps n entries, or
    all that it has. The masks are those of tfmot's ``sparsity_m_by_n`` with m - n zeros by m, which prunes the later of
    equal entries where this prunes the earlier.
    """

    def pool(self, scores: Scores, masks: Masks, is_mean: bool = False, norm: Norm | None = None) -> Scores:
        """Rank entries within their groups, the highest last at -1, so that ranking all prunes as many of each."""
        _check_scores(masks, scores)
        pooled = {}
        for name, mask in masks.items():
            check_numbers(name, np.asarray(scores[name])[mask])
            values = self._grouped(name, scores[name], 0)
            present = self._grouped(name, mask, False)
            # By the last key first, so that entries that are gone are lowest. Stable: of equals, the earlier is lower.
            order = np.lexsort((values, present), axis=2)
            ranks = np.empty(values.shape)
            places = np.arange(-values.shape[2], 0.0)[:, None]
            np.put_along_axis(ranks, order, np.broadcast_to(places, values.shape), axis=2)
            pooled[name] = self._ungrouped(name, ranks)
        return pooled

    def broken(self, masks: Masks) -> list[str]:
        """List the weights of which some m entries keep another number than the others."""
        found = []
        for name, mask in masks.items():
            counts = self._grouped(name, mask, False).sum(axis=2)
            sizes = self._grouped(name, np.ones_like(mask), False).sum(axis=2)
            if np.any(counts != np.minimum(sizes, counts.max(initial=0))):
                found.append(name)
        return found

    def shuffled(self, masks: Masks, rng: np.random.Generator) -> Masks:
        """Draw which entries each m keep, as many as they do."""
        drawn = {}
        for name, mask in masks.items():
            ranks = self.pool({name: rng.random(mask.shape)}, {name: np.ones_like(mask)})[name]
            num_kept = self._grouped(name, mask, False).sum(axis=2, keepdims=True)
            # Ranks count from -1 down, and what fills up a group is lower than all.
            drawn[name] = self._ungrouped(name, self._grouped(name, ranks, -np.inf) >= -num_kept)
        return drawn

    def counts(self, num_rounds: int) -> dict[str, list[int]]:
        """Let the number kept of each m fall evenly from m to n."""
        n, m = self.how.n_of_m
        rounds = [m - (m - n) * number // max(1, num_rounds) for number in range(num_rounds + 1)]
        found = {}
        for name in self.weights:
            others, inputs, outputs = self._axes(name)
            whole, rest = divmod(inputs, m)
            found[name] = [others * outputs * (whole * kept + min(rest, kept)) for kept in rounds]
        return found

    def _axes(self, name: str) -> tuple[int, int, int]:
        """Count the entries along all other axes, the inputs and the outputs."""
        missing = 2 - len(self.weights[name])  # axes: a vector has a single input
        *others, inputs, outputs = *[1] * missing, *self.weights[name]
        return math.prod(others), inputs, outputs

    def _grouped(self, name: str, array: np.ndarray, fill: Any) -> np.ndarray:
        """Arrange entries as (other axes, groups, m, outputs)."""
        others, inputs, outputs = self._axes(name)
        m = self.how.n_of_m[1]
        array = np.asarray(array).reshape(others, inputs, outputs)
        padded = np.pad(array, ((0, 0), (0, -inputs % m), (0, 0)), constant_values=fill)
        return padded.reshape(others, -1, m, outputs)

    def _ungrouped(self, name: str, array: np.ndarray) -> np.ndarray:
        """Arrange entries as the weight has them, without those that fill up the last group."""
        others, inputs, outputs = self._axes(name)
        return array.reshape(others, -1, outputs)[:, :inputs].reshape(self.weights[name])


@dataclass(frozen=True)
class Kind:
    """A granularity: its groups, and the words for them."""

    make: Callable[[Shapes, Granularity, Sequence[Units]], Groups]
    noun: str = "entries"  # what is counted
    pools: bool = False  # scores of several entries become one, by `NORMS`
    is_uneven: bool = False  # the groups of one weight may differ in size
    takes: str = ""  # the field of `Granularity` that it needs
    of_convolutions: bool | None = None  # whose units are groups: Dense (False) or convolutions (True)


# By the name in ``prune.granularity``.
GRANULARITIES: dict[str, Kind] = {
    "weight": Kind(Groups),
    "unit": Kind(MadeUnits, noun="units", pools=True, of_convolutions=False),
    "channel": Kind(MadeUnits, noun="channels", pools=True, of_convolutions=True),
    "block": Kind(Blocks, noun="blocks", pools=True, is_uneven=True, takes="block"),
    "n_of_m": Kind(NOfM, takes="n_of_m"),
}

# Those that remove units of a layer, whose names the layers' kernels have.
UNITS = tuple(name for name, kind in GRANULARITIES.items() if kind.of_convolutions is not None)


def grouped(how: Granularity, shapes: Shapes, removable: Sequence[Units] = ()) -> Groups:
    """Group the entries of all prunable weights; for units and channels, `removable` is what `units_of` lists.

    Raises:
        LotteryError: The model has no such unit, or the units do not fit the shapes.
    """
    found = how.kind.make(dict(shapes), how, removable)
    if not found.shapes:
        raise LotteryError(
            f'prune.granularity = "{how.name}": the model has no {how.name} that can be removed; the output '
            f"layer keeps every {how.name}."
        )
    return found


def units_of(how: Granularity, model: Any, whole: Collection[str] = ()) -> list[Units]:
    """List the units that a granularity removes from a model, for `grouped`; of weights and blocks there are none.

    Raises:
        LotteryError: The units are not known; or a prunable weight, which is not among `whole`, has other axes than
            inputs and outputs.
    """
    kind = how.kind
    if kind.of_convolutions is not None:
        return units.removable(model, kind.of_convolutions)
    if kind.takes:
        other = [name for name in weights.prunable(model) if name not in (*units.kernels(model), *whole)]
        if other:
            raise LotteryError(
                f'prune.granularity = "{how.name}" is for kernels of Dense and convolutions, not for {other[0]!r}; '
                f'keep it whole with prune.rates = {{ "{other[0]}" = 0.0 }}.'
            )
    return []


def check(how: Granularity) -> None:
    """Raise `LotteryError` unless a granularity has the settings that it needs, and no other."""
    if how.name not in GRANULARITIES:
        raise unknown("prune.granularity", how.name, GRANULARITIES)
    if how.norm not in NORMS:
        raise unknown("prune.norm", how.norm, NORMS)
    kind = how.kind
    # The settings have the names of their granularities.
    for key, example in {"block": "[4, 4]", "n_of_m": "[2, 4]"}.items():
        value = getattr(how, key)
        if bool(value) != (key == kind.takes):
            raise LotteryError(
                f'prune.{key} and prune.granularity = "{key}" go together: set both or neither, as in '
                f"prune.{key} = {example}."
            )
        if value and not _is_pair(value):
            given = list(value) if isinstance(value, tuple) else value
            raise LotteryError(f"prune.{key} must be two whole numbers from 1, not {given!r}.")
    if how.n_of_m and how.n_of_m[0] >= how.n_of_m[1]:
        raise LotteryError(f"prune.n_of_m must be [n, m] with n below m, not {list(how.n_of_m)}.")
    if how.norm != Granularity.norm and not kind.pools:
        pooling = " or ".join(f'"{name}"' for name, known in GRANULARITIES.items() if known.pools)
        raise LotteryError(
            f'prune.norm pools the scores of a group, so prune.granularity must be {pooling}, not "{how.name}".'
        )


def _is_pair(value: Any) -> bool:
    """Check if a value is a list or tuple of two whole numbers from 1; not True, which is an int to Python."""
    is_two = isinstance(value, list | tuple) and len(value) == 2
    return is_two and all(type(number) is int and number > 0 for number in value)


def _check_scores(masks: Masks, scores: Scores) -> None:
    masks_module.check(masks, {name: np.asarray(scores[name]) for name in masks if name in scores})
