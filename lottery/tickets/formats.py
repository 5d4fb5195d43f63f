"""The formats of exported tickets: how each is written, and how it is opened again as its users open it.

A format is two functions and a record in `EXPORTS`. One writes ``(model, masks, path, inputs)``: a built Keras 3 or
tf_keras model whose masked entries are held, which it leaves as it is, to a free path, with examples in the types of
the model. The other opens ``(path, model)``; the model only tells what a file does not. Both may raise any error.
"""

import importlib.util
import io
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lottery import weights
from lottery.enforcement import tfmot
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.models.kerases import is_compiled, keras_of, put_back, tf
from lottery.tickets import tflite
from lottery.tickets.reopened import Opened, Stored


class ExportFormat(NamedTuple):
    """A format: the functions that write it and open it again, and what it takes."""

    write: Callable[[Any, Masks, Path, Any], None]
    opened: Callable[[Path, Any], Opened]
    file: str  # its name where all formats are written to one folder
    tolerance: float = 1e-5  # largest difference of outputs, over the model's largest; infinite for any finite one
    zeros_only: bool = False  # its point is that masked entries are zero, so it takes no others
    single: tuple[str, ...] = ()  # ``"inputs"``, ``"outputs"``: it takes models with one of these only
    real_inputs: str = ""  # why it needs real examples, if it does
    library: str | None = None  # the only library whose models it takes
    takes_wrappers: bool = False  # of tfmot, without which other formats cannot be loaded

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
    loaded: Any = tf.saved_model.load(str(path))
    # Several variables may have one name.
    tensors = {f"{variable.name}:{index}": Stored(variable.numpy()) for index, variable in enumerate(loaded.variables)}
    is_flat = keras_of(model).__name__ == "tf_keras"

    def outputs(inputs: Any) -> Any:
        # tf_keras takes several inputs as a list, whatever structure the model has.
        flat = tf.nest.flatten(inputs)
        return loaded.serve(flat if is_flat and len(flat) > 1 else inputs)

    return Opened(outputs, tensors, named=False)


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
        with put_back(weights.variables(model).values()):
            weights.assign(model, arrays)
            return model(inputs, training=False)

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
    taken, *others = session.get_inputs()
    if others:
        names = ", ".join(repr(other.name) for other in others)
        raise LotteryError(
            f"tf2onnx turns constants of the model {model.name!r} into additional inputs: {names}. (The layer "
            "Normalization of Keras 3 has such constants.) Export another form."
        )
    graph = library.load_model_from_string(content).graph
    tensors = {tensor.name: Stored(library.numpy_helper.to_array(tensor)) for tensor in graph.initializer}
    return Opened(lambda inputs: session.run(None, {taken.name: np.asarray(inputs)}), tensors, named=False)


_OF_TFLITE = {"opened": tflite.opened, "single": ("inputs", "outputs")}

# Where two have the same suffix, it means the first.
EXPORTS: dict[str, ExportFormat] = {
    "keras": ExportFormat(keras, keras_opened, "model.keras"),
    "saved_model": ExportFormat(saved_model, saved_model_opened, "saved_model"),
    "tflite": ExportFormat(tflite.plain, file="model.tflite", **_OF_TFLITE),
    "tflite_sparse": ExportFormat(tflite.sparse, file="model-sparse.tflite", zeros_only=True, **_OF_TFLITE),
    "tflite_int8": ExportFormat(
        tflite.int8,
        file="model-int8.tflite",
        tolerance=math.inf,
        real_inputs="its integers are scaled to what the layers return on these",
        **_OF_TFLITE,
    ),
    "onnx": ExportFormat(onnx, onnx_opened, "model.onnx", single=("inputs",)),
    "npz": ExportFormat(npz, npz_opened, "model.npz"),
    "tfmot": ExportFormat(
        in_wrappers, in_wrappers_opened, "model-tfmot.keras", zeros_only=True, library="tf_keras", takes_wrappers=True
    ),
}


def _copy(model: Any) -> Any:
    """Make the same network, not compiled, in new layers."""
    library = keras_of(model)
    is_compiled_here = library.__name__ == "keras" and model.compiled
    if is_compiled_here:
        model.compiled = False  # Keras 3 would compile the copy too, and make slots for an optimizer
    try:
        copy = library.models.clone_model(model)
    finally:
        if is_compiled_here:
            model.compiled = True
    if not getattr(copy, "built", False) or not copy.variables:
        raise LotteryError(
            f"The model {model.name!r} is a subclassed model, which Keras cannot copy; compiled models and tfmot need "
            'a copy: use a Sequential or functional model, or the form "saved_model".'
        )
    weights.assign(copy, weights.read_state(model))
    return copy
