"""Scores that need the network and no data: the flow through its absolute weights."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lottery import weights
from lottery.errors import LotteryError
from lottery.models.library import evaluating, keras_of
from lottery.pruning import gradients, ranking
from lottery.pruning.gradients import Scores

# Outputs that saturate or add up to one, whose sum has no gradient to speak of.
SQUASHING = ("softmax", "log_softmax", "sigmoid")


def synaptic_flow(
    model: Any,
    build: Callable[[], Any],
    x: Any,
    kept: Mapping[str, np.ndarray],
    density: float,
    scope: str,
    num_steps: int = 100,
    targets: Mapping[tuple[str, ...], int] | None = None,
) -> Scores:
    """The order in which SynFlow prunes, Tanaka et al. 2020, https://arxiv.org/abs/2006.05467, algorithm 1.

    R is the sum of the network's outputs for one input of ones (of their own type where inputs are whole numbers), in
    inference mode, with the absolute values of everything that is trained and a softmax or sigmoid at its end left
    out. The score of equation 3 is |w * dR/dw|. Of n survivors that are ranked together, step k of K leaves
    round(n f^(k/K)), where f is the density over the present one; every layer goes down by the same fraction where
    each is ranked by itself. A copy in double precision is evaluated, for R grows with the product of all widths.

    Args:
        model: A built Keras 3 or tf_keras model with the weights to begin from. It is only read.
        build: Builds the same architecture afresh.
        x: A batch, as the network gets it; only its shapes and types matter.
        kept: Masks to begin from, by weight.
        density: Fraction of the masks' entries that is to be kept in the end, in (0, 1].
        scope: ``"layerwise"`` or ``"global"``: what is ranked together.
        num_steps: K.
        targets: In the place of `density` and `scope`: which weights are ranked together, and how many entries of them
            are to be kept in the end, where layers go down by different fractions.

    Returns:
        Ranks as floats, by weight, of the masks' shapes, counted from 1 in each group that is ranked together: first
        what goes in the first step, by score (of equals the earlier position), and last the survivors, by their
        scores in the last step. Zero where `kept` is False. So pruning by them to any count gives what the steps
        would have pruned by then.

    Raises:
        LotteryError: The density is out of range, the network cannot be evaluated in double precision, R or a score
            is not finite, its outputs are probabilities, or nothing flows through the dense network.
    """
    if not 0 < density <= 1:
        raise LotteryError(f"density: received {density!r}, allowed is a fraction in (0, 1].")
    flow = flow_through(model, build, x, list(kept))
    groups = list(targets) if targets else [names for names, _ in ranking.groups(kept, scope)]
    # Positions in each group that are still kept, and the rank of each position that is not.
    alive = [np.flatnonzero(_joined(kept, names)) for names in groups]
    ranks = [np.zeros(sum(kept[name].size for name in names)) for names in groups]
    begun = [one.size for one in alive]
    present = sum(begun) / max(1, sum(one.size for one in ranks))
    fractions = [min(1.0, density / present) if present else 1.0] * len(groups)
    if targets:
        fractions = [
            min(1.0, targets[names] / size) if size else 1.0 for names, size in zip(groups, begun, strict=True)
        ]
    now, ranked, scores = kept, {}, flow(kept)
    if present == 1 and not any(value.any() for value in scores.values()):
        raise LotteryError("SynFlow: every score is zero, since nothing flows to the network's outputs.")
    for step in range(1, num_steps + 1):
        for index, names in enumerate(groups):
            values = _joined(scores, names)[alive[index]]
            count = values.size - round(begun[index] * fractions[index] ** (step / num_steps))
            lowest = _lowest(values, values.size if step == num_steps else count)
            ranks[index][alive[index][lowest]] = begun[index] - values.size + 1 + np.arange(lowest.size)
            alive[index] = np.delete(alive[index], lowest[:count])
        ranked = {
            name: one for names, rank in zip(groups, ranks, strict=True) for name, one in _parted(rank, kept, names)
        }
        before, now = now, {name: mask & (ranked[name] == 0) for name, mask in kept.items()}
        if step < num_steps and any(np.any(before[name] != now[name]) for name in now):
            scores = flow(now)
    return ranked


def _lowest(values: np.ndarray, count: int) -> np.ndarray:
    """Positions of the `count` lowest values, lowest first, of equals the earlier; without sorting all of them."""
    if count <= 0:
        return np.zeros(0, np.intp)
    highest = np.partition(values, count - 1)[count - 1]
    below = np.flatnonzero(values < highest)
    chosen = np.sort(np.concatenate([below, np.flatnonzero(values == highest)[: count - below.size]]))
    return chosen[np.argsort(values[chosen], kind="stable")]


def _joined(arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    return np.concatenate([np.ravel(arrays[name]) for name in names])


def _parted(
    joined: np.ndarray, like: Mapping[str, np.ndarray], names: Sequence[str]
) -> Iterator[tuple[str, np.ndarray]]:
    ends = np.cumsum([like[name].size for name in names])[:-1]
    for name, part in zip(names, np.split(joined, ends), strict=True):
        yield name, part.reshape(like[name].shape)


def flow_through(
    model: Any, build: Callable[[], Any], x: Any, names: Sequence[str]
) -> Callable[[Mapping[str, np.ndarray]], Scores]:
    """SynFlow's scores as a function of masks; see `synaptic_flow`.

    Args:
        model: A built Keras 3 or tf_keras model. It is only read, and only now.
        build: Builds the same architecture afresh: the copy in double precision.
        x: A batch, as the network gets it; only its shapes and types matter.
        names: The weights to score, by their stable names.

    Returns:
        A function from masks by weight to |w * dR/dw| by weight, where the masks apply to w.

    Raises:
        LotteryError: The copy cannot be made or evaluated. The function raises it if R or a score is not finite.
    """
    import tensorflow as tf

    with (
        _in_float64(keras_of(model)),
        evaluating(f"SynFlow evaluates the model {model.name!r} in double precision, in which it cannot be"),
    ):
        copy = build()
        variables, state = weights.variables(copy), weights.read_state(model)
        if {name: value.shape for name, value in state.items()} != {
            name: tuple(one.shape) for name, one in variables.items()
        }:
            raise LotteryError(f"The function that builds the model {model.name!r} afresh builds another architecture.")
        floating = {name: value.astype(np.float64) for name, value in state.items() if "float" in str(value.dtype)}
        absolute = {
            name: np.abs(value) if weights.is_trained(copy, variables[name]) else value
            for name, value in floating.items()
        }
        weights.assign(copy, absolute)
        for layer in _last_layers(copy):
            activation = getattr(layer, "activation", None)
            if getattr(activation, "__name__", "") in SQUASHING:
                layer.activation = _unchanged
        ones = tf.nest.map_structure(_ones, x)
        chosen = [variables[name] for name in names]

        @tf.function(autograph=False)
        def evaluate() -> tuple[Any, Any, Any]:
            with tf.GradientTape() as tape:
                outputs = [tf.cast(one, tf.float64) for one in tf.nest.flatten(copy(ones, training=False))]
                total = tf.add_n([tf.reduce_sum(one) for one in outputs])
            return outputs, total, gradients.tensors(tape.gradient(total, chosen), chosen)

        copy(ones, training=False)
        evaluate = evaluate.get_concrete_function()

    def scores(masks: Mapping[str, np.ndarray]) -> Scores:
        masked = {name: absolute[name] * masks[name] for name in names}
        weights.assign(copy, masked)
        outputs, total, derivatives = evaluate()
        if not np.isfinite(total.numpy()):
            raise LotteryError(
                f"SynFlow: the sum of the outputs of the model {model.name!r} is {float(total)}, allowed is a "
                "number that double precision can hold; smaller initial weights or normalisation would make it one."
            )
        if any(_are_probabilities(one.numpy()) for one in outputs):
            raise LotteryError(
                f"SynFlow: the outputs of the model {model.name!r} are probabilities, whose sum is always one; let it "
                "end in logits."
            )
        with np.errstate(over="ignore", invalid="ignore"):  # said in a sentence
            found = {name: np.abs(masked[name] * one.numpy()) for name, one in zip(names, derivatives, strict=True)}
        return gradients.finite(found, "SynFlow")

    return scores


@contextlib.contextmanager
def _in_float64(keras: Any) -> Iterator[None]:
    """Layers that are built inside have double precision, unless they were given another."""
    floatx, policy = keras.backend.floatx(), keras.mixed_precision.global_policy()
    try:
        keras.backend.set_floatx("float64")
        keras.mixed_precision.set_global_policy("float64")
        yield
    finally:
        keras.backend.set_floatx(floatx)
        keras.mixed_precision.set_global_policy(policy)


def _last_layers(model: Any) -> Iterator[Any]:
    """The layers that a model's outputs come from; none where Keras does not know them."""
    for output in getattr(model, "outputs", None) or ():
        layer = getattr(output, "_keras_history", (None,))[0]
        if getattr(layer, "outputs", None) and layer is not model:
            yield from _last_layers(layer)
        elif layer is not None:
            yield layer


def _unchanged(value: Any) -> Any:
    return value


def _ones(value: Any) -> np.ndarray:
    value = np.asarray(value)
    return np.ones((1, *value.shape[1:]), value.dtype if value.dtype.kind in "iub" else np.float64)


def _are_probabilities(output: np.ndarray) -> bool:
    wide = output.ndim > 1 and output.shape[-1] > 1
    return wide and bool((output >= 0).all() and np.allclose(output.sum(-1), 1, rtol=0, atol=1e-9))
