"""The formats of exported tickets: how each is written, and how it is opened again as its users open it.

A format is two functions and a line in `EXPORTS`. One writes ``(model, masks, path, inputs)``: a built Keras 3 or
tf_keras model whose masked entries are held, which it leaves as it is, to a free path, with examples in the types of
the model. The other opens ``(path, model)``; the model only tells what a file does not. Both may raise any error.
"""

import importlib.util
import io
import math
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lottery import weights
from lottery.enforcement import tfmot
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.models.kerases import is_compiled, is_keras, keras_of
from lottery.models.outputs import batch_size, evaluate, filled
from lottery.tickets.reopened import Opened, Stored


class ExportFormat(NamedTuple):
    """A format: the functions that write it and open it again."""

    write: Callable[[Any, Masks, Path, Any], None]
    opened: Callable[[Path, Any], Opened]
    file: str  # its name where all formats are written to one folder
    tolerance: float = 1e-5  # largest difference of outputs, over the model's largest; infinite for any finite one
    zeros_only: bool = False  # its point is that masked entries are zero, so it takes no others

    @property
    def suffix(self) -> str:
        """The end of its file names; empty for a folder."""
        return Path(self.file).suffix


def keras(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a model with Keras' own ``save``, without optimizer, loss and metrics; ``models.load_model`` loads it."""
    # Keras also saves what a model was compiled with, the slots of its optimizer included.
    (_copy(model) if is_compiled(model) else model).save(path)


def keras_opened(path: Path, model: Any) -> Opened:
    """Load a file of `keras`."""
    loaded = keras_of(model).models.load_model(path)
    tensors = {name: Stored(value) for name, value in weights.read_state(loaded).items()}
    return Opened(lambda inputs: loaded(inputs, training=False), tensors, named=True)


def saved_model(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a TensorFlow SavedModel with an endpoint ``serve``; Keras 3 (seen in 3.15) writes each variable twice."""
    model.export(str(path))


def saved_model_opened(path: Path, model: Any) -> Opened:
    """Load a SavedModel with TensorFlow alone."""
    import tensorflow as tf

    loaded: Any = tf.saved_model.load(str(path))
    tensors = {f"{variable.name}:{index}": Stored(variable.numpy()) for index, variable in enumerate(loaded.variables)}
    is_flat = keras_of(model).__name__ == "tf_keras"

    def outputs(inputs: Any) -> Any:
        # tf_keras takes several inputs as a list, whatever structure the model has.
        flat = tf.nest.flatten(inputs)
        return loaded.serve(flat if is_flat and len(flat) > 1 else inputs)

    return Opened(outputs, tensors, named=False)


def tflite(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a TFLite file of 32-bit numbers, zeros among them: it is no smaller than the dense network's.

    A network that loops over steps, as LSTM and GRU do, becomes a file that takes one example at a time.
    """
    path.write_bytes(_converted(model, lambda converter: None))


def tflite_sparse(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a TFLite file whose weights are encoded without their zeros (``Optimize.EXPERIMENTAL_SPARSITY``).

    Measured with TensorFlow 2.21 on single weights pruned evenly: the converter leaves a weight with fewer than about
    30 % zeros as it is, and otherwise stores a kept entry in 4 bytes and one or two for its place, so that the file is
    smaller below a density of about two thirds. It saves room, not time: the interpreter makes the weight dense first
    (DENSIFY, which interpreters for microcontrollers may lack). A Dense kernel below a density of about 3.5 % is stored
    in blocks of four inputs: the file is up to three times as large as at a slightly higher density (LeNet-300-100:
    61 kB at 3.6 %, 139 kB at 3.4 %), but inference skips zeros (at 2 % in 0.54 of the time).
    """
    import tensorflow as tf

    def encoded(converter: Any) -> None:
        converter.optimizations = [tf.lite.Optimize.EXPERIMENTAL_SPARSITY]

    path.write_bytes(_converted(model, encoded))


def tflite_int8(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a TFLite file that computes in 8-bit integers, and takes and returns 32-bit numbers.

    Weights are quantised symmetrically, by output channel: zero is the integer 0, so masked entries stay zero. Layers'
    outputs are quantised by their ranges on the inputs, which should be real examples; at most 500 of them are used,
    evenly spread, because more hardly widen the ranges.
    """
    import tensorflow as tf

    inputs = np.asarray(inputs)
    chosen = inputs[np.linspace(0, len(inputs) - 1, min(len(inputs), 500)).astype(int)]
    size = batch_size(model) or 1

    def in_integers(converter: Any) -> None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        batches = [filled(chosen[first : first + size], size) for first in range(0, len(chosen), size)]
        converter.representative_dataset = lambda: ([batch] for batch in batches)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]

    with warnings.catch_warnings():
        # A warning for every model whose inputs stay floating, though the examples do give the statistics.
        warnings.filterwarnings("ignore", "Statistics for quantized inputs were expected", UserWarning)
        path.write_bytes(_converted(model, in_integers))


def _converted(model: Any, settle: Callable[[Any], None]) -> bytes:
    """Convert a model to TFLite; `settle` sets the converter's options."""
    import tensorflow as tf

    _check_single(model, "inputs", "TFLite")
    _check_single(model, "outputs", "TFLite")
    layers = list(model._flatten_layers())
    if any(getattr(layer, "stateful", False) for layer in layers):
        raise LotteryError(
            f"The model {model.name!r} keeps a state between batches, which a TFLite file cannot; build it with "
            "stateful=False and use ticket.apply(model)."
        )
    for layer in layers:
        if type(layer).__name__ == "LSTM" and is_keras(type(layer), ["tf_keras"]) and not layer.unroll:
            raise LotteryError(
                f"The model {model.name!r} has the layer {layer.name!r}, an LSTM of tf_keras, whose state TFLite keeps "
                "from one call to the next; build it with unroll=True, or the network with Keras 3, and use "
                "ticket.apply(model)."
            )
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    settle(converter)
    try:
        return converter.convert()
    except Exception as error:
        # TFLite's own operations have no list of steps of an unknown size.
        if batch_size(model) is not None or not any(hasattr(layer, "return_sequences") for layer in layers):
            if lacking := re.search(r"TF Select ops: ([\w, ]+)", str(error)):
                raise LotteryError(
                    f"The model {model.name!r} needs operations that TFLite does not have ({lacking[1].strip()}); "
                    "build it of other layers, or in float32, and use ticket.apply(model), or export the form "
                    '"saved_model".'
                ) from error
            raise
    with tempfile.TemporaryDirectory() as folder:
        taken, module = model.inputs[0], tf.Module()
        example = tf.TensorSpec([1, *taken.shape[1:]], taken.dtype)
        call = tf.function(lambda x: model(x, training=False), [example], autograph=False)
        held = [one for variable in model.variables for one in weights.components(variable)]
        setattr(module, "held", held)  # noqa: B010 - what is saved must hold the variables
        tf.saved_model.save(module, folder, call.get_concrete_function())
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        settle(converter)
        return converter.convert()


def _check_single(model: Any, what: str, library: str) -> None:
    tensors = getattr(model, what, None)
    if tensors is None or len(tensors) != 1:
        raise LotteryError(
            f"The model {model.name!r} has {'no fixed' if tensors is None else len(tensors)} {what}, and {library} is "
            'written for Sequential and functional models with one; use the form "saved_model".'
        )


def tflite_opened(path: Path, model: Any) -> Opened:
    """Open a TFLite file with TensorFlow's interpreter, on one thread; its constants are decoded and dequantised."""
    import tensorflow as tf

    with warnings.catch_warnings():
        # It recommends a package that is not among TensorFlow's dependencies.
        warnings.filterwarnings("ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated", UserWarning)
        interpreter = tf.lite.Interpreter(model_content=path.read_bytes(), num_threads=1)

    taken = interpreter.get_input_details()[0]
    fixed = taken["shape_signature"][:1]

    def outputs(inputs: Any) -> np.ndarray:
        inputs = np.asarray(inputs, taken["dtype"])
        if tuple(interpreter.get_input_details()[0]["shape"]) != inputs.shape:
            interpreter.resize_tensor_input(taken["index"], inputs.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(taken["index"], inputs)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    def in_batches(inputs: Any) -> Any:
        return evaluate(outputs, np.asarray(inputs), int(fixed[0]) if fixed.size and fixed[0] > 0 else None)

    return Opened(in_batches, dict(_constants(interpreter)), named=False)


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


_MASK = "mask:"


def npz(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write every variable by its stable name, and each mask as ``mask:NAME``, compressed."""
    arrays: dict[str, Any] = weights.read_state(model)
    for name, value in arrays.items():
        if value.dtype.kind not in "biufc":
            raise LotteryError(f"The variable {name!r} is of type {value.dtype}, which an .npz file cannot hold.")
    arrays |= {_MASK + name: mask for name, mask in masks.items()}
    np.savez_compressed(path, **arrays)


def npz_opened(path: Path, model: Any) -> Opened:
    """Read a file of `npz`; its outputs are the model's, with the variables from the file in place of its own."""
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files if not name.startswith(_MASK)}
    if missing := sorted(weights.variables(model).keys() ^ arrays.keys()):
        raise LotteryError(f"{str(path)!r} holds other variables than the model {model.name!r}: {', '.join(missing)}.")

    def outputs(inputs: Any) -> Any:
        before = weights.read_state(model)
        try:
            weights.assign(model, arrays)
            return model(inputs, training=False)
        finally:
            weights.assign(model, before)

    return Opened(outputs, {name: Stored(value) for name, value in arrays.items()}, named=True)


def in_wrappers(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a tf_keras model in wrappers of tfmot that hold the masks; it trains without ``UpdatePruningStep``."""
    # `load_model` loads it within `tfmot.sparsity.keras.prune_scope()`.
    tfmot.check_library(model)
    # A copy, because the wrappers would share the layers of the caller's model.
    tfmot.wrap(_copy(model), masks).save(path)


def in_wrappers_opened(path: Path, model: Any) -> Opened:
    """Load a file of `in_wrappers`, as tfmot's documentation says."""
    import tensorflow_model_optimization as library

    with library.sparsity.keras.prune_scope():
        return keras_opened(path, model)


def onnx(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write an ONNX file with tf2onnx. Zeros are stored like other numbers."""
    if missing := [name for name in ("onnx", "onnxruntime", "tf2onnx") if importlib.util.find_spec(name) is None]:
        raise LotteryError(f"ONNX needs {', '.join(missing)}; install them by: pip install 'lottery[onnx]'.")
    _check_single(model, "inputs", "ONNX")
    if keras_of(model).__name__ == "keras":
        with warnings.catch_warnings():
            # Keras checks for a name that NumPy removed, and NumPy 2 warns that it may come back.
            warnings.filterwarnings("ignore", r"In the future `np\.object` will be defined", FutureWarning)
            model.export(str(path), format="onnx")
    else:
        import tf2onnx  # pyright: ignore[reportMissingImports]

        tf2onnx.convert.from_keras(model, output_path=str(path))


def onnx_opened(path: Path, model: Any) -> Opened:
    """Open an ONNX file with ONNX Runtime, on one thread."""
    import onnx as library  # pyright: ignore[reportMissingImports]
    import onnxruntime  # pyright: ignore[reportMissingImports]

    content = path.read_bytes()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    graph = library.load_model_from_string(content).graph
    tensors = {tensor.name: Stored(library.numpy_helper.to_array(tensor)) for tensor in graph.initializer}
    return Opened(lambda inputs: session.run(None, {taken.name: np.asarray(inputs)}), tensors, named=False)


# Where two have the same suffix, it means the first.
EXPORTS: dict[str, ExportFormat] = {
    "keras": ExportFormat(keras, keras_opened, "model.keras"),
    "saved_model": ExportFormat(saved_model, saved_model_opened, "saved_model"),
    "tflite": ExportFormat(tflite, tflite_opened, "model.tflite"),
    "tflite_sparse": ExportFormat(tflite_sparse, tflite_opened, "model-sparse.tflite", zeros_only=True),
    "tflite_int8": ExportFormat(tflite_int8, tflite_opened, "model-int8.tflite", math.inf),
    "onnx": ExportFormat(onnx, onnx_opened, "model.onnx"),
    "npz": ExportFormat(npz, npz_opened, "model.npz"),
    "tfmot": ExportFormat(in_wrappers, in_wrappers_opened, "model-tfmot.keras", zeros_only=True),
}


def _copy(model: Any) -> Any:
    """Make the same network, not compiled, in new layers."""
    library = keras_of(model)
    compiled = library.__name__ == "keras" and model.compiled
    try:
        if compiled:  # Keras 3 would compile the copy too, and make slots for an optimizer
            model.compiled = False
        copy = library.models.clone_model(model)
    finally:
        if compiled:
            model.compiled = True
    if not getattr(copy, "built", False) or not copy.variables:
        raise LotteryError(
            f"The model {model.name!r} is a subclassed model, which Keras cannot copy; compiled models and tfmot need "
            'a copy: use a Sequential or functional model, or the form "saved_model".'
        )
    weights.assign(copy, weights.read_state(model))
    return copy
