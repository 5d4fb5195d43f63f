"""What a model takes: examples as numbers, augmented, in batches of a size it knows, with labels of its outputs."""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np

from lottery import randomness, weights
from lottery.data import Splits, Streams
from lottery.errors import LotteryError
from lottery.models.kerases import evaluating, is_keras, loss_of, tf, traced_call

NUM_EXAMPLES = 8  # in the batch on which a model is examined, unless the model fixes the size of its batches
PADDING = 4  # zeros on each side of an image that is cropped
OFFSETS = 2 * PADDING + 1


def scaler(data: Splits) -> Callable[[Any], Any]:
    """Make a function from stored examples to the network's input, for arrays and in a graph."""
    if data.train.x.dtype != np.uint8:
        return tf.convert_to_tensor
    mean, deviation = tf.constant(data.mean), tf.constant(data.standard_deviation)

    def scaled(x: Any) -> Any:
        values = (tf.cast(x, tf.float32) - mean) / deviation
        if not data.unit_norm:
            return values
        # An image that is zero everywhere stays so.
        return tf.math.divide_no_nan(values, tf.norm(values, axis=list(range(1, values.shape.rank)), keepdims=True))

    return scaled


def example_batch(data: Splits | Streams, model: Any = None) -> tuple[Any, Any]:
    """Return a few inputs, as the network gets them, and their labels."""
    if isinstance(data, Streams):
        return next(iter(data.train()))
    num = fixed_batch(model) or NUM_EXAMPLES
    return scaler(data)(data.train.x[:num]), tf.convert_to_tensor(data.train.y[:num])


def check_images(example_shape: tuple[int, ...]) -> None:
    """Raise `LotteryError` unless examples of this shape are images."""
    if len(example_shape) not in (2, 3):
        raise LotteryError(
            "data.augment crops and flips images, (height, width) or (height, width, channels), not examples of shape "
            f"{tuple(example_shape)}."
        )


def draws(key: Any, num_images: Any) -> tuple[Any, Any]:
    """Draw by a key, two int32, row and column (0 to 8) of each image's crop in the padded image, and True to flip."""
    # One number holds all three, so all 162 outcomes are equally likely. TensorFlow 2.21 would choose the algorithm by
    # device if none were named.
    drawn = tf.random.stateless_uniform([num_images], key, 0, 2 * OFFSETS**2, tf.int32, alg="philox")
    row, rest = drawn // (2 * OFFSETS), tf.math.floormod(drawn, 2 * OFFSETS)
    return tf.stack([row, rest // 2], axis=1), tf.equal(tf.math.floormod(rest, 2), 1)


def crops(
    augment: Collection[str], num_images: int, seed: tuple[int, ...], first_step: int
) -> Callable[[int], np.ndarray]:
    """Make a function from a number of steps to what `draws` gives the images of each: row, column, and 1 to flip.

    It returns int32, (steps, images, 3), of the steps that follow. Without a crop, or a flip, these are 0.
    """
    word, step = augmentation_word(seed), first_step
    takes = [int("crop" in augment), int("crop" in augment), int("flip" in augment)]

    @tf.function(reduce_retracing=True, autograph=False)
    def drawn(steps: Any) -> Any:
        def of_step(number: Any) -> Any:
            offsets, flipped = draws(tf.stack([word, number]), num_images)
            return tf.concat([offsets, tf.cast(flipped, tf.int32)[:, None]], axis=1) * takes

        return tf.map_fn(of_step, steps, tf.int32)

    def following(num_steps: int) -> np.ndarray:
        nonlocal step
        step += num_steps
        return np.ascontiguousarray(drawn(tf.range(step - num_steps, step)).numpy())

    return following


def augmentation_word(seed: tuple[int, ...]) -> int:
    """Return the first half of the key of a training's augmentations; the number of the step is the second."""
    # The last word is the purpose, that of batches. TensorFlow's keys are int32, as which a seed of 31 bits fits.
    return randomness.seed_for(*seed[:-1], randomness.AUGMENTATION, 1)


def augmented(images: Any, key: Any, crop: bool, flip: bool) -> Any:
    """Crop images at random after padding by 4 pixels, and flip them left to right with a probability of one half.

    The augmentation of He et al. 2016, https://arxiv.org/abs/1512.03385, section 4.2, which most papers on CIFAR-10
    use. Raw pixels are padded with zeros, which is black, before they are standardised, as in torchvision and open_lth.

    Images have shape (images, height, width) or (images, height, width, channels), with height and width known when the
    graph is made. The key is as for `draws`.
    """
    if not (crop or flip):
        return images
    height, width, *channels = images.shape[1:]
    num, margin = tf.shape(images)[0], PADDING if crop else 0
    offsets, flipped = draws(key, num)
    columns = tf.range(width)
    if flip:
        columns = tf.where(flipped[:, None], columns[::-1], columns)
    rows = tf.range(height)
    if crop:
        rows, columns = rows + offsets[:, :1], columns + offsets[:, 1:]
    # One gather of whole pixels was the fastest of nine ways that were timed on a CPU.
    images_at = tf.range(num)[:, None, None] * (height + 2 * margin)
    positions = (images_at + tf.reshape(rows, (-1, height, 1))) * (width + 2 * margin)
    positions += tf.reshape(columns, (-1, 1, width))
    sides = [[0, 0], [margin, margin], [margin, margin], *([0, 0] for _ in channels)]
    pixels = tf.reshape(tf.pad(images, sides), (-1, *channels))
    return tf.ensure_shape(tf.gather(pixels, positions), images.shape)


def reads_integers(model: Any, inputs: np.ndarray) -> bool:
    """Check if a model takes its inputs, a few examples, as whole numbers, as an Embedding does: not as pixels."""
    with fitting(model):
        called = traced_call(model, tf.TensorSpec(inputs.shape, tf.float32))
    waiting = [called.inputs[0]]
    while waiting:
        for operation in waiting.pop().consumers():
            if operation.type == "Cast" and operation.outputs[0].dtype.is_integer:
                return True
            # Whatever else reads the inputs, such as a product, takes them as numbers.
            if operation.type in ("Cast", "Identity"):
                waiting.append(operation.outputs[0])
    return False


def fixed_batch(model: Any) -> int | None:
    """Return the number of examples that each batch of a model must have; None if it takes others too."""
    inputs = getattr(model, "inputs", None) or []
    if len(inputs) != 1 or not len(inputs[0].shape) or inputs[0].shape[0] is None:
        return None
    size, *shape = inputs[0].shape
    # Many layers take any number, whatever the shape of the model's input says, so another number is tried.
    try:
        traced_call(model, tf.TensorSpec((size + 1, *shape), inputs[0].dtype))
    except Exception:  # a user's layers may raise anything
        return size
    return None


def check_data(model: Any, data: Splits, batch_size: int, example: Any, num_scored: int | None = None) -> None:
    """Raise `LotteryError` if data cannot be cut into the batches that a model takes, or a label is not a class of it.

    `num_scored` is the number of examples that a criterion looks at, if it looks at any.
    """
    size = fixed_batch(model)
    if size is not None:
        stateful = [layer.name for layer in weights.all_layers(model) if getattr(layer, "stateful", False)]
        _check_sizes(data, size, {"train.batch_size": batch_size, "prune.num_examples": num_scored}, stateful)
    if batch_size > len(data.train):
        raise LotteryError(
            f"train.batch_size must be at most the {len(data.train)} examples that are left for training, not "
            f"{batch_size}."
        )
    loss, name = loss_of(model)
    if name not in ("sparse_categorical_crossentropy", "SparseCategoricalCrossentropy"):
        return
    with fitting(model):
        outputs = model(example, training=False)
    if hasattr(outputs, "shape"):  # a dict or a list is taken apart by the loss
        # A class of the user's own may have no configuration, and a name, a function or a class itself has none.
        ignored = getattr(loss, "ignore_class", None)
        if is_keras(type(loss)):
            ignored = cast(Any, loss).get_config().get("ignore_class")
        _check_labels(data, outputs.shape[1:], ignored)


def _check_sizes(data: Splits, size: int, sizes: Mapping[str, int | None], stateful: Sequence[str]) -> None:
    if stateful:
        raise LotteryError(
            f"The layer {stateful[0]!r} is stateful: it goes on from one batch to the next, but the examples of "
            "batches are drawn at random; build it with stateful=False."
        )
    for key, received in sizes.items():
        if received not in (size, None):
            raise LotteryError(
                f"{key} must be {size}, not {received}, because the model is built for batches of {size} examples. Set "
                f"it to {size}, or build the model without a batch size."
            )
    for part, split in {"validation": data.validation, "test": data.test}.items():
        if len(split) % size:
            raise LotteryError(
                f"The model is built for batches of {size} examples, but there are {len(split)} {part} examples. Pass "
                f"a multiple of {size}, or build the model without a batch size."
            )


def _check_labels(data: Splits, output_shape: tuple[int, ...], ignored: int | None) -> None:
    *positions, num_classes = output_shape
    for part, split in {"training": data.train, "validation": data.validation, "test": data.test}.items():
        if split.y.dtype.kind != "i" or split.y.shape[1:] not in (tuple(positions), (*positions, 1)):
            raise LotteryError(_labels_needed(part, split.y, tuple(positions), num_classes))
        # TensorFlow would turn a label that is not a class into NaN, or into nothing at all.
        known = split.y if ignored is None else split.y[split.y != ignored]
        lowest, highest = int(known.min(initial=0)), int(known.max(initial=0))
        if highest >= num_classes or lowest < 0:
            found = f"up to {highest}" if lowest >= 0 else f"down to {lowest}"
            raise LotteryError(
                f"The {part} labels must be 0 to {num_classes - 1}, because the model has {num_classes} outputs. They "
                f"go {found}."
            )


def _labels_needed(part: str, y: np.ndarray, positions: tuple[int, ...], num_classes: int) -> str:
    """Say what labels a model takes, and how to make them of one-hot vectors or of numbers with a point."""
    if y.shape[1:] == (*positions, num_classes):
        return f"The {part} labels must be classes, not one-hot vectors. Pass y.argmax(axis=-1)."
    if y.shape[1:] in (positions, (*positions, 1)):
        return f"The {part} labels must be classes as whole numbers, not {y.dtype}. Pass y.astype(int)."
    each = f"for each of the outputs of shape {positions}" if positions else "for each example"
    return f"The {part} labels must be a class {each}, not an array of shape {y.shape[1:]} for each example."


def fitting(model: Any) -> contextlib.AbstractContextManager[None]:
    """Say of any error within that the model does not fit the data."""
    return evaluating(f"The model {model.name!r} cannot be trained on the data")
