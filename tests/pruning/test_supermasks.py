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
    """Exactly as many, those of the highest scores, the later of equal ones: compared with a stable sort."""
    values = scores(kind)
    in_order = np.argsort(values.reshape(-1), kind="stable")
    for count in (0, 1, 7, SIZE // 2, SIZE - 1, SIZE):
        expected = np.zeros(SIZE, bool)
        expected[in_order[SIZE - count :]] = True
        kept = supermasks.kept_by({"w": values}, {"w": count})["w"]
        assert np.array_equal(kept.reshape(-1), expected)
        assert np.array_equal(highest(values, count), kept), count
        assert np.array_equal(~ranking.lowest(values.reshape(-1), SIZE - count), expected)


def test_fixed_weights_let_a_layer_vary_as_much_as_with_all_entries():
    rng = np.random.default_rng(2)
    start = {"w": rng.normal(size=(400, 300)).astype(np.float32), "b": rng.normal(size=300).astype(np.float32)}
    kept = {"w": rng.random((400, 300)) < 0.05}
    fixed = supermasks.fixed_weights(start, masks.num_kept(kept))
    density = masks.density(kept)
    assert np.array_equal(np.sign(fixed["w"]), np.sign(start["w"])) and np.array_equal(fixed["b"], start["b"])
    assert np.unique(abs(fixed["w"])) == pytest.approx([np.std(np.float64(start["w"])) / np.sqrt(density)])
    x = rng.normal(size=(50, 400))
    assert np.std(x @ (fixed["w"] * kept["w"])) == pytest.approx(np.std(x @ start["w"]), rel=0.05)


def test_first_scores():
    rng = np.random.default_rng(3)
    for count in (0, 30, SIZE):
        first = supermasks.EDGE_POPUP.first_scores(SHAPE, count, rng)
        assert first.shape == SHAPE and first.dtype == np.float32 and np.isfinite(first).all()
        assert abs(first).max() <= 1 / 6 and abs(first).max() > 0.15  # nine places by four channels
