"""Multiply-adds of layers within layers and of einsums, against formulas by hand and against counting one by one."""

import importlib
import itertools
import math

import numpy as np
import pytest

from lottery import weights
from lottery.models import multiply_adds

LIBRARIES = ("keras", "tf_keras")


@pytest.fixture(params=LIBRARIES)
def keras(request):
    return importlib.import_module(request.param)


def counts(keras, layer, *shapes):
    """Counts by name of the weights of a layer that is called on inputs of these shapes."""
    inputs = [keras.Input(shape) for shape in shapes]
    model = keras.Model(inputs, layer(*inputs))
    found = multiply_adds.per_entry(model)
    assert list(found) == list(weights.prunable(model))
    return found


def test_recurrent_layers_in_both_directions_and_of_cells(keras):
    layers = keras.layers
    both = counts(keras, layers.Bidirectional(layers.LSTM(3)), (5, 2))
    assert len(both) == 4 and set(both.values()) == {5}
    different = layers.Bidirectional(layers.GRU(3), backward_layer=layers.SimpleRNN(3, go_backwards=True))
    assert set(counts(keras, different, (7, 2)).values()) == {7}
    cells = counts(keras, layers.RNN([layers.LSTMCell(3), layers.GRUCell(4)]), (5, 2))
    assert len(cells) == 4 and set(cells.values()) == {5}
    # Three steps; a window of 2 x 2 has 3 x 3 places on 4 x 4, and the state has as many.
    assert set(counts(keras, layers.ConvLSTM2D(2, 2), (3, 4, 4, 1)).values()) == {27}
    assert set(counts(keras, layers.ConvLSTM2D(2, 2, return_sequences=True), (3, 4, 4, 1)).values()) == {27}


def test_layers_at_each_step(keras):
    layers = keras.layers
    spread = layers.TimeDistributed
    assert list(counts(keras, spread(layers.Dense(4)), (5, 2)).values()) == [5]
    assert list(counts(keras, spread(layers.Conv2D(2, 2)), (3, 4, 4, 1)).values()) == [27]
    assert set(counts(keras, spread(layers.Bidirectional(layers.GRU(3))), (3, 5, 2)).values()) == {15}
    inner = keras.Sequential([layers.InputLayer((4, 2)), layers.Conv1D(3, 2), layers.Flatten(), layers.Dense(2)])
    assert sorted(counts(keras, spread(inner), (5, 4, 2)).values()) == [5, 15]
    assert list(counts(keras, spread(layers.Dense(4)), (None, 2)).values()) == [None]


def multiplied(equation, sizes):
    """How often each entry of the second operand is multiplied, for one of the first axis, by going through them all."""
    taken, _, kernel = equation.partition("->")[0].partition(",")
    names = sorted({*taken, *kernel})
    times = np.zeros([sizes[name] for name in kernel], int)
    for place in itertools.product(*(range(sizes[name]) for name in names)):
        at = dict(zip(names, place, strict=True))
        times[tuple(at[name] for name in kernel)] += at[taken[0]] == 0
    return times


@pytest.mark.parametrize(
    ("equation", "output", "shape"),
    [
        ("ab,bc->ac", (3,), (4,)),
        ("abc,cd->abd", (5, 3), (5, 4)),
        ("abc,cde->abde", (5, 2, 3), (5, 4)),
        ("abc,bd->adc", (3, 4), (5, 4)),
        ("abc,bcd->ad", (3,), (5, 4)),
        ("abc,bce->abe", (5, 3), (5, 4)),
    ],
)
def test_an_einsum_counts_as_going_through_it(keras, equation, output, shape):
    layer = keras.layers.EinsumDense(equation, output_shape=output)
    (count,) = counts(keras, layer, shape).values()
    taken, _, rest = equation.partition(",")
    sizes = dict(zip(taken, (2, *shape), strict=True)) | dict(zip(rest.partition("->")[2], (2, *output), strict=True))
    assert (multiplied(equation, sizes) == count).all()


def test_dots_in_an_einsum(keras):
    assert list(counts(keras, keras.layers.EinsumDense("...x,xy->...y", output_shape=7), (5, 4, 3)).values()) == [20]
    assert list(counts(keras, keras.layers.EinsumDense("...x,xy->...y", output_shape=7), (3,)).values()) == [1]


def test_projections_of_attention(keras):
    layers, shapes = keras.layers, ((3, 4), (5, 6), (5, 2))
    by_hand = {"query": 3, "key": 5, "value": 5, "attention_output": 3}
    attention = layers.MultiHeadAttention(2, 3, value_dim=4)
    found = counts(keras, lambda query, value, key: attention(query, value, key), *shapes)
    assert {name.split("/")[-2]: count for name, count in found.items()} == by_hand
    found = counts(keras, lambda x: layers.MultiHeadAttention(2, 3)(x, x), (7, 4))
    assert set(found.values()) == {7} and len(found) == 4
    found = counts(keras, lambda x: layers.MultiHeadAttention(2, 3)(query=x, value=x, use_causal_mask=True), (7, 4))
    assert set(found.values()) == {7}
    # By hand, of a block: four projections of 4 x 6 at 7 steps.
    model = keras.Model(x := keras.Input((7, 4)), layers.MultiHeadAttention(2, 3)(x, x))
    per_entry = multiply_adds.per_entry(model)
    assert (
        sum(per_entry[name] * math.prod(value.shape) for name, value in weights.prunable(model).items()) == 7 * 4 * 24
    )


def test_grouped_queries():
    keras = importlib.import_module("keras")
    layer = keras.layers.GroupQueryAttention(2, 4, 2)
    found = counts(keras, lambda query, value: layer(query, value), (3, 4), (5, 4))
    assert {name.split("/")[-2]: count for name, count in found.items()} == {
        "query": 3, "key": 5, "value": 5, "attention_output": 3,
    }  # fmt: skip


def test_a_layer_in_spectral_normalisation():
    keras = importlib.import_module("keras")  # that of tf_keras cannot be called in a functional model
    layers = keras.layers
    assert set(counts(keras, layers.SpectralNormalization(layers.Conv1D(3, 2)), (5, 2)).values()) == {4}


def test_masks_take_off_what_they_mask(keras, rng):
    """A dense layer at each step, by going through every product of an entry that is kept."""
    layer = keras.layers.TimeDistributed(keras.layers.Dense(4))
    model = keras.Model(x := keras.Input((5, 3)), layer(x))
    (name,) = weights.prunable(model)
    mask = rng.random((3, 4)) < 0.5
    products = sum(bool(mask[place]) for _ in range(5) for place in np.ndindex(mask.shape))
    assert multiply_adds.of_kept({name: int(mask.sum())}, multiply_adds.per_entry(model)) == products


def test_what_a_class_of_the_users_computes_is_not_known(keras):
    class Twice(keras.layers.TimeDistributed):
        def call(self, inputs):
            return super().call(inputs) + super().call(-inputs)

    assert list(counts(keras, Twice(keras.layers.Dense(4)), (5, 3)).values()) == [None]
