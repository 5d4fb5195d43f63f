import numpy as np
import pytest

from lottery import enforcement, masks, models, weights
from lottery.errors import LotteryError
from tests.conftest import toy_arrays

OPTIMIZERS = {
    "sgd": lambda library: library.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda library: library.optimizers.Adam(0.01),
    "adamw": lambda library: library.optimizers.AdamW(0.01, weight_decay=0.1),
    "rmsprop": lambda library: library.optimizers.RMSprop(0.01, momentum=0.5),
    "lion": lambda library: library.optimizers.Lion(0.01),
}


def model_and_masks(library, optimizer="adam", seed=0, **compile_arguments):
    library.utils.set_random_seed(seed)
    model = models.lenet_300_100((6,), 3, library)
    model.compile(
        OPTIMIZERS[optimizer](library),
        library.losses.SparseCategoricalCrossentropy(from_logits=True),
        **compile_arguments,
    )
    assert weights.read(model)
    rng = np.random.default_rng(seed)
    return model, {name: rng.random(value.shape) < 0.4 for name, value in weights.read(model).items()}


@pytest.mark.parametrize("mode", enforcement.ENFORCEMENTS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_masked_entries_are_zero_after_every_update(mode, optimizer, library, rng):
    library = pytest.importorskip(library)
    model, kept = model_and_masks(library, optimizer)
    x, y, *_ = toy_arrays(rng)
    with enforcement.ENFORCEMENTS[mode](model, kept):
        for step in range(12):
            model.train_on_batch(x[step * 16 : step * 16 + 16], y[step * 16 : step * 16 + 16])
            for name, value in weights.read(model).items():
                found = value[~kept[name]]
                assert found.tobytes() == bytes(found.nbytes), (step, name)
                assert np.count_nonzero(value[kept[name]]) > 0.9 * np.count_nonzero(kept[name])


@pytest.mark.parametrize("mode", enforcement.ENFORCEMENTS)
@pytest.mark.parametrize("steps_per_execution", [1, 8])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_fit_holds_them_and_the_model_is_left_as_it_was(mode, steps_per_execution, jit_compile, rng):
    import keras

    model, kept = model_and_masks(keras, steps_per_execution=steps_per_execution, jit_compile=jit_compile)
    x, y, *_ = toy_arrays(rng)
    model.fit(x, y, epochs=1, verbose=0)  # its train function is traced before any mask exists
    for _ in range(2):  # twice
        with enforcement.ENFORCEMENTS[mode](model, kept) as callbacks:
            model.fit(x, y, epochs=2, verbose=0, callbacks=callbacks)
            assert all(not np.any(value[~kept[name]]) for name, value in weights.read(model).items())
        assert all(variable.constraint is None for variable in model.trainable_variables)
        model.fit(x, y, epochs=1, verbose=0)
        assert all(np.any(value[~kept[name]]) for name, value in weights.read(model).items())


@pytest.mark.parametrize("mode", enforcement.ENFORCEMENTS)
def test_other_masks_can_be_assigned_without_another_trace(mode, rng):
    import keras
    import tensorflow as tf

    model, first = model_and_masks(keras)
    x, y, *_ = toy_arrays(rng)
    held = enforcement.mask_variables(first)
    model.train_on_batch(x, y)  # makes the metrics and slots
    with enforcement.ENFORCEMENTS[mode](model, held):
        step = tf.function(lambda: model.train_step((tf.constant(x), tf.constant(y))))
        step()
        assert all(not np.any(value[~first[name]]) for name, value in weights.read(model).items())
        second = {name: rng.permutation(mask.ravel()).reshape(mask.shape) for name, mask in first.items()}
        for name, mask in second.items():
            held[name].assign(mask)
        step()
        assert all(not np.any(value[~second[name]]) for name, value in weights.read(model).items())
        assert all(np.any(value[~first[name]]) for name, value in weights.read(model).items())
        assert step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("mode", enforcement.ENFORCEMENTS)
def test_values_are_held_where_they_are_asked_to_be(mode, rng):
    import keras

    model, kept = model_and_masks(keras, "adamw")
    x, y, *_ = toy_arrays(rng)
    before = weights.read(model)
    with enforcement.ENFORCEMENTS[mode](model, kept, held_at=before):
        model.fit(x, y, epochs=2, verbose=0)
    for name, value in weights.read(model).items():
        np.testing.assert_array_equal(value[~kept[name]], before[name][~kept[name]])
        assert np.any(value[kept[name]] != before[name][kept[name]])


def test_constraint_is_composed_with_one_that_is_there(rng):
    import keras

    layers = keras.layers
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, kernel_constraint=keras.constraints.NonNeg())])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    mine = model.layers[0].kernel.constraint
    x, y, *_ = toy_arrays(rng)
    kept = {"dense/kernel": rng.random((6, 3)) < 0.5}
    with enforcement.constraint(model, kept):
        model.fit(x, y, verbose=0)
        kernel = weights.read(model)["dense/kernel"]
        assert not kernel[~kept["dense/kernel"]].any() and (kernel >= 0).all()
    assert model.layers[0].kernel.constraint is mine


def test_the_model_is_restored_after_an_exception():
    import keras

    model, kept = model_and_masks(keras)
    with pytest.raises(ZeroDivisionError), enforcement.constraint(model, kept):
        raise ZeroDivisionError
    assert all(variable.constraint is None for variable in model.trainable_variables)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dense/kernal": np.ones((6, 300), bool)}, "did you mean 'dense/kernel'"),
        ({"dense/kernel": np.ones((6, 30), bool)}, "shape"),
        ({"dense/kernel": np.ones((6, 300))}, "boolean"),
    ],
)
def test_wrong_masks_are_refused_before_anything_changes(wrong, message):
    import keras

    model, _ = model_and_masks(keras)
    before = weights.read_state(model)
    with pytest.raises(LotteryError, match=message), enforcement.constraint(model, wrong):
        pass
    for name, value in weights.read_state(model).items():
        np.testing.assert_array_equal(value, before[name])
    assert masks.check({}, before) is None


def test_global_clipnorm_counts_the_gradients_of_masked_entries(rng):
    """Documented, and so tested: the norm is that of whole gradients, computed here by hand."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile(
        keras.optimizers.SGD(1.0, global_clipnorm=0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    x, y, *_ = toy_arrays(rng)
    kept = {"dense/kernel": rng.random((6, 3)) < 0.5}
    with enforcement.constraint(model, kept):
        before = weights.read_state(model)
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x))
        kernel, bias = (np.asarray(one) for one in tape.gradient(loss, model.trainable_variables))
        model.train_on_batch(x, y)
        norm = np.sqrt(np.sum(kernel**2) + np.sum(bias**2))
        expected = np.where(kept["dense/kernel"], before["dense/kernel"] - kernel * 0.1 / norm, 0)
        np.testing.assert_allclose(weights.read(model)["dense/kernel"], expected, rtol=1e-4, atol=1e-6)
        assert norm > 0.1
