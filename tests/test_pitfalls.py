"""Bugs that other lottery-ticket code has, planted in ours: a test of ours must fail because of each."""

import dataclasses
import secrets

import numpy as np
import pytest

from lottery import data, masks, randomness, weights
from lottery.enforcement import entries, modes, patching
from lottery.errors import LotteryError
from lottery.pipeline import rounds
from lottery.pruning import branches, ranking, rewinding, schedules
from lottery.runs import verification
from lottery.training import course, loop, trainer
from tests import test_data, test_weights
from tests.conftest import SMALL, quietly
from tests.enforcement import test_auditing, test_modes
from tests.pipeline import test_branching, test_running
from tests.pruning import test_branches, test_ranking, test_schedules
from tests.statistics import test_results
from tests.training import test_loop


def verified_run(tmp_path):
    """Not a test by itself: a small run that `lottery verify` must find nothing wrong with."""
    import lottery

    run = lottery.run(SMALL | {"run": {"num_replicates": 1}}, out=tmp_path, on_event=quietly)
    wrong = [sentence for _, sentences in verification.verify(run.path) for sentence in sentences]
    assert wrong == [], wrong


def cut_at_a_threshold(patch):
    """1: everything up to the k-th sorted value goes, ties and one more with it."""

    def keep_highest(scores, kept, rate, scope="layerwise", rates=None):
        result = {}
        for name, mask in kept.items():
            values = np.sort(scores[name][mask])
            result[name] = mask & (scores[name] > values[round(rate * values.size)])
        return result

    patch.setattr(ranking, "keep_highest", keep_highest)


def rewind_nothing(patch):
    """2: the rewind writes somewhere else, so training goes on from the trained weights."""
    original = trainer.weights.assign
    done = []

    def assign(model, values, only=None):
        if not done:
            original(model, values, only)
        done.append(True)

    patch.setattr(trainer.weights, "assign", assign)


def store_the_start(patch):
    """3: what is stored as trained is the network after the rewind."""
    original = trainer.Trainer.train

    def train(self, start, kept, *arguments, **options):
        trained = original(self, start, kept, *arguments, **options)
        trained.weights.update(masks.apply(start, kept))
        return trained

    patch.setattr(trainer.Trainer, "train", train)


def prune_biases(patch):
    """3: biases are pruned without being asked for."""
    patch.setattr(weights, "_reason", lambda name, variable: None if variable.trainable else "not trainable")


def freeze_small_values(patch):
    """4: values decide and not masks, so every negative weight is frozen."""
    import tensorflow as tf

    patch.setattr(patching, "obeying", lambda one: lambda v: tf.where(tf.convert_to_tensor(v) < 1e-9, 0.0, v))


def drop_the_last_batch(patch):
    """5: the last, smaller batch is not evaluated."""
    original = loop._over_arrays

    def of_arrays(*arguments):
        evaluate = original(*arguments)

        def without_the_last(x, y):
            whole = max(1, len(x) // loop.EVALUATION_BATCH) * loop.EVALUATION_BATCH
            return evaluate(x[:whole], y[:whole])

        return without_the_last

    patch.setattr(loop, "_over_arrays", of_arrays)


def choose_by_test(patch):
    """5: the best test accuracy is reported."""
    original = course._named

    def named(prefix, values):
        return original(prefix, (values[0], 1.0) if prefix == "early_stop_test" else values)

    patch.setattr(course, "_named", named)


def mask_at_the_beginning_only(patch):
    """6, 10: pruned weights are zero when training begins, and train freely from then on."""
    patch.setattr(patching, "_set_constraint", lambda variable, value: None)


def threshold_the_signed_weight(patch):
    """16: the most negative weights are pruned."""
    from lottery.pruning import criteria

    patch.setattr(criteria, "magnitude", lambda evidence: dict(evidence.trained))


def revive(patch):
    """8, 9: masks are computed anew from the weights, so that what was pruned comes back."""
    original = ranking.prune_counts
    patch.setattr(ranking, "prune_counts", lambda scores, kept, counts: original(scores, masks.ones_like(kept), counts))


def resume_from_the_beginning(patch):
    """17: a run that is started again begins at round 0."""
    patch.setattr(rounds.Chain, "missing", lambda chain, last: range(last + 1))


def seed_nothing(patch):
    """15: the initialisation draws from a seed of chance."""
    import keras
    import tf_keras

    for library in (keras, tf_keras):
        seed_with = library.utils.set_random_seed
        patch.setattr(
            library.utils, "set_random_seed", lambda seed, seed_with=seed_with: seed_with(secrets.randbits(31))
        )


def shuffle_nothing(patch):
    """13: the control rebinds a local name, and trains the ticket's own masks."""

    def shuffled_mask(origin):
        kept = origin.kept
        for mask in kept.values():
            mask = origin.rng.permutation(mask)
        return branches.BranchStart(origin.start, kept, origin.step, origin.num_steps)

    patch.setitem(branches.BRANCHES, "shuffled_mask", branches.Branch(shuffled_mask))


def rewind_to_the_initialisation(patch):
    """2: late rewinding that goes back to step 0."""
    original = trainer.Trainer.train

    def train(self, start, kept, seed, span, watch, *arguments):
        if watch:
            (keep,) = watch.values()
            keep(dict(start))
        return original(self, start, kept, seed, span, {}, *arguments)

    patch.setattr(trainer.Trainer, "train", train)


def begin_the_batches_anew(patch):
    """2: after late rewinding the network sees the first batches once more."""
    original = randomness.batches
    patch.setattr(randomness, "batches", lambda *arguments: original(*arguments[:3]))


def begin_the_schedule_anew(patch):
    """2: fine-tuning with the learning rate that training began with."""
    patch.setattr(rewinding, "schedule_step", lambda *_: 0)


def keep_the_momentum(patch):
    """19: the optimiser is not reset."""
    patch.setattr(trainer.Trainer, "reset", lambda self: None)


def keep_the_old_trace(patch):
    """21: a train function that was traced before the masks were set is used on."""
    patch.setattr(modes.patching, "retrace", lambda model: None)


def name_by_path(patch):
    """22: names depend on how many models the process has built."""
    patch.setattr(weights, "plain_name", lambda kind, name: name)


def leave_the_constraint(patch):
    """3: what was installed stays after the context is left."""
    original = patching._set_constraint

    def set_constraint(variable, value):
        if value is not None:
            original(variable, value)

    patch.setattr(patching, "_set_constraint", set_constraint)


def say_nothing_of_a_collapse(patch):
    """24: a weight of which nothing is left is not mentioned."""
    from lottery.statistics import results

    patch.setattr(results, "collapsed", lambda run: [])


def scale_by_everything(patch):
    """25: the mean is taken over validation and test images too."""
    original = data.PIXELS["standardize"]
    patch.setitem(data.PIXELS, "standardize", lambda x: original(np.concatenate([x, np.full_like(x, 255)])))


def bake_masks_in(patch):
    """26: masks are constants of the trace, so another mask needs another trace."""
    original = patching.obeying
    patch.setattr(patching, "obeying", lambda one: original(dataclasses.replace(one, mask=np.array(one.mask))))


def same_order_for_all(patch):
    """15: the order of the batches does not depend on the replicate's seed."""
    original = randomness.batches
    patch.setattr(
        randomness, "batches", lambda examples, size, seed, first_step=0: original(examples, size, (0,), first_step)
    )


def round_half_up(patch):
    """1: half is rounded up, so that the ladder is not the paper's."""
    patch.setattr(schedules, "share", lambda fraction, number: int(fraction * number + 0.5))


def multiply(patch):
    """19: a product instead of a choice: negative zeros, and NaN stays NaN."""
    import tensorflow as tf

    patch.setattr(
        entries.Held, "projected", lambda one, value: tf.convert_to_tensor(value) * tf.cast(one.mask, "float32")
    )


def keep_the_function_that_fit_has_made(patch):
    """21: a callback installs what it needs, and `fit` goes on with the function that it made before."""
    from lottery.enforcement import callbacks

    begin = callbacks.FitCallback._begin

    def keeping(callback, logs):
        before = callback.model.train_function
        begin(callback, logs)
        callback.model.train_function = before

    keep_the_old_trace(patch)
    patch.setattr(callbacks.FitCallback, "_begin", keeping)


def multiply_after_the_batch(patch):
    """7: an auditor that looks at the end of a batch only, where a callback has just put everything right."""
    from lottery.enforcement import auditing

    patch.setattr(auditing.AuditMasks, "_watching", lambda self, train_step: train_step)


def let_tfmot_compute_masks(patch):
    """8: tfmot's masks are its own, computed from the weights, not ours."""
    from lottery.enforcement import tfmot

    patch.setattr(tfmot, "_assign", lambda variable, mask: None)
    leave_entries_one_step_away(patch)


def leave_entries_one_step_away(patch):
    """10: after an update the pruned entries are off until the next forward pass."""
    import contextlib

    patch.setattr(modes.patching, "constrained", lambda entries: contextlib.nullcontext())


def leave_old_momentum(patch):
    """19: momentum from before goes on moving entries that have no gradient."""
    patch.setattr(modes.patching, "clear_slots", lambda optimizer, entries: None)


def stay_installed_after_an_exception(patch):
    """3: training that broke off leaves the masks in the model, also when it is trained again without them."""
    from lottery.enforcement import callbacks

    patch.setattr(callbacks.FitCallback, "_closed_before", lambda self, fit: fit)


def let_a_step_of_tf_keras_forget(patch):
    """The constraint is set on the shell that tf_keras puts around a variable for mixed precision, which hides it."""
    patch.setattr(weights, "components", lambda variable: [variable])


MUTANTS = {
    cut_at_a_threshold: lambda tmp, run: test_ranking.test_all_ties_still_prune_exactly_as_many(),
    round_half_up: lambda tmp, run: test_schedules.test_lenet_ladder_is_that_of_the_paper(),
    rewind_nothing: lambda tmp, run: verified_run(tmp),
    store_the_start: lambda tmp, run: verified_run(tmp),
    prune_biases: lambda tmp, run: test_weights.test_every_weight_that_is_not_pruned_has_its_reason(),
    freeze_small_values: lambda tmp, run: held_after_every_update("adam"),
    drop_the_last_batch: lambda tmp, run: test_loop.test_evaluation_counts_every_example(1001),
    choose_by_test: lambda tmp, run: test_loop.test_early_stop_is_the_first_minimum_and_test_is_evaluated_there(),
    mask_at_the_beginning_only: lambda tmp, run: held_after_every_update("sgd"),
    threshold_the_signed_weight: lambda tmp, run: test_ranking.test_magnitude_ignores_the_sign(),
    revive: lambda tmp, run: verified_run(tmp),
    resume_from_the_beginning: lambda tmp, run: test_running.test_going_on_begins_after_the_last_complete_round(
        tmp, run, {}
    ),
    shuffle_nothing: lambda tmp, run: test_branches.test_what_a_branch_keeps_and_what_it_changes("shuffled_mask"),
    rewind_to_the_initialisation: lambda tmp, run: goes_on_from_step_k(tmp),
    begin_the_batches_anew: lambda tmp, run: goes_on_from_step_k(tmp),
    begin_the_schedule_anew: lambda tmp, run: (
        test_branching.test_fine_tuning_trains_with_the_last_learning_rate_and_learning_rate_rewinding_with_all_of_them(
            tmp
        )
    ),
    seed_nothing: lambda tmp, run: the_same_bits(tmp),
    keep_the_momentum: lambda tmp, run: test_loop.test_reset_brings_every_slot_back(),
    keep_the_old_trace: lambda tmp, run: test_modes.test_fit_holds_them_and_the_model_is_left_as_it_was(
        "constraint", "keras", (8, False), np.random.default_rng(0)
    ),
    keep_the_function_that_fit_has_made: lambda tmp, run: as_a_callback("constraint", "keras"),
    multiply_after_the_batch: lambda tmp, run: test_auditing.test_what_leaks_between_the_steps_is_found(
        np.random.default_rng(0)
    ),
    let_tfmot_compute_masks: lambda tmp, run: held_after_every_update("momentum", "tfmot", "tf_keras"),
    leave_entries_one_step_away: lambda tmp, run: held_after_every_update("momentum", "tfmot", "tf_keras"),
    leave_old_momentum: lambda tmp, run: test_modes.test_gradient_keeps_slots_of_masked_entries_at_zero(
        "gradient", "keras", "momentum", np.random.default_rng(0)
    ),
    stay_installed_after_an_exception: lambda tmp, run: (
        test_modes.test_after_an_exception_the_callback_holds_masks_until_the_next_fit(
            "keras", np.random.default_rng(0)
        )
    ),
    let_a_step_of_tf_keras_forget: lambda tmp, run: held_after_every_update("loss_scale", "constraint", "tf_keras"),
    name_by_path: lambda tmp, run: names_by_position(),
    leave_the_constraint: lambda tmp, run: test_modes.test_the_model_is_restored_after_an_exception(
        "constraint", "keras"
    ),
    say_nothing_of_a_collapse: lambda tmp, run: test_results.test_a_collapsed_weight_is_said(run, tmp),
    scale_by_everything: lambda tmp, run: test_data.test_scaling_is_the_training_parts_own(
        (5, 5), np.random.default_rng(0)
    ),
    bake_masks_in: lambda tmp, run: test_modes.test_other_masks_can_be_assigned_without_another_trace(
        "constraint", "keras", np.random.default_rng(0)
    ),
    same_order_for_all: lambda tmp, run: test_loop.test_batches_do_not_depend_on_where_they_are_cut(),
    multiply: lambda tmp, run: held_after_every_update("sgd"),
}


def held_after_every_update(optimizer, mode="constraint", library="keras"):
    test_modes.test_masked_entries_are_held_after_every_update(mode, library, optimizer, np.random.default_rng(0))


def as_a_callback(mode, library):
    test_modes.test_as_a_callback_it_is_all_there_is_to_do(mode, library, {}, np.random.default_rng(0))


def names_by_position():
    test_weights.test_names_depend_on_position_alone("keras", "lenet")


def goes_on_from_step_k(tmp_path):
    run = test_branching.go(tmp_path, {"rewind": {"step": test_branching.K}, "run": {"num_replicates": 1}})
    test_branching.test_late_rewinding_starts_at_step_k_of_the_dense_network(run)


def the_same_bits(tmp_path):
    import lottery

    small = SMALL | {"run": {"num_replicates": 1}, "prune": {"num_rounds": 0}}
    runs = [lottery.run(small, out=tmp_path / name, on_event=quietly).path for name in "ab"]
    assert test_running.final_bits(runs[0]) == test_running.final_bits(runs[1])


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_planted_bug_is_caught(mutant, tmp_path, monkeypatch, small_run):
    with pytest.raises((AssertionError, LotteryError, pytest.fail.Exception)), monkeypatch.context() as patch:
        mutant(patch)
        MUTANTS[mutant](tmp_path, small_run)


# Most of these checks are tests of the default run, which goes through them once already.
@pytest.mark.long
@pytest.mark.parametrize("check", {id(check): check for check in MUTANTS.values()}.values(), ids=lambda _: "")
def test_without_the_bug_the_same_check_passes(check, tmp_path, small_run):
    check(tmp_path, small_run)
