"""The networks: their sizes in the paper, their arithmetic redone in NumPy, and the same network in both Kerases."""

import functools
import itertools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from pydantic import ValidationError

from lottery import config, weights
from lottery.errors import LotteryError
from lottery.models import networks

# The tables of Frankle & Carbin 2019 and of Simonyan & Zisserman 2015: channels by stage, "M" is pooling.
VGG = {
    "vgg_11": "64 M 128 M 256 256 M 512 512 M 512 512",
    "vgg_16": "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512",
    "vgg_19": "64 64 M 128 128 M 256 256 256 256 M 512 512 512 512 M 512 512 512 512",
}
CONV = {"conv_2": "64 64 M", "conv_4": "64 64 M 128 128 M", "conv_6": "64 64 M 128 128 M 256 256 M"}
NAMES = [*networks.MODELS, "resnet_8"]


def shape_for(name):
    return (28, 28) if name.startswith("lenet") else (32, 32, 3)


def build(name, library="keras", shape=None, classes=10, seed=5):
    keras.utils.set_random_seed(seed)
    return networks.builder(name, shape or shape_for(name), classes, library)()


@functools.cache
def built(name, library="keras"):
    """Built once; a test that changes one puts it back."""
    return build(name, library)


def images(name, number=3, seed=0):
    return np.random.default_rng(seed).normal(size=(number, *shape_for(name))).astype(np.float32)


def differing(first, second):
    """Names whose bits differ, or that one of the two lacks."""
    assert set(first) == set(second)
    return {name for name in first if first[name].tobytes() != second[name].tobytes()}


def convolutions_of_resnet(depth):
    """Kernel size, channels in and out of each convolution, from the text of He et al. 2016, section 4.2."""
    sizes, before = [(3, 3, 16)], 16
    for channels in (16, 32, 64):
        for block in range((depth - 2) // 6):
            sizes += [(3, before, channels), (3, channels, channels)]
            if block == 0 and before != channels:
                sizes.append((1, before, channels))
            before = channels
    return sizes


def convolutions_of_vgg(name):
    channels = [3, *(int(one) for one in VGG[name].split() if one != "M")]
    return [(3, before, after) for before, after in itertools.pairwise(channels)]


def convolution_weights(sizes):
    return sum(size * size * before * after for size, before, after in sizes)


PUBLISHED = {
    "lenet_300_100": 266_200,
    "lenet_5": 430_500,
    "conv_2": 4_300_992,
    "conv_4": 2_425_024,
    "conv_6": 2_261_184,
    "resnet_20": convolution_weights(convolutions_of_resnet(20)) + 640,
    "resnet_8": convolution_weights(convolutions_of_resnet(8)) + 640,
    **{name: convolution_weights(convolutions_of_vgg(name)) + 5_120 for name in VGG},
}


def test_counts_match_the_papers_table():
    # "270K" and "20.0M", the convolutional weights of the paper's Figure 2.
    assert round(PUBLISHED["resnet_20"] - 640, -3) == 270_000
    assert round(PUBLISHED["vgg_19"] - 5_120, -5) == 20_000_000


@pytest.mark.parametrize("name", NAMES)
def test_prunable_weights_are_as_many_as_published(name):
    model = built(name)
    kernels = weights.prunable(model)
    assert sum(math.prod(value.shape) for value in kernels.values()) == PUBLISHED[name]
    assert all(own.endswith("/kernel") for own in kernels)
    assert model.output_shape == (None, 10)


@pytest.mark.parametrize("name", ["lenet_300_100", "lenet_5", "conv_2", "conv_4", "conv_6", *VGG])
def test_names_of_weights_count_from_input_to_output(name):
    kernels = weights.prunable(built(name))
    inputs = [value.shape[-2] for value in kernels.values()]
    outputs = [value.shape[-1] for value in kernels.values()]
    kinds = [own.split("/")[0].split("_")[0] for own in kernels]
    for kind in ("conv2d", "dense"):
        expected = [kind if index == 0 else f"{kind}_{index}" for index in range(kinds.count(kind))]
        assert [own.split("/")[0] for own in kernels if own.startswith(kind)] == expected
    chained = zip(kinds, kinds[1:], outputs, inputs[1:], strict=False)
    assert all(after == before for left, right, before, after in chained if left == right)


def test_names_of_a_residual_network_count_along_its_longest_path():
    kernels = {name: tuple(value.shape) for name, value in weights.prunable(built("resnet_20")).items()}
    path = [kernels.pop(f"conv2d_{index}/kernel" if index else "conv2d/kernel") for index in range(19)]
    channels = [3, *[16] * 7, *[32] * 6, *[64] * 6]
    assert path == [(3, 3, before, after) for before, after in itertools.pairwise(channels)]
    assert kernels == {
        "shortcut_1/kernel": (1, 1, 16, 32),
        "shortcut_2/kernel": (1, 1, 32, 64),
        "dense/kernel": (64, 10),
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name == "vgg_16" else name for name in NAMES]
)
def test_both_kerases_compute_the_same_network(name):
    ours, other = built(name), built(name, "tf_keras")
    before = weights.read_state(ours)
    assert not differing(before, weights.read_state(other))
    assert list(weights.prunable(ours)) == list(weights.prunable(other))
    x = images(name)
    try:
        plain, trained = (np.asarray(ours(x, training=training)) for training in (False, True))
        plain_other, trained_other = (np.asarray(other(x, training=training)) for training in (False, True))
        after, after_other = weights.read_state(ours), weights.read_state(other)
    finally:
        weights.assign(ours, before)
        weights.assign(other, before)
    assert plain.std() > 1e-8  # so that two silent networks are not taken for equal ones
    np.testing.assert_allclose(plain, plain_other, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(trained, trained_other, rtol=1e-3, atol=1e-4)
    # tf_keras estimates the variance of all images from those of the batch, and so divides by one less.
    normalisations = [layer for layer in ours.layers if "BatchNormalization" in type(layer).__name__]
    counts = iter([len(x) * math.prod(layer.output.shape[1:-1]) for layer in normalisations])
    for own in after:
        if own.endswith("moving_variance"):
            count = next(counts)
            after_other[own] = 0.9 + (after_other[own] - 0.9) * (count - 1) / count
        np.testing.assert_allclose(after[own], after_other[own], rtol=1e-4, atol=1e-5, err_msg=own)
    assert differing(before, after) == {own for own in after if "moving" in own}


def convolved(x, kernel, stride=1, margin=0, bias=0.0):
    size = kernel.shape[0]
    x = np.pad(x, [(0, 0), (margin, margin), (margin, margin), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))[:, ::stride, ::stride]
    return np.einsum("bijchw,hwco->bijo", windows, kernel, optimize=True) + bias


def pooled(x):
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def rectified(x):
    return np.maximum(x, 0)


class Values:
    """Weights by layer, random statistics and scales among them, each to be taken once."""

    def __init__(self, model):
        rng = np.random.default_rng(1)
        state = {}
        for name, value in weights.read_state(model).items():
            own = name.split("/")[-1]
            if own in ("moving_variance", "gamma"):
                value = rng.uniform(0.5, 1.5, value.shape)
            elif own != "kernel":
                value = rng.normal(size=value.shape) * 0.1
            state[name] = value.astype(np.float32)
        weights.assign(model, state)
        self.left = {name: value.astype(np.float64) for name, value in state.items()}

    def take(self, layer, index, *own):
        prefix = layer if index == 0 else f"{layer}_{index}"
        return [self.left.pop(f"{prefix}/{one}") for one in own]

    def normalised(self, x, layer, index=0):
        gamma, beta, mean, variance = self.take(layer, index, "gamma", "beta", "moving_mean", "moving_variance")
        return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta

    def dense(self, x, index):
        kernel, bias = self.take("dense", index, "kernel", "bias")
        return x @ kernel + bias


def lenet_5_by_hand(x, values, name):
    x = x[..., None]
    for index in range(2):
        kernel, bias = values.take("conv2d", index, "kernel", "bias")
        x = pooled(convolved(x, kernel, bias=bias))
    return values.dense(rectified(values.dense(x.reshape(len(x), -1), 0)), 1)


def conv_by_hand(x, values, name):
    index = 0
    for layer in CONV[name].split():
        if layer == "M":
            x = pooled(x)
            continue
        kernel, bias = values.take("conv2d", index, "kernel", "bias")
        assert kernel.shape[-1] == int(layer)
        x, index = rectified(convolved(x, kernel, margin=1, bias=bias)), index + 1
    x = x.reshape(len(x), -1)
    for index in range(2):
        x = rectified(values.dense(x, index))
    return values.dense(x, 2)


def vgg_by_hand(x, values, name):
    index = 0
    for layer in VGG[name].split():
        if layer == "M":
            x = pooled(x)
            continue
        (kernel,) = values.take("conv2d", index, "kernel")
        assert kernel.shape[-1] == int(layer)
        x = rectified(values.normalised(convolved(x, kernel, margin=1), "batch_normalization", index))
        index += 1
    return values.dense(x.mean(axis=(1, 2)), 0)


def resnet_by_hand(x, values, name):
    def normal(x, index, stride=1):
        (kernel,) = values.take("conv2d", index, "kernel")
        return values.normalised(convolved(x, kernel, stride, margin=1), "batch_normalization", index)

    x = rectified(normal(x, 0))
    index = 1
    for stage in range(3):
        for block in range((int(name.split("_")[1]) - 2) // 6):
            stride, shortcut = 1, x
            if stage and not block:
                (kernel,) = values.take(f"shortcut_{stage}", 0, "kernel")
                stride = 2
                shortcut = values.normalised(convolved(x, kernel, 2), f"shortcut_{stage}_normalization")
            x = rectified(normal(x, index, stride))
            x = rectified(normal(x, index + 1) + shortcut)
            index += 2
    return values.dense(x.mean(axis=(1, 2)), 0)


BY_HAND = {
    "lenet_5": lenet_5_by_hand,
    "conv_4": conv_by_hand,
    "vgg_11": vgg_by_hand,
    "resnet_8": resnet_by_hand,
    "resnet_14": resnet_by_hand,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_outputs_are_those_of_the_papers_arithmetic(name):
    model = build(name)
    values = Values(model)
    x = images(name, 2)
    expected = BY_HAND[name](x.astype(np.float64), values, name)
    assert not values.left  # every variable has had its part
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(np.asarray(model(x, training=False)), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_start_glorot_normal_and_other_variables_as_usual(name):
    model = built(name)
    for own, value in weights.read_state(model).items():
        kind = own.split("/")[-1]
        if kind in ("bias", "beta", "moving_mean"):
            assert not value.any(), own
        elif kind in ("gamma", "moving_variance"):
            assert (value == 1).all(), own
        else:
            field = math.prod(value.shape[:-2])
            spread = math.sqrt(2 / (field * value.shape[-2] + field * value.shape[-1]))
            # Five standard errors of the standard deviation of normal numbers; a uniform draw or He's is far outside.
            assert abs(value.std() / spread - 1) < 5 / math.sqrt(2 * value.size), own
            assert abs(value.mean()) < 5 * spread / math.sqrt(value.size), own
            # Glorot uniform has the same standard deviation and ends at 1.73 times it, the truncated normal at 2.27.
            assert 1.8 * spread < np.abs(value).max() < 2.28 * spread, own


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("vgg_16", "vgg_19")])  # as vgg_11, but large
def test_a_seed_decides_every_bit(name):
    first, again, other = (weights.read_state(model) for model in (built(name), build(name), build(name, seed=6)))
    assert not differing(first, again)
    assert differing(first, other) == set(weights.prunable(built(name)))


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("name", ["lenet_300_100", "lenet_5", "conv_2", "resnet_8"])
def test_outputs_are_logits(name, library):
    model = built(name, library)
    x = images(name)
    before = np.asarray(model(x, training=False))
    state = weights.read_state(model)
    last = [own for own in state if own.startswith("dense") and own.endswith("/bias")][-1]
    weights.assign(model, {last: np.arange(10, dtype=np.float32) - 4})
    moved = np.asarray(model(x, training=False)) - before
    weights.assign(model, state)
    np.testing.assert_allclose(moved, np.tile(np.arange(10) - 4, (3, 1)), atol=1e-4)


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("name", ["lenet_5", "conv_2", "resnet_8"])
def test_a_gradient_reaches_every_weight(name, library):
    model = built(name, library.__name__)
    x, y = images(name, 8), tf.range(8)
    before = weights.read_state(model)
    with tf.GradientTape() as tape:
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
    targets = [getattr(one, "_value", one) for one in model.trainable_variables]
    gradients = tape.gradient(loss, targets)
    weights.assign(model, before)
    assert len(gradients) == sum("moving" not in own for own in before)
    assert all(np.abs(np.asarray(gradient)).max() > 0 for gradient in gradients)


@pytest.mark.parametrize(
    ("name", "library"),
    [("lenet_5", "keras"), ("conv_2", "keras"), ("conv_6", "tf_keras"), ("resnet_8", "tf_keras"), ("vgg_11", "keras")],
)
def test_an_image_without_channels_gets_one(name, library):
    flat, deep = (build(name, library, shape, 4) for shape in ((20, 28), (20, 28, 1)))
    x = np.random.default_rng(0).normal(size=(2, 20, 28)).astype(np.float32)
    assert not differing(weights.read_state(flat), weights.read_state(deep))
    outputs = np.asarray(flat(x, training=True))
    assert outputs.shape == (2, 4)
    np.testing.assert_allclose(outputs, np.asarray(deep(x[..., None], training=True)), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "least"), [("lenet_5", 16), ("conv_2", 2), ("conv_4", 4), ("conv_6", 8), ("vgg_16", 16)]
)
def test_the_smallest_image_is_accepted_and_a_smaller_image_refused(name, least):
    assert networks.named(name)((least, least + 1, 2), 3).output_shape == (None, 3)
    for shape in ((least - 1, 40), (40, least - 1, 3)):
        with pytest.raises(
            LotteryError, match=rf"^{name} takes images of at least {least} x {least} pixels, .* \({shape[0]},"
        ):
            networks.named(name)(shape, 3)


@pytest.mark.parametrize("name", ["lenet_5", "conv_2", "resnet_8", "vgg_11"])
@pytest.mark.parametrize("shape", [(784,), (), (8, 32, 32, 3)])
def test_examples_that_are_not_images_are_refused(name, shape):
    with pytest.raises(LotteryError) as caught:
        networks.named(name)(shape, 3)
    assert name in str(caught.value) and str(shape) in str(caught.value) and "\n" not in str(caught.value)


def test_a_residual_network_takes_any_size_of_image():
    for shape in ((1, 1), (7, 9), (5, 8, 3)):
        assert np.asarray(build("resnet_8", shape=shape)(np.ones((2, *shape), np.float32))).shape == (2, 10)


def test_built_in_names_are_those_that_an_experiment_accepts():
    for depth in range(130):
        name = f"resnet_{depth}"
        try:
            config.Experiment.model_validate({"model": {"name": name}})
            allowed = True
        except (LotteryError, ValidationError):
            allowed = False
        assert networks.is_built_in(name) == allowed == (depth in range(8, 130, 6)), name
    for name in ("resnet_", "resnet_20_", "xresnet_20", "resnet_-4", "vgg_13", "conv_8", "given", "package:function"):
        assert not networks.is_built_in(name), name
        with pytest.raises(LotteryError, match=f"The network must be 'lenet_300_100', .*not '{name}'"):
            networks.named(name)


def test_depth_of_a_residual_network_is_the_number_of_its_layers():
    for depth in (8, 14, 26):
        model = build(f"resnet_{depth}", shape=(4, 4))
        assert sum(not name.startswith("shortcut") for name in weights.prunable(model)) == depth
    for depth in (2, 18, 0, -4):
        with pytest.raises(LotteryError, match=rf"that is 8, 14, 20, .* not {depth}"):
            networks.resnet(depth)


def test_unknown_depths_are_refused():
    with pytest.raises(LotteryError, match="vgg_N must be '11', '16' or '19', not 13"):
        networks.vgg(13)
    with pytest.raises(LotteryError, match="conv_N must be '2', '4' or '6', not 3"):
        networks.conv(3)
