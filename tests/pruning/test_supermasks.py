"""Masks made of scores: in a graph as in NumPy, and what they multiply."""

import numpy as np
import pytest

from lottery import masks
from lottery.pruning import ranking, supermasks

SHAPE = (3, 3, 4, 8)
SIZE = int(np.prod(SHAPE))


def scores(kind):
    rng = np.random.default_rng(4)
    made = {
        "normal": rng.normal(size=SHAPE),
        "ties": rng.integers(-2, 3, SHAPE),
        "equal": np.zeros(SHAPE),
        "signed zeros": np.where(rng.random(SHAPE) < 0.5, -0.0, 0.0),
        "extreme": rng.choice([-np.float32(3e38), -1e-45, 1e-45, 3e38], SHAPE),
    }
    return made[kind].astype(np.float32)


@pytest.fixture(scope="module")
def highest():
    import tensorflow as tf

    graph = tf.function(supermasks.highest)
    return lambda values, count: graph(tf.constant(values), tf.constant(count)).numpy()


@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "signed zeros", "extreme"])
def test_the_graph_keeps_the_same_entries_as_ranking(highest, kind):
    """Exactly as many, those of the largest |s|, the later of equal ones: compared with a stable sort."""
    values = scores(kind)
    in_order = np.argsort(abs(values.reshape(-1)), kind="stable")
    for count in (0, 1, 7, SIZE // 2, SIZE - 1, SIZE):
        expected = np.zeros(SIZE, bool)
        expected[in_order[SIZE - count :]] = True
        kept = supermasks.kept_by({"w": values}, {"w": count})["w"]
        assert np.array_equal(kept.reshape(-1), expected)
        assert np.array_equal(highest(values, count), kept), count
        assert np.array_equal(~ranking.lowest(abs(values.reshape(-1)), SIZE - count), expected)


def test_fixed_weights_have_the_kaiming_deviation_of_the_entries_that_are_kept():
    """So each output of a layer has twice the mean square of its inputs, of which ReLU leaves one half."""
    rng = np.random.default_rng(2)
    start = {"w": rng.normal(size=(3, 3, 50, 300)).astype(np.float32), "b": rng.normal(size=300).astype(np.float32)}
    kept = {"w": rng.random(start["w"].shape) < 0.2}
    fixed = supermasks.fixed_weights(start, masks.num_kept(kept))
    assert np.array_equal(np.sign(fixed["w"]), np.sign(start["w"])) and np.array_equal(fixed["b"], start["b"])
    assert np.unique(abs(fixed["w"])) == pytest.approx([np.sqrt(2 / (450 * masks.density(kept)))])
    outputs = rng.normal(size=(200, 450)) @ (fixed["w"] * kept["w"]).reshape(450, 300)
    assert np.mean(outputs**2) == pytest.approx(2, rel=0.05)
    assert np.mean(np.maximum(outputs, 0) ** 2) == pytest.approx(1, rel=0.05)


def test_masks_of_no_entry_have_finite_weights():
    fixed = supermasks.fixed_weights({"w": np.ones((4, 3), np.float32)}, {"w": 0})
    assert np.isfinite(fixed["w"]).all()


def test_first_scores():
    rng = np.random.default_rng(3)
    first = supermasks.first_scores(SHAPE, rng)
    assert first.shape == SHAPE and first.dtype == np.float32 and np.isfinite(first).all()
    assert abs(first).max() <= 1 / 6 and abs(first).max() > 0.15  # nine places by four channels
