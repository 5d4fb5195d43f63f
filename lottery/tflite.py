"""Tickets as TFLite files: plain, sparse, in whole numbers (see `exporting.Export`), and opened (`exporting.Open`)."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.reopened import Opened, Stored

# Calibration asks for the range of each layer's outputs, which more inputs hardly widen.
_NUM_CALIBRATED = 500


def plain(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a TFLite file of 32-bit numbers, zeros among them: it is no smaller than the dense network's.

    Raises:
        LotteryError: The model has not one input and one output.
    """
    path.write_bytes(_converter(model).convert())


def sparse(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a TFLite file whose weights are encoded without their zeros (``Optimize.EXPERIMENTAL_SPARSITY``).

    The converter decides weight by weight, for kernels of Dense layers and of convolutions, of any shape. As measured
    with TensorFlow 2.21 on single weights pruned evenly:

    - With fewer than about 30 % zeros a weight is left as it is, so that a dense network's file is the plain one.
    - Otherwise a kept entry is stored in 4 bytes and one or two for its place, so the file is smaller below a density
      of about two thirds. It saves room, not time: the interpreter makes the weight dense first (DENSIFY, an operation
      that interpreters for microcontrollers may lack), with XNNPACK and without.
    - A Dense kernel below a density of about 3.5 % is stored in blocks of four inputs, most of them three quarters
      zeros: the file is then up to three times as large as at a slightly higher density (LeNet-300-100: 61 kB at 3.6 %,
      139 kB at 3.4 %, 91 kB at 2 %), but the interpreter computes with the blocks (at 2 % in 0.54 of the time).

    What is encoded are zeros, whether masked or not.

    Raises:
        LotteryError: The model has not one input and one output.
    """
    import tensorflow as tf

    converter = _converter(model)
    converter.optimizations = [tf.lite.Optimize.EXPERIMENTAL_SPARSITY]
    path.write_bytes(converter.convert())


def int8(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a TFLite file that computes in 8-bit integers, and takes and returns 32-bit numbers.

    Weights are quantised symmetrically, by output channel: zero is the integer 0, so masked entries stay zero. Layers'
    outputs are quantised by the ranges that they have on the inputs, which should be real examples; at most 500 of them
    are used, evenly spread.

    Raises:
        LotteryError: The model has not one input and one output.
    """
    import tensorflow as tf

    def calibration() -> Iterator[list[np.ndarray]]:
        for one in chosen:
            yield [one[None]]

    inputs = np.asarray(inputs)
    chosen = inputs[np.linspace(0, len(inputs) - 1, min(len(inputs), _NUM_CALIBRATED)).astype(int)]
    converter = _converter(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = calibration
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    with warnings.catch_warnings():
        # Said of every model whose inputs stay floating, though the examples do give the statistics.
        warnings.filterwarnings("ignore", "Statistics for quantized inputs were expected", UserWarning)
        path.write_bytes(converter.convert())


def opened(path: Path, model: Any) -> Opened:
    """Open a TFLite file with the interpreter that others have, on one thread.

    Its constants are decoded where they are sparse, and of integers they are the real values.
    """
    interpreter = _interpreter(path)
    constants = dict(_constants(interpreter))
    return Opened(_outputs(interpreter), constants, named=False)


def _converter(model: Any) -> Any:
    import tensorflow as tf

    sides = (("inputs", getattr(model, "inputs", None)), ("outputs", getattr(model, "outputs", None)))
    for what, tensors in sides:
        if tensors is None or len(tensors) != 1:
            found = "no fixed" if tensors is None else len(tensors)
            raise LotteryError(
                f"The model {model.name!r} has {found} {what}, and TFLite is written for Sequential and functional "
                'models with one; use the form "saved_model".'
            )
    return tf.lite.TFLiteConverter.from_keras_model(model)


def _interpreter(path: Path) -> Any:
    import tensorflow as tf

    with warnings.catch_warnings():
        # It names a package to use in its place, which is not among TensorFlow's dependencies.
        warnings.filterwarnings("ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated", UserWarning)
        return tf.lite.Interpreter(model_content=path.read_bytes(), num_threads=1)


def _outputs(interpreter: Any) -> Callable[[Any], np.ndarray]:
    def outputs(inputs: Any) -> np.ndarray:
        taken = interpreter.get_input_details()[0]
        inputs = np.asarray(inputs, taken["dtype"])
        if tuple(taken["shape"]) != inputs.shape:
            interpreter.resize_tensor_input(taken["index"], inputs.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(taken["index"], inputs)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    return outputs


def _constants(interpreter: Any) -> Iterator[tuple[str, Stored]]:
    """The constants of an interpreter that has allocated nothing yet: so only they can be read."""
    for one in interpreter.get_tensor_details():
        try:
            values = interpreter.get_tensor(one["index"])
        except ValueError:
            continue
        if one["sparsity_parameters"]:
            values = decoded(values, one["shape"], one["sparsity_parameters"])
        quantised = one["quantization_parameters"]
        step: Any = 0.0
        if quantised["scales"].size:
            along = [1] * values.ndim
            if quantised["scales"].size > 1:
                along[quantised["quantized_dimension"]] = -1
            step, zero = (quantised[key].reshape(along) for key in ("scales", "zero_points"))
            values = (values.astype(np.int32) - zero) * step
        if values.dtype.kind == "f":
            yield f"{one['name']}:{one['index']}", Stored(values, step)


def decoded(values: np.ndarray, shape: Any, encoding: Mapping[str, Any]) -> np.ndarray:
    """The dense array of a sparsely encoded one.

    TFLite stores it as a tree of dimensions, after Chou, Kjolstad & Amarasinghe 2018, https://arxiv.org/abs/1804.10112:
    under each entry of one dimension all places of the next (a dense dimension), or a list of some (a sparse one). A
    dimension that is cut into blocks comes a second time, for the place within the block.

    Args:
        values: The values that are stored, in the order of the tree.
        shape: The shape of the dense array.
        encoding: ``traversal_order``, ``block_map`` and ``dim_metadata`` as the interpreter gives them.

    Returns:
        The array, zero where nothing is stored.
    """
    places = np.zeros((1, 0), np.int64)  # one row for each entry so far, one column for each dimension passed
    for level in encoding["dim_metadata"]:
        if level["format"] == 0:
            size = int(level["dense_size"])
            counts, own = np.full(len(places), size), np.tile(np.arange(size), len(places))
        else:
            counts, own = np.diff(level["array_segments"]), np.asarray(level["array_indices"])
        places = np.column_stack([np.repeat(places, counts, axis=0), own])
    index = np.zeros((len(shape), len(places)), np.int64)
    order, blocks = list(encoding["traversal_order"]), list(encoding["block_map"])
    sizes = [int(encoding["dim_metadata"][order.index(len(shape) + at)]["dense_size"]) for at in range(len(blocks))]
    for column, dimension in enumerate(order):
        if dimension < len(shape):
            size = sizes[blocks.index(dimension)] if dimension in blocks else 1
            index[dimension] += places[:, column] * size
        else:
            index[blocks[dimension - len(shape)]] += places[:, column]
    dense = np.zeros(tuple(shape), values.dtype)
    dense[tuple(index)] = values
    return dense
