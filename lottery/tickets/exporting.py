"""Export a ticket: write a file that other programs load, open it again, and compare before it takes its place."""

import contextlib
import io
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lottery import files, weights
from lottery import masks as masks_module
from lottery.enforcement import tfmot
from lottery.errors import LotteryError, unknown
from lottery.masks import Masks, Weights
from lottery.models import outputs
from lottery.models.kerases import evaluating, tf
from lottery.tickets.formats import EXPORTS
from lottery.tickets.reopened import are_held

# Largest difference of an output, over the largest output, that comes from the order of operations in half precision.
_ROUNDING = {"float16": 5e-3, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Exported:
    """An exported file, and how it compares with the model."""

    path: Path  # of a SavedModel, the folder
    form: str
    num_bytes: int  # of a folder, those of its files
    num_gzipped: int  # bytes after gzip at level 9; of a folder, those of a tar file of it
    difference: float  # the largest of an output from the model's, over the model's largest output
    # Share of inputs with the same largest entry of the output, at every place of every output; of an output of one
    # entry, on the same side of its middle (zero, or a half between 0 and 1), as of two classes.
    agreement: float
    zeros_checked: bool  # False if a converter took a weight apart, so that its masked entries were not seen to be held


def export(
    model: Any,
    masks: Masks,
    path: str | Path,
    form: str | None = None,
    inputs: Any = None,
    held_at: Weights | None = None,
) -> Exported:
    """Write a ticket to a file that can be loaded without this package, and compare it with the model.

    An existing file or SavedModel is replaced as soon as the new file is complete and has passed the comparison; any
    other folder is refused. Converters print from below Python, so everything that the process prints during the
    export is thrown away, including the output of other threads.

    Args:
        model: A built Keras 3 or tf_keras model whose masked entries are zero, or at `held_at`. It is not changed,
            except that a stateful model forgets its state.
        masks: Boolean arrays by weight, True where the entry is kept.
        path: The file to write; its folder is made.
        form: A key of `EXPORTS`. By default the path's suffix decides: ``.keras``, ``.tflite``, ``.onnx``, ``.npz``;
            without one, a SavedModel.
        inputs: Real examples as the network takes them, to compare on; ``"tflite_int8"`` also takes the ranges of its
            integers from them. By default a few random inputs, if form and model allow them.
        held_at: The values of masked entries by weight, as `Ticket.held_at` has them; zero if missing.

    Raises:
        LotteryError: A masked entry is not held, here or in the file; the form does not take this model, or zeros only,
            or needs inputs; the model gives nothing finite on the inputs, or the file other outputs: differences are
            at most 1e-5 of the largest, in half precision what it rounds off, for ``"tflite_int8"``, which rounds, only
            finite; or the path cannot be written. Nothing has been written then.
    """
    path = Path(path)
    form = form_of(path, form)
    how = EXPORTS[form]
    state = weights.read_state(model)
    held_at = held_at or {}
    _check_ticket(model, masks, state, form, held_at)
    inputs, expected = _computed(model, _examples(model, inputs, form))
    with files.replacing(path) as temporary:
        with _silent(f"The model {model.name!r} cannot be exported as {form!r}", path):
            how.write(model, masks, temporary, inputs)
        with _silent(f"What was exported as {form!r} does not work when it is opened again", path):
            again = how.opened(temporary, model)
            exported = outputs.evaluate(again.outputs, inputs, outputs.batch_size(model))
            difference = outputs.between(expected, exported)
        _check_difference(model, form, difference)
        checked = are_held(again, state, masks, held_at)
        num_bytes, num_gzipped = files.sizes(temporary)
    return Exported(path, form, num_bytes, num_gzipped, difference, _agreement(expected, exported), checked)


def form_of(path: Path, form: str | None) -> str:
    """Return the form for a path, or raise if the path, or what is there, does not fit."""
    if form is None:
        # Of formats with the same suffix, the first is meant.
        suffixes = {how.suffix: name for name, how in reversed(EXPORTS.items())}
        if path.suffix not in suffixes:
            raise unknown("The suffix of an exported file", path.suffix, sorted(suffixes))
        form = suffixes[path.suffix]
    if form not in EXPORTS:
        raise unknown("The form of an exported file", form, EXPORTS)
    suffix = EXPORTS[form].suffix
    if suffix and path.suffix != suffix:
        raise LotteryError(f"The form {form!r} is written to a file *{suffix}, not to {str(path)!r}.")
    # What is there may be the user's, so only what was exported before is replaced.
    fits = path.is_file() if suffix else (path / "saved_model.pb").is_file()
    if path.exists() and not fits:
        kind = "file" if suffix else "SavedModel"
        raise LotteryError(f"{str(path)!r} is there already, and is not a {kind}; name another path, or remove it.")
    return form


def _check_ticket(model: Any, masks: Masks, state: dict[str, np.ndarray], form: str, held_at: Weights) -> None:
    """Raise unless the masked entries of a model are held, and a form takes such a model."""
    how = EXPORTS[form]
    leaks = masks_module.leaks(state, masks, held_at)
    if leaks:
        name, count = next(iter(leaks.items()))
        what, arguments = ("at their held values", "masks, held_at") if held_at else ("zero", "masks")
        raise LotteryError(
            f"{count:,} masked entries of {name!r} are not {what} in the model {model.name!r}; set them with "
            f"lottery.enforcement.project(model, {arguments})."
        )
    others = masks_module.leaks(state, masks)
    if others and how.zeros_only:
        name, count = next(iter(others.items()))
        raise LotteryError(
            f"The form {form!r} takes masked entries of zero only, and the ticket holds {count:,} of {name!r} at "
            "other values; export another form."
        )
    if tfmot.find(model) and not how.takes_wrappers:
        takers = " or ".join(repr(name) for name, other in EXPORTS.items() if other.takes_wrappers)
        raise LotteryError(
            f"The model {model.name!r} is wrapped by tfmot, so {form!r} could not be loaded without tfmot. Take the "
            f"wrappers off with lottery.enforcement.tfmot.strip, or export the form {takers}."
        )
    for what in how.single:
        tensors = getattr(model, what, None)
        if tensors is None or len(tensors) != 1:
            number = "no fixed" if tensors is None else len(tensors)
            raise LotteryError(
                f"The model {model.name!r} has {number} {what}, and the form {form!r} takes Sequential and functional "
                f'models with one {what.removesuffix("s")}; use the form "saved_model".'
            )


def _examples(model: Any, inputs: Any, form: str) -> Any:
    """Return inputs, or random ones if there are none, in the types and ranks that a model is built for."""
    why = EXPORTS[form].real_inputs
    if inputs is None and why:
        raise LotteryError(f"The form {form!r} needs inputs, real examples as the network takes them: {why}.")
    if inputs is None:
        with evaluating(f"Random inputs cannot be made for the model {model.name!r}, pass some"):
            inputs = outputs.random_inputs(model)
    specs = getattr(model, "inputs", None) or ()
    arrays = tf.nest.flatten(inputs)
    if len(specs) != len(arrays):
        return inputs
    # Keras converts them itself, other libraries do not.
    return tf.nest.pack_sequence_as(inputs, list(map(outputs.as_taken, arrays, specs)))


def _computed(model: Any, inputs: Any) -> tuple[Any, list[np.ndarray]]:
    """Compute the outputs of a model; return the inputs that were used and the outputs."""
    size = outputs.batch_size(model)
    stateful = [layer for layer in weights.all_layers(model) if getattr(layer, "stateful", False)]
    if stateful:
        # Of a single batch, because each batch changes the outputs of the next.
        inputs = tf.nest.map_structure(lambda array: array[:size], inputs)
    _forget(stateful)
    with evaluating(f"The model {model.name!r} fails on the inputs"):
        computed = outputs.evaluate(model, inputs, size, training=False)
    _forget(stateful)
    return inputs, outputs.comparable(computed, of=f"the model {model.name!r}")


def _check_difference(model: Any, form: str, difference: float) -> None:
    """Raise if the outputs of an exported file differ by more than its format, or half precision, rounds off."""
    rounding = [_ROUNDING.get(layer.compute_dtype, 0) for layer in weights.all_layers(model)]
    tolerance = max(EXPORTS[form].tolerance, *rounding)
    if math.isfinite(difference) and difference <= tolerance:
        return
    allowed = f"at most {tolerance:g}" if math.isfinite(tolerance) else "any finite difference"
    raise LotteryError(
        f"Nothing was written: the outputs of the exported {form!r} differ from the outputs of the model "
        f"{model.name!r} by {difference:.2g} of the largest, where the limit is {allowed}. Export another form."
    )


def _forget(stateful: list[Any]) -> None:
    """Set the states that layers keep from batch to batch back to zero."""
    for layer in stateful:
        forget = getattr(layer, "reset_state", None) or getattr(layer, "reset_states", None)
        if forget is not None:
            forget()


def _agreement(expected: list[np.ndarray], exported: list[np.ndarray]) -> float:
    same = np.ones(len(expected[0]), bool)
    for own, other in zip(expected, exported, strict=True):
        same &= (_classes(own, own) == _classes(other, own)).reshape(len(same), -1).all(1)
    return float(same.mean())


def _classes(values: np.ndarray, model: np.ndarray) -> np.ndarray:
    """Choose the class of each output; `model` are the model's own, which tell probabilities from logits."""
    if values.ndim > 1 and values.shape[-1] > 1:
        return values.argmax(-1)
    are_probabilities = model.min() >= 0 and model.max() <= 1
    return values > (0.5 if are_probabilities else 0)


@contextlib.contextmanager
def _silent(what: str, path: Path) -> Iterator[None]:
    """Throw away what a converter prints, by Python or below it, and raise its errors as one sentence."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(evaluating(what))
        stack.enter_context(files.readable_errors(path))
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            # What waits in a buffer was printed before, and must stay. (There may be no stream, or a closed one.)
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()
            stack.enter_context(files.redirected(number))
        # Python's streams, too: those of a notebook do not write to the descriptors.
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        yield
