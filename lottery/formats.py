"""Tickets as files of Keras, TensorFlow, NumPy, ONNX, tfmot (see `exporting.Export`), and opened (`exporting.Open`)."""

import importlib.util
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from lottery import compiling, weights, wrappers
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.reopened import Opened, Stored
from lottery.wrappable import check_library

_MASK = "mask:"
_ONNX = ("onnx", "onnxruntime", "tf2onnx")


def keras(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a model as Keras saves it, not compiled: without optimiser, loss and metrics.

    The library that made the model loads it by ``models.load_model``, without this package. Layers of your own must be
    known where it is loaded, as Keras wants it.
    """
    # What a model was compiled with is saved too, the slots of its optimiser included.
    (_copy(model) if compiling.is_compiled(model) else model).save(path)


def keras_opened(path: Path, model: Any) -> Opened:
    """Load what `keras` wrote."""
    return _of_model(compiling.keras_of(model).models.load_model(path))


def saved_model(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a TensorFlow SavedModel with Keras' ``export``; it has an endpoint ``serve``.

    Keras 3 (seen in 3.15) writes each variable twice, so that its folder has twice the bytes of tf_keras'.
    """
    model.export(str(path))


def saved_model_opened(path: Path, model: Any) -> Opened:
    """Load a SavedModel with TensorFlow alone."""
    import tensorflow as tf

    loaded: Any = tf.saved_model.load(str(path))
    tensors = {f"{one.name}:{index}": Stored(one.numpy()) for index, one in enumerate(loaded.variables)}
    is_flat = compiling.keras_of(model).__name__ == "tf_keras"

    def outputs(inputs: Any) -> Any:
        # tf_keras takes several inputs as a list, whatever structure the model has.
        flat = tf.nest.flatten(inputs)
        return loaded.serve(flat if is_flat and len(flat) > 1 else inputs)

    return Opened(outputs, tensors, named=False)


def npz(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write every variable by its stable name, and each mask as ``mask:NAME``, compressed.

    Raises:
        LotteryError: A variable is of a type that NumPy cannot store.
    """
    arrays: dict[str, Any] = weights.read_state(model)
    for name, value in arrays.items():
        if value.dtype.kind not in "biufc":
            raise LotteryError(f"The variable {name!r} is of type {value.dtype}, which an .npz file cannot hold.")
    arrays |= {_MASK + name: mask for name, mask in masks.items()}
    np.savez_compressed(path, **arrays)


def npz_opened(path: Path, model: Any) -> Opened:
    """Read what `npz` wrote; its outputs are the model's with the variables from the file in place of its own."""
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


def tfmot(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write a tf_keras model in pruning wrappers of tfmot that hold the masks and never recompute them.

    ``tf_keras.models.load_model`` loads it within ``tfmot.sparsity.keras.prune_scope()``, and it trains there without
    ``UpdatePruningStep``.

    Raises:
        LotteryError: It is a Keras 3 model or a subclassed one, or tfmot cannot hold a mask.
    """
    check_library(model)
    # A copy: the wrappers would share the layers of the caller's model.
    wrappers.wrap(_copy(model), masks).save(path)


def tfmot_opened(path: Path, model: Any) -> Opened:
    """Load what `tfmot` wrote, as tfmot says."""
    import tensorflow_model_optimization as library

    with library.sparsity.keras.prune_scope():
        return _of_model(compiling.keras_of(model).models.load_model(path))


def onnx(model: Any, masks: Masks, path: Path, inputs: Any) -> None:
    """Write an ONNX file with tf2onnx. Zeros are stored like other numbers.

    Raises:
        LotteryError: The packages are not installed, or the model has not one input.
    """
    if missing := [name for name in _ONNX if importlib.util.find_spec(name) is None]:
        raise LotteryError(f"ONNX needs {', '.join(missing)}; install them by: pip install 'lottery[onnx]'.")
    if len(getattr(model, "inputs", None) or ()) != 1:
        raise LotteryError(
            f"The model {model.name!r} has not one input, and ONNX is written for Sequential and functional models "
            'that do; use the form "saved_model".'
        )
    if compiling.keras_of(model).__name__ == "keras":
        with warnings.catch_warnings():
            # Keras looks whether NumPy has a name that it took away, and NumPy 2 says that it may come back.
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
    tensors = {one.name: Stored(library.numpy_helper.to_array(one)) for one in graph.initializer}
    return Opened(lambda inputs: session.run(None, {taken.name: np.asarray(inputs)}), tensors, named=False)


def _copy(model: Any) -> Any:
    """The same network, not compiled, in layers of its own."""
    library = compiling.keras_of(model)
    compiled = library.__name__ == "keras" and model.compiled
    try:
        if compiled:  # Keras 3 would compile the copy too, and make slots for an optimiser
            model.compiled = False
        copy = library.models.clone_model(model)
    finally:
        if compiled:
            model.compiled = True
    if not getattr(copy, "built", False) or not copy.variables:
        raise LotteryError(
            f"The model {model.name!r} is a subclassed one, of which Keras makes no copy, as is needed where it is "
            'compiled and for tfmot; use a Sequential or functional model, or the form "saved_model".'
        )
    weights.assign(copy, weights.read_state(model))
    return copy


def _of_model(loaded: Any) -> Opened:
    tensors = {name: Stored(value) for name, value in weights.read_state(loaded).items()}
    return Opened(lambda inputs: loaded(inputs, training=False), tensors, named=True)
