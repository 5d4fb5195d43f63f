"""Granularities: which entries of the weights are kept or pruned together, and how their scores become one."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lottery import masks as masks_module
from lottery import weights
from lottery.errors import LotteryError, unknown
from lottery.masks import Masks, Scores, Shapes
from lottery.models import units
from lottery.models.units import Units
from lottery.pruning.ranking import check_numbers


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

    @property
    def kind(self) -> "Kind":
        """What is known of every granularity of this name."""
        return GRANULARITIES[self.name]


@dataclass(frozen=True)
class Groups:
    """The groups of the entries of some weights: how many there are, and functions between groups and entries."""

    weights: Shapes
    shapes: Shapes  # of an array with an element for each group, by the weight under whose name groups are ranked
    # From scores, masks, and whether groups of other sizes are ranked beside them, to a score of each group.
    pool: Callable[[Scores, Masks, bool], Scores]
    alive: Callable[[Masks], Masks]  # finds the groups of which an entry is kept
    expand: Callable[[Masks], Masks]  # makes the masks of the weights that keep some groups; the inverse of `alive`
    broken: Callable[[Masks], list[str]]  # lists the weights whose masks keep a part of a group
    # Draws masks of the same structure at random, which keep as many groups of each weight; None without a structure.
    shuffled: Callable[[Masks, np.random.Generator], Masks] | None
    # From a number of rounds to what each keeps of each weight, where that follows from the granularity.
    counts: Callable[[int], dict[str, list[int]]] = lambda num_rounds: {}


@dataclass(frozen=True)
class Kind:
    """A granularity: its groups, and the words for them."""

    make: Callable[[Shapes, Granularity, Sequence[Units]], Groups]
    noun: str = "entries"  # what is counted
    pools: bool = False  # scores of several entries become one, by `NORMS`
    takes: str = ""  # the field of `Granularity` that it needs
    of_convolutions: bool | None = None  # whose units are groups: Dense (False) or convolutions (True)


def entries(shapes: Shapes, how: Granularity, removable: Sequence[Units] = ()) -> Groups:
    """Every entry of a weight by itself: the tickets of Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635."""
    same: Callable[[Masks], Masks] = lambda masks: masks  # noqa: E731
    return Groups(shapes, shapes, lambda scores, masks, is_mean: scores, same, same, lambda masks: [], None)


def made_units(shapes: Shapes, how: Granularity, removable: Sequence[Units] = ()) -> Groups:
    """All weights into a unit of a layer; with it, those out of it.

    The filters of Li et al. 2017, https://arxiv.org/abs/1608.08710, section 3.1, ranked by the sum of absolute weights;
    for Dense layers, the same without windows. Layers whose outputs are added up, as in residual networks, share their
    units: their scores are pooled, and a unit goes from all of them. Units of the output layer, and of layers of the
    other kind, stay.
    """
    made_by = {unit["made_by"][0]: tuple(unit["made_by"]) for unit in removable}
    for unit in removable:
        fits = [shapes[name][-1] == unit["size"] for name in unit["made_by"] if name in shapes]
        fits += [shapes[name][-2] % unit["size"] == 0 for name in unit["read_by"] if name in shapes]
        if not all(fits) or len(fits) < len(unit["made_by"]) + len(unit["read_by"]):
            raise LotteryError(f"The units of {unit['made_by'][0]} do not fit the shapes of the weights.")

    def members(name: str, arrays: Mapping[str, np.ndarray], fill: Any = 0) -> np.ndarray:
        kernels = [np.asarray(arrays[kernel]) for kernel in made_by[name]]
        return np.concatenate([kernel.reshape(-1, kernel.shape[-1]) for kernel in kernels])

    def expand(alive: Masks) -> Masks:
        masks = {name: np.ones(shape, dtype=bool) for name, shape in shapes.items()}
        for unit in removable:
            kept = alive[unit["made_by"][0]]
            for name in unit["made_by"]:
                masks[name] &= kept
            for name in unit["read_by"]:
                masks[name] &= np.resize(kept, masks[name].shape[-2])[:, None]
        return masks

    sizes = {unit["made_by"][0]: (int(unit["size"]),) for unit in removable}
    return _pooled(shapes, sizes, members, expand, how.norm)


def blocks(shapes: Shapes, how: Granularity, removable: Sequence[Units] = ()) -> Groups:
    """Blocks of a kernel as a matrix of (inputs, outputs), where the inputs are all its axes but the last.

    As the block sparsity of TensorFlow Model Optimization (tfmot), which knows matrices only: its ``AVG`` is the norm
    ``l1``, its ``MAX`` the norm ``max``. It keeps every block that scores as much as the last block that it keeps, so
    ties make it keep more. Blocks at the lower and right border may be smaller; here they count with the entries that
    they have. tfmot pads the matrix on all sides before it pools and masks blocks from the upper left corner, so that
    it ranks such a matrix by windows that are not its blocks.
    """
    height, width = how.block
    matrices = {name: (math.prod(shape[:-1]), (shape or (1,))[-1]) for name, shape in shapes.items()}
    grids = {name: (-(-rows // height), -(-columns // width)) for name, (rows, columns) in matrices.items()}

    def members(name: str, arrays: Mapping[str, np.ndarray], fill: Any = 0) -> np.ndarray:
        (rows, columns), (down, across) = matrices[name], grids[name]
        border = (0, down * height - rows), (0, across * width - columns)
        padded = np.pad(np.asarray(arrays[name]).reshape(rows, columns), border, constant_values=fill)
        return padded.reshape(down, height, across, width).transpose(1, 3, 0, 2).reshape(height * width, -1)

    def expand(alive: Masks) -> Masks:
        masks = {}
        for name, kept in alive.items():
            rows, columns = matrices[name]
            whole = kept.repeat(height, axis=0).repeat(width, axis=1)
            masks[name] = whole[:rows, :columns].reshape(shapes[name]).copy()
        return masks

    return _pooled(shapes, grids, members, expand, how.norm)


def _pooled(
    weights: Shapes,
    shapes: Shapes,
    members: Callable[..., np.ndarray],
    expand: Callable[[Masks], Masks],
    norm: str,
) -> Groups:
    """Make groups whose scores are pooled.

    `members`, of a name, arrays and a value for where there is no entry, arranges entries as (entries of a group,
    groups).
    """

    def pool(scores: Scores, masks: Masks, is_mean: bool) -> Scores:
        masks_module.check(masks, {name: np.asarray(scores[name]) for name in masks if name in scores})
        pooled = {}
        for name, shape in shapes.items():
            # In double precision: sums in single precision would round to ties that the scores do not have.
            values, present = members(name, scores).astype(np.float64), members(name, masks, False)
            check_numbers(name, values[present])
            pooled[name] = NORMS[norm](values, present, is_mean).reshape(shape)
        return pooled

    def alive(masks: Masks) -> Masks:
        return {name: np.asarray(members(name, masks, False).any(axis=0)).reshape(shapes[name]) for name in shapes}

    def broken(masks: Masks) -> list[str]:
        expected = expand(alive(masks))
        return [name for name, mask in masks.items() if np.any(mask != expected[name])]

    def shuffled(masks: Masks, rng: np.random.Generator) -> Masks:
        drawn: Masks = {}
        whole = masks_module.ones_like({name: np.empty(shape) for name, shape in weights.items()})
        for name, present in alive(masks).items():
            # Among groups of one size, because those at the border of a matrix may be smaller.
            sizes = members(name, whole, False).sum(axis=0)
            kept = present.reshape(-1).copy()
            for size in np.unique(sizes):
                kept[sizes == size] = rng.permutation(kept[sizes == size])
            drawn[name] = kept.reshape(present.shape)
        return expand(drawn)

    return Groups(weights, shapes, pool, alive, expand, broken, shuffled)


def n_of_m(shapes: Shapes, how: Granularity, removable: Sequence[Units] = ()) -> Groups:
    """The n highest of every m consecutive entries along the inputs, for each output.

    Mishra et al. 2021, https://arxiv.org/abs/2104.08378, section 3.1, of which 2 of 4 is what NVIDIA's sparse tensor
    cores multiply. The inputs are the last axis of a kernel but one: for a convolution, the input channels at each
    position of its window. If m does not divide them, the last group is as if padded with zeros: it keeps n entries, or
    all that it has. The masks are those of tfmot's ``sparsity_m_by_n`` with m - n zeros by m, which prunes the later of
    equal entries where this prunes the earlier.
    """
    n, m = how.n_of_m
    consecutive = _Consecutive(shapes, m)
    grouped, ungrouped = consecutive.grouped, consecutive.ungrouped

    def pool(scores: Scores, masks: Masks, is_mean: bool = False) -> Scores:
        """Rank entries within their groups, the highest last at -1, so that ranking all prunes as many of each."""
        pooled = {}
        for name, mask in masks.items():
            masks_module.check({name: mask}, {name: np.asarray(scores[name])} if name in scores else {})
            check_numbers(name, np.asarray(scores[name])[mask])
            values, present = grouped(name, scores[name], 0), grouped(name, mask, False)
            order = np.lexsort((values, present), axis=2)  # stable: of equals, the earlier is lower
            ranks = np.empty(values.shape)
            places = np.arange(-values.shape[2], 0.0)[:, None]
            np.put_along_axis(ranks, order, np.broadcast_to(places, values.shape), axis=2)
            pooled[name] = ungrouped(name, ranks)
        return pooled

    def broken(masks: Masks) -> list[str]:
        """List the weights of which some m entries keep another number than the others."""
        found = []
        for name, mask in masks.items():
            counts = grouped(name, mask, False).sum(axis=2)
            sizes = grouped(name, np.ones_like(mask), False).sum(axis=2)
            if np.any(counts != np.minimum(sizes, counts.max(initial=0))):
                found.append(name)
        return found

    def shuffled(masks: Masks, rng: np.random.Generator) -> Masks:
        drawn = {}
        for name, mask in masks.items():
            ranks = pool({name: rng.random(mask.shape)}, {name: np.ones_like(mask)})[name]
            kept = grouped(name, ranks, -np.inf) >= -grouped(name, mask, False).sum(axis=2, keepdims=True)
            drawn[name] = ungrouped(name, kept)
        return drawn

    def counts(num_rounds: int) -> dict[str, list[int]]:
        """Let the number kept of each m fall evenly from m to n."""
        found = {}
        rounds = [m - (m - n) * index // max(1, num_rounds) for index in range(num_rounds + 1)]
        for name in shapes:
            others, inputs, outputs = consecutive.axes(name)
            whole, rest = divmod(inputs, m)
            found[name] = [others * outputs * (whole * kept + min(rest, kept)) for kept in rounds]
        return found

    return replace(entries(shapes, how), pool=pool, broken=broken, shuffled=shuffled, counts=counts)


@dataclass(frozen=True)
class _Consecutive:
    """Arranges the entries of weights by every `m` consecutive inputs of an output, and back."""

    shapes: Shapes
    m: int

    def axes(self, name: str) -> tuple[int, int, int]:
        """Count the entries along all other axes, the inputs and the outputs."""
        missing = 2 - len(self.shapes[name])  # axes: a vector has a single input
        *others, inputs, outputs = *[1] * missing, *self.shapes[name]
        return math.prod(others), inputs, outputs

    def grouped(self, name: str, array: np.ndarray, fill: Any) -> np.ndarray:
        """Arrange entries as (other axes, groups, m, outputs)."""
        others, inputs, outputs = self.axes(name)
        array = np.asarray(array).reshape(others, inputs, outputs)
        padded = np.pad(array, ((0, 0), (0, -inputs % self.m), (0, 0)), constant_values=fill)
        return padded.reshape(others, -1, self.m, outputs)

    def ungrouped(self, name: str, array: np.ndarray) -> np.ndarray:
        """Arrange entries as the weight has them, without those that fill up the last group."""
        others, inputs, outputs = self.axes(name)
        return array.reshape(others, -1, outputs)[:, :inputs].reshape(self.shapes[name])


# By the name in ``prune.granularity``.
GRANULARITIES: dict[str, Kind] = {
    "weight": Kind(entries),
    "unit": Kind(made_units, noun="units", pools=True, of_convolutions=False),
    "channel": Kind(made_units, noun="channels", pools=True, of_convolutions=True),
    "block": Kind(blocks, noun="blocks", pools=True, takes="block"),
    "n_of_m": Kind(n_of_m, takes="n_of_m"),
}

# Those that remove units of a layer, whose names the layers' kernels have.
UNITS = tuple(name for name, kind in GRANULARITIES.items() if kind.of_convolutions is not None)


def grouped(how: Granularity, shapes: Shapes, removable: Sequence[Units] = ()) -> Groups:
    """Group the entries of weights.

    Args:
        how: The granularity; `check` says what is wrong with it.
        shapes: Of all prunable weights, by name.
        removable: For units and channels: what `lottery.models.units.removable` lists of the model.

    Raises:
        LotteryError: The model has no such unit, or the units do not fit the shapes.
    """
    found = how.kind.make(dict(shapes), how, removable)
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
    kind = how.kind
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
        if bool(value) != (key == kind.takes):
            fitting = next(name for name, known in GRANULARITIES.items() if key == known.takes)
            raise LotteryError(
                f'prune.{key} and prune.granularity = "{fitting}" go together: set both or neither, as in '
                f"prune.{key} = {example}."
            )
        if value and (len(value) != 2 or not all(type(number) is int and number > 0 for number in value)):
            raise LotteryError(f"prune.{key} must be two whole numbers from 1, not {list(value)}.")
    if how.n_of_m and how.n_of_m[0] >= how.n_of_m[1]:
        raise LotteryError(f"prune.n_of_m must be [n, m] with n below m, not {list(how.n_of_m)}.")
    if how.norm != Granularity.norm and not kind.pools:
        pooling = " or ".join(f'"{name}"' for name, known in GRANULARITIES.items() if known.pools)
        raise LotteryError(
            f'prune.norm pools the scores of a group, so prune.granularity must be {pooling}, not "{how.name}".'
        )


def _sizes(present: np.ndarray) -> np.ndarray:
    return np.maximum(present.sum(axis=0), 1)
