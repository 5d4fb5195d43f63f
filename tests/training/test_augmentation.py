"""Crops and flips, redone image by image in NumPy from what was drawn."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from lottery.errors import LotteryError
from lottery.training import examples

KEY = tf.constant([3, 14], tf.int32)


def pictures(num=40, shape=(6, 5, 3), dtype=np.uint8, seed=0):
    """No zero in them: a zero in what comes out is padding."""
    return np.random.default_rng(seed).integers(1, 256, (num, *shape)).astype(dtype)


def by_hand(images, offsets, flips, crop, flip):
    results = []
    for image, (row, column), flipped in zip(images, offsets, flips, strict=True):
        if crop:
            height, width = image.shape[:2]
            padded = np.zeros((height + 8, width + 8, *image.shape[2:]), image.dtype)
            padded[4:-4, 4:-4] = image
            image = padded[row : row + height, column : column + width]
        results.append(image[:, ::-1] if flip and flipped else image)
    return np.stack(results)


@pytest.mark.parametrize(("crop", "flip"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int16, np.float64])
@pytest.mark.parametrize("shape", [(6, 5, 3), (5, 8), (1, 9, 1), (32, 32, 3)])
def test_each_image_is_cropped_and_flipped_as_drawn(shape, dtype, crop, flip):
    images = pictures(shape=shape, dtype=dtype)
    offsets, flips = (drawn.numpy() for drawn in examples.draws(KEY, len(images)))
    result = examples.augmented(tf.constant(images), KEY, crop, flip)
    assert result.shape == images.shape and result.dtype == dtype
    np.testing.assert_array_equal(result, by_hand(images, offsets, flips, crop, flip))


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(1, 9))
def test_any_key_and_any_number_of_images(first, second, num):
    key = tf.constant([first, second], tf.int32)
    images = pictures(num, (3, 4))
    offsets, flips = (drawn.numpy() for drawn in examples.draws(key, num))
    assert offsets.shape == (num, 2) and flips.shape == (num,) and flips.dtype == bool
    assert offsets.min() >= 0 and offsets.max() <= 8
    np.testing.assert_array_equal(
        examples.augmented(tf.constant(images), key, True, True), by_hand(images, offsets, flips, True, True)
    )


def test_every_offset_is_as_likely_as_any_other_and_a_coin_is_fair():
    num = 162 * 400
    offsets, flips = (drawn.numpy() for drawn in examples.draws(KEY, num))
    counts = np.zeros((9, 9, 2), int)
    np.add.at(counts, (offsets[:, 0], offsets[:, 1], flips.astype(int)), 1)
    assert counts.min() > 0
    assert np.abs(counts - 400).max() < 5 * np.sqrt(400)
    # With 161 degrees of freedom, the statistic lies between these all but once in a million draws.
    assert 91 < ((counts - 400) ** 2 / 400).sum() < 260
    assert abs(flips.mean() - 0.5) < 5 * 0.5 / np.sqrt(num)
    # Neighbours in a batch have nothing to do with one another.
    alike = (offsets[1:] == offsets[:-1]).all(axis=1).mean()
    assert abs(alike - 1 / 81) < 5 * np.sqrt(1 / 81 / num)


def test_the_centre_is_the_image_itself():
    images = pictures(2000, (4, 5, 3))
    offsets, flips = (drawn.numpy() for drawn in examples.draws(KEY, len(images)))
    result = examples.augmented(tf.constant(images), KEY, True, True).numpy()
    centre = (offsets == 4).all(axis=1)
    assert (centre & flips).sum() > 5 and (centre & ~flips).sum() > 5
    np.testing.assert_array_equal(result[centre & ~flips], images[centre & ~flips])
    np.testing.assert_array_equal(result[centre & flips], images[centre & flips][:, :, ::-1])
    # Elsewhere a row or a column of padding is in sight.
    assert (result[~centre] == 0).any(axis=(1, 2, 3)).all() and (result[centre] != 0).all()


def test_a_key_decides_and_another_differs():
    images = tf.constant(pictures(60, (8, 8)))
    first = examples.augmented(images, KEY, True, True).numpy()
    np.testing.assert_array_equal(first, examples.augmented(images, tf.constant([3, 14]), True, True))
    for other in ([3, 15], [4, 14], [14, 3]):
        changed = (first != examples.augmented(images, tf.constant(other), True, True).numpy()).any(axis=(1, 2))
        assert changed.mean() > 0.9


def test_without_either_images_are_as_they_were():
    images = tf.constant(pictures())
    assert examples.augmented(images, KEY, False, False) is images


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_the_same_bits_in_a_loop_in_the_graph(jit, dtype):
    images, traces = pictures(7, (8, 6, 3), dtype), []
    stored = tf.constant(images)

    @tf.function(jit_compile=jit, autograph=False)
    def total(key, order):
        traces.append(1)

        def body(step, sums):
            batch = tf.gather(stored, tf.gather(order, step))
            batch = examples.augmented(batch, tf.stack([key[0], key[1] + step]), True, True)
            return step + 1, sums * 3 + tf.cast(batch, tf.float32)

        return tf.while_loop(lambda step, _: step < 5, body, (0, tf.zeros((7, 8, 6, 3))))[1]

    order = np.stack([np.roll(np.arange(7), step) for step in range(5)])
    for first in (3, 90):
        expected = np.zeros((7, 8, 6, 3), np.float32)
        for step in range(5):
            drawn = examples.draws(tf.constant([first, 14 + step]), 7)
            offsets, flips = (one.numpy() for one in drawn)
            expected = expected * 3 + by_hand(images[order[step]], offsets, flips, True, True)
        np.testing.assert_array_equal(total(tf.constant([first, 14]), tf.constant(order)), expected)
    assert len(traces) == 1


def test_the_number_of_images_may_be_unknown():
    @tf.function(input_signature=[tf.TensorSpec((None, 6, 5, 3), tf.uint8), tf.TensorSpec((2,), tf.int32)])
    def changed(images, key):
        return examples.augmented(images, key, True, True)

    for num in (1, 40):
        images = tf.constant(pictures(num))
        np.testing.assert_array_equal(changed(images, KEY), examples.augmented(images, KEY, True, True))


@pytest.mark.parametrize("shape", [(), (784,), (2, 8, 8, 3)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(LotteryError) as caught:
        examples.check_images(shape)
    assert str(shape) in str(caught.value) and "(height, width)" in str(caught.value)
    examples.check_images((8, 8))
    examples.check_images((8, 8, 3))
