"""A ticket as a file that others' programs load: written, opened again, and compared before it is in place."""

import contextlib
import io
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lottery import files, weights
from lottery import masks as masks_module
from lottery.enforcement import wrappers
from lottery.errors import LotteryError, unknown
from lottery.masks import Masks
from lottery.models import outputs
from lottery.models.library import evaluating
from lottery.tickets import formats
from lottery.tickets.reopened import Opened, zeros_kept

_CLOSE = 1e-5


# Writes a ticket to a path where nothing is, in a folder that is there: (model, masks, path, inputs). The model is a
# built one of Keras 3 or tf_keras whose masked entries are zero, and is left as it is; masks are boolean arrays by
# weight; inputs are examples as the model takes them, in its types. Each form uses of these what it needs. It raises a
# LotteryError where it does not take the model; what its library raises becomes one here.
Export = Callable[[Any, Masks, Path, Any], None]


# Opens what was written, as those who get it do: (path, model). The model that was written serves only to tell what a
# file does not: its library, or the structure of inputs.
Open = Callable[[Path, Any], Opened]


class Form(NamedTuple):
    """A kind of file.

    Attributes:
        write: The function that writes it.
        opened: The function that opens it again.
        file: What to call it where several formats are written to one folder.
        tolerance: How far outputs may be from the model's, of the largest; infinite where any finite difference may be.
    """

    write: Export
    opened: Open
    file: str
    tolerance: float = _CLOSE

    @property
    def suffix(self) -> str:
        """How its name ends; nothing for a folder."""
        return Path(self.file).suffix


# Where two have the same suffix, it means the first.
EXPORTS: dict[str, Form] = {
    "keras": Form(formats.keras, formats.keras_opened, "model.keras"),
    "saved_model": Form(formats.saved_model, formats.saved_model_opened, "saved_model"),
    "tflite": Form(formats.plain, formats.opened, "model.tflite"),
    "tflite_sparse": Form(formats.sparse, formats.opened, "model-sparse.tflite"),
    "tflite_int8": Form(formats.int8, formats.opened, "model-int8.tflite", math.inf),
    "onnx": Form(formats.onnx, formats.onnx_opened, "model.onnx"),
    "npz": Form(formats.npz, formats.npz_opened, "model.npz"),
    "tfmot": Form(formats.tfmot, formats.tfmot_opened, "model-tfmot.keras"),
}


@dataclass(frozen=True)
class Exported:
    """What was written, and what was seen when it was opened again.

    Attributes:
        path: The file, or the folder of a SavedModel.
        form: A key of `EXPORTS`.
        num_bytes: Its size; of a folder, that of its files.
        num_gzipped: Its size after gzip at level 9; of a folder, that of a tar file of it.
        difference: The largest difference of an output from the model's, over the model's largest output.
        agreement: Share of inputs for which the same entry of the output is the largest, at every place of every output
            (1 where an output has one entry).
        zeros_checked: Whether every masked entry was seen to be zero in what was opened. False where a converter took a
            weight apart so that it cannot be told; a masked entry seen not to be zero is an error.
    """

    path: Path
    form: str
    num_bytes: int
    num_gzipped: int
    difference: float
    agreement: float
    zeros_checked: bool


def export(model: Any, masks: Masks, path: str | Path, form: str | None = None, inputs: Any = None) -> Exported:
    """Write a ticket to a file that is loaded without this package, after it was opened again and compared.

    A file of this name is replaced, as is a SavedModel; a folder that is none is not. Until the new one is complete and
    has passed, the old one stays. While a file is written and opened, what the process prints to its standard output
    and errors, other threads included, is thrown away, for converters print from below Python.

    Args:
        model: A built Keras 3 or tf_keras model whose masked entries are zero. It is left as it is.
        masks: Boolean arrays by weight, True where the entry is kept.
        path: Where to; its folder is made.
        form: A key of `EXPORTS`. By default what the path's suffix says: ``.keras``, ``.tflite``, ``.onnx``, ``.npz``;
            without one, a SavedModel.
        inputs: Real examples as the network takes them, to compare on; ``"tflite_int8"`` takes the ranges of its
            integers from them too. By default a few random ones, where they can be made.

    Returns:
        Sizes, and how close the outputs are.

    Raises:
        LotteryError: A masked entry is not zero, here or in the file; the form does not take this model, or needs
            inputs; the model gives nothing finite on the inputs, or the file other outputs: differences are at most
            1e-5 of the largest, for ``"tflite_int8"``, which rounds, only finite; or the path cannot be written.
            Nothing has been written then.
    """
    path = Path(path)
    form = _form(path, form)
    one = EXPORTS[form]
    state = weights.read_state(model)
    _check_ticket(model, masks, state, form)
    if inputs is None:
        if form == "tflite_int8":
            raise LotteryError(
                'The form "tflite_int8" needs inputs, real examples as the network takes them: '
                "its integers are scaled to what the layers return on these."
            )
        with evaluating(f"Random inputs cannot be made for the model {model.name!r}, pass some"):
            inputs = outputs.random_inputs(model)
    inputs = _in_types(model, inputs)
    with evaluating(f"The model {model.name!r} fails on the inputs"):
        computed = outputs.evaluate(model, inputs, training=False)
    expected = outputs.comparable(computed, of=f"the model {model.name!r}")
    with files.replacing(path) as temporary:
        with _sentence(f"The model {model.name!r} cannot be exported as {form!r}", path):
            one.write(model, masks, temporary, inputs)
        with _sentence(f"What was exported as {form!r} does not work when it is opened again", path):
            again = one.opened(temporary, model)
            exported = outputs.evaluate(again.outputs, inputs)
            difference = outputs.between(expected, exported)
        if not (math.isfinite(difference) and difference <= one.tolerance):
            allowed = f"at most {one.tolerance:g}" if math.isfinite(one.tolerance) else "any finite difference"
            raise LotteryError(
                f"What was exported as {form!r} gives outputs that are {difference:.2g} of the largest away from those "
                f"of the model {model.name!r}, allowed is {allowed}, so nothing was written; export another form."
            )
        checked = zeros_kept(again, state, masks)
        num_bytes, num_gzipped = files.sizes(temporary)
    return Exported(path, form, num_bytes, num_gzipped, difference, _agreement(expected, exported), checked)


def _form(path: Path, form: str | None) -> str:
    """The form of a path, after a look at what is there."""
    if form is None:
        suffixes = {one.suffix: name for name, one in reversed(EXPORTS.items())}
        if path.suffix not in suffixes:
            raise unknown("The suffix of an exported file", path.suffix, sorted(suffixes))
        form = suffixes[path.suffix]
    if form not in EXPORTS:
        raise unknown("The form of an exported file", form, EXPORTS)
    suffix = EXPORTS[form].suffix
    if suffix and path.suffix != suffix:
        raise LotteryError(
            f"The form {form!r} is written to a file *{suffix}, received {str(path)!r}; change one of the two."
        )
    if path.is_dir() and (suffix or not (path / "saved_model.pb").is_file()):
        raise LotteryError(f"{str(path)!r} is a folder that holds no SavedModel; name another path, or remove it.")
    if path.exists() and not path.is_dir() and not suffix:
        raise LotteryError(f"{str(path)!r} is a file, and a SavedModel is a folder; name another path, or remove it.")
    return form


def _check_ticket(model: Any, masks: Masks, state: dict[str, np.ndarray], form: str) -> None:
    masks_module.check(masks, state)
    for name, mask in masks.items():
        if count := np.count_nonzero(state[name][~mask]):
            raise LotteryError(
                f"{count} masked entries of {name!r} are not zero in the model {model.name!r}, received a ticket that "
                "is not sparse; set them with lottery.weights.assign(model, lottery.masks.apply(lottery.weights.read("
                "model), masks))."
            )
    if form != "tfmot" and wrappers.find(model):
        raise LotteryError(
            f"The model {model.name!r} is wrapped by tfmot, without which {form!r} cannot be loaded; "
            'take the wrappers off with lottery.wrappers.strip, or export the form "tfmot".'
        )


def _in_types(model: Any, inputs: Any) -> Any:
    """Inputs in the types that a model is built for: Keras converts them, as other libraries do not."""
    import tensorflow as tf

    taken, given = getattr(model, "inputs", None) or (), tf.nest.flatten(inputs)
    if len(taken) != len(given):
        return inputs
    cast = [np.asarray(one, tf.as_dtype(spec.dtype).as_numpy_dtype) for one, spec in zip(given, taken, strict=True)]
    return tf.nest.pack_sequence_as(inputs, cast)


def _agreement(expected: list[np.ndarray], outputs: list[np.ndarray]) -> float:
    same = np.ones(len(expected[0]), bool)
    for one, other in zip(expected, outputs, strict=True):
        if one.ndim > 1:
            same &= (one.argmax(-1) == other.argmax(-1)).reshape(len(same), -1).all(1)
    return float(same.mean())


@contextlib.contextmanager
def _sentence(what: str, path: Path) -> Iterator[None]:
    """What a converter raises as one sentence, and what it prints, by Python or below it, kept to ourselves."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(evaluating(what))
        stack.enter_context(files.readable_errors(path))
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            with contextlib.suppress(AttributeError, ValueError, OSError):  # there is none, or it is closed
                stream.flush()
            stack.enter_context(_thrown_away(number))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        yield


@contextlib.contextmanager
def _thrown_away(descriptor: int) -> Iterator[None]:
    """What is written to a descriptor of the process goes nowhere; if it is closed, it is so again afterwards."""
    try:
        saved = os.dup(descriptor)
    except OSError:
        saved = None
    nowhere = os.open(os.devnull, os.O_WRONLY)  # may have become the descriptor itself
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    try:
        yield
    finally:
        if saved is None:
            os.close(descriptor)
        else:
            os.dup2(saved, descriptor)
            os.close(saved)
