"""Tickets whose masked entries are held at other values than zero: models, files, exports, compaction."""

import numpy as np
import pytest

import lottery
from lottery import masks, tickets, weights
from lottery.enforcement import EnforceMasks, tfmot
from lottery.errors import LotteryError, TicketError
from lottery.tickets import compaction, exporting, ticket_file
from tests.conftest import toy_arrays
from tests.scripts.fuzz_tickets import contents, forge

NAMES = ("dense/kernel", "dense_1/kernel")
FORMS = ("keras", "saved_model", "tflite", "tflite_int8", "npz")


def network(library=None):
    import keras

    library = library or keras
    layers = library.layers
    return library.Sequential([layers.InputLayer((6,)), layers.Dense(16, "relu"), layers.Dense(3)])


@pytest.fixture
def ticket():
    """Half of the masked entries at zero, the others at their initial values; trained as far as one step of ones."""
    import keras

    keras.utils.set_random_seed(2)
    model, rng = network(), np.random.default_rng(5)
    start = weights.read_state(model)
    kept = {name: rng.random(start[name].shape) < 0.3 for name in NAMES}
    held_at = {name: np.where(rng.random(start[name].shape) < 0.5, start[name], 0) for name in NAMES}
    after = {name: value + 1 for name, value in start.items()}
    return tickets.of(model, kept, trained=after, held_at=held_at), start, held_at


def test_a_ticket_holds_its_values_in_start_and_trained_weights(ticket):
    ticket, start, held_at = ticket
    for name, mask in ticket.masks.items():
        for values, own in ((ticket.weights, start[name]), (ticket.trained, start[name] + 1)):
            assert values[name].tobytes() == np.where(mask, own, held_at[name]).tobytes()
        assert np.array_equal(ticket.held_at[name][~mask], held_at[name][~mask])
    for trained in (False, True):
        model = ticket.model(trained=trained)
        assert masks.leaks(weights.read(model), ticket.masks, held_at) == {}
    num = sum(np.count_nonzero(held_at[name][~mask]) for name, mask in ticket.masks.items())
    of = sum(np.count_nonzero(~mask) for mask in ticket.masks.values())
    assert ticket.facts()["held at"] == f"values of their own: {num:,} of {of:,} masked weights, the others at zero"


def test_held_values_may_be_the_present_ones_and_must_fit():
    model = network()
    kept = {name: np.zeros(value.shape, bool) for name, value in weights.read(model).items()}
    present = tickets.of(model, kept, held_at="present")
    assert all(np.array_equal(present.weights[name], value) for name, value in weights.read(model).items())
    assert tickets.of(model, kept).held_at is None and "held at" not in tickets.of(model, kept).facts()
    with pytest.raises(LotteryError, match="held_at for 'dense/kernel' has shape"):
        tickets.of(model, kept, held_at={"dense/kernel": np.zeros(4)})


def test_training_on_holds_the_values(ticket):
    ticket, _, held_at = ticket
    model = ticket.model()
    model.compile("adam", "sparse_categorical_crossentropy")
    x, y, *_ = toy_arrays(np.random.default_rng(0), 60, 3)
    before = weights.read(model)
    model.fit(x, y, epochs=1, verbose=0, callbacks=[EnforceMasks(ticket.masks, held_at=ticket.held_at)])
    assert masks.leaks(weights.read(model), ticket.masks, held_at) == {}
    assert any(np.any(value != before[name]) for name, value in weights.read(model).items())


def test_a_file_keeps_the_values_and_other_tickets_stay_in_the_first_format(ticket, tmp_path):
    ticket = ticket[0]
    again = tickets.load(ticket.save(tmp_path / "ticket.safetensors"))
    for one, other in ((ticket.weights, again.weights), (ticket.trained, again.trained), (ticket.masks, again.masks)):
        assert list(one) == list(other)
        assert all(
            one[name].tobytes() == other[name].tobytes() and one[name].dtype == other[name].dtype for name in one
        )
    packed = (tmp_path / "ticket.safetensors").read_bytes()
    assert b"held/dense/kernel" in packed
    start_only = tickets.load(ticket.save(tmp_path / "start.safetensors", trained=False))
    assert (
        start_only.trained is None
        and start_only.weights["dense/kernel"].tobytes() == ticket.weights["dense/kernel"].tobytes()
    )
    plain = tickets.of(network(), ticket.masks)
    packed = plain.save(tmp_path / "plain.safetensors").read_bytes()
    assert b"held/" not in packed and ticket_file.FORMAT == 1
    assert ticket_file.unpack(contents("keras"), "a file of an earlier version").masks


@pytest.mark.parametrize(
    ("record_edit", "tensors_edit", "why"),
    [
        (lambda record: record.update(format=1), None, "its tensors differ from those in its record"),
        (None, lambda tensors: tensors.pop("held/dense/kernel"), "its tensors differ from those in its record"),
        (None, lambda tensors: tensors.update({"held/dense/kernel": tensors["held/dense/kernel"][1:]}), "keep as many"),
        (
            None,
            lambda tensors: tensors.update({"held/dense/kernel": tensors["held/dense/kernel"].astype(np.float64)}),
            "the size or type of held/dense/kernel differs",
        ),
        (None, lambda tensors: tensors.update({"held/dense/bias": np.zeros(16, np.float32)}), "its tensors differ"),
        (lambda record: record.update(format=3), None, "it has format 3, and this version of lottery reads up to 2"),
    ],
)
def test_a_file_with_other_held_values_than_its_record_says_is_refused(
    ticket, tmp_path, record_edit, tensors_edit, why
):
    content = ticket[0].save(tmp_path / "ticket.safetensors").read_bytes()
    with pytest.raises(TicketError, match=why):
        ticket_file.unpack(forge(content, record_edit, tensors_edit), "the file")


def test_a_model_in_wrappers_of_tfmot_is_refused(ticket):
    import tf_keras

    ticket = ticket[0]
    model = network(tf_keras)
    ticket.apply(model)
    assert np.array_equal(weights.read(model)["dense/kernel"], ticket.weights["dense/kernel"])
    wrapped = tfmot.wrap(network(tf_keras), ticket.masks)
    before = weights.read_state(wrapped)
    with pytest.raises(TicketError, match="is wrapped by tfmot, which holds masked entries at zero"):
        ticket.apply(wrapped)
    assert all(np.array_equal(value, before[name]) for name, value in weights.read_state(wrapped).items())


@pytest.mark.parametrize("form", FORMS)
def test_an_export_has_the_values(ticket, tmp_path, form):
    ticket = ticket[0]
    x = toy_arrays(np.random.default_rng(0), 60, 3)[0]
    path = tmp_path / exporting.EXPORTS[form].file
    found = exporting.export(ticket.model(), ticket.masks, path, form, x, ticket.held_at)
    assert found.zeros_checked and found.difference <= (0.1 if form == "tflite_int8" else 1e-5)
    if form == "npz":
        with np.load(path) as file:
            assert all(np.array_equal(file[name], ticket.weights[name]) for name in NAMES)


def test_exports_refuse_what_they_cannot_hold(ticket, tmp_path):
    ticket, model = ticket[0], ticket[0].model()
    for form in ("tflite_sparse", "tfmot"):
        path = tmp_path / exporting.EXPORTS[form].file
        with pytest.raises(LotteryError, match=f"The form '{form}' takes masked entries of zero only"):
            exporting.export(model, ticket.masks, path, form, held_at=ticket.held_at)
    with pytest.raises(LotteryError, match="masked entries of 'dense/kernel' are not zero in the model"):
        exporting.export(model, ticket.masks, tmp_path / "a.npz")
    other = {name: value + 1 for name, value in ticket.held_at.items()}
    with pytest.raises(LotteryError, match="are not at their held values in the model .*enforcement.project"):
        exporting.export(model, ticket.masks, tmp_path / "a.npz", held_at=other)
    assert not list(tmp_path.iterdir())


def test_an_export_that_loses_a_held_value_is_refused(ticket, tmp_path, monkeypatch):
    ticket = ticket[0]

    def damaged(model, kept, path, inputs):
        arrays = weights.read_state(model)
        arrays["dense/kernel"] = np.where(kept["dense/kernel"], arrays["dense/kernel"], 0)
        np.savez(path, **arrays)

    how = exporting.EXPORTS["npz"]._replace(write=damaged, tolerance=np.inf)
    monkeypatch.setitem(exporting.EXPORTS, "npz", how)
    with pytest.raises(LotteryError, match="are not at their held values in the exported file"):
        exporting.export(ticket.model(), ticket.masks, tmp_path / "a.npz", held_at=ticket.held_at)


def test_compaction_removes_what_is_zero_and_nothing_else(ticket):
    ticket = ticket[0]
    assert compaction.compact(ticket.model()).units["dense"] == (16, 16)
    dead = {name: np.array(value) for name, value in ticket.weights.items()}
    dead["dense_1/kernel"][4] = 0
    model = ticket.model()
    weights.assign(model, dead)
    small = compaction.compact(model)
    assert small.units["dense"] == (16, 15)
    x = toy_arrays(np.random.default_rng(0), 60, 3)[0]
    np.testing.assert_allclose(small.model(x), model(x), atol=1e-5)


def test_the_commands(ticket, tmp_path, lottery_command):
    path = ticket[0].save(tmp_path / "ticket.safetensors")
    said = lottery_command("tickets", "show", path).stdout
    assert "held at:" in said and "values of their own" in said
    assert lottery_command("verify", path).returncode == 0
    said = lottery_command("export", path, "--out", tmp_path / "model.npz")
    assert "Masked entries are at their held values in each file." in " ".join(said.stdout.split())
    said = lottery_command("export", path, "--out", tmp_path / "a.tflite", "--format", "tflite_sparse")
    assert said.returncode == 2 and "takes masked entries of zero only" in " ".join(said.stderr.split())
    assert lottery.tickets.load(path).held_at is not None
