"""TFLite files: plain, with zeros left out, or in 8-bit integers; and how TensorFlow's interpreter opens them again."""

import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lottery import weights
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.models.kerases import is_keras, operations, tf, traced_call
from lottery.models.outputs import batch_size, evaluate, filled
from lottery.tickets.reopened import Opened, Stored


def plain(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a TFLite file of 32-bit numbers, zeros among them: it is no smaller than the dense network's.

    A network that loops over steps, as LSTM and GRU do, becomes a file that takes one example at a time.
    """
    path.write_bytes(_converted(model, lambda converter: None))


def sparse(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a TFLite file whose weights are encoded without their zeros (``Optimize.EXPERIMENTAL_SPARSITY``).

    Measured with TensorFlow 2.21 on single weights pruned evenly: the converter leaves a weight with fewer than about
    30 % zeros as it is, and otherwise stores a kept entry in 4 bytes and one or two for its place, so that the file is
    smaller below a density of about two thirds. It saves room, not time: the interpreter makes the weight dense first
    (DENSIFY, which interpreters for microcontrollers may lack). A Dense kernel below a density of about 3.5 % is stored
    in blocks of four inputs: the file is up to three times as large as at a slightly higher density (LeNet-300-100:
    61 kB at 3.6 %, 139 kB at 3.4 %), but inference skips zeros (at 2 % in 0.54 of the time).
    """

    def encoded(converter: Any) -> None:
        converter.optimizations = [tf.lite.Optimize.EXPERIMENTAL_SPARSITY]

    path.write_bytes(_converted(model, encoded))


def int8(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a TFLite file that computes in 8-bit integers, and takes and returns 32-bit numbers.

    Weights are quantised symmetrically, by output channel: zero is the integer 0, so masked entries stay zero. Layers'
    outputs are quantised by their ranges on the inputs, which should be real examples; at most 500 of them are used,
    evenly spread, because more hardly widen the ranges.
    """
    inputs = np.asarray(inputs)
    chosen = inputs[np.linspace(0, len(inputs) - 1, min(len(inputs), 500)).astype(int)]
    size = batch_size(model) or 1
    # The converter of TensorFlow 2.21 would end the whole process, by a fault of memory.
    if {"While", "StatelessWhile"} & operations(_traced(model, size)):
        raise LotteryError(
            f"The model {model.name!r} loops over steps, and TensorFlow cannot convert a loop to 8-bit integers; build "
            'its recurrent layers with unroll=True and use ticket.apply(model), or export the form "tflite".'
        )

    def in_integers(converter: Any) -> None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        batches = [filled(chosen[first : first + size], size) for first in range(0, len(chosen), size)]
        converter.representative_dataset = lambda: ([batch] for batch in batches)
        # Otherwise operations that it cannot quantise would stay in floats, and no error would tell.
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]

    with warnings.catch_warnings():
        # A warning for every model whose inputs stay floating, though the examples do give the statistics.
        warnings.filterwarnings("ignore", "Statistics for quantized inputs were expected", UserWarning)
        path.write_bytes(_converted(model, in_integers))


def _converted(model: Any, configure: Callable[[Any], None]) -> bytes:
    """Convert a model to TFLite; `configure` sets the converter's options."""
    layers = weights.all_layers(model)
    if any(getattr(layer, "stateful", False) for layer in layers):
        raise LotteryError(
            f"The model {model.name!r} keeps a state between batches, which a TFLite file cannot; build it with "
            "stateful=False and use ticket.apply(model)."
        )
    for layer in layers:
        if type(layer).__name__ == "LSTM" and is_keras(type(layer), ["tf_keras"]) and not layer.unroll:
            raise LotteryError(
                f"The layer {layer.name!r} is an LSTM of tf_keras, whose state TFLite keeps from one call to the next; "
                "build it with unroll=True, or with Keras 3, and use ticket.apply(model)."
            )
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    configure(converter)
    try:
        return converter.convert()
    except Exception as error:
        takes_any_batch = batch_size(model) is None
        if takes_any_batch and any(hasattr(layer, "return_sequences") for layer in layers):
            # TFLite's own operations have no list of steps of an unknown size.
            return _of_one_example(model, configure)
        lacking = re.search(r"TF Select ops: ([\w, ]+)", str(error))
        if lacking is None:
            raise
        raise LotteryError(
            f"The model {model.name!r} needs operations that TFLite does not have ({lacking[1].strip()}); build it of "
            'other layers, or in float32, and use ticket.apply(model), or export the form "saved_model".'
        ) from error


def _traced(model: Any, size: int) -> Any:
    taken = model.inputs[0]
    return traced_call(model, tf.TensorSpec([size, *taken.shape[1:]], taken.dtype))


def _of_one_example(model: Any, configure: Callable[[Any], None]) -> bytes:
    """Convert a model, by way of a SavedModel, to a file that takes one example at a time."""
    with tempfile.TemporaryDirectory() as folder:
        call = _traced(model, 1)
        module = tf.Module()
        held = [component for variable in model.variables for component in weights.components(variable)]
        setattr(module, "held", held)  # noqa: B010 - what is saved must hold the variables
        tf.saved_model.save(module, folder, call)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        configure(converter)
        return converter.convert()


def opened(path: Path, model: Any) -> Opened:
    """Open a TFLite file with TensorFlow's interpreter, on one thread; its constants are decoded and dequantised."""
    with warnings.catch_warnings():
        # It recommends a package that is not among TensorFlow's dependencies.
        warnings.filterwarnings("ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated", UserWarning)
        interpreter = tf.lite.Interpreter(model_content=path.read_bytes(), num_threads=1)

    taken = interpreter.get_input_details()[0]
    fixed = taken["shape_signature"][:1]
    # A signature of −1 takes a batch of any size.
    size = int(fixed[0]) if fixed.size and fixed[0] > 0 else None

    def outputs(inputs: Any) -> np.ndarray:
        inputs = np.asarray(inputs, taken["dtype"])
        if tuple(interpreter.get_input_details()[0]["shape"]) != inputs.shape:
            interpreter.resize_tensor_input(taken["index"], inputs.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(taken["index"], inputs)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    constants = dict(_constants(interpreter))
    return Opened(lambda inputs: evaluate(outputs, np.asarray(inputs), size), constants, named=False)


def _constants(interpreter: Any) -> Iterator[tuple[str, Stored]]:
    """Yield the constants of an interpreter, which can be read only until it allocates its tensors."""
    for tensor in interpreter.get_tensor_details():
        try:
            values = interpreter.get_tensor(tensor["index"])
        except ValueError:
            continue
        if tensor["sparsity_parameters"]:
            values = decoded(values, tensor["shape"], tensor["sparsity_parameters"])
        quantised = tensor["quantization_parameters"]
        step: Any = 0.0
        if quantised["scales"].size:
            along = [1] * values.ndim
            if quantised["scales"].size > 1:
                along[quantised["quantized_dimension"]] = -1
            step, zero = (quantised[key].reshape(along) for key in ("scales", "zero_points"))
            values = (values.astype(np.int32) - zero) * step
        if values.dtype.kind == "f":
            yield f"{tensor['name']}:{tensor['index']}", Stored(values, step)


def decoded(values: np.ndarray, shape: Any, encoding: Mapping[str, Any]) -> np.ndarray:
    """Decode an array that TFLite encodes sparsely; zero where nothing is stored.

    It is a tree of dimensions, after Chou, Kjolstad & Amarasinghe 2018, https://arxiv.org/abs/1804.10112: under each
    entry of one dimension all places of the next (a dense dimension), or a list of some (a sparse one). A dimension
    that is cut into blocks comes a second time, for the place within the block. `encoding` is the interpreter's.
    """
    places = np.zeros((1, 0), np.int64)  # one row for each entry so far, one column for each dimension passed
    for level in encoding["dim_metadata"]:
        # By TFLite's schema: 0 is a dense dimension, 1 a sparse one.
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
