"""Granularities: which entries of the weights are kept or pruned together, and how their scores become one."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import masks as masks_module
from lottery import weights
from lottery.errors import LotteryError, unknown
from lottery.masks import Masks
from lottery.models import units
from lottery.models.units import Units
from lottery.pruning.allocation import Shapes

Scores = Mapping[str, np.ndarray]


def l1(values: np.ndarray, present: np.ndarray, is_mean: bool) -> np.ndarray:
    """The sum of a group's scores, which for absolute values is their L1 norm; or their mean."""
    return np.where(present, values, 0).sum(axis=0) / (_sizes(present) if is_mean else 1)


def l2(values: np.ndarray, present: np.ndarray, is_mean: bool) -> np.ndarray:
    """The root of the sum, or of the mean, of a group's squared scores, none of which may be negative."""
    if np.any(values[present] < 0):
        raise LotteryError(
            'prune.norm = "l2" squares the scores, and some are negative; use prune.norm = "l1", the sum of scores.'
        )
    return np.sqrt((np.where(present, values, 0) ** 2).sum(axis=0) / (_sizes(present) if is_mean else 1))


def largest(values: np.ndarray, present: np.ndarray, is_mean: bool) -> np.ndarray:
    """The highest of a group's scores."""
    return np.where(present, values, -np.inf).max(axis=0)


# By the name in ``prune.norm``. Functions of scores in double precision, (entries of a group, groups), of an array that
# is True where an entry is still kept, and of whether groups of other sizes are ranked beside them: then the mean per
# kept entry counts, so that a group is not kept for its size alone.
NORMS: dict[str, Callable[[np.ndarray, np.ndarray, bool], np.ndarray]] = {"l1": l1, "l2": l2, "max": largest}


@dataclass(frozen=True)
class Granularity:
    """What is kept or pruned as one, by a name in `GRANULARITIES`, with its settings; see ``[prune]``."""

    name: str = "weight"
    norm: str = "l1"
    block: tuple[int, ...] = ()
    n_of_m: tuple[int, ...] = ()


class Entries:
    """Every entry of a weight by itself: the tickets of Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635."""

    noun = "entries"  # what is counted
    pools = False  # scores of several entries become one, by `NORMS`
    takes: tuple[str, ...] = ()  # the field of `Granularity` that it needs
    of_convolutions: bool | None = None  # whose units are groups: Dense (False) or convolutions (True)

    def __init__(self, shapes: Shapes, how: Granularity, removable: Sequence[Units] = ()) -> None:
        self.weights, self.how, self.units = dict(shapes), how, removable

    @property
    def shapes(self) -> Shapes:
        """The shape of an array with an element for each group, by the weight under whose name groups are ranked."""
        return self.weights

    def pool(self, scores: Scores, masks: Masks, is_mean: bool = False) -> Scores:
        """Make one score of each group from those of its kept entries, as arrays of `shapes`."""
        return scores

    def alive(self, masks: Masks) -> Masks:
        """Find the groups of which an entry is kept, as arrays of `shapes`."""
        return masks

    def expand(self, alive: Masks) -> Masks:
        """Make the masks of the weights that keep some groups; the inverse of `alive`."""
        return alive

    def counts(self, num_rounds: int) -> dict[str, list[int]]:
        """Count what each round keeps of each weight, if it follows from the granularity; empty if a schedule says."""
        return {}

    def broken(self, masks: Masks) -> list[str]:
        """List the weights whose masks keep a part of a group."""
        expected = self.expand(self.alive(masks))
        return [name for name, mask in masks.items() if np.any(mask != expected[name])]

    def shuffled(self, masks: Masks, rng: np.random.Generator) -> Masks:
        """Draw masks of the same structure at random, which keep as many groups, and entries, of each weight."""
        drawn: Masks = {}
        for name, mask in masks.items():
            drawn[name] = np.array(mask.reshape(-1)[rng.permutation(mask.size)]).reshape(mask.shape)
        return drawn


class _Pooled(Entries):
    """Groups whose scores are pooled."""

    pools = True

    def _members(self, name: str, arrays: Mapping[str, np.ndarray], fill: Any = 0) -> np.ndarray:
        """Arrange the entries of groups as an array of (entries of a group, groups); where there is none, `fill`."""
        raise NotImplementedError

    def pool(self, scores: Scores, masks: Masks, is_mean: bool = False) -> Scores:
        """Pool the scores of kept entries by ``prune.norm``."""
        masks_module.check(masks, {name: np.asarray(scores[name]) for name in masks if name in scores})
        pooled = {}
        for name, shape in self.shapes.items():
            values = self._members(name, scores).astype(np.float64)
            present = self._members(name, masks, False)
            if np.isnan(values[present]).any():
                raise LotteryError(f"The scores of {name!r} are not numbers (NaN), so they cannot be ranked.")
            pooled[name] = NORMS[self.how.norm](values, present, is_mean).reshape(shape)
        return pooled

    def alive(self, masks: Masks) -> Masks:
        """Find the groups of which an entry is kept."""
        alive: Masks = {}
        for name, shape in self.shapes.items():
            alive[name] = np.asarray(self._members(name, masks, False).any(axis=0)).reshape(shape)
        return alive

    def shuffled(self, masks: Masks, rng: np.random.Generator) -> Masks:
        """Draw masks that keep as many groups of each weight."""
        drawn: Masks = {}
        whole = masks_module.ones_like({name: np.empty(shape) for name, shape in self.weights.items()})
        for name, alive in self.alive(masks).items():
            # Among groups of one size, because those at the border of a matrix may be smaller.
            sizes = self._members(name, whole, False).sum(axis=0)
            kept = alive.reshape(-1).copy()
            for size in np.unique(sizes):
                kept[sizes == size] = rng.permutation(kept[sizes == size])
            drawn[name] = kept.reshape(alive.shape)
        return self.expand(drawn)


class DenseUnits(_Pooled):
    """All weights into a unit of a Dense layer; with it, those out of it. Kernels of convolutions stay whole.

    The filters of Li et al. 2017, https://arxiv.org/abs/1608.08710, section 3.1, ranked by the sum of absolute weights,
    for layers without windows. Units of the output layer stay.
    """

    noun, of_convolutions = "units", False

    def __init__(self, shapes: Shapes, how: Granularity, removable: Sequence[Units] = ()) -> None:
        super().__init__(shapes, how, removable)
        self._sizes = {one["made_by"][0]: (int(one["size"]),) for one in removable}
        self._made_by = {one["made_by"][0]: tuple(one["made_by"]) for one in removable}
        for one in removable:
            fits = [shapes[name][-1] == one["size"] for name in one["made_by"] if name in shapes]
            fits += [shapes[name][-2] % one["size"] == 0 for name in one["read_by"] if name in shapes]
            if not all(fits) or len(fits) < len(one["made_by"]) + len(one["read_by"]):
                raise LotteryError(f"The units of {one['made_by'][0]} do not fit the shapes of the weights.")

    @property
    def shapes(self) -> Shapes:
        """The shape of an array with an element for each group."""
        return self._sizes

    def _members(self, name: str, arrays: Mapping[str, np.ndarray], fill: Any = 0) -> np.ndarray:
        kernels = [np.asarray(arrays[kernel]) for kernel in self._made_by[name]]
        return np.concatenate([kernel.reshape(-1, kernel.shape[-1]) for kernel in kernels])

    def expand(self, alive: Masks) -> Masks:
        """Make the masks that keep some groups."""
        masks = {name: np.ones(shape, dtype=bool) for name, shape in self.weights.items()}
        for one in self.units:
            kept = alive[one["made_by"][0]]
            for name in one["made_by"]:
                masks[name] &= kept
            for name in one["read_by"]:
                masks[name] &= np.resize(kept, masks[name].shape[-2])[:, None]
        return masks


class Channels(DenseUnits):
    """All weights into an output channel of a convolution; with it, those out of it. Dense layers keep their units.

    The filters of Li et al. 2017, https://arxiv.org/abs/1608.08710, section 3.1. Convolutions whose outputs are added
    up, as in residual networks, share their channels: their scores are pooled, and a channel goes from all of them.
    """

    noun, of_convolutions = "channels", True


class Blocks(_Pooled):
    """Blocks of a kernel as a matrix of (inputs, outputs), where the inputs are all its axes but the last.

    As the block sparsity of TensorFlow Model Optimization (tfmot), which knows matrices only: its ``AVG`` is the norm
    ``l1``, its ``MAX`` the norm ``max``. It keeps every block that scores as much as the last block that it keeps, so
    ties make it keep more. Blocks at the lower and right border may be smaller; here they count with the entries that
    they have. tfmot pads the matrix on all sides before it pools and masks blocks from the upper left corner, so that
    it ranks such a matrix by windows that are not its blocks.
    """

    noun, takes = "blocks", ("block",)

    @property
    def shapes(self) -> Shapes:
        """The shape of an array with an element for each group."""
        return {name: self._grid(name) for name in self.weights}

    def _matrix(self, name: str) -> tuple[int, int]:
        *inputs, outputs = self.weights[name] or (1,)
        return math.prod(inputs), outputs

    def _grid(self, name: str) -> tuple[int, int]:
        (rows, columns), (height, width) = self._matrix(name), self.how.block
        return -(-rows // height), -(-columns // width)

    def _members(self, name: str, arrays: Mapping[str, np.ndarray], fill: Any = 0) -> np.ndarray:
        (rows, columns), (height, width), (down, across) = self._matrix(name), self.how.block, self._grid(name)
        matrix = np.asarray(arrays[name]).reshape(rows, columns)
        border = (0, down * height - rows), (0, across * width - columns)
        padded = np.pad(matrix, border, constant_values=fill)
        return padded.reshape(down, height, across, width).transpose(1, 3, 0, 2).reshape(height * width, -1)

    def expand(self, alive: Masks) -> Masks:
        """Make the masks that keep some groups."""
        masks, (height, width) = {}, self.how.block
        for name, kept in alive.items():
            rows, columns = self._matrix(name)
            whole = kept.repeat(height, axis=0).repeat(width, axis=1)
            masks[name] = whole[:rows, :columns].reshape(self.weights[name]).copy()
        return masks


class NOfM(Entries):
    """The n highest of every m consecutive entries along the inputs, for each output.

    Mishra et al. 2021, https://arxiv.org/abs/2104.08378, section 3.1, of which 2 of 4 is what NVIDIA's sparse tensor
    cores multiply. The inputs are the last axis of a kernel but one: for a convolution, the input channels at each
    position of its window. If m does not divide them, the last group is as if padded with zeros: it keeps n entries, or
    all that it has. The masks are those of tfmot's ``sparsity_m_by_n`` with m - n zeros by m, which prunes the later of
    equal entries where this prunes the earlier.
    """

    takes = ("n_of_m",)

    def _grouped(self, name: str, array: np.ndarray, fill: Any) -> np.ndarray:
        """Arrange entries as (other axes, groups, m, outputs)."""
        *others, inputs, outputs = self._axes(name)
        m = self.how.n_of_m[1]
        array = np.asarray(array).reshape(math.prod(others), inputs, outputs)
        padded = np.pad(array, ((0, 0), (0, -inputs % m), (0, 0)), constant_values=fill)
        return padded.reshape(math.prod(others), -1, m, outputs)

    def _ungrouped(self, name: str, array: np.ndarray) -> np.ndarray:
        *others, inputs, outputs = self._axes(name)
        return array.reshape(math.prod(others), -1, outputs)[:, :inputs].reshape(self.weights[name])

    def _axes(self, name: str) -> tuple[int, ...]:
        shape = tuple(self.weights[name])
        return shape if len(shape) > 1 else (1, *shape) if shape else (1, 1)

    def pool(self, scores: Scores, masks: Masks, is_mean: bool = False) -> Scores:
        """Rank entries within their groups, the highest last at -1, so that ranking all prunes as many of each."""
        pooled = {}
        for name, mask in masks.items():
            masks_module.check({name: mask}, {name: np.asarray(scores[name])} if name in scores else {})
            if np.isnan(np.asarray(scores[name])[mask]).any():
                raise LotteryError(f"The scores of {name!r} are not numbers (NaN), so they cannot be ranked.")
            values, present = self._grouped(name, scores[name], 0), self._grouped(name, mask, False)
            order = np.lexsort((values, present), axis=2)  # stable: of equals, the earlier is lower
            ranks = np.empty(values.shape)
            places = np.arange(-values.shape[2], 0.0)[:, None]
            np.put_along_axis(ranks, order, np.broadcast_to(places, values.shape), axis=2)
            pooled[name] = self._ungrouped(name, ranks)
        return pooled

    def counts(self, num_rounds: int) -> dict[str, list[int]]:
        """Let the number kept of each m fall evenly from m to n."""
        (n, m), counts = self.how.n_of_m, {}
        rounds = [m - (m - n) * index // max(1, num_rounds) for index in range(num_rounds + 1)]
        for name in self.weights:
            *others, inputs, outputs = self._axes(name)
            groups = math.prod(others) * outputs
            counts[name] = [groups * (inputs // m * kept + min(inputs % m, kept)) for kept in rounds]
        return counts

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
        """Draw masks that keep as many groups of each weight."""
        drawn = {}
        for name, mask in masks.items():
            ranks = self.pool({name: rng.random(mask.shape)}, {name: np.ones_like(mask)})[name]
            counts = self._grouped(name, mask, False).sum(axis=2, keepdims=True)
            kept = self._grouped(name, ranks, -np.inf) >= -counts
            drawn[name] = self._ungrouped(name, kept)
        return drawn


# By the name in ``prune.granularity``.
GRANULARITIES: dict[str, type[Entries]] = {
    "weight": Entries,
    "unit": DenseUnits,
    "channel": Channels,
    "block": Blocks,
    "n_of_m": NOfM,
}

# Those that remove units of a layer, whose names the layers' kernels have.
UNITS = tuple(name for name, one in GRANULARITIES.items() if one.of_convolutions is not None)


def grouped(how: Granularity, shapes: Shapes, removable: Sequence[Units] = ()) -> Entries:
    """Group the entries of weights.

    Args:
        how: The granularity; `check` says what is wrong with it.
        shapes: Of all prunable weights, by name.
        removable: For units and channels: what `lottery.models.units.removable` lists of the model.

    Raises:
        LotteryError: The model has no such unit, or the units do not fit the shapes.
    """
    found = GRANULARITIES[how.name](shapes, how, removable)
    if not found.shapes:
        raise LotteryError(
            f'prune.granularity = "{how.name}": the model has no {how.name} that can be removed; those of the output '
            "layer always stay."
        )
    return found


def units_of(how: Granularity, model: Any, whole: Collection[str] = ()) -> list[Units]:
    """List the units that a granularity removes from a model, for `grouped`; of weights and blocks there are none.

    Raises:
        LotteryError: The units are not known; or a prunable weight, which is not among `whole`, has other axes than
            inputs and outputs.
    """
    kind = GRANULARITIES[how.name]
    if kind.of_convolutions is not None:
        return units.removable(model, kind.of_convolutions)
    if kind.takes:
        other = [name for name in weights.prunable(model) if name not in (*units.kernels(model), *whole)]
        for name in other:
            raise LotteryError(
                f'prune.granularity = "{how.name}" is for kernels of Dense and convolutions, not for {name!r}; keep it '
                f'whole with prune.rates = {{ "{name}" = 0.0 }}.'
            )
    return []


def check(how: Granularity) -> None:
    """Raise `LotteryError` unless a granularity has the settings that it needs, and no other."""
    if how.name not in GRANULARITIES:
        raise unknown("prune.granularity", how.name, GRANULARITIES)
    if how.norm not in NORMS:
        raise unknown("prune.norm", how.norm, NORMS)
    kind = GRANULARITIES[how.name]
    for key, example in {"block": "[4, 4]", "n_of_m": "[2, 4]"}.items():
        value = getattr(how, key)
        if bool(value) != (key in kind.takes):
            fitting = next(name for name, one in GRANULARITIES.items() if key in one.takes)
            raise LotteryError(
                f'prune.{key} and prune.granularity = "{fitting}" go together: set both or neither, as in '
                f"prune.{key} = {example}."
            )
        if value and (len(value) != 2 or not all(type(one) is int and one > 0 for one in value)):
            raise LotteryError(f"prune.{key}: received {list(value)}, allowed are two whole numbers from 1.")
    if how.n_of_m and how.n_of_m[0] >= how.n_of_m[1]:
        raise LotteryError(f"prune.n_of_m: received {list(how.n_of_m)}, allowed is [n, m] with n below m.")
    if how.norm != Granularity.norm and not kind.pools:
        pooling = " or ".join(f'"{name}"' for name, one in GRANULARITIES.items() if one.pools)
        raise LotteryError(
            f'prune.norm pools the scores of a group, so prune.granularity must be {pooling}; received "{how.name}".'
        )


def _sizes(present: np.ndarray) -> np.ndarray:
    return np.maximum(present.sum(axis=0), 1)
