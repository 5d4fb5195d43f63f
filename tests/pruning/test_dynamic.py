"""Masks that change while a network trains: `gradual`, `set` and `rigl`, against an independent computation."""

import functools
import itertools
import math
import shutil
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lottery
from lottery import enforcement, files, interrupts, masks, randomness, weights
from lottery.data import Data, load, split
from lottery.errors import LotteryError
from lottery.pipeline import branching, preparing
from lottery.pipeline.prepared import Ingredients
from lottery.pipeline.session import Execution
from lottery.pruning import allocation, branches, dynamic, fairness
from lottery.runs import store, verification
from lottery.runs.stored import StoredRound
from lottery.training import compiling, schedules
from lottery.training.records import Span
from lottery.training.settings import Train
from lottery.training.trainer import Trainer
from tests.conftest import contents, quietly, toy_arrays
from tests.training.test_checkpoints import result, trained_in_pieces

pytestmark = pytest.mark.usefixtures("traced_once")

NUM_STEPS, BATCH, DYNAMIC = 60, 20, ("gradual", "set", "rigl")
LONG = {f"{name}_long": name for name in DYNAMIC}


def build():
    import keras

    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])


def arrays():
    return toy_arrays(np.random.default_rng(3), 160, 40)


def tables(**run):
    return {
        "name": "dynamic",
        "data": {"validation": 40},
        "train": {"num_steps": NUM_STEPS, "eval_every": 10, "batch_size": BATCH, "jit_compile": False},
        "prune": {"num_rounds": 2, "rate": 0.6},
        "run": {"num_replicates": 1, "control_rounds": [2], **run},
    }


def stored(run, branch="ticket", index=2):
    return StoredRound(run.path, 1, index, branch)


@pytest.fixture(scope="module")
def run(traced_once, tmp_path_factory):
    """A run with every branch of which the masks change, from round 2; `run.seen` has what RigL's changes saw."""
    with pytest.MonkeyPatch.context() as patched:
        original, seen = dynamic.dropped_and_grown, []

        def watched(kept, state, scores, fraction):
            after = original(kept, state, scores, fraction)
            seen.append((kept, state, scores, fraction, after))
            return after

        patched.setattr(dynamic, "dropped_and_grown", watched)
        data, out = arrays(), tmp_path_factory.mktemp("dynamic")
        made = lottery.run(tables(controls=["rigl"]), model=build, data=data, out=out, on_event=quietly)
        of_rigl = list(seen)
        for name in (*DYNAMIC, *LONG):
            lottery.branch(made.path, name, [2], model=build, data=data, on_event=quietly)
    vars(made)["seen"] = of_rigl
    return made


# The rules, recomputed.


@given(num_steps=st.integers(1, 200_000))
def test_masks_change_as_often_in_a_short_training_as_in_a_long_one_and_are_settled_in_the_last_quarter(num_steps):
    gradual = list(dynamic.gradual({"w": 9}, {"w": 3}, num_steps))
    replacing = list(dynamic.fractions(num_steps))
    every = max(1, num_steps // 80)
    for steps in (gradual, replacing):
        assert {after - before for before, after in itertools.pairwise(steps)} <= {every}
        assert num_steps < 160 or 59 <= len(steps) <= 120
    assert gradual[0] == every and gradual[-1] <= max(1, 0.75 * num_steps) < gradual[-1] + every
    # The first before any training, and none where the fraction is zero.
    assert replacing[0] == 0 and replacing[-1] < max(1, int(0.75 * num_steps)) <= replacing[-1] + every


@given(num_steps=st.integers(1, 200_000))
def test_each_change_replaces_a_fraction_that_falls_along_a_cosine(num_steps):
    end = max(1, int(0.75 * num_steps))
    for step, fraction in dynamic.fractions(num_steps).items():
        assert fraction == pytest.approx(0.15 * (1 + math.cos(math.pi * step / end)))
        assert fraction > 0


@given(size=st.integers(1, 3000), share=st.floats(0, 1), num_steps=st.integers(1, 3000))
def test_gradual_densities_follow_the_cubic_formula_exactly(size, share, num_steps):
    target = int(share * size)
    changes = dynamic.gradual({"w": size}, {"w": target}, num_steps)
    for place, change in enumerate(changes.values(), 1):
        # s_t = s_f + (s_i - s_f) (1 - (t - t_0) / (n dt))^3 in forty digits, with s_i = 0.
        final = 1 - Decimal(target) / size
        sparsity = final - final * (1 - Decimal(place) / len(changes)) ** 3
        kept = (1 - sparsity) * size
        assert abs(change.num_kept["w"] - kept) <= Decimal("0.5") + Decimal("1e-20")
    assert change.num_kept == {"w": target}


def test_gradual_prunes_the_survivors_of_lowest_magnitude(rng):
    state = {"a": rng.normal(size=(9, 7)), "b": rng.normal(size=(40,)), "bias": rng.normal(size=3)}
    kept = masks.ones_like({name: state[name] for name in "ab"})
    for change in dynamic.gradual({"a": 63, "b": 40}, {"a": 5, "b": 20}, 1000).values():
        before, kept = kept, change.function(kept, state)
        assert masks.is_nested(kept, before)
        for name, mask in kept.items():
            highest = np.sort(np.abs(state[name]).reshape(-1))[::-1][: change.num_kept[name]]
            assert np.array_equal(np.sort(np.abs(state[name][mask]))[::-1], highest)


def by_hand(kept, value, score, count):
    """One change in plain Python: drop by magnitude, grow by score, ties to the earlier position."""
    flat, value, score = kept.reshape(-1).tolist(), value.reshape(-1), score.reshape(-1)
    active = sorted((abs(float(value[i])), i) for i in range(len(flat)) if flat[i])
    left = {i for _, i in active[count:]}
    free = sorted((-float(score[i]), i) for i in range(len(flat)) if i not in left)
    chosen = left | {i for _, i in free[:count]}
    return np.array([i in chosen for i in range(len(flat))]).reshape(kept.shape)


@given(seed=st.integers(0, 2**32), fraction=st.floats(0, 0.3), ties=st.booleans())
def test_what_is_dropped_and_what_grows(seed, fraction, ties):
    rng = np.random.default_rng(seed)
    kept = {name: rng.random((8, 5)) < 0.4 for name in "ab"}
    state, scores = ({name: rng.normal(size=(8, 5)) for name in "ab"} for _ in range(2))
    if ties:
        state, scores = ({name: np.round(value) for name, value in one.items()} for one in (state, scores))
    after = dynamic.dropped_and_grown(kept, state, scores, fraction)
    assert masks.num_kept(after) == masks.num_kept(kept)
    for name, mask in kept.items():
        count = round(Decimal(repr(fraction)) * int(mask.sum()))
        assert np.array_equal(after[name], by_hand(mask, state[name], scores[name], count))


def by_hand_gradients(state, x, y):
    """The gradient of softmax cross-entropy of the two layers, in NumPy."""
    hidden = x @ state["dense/kernel"] + state["dense/bias"]
    logits = np.maximum(hidden, 0) @ state["dense_1/kernel"] + state["dense_1/bias"]
    back = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    back[np.arange(len(y)), y] -= 1
    back /= len(y)
    below = (back @ state["dense_1/kernel"].T) * (hidden > 0)
    return {
        "dense/kernel": x.T @ below, "dense/bias": below.sum(0),
        "dense_1/kernel": np.maximum(hidden, 0).T @ back, "dense_1/bias": back.sum(0),
    }  # fmt: skip


# Over a run.


@pytest.mark.parametrize("name", [*DYNAMIC, *LONG])
def test_counts_over_a_run_are_the_tickets_and_recorded_with_each_change(run, name):
    one, ticket, rule = stored(run, name), stored(run), LONG.get(name, name)
    num_steps = NUM_STEPS * (3 if name in LONG else 1)  # of rounds 0, 1 and 2
    assert (one.record["first_step"], one.record["last_step"]) == (0, num_steps)
    assert max(step for step, *_ in one.metrics) == num_steps
    changes, total = one.record["mask_changes"], sum(masks.num_kept(ticket.masks).values())
    steps = dynamic.fractions(num_steps) if rule != "gradual" else dynamic.gradual({"w": 9}, {"w": 3}, num_steps)
    assert [change["step"] for change in changes] == list(steps)
    assert one.record["num_kept"] == changes[-1]["num_kept"] == total
    if rule == "gradual":
        assert masks.num_kept(one.masks) == masks.num_kept(ticket.masks)
        before = [sum(mask.size for mask in ticket.masks.values()), *(change["num_kept"] for change in changes)]
        assert [a - b for a, b in itertools.pairwise(before)] == [change["pruned"] for change in changes]
        assert not any(change["grown"] for change in changes)
    else:
        shapes = {key: mask.shape for key, mask in ticket.masks.items()}
        shares = allocation.erk(shapes, total / sum(mask.size for mask in ticket.masks.values()))
        for key, count in masks.num_kept(one.masks).items():
            assert abs(count - shares[key] * one.masks[key].size) < 1
        assert all(change["num_kept"] == total and change["pruned"] == change["grown"] for change in changes)
        assert any(change["grown"] for change in changes)
    assert masks.leaks(one.weights, one.masks) == masks.leaks(one.early_stop, one.masks) == {}
    assert one.record["engine"] == "compiled"


@pytest.mark.parametrize("name", [*DYNAMIC, *LONG])
def test_the_early_stop_is_of_the_network_under_its_last_masks(run, name):
    one = stored(run, name)
    settled = one.record["mask_changes"][-1]["step"]
    losses = {step: loss for step, kind, loss, _ in one.metrics if kind == "validation" and step >= settled}
    assert one.record["early_stop_step"] == min(losses, key=losses.get)
    dense = StoredRound(run.path, 1, 0).record["early_stop_val_loss"]
    assert one.record["dense_loss_step"] == min((step for step, loss in losses.items() if loss <= dense), default=None)


def test_rigl_grows_by_the_dense_gradient_of_the_batch_that_follows(run):
    """The gradient of softmax cross-entropy of the two layers in NumPy, masked entries included."""
    experiment = store.read_experiment(run.path)
    train = split(
        dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays(), strict=True)), Data(validation=40)
    ).train
    assert len(run.seen) == len(dynamic.fractions(NUM_STEPS))
    for step, (kept, state, scores, fraction, _) in zip(dynamic.fractions(NUM_STEPS), run.seen, strict=True):
        words = (experiment.run.seed, 1, randomness.BATCHES)
        (positions,) = randomness.batches(len(train), BATCH, words, step)(1)
        expected = by_hand_gradients(state, train.x[positions].astype(np.float64), train.y[positions])
        for name in kept:
            value = expected[name]
            np.testing.assert_allclose(scores[name], np.abs(value), rtol=1e-4, atol=1e-6)
            assert np.abs(value)[~kept[name]].max() > 0
        assert fraction == dynamic.fractions(NUM_STEPS)[step]


def test_set_grows_at_random_and_differently_after_each_change():
    rng = np.random.default_rng(0)
    kept, state = {"w": rng.random((40, 40)) < 0.2}, {"w": rng.normal(size=(40, 40))}
    changes = dynamic.set_(masks.num_kept(kept), 1000, 5)
    grown = [(change.function(kept, state)["w"] & ~kept["w"]) for change in changes.values()]
    again = [(change.function(kept, state)["w"] & ~kept["w"]) for change in dynamic.set_({}, 1000, 5).values()]
    assert all(np.array_equal(*pair) for pair in zip(grown, again, strict=True))
    for one, other in itertools.pairwise(grown):
        assert not np.array_equal(one, other) or not one.any()  # the last fractions are of less than one entry
    # Those that grow are spread over the 1,280 or so free entries and the dropped.
    for fraction, one in zip(dynamic.fractions(1000).values(), grown, strict=True):
        count = round(fraction * kept["w"].sum())
        assert abs(one.sum() - count * 1280 / (1280 + count)) < 5 * math.sqrt(count * 0.07 + 1)


def test_verify_accepts_them_and_finds_what_was_changed(run, tmp_path):
    assert run.verify() == []
    other = tmp_path / run.path.name
    shutil.copytree(run.path, other)
    folder = store.round_path(other, 1, 2, "rigl")
    whole = files.read_json(folder / "round.json")
    last = whole["mask_changes"][-1]
    for changes, why in [
        (whole["mask_changes"][:-1], "The changes of its masks are not the changes of rigl."),
        ([*whole["mask_changes"][:-1], {**last, "num_kept": last["num_kept"] + 1}], "The changes of its masks"),
    ]:
        record = {key: value for key, value in whole.items() if key != "record_sha256"}
        store.write_record(folder / "round.json", {**record, "mask_changes": changes})
        wrong = [one for _, sentences in verification.verify(other) for one in sentences]
        assert any(why in one for one in wrong), wrong


def test_a_later_round_is_made_in_the_same_trace_and_killed_anywhere_it_gives_the_same_files(
    run, tmp_path, monkeypatch, traced_once
):
    """The run again, in pieces of three steps with a stop after each twentieth; the trainer traces its steps once."""
    made = []

    class Counting(Trainer):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr("lottery.training.loop.LONGEST_CALL", 3)
    with monkeypatch.context() as patched:
        patched.setattr(preparing, "Trainer", Counting)
        lottery.run(tables(controls=["rigl"]), model=build, data=arrays(), out=tmp_path, on_event=quietly)
    (one,) = made
    assert one.loop.steps.experimental_get_tracing_count() == 1
    path = next(tmp_path.glob("dynamic-*"))
    left = itertools.count()

    def should_stop():
        return 15 if next(left) % 20 == 19 else 0

    ingredients = Ingredients(model=build, data=arrays())
    traced_once.clear()  # of a piece of another length
    for name in DYNAMIC:
        stops = 0
        while not store.is_stored(path, 1, 2, name):
            try:
                branching.branch(
                    path,
                    name,
                    [2],
                    ingredients=ingredients,
                    execution=Execution(on_event=quietly, should_stop=should_stop),
                )
            except interrupts.Stopped:
                stops += 1
                if stops == 1:  # it goes on in another trace, as in another process
                    traced_once.clear()
        assert stops > 0 or name == "rigl"
        expected = contents(store.round_path(run.path, 1, 2, name))
        assert contents(store.round_path(path, 1, 2, name)) == expected
    traced_once.clear()


# In every mode of enforcement.


def trainer(mode, library="keras"):
    import keras
    import tf_keras

    module = tf_keras if mode == "tfmot" else keras
    module.utils.set_random_seed(5)
    model = module.Sequential([module.Input((6,)), module.layers.Dense(16, "relu"), module.layers.Dense(3)])
    settings = Train(
        num_steps=NUM_STEPS, batch_size=BATCH, eval_every=10, learning_rate=0.05,
        optimizer={"name": "sgd", "momentum": 0.9}, jit_compile=False,
    )  # fmt: skip
    splits = split(dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays(), strict=True)), Data(validation=40))
    step = schedules.step_variable()
    compiling.compile_model(model, settings, splits.train.x[:4], step)
    return Trainer(model, splits, settings, enforcement.ENFORCEMENTS[mode].hold, step)


@functools.cache
def constrained():
    """A trainer whose state each training begins anew, as it does in the rounds of a run."""
    return trainer("constraint")


def changing(start):
    """Masks that lose and gain entries: those of a change come from its step alone."""
    shapes = {name: value.shape for name, value in start.items() if name.endswith("kernel")}

    def drawn(step):
        rng = np.random.default_rng(step)
        return {
            name: rng.permutation(np.arange(math.prod(shape)) % 3 == 0).reshape(shape) for name, shape in shapes.items()
        }

    counts = masks.num_kept(drawn(0))
    changes = {step: masks.Change(lambda kept, state, step=step: drawn(step), counts) for step in (0, 7, 20, 33)}
    return drawn(1), changes, drawn


@pytest.mark.parametrize("mode", enforcement.ENFORCEMENTS)
def test_entries_are_held_and_released_in_every_mode(mode):
    """Masked entries are zero after each step, new ones start there without momentum, and weights agree with NumPy."""
    one = trainer(mode)
    start = weights.read_state(one.model)
    kept, changes, drawn = changing(start)
    seen = {}
    watch = {step: lambda state, step=step: seen.update({step: state}) for step in range(1, NUM_STEPS + 1)}
    trained = one.train(start, kept, (9,), Span(changes=changes), watch)
    for step, state in seen.items():
        now = drawn(max((at for at in changes if at < step), default=0))
        assert masks.leaks(state, now) == {}, step
    assert all(np.array_equal(mask, drawn(33)[name]) for name, mask in trained.kept.items())
    assert [change[0] for change in trained.changes] == [0, 7, 20, 33]
    expected = in_numpy(start, kept, changes)
    for name, value in expected.items():
        np.testing.assert_allclose(trained.weights[name], value, rtol=2e-3, atol=2e-4)
    one.close()


def in_numpy(start, kept, changes):
    """SGD with momentum in double precision; momentum of masked entries is zero, so that new ones start at rest."""
    train = split(
        dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays(), strict=True)), Data(validation=40)
    ).train
    state = {name: value.astype(np.float64) for name, value in masks.apply(start, kept).items()}
    speed = {name: np.zeros_like(value) for name, value in state.items()}
    if 0 in changes:
        after = changes[0].function(kept, state)
        state = {name: np.where(after.get(name, True), value, 0) for name, value in state.items()}
        kept = after
    for step, positions in enumerate(randomness.batches(len(train), BATCH, (9,))(NUM_STEPS), 1):
        gradients = by_hand_gradients(state, train.x[positions].astype(np.float64), train.y[positions])
        for name in state:
            mask = kept.get(name, True)
            speed[name] = 0.9 * speed[name] - 0.05 * np.where(mask, gradients[name], 0)
            state[name] = np.where(mask, state[name] + speed[name], 0)
        if step in changes:
            after = changes[step].function(kept, state)
            for name, mask in after.items():
                speed[name] = np.where(mask & kept[name], speed[name], 0)
                state[name] = np.where(mask, state[name], 0)
            kept = after
    return state


def test_a_change_is_part_of_a_checkpoint(tmp_path):
    one, other = constrained(), trainer("constraint")
    start = weights.read_state(one.model)
    kept, changes, _ = changing(start)
    whole = one.train(start, kept, (9,), Span(changes=changes))
    make = itertools.cycle([other, one]).__next__
    for number, stops in enumerate([(0, 1, 2, 1), (3, 4)]):
        file = tmp_path / f"{number}.safetensors"
        again, _ = trained_in_pieces(make, file, stops, start, kept, Span(changes=changes))
        assert result(again) == result(whole) and again.changes == whole.changes
        assert list(again.kept) == list(whole.kept)
        assert all(np.array_equal(again.kept[name], mask) for name, mask in whole.kept.items())


def test_a_change_that_keeps_another_number_is_refused():
    one = constrained()
    start = weights.read_state(one.model)
    kept, changes, drawn = changing(start)
    changes[7] = masks.Change(lambda kept, state: masks.ones_like(kept), changes[7].num_kept)
    with pytest.raises(LotteryError, match="The masks after step 7 keep"):
        one.train(start, kept, (9,), Span(changes=changes))


def test_a_long_training_goes_through_the_schedule_more_slowly():
    """Twice as many steps: the rate at step t is that of step t // 2, to the last."""
    import keras

    place = schedules.step_variable()
    rate = schedules.schedule(keras, 0.8, 4, (6, 8), 0.5, place, last_step=11)
    short = [float(rate(step)) for step in range(12)]
    place.assign([0, 12, 24])
    assert [float(rate(step)) for step in range(24)] == [value for value in short for _ in range(2)]
    place.assign([3, 1, 1])
    assert [float(rate(step)) for step in range(9)] == short[3:]


def test_alternatives_are_no_controls():
    """They take nothing away from the ticket, so a verdict never calls it not special because they do as well."""
    alternatives = [name for name, branch in branches.BRANCHES.items() if branch.kind == "alternative"]
    assert set(alternatives) >= {*DYNAMIC, *LONG} and set(alternatives) <= set(branches.controls())
    assert all(fairness.comparison(name).takes_away == "" for name in alternatives)


def test_gradual_densities_are_those_of_tfmots_polynomial_decay():
    from tensorflow_model_optimization.sparsity.keras import PolynomialDecay

    size, target = 30_000, 1234
    changes = dynamic.gradual({"w": size}, {"w": target}, 2000)
    decay = PolynomialDecay(
        0.0, 1 - target / size, begin_step=0, end_step=max(changes), frequency=dynamic.interval(2000)
    )
    for step, change in changes.items():
        should_prune, sparsity = decay(step)
        assert bool(should_prune) and abs(change.num_kept["w"] - (1 - float(sparsity)) * size) < 1


@pytest.mark.long
def test_gradual_agrees_with_tfmot_within_the_spread_of_replicates(tmp_path):
    """The same network from the same initial weights, pruned by tfmot's own schedule under tf_keras' own fit."""
    import tensorflow_model_optimization as tfmot
    import tf_keras

    from lottery.models import networks
    from lottery.statistics import intervals

    num_steps, batch, num_replicates = 1000, 32, 8
    settings = {
        "name": "tfmot",
        "data": {"name": "digits", "validation": 137},
        "train": {"num_steps": num_steps, "batch_size": batch, "eval_every": 50, "jit_compile": False},
        "prune": {"num_rounds": 1, "rate": 0.9},
        "run": {"num_replicates": num_replicates, "controls": ["gradual"]},
    }
    made = lottery.run(settings, out=tmp_path, on_event=quietly)
    rows = made.table()
    ours = rows[rows["branch"] == "gradual"]["final_test_accuracy"].tolist()
    dense = rows[rows["round"] == 0]["final_test_accuracy"].tolist()
    one = load(Data(name="digits", validation=137))
    scaled = [(split.x.astype(np.float32) - one.mean) / one.standard_deviation for split in (one.train, one.test)]
    end = max(dynamic.gradual({"w": 9}, {"w": 3}, num_steps))
    theirs = []
    for replicate in range(1, num_replicates + 1):
        model = networks.named("lenet_300_100")(one.train.x.shape[1:], 10, tf_keras)
        initial = store.read_start(made.path, replicate)
        weights.assign(model, initial)
        decay = tfmot.sparsity.keras.PolynomialDecay(0.0, 0.9, 0, end, frequency=dynamic.interval(num_steps))
        wrapped = tfmot.sparsity.keras.prune_low_magnitude(model, pruning_schedule=decay)
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        wrapped.compile(tf_keras.optimizers.Adam(1.2e-3), loss, metrics=["accuracy"])
        tf_keras.utils.set_random_seed(replicate)
        per_epoch = -(-len(one.train) // batch)
        callbacks = [tfmot.sparsity.keras.UpdatePruningStep()]
        wrapped.fit(
            scaled[0], one.train.y, batch, epochs=num_steps // per_epoch, steps_per_epoch=per_epoch, verbose=0,
            callbacks=callbacks,
        )  # fmt: skip
        stripped = tfmot.sparsity.keras.strip_pruning(wrapped)
        kept = [np.count_nonzero(value) / value.size for value in weights.read(stripped).values()]
        np.testing.assert_allclose(kept, 0.1, atol=0.001)
        theirs.append(wrapped.evaluate(scaled[1], one.test.y, verbose=0)[1])
    mean, low, high = intervals.mean_interval(list(np.subtract(ours, theirs)))
    print(
        f"dense {np.mean(dense):.4f}, ours {np.mean(ours):.4f}, tfmot {np.mean(theirs):.4f}: {mean:+.4f} ({low:+.4f} to {high:+.4f})"
    )
    assert low < 0 < high and np.mean(ours) > np.mean(dense) - 0.02
