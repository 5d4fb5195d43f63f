"""The contract of every mode: with each optimiser, in both Kerases, by context and by callback."""

import contextlib
import functools
import importlib
import types

import numpy as np
import pytest

from lottery import config, enforcement, masks, pruning, weights
from lottery.enforcement import tfmot
from lottery.errors import LotteryError
from lottery.models import networks, optimizers
from lottery.pipeline import preparing
from tests.conftest import fit, toy_arrays

LIBRARIES = ["keras", "tf_keras"]
OPTIMIZERS = {
    "sgd": lambda library: library.optimizers.SGD(0.1),
    "momentum": lambda library: library.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda library: library.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda library: library.optimizers.RMSprop(0.01, momentum=0.5),
    "adam": lambda library: library.optimizers.Adam(0.01),
    "adamw": lambda library: library.optimizers.AdamW(0.01, weight_decay=0.1),
    "adafactor": lambda library: library.optimizers.Adafactor(0.01),
    "lion": lambda library: library.optimizers.Lion(0.01),
    "loss_scale": lambda library: (
        library.optimizers if library.__name__ == "keras" else library.mixed_precision
    ).LossScaleOptimizer(library.optimizers.Adam(0.01)),
}
BY_DEFAULT = {"keras": "auto", "tf_keras": None}  # the argument `jit_compile` of `compile`: XLA in Keras 3
# What works in one Keras only: reparameterization in Keras 3, tfmot in tf_keras.
MODES = [
    (mode, library)
    for mode in enforcement.ENFORCEMENTS
    for library in LIBRARIES
    if (mode, library) not in {("reparameterization", "tf_keras"), ("tfmot", "keras")}
]
modes_and_libraries = pytest.mark.parametrize(("mode", "library"), MODES)


def turns(values=None, shift=0, always=()):
    """Cases of (mode, library, value), or of (mode, library): by default each mode with each value.

    A mode that works in both Kerases takes them in turns, another mode the other way round, so that each value meets
    both of them; ``shift`` begins with the other one, and the modes of ``always`` have both. The rest is `long`.
    """
    both = [mode for mode, library in MODES if library == "keras" and (mode, "tf_keras") in MODES]
    cases = []
    for place, value in enumerate([None] if values is None else values):
        for mode, library in MODES:
            later = mode in both and LIBRARIES.index(library) != (place + shift + both.index(mode)) % 2
            marks = [pytest.mark.long] if later and mode not in always else []
            cases.append(pytest.param(mode, library, *([] if values is None else [value]), marks=marks))
    return cases


def network(library, optimizer="momentum", seed=0, dtype=None, built=True, **compile_arguments):
    """A small classifier, compiled.

    A train function that has to make the optimiser's slots is traced twice, and XLA takes longer to compile it than
    to run it: both are left to the tests of just that.
    """
    library.utils.set_random_seed(seed)
    layers = library.layers
    model = library.Sequential(
        [
            layers.InputLayer((6,)),
            layers.Dense(8, "relu", dtype=dtype),
            layers.Dense(3, use_bias=False, dtype=dtype),  # one bias shows what two would, and is traced in less time
        ]
    )
    make = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(make(library), loss, **{"jit_compile": False} | compile_arguments)
    if built:
        model.optimizer.build(model.trainable_variables)
    return model


TRACED = {}


def traced_before(library, optimizer="momentum", by="fit", **arguments):
    """A `network` whose train function was traced before any mask existed: made once, and put back as it was then."""
    key = library.__name__, optimizer, by, *arguments.items()
    if key not in TRACED:
        model = network(library, optimizer, **arguments)
        x, y = examples(np.random.default_rng(12))
        fit(model, x, y) if by == "fit" else model.train_on_batch(x[:16], y[:16])
        variables = [*model.variables, *model.optimizer.variables]
        TRACED[key] = model, model.train_function, [(one, np.array(one)) for one in variables]
    model, train_function, values = TRACED[key]
    for variable, value in values:
        variable.assign(value)
    model.train_function = train_function
    return model


def examples(rng):
    """Whole batches only: another shape would be traced, and compiled, by itself."""
    x, y, *_ = toy_arrays(rng, 192)
    return x, y


def random_masks(model, seed=0, density=0.4):
    rng = np.random.default_rng(seed)
    return {name: rng.random(value.shape) < density for name, value in weights.read(model).items()}


def check_held(model, kept, held_at=None):
    for name, mask in kept.items():
        found = np.asarray(weights.variables(model)[name].numpy())
        expected = np.zeros_like(found) if held_at is None else np.broadcast_to(held_at[name], found.shape)
        # Bytes, for zero and negative zero are equal.
        assert found[~mask].tobytes() == expected[~mask].astype(found.dtype).tobytes(), name


def check_free(model, kept, x, y):
    """Masked entries train again: the old train function is gone, and an update, which needs no trace, moves them."""
    import tensorflow as tf

    assert model.train_function is None
    model.train_step((tf.constant(x), tf.constant(y)))
    assert all(np.any(value[~kept[name]]) for name, value in weights.read(model).items())


def looking(library, kept, held_at=None):
    """A callback that checks after every batch, without the trace that AuditMasks needs."""

    class BranchStyle(library.callbacks.Callback):
        num_batches = 0

        def on_train_batch_end(self, batch, logs=None):
            self.num_batches += 1
            check_held(self.model, kept, held_at)

    return BranchStyle()


def check_restored(model):
    assert all(variable.constraint is None for variable in model.trainable_variables)
    assert not {"call", "fit", "train_step", "make_train_function"} & set(vars(model))
    assert not {"apply", "apply_gradients"} & set(vars(model.optimizer))
    assert all(not {"call", "get_prunable_weights"} & set(vars(layer)) for layer in model.layers)


@pytest.mark.parametrize(("mode", "library", "optimizer"), turns(OPTIMIZERS))
def test_masked_entries_are_held_after_every_update(mode, library, optimizer, rng):
    library = importlib.import_module(library)
    dtype = "mixed_float16" if optimizer == "loss_scale" else None
    kept = random_masks(traced_before(library, optimizer, "train_on_batch", dtype=dtype))
    before = {name: mask.copy() for name, mask in kept.items()}
    x, y = examples(rng)
    for _ in range(2 if optimizer == "adam" else 1):  # twice
        # With slots that are not zero.
        model = traced_before(library, optimizer, "train_on_batch", dtype=dtype)
        assert all(np.any(value[~kept[name]]) for name, value in weights.read(model).items())
        with enforcement.ENFORCEMENTS[mode].hold(model, kept) as callbacks:
            check_held(model, kept)
            start = weights.read(model)
            for step in range(6):
                model.train_on_batch(x[step * 16 : step * 16 + 16], y[step * 16 : step * 16 + 16])
                for one in callbacks:
                    one.on_train_batch_end(step)
                check_held(model, kept)
            for name, value in weights.read(model).items():
                moved = np.count_nonzero(value[kept[name]] != start[name][kept[name]])
                assert moved > 0.2 * np.count_nonzero(kept[name]), name
        check_restored(model)
    for name, mask in kept.items():
        np.testing.assert_array_equal(mask, before[name])


@pytest.mark.parametrize(("mode", "library", "how"), turns([(1, True), (8, False)]), ids=str)
def test_fit_holds_them_and_the_model_is_left_as_it_was(mode, library, how, rng):
    library = importlib.import_module(library)
    steps_per_execution, jit_compile = how
    model = traced_before(library, steps_per_execution=steps_per_execution, jit_compile=jit_compile)
    kept = random_masks(model)
    x, y = examples(rng)
    if mode == "callback" and steps_per_execution > 1:
        with pytest.raises(LotteryError, match="steps_per_execution=8"), enforcement.callback(model, kept):
            pass
        with pytest.raises(LotteryError, match="steps_per_execution=8"):
            fit(model, x, y, callbacks=[enforcement.EnforceMasks(kept, "callback")])
        check_restored(model)
        return

    look = looking(library, kept)  # when `fit` ends, all is put right in any case
    for auditors in [[]] if jit_compile else [[], [enforcement.AuditMasks(kept)]]:  # twice
        with enforcement.ENFORCEMENTS[mode].hold(model, kept) as callbacks:
            fit(model, x, y, callbacks=[*callbacks, look, *auditors])
            check_held(model, kept)
        check_restored(model)
        if auditors:
            fit(model, x, y)
            assert all(np.any(value[~kept[name]]) for name, value in weights.read(model).items())
        else:
            check_free(model, kept, x, y)


@pytest.mark.parametrize(
    ("mode", "library", "arguments"), turns([{}, {"steps_per_execution": 4}, {"run_eagerly": True}]), ids=str
)
def test_as_a_callback_it_is_all_there_is_to_do(mode, library, arguments, rng):
    library = importlib.import_module(library)
    if mode == "callback" and "steps_per_execution" in arguments:
        pytest.skip("refused, which another test sees")
    # With the optimizer that also moves weights by itself, and with one that is traced in half the time.
    model = traced_before(
        library, "momentum" if arguments else "adamw", jit_compile=BY_DEFAULT[library.__name__], **arguments
    )
    kept = random_masks(model)
    x, y, *_ = toy_arrays(rng)  # the last batch is a smaller one
    enforce, look = enforcement.EnforceMasks(kept, mode=mode), looking(library, kept)
    for turn in range(2):
        fit(model, x, y, validation_data=(x, y) if turn else None, callbacks=[enforce, look])
        check_held(model, kept)
        check_restored(model)
        if turn and not arguments:
            fit(model, x[:32], y[:32])
            assert all(np.any(value[~kept[name]]) for name, value in weights.read(model).items())
        else:
            check_free(model, kept, x, y)
    assert look.num_batches >= 4


@modes_and_libraries
@pytest.mark.parametrize("where", ["callback", "step", "validation"])
def test_after_an_exception_the_callback_holds_masks_until_it_is_closed(mode, library, where, rng):
    library = importlib.import_module(library)
    model = network(library, run_eagerly=where == "step")
    kept = random_masks(model)
    x, y = examples(rng)

    class Break(library.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if where == "callback":
                raise ZeroDivisionError

    validation = None
    if where == "step":
        model.compute_loss = lambda *arguments, **named: 1 / 0
    if where == "validation":
        validation = (x[:, :5], y)  # of another shape
    enforce = enforcement.EnforceMasks(kept, mode)
    with pytest.raises(Exception) as caught:
        fit(model, x, y, validation_data=validation, callbacks=[Break(), enforce])
    assert not isinstance(caught.value, LotteryError)
    if where != "step":
        model.train_on_batch(x[:16], y[:16])
        enforce.on_train_batch_end(0)  # the mode `callback` holds at the ends of batches
        check_held(model, kept)
    with (
        pytest.raises(LotteryError, match="already held by .*; leave that context, or call close.. on that callback"),
        enforcement.constraint(model, kept),
    ):
        pass
    for _ in range(2):
        enforce.close()
        check_restored(model)
    with enforcement.ENFORCEMENTS[mode].hold(model, kept):  # nothing is held any more
        pass


@pytest.mark.parametrize("library", LIBRARIES)
def test_after_an_exception_the_callback_holds_masks_until_the_next_fit(library, rng):
    """Callbacks that cannot begin, and data that fail in `fit` itself."""
    library = importlib.import_module(library)
    x, y = examples(rng)
    model = network(library)
    kept = random_masks(model)
    wrong = enforcement.AuditMasks({"dense/kernal": kept["dense/kernel"]})
    with pytest.raises(LotteryError, match="Did you mean"):
        fit(model, x, y, callbacks=[enforcement.EnforceMasks(kept), wrong])
    with pytest.raises(LotteryError, match="already held by 'constraint'"):
        fit(model, x, y, callbacks=[enforcement.EnforceMasks(kept), enforcement.EnforceMasks(kept, "gradient")])
    for following in ([], [enforcement.EnforceMasks(kept, "gradient")]):
        with pytest.raises(Exception):  # noqa: B017 - Keras' own, before it evaluates anything
            model.fit(x, y, verbose=0, validation_data=(x, y[:3]), callbacks=[enforcement.EnforceMasks(kept)])
        fit(model, x, y, callbacks=following)
        assert bool(following) != any(np.any(value[~kept[name]]) for name, value in weights.read(model).items())
        check_restored(model)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_fit_inside_another_never_lets_masked_entries_train_in_silence(library, rng):
    library = importlib.import_module(library)
    x, y, *_ = toy_arrays(rng, 64)
    model, other = network(library), network(library)
    kept = random_masks(model)
    enforce = enforcement.EnforceMasks(kept)

    class Inner(library.callbacks.Callback):
        def __init__(self, fitted, callbacks):
            super().__init__()
            self.fitted, self.callbacks = fitted, callbacks

        def on_train_batch_end(self, batch, logs=None):
            if self.fitted is model:
                check_held(model, kept)
            fit(self.fitted, x[:32], y[:32], callbacks=self.callbacks)

    for fitted, callbacks in ((model, []), (model, [enforcement.EnforceMasks(kept)]), (other, [enforce])):
        with pytest.raises(LotteryError, match="A fit that has not ended uses this"):
            fit(model, x, y, callbacks=[enforce, Inner(fitted, callbacks)])
    fit(model, x, y, callbacks=[enforce, Inner(other, [enforcement.EnforceMasks(kept)])])
    check_held(model, kept)
    check_restored(model)


@pytest.mark.parametrize("library", LIBRARIES)
def test_moving_averages_of_weights_that_take_their_place(library, rng):
    library = importlib.import_module(library)
    x, y = examples(rng)
    model = network(library, lambda library: library.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2))
    kept = random_masks(model)
    kept["dense/kernel"][:] = False
    fit(model, x, y)
    with enforcement.constraint(model, kept, "present"):
        before = weights.read(model)
        fit(model, x, y, epochs=2, callbacks=[enforcement.AuditMasks(kept, before)])
        check_held(model, kept, before)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_weight_can_be_frozen_before_any_optimiser_is_built(library, rng):
    library = importlib.import_module(library)
    x, y = examples(rng)
    model = network(library, built=False)
    kept = {"dense/kernel": np.zeros((6, 8), bool)}
    with enforcement.constraint(model, kept, "present"):
        model.compile(library.optimizers.Adam(0.01), model.loss, jit_compile=False)
    before = weights.read(model)
    fit(model, x, y, callbacks=[enforcement.EnforceMasks(kept, held_at="present")])
    check_held(model, kept, before)
    fit(model, x, y)
    assert np.any(weights.read(model)["dense/kernel"] != before["dense/kernel"])


@modes_and_libraries
def test_other_masks_can_be_assigned_without_another_trace(mode, library, rng):
    library = importlib.import_module(library)
    import tensorflow as tf

    model = network(library)
    first = random_masks(model)
    x, y = examples(rng)
    held = enforcement.mask_variables(first)
    model.train_on_batch(x, y)  # makes the metrics and slots
    with enforcement.ENFORCEMENTS[mode].hold(model, held) as callbacks:

        @tf.function
        def step():
            model.train_step((tf.constant(x), tf.constant(y)))
            for one in callbacks:
                one.on_train_batch_end(0)

        step()
        check_held(model, first)
        second = {name: rng.permutation(mask.ravel()).reshape(mask.shape) for name, mask in first.items()}
        for name, mask in second.items():
            held[name].assign(mask)
        for _ in range(3):
            step()
        check_held(model, second)
        assert all(np.any(value[~first[name]]) for name, value in weights.read(model).items())
        assert step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(("mode", "library"), turns(always=["constraint"]))
def test_values_are_held_where_they_are_asked_to_be(mode, library, rng):
    library = importlib.import_module(library)
    model = network(library, "adamw")
    kept = random_masks(model)
    x, y = examples(rng)
    if mode == "tfmot":
        with (
            pytest.raises(LotteryError, match="zero only"),
            enforcement.pruning_wrappers(model, kept, held_at="present"),
        ):
            pass
        return
    before = weights.read_state(model)
    wanted = [
        ("present", before),
        (before, before),
        (dict.fromkeys(kept, 0.25), dict.fromkeys(kept, 0.25)),
        ({"dense/kernel": "present"}, {"dense/kernel": before["dense/kernel"], "dense_1/kernel": 0.0}),
        ({"dense_1/kernel": np.full((8, 3), -0.5)}, dict.fromkeys(kept, 0.0) | {"dense_1/kernel": -0.5}),
    ]
    for place, (held_at, expected) in enumerate(wanted):
        weights.assign(model, before)
        # The first and the last are traced, and audited.
        model.run_eagerly = place % 4 > 0
        watch = looking(library, kept, expected) if model.run_eagerly else enforcement.AuditMasks(kept, expected)
        callbacks = [enforcement.EnforceMasks(kept, mode, held_at), watch]
        fit(model, x[:64], y[:64], epochs=2, callbacks=callbacks)
        check_held(model, kept, expected)
        for name, value in weights.read(model).items():
            assert np.any(value[kept[name]] != before[name][kept[name]])


def num_products(model, x, y):
    import tensorflow as tf

    traced = tf.function(model.train_step).get_concrete_function((tf.constant(x), tf.constant(y)))
    return sum(one.type == "MatMul" for one in traced.graph.get_operations())


@functools.cache
def num_products_alone(library):
    model = network(library, "adamw")
    with enforcement.constraint(model, {}):
        return num_products(model, *examples(np.random.default_rng(12)))


@modes_and_libraries
def test_a_weight_that_is_masked_whole_is_frozen_and_costs_no_gradient(mode, library, rng, caplog):
    library = importlib.import_module(library)
    model = network(library, "adamw")
    kept = {"dense/kernel": np.zeros((6, 8), bool)}
    held_at = None if mode == "tfmot" else "present"
    before = weights.read_state(model)
    x, y = examples(rng)
    with enforcement.ENFORCEMENTS[mode].hold(model, kept, held_at):
        # One fewer: that of the inputs and their gradients.
        assert num_products(model, x, y) == num_products_alone(library) - 1
    with enforcement.ENFORCEMENTS[mode].hold(model, kept, held_at) as callbacks:
        fit(model, x, y, callbacks=callbacks)
    after = weights.read_state(model)
    expected = np.zeros((6, 8), np.float32) if mode == "tfmot" else before["dense/kernel"]
    np.testing.assert_array_equal(after["dense/kernel"], expected)
    assert np.all(after["dense_1/kernel"] != before["dense_1/kernel"])
    assert "Gradients do not exist" not in caplog.text
    weights.assign(model, before)  # from zeros it could not
    model.run_eagerly = True
    fit(model, x[:32], y[:32])
    assert np.any(weights.read(model)["dense/kernel"] != before["dense/kernel"])  # it trains again


@functools.lru_cache(100)
def survivors(mode, library, optimizer, held=False):
    """Weights after three epochs under a mode, with values held in one weight or without."""
    rng = np.random.default_rng(3)
    jit_compile = BY_DEFAULT[library.__name__] if optimizer == "adam" else False
    # Where modes are to agree bit for bit, `fit` makes the slots of two optimizers too, which costs a second trace.
    model = network(library, optimizer, built=optimizer not in ("momentum", "adam"), jit_compile=jit_compile)
    held_at = {"dense_1/kernel": 0.125} if held else None
    kept = random_masks(model)
    x, y = examples(rng)
    with enforcement.ENFORCEMENTS[mode].hold(model, kept, held_at) as callbacks:
        fit(model, x, y, epochs=3, callbacks=callbacks)
    return weights.read_state(model)


def long_unless(wanted, cases):
    """Cases whose last value is not wanted become `long`."""
    return [
        case if case.values[-1] in wanted else pytest.param(*case.values, marks=[*case.marks, pytest.mark.long])
        for case in cases
    ]


# In the other Keras than the test of every update above.
@pytest.mark.parametrize(
    ("mode", "library", "optimizer"),
    long_unless(
        ("sgd", "momentum", "adam", "adamw"),
        [one for one in turns(OPTIMIZERS, shift=1) if one.values[0] != "constraint" and one.values[2] != "adafactor"],
    ),
)
def test_modes_agree_bit_for_bit(mode, library, optimizer):
    library = importlib.import_module(library)
    one, other = (survivors(which, library, optimizer, mode != "tfmot") for which in ("constraint", mode))
    for name in one:
        assert one[name].tobytes() == other[name].tobytes(), name


MASKED_GRADIENTS = ["gradient", "reparameterization"]
DIFFERING = {
    "global_clipnorm": lambda library: library.optimizers.SGD(1.0, global_clipnorm=0.1),
    "clipnorm": lambda library: library.optimizers.SGD(1.0, clipnorm=0.05),
    "adafactor": OPTIMIZERS["adafactor"],
    "lamb": lambda library: library.optimizers.Lamb(0.01),
    "muon": lambda library: library.optimizers.Muon(0.01),
}


@pytest.mark.parametrize("optimizer", DIFFERING)
def test_where_modes_differ(optimizer):
    """The table of docs/enforcement.md: optimisers that look at a gradient as a whole."""
    import keras

    by_mode = {
        mode: survivors(mode, keras, DIFFERING[optimizer]) for mode in ("constraint", "callback", *MASKED_GRADIENTS)
    }
    kernel = {mode: state["dense_1/kernel"] for mode, state in by_mode.items()}
    np.testing.assert_array_equal(kernel["constraint"], kernel["callback"])
    np.testing.assert_allclose(kernel["gradient"], kernel["reparameterization"], rtol=1e-5, atol=1e-6)
    assert np.abs(kernel["constraint"] - kernel["gradient"]).max() > 1e-4


def test_reparameterization_puts_back_what_decoupled_decay_moves(rng):
    """Row of docs/enforcement.md: the hidden copy is no other than what the network computes with."""
    import keras

    model = network(keras, lambda library: library.optimizers.AdamW(0.01, weight_decay=0.5))
    kept = random_masks(model)
    before = weights.read(model)
    x, y = examples(rng)
    with enforcement.reparameterization(model, kept, "present"):
        fit(model, x, y, epochs=2)
        check_held(model, kept, before)


def test_global_clipnorm_counts_the_gradients_of_masked_entries_only_where_they_exist(rng):
    """Documented, and so tested: the norm is that of whole gradients, or of masked ones, computed here by hand."""
    import keras
    import tensorflow as tf

    for mode in ("constraint", "gradient"):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(1.0, global_clipnorm=0.1), loss, jit_compile=False)
        x, y = examples(rng)
        kept = {"dense/kernel": rng.random((6, 3)) < 0.5}
        with enforcement.ENFORCEMENTS[mode].hold(model, kept):
            before = weights.read_state(model)
            with tf.GradientTape() as tape:
                loss = model.compute_loss(x, y, model(x))
            kernel, bias = (np.asarray(one) for one in tape.gradient(loss, model.trainable_variables))
            model.train_on_batch(x, y)
            counted = kernel * kept["dense/kernel"] if mode == "gradient" else kernel
            norm = np.sqrt(np.sum(counted**2) + np.sum(bias**2))
            expected = np.where(kept["dense/kernel"], before["dense/kernel"] - kernel * 0.1 / norm, 0)
            np.testing.assert_allclose(weights.read(model)["dense/kernel"], expected, rtol=1e-4, atol=1e-6)
            assert norm > 0.1


WHOLE = {"constraint", "callback", "tfmot"}  # modes under which an optimiser sees whole gradients


@modes_and_libraries
def test_a_masked_gradient_that_is_not_finite_skips_the_step_only_where_it_is_seen(mode, library):
    """Row of docs/enforcement.md: LossScaleOptimizer."""
    library = importlib.import_module(library)
    library.utils.set_random_seed(0)
    model = library.Sequential([library.layers.InputLayer((2,)), library.layers.Dense(1, use_bias=False)])
    scaling = (library.optimizers if library.__name__ == "keras" else library.mixed_precision).LossScaleOptimizer
    model.compile(scaling(library.optimizers.SGD(0.1), initial_scale=64.0), "mae", jit_compile=False)
    kept = {"dense/kernel": np.array([[True], [False]])}
    with enforcement.ENFORCEMENTS[mode].hold(model, kept) as callbacks:
        before = weights.read(model)["dense/kernel"]
        model.train_on_batch(np.array([[1.0, 3e38]], np.float32), np.array([5.0], np.float32))
        for one in callbacks:
            one.on_train_batch_end(0)
        after = weights.read(model)["dense/kernel"]
    assert after[1] == 0 and (after[0] == before[0]) == (mode in WHOLE)


@modes_and_libraries
def test_slots_of_masked_entries(mode, library, rng):
    """Row of docs/enforcement.md: what an optimiser remembers of them."""
    library = importlib.import_module(library)
    model = network(library, "adam")
    kept = random_masks(model)
    x, y = examples(rng)
    with enforcement.ENFORCEMENTS[mode].hold(model, kept) as callbacks:
        fit(model, x, y, callbacks=callbacks)
        slots = {one.num_nonzero_slots > 0 for one in enforcement.audit(model, kept).values()}
    assert slots == {mode in WHOLE}


@pytest.mark.parametrize("mode", [mode for mode, library in MODES if library == "keras"])
def test_moving_averages_that_are_swapped_in_are_held(mode, rng):
    """Row of docs/enforcement.md: evaluations, and callbacks that save or restore weights, see held values too."""
    import keras

    model = network(keras, lambda library: library.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5))
    kept = random_masks(model)
    held_at = weights.read(model)
    x, y = examples(rng)

    class See(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            check_held(self.model, kept, held_at)

        def on_epoch_end(self, epoch, logs=None):
            check_held(self.model, kept, held_at)

    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    callbacks = [swap, enforcement.EnforceMasks(kept, mode, "present"), See()]
    fit(model, x, y, epochs=2, validation_data=(x, y), callbacks=callbacks)
    check_held(model, kept, held_at)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_weight_that_is_masked_whole_counts_in_no_norm(library, rng):
    """Row of docs/enforcement.md: so modes agree there even under global_clipnorm."""
    library = importlib.import_module(library)
    x, y = examples(rng)
    states = []
    for mode in ("constraint", "gradient"):
        model = network(library, lambda library: library.optimizers.SGD(1.0, global_clipnorm=0.1))
        kept = {"dense/kernel": np.zeros((6, 8), bool)}
        with enforcement.ENFORCEMENTS[mode].hold(model, kept, "present"):
            fit(model, x, y)
        states.append(weights.read_state(model))
    for name in states[0]:
        np.testing.assert_array_equal(states[0][name], states[1][name])


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_weight_in_a_list_that_is_masked_whole_stays_a_weight(library):
    library = importlib.import_module(library)

    class Listed(library.layers.Layer):
        def build(self, shape):
            self.both = [self.add_weight(name="w", shape=(shape[-1], 3)) for _ in range(2)]

        def call(self, x):
            return x @ (self.both[0] + self.both[1])

    model = library.Sequential([library.layers.InputLayer((6,)), Listed()])
    kept = {"listed/w": np.zeros((6, 3), bool)}
    with enforcement.constraint(model, kept):
        assert len(model.layers[-1].weights) == 2
        enforcement.audit(model, kept)


@pytest.mark.parametrize(
    ("mode", "library", "optimizer"),
    [case for case in turns(["momentum", "adam", "rmsprop", "lion"]) if case.values[0] == "gradient"],
)
def test_gradient_keeps_slots_of_masked_entries_at_zero(mode, library, optimizer, rng):
    model = network(importlib.import_module(library), optimizer)
    x, y = examples(rng)
    kept = random_masks(model)
    fit(model, x, y)
    assert all(one.num_nonzero_slots for one in enforcement.audit(model, kept).values())
    with enforcement.ENFORCEMENTS[mode].hold(model, kept):
        for _ in range(2):
            assert all(one.num_nonzero_slots == 0 for one in enforcement.audit(model, kept).values())
            fit(model, x, y)


@functools.cache
def trained_by_hand(library, mode=None):
    """The state after five steps of a tape and an optimiser, with a mode around them or the two plain functions in them."""
    library = importlib.import_module(library)
    import tensorflow as tf

    x, y = examples(np.random.default_rng(12))
    model = network(library, "adamw")
    kept = random_masks(model)
    variables = enforcement.mask_variables(kept)
    loss_of = library.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loss_of(y, model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        if mode is None:
            gradients = enforcement.mask_gradients(model, variables, gradients)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if mode is None:
            enforcement.project(model, variables)

    if mode is None:
        enforcement.project(model, variables)
    with enforcement.ENFORCEMENTS[mode].hold(model, kept) if mode else contextlib.nullcontext([]) as callbacks:
        for index in range(5):
            step()
            for one in callbacks:
                one.on_train_batch_end(index)
            check_held(model, kept)
    return weights.read_state(model)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("mode", ["constraint", "gradient", "callback"])
def test_loops_written_by_hand(library, mode):
    """A tape, an optimiser, and either a mode around it or the two plain functions in it, masks as variables."""
    plain = trained_by_hand(library)
    for name, value in trained_by_hand(library, mode).items():
        np.testing.assert_array_equal(value, plain[name])


def test_sparse_gradients_of_an_embedding_are_masked_too(rng):
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,), dtype="int32"), keras.layers.Embedding(20, 5)])
    kept = {"embedding/embeddings": rng.random((20, 5)) < 0.5}
    tokens = tf.constant(rng.integers(0, 20, (8, 4)), tf.int32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tokens) ** 2)
    gradient = tape.gradient(loss, model.trainable_variables)
    assert isinstance(gradient[0], tf.IndexedSlices)
    (masked,) = enforcement.mask_gradients(model, kept, gradient)
    assert isinstance(masked, tf.IndexedSlices)
    dense, whole = (np.asarray(tf.convert_to_tensor(one)) for one in (masked, gradient[0]))
    np.testing.assert_array_equal(dense, whole * kept["embedding/embeddings"])
    assert np.any(whole[~kept["embedding/embeddings"]])


def SelfAttention():
    import keras

    class Layer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.attention = keras.layers.MultiHeadAttention(2, 2, dropout=0.1)

        def build(self, shape):
            self.attention.build(shape, shape)

        def call(self, x):
            return self.attention(x, x)

    return Layer()


LAYERS = {
    "conv": lambda layers: [layers.Reshape((6, 1)), layers.Conv1D(4, 3, activation="relu"), layers.Flatten()],
    "depthwise": lambda layers: [
        layers.Reshape((3, 2, 1)),
        layers.DepthwiseConv2D(2, depth_multiplier=3),
        layers.Flatten(),
    ],
    "lstm": lambda layers: [layers.Reshape((3, 2)), layers.LSTM(4, dropout=0.2)],
    "gru": lambda layers: [layers.Reshape((3, 2)), layers.Bidirectional(layers.GRU(3))],
    "time": lambda layers: [layers.Reshape((3, 2)), layers.TimeDistributed(layers.Dense(4)), layers.Flatten()],
    "attention": lambda layers: [layers.Reshape((3, 2)), SelfAttention(), layers.Flatten()],
    "norm": lambda layers: [layers.Dense(5), layers.BatchNormalization(), layers.Dropout(0.2)],
    "regularised": lambda layers: [layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l2")],
}


@functools.lru_cache(100)
def with_layers(kind, mode, library):
    """Losses and the state after an epoch of a network with such layers, held at every batch."""
    library = importlib.import_module(library)
    x, y = examples(np.random.default_rng(12))
    library.utils.set_random_seed(1)
    model = library.Sequential(
        [library.layers.InputLayer((6,)), *LAYERS[kind](library.layers), library.layers.Dense(3)]
    )
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(OPTIMIZERS["momentum"](library), loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    kept = random_masks(model)
    callbacks = [enforcement.EnforceMasks(kept, mode), looking(library, kept)]
    library.utils.set_random_seed(2)
    losses = fit(model, x, y, callbacks=callbacks).history["loss"]
    check_held(model, kept)
    return losses, weights.read_state(model)


@pytest.mark.parametrize(
    ("mode", "library", "kind"),
    [
        case
        for case in turns(LAYERS)
        # tfmot does not prune the first; these three run long, and are the same for the other modes.
        if (case.values[0], case.values[2]) != ("tfmot", "depthwise")
        and (case.values[2] not in ("gru", "time", "attention") or case.values[0] == "reparameterization")
    ],
)
def test_layers_of_every_kind(mode, library, kind):
    """Held at every batch; and the same bits as under the constraint, statistics, seeds and losses included."""
    (losses, state), (other_losses, other) = (with_layers(kind, which, library) for which in ("constraint", mode))
    np.testing.assert_allclose(losses, other_losses, rtol=1e-6)
    for name in state:
        np.testing.assert_allclose(state[name], other[name], rtol=1e-5, atol=1e-7, err_msg=name)


def test_constraint_is_composed_with_one_that_is_there(rng):
    import keras

    layers = keras.layers
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, kernel_constraint=keras.constraints.NonNeg())])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    mine = model.layers[0].kernel.constraint
    x, y = examples(rng)
    kept = {"dense/kernel": rng.random((6, 3)) < 0.5}
    with enforcement.constraint(model, kept):
        fit(model, x, y)
        kernel = weights.read(model)["dense/kernel"]
        assert not kernel[~kept["dense/kernel"]].any() and (kernel >= 0).all()
    assert model.layers[0].kernel.constraint is mine


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_norm_counts_kept_entries_alone(library, rng):
    """The final weights obey both, the constraint and the mask, and so does every mode's network: all the same."""
    library = importlib.import_module(library)
    layers, constraints = library.layers, library.constraints
    x, y = examples(rng)
    kept = {name: rng.random(shape) < 0.5 for name, shape in {"dense/kernel": (6, 8), "dense_1/kernel": (8, 3)}.items()}
    kept["dense_1/kernel"][:, 2] = False  # no norm makes one of nothing
    found = []
    for mode in ("constraint", "gradient", "callback"):
        library.utils.set_random_seed(0)
        model = library.Sequential(
            [
                layers.InputLayer((6,)),
                layers.Dense(8, "relu", kernel_constraint=constraints.MaxNorm(0.3, axis=0)),
                layers.Dense(3, kernel_constraint=constraints.UnitNorm(axis=0)),
            ]
        )
        loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(library.optimizers.Adam(0.1), loss, jit_compile=False)
        model.optimizer.build(model.trainable_variables)
        own = [layer.kernel.constraint for layer in model.layers]
        fit(model, x, y, callbacks=[enforcement.EnforceMasks(kept, mode), looking(library, kept)])
        assert [layer.kernel.constraint for layer in model.layers] == own
        check_held(model, kept)
        found.append(weights.read(model))
        norms = [np.linalg.norm(value, axis=0) for value in found[-1].values()]
        assert norms[0].max() == pytest.approx(0.3, rel=1e-5)
        np.testing.assert_allclose(norms[1], [1, 1, 0], rtol=1e-5)
    for one in found[1:]:
        for name, value in one.items():
            np.testing.assert_allclose(value, found[0][name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("rmsprop", marks=pytest.mark.long)])
def test_rows_of_an_embedding_that_a_batch_does_not_look_up_stay_in_every_mode(optimizer, rng):
    """Keras' optimisers take the gradient of an Embedding row by row, so momentum moves no other row."""
    import keras

    x, y = rng.integers(0, 11, (48, 6)), rng.integers(0, 3, 48)
    states = {}
    for mode in (None, "constraint", "reparameterization"):
        for density in (1.1, 0.5) if mode else (1.1,):
            keras.utils.set_random_seed(1)
            layers = [keras.layers.Embedding(11, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)]
            model = keras.Sequential([keras.Input((6,)), *layers])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(OPTIMIZERS[optimizer](keras), loss, jit_compile=False)
            model.optimizer.build(model.trainable_variables)
            kept = random_masks(model, density=density)
            callbacks = [enforcement.EnforceMasks(kept, mode)] if mode else []
            fit(model, x, y, batch_size=8, callbacks=callbacks)
            states[mode, density] = weights.read_state(model)
            if mode:
                check_held(model, kept)
    for name, value in states[None, 1.1].items():
        for mode in ("constraint", "reparameterization"):
            np.testing.assert_allclose(states[mode, 1.1][name], value, rtol=1e-5, atol=1e-7, err_msg=name)
        np.testing.assert_allclose(
            states["reparameterization", 0.5][name], states["constraint", 0.5][name], rtol=1e-5, atol=1e-7, err_msg=name
        )


@pytest.mark.parametrize("scaled", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("mode", [mode for mode, library in MODES if library == "keras"])
def test_an_optimiser_for_each_weight(mode, scaled, rng):
    """A MultiOptimizer, also under a LossScaleOptimizer: held, frozen, with slots that are found."""
    import keras

    def make(keras):
        one, other = keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.Adam(0.01)
        several = keras.optimizers.MultiOptimizer(lambda variable: one if "kernel" in variable.path else other)
        return keras.optimizers.LossScaleOptimizer(several) if scaled else several

    x, y = examples(rng)
    model = network(keras, make)
    kept = {"dense/kernel": np.zeros((6, 8), bool), "dense_1/kernel": rng.random((8, 3)) < 0.5}
    before = weights.read_state(model)
    callbacks = [enforcement.EnforceMasks(kept, mode, "present"), looking(keras, kept, before)]
    for _ in range(2):
        fit(model, x, y, callbacks=callbacks)
    check_held(model, kept, before)
    after = weights.read_state(model)
    changed = [name for name in after if np.any(after[name] != before[name])]
    assert changed == ["dense/bias", "dense_1/kernel"]
    found = enforcement.audit(model, {"dense/bias": np.zeros(8, bool), "dense_1/kernel": kept["dense_1/kernel"]})
    assert found["dense/bias"].num_nonzero_slots > 8  # two of Adam's
    assert (found["dense_1/kernel"].num_nonzero_slots > 0) == (mode in WHOLE)


def test_layers_that_assign_their_own_weight_are_refused_where_it_is_a_tensor(rng):
    import keras

    class Own(keras.layers.Dense):
        def call(self, inputs):
            self._kernel.assign(self._kernel * 0.5)
            return super().call(inputs)

    x, y = examples(rng)
    for layer, message in (
        (
            keras.layers.SpectralNormalization(keras.layers.Dense(3)),
            "^The layer .* is a SpectralNormalization, which assigns",
        ),
        (Own(3), "'own/kernel' cannot be assigned while the network computes: .*reparameterization"),
    ):
        model = keras.Sequential([keras.Input((6,)), layer])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
        kept = random_masks(model)
        with pytest.raises(LotteryError, match=message):
            fit(model, x, y, callbacks=[enforcement.EnforceMasks(kept, "reparameterization")])
        fit(model, x, y, callbacks=[enforcement.EnforceMasks(kept)])
        check_held(model, kept)
        assert all("assign" not in vars(variable) for variable in model.variables)


def test_a_tf_function_in_a_layer_is_refused_where_its_trace_would_keep_a_tensor(rng):
    import keras
    import tensorflow as tf

    class Traced(keras.layers.Dense):
        @tf.function
        def call(self, inputs):
            return super().call(inputs)

    x, y = examples(rng)
    model = keras.Sequential([keras.Input((6,)), Traced(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    kept = random_masks(model)
    with pytest.raises(LotteryError, match="The layer 'traced' has a tf.function, 'call'"):
        fit(model, x, y, callbacks=[enforcement.EnforceMasks(kept, "reparameterization")])
    fit(model, x, y, callbacks=[enforcement.EnforceMasks(kept)])
    check_held(model, kept)


@pytest.mark.parametrize("mode", ["constraint", "gradient", "reparameterization"])
def test_masks_on_a_part_of_a_fitted_model_that_are_not_held_are_found_out(mode, rng):
    """The outer model keeps the step that it has traced, which knows no mask."""
    import keras

    x, _ = examples(rng)
    inputs = keras.Input((6,))
    inner = keras.Model(inputs, keras.layers.Dense(4, "relu", name="inside")(inputs), name="encoder")
    outer = keras.Model(inputs, keras.layers.Dense(6)(inner(inputs)))
    outer.compile("sgd", "mse", jit_compile=False)
    inner.compile("sgd", "mse", jit_compile=False)
    kept = {"inside/kernel": rng.random((6, 4)) < 0.5}
    hold = enforcement.ENFORCEMENTS[mode].hold
    fit(outer, x, x)
    with pytest.raises(LotteryError, match="'inside/kernel' has masked .* contains 'encoder'"), hold(inner, kept):
        fit(outer, x, x)
    check_held(inner, kept)
    # What another loop raises is not hidden, and a model that is left alone has nothing to find.
    with pytest.raises(ZeroDivisionError), hold(inner, kept):
        fit(outer, x, x)
        raise ZeroDivisionError
    with hold(inner, kept):
        inner(x)


def test_an_embedding_is_refused_where_a_legacy_optimizer_cannot_hold_it(rng):
    import tf_keras

    layers = [tf_keras.layers.InputLayer((5,), dtype="int32"), tf_keras.layers.Embedding(12, 4)]
    model = tf_keras.Sequential([*layers, tf_keras.layers.Flatten(), tf_keras.layers.Dense(3)])
    model.compile(tf_keras.optimizers.legacy.Adam(0.1), "mse")
    x, y = rng.integers(0, 12, (32, 5)), rng.normal(size=(32, 3)).astype(np.float32)
    kept = random_masks(model)
    with pytest.raises(LotteryError, match="'embedding/embeddings' is an embedding, whose masks"):
        fit(model, x, y, callbacks=[enforcement.EnforceMasks(kept)])
    fit(model, x, y, callbacks=[enforcement.EnforceMasks(kept, "callback")])
    check_held(model, kept)


def test_regularisers_give_masked_entries_no_gradient_where_a_tensor_takes_their_place(rng):
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.1))])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    kept = random_masks(model)
    x, y = examples(rng)
    values = weights.read(model)
    with enforcement.reparameterization(model, kept, values):
        fit(model, x, y)
        (found,) = enforcement.audit(model, kept, values).values()
    assert found.num_nonzero_slots == 0 and found.num_masked > 5
    assert not {"call", "compute_loss"} & set(vars(model))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["Adagrad", "Ftrl", "Adam"])
def test_slots_that_are_cleared_are_as_those_of_a_new_optimizer(name, library, rng):
    """An accumulator of Adagrad or Ftrl does not begin at zero: from there, a first step has a wrong length, or is NaN."""
    library = importlib.import_module(library)
    model = network(library, lambda library: getattr(library.optimizers, name)(0.01))
    new = {key: [np.array(slot) for slot in _slots(model, key)] for key in weights.read(model)}
    kept = random_masks(model)
    x, y = examples(rng)
    fit(model, x, y)
    optimizers.clear_slots(model.optimizer, weights.variables(model), kept)
    for key, mask in kept.items():
        assert new[key]
        for slot, begin in zip(_slots(model, key), new[key], strict=True):
            assert np.array_equal(np.array(slot)[~mask], begin[~mask])
    fit(model, x, y)
    with enforcement.gradient(model, kept):
        for key, mask in kept.items():
            for slot, begin in zip(_slots(model, key), new[key], strict=True):
                assert np.array_equal(np.array(slot)[~mask], begin[~mask])


@pytest.mark.parametrize("library", LIBRARIES)
def test_slots_are_those_of_one_weight_also_where_others_have_its_shape(library):
    library = importlib.import_module(library)
    model = library.Sequential([library.layers.InputLayer((4,)), *(library.layers.Dense(4) for _ in range(4))])
    optimizer = library.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    found = [id(slot) for variable in model.trainable_variables for slot in optimizers.slots(optimizer, variable)]
    assert len(found) == len(set(found)) == 2 * len(model.trainable_variables)


def _slots(model, name):
    return optimizers.slots(model.optimizer, weights.variables(model)[name])


def test_what_lora_adds_is_not_held_in_silence(rng):
    import keras

    x, y = examples(rng)
    model = network(keras)
    kept = random_masks(model)
    fit(model, x, y, callbacks=[enforcement.EnforceMasks(kept)])
    layer = model.layers[0]
    layer.enable_lora(2)
    model.compile(keras.optimizers.Adam(0.1), model.loss, jit_compile=False)
    for callback in (enforcement.EnforceMasks(kept), enforcement.AuditMasks(kept)):
        with pytest.raises(LotteryError, match="'dense/kernel' is adapted by LoRA"):
            fit(model, x, y, callbacks=[callback])
    with pytest.raises(LotteryError, match="adapted by LoRA"):
        enforcement.project(model, kept)
    rest = {"dense_1/kernel": kept["dense_1/kernel"], "dense/kernel": np.ones((6, 8), bool)}
    fit(model, x, y, callbacks=[enforcement.EnforceMasks(rest)])
    masked = ~kept["dense/kernel"]
    found = enforcement.audit(model, kept)["dense/kernel"]
    assert found.deviation == pytest.approx(np.abs(np.asarray(layer.kernel))[masked].max()) and found.deviation > 0
    assert not layer._kernel.numpy()[masked].any()


@pytest.mark.parametrize(
    ("mode", "library"), [case for case in turns(shift=1) if case.values[0] in ("constraint", "gradient", "callback")]
)
def test_values_that_another_callback_restores_are_the_present_ones(library, mode, rng, tmp_path):
    """A fit that BackupAndRestore resumes holds what the first one held, wherever EnforceMasks stands."""
    library = importlib.import_module(library)
    x, y = examples(rng)
    kept = {"dense/kernel": rng.random((6, 8)) < 0.5}

    class Crash(library.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                raise KeyboardInterrupt

    for first in (True, False):

        def callbacks(folder=tmp_path / str(first), first=first):
            both = [
                enforcement.EnforceMasks(kept, mode, held_at="present"),
                library.callbacks.BackupAndRestore(folder, delete_checkpoint=False),
                enforcement.AuditMasks(kept, "present"),
            ]
            return both if first else [both[1], both[0], both[2]]

        model = network(library, seed=1)
        before = weights.read_state(model)
        with pytest.raises(KeyboardInterrupt):
            fit(model, x, y, epochs=2, callbacks=[*callbacks(), Crash()])
        for _ in range(2):  # the second finds nothing left to train
            again = network(library, seed=2)
            fit(again, x, y, epochs=2, callbacks=callbacks())
            check_held(again, kept, before)
            assert np.any(weights.read_state(again)["dense/kernel"] != before["dense/kernel"])
            check_restored(again)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_saved_model_and_its_masks_train_on_with_the_same_entries_locked(library, rng, tmp_path):
    """The three lines of docs/locking_entries.md, also for what a fit saves in its midst."""
    library = importlib.import_module(library)
    x, y = examples(rng)
    model = network(library)
    free = random_masks(model)
    before = weights.read_state(model)
    saving = library.callbacks.ModelCheckpoint(str(tmp_path / "epoch.keras"))
    fit(model, x, y, callbacks=[enforcement.EnforceMasks(free, held_at="present"), saving])
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "masks.npz", **free)
    for file in ("model.keras", "epoch.keras"):
        again, masks_again = library.models.load_model(tmp_path / file), dict(np.load(tmp_path / "masks.npz"))
        fit(again, x, y, callbacks=[enforcement.EnforceMasks(masks_again, held_at="present")])
        check_held(again, free, before)
        assert np.any(weights.read_state(again)["dense/kernel"] != weights.read_state(model)["dense/kernel"])


@pytest.mark.parametrize(("mode", "library"), turns(shift=1, always=["constraint"]))
def test_a_saved_or_cloned_model_is_held_again_by_applying_masks_again(mode, library, rng, tmp_path):
    """Pitfall 23: what holds entries is neither saved nor cloned; their values are."""
    library = importlib.import_module(library)
    x, y = examples(rng)
    model = network(library)
    kept = random_masks(model)
    with enforcement.ENFORCEMENTS[mode].hold(model, kept) as callbacks:
        fit(model, x, y, callbacks=callbacks)
        model.save(tmp_path / "model.keras")
        cloned = library.models.clone_model(model)
    cloned.compile("sgd", model.loss, run_eagerly=True)  # the loaded one is traced
    loaded = library.models.load_model(tmp_path / "model.keras")
    check_held(loaded, kept)
    for other in (loaded, cloned):
        assert weights.read(other).keys() == kept.keys()
        enforce, audit = enforcement.EnforceMasks(kept, mode), enforcement.AuditMasks(kept)
        fit(other, x[:64], y[:64], callbacks=[enforce, audit])
        check_held(other, kept)
        other.run_eagerly = True
        with pytest.raises(LotteryError, match="does not hold the masks"):
            fit(other, x[:64], y[:64], callbacks=[audit])


@modes_and_libraries
def test_the_model_is_restored_after_an_exception(mode, library):
    library = importlib.import_module(library)
    model = network(library)
    with pytest.raises(ZeroDivisionError), enforcement.ENFORCEMENTS[mode].hold(model, random_masks(model)):
        raise ZeroDivisionError
    check_restored(model)


@pytest.mark.parametrize(
    ("wrong", "held_at", "message"),
    [
        ({"dense/kernal": np.ones((6, 8), bool)}, None, "Did you mean 'dense/kernel'"),
        ({"dense/kernel": np.ones((6, 30), bool)}, None, "shape"),
        ({"dense/kernel": np.ones((6, 8))}, None, "boolean"),
        ([np.ones((6, 8), bool)], None, " must be a dict .* not list"),
        ({"dense/kernel": np.zeros((6, 8), bool)}, {"dense/kernel": "presents"}, "Did you mean 'present'"),
        ({"dense/kernel": np.zeros((6, 8), bool)}, {"dense/kernel": np.nan}, "finite"),
        ({"dense/kernel": np.zeros((6, 8), bool)}, {"dense/kernel": np.full((6, 8), np.inf)}, "finite"),
        ({"dense/kernel": np.zeros((6, 8), bool)}, {"dense/kernel": 1e39}, "finite"),
        ({"dense/kernel": np.zeros((6, 8), bool)}, {"dense/kernel": [["a"]]}, "shape"),
        ({"dense/kernel": np.zeros((6, 8), bool)}, {"dense/kernel": np.zeros((6, 3))}, "shape"),
        ({"dense/kernel": np.zeros((6, 8), bool)}, {"dense/kernels": 1.0}, "Did you mean 'dense/kernel'"),
        ({"dense/kernel": np.zeros((6, 8), bool)}, "presents", "Did you mean 'present'"),
        ({"dense/kernel": np.zeros((6, 8), bool)}, 1.0, "held_at must be a dict .*not float"),
    ],
)
@pytest.mark.parametrize("mode", [mode for mode in enforcement.ENFORCEMENTS if mode != "tfmot"])
def test_wrong_masks_and_values_are_refused_before_anything_changes(mode, wrong, held_at, message):
    import keras

    model = traced_before(keras)
    before = weights.read_state(model)
    with pytest.raises(LotteryError, match=message), enforcement.ENFORCEMENTS[mode].hold(model, wrong, held_at):
        pass
    with pytest.raises(LotteryError, match=message):
        fit(model, np.ones((2, 6)), np.ones(2), callbacks=[enforcement.EnforceMasks(wrong, mode, held_at)])
    check_restored(model)
    for name, value in weights.read_state(model).items():
        np.testing.assert_array_equal(value, before[name])
    assert masks.check({}, before) is None


@modes_and_libraries
def test_a_mode_inside_itself_or_another_is_refused(mode, library):
    library = importlib.import_module(library)
    model = network(library)
    kept = random_masks(model)
    for inner in (mode, "constraint"):
        with (
            enforcement.ENFORCEMENTS[mode].hold(model, kept),
            pytest.raises(LotteryError, match=f"'dense/kernel' is already held by '{mode}'"),
            enforcement.ENFORCEMENTS[inner].hold(model, kept),
        ):
            pass
        check_restored(model)
    if mode != "tfmot":  # other weights may be held otherwise
        with (
            enforcement.ENFORCEMENTS[mode].hold(model, {"dense/kernel": kept["dense/kernel"]}),
            enforcement.constraint(model, {"dense_1/kernel": kept["dense_1/kernel"]}, "present"),
        ):
            pass
    check_restored(model)


def test_what_the_model_is_not():
    import keras
    import tf_keras

    with (
        pytest.raises(LotteryError, match="is a tf_keras model, and reparameterization needs a Keras 3 model"),
        enforcement.reparameterization(network(tf_keras), {}),
    ):
        pass
    model = network(keras)
    with (
        pytest.raises(LotteryError, match="Keras 3.*tf_keras"),
        enforcement.pruning_wrappers(model, random_masks(model)),
    ):
        pass
    unbuilt = keras.Sequential([keras.layers.Dense(3)])
    for mode in ("constraint", "reparameterization", "callback"):
        with pytest.raises(LotteryError, match="not built"), enforcement.ENFORCEMENTS[mode].hold(unbuilt, {}):
            pass
    uncompiled = networks.lenet_300_100((6,), 3)
    with pytest.raises(LotteryError, match="no optimizer"), enforcement.gradient(uncompiled, {}):
        pass
    with pytest.raises(LotteryError, match="Did you mean 'gradient'"):
        enforcement.EnforceMasks({}, "gradients")
    with pytest.raises(LotteryError, match="2 gradients for 3 variables"):
        enforcement.mask_gradients(model, random_masks(model), [None, None])
    with pytest.raises(LotteryError, match="mode must be"):
        enforcement.EnforceMasks({}, ["constraint"])
    with pytest.raises(LotteryError, match="must be a Keras model"), enforcement.constraint(None, {}):
        pass
    ticket = types.SimpleNamespace(masks=random_masks(model))
    for passed, hint in ((model, r"fit passes its model: \w+\(masks\)"), (ticket, "pass its attribute masks")):
        for callback in (enforcement.EnforceMasks, enforcement.AuditMasks):
            with pytest.raises(LotteryError, match=f"^{callback.__name__} must be a dict .*; {hint}"):
                callback(passed, random_masks(model))
    for mode in ("constraint", "gradient", "reparameterization", "callback"):
        with (
            pytest.raises(LotteryError, match="must be a (Keras model|dict)"),
            enforcement.ENFORCEMENTS[mode].hold({}, model),
        ):
            pass
        with pytest.raises(LotteryError, match="the model is the first argument"):
            enforcement.ENFORCEMENTS[mode].hold(model, model).__enter__()
    with pytest.raises(LotteryError, match="which always agrees"):
        enforcement.audit(model, {}, "present")
    with pytest.raises(LotteryError, match="does nothing"):
        enforcement.project(model, {}, "present")
    for library in (keras, tf_keras):
        library_model = library.Sequential([library.layers.InputLayer((4, 4)), library.layers.BatchNormalization()])
        wrong = {"batch_normalization/moving_mean": np.zeros(4, bool)}
        with pytest.raises(LotteryError, match="a state, not a weight"), enforcement.constraint(library_model, wrong):
            pass


@pytest.mark.parametrize("mode", ["constraint", "tfmot"])
def test_what_is_abandoned_and_collected_computes_nothing(mode):
    """In the midst of tracing, it would become part of the graph, or wait for the graph's lock for ever."""
    import gc
    import weakref

    import tensorflow as tf
    import tf_keras

    made = tf_keras.Sequential([tf_keras.layers.InputLayer((4,)), tf_keras.layers.Dense(3)])
    model = tfmot.wrap(made, {"dense/kernel": np.ones((4, 3), bool)}) if mode == "tfmot" else made
    gc.disable()
    gc.freeze()  # what is there already, and what other tests abandoned, is not looked at
    try:
        context = enforcement.ENFORCEMENTS[mode].hold(model, {"dense/kernel": np.eye(4, 3, dtype=bool)})
        context.__enter__()
        cycle, left = [context], weakref.ref(context)
        cycle.append(cycle)
        del context, cycle

        @tf.function
        def traced(x):
            assert left() is not None
            gc.collect()
            assert left() is None
            return x + 1

        nodes = traced.get_concrete_function(tf.constant(1)).graph.as_graph_def().node
    finally:
        gc.unfreeze()
        gc.enable()
    assert not [node.name for node in nodes if "Variable" in node.op]
    with enforcement.ENFORCEMENTS[mode].hold(model, {"dense/kernel": np.eye(4, 3, dtype=bool)}):
        pass  # nothing is held any more


def test_a_mode_is_what_its_record_says(monkeypatch):
    """Nothing asks for a mode by its name: a new one is an entry of the dict."""
    new = enforcement.Mode(enforcement.constraint, zero_only=True, on_several_devices=False, on_sparse_engine=False)
    monkeypatch.setitem(enforcement.ENFORCEMENTS, "newest", new)
    tables = {
        "run": {"enforcement": "newest"},
        "data": {"name": "digits", "validation": 200},
        "train": {"jit_compile": False},
    }
    with pytest.raises(LotteryError, match='must be "zero" with this run.enforcement, not "initial"'):
        config.load(tables, {"prune": {"held_at": "initial"}})
    several = config.load(tables, {"train": {"devices": "mirrored"}})
    with pytest.raises(LotteryError, match='must be "constraint", "gradient" or "callback" with .*, not "newest"'):
        preparing.prepare(several)
    assert str(preparing.prepare(config.load(tables)).trainer.network) == 'run.enforcement is "newest"'


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_gradients_are_masked_for_the_variables_that_a_tape_has_watched(library):
    """Which are not Keras 3's own, but those of TensorFlow inside them."""
    import tensorflow as tf

    keras = importlib.import_module(library)
    model = keras.Sequential([keras.layers.InputLayer((6,)), keras.layers.Dense(3)])
    kept = pruning.prune(model, 0.8)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones((4, 6))) ** 2)
    watched = tape.watched_variables()
    masked = enforcement.mask_gradients(model, kept, tape.gradient(loss, watched), watched)
    (kernel,) = [np.asarray(each) for each in masked if each.shape == (6, 3)]
    (mask,) = kept.values()
    assert (kernel[~mask] == 0).all() and (kernel[mask] != 0).all()


def test_a_callback_is_refused_where_tf_keras_tunes_the_steps_of_a_call():
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.InputLayer((6,)), tf_keras.layers.Dense(3)])
    kept = pruning.prune(model, 0.5)
    model.compile("adam", "mse", steps_per_execution="auto")
    with pytest.raises(LotteryError, match="steps_per_execution='auto'"):
        model.fit(np.ones((8, 6)), np.ones((8, 3)), verbose=0, callbacks=[enforcement.EnforceMasks(kept, "callback")])
