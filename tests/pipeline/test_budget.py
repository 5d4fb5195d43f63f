"""A ticket within the budget of its dense network: what is stored of it, what a table says, and what a forger may do."""

import re
import shutil

import keras
import numpy as np
import pytest

import lottery
from lottery import files, interrupts, progress, weights
from lottery.errors import TicketError
from lottery.runs import store, verification
from lottery.runs.stored import StoredRound, stored_rounds
from tests.conftest import checksum, contents, keep_graphs, quietly
from tests.runs.test_verification import reseal

SETTINGS = {
    "name": "late",
    "data": {"validation": 100},
    "train": {"num_steps": 200, "eval_every": 10, "batch_size": 32, "learning_rate": 0.01, "jit_compile": False},
    "prune": {"rate": 0.8, "num_rounds": 2},
    "run": {"num_replicates": 2, "controls": ["random_mask"], "control_rounds": [1]},
}


def build():
    return keras.Sequential([keras.Input((10,)), keras.layers.Dense(100, "relu"), keras.layers.Dense(3)])


def arrays():
    """Few examples with wrong labels among them: the dense network overfits at once, and tickets later."""
    rng = np.random.default_rng(0)
    truth, parts = rng.normal(size=(10, 3)), []
    for _ in ("train", "test"):
        x = rng.normal(size=(300, 10)).astype("float32")
        y = (x @ truth).argmax(1)
        wrong = rng.random(300) < 0.3
        parts += [x, np.where(wrong, rng.integers(0, 3, 300), y)]
    return tuple(parts)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    keep_graphs()
    return lottery.run(SETTINGS, model=build, data=arrays(), out=tmp_path_factory.mktemp("late"), on_event=quietly)


def validation(stored):
    return {step: loss for step, split, loss, _ in stored.metrics if split == "validation"}


def budgets(run):
    return {replicate: StoredRound(run.path, replicate, 0).record["early_stop_step"] for replicate in (1, 2)}


def tickets(run):
    return [stored for stored in stored_rounds(run.path, branches=False) if stored.round]


def test_a_ticket_is_stored_at_its_lowest_validation_loss_within_the_budget(run):
    late = [stored for stored in tickets(run) if stored.record["early_stop_step"] > budgets(run)[stored.replicate]]
    assert len(late) >= 3  # the experiment is made so
    splits = lottery.data.given(arrays(), run.experiment.data)
    model = build()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    for stored in late:
        budget = budgets(run)[stored.replicate]
        within = {step: loss for step, loss in validation(stored).items() if step <= budget}
        step = min(within, key=lambda step: (within[step], step))
        assert (stored.record["budget_step"], stored.record["budget_val_loss"]) == (step, within[step])
        # Keras measures what is in the file.
        weights.assign(model, stored.budget)
        for part, name in ((splits.validation, "val"), (splits.test, "test")):
            loss, accuracy = model.evaluate(part.x, part.y, verbose=0)
            assert stored.record[f"budget_{name}_loss"] == pytest.approx(loss, rel=1e-5)
            assert stored.record[f"budget_{name}_accuracy"] == pytest.approx(accuracy, abs=1e-6)
        predicted = model.predict(splits.test.x, verbose=0).argmax(1)
        assert np.mean(stored.predictions["budget"] == predicted) > 0.99
        assert all(not np.any(stored.budget[name][~mask]) for name, mask in stored.masks.items())


def test_the_table_has_what_a_loop_over_the_curves_finds(run):
    for row in run.table().to_dict("records"):
        stored = StoredRound(run.path, row["replicate"], row["round"], row["branch"])
        dense = StoredRound(run.path, row["replicate"], 0)
        lowest, curve = min(validation(dense).values()), validation(stored)
        reached = [step for step, loss in curve.items() if loss <= lowest]
        assert row["dense_loss_step"] == (min(reached) if reached else pytest.approx(np.nan, nan_ok=True))
        if row["branch"] != "ticket":
            assert np.isnan([row["budget_step"], row["budget_test_accuracy"]]).all()
            continue
        within = [step for step in curve if step <= budgets(run)[row["replicate"]]]
        assert row["budget_step"] == min(within, key=lambda step: (curve[step], step))
        if row["budget_step"] == row["early_stop_step"]:
            assert row["budget_test_accuracy"] == row["early_stop_test_accuracy"] and not stored.has(store.BUDGET)


def without_budget(stored, keys):
    """Take keys, and the file within the budget, out of a record, and make its checksums right again."""
    record = {key: value for key, value in stored.record.items() if not key.startswith(keys)}
    record["sha256"] = {name: checksum(stored.folder / name) for name in record["sha256"] if name != store.BUDGET}
    record["record_sha256"] = store._digest_of(record)
    files.write_json(stored.folder / "round.json", record)


def test_a_run_of_an_earlier_version_has_no_budget(run, tmp_path):
    copy = tmp_path / run.path.name
    shutil.copytree(run.path, copy)
    for stored in tickets(lottery.load(copy)):
        predictions = {key: value for key, value in stored.predictions.items() if key != "budget"}
        files.write(stored.folder / store.PREDICTIONS, files.pack_arrays(predictions))
        (stored.folder / store.BUDGET).unlink(missing_ok=True)
        without_budget(stored, ("budget", "dense_loss"))
    rows = lottery.load(copy).table().query("branch == 'ticket' and round > 0")
    late = rows["early_stop_step"] > rows["replicate"].map(budgets(run))
    assert rows[late]["budget_test_accuracy"].isna().all() and rows[~late]["budget_test_accuracy"].notna().all()
    assert all(not wrong for _, wrong in verification.verify(copy))
    with pytest.raises(TicketError, match="no weights within the budget"):
        lottery.tickets.load(copy, round=int(rows[late]["round"].iloc[0]), at="budget")


def test_a_ticket_is_loaded_within_the_budget(run):
    for stored in tickets(run):
        ticket = run.ticket(round=stored.round, replicate=stored.replicate, at="budget")
        expected = stored.budget if stored.has(store.BUDGET) else stored.early_stop
        assert all(np.array_equal(value, expected[name]) for name, value in ticket.trained.items())
        step = stored.record.get("budget_step") or stored.record["early_stop_step"]
        assert (ticket.provenance["trained_at"], ticket.provenance["trained_step"]) == ("budget", step)
        assert f"trained to step {step}, the best within the budget" in ticket.facts()["weights"]


def another_step(stored):
    (other,) = [step for step in sorted(validation(stored)) if step != stored.record["budget_step"]][:1]
    reseal(stored.folder, {"budget_step": other})


def a_better_accuracy(stored):
    reseal(stored.folder, {"budget_test_accuracy": 1.0})


def no_file(stored):
    without_budget(stored, ("nothing",))


def a_weight_that_came_back(stored):
    state = dict(stored.budget)
    name, mask = next((name, mask) for name, mask in stored.masks.items() if not mask.all())
    state[name] = state[name].copy()
    state[name][~mask] = 1e-3
    reseal(stored.folder, budget_safetensors=files.pack_arrays(state))


def another_speed(stored):
    reseal(stored.folder, {"dense_loss_step": 20})


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (another_step, "The network within the budget of"),
        (a_better_accuracy, "test loss and accuracy within the budget differ from the curve"),
        (no_file, "differ in whether there is a network within the budget|holds no predictions"),
        (a_weight_that_came_back, "masked entries that are not zero within the budget"),
        (another_speed, "It reaches the lowest loss of dense at step"),
    ],
)
def test_what_a_forger_changes_is_found(run, tmp_path, forge, message):
    copy = tmp_path / run.path.name
    shutil.copytree(run.path, copy)
    late = next(stored for stored in tickets(lottery.load(copy)) if stored.has(store.BUDGET))
    forge(StoredRound(copy, late.replicate, late.round))
    found = [sentence for _, wrong in verification.verify(copy) for sentence in wrong]
    assert any(re.search(message, sentence) for sentence in found), found


def test_the_weights_within_the_budget_are_computed_again(run, tmp_path):
    assert run.verify(recompute=True, model=build, data=arrays()) == []
    copy = tmp_path / run.path.name
    shutil.copytree(run.path, copy)
    late = next(stored for stored in tickets(lottery.load(copy)) if stored.has(store.BUDGET))
    state = {name: value * 1.5 for name, value in late.budget.items()}
    reseal(late.folder, budget_safetensors=files.pack_arrays(state))
    found = lottery.load(copy).verify(recompute=True, model=build, data=arrays())
    assert any("The budget test loss is" in sentence for sentence in found), found


def test_stopped_after_the_budget_and_resumed_all_files_are_equal(run, tmp_path):
    seen = []

    def watch(event):
        if isinstance(event, progress.Step) and event.round == 1 and 100 <= event.step < 200:
            seen.append(event.step)

    def again(**options):
        return lottery.run(SETTINGS, model=build, data=arrays(), out=tmp_path, **options)

    with pytest.raises(interrupts.Stopped):
        again(on_event=watch, should_stop=lambda: 15 * bool(seen))
    (file,) = tmp_path.rglob("checkpoint.safetensors")
    assert any(name.startswith("budget/") for name in files.read_arrays(file))
    assert contents(again(on_event=quietly).path) == contents(run.path)
