"""From a network and its masks to the arrays that `lottery.sparse.kernels` works on.

Examples lie in lanes: a vector has one value of one entry of `WIDTH` examples, and a batch is a number of such blocks.
A tensor is an array ``[block][channel][row][column][lane]``. Around each image lie zeros, as many as a convolution that
reads it, or whose gradients are read from it, can reach; nothing ever writes there.

A layer with weights is a *pass* over its outputs. For each output channel, a pass has a list of the weights that are
left: the value of each, and where it reads, as an offset from the corner of the window. The passes of a convolution and
of a dense layer differ in their lists alone. So do outputs and gradients of inputs: those have the same weights, sorted
by input channel, and the offsets lead into the gradients of the outputs. A stride of two divides the inputs into four
passes, because even and odd rows and columns are reached by different weights.

A pass goes tile by tile. A tile is `TILE` vectors of outputs that stay in registers while the list is gone through:
neighbours in a row, and, where a row is shorter, the same places of following rows or blocks. Where the window that a
tile reads does not fit into the first cache, the list is divided into chunks of channels, unless it is short.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery.sparse import kernels
from lottery.sparse.kernels import TILE, WIDTH
from lottery.sparse.reading import (
    Activation,
    Linear,
    Moments,
    Network,
    Normalisation,
    Operation,
    Padding,
    Pair,
    Pooling,
    Term,
)

# Of the first cache, the part that the window of a tile may take.
WINDOW_BYTES = 16 * 1024
SHORTEST = 24  # weights of a list on average, where channels are divided into chunks
NARROW = 8  # images of fewer columns are gone through with all blocks at once


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: lengths in lanes, of an image with its zeros."""

    start: int  # its first value in memory
    row: int
    plane: int  # a channel
    block: int
    slopes_block: int  # a block of its gradients

    def at(self, channel: Any, row: Any, column: Any) -> Any:
        """Return the offset of entries from the corner of their block."""
        return channel * self.plane + row * self.row + column * WIDTH


class Packer:
    """A network for batches of one size: where everything lies, whatever the masks are."""

    def __init__(self, network: Network, batch_size: int) -> None:
        self.network, self.num_blocks = network, -(-batch_size // WIDTH)
        self.phases = self._phases()
        self.places: list[Place] = []
        first, shared = 0, self._shared()
        for number, tensor in enumerate(network.tensors):
            if shared[number] != number:
                self.places.append(self.places[shared[number]])
                continue
            reach = [each for other, own in enumerate(shared) if own == number for each in self._reach(other)]
            top, left, bottom, right = np.max([np.zeros(4, int), *reach], axis=0).tolist()
            row = left + tensor.width + right
            plane = (top + tensor.height + bottom) * row
            # Odd numbers of vectors, so that channels and blocks do not fall on the same lines of a cache.
            plane += plane % 2 == 0
            block = tensor.channels * plane
            block += block % 2 == 0
            lengths = (first + top * row + left, row, plane, *self._steps(number, shared, block))
            self.places.append(Place(*(length * WIDTH for length in lengths)))
            first += self.num_blocks * block
        self.size = first * WIDTH

    def is_wide(self, operation: Operation) -> bool:
        """Check if an operation takes all blocks at once."""
        widths = [self.network.tensors[number].width for number in (operation.source, operation.target)]
        return max(widths) < NARROW or (isinstance(operation, Linear) and operation.kind == "dense")

    def _phases(self) -> list[int]:
        """Number the phase of each operation: a phase goes block by block, or takes all blocks at once.

        Normalisation needs the sums over all blocks, so a phase ends after its first half.
        """
        number, was_wide, found = -1, None, []
        for operation in self.network.operations:
            is_wide = self.is_wide(operation)
            number += is_wide != was_wide or isinstance(operation, Normalisation)
            was_wide = is_wide
            found.append(number)
        return found

    def _steps(self, number: int, shared: Sequence[int], block: int) -> tuple[int, int]:
        """Return what leads from a block to the next, of values and of gradients: 0 where blocks take turns in a place.

        They do where all that reads and writes them is in one phase, which goes block by block, so that they stay in a
        cache. Values are read again backward: only those of a normalisation, which can be written again, take turns.
        """
        of_values, of_slopes, can_be_written_again = set(), set(), True
        for phase, operation in zip(self.phases, self.network.operations, strict=True):
            is_source, is_target = shared[operation.source] == number, shared[operation.target] == number
            if not (is_source or is_target):
                continue
            if number == 0 or self.is_wide(operation) or operation is self.network.operations[-1]:
                return block, block
            # Backward, the halves of a normalisation change places.
            if is_target or type(operation) is not Normalisation:
                of_slopes.add(phase)
            if is_source or type(operation) is not Moments:
                of_values.add(phase)
            can_be_written_again &= isinstance(operation, Linear if is_source else Moments)
        return block * (len(of_values) > 1 or not can_be_written_again), block * (len(of_slopes) > 1)

    def _shared(self) -> list[int]:
        """Return for each tensor the first tensor in whose place it lies: an activation or a sum may take its source's.

        Nobody else reads such a source, not even what wrote it, for its gradients, as a relu does; and a step writes
        all of it anew, as padding does not, whose zeros stay from the first step.
        """
        found = list(range(len(self.network.tensors)))
        writers = {operation.target: operation for operation in self.network.operations}
        for operation in self.network.operations:
            fits = (isinstance(operation, Term) and not operation.adds) or (
                isinstance(operation, Activation) and not kernels.ACTIVATIONS[operation.name].needs_input
            )
            is_only = self.network.readers(operation.source) == [operation]
            writer = writers.get(operation.source)
            is_free = isinstance(writer, (Linear, Normalisation)) or (isinstance(writer, Term) and not writer.clips)
            if fits and is_only and is_free:
                found[operation.target] = found[operation.source]
        return found

    def _reach(self, number: int) -> Iterator[np.ndarray]:
        """Yield how many rows and columns of zeros the convolutions at a tensor need: above, left, below, right."""
        tensors = self.network.tensors
        for operation in self.network.linear:
            if operation.kind == "dense" or number not in (operation.source, operation.target):
                continue
            window, step, zeros = np.array([operation.shape[:2], operation.strides, operation.before])
            taken, made = np.array(tensors[operation.source][:2]), np.array(tensors[operation.target][:2])
            if number == operation.source:
                before, after = zeros, (made - 1) * step + window - zeros - taken
            else:
                before, after = (window - 1 - zeros) // step, (taken - 1 + zeros) // step - (made - 1)
            yield np.concatenate([before, after])


@dataclass(frozen=True)
class _List:
    """The weights of a pass, in no order yet; one entry each, but for `targets`."""

    targets: np.ndarray  # where each row is written, which is a channel
    row: np.ndarray  # that an entry adds to
    channel: np.ndarray  # that it reads; 0 for all, where channels cannot be divided into chunks
    offset: np.ndarray  # where it reads
    place: np.ndarray  # among the parameters


@dataclass(frozen=True)
class _Walk:
    """The positions of a pass, with what it reads and writes at each."""

    source: Place
    target: Place
    grid: Pair  # how many rows and columns of positions
    window: Pair  # that is read at each position
    is_wide: bool  # takes all blocks at once
    steps: Pair = (1, 1)  # between positions, in the source
    target_steps: Pair = (1, 1)

    @property
    def groups(self) -> Pair:
        """From one group of a tile to the next, in source and target: a block, or a row."""
        if self.is_wide:
            return self.source.block, self.target.block
        return self.source.row * self.steps[0], self.target.row * self.target_steps[0]

    def num_chunks(self, num_channels: int) -> int:
        """Divide channels so that, of one part of them, the window of a tile fits into the first cache."""
        size = next(size for size in kernels.STEPS if size <= self.grid[1] or size == 1)
        columns = (size - 1) * self.steps[1] + self.window[1]
        rows = (TILE // size - 1) * self.steps[0] + self.window[0]
        if self.is_wide:
            rows = TILE // size * self.window[0]
        most = max(1, WINDOW_BYTES // (rows * columns * WIDTH * 4))
        return -(-num_channels // most)

    def tiles(self, num_blocks: int) -> np.ndarray:
        """List the tiles: the form of each, and where it reads and writes, from the corner of a block."""
        height, width = self.grid
        # A wide tile takes the same row of blocks that follow each other, others take rows of one block.
        num_outer, num_inner = (height, num_blocks) if self.is_wide else (1, height)
        found: list[tuple[int, int, int]] = []
        column = 0
        for size, known in kernels.STEPS.items():
            step = 1 if size == 1 else self.steps[1]
            while step in known and column + size <= width:
                for outer in range(num_outer):
                    inner = 0
                    while inner < num_inner:
                        most = min(TILE // size, num_inner - inner)
                        groups = next(groups for groups in kernels.STEPS if groups <= most)
                        block, row = (inner, outer) if self.is_wide else (0, inner)
                        reads = self.source.at(0, row * self.steps[0], column * self.steps[1])
                        writes = self.target.at(0, row * self.target_steps[0], column * self.target_steps[1])
                        form = kernels.FORMS.index((size, groups, step))
                        found.append((form, block * self.source.block + reads, block * self.target.block + writes))
                        inner += groups
                column += size
        return np.array(found, np.int64).reshape(-1, 3)


class Packing:
    """The arrays of a network under one mask.

    Args:
        packer: Where everything lies.
        entries: By variable, in the order of the parameters, the positions of the entries that are left. Kernels come
            first. The moving statistics are not among them.
    """

    def __init__(self, packer: Packer, entries: Mapping[str, np.ndarray]) -> None:
        self.packer, self.network, self.entries = packer, packer.network, entries
        self.first, total = {}, 0
        for name, left in entries.items():
            self.first[name], total = total, total + len(left)
        self.passes: list[dict[str, int]] = []
        self.arrays: dict[str, list[np.ndarray]] = {
            name: [] for name in ("begin", "targets", "offsets", "places", "tiles")
        }
        self.lengths = dict.fromkeys(self.arrays, 0)
        self.num_cells = self.num_channels = 0

    def layout(self) -> kernels.Layout:
        """Make all arrays."""
        network, packer = self.network, self.packer
        operations = [self._operation(operation) for operation in network.operations]
        self._order_gradients(operations)
        tensors = [*self._tensors(False), *self._tensors(True)]
        for operation, described in zip(network.operations, operations, strict=True):
            if isinstance(operation, (Activation, Term)):
                described["source"] += len(packer.places)
                described["target"] += len(packer.places)
            elif isinstance(operation, Padding):
                described["target"] = len(tensors)
                tensors.append(_inside(operation, tensors))
        arrays = {name: np.concatenate([*parts, np.zeros(0, np.int64)]) for name, parts in self.arrays.items()}
        features, targets = self._inputs()
        phases, runs = self._order()
        return kernels.Layout(
            operations=_table(operations, kernels.OPERATION),
            passes=_table(self.passes, kernels.PASS),
            tensors=_table(tensors, kernels.TENSOR),
            phases=phases,
            runs=runs,
            begin=arrays["begin"],
            targets=arrays["targets"],
            offsets=arrays["offsets"].astype(np.int32),
            places=arrays["places"].astype(np.int32),
            tiles=arrays["tiles"].reshape(-1, 3),
            features=features,
            inputs=targets,
            output=network.operations[-1].target,
            num_cells=self.num_cells,
            num_channels=self.num_channels,
            loss=[*kernels.LOSSES].index(network.loss),
            threshold=network.threshold,
            update=[*kernels.OPTIMIZERS].index(network.optimizer),
        )

    def _tensors(self, in_rows: bool) -> Iterator[dict[str, int]]:
        """Describe the tensors; with `in_rows`, a vector is a row of one channel, for operations on each value."""
        for tensor, place in zip(self.network.tensors, self.packer.places, strict=True):
            is_row = in_rows and place.plane == WIDTH
            width, channels = (tensor.channels, 1) if is_row else (tensor.width, tensor.channels)
            yield {"height": tensor.height, "width": width, "channels": channels, **vars(place)}

    def _order(self) -> tuple[np.ndarray, np.ndarray]:
        """Divide phases into runs; see `kernels.Layout`.

        A run of operations on each value goes channel by channel, so that what is small stays in the second cache from
        one operation to the next.
        """
        tensors = list(self._tensors(True))
        phases, runs = [], []
        for number, operation in enumerate(self.network.operations):
            is_wide, by_value = self.packer.is_wide(operation), isinstance(operation, (Activation, Term))
            by_channel = not is_wide and isinstance(operation, (Activation, Term, Moments))
            channels = self.network.tensors[operation.source].channels
            channels = tensors[operation.source]["channels"] if by_value else channels
            is_new = self.packer.phases[number] == len(phases)
            if is_new:
                phases.append([len(runs), 0, self.packer.num_blocks if is_wide else 1])
            at_once = 1 if by_channel else channels
            if is_new or not by_channel or runs[-1][2:] != [channels, at_once]:
                runs.append([number, 0, channels, at_once])
            runs[-1][1], phases[-1][1] = number + 1, len(runs)
        return np.array(phases, np.int64), np.array(runs, np.int64)

    def _operation(self, operation: Operation) -> dict[str, Any]:
        kind, describe = _KINDS[type(operation)]
        described = {"kind": kind, "source": operation.source, "target": operation.target, "function": -1}
        return described | describe(self, operation)

    def _moments(self, operation: Moments) -> dict[str, Any]:
        return {
            "gamma": self._at(operation.gamma), "beta": self._at(operation.beta), "channel": self.num_channels,
            "epsilon": operation.epsilon, "stays": operation.momentum, "moves": 1 - operation.momentum,
            "is_unbiased": operation.is_unbiased, "clips": operation.clips,
        }  # fmt: skip

    def _normalisation(self, operation: Normalisation) -> dict[str, Any]:
        described = self._moments(operation)  # the halves share their channels
        self.num_channels += self.network.tensors[operation.source].channels
        return described

    def _pooling(self, operation: Pooling) -> dict[str, Any]:
        return {
            "function": ("max", "mean").index(operation.name), "height": operation.window[0],
            "width": operation.window[1], "down": operation.strides[0], "right": operation.strides[1],
            "top": operation.before[0], "left": operation.before[1], "clips": operation.clips,
        }  # fmt: skip

    def _at(self, name: str | None) -> int:
        return -1 if name is None else self.first[name]

    def _order_gradients(self, operations: list[dict[str, Any]]) -> None:
        """Say which tensors need gradients, and which operation writes them first, so that others add."""
        needed = {0: False}
        for operation in operations:
            source, target = operation["source"], operation["target"]
            has_weights = operation["kind"] in (kernels.LINEAR, kernels.NORMALISATION)
            needed[target] = has_weights or needed[source] or needed.get(target, False)  # of terms, any
        written: set[int] = set()
        for operation in reversed(operations):
            # The second half of a normalisation comes first here; the gradients of its inputs are the first's.
            if operation["kind"] != kernels.NORMALISATION:
                operation["source_needed"] = int(needed[operation["source"]])
                operation["source_adds"] = int(operation["source"] in written)
                written.add(operation["source"])

    # --- Layers with weights, and their passes.

    def _linear(self, operation: Linear) -> dict[str, Any]:
        """Make the passes of a layer: its outputs, and the gradients of its inputs."""
        source, target = (self.packer.places[number] for number in (operation.source, operation.target))
        taken, made = (self.network.tensors[number] for number in (operation.source, operation.target))
        shape, size, inputs = operation.shape, taken[:2], np.arange(taken.channels) * source.plane
        if operation.kind == "dense":  # is a convolution of one pixel, whose channels are all entries
            shape, size = (1, 1, *shape), (1, 1)
            inputs = source.at(*_flat(np.arange(operation.shape[0]), taken))
        # Of each weight: its row and column in the window, the channels that it reads and writes, and its place.
        y, x, read, written = np.unravel_index(self.entries[operation.kernel], shape)
        # Channels are numbered in the order of memory, so that those which follow each other share lines of a cache.
        in_order = np.argsort(inputs)
        inputs, read = inputs[in_order], np.argsort(in_order)[read]
        if operation.kind == "depthwise":
            written = read * shape[3] + written
        places = self.first[operation.kernel] + np.arange(len(read))
        # Of a dense layer each input is a channel. Each output of a depthwise one reads a single channel.
        has_chunks = operation.kind != "depthwise"
        (down, right), (top, left), window = operation.strides, operation.before, (shape[0], shape[1])
        is_wide, first = self.packer.is_wide(operation), len(self.passes)
        outputs, offsets = np.arange(made.channels) * target.plane, inputs[read] + source.at(0, y - top, x - left)
        walk = _Walk(source, target, made[:2], window, is_wide, steps=operation.strides)
        self._add(_List(outputs, written, read * has_chunks, offsets, places), walk)
        # Inputs are reached by the weights whose row and column differ from their own by a number of steps. So there is
        # a pass for each remainder of rows and columns, with a part of the weights.
        reach = -(-window[0] // down), -(-window[1] // right)
        for row in range(down):
            for column in range(right):
                from_top, from_left = row + top - y, column + left - x
                fits = (from_top % down == 0) & (from_left % right == 0)
                offsets = target.at(written, from_top // down, from_left // right)[fits]
                targets = inputs + source.at(0, row, column)
                grid = -(-(size[0] - row) // down), -(-(size[1] - column) // right)
                walk = _Walk(target, source, grid, reach, is_wide, target_steps=operation.strides)
                self._add(_List(targets, read[fits], written[fits] * has_chunks, offsets, places[fits]), walk)
        is_single = made[:2] == (1, 1)
        writers = [at for at, each in enumerate(self.network.operations) if each.target == operation.source]
        described = {
            "writer": writers[-1] if source.block == 0 else -1, "clips": operation.clips,
            "source_clips": operation.source_clips,
            "bias": self._at(operation.bias), "first_pass": first, "last_pass": len(self.passes),
            "cells": self.num_cells, "is_single": is_single, "l1": operation.l1, "l2": operation.l2,
            "first_weight": self.first[operation.kernel], "last_weight": self.first[operation.kernel] + len(places),
        }  # fmt: skip
        num_cells = len(places) + (made.channels if operation.bias else 0)
        self.num_cells += num_cells * (1 if is_single else WIDTH)
        return described

    def _add(self, listed: _List, walk: _Walk) -> None:
        """Add a pass: sort its weights by chunk and row, and describe it by numbers."""
        num_rows, num_channels = len(listed.targets), int(listed.channel.max(initial=0)) + 1
        # Where few weights are left, to begin a list takes longer than the first cache saves.
        most = max(1, len(listed.row) // (num_rows * SHORTEST))
        num_chunks = min(walk.num_chunks(num_channels), most)
        chunk = listed.channel // -(-num_channels // num_chunks)
        order = np.lexsort((listed.offset, listed.row, chunk))
        counts = np.bincount(chunk * num_rows + listed.row, minlength=num_chunks * num_rows)
        # From the corner of a window to its last row, which the tile before has not read.
        lowest = (listed.offset - listed.channel * walk.source.plane).max(initial=0) - (walk.window[1] - 1) * WIDTH
        described = {
            "rows": num_rows, "channels": num_channels, "plane": walk.source.plane, "lowest": lowest,
            "chunks": num_chunks, "step": walk.target_steps[1] * WIDTH, "source_group": walk.groups[0],
            "target_group": walk.groups[1], "is_wide": walk.is_wide,
        }  # fmt: skip
        arrays = {
            "begin": self.lengths["offsets"] + np.concatenate([[0], np.cumsum(counts)]),
            "targets": listed.targets,
            "offsets": listed.offset[order],
            "places": listed.place[order],
            "tiles": walk.tiles(self.packer.num_blocks),
        }
        for name, values in arrays.items():
            described[f"first_{name}"] = self.lengths[name]
            self.arrays[name].append(values.reshape(-1))
            self.lengths[name] += len(values)
        described["last_tile"] = self.lengths["tiles"]
        self.passes.append(described)

    def _inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return which entries of an example are read, and where each is written."""
        shape = self.network.tensors[0]
        features = np.arange(np.prod(shape))
        readers = self.network.readers(0)
        dense = [reader for reader in readers if isinstance(reader, Linear) and reader.kind == "dense"]
        if len(dense) == len(readers):
            read = [np.unravel_index(self.entries[layer.kernel], layer.shape)[0] for layer in dense]
            features = np.unique(np.concatenate(read))
        return features, self.packer.places[0].at(*_flat(features, shape))


def _inside(padding: Padding, tensors: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Describe the image inside a padded one."""
    image, padded = tensors[padding.source], tensors[padding.target]
    top, left = padding.before
    start = padded["start"] + top * padded["row"] + left * WIDTH
    return {**padded, "start": start, "height": image["height"], "width": image["width"]}


def _flat(entries: np.ndarray, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return channel, row and column of entries that are numbered in Keras' order."""
    row, column, channel = np.unravel_index(entries, shape)
    return channel, row, column


def _table(rows: Sequence[Mapping[str, Any]], kind: np.dtype) -> np.ndarray:
    """Make a table of numbers with named columns; what a row does not name is 0."""
    table = np.zeros(len(rows), kind)
    for number, row in enumerate(rows):
        for name, value in row.items():
            table[number][name] = value
    return table


# By the class of an operation, its kind in `lottery.sparse.kernels`, and what else describes it by numbers. Terms and
# padding are activations without a function; padding writes into an image inside another.
_KINDS: dict[type[Operation], tuple[int, Callable[[Packing, Any], dict[str, Any]]]] = {
    Linear: (kernels.LINEAR, Packing._linear),
    Activation: (kernels.ACTIVATION, lambda _, own: {"function": [*kernels.ACTIVATIONS].index(own.name)}),
    Term: (kernels.ACTIVATION, lambda _, own: {"adds": own.adds, "clips": own.clips}),
    Padding: (kernels.ACTIVATION, lambda _, own: {}),
    Moments: (kernels.MOMENTS, Packing._moments),
    Normalisation: (kernels.NORMALISATION, Packing._normalisation),
    Pooling: (kernels.POOLING, Packing._pooling),
}
