"""Masks of the criteria against the definitions of their authors, computed again by other means on whole networks.

LeNet-300-100 in NumPy, ResNet-20 in plain TensorFlow operations in double precision, with other rules of
differentiation. Only the network's weights and the batch are read from the package.
"""

import keras
import numpy as np
import pytest

from lottery import config, masks, weights
from lottery.models import networks
from lottery.pipeline import building, preparing
from lottery.pruning import criteria, plan, ranking
from lottery.pruning.criteria import CRITERIA, CriterionInputs
from lottery.pruning.settings import Prune

TEMPERATURE = 200
DENSITIES = (0.5, 0.1, 0.02)


@pytest.fixture(scope="module")
def lenet():
    """LeNet-300-100 on the digits, as a run scores it."""
    experiment = config.load(
        {
            "data": {"name": "digits", "validation": 300},
            "train": {"num_steps": 10, "jit_compile": False},
            "prune": {"criterion": "grasp", "scope": "global"},
        }
    )
    return building.scoring_network(preparing.prepare(experiment), 1)


@pytest.fixture(scope="module")
def resnet():
    """ResNet-20 on a batch of made-up images, which is compiled as built-in networks are."""
    import keras

    keras.utils.set_random_seed(3)
    build = networks.builder("resnet_20", (32, 32, 3), 10)
    model, rng = build(), np.random.default_rng(3)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = rng.normal(size=(20, 32, 32, 3)).astype(np.float32), np.arange(20) % 10
    return criteria.ScoredModel(model, x, y, build)


def inputs_for(network, count=None, scope="global"):
    initial = weights.read(network.model)
    total = sum(value.size for value in initial.values())
    targets = {tuple(initial): count} if scope == "global" else None
    rng = np.random.default_rng(0)
    density = 0.5 if count is None else count / total
    return CriterionInputs(initial, initial, masks.ones_like(initial), rng, density, scope, network, targets)


def overlap(one, other):
    both = sum(np.count_nonzero(one[name] & other[name]) for name in one)
    return both / sum(np.count_nonzero(one[name] | other[name]) for name in one)


def highest(scores, count):
    """Masks of the highest scores of all weights together, by a sort of all of them."""
    joined = np.concatenate([value.ravel() for value in scores.values()])
    kept = np.zeros(joined.size, bool)
    kept[np.argsort(joined, kind="stable")[joined.size - count :]] = True
    parts = np.split(kept, np.cumsum([value.size for value in scores.values()])[:-1])
    return {name: part.reshape(scores[name].shape) for name, part in zip(scores, parts, strict=True)}


def clear_cut(scores, density):
    """The count nearest to a density, within 1 %, whose lowest kept score is farthest from the highest pruned one.

    The package scores in single precision, which may exchange two entries whose scores differ by less than its rounding.
    """
    joined = np.sort(np.concatenate([value.ravel() for value in scores.values()]))[::-1]
    count = round(density * joined.size)
    near = np.arange(round(0.99 * count), round(1.01 * count) + 1)
    return int(near[np.argmax(joined[near - 1] - joined[near])])


def assert_same_masks(network, name, expected):
    """At each density, exactly the entries with the highest expected scores are kept."""
    for density in DENSITIES:
        count = clear_cut(expected, density)
        inputs = inputs_for(network, count)
        total = sum(mask.size for mask in inputs.kept.values())
        kept = ranking.prune_counts(CRITERIA[name].score(inputs), inputs.kept, {tuple(inputs.kept): total - count})
        assert overlap(kept, highest(expected, count)) == 1, (name, density)


def softmax(values):
    exponentials = np.exp(values - values.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def lenet_derivatives(kernels, x, y, temperature, along=None):
    """The gradient of LeNet's cross-entropy or, `along` a direction, the change of the gradient, in NumPy."""
    inputs, slopes = [x], []
    for kernel in kernels[:-1]:
        values = inputs[-1] @ kernel
        slopes.append(values > 0)
        inputs.append(values * slopes[-1])
    chance = softmax(inputs[-1] @ kernels[-1] / temperature)
    back = (chance - np.eye(10)[y]) / (len(y) * temperature)
    along = along or [np.zeros_like(kernel) for kernel in kernels]
    moved = [np.zeros_like(x)]
    for kernel, direction, value, slope in zip(kernels[:-1], along[:-1], inputs[:-1], slopes, strict=True):
        moved.append((moved[-1] @ kernel + value @ direction) * slope)
    of_logits = (moved[-1] @ kernels[-1] + inputs[-1] @ along[-1]) / temperature
    moved_back = chance * (of_logits - (chance * of_logits).sum(axis=1, keepdims=True)) / (len(y) * temperature)
    gradients, changes = [], []
    for index in reversed(range(len(kernels))):
        gradients.insert(0, inputs[index].T @ back)
        changes.insert(0, moved[index].T @ back + inputs[index].T @ moved_back)
        if index:
            moved_back = (moved_back @ kernels[index].T + back @ along[index].T) * slopes[index - 1]
            back = back @ kernels[index].T * slopes[index - 1]
    return gradients, changes


def lenet_flow(kernels):
    """SynFlow's scores: every bias of a network that is not trained yet is zero."""
    ahead = [np.ones((1, kernels[0].shape[0]))]
    for kernel in kernels[:-1]:
        ahead.append(ahead[-1] @ np.abs(kernel))
    back, scores = np.ones((1, 10)), []
    for kernel, value in zip(reversed(kernels), reversed(ahead), strict=True):
        scores.insert(0, np.abs(kernel) * (value.T @ back))
        back = back @ np.abs(kernel).T
    return scores


def of_lenet(network):
    held = weights.read(network.model)
    x = np.asarray(network.x, np.float64).reshape(len(network.x), -1)
    return list(held), [value.astype(np.float64) for value in held.values()], x, np.asarray(network.y)


def test_the_batch_has_as_many_examples_of_each_class(lenet):
    assert np.bincount(np.asarray(lenet.y), minlength=10).tolist() == [10] * 10
    assert len(lenet.x) == 100


@pytest.mark.parametrize(
    ("labels", "num", "counts"),
    [
        (np.array([0, 0, 0, 1, 1, 2, 0, 0]), 6, [3, 2, 1]),  # a class that has too few: the others fill the batch
        (np.arange(30) % 3, 7, [3, 2, 2]),
        (np.eye(3)[np.arange(30) % 3], 9, [3, 3, 3]),  # one hot
    ],
)
def test_examples_are_taken_from_the_classes_in_turns(labels, num, counts):
    rng = np.random.default_rng(1)
    order = rng.permutation(len(labels))
    found = building.balanced(labels[order], order, num)
    classes = labels if labels.ndim == 1 else labels.argmax(axis=1)
    assert len(set(found)) == num and sorted(np.bincount(classes[found]), reverse=True) == counts


def test_examples_without_classes_are_taken_in_order():
    order = np.random.default_rng(1).permutation(20)
    for labels in (np.random.default_rng(2).normal(size=20), np.zeros((20, 4, 4), int)):
        assert building.balanced(labels[order], order, 7).tolist() == order[:7].tolist()


def test_grasp_on_lenet(lenet):
    """Equation 8 of the paper with the logits divided by 200."""
    names, kernels, x, y = of_lenet(lenet)
    gradients, _ = lenet_derivatives(kernels, x, y, TEMPERATURE)
    _, products = lenet_derivatives(kernels, x, y, TEMPERATURE, gradients)
    step = 1e-6 / max(abs(g).max() for g in gradients)  # no unit may change sides
    ahead, behind = (
        lenet_derivatives([w + s * g for w, g in zip(kernels, gradients, strict=True)], x, y, TEMPERATURE)[0]
        for s in (step, -step)
    )
    for product, one, other in zip(products, ahead, behind, strict=True):  # the product by hand is checked, too
        assert np.corrcoef(product.ravel(), (one - other).ravel())[0, 1] > 0.999999
    expected = {name: w * hg for name, w, hg in zip(names, kernels, products, strict=True)}
    assert_same_masks(lenet, "grasp", expected)
    _, without = lenet_derivatives(kernels, x, y, 1, lenet_derivatives(kernels, x, y, 1)[0])
    other = {name: w * hg for name, w, hg in zip(names, kernels, without, strict=True)}
    assert overlap(highest(other, 2000), highest(expected, 2000)) < 0.9, "the temperature makes a difference"


def test_snip_on_lenet(lenet):
    names, kernels, x, y = of_lenet(lenet)
    gradients, _ = lenet_derivatives(kernels, x, y, 1)
    assert_same_masks(lenet, "snip", {name: abs(w * g) for name, w, g in zip(names, kernels, gradients, strict=True)})


def synflow_by_hand(flow, total, count, steps=100):
    """The masks after exponential steps from the dense network to a count."""
    kept = None
    for step in range(1, steps + 1):
        scores = flow(kept)
        if kept is not None:
            scores = {name: np.where(kept[name], value, -1) for name, value in scores.items()}
        kept = highest(scores, round(total * (count / total) ** (step / steps)))
    return kept


@pytest.mark.parametrize("density", DENSITIES)
def test_synflow_on_lenet(lenet, density):
    names, kernels, _, _ = of_lenet(lenet)
    total = sum(kernel.size for kernel in kernels)
    count = round(density * total)

    def flow(kept):
        masked = [kernel * kept[name] if kept else kernel for name, kernel in zip(names, kernels, strict=True)]
        return dict(zip(names, lenet_flow(masked), strict=True))

    inputs = inputs_for(lenet, count)
    found = ranking.prune_counts(CRITERIA["synflow"].score(inputs), inputs.kept, {tuple(names): total - count})
    assert overlap(found, synflow_by_hand(flow, total, count)) == 1


def resnet_outputs(tf, kernels, x, moving):
    """ResNet-20 in plain operations; BatchNorm by the statistics of the batch, or by those of a new network."""
    place = iter(range(1000))

    def normalised(values):
        mean, variance = (0.0, 1.0) if moving else tf.nn.moments(values, (0, 1, 2))
        return (values - mean) / (variance + 1e-5) ** 0.5  # the scale of a new network is one, the shift zero

    def convolved(values, stride, name=None):
        index = next(place) if name is None else None
        name = name or ("conv2d" if index == 0 else f"conv2d_{index}")
        kernel = kernels[f"{name}/kernel"]
        if kernel.shape[0] == 3:
            values = tf.pad(values, [[0, 0], [1, 1], [1, 1], [0, 0]])
        return normalised(tf.nn.conv2d(values, kernel, stride, "VALID"))

    values = tf.nn.relu(convolved(x, 1))
    for stage in range(3):
        for block in range(3):
            stride = 2 if stage and not block else 1
            shortcut = convolved(values, 2, f"shortcut_{stage}") if stride == 2 else values
            inner = tf.nn.relu(convolved(values, stride))
            values = tf.nn.relu(convolved(inner, 1) + shortcut)
    return tf.reduce_mean(values, (1, 2)) @ kernels["dense/kernel"]


@pytest.mark.long
def test_snip_and_grasp_on_resnet_20(resnet):
    """The product of Hessian and gradient forward over reverse, where the package has reverse over reverse."""
    import tensorflow as tf

    held = {name: tf.constant(value, tf.float64) for name, value in weights.read(resnet.model).items()}
    x, y = tf.constant(resnet.x, tf.float64), tf.constant(resnet.y)

    def gradients_of(temperature):
        with tf.GradientTape() as tape:
            tape.watch(held)
            logits = resnet_outputs(tf, held, x, moving=False) / temperature
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        return tape.gradient(loss, held)

    snip = {name: abs(g * held[name]).numpy() for name, g in gradients_of(1).items()}
    assert_same_masks(resnet, "snip", snip)
    directions = gradients_of(TEMPERATURE)
    with tf.autodiff.ForwardAccumulator(list(held.values()), [directions[name] for name in held]) as forward:
        gradients = gradients_of(TEMPERATURE)
    assert_same_masks(resnet, "grasp", {name: (held[name] * forward.jvp(gradients[name])).numpy() for name in held})


@pytest.mark.long
@pytest.mark.parametrize("density", DENSITIES)
def test_synflow_on_resnet_20(resnet, density):
    import tensorflow as tf

    held = weights.read(resnet.model)
    names, total = list(held), sum(value.size for value in held.values())
    count = round(density * total)

    @tf.function
    def derivatives(kernels):
        with tf.GradientTape() as tape:
            tape.watch(kernels)
            flow = tf.reduce_sum(resnet_outputs(tf, kernels, tf.ones((1, 32, 32, 3), tf.float64), moving=True))
        return tape.gradient(flow, kernels)

    def flow(kept):
        absolute = {
            name: np.abs(value.astype(np.float64)) * (kept[name] if kept else 1) for name, value in held.items()
        }
        found = derivatives({name: tf.constant(value) for name, value in absolute.items()})
        return {name: np.abs(found[name].numpy() * absolute[name]) for name in names}

    inputs = inputs_for(resnet, count)
    found = ranking.prune_counts(CRITERIA["synflow"].score(inputs), inputs.kept, {tuple(names): total - count})
    assert overlap(found, synflow_by_hand(flow, total, count)) == 1


def by_equal_percentiles(first, second, count):
    """The entries at or above the same percentile of both, found by bisection on it, until `count` are left.

    Returns the masks and if exactly so many are; two entries may fall at the same percentile, one of each array.
    """
    low, high = 0.0, 100.0
    while True:
        middle = (low + high) / 2
        kept = (first >= np.percentile(first, middle)) & (second >= np.percentile(second, middle))
        left = np.count_nonzero(kept)
        if left == count or high - low < 1e-9:
            return kept, left == count
        low, high = (low, middle) if left < count else (middle, high)


@pytest.mark.parametrize("network", ["lenet_300_100", "resnet_20"])
@pytest.mark.parametrize("name", ["large_init_large_final", "small_init_small_final"])
def test_large_init_large_final_cuts_both_at_the_same_percentile(network, name):
    """Three rounds, layer by layer; each pruned entry is out of the percentiles of the next."""
    rng, sign = np.random.default_rng(5), 1 if name.startswith("large") else -1
    shape = (28, 28) if network.startswith("lenet") else (32, 32, 3)
    keras.utils.set_random_seed(0)
    initial = weights.read(networks.builder(network, shape, 10)())
    settings = Prune(criterion=name, num_rounds=3, rate=0.5)
    kept, exact, seen = masks.ones_like(initial), 0, 0
    for index in (1, 2, 3):
        # Weights that grow with training have another spread than initial ones, so that plain sizes would not do.
        trained = {
            key: (3 * rng.normal(size=value.shape) * value.std()).astype(np.float32) + value
            for key, value in initial.items()
        }
        planned = plan.of_weights(settings, kept)
        inputs = planned.criterion_inputs(index, initial, trained, kept, rng)
        found = planned.masks(index, CRITERIA[name].score(inputs), kept)
        for key, before in kept.items():
            pair = (sign * np.abs(values[key][before]).astype(np.float64) for values in (initial, trained))
            expected, is_exact = by_equal_percentiles(*pair, np.count_nonzero(found[key]))
            seen, exact = seen + 1, exact + is_exact
            ours = found[key][before]
            assert not found[key][~before].any()
            if is_exact:
                assert np.array_equal(ours, expected), (key, index)
            else:  # one entry of the two at the cut is left
                assert np.count_nonzero(ours != expected) == 1, (key, index)
        kept = found
    assert 0 < exact < seen
