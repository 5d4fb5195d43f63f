"""Ticket files: what is written is read, to the last bit; what was changed, forged or is something else is refused."""

import contextlib
import hashlib
import importlib
import json
import subprocess
import sys
import time
from importlib import metadata

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load as parse_arrays

from lottery import masks, tickets, weights
from lottery.errors import TicketError
from lottery.models import architecture
from lottery.pruning import ranking
from lottery.tickets import ticket_file
from tests.scripts import fuzz_tickets
from tests.scripts.fuzz_tickets import attacks, contents, differences, edit_record, forge, forged, joined, judged, split

SEEDS = fuzz_tickets.seeds()
FOUND = sorted(path.stem for path in fuzz_tickets.CORPUS.glob("found-*.safetensors"))


@pytest.fixture(scope="module")
def watch():
    one = fuzz_tickets.Watch()
    for library in ("keras", "tf_keras"):  # the memory of importing it is nobody's attack
        fuzz_tickets.built(forged(library, "nothing wrong"), one)
    return one


def unpacked(content):
    return ticket_file.unpack(content, "the file")


def of_file(path):
    ticket = tickets.load(path)
    about = {"architecture": ticket.architecture, "metrics": ticket.metrics, "provenance": ticket.provenance}
    return ticket_file.Contents(ticket.masks, ticket.weights, ticket.trained, about)


def made_up(**more):
    """A ticket of every kind of weight: some kept, none, not masked, a scalar."""
    rng = np.random.default_rng(3)
    values = {"a/kernel": rng.normal(size=(3, 5)).astype(np.float32), "b/kernel": rng.normal(size=(9,)), "a/bias": np.ones(3, np.float32)}  # fmt: skip
    values |= {"count": np.array(4), "b c/é 重み": np.array([1, 2, 3], np.int8)} | more
    kept = {"a/kernel": rng.random((3, 5)) < 0.5, "b/kernel": np.zeros(9, bool)}
    about = {"architecture": {"library": "keras", "class": "Own", "why": "-"}, "metrics": {"x": 0.1}, "provenance": {}}
    start = masks.apply(values, kept)
    return ticket_file.Contents(kept, start, {name: value + value for name, value in start.items()}, about)


# Damage.


def test_fifteen_hundred_damaged_files(tmp_path):
    said = []
    assert fuzz_tickets.fuzz(1500, seed=3, folder=tmp_path, say=said.append) == 0, said
    assert said[-3].startswith("same: ") and int(said[-3].split()[1]) > 50  # not everything is refused
    assert int(said[-2].split()[1]) > 1000


@pytest.mark.long
def test_twenty_thousand_damaged_files(tmp_path):
    assert fuzz_tickets.fuzz(20_000, seed=4, folder=tmp_path) == 0


@pytest.mark.long
@settings(max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.sampled_from(sorted(SEEDS)),
    st.lists(st.tuples(st.sampled_from(fuzz_tickets.MUTATIONS), st.integers(0, 2**32)), min_size=1, max_size=3),
)
def test_twenty_thousand_files_that_hypothesis_damages(name, damages):
    content = SEEDS[name]
    for mutation, seed in damages:
        with contextlib.suppress(Exception):  # the second may need a whole file
            content = mutation(np.random.default_rng(seed), content)
    # Something of every other ticket may be in it, or all.
    outcome = judged(content, lambda: unpacked(content), [unpacked(one) for one in SEEDS.values()])[0]
    assert outcome in ("same", "refused")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(SEEDS)), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6))
def test_any_bytes_of_a_file_may_be_others(name, edits):
    content = bytearray(SEEDS[name])
    for position, value in edits:
        content[position % len(content)] = value
    expected = unpacked(SEEDS[name])
    outcome = judged(bytes(content), lambda: unpacked(bytes(content)), [expected])[0]
    assert outcome == "same" if bytes(content) == SEEDS[name] else outcome in ("same", "refused")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(fuzz_tickets.ODD),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(SEEDS)), st.integers(0, 10**6), JSON, st.booleans())
def test_any_value_of_a_header_or_a_signed_record_may_be_another(name, place, value, signed):
    """A signed record is its writer's word. What it says must fit the tensors, or the ticket is refused."""
    header, record, body = split(SEEDS[name])
    where = record if signed else header
    places = [one for one in fuzz_tickets._places(where) if one[1] not in ("__metadata__", "record_sha256")]
    holder, key = places[place % len(places)]
    holder[key] = value
    content = forge(SEEDS[name], lambda old: (old.clear(), old.update(record))) if signed else joined(header, body)
    if signed:
        try:
            found = unpacked(content)
        except TicketError as error:
            assert fuzz_tickets.said_well(error)
        else:
            consistent(found)
    else:
        assert judged(content, lambda: unpacked(content), [unpacked(SEEDS[name])])[0] in ("same", "refused")


def consistent(found):
    assert found.masks and set(found.masks) <= set(found.weights)
    for part in (found.weights, found.weights if found.trained is None else found.trained):
        assert {name: value.shape for name, value in part.items()} == {name: value.shape for name, value in found.weights.items()}  # fmt: skip
        for name, mask in found.masks.items():
            assert mask.dtype == bool and mask.shape == part[name].shape and not part[name][~mask].any()
    assert all(value.flags.writeable and value.flags.owndata for value in found.weights.values())


@pytest.mark.parametrize("name", SEEDS)
def test_whole_files_load_and_are_written_again_as_they_were(name, tmp_path):
    found = unpacked(SEEDS[name])
    consistent(found)
    again = ticket_file.pack(found)
    if split(SEEDS[name])[1]["lottery"] == metadata.version("lottery"):
        assert hashlib.sha256(again).digest() == hashlib.sha256(SEEDS[name]).digest()
    assert not differences(unpacked(again), found)
    path = tmp_path / "t.safetensors"
    path.write_bytes(SEEDS[name])
    assert not differences(of_file(path), found)


@pytest.mark.parametrize("name", ["built-in", "keras", "keras-trained", "pruned", "tf-keras"])
def test_whole_files_of_a_known_network_build_it(name):
    if name == "tf-keras" and metadata.version("tf-keras").startswith("2.20"):
        pytest.skip("this file is of tf-keras 2.21, whose input layers have an argument more")
    parts = unpacked(SEEDS[name])
    trained = parts.trained is not None
    model = tickets.Ticket(parts.masks, parts.weights, parts.trained, **parts.about).model(trained=trained)
    from lottery import weights

    values = weights.read_state(model)
    for key, value in (parts.trained or parts.weights).items():
        np.testing.assert_array_equal(values[key], value)


@pytest.mark.parametrize("name", FOUND)
def test_what_once_broke_a_promise_is_refused(name, watch):
    content = contents(name)
    outcome, seconds = fuzz_tickets.built(content, watch)
    assert outcome == "refused" and seconds < 300  # without end, if it were not refused
    if not name.startswith(("found-keras-", "found-tf_keras-")):
        with pytest.raises(TicketError):
            unpacked(content)


def test_the_fuzzer_sees_what_is_wrong(monkeypatch):
    """A judge that finds everything right would let the fuzzer find nothing."""
    whole = unpacked(SEEDS["types"])

    def another(**parts):
        return lambda: whole._replace(**parts)

    def outcome(read):
        return judged(b"x" * 1000, read, [whole])[0]

    name = next(iter(whole.weights))
    assert outcome(another()) == "same"
    assert "names of weights" in outcome(another(weights=dict(reversed(whole.weights.items()))))
    assert "weights of" in outcome(another(weights={**whole.weights, "count": whole.weights["count"].astype(np.int32)}))
    assert "weights of" in outcome(another(weights={**whole.weights, "mean": -whole.weights["mean"]}))
    assert "masks of" in outcome(another(masks={key: ~mask for key, mask in whole.masks.items()}))
    assert "trained" in outcome(another(trained=None))
    assert "what is known" in outcome(another(about={**whole.about, "provenance": {"é": [1, 1, True]}}))
    assert name

    def raising(error):
        def read():
            raise error

        return read

    assert outcome(raising(TicketError("One."))) == "refused"
    assert "more than a line" in outcome(raising(TicketError("One.\u2028Two.")))
    assert "KeyError" in outcome(raising(KeyError("x")))
    assert "bytes for" in outcome(lambda: bytes(5_000_000) and whole)

    monkeypatch.setattr(fuzz_tickets, "SECONDS", 0.3)

    def slowly():
        until = time.thread_time() + fuzz_tickets.SECONDS + 0.1
        while time.thread_time() < until:
            pass
        return whole

    assert "took" in outcome(slowly)


# Forgeries.


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_forger_gets_no_code_and_no_file(library):
    said = []
    assert fuzz_tickets.forge_all(said.append, library) == 0, said
    assert f" a model ({library})" in said[-1]


def test_the_watch_sees_what_is_done(tmp_path, watch):
    (tmp_path / "canary").write_text("")
    with watch:
        (tmp_path / "canary").read_text()
    assert watch.events[0][0] == "open"
    with watch, pytest.raises(ImportError):
        import canary_module  # noqa: F401  # pyright: ignore[reportMissingImports]
    assert watch.events[0][0] == "import"


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_each_defence_is_needed(library, monkeypatch, watch):
    """Without it, what it is against gets through, or at least to Keras."""
    expected = {"dense/kernel": (4, 2), "dense/bias": (2,)}

    def why(name):
        with pytest.raises(TicketError) as caught:
            architecture.build(attacks(library)[name], expected)
        return str(caught.value)

    named = ("lambda", "os.system", "vocabulary", "activation by path", "compiled", "long name", "composite",
             "registered name")  # fmt: skip
    for name in named:
        assert "which a ticket may not name" in why(name), name
    monkeypatch.setattr(architecture, "_refused", lambda *_: ())
    monkeypatch.setattr(architecture, "_built", lambda *_: pytest.fail("not refused before it is built"))
    for name in named:
        with pytest.raises(pytest.fail.Exception, match="before it is built"):
            architecture.build(attacks(library)[name], expected)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_what_people_build_is_described_and_built_again(library):
    """Shared layers, models in models, an unrolled layer."""
    keras = importlib.import_module(library)
    layers = keras.layers
    inner = keras.Sequential([layers.InputLayer((6,)), layers.Dense(6, "relu")], name="inner")
    inputs = keras.Input((6,))
    middle = keras.Model(inputs, layers.Add()([inner(inputs), inner(inner(inputs))]), name="middle")
    first, second = keras.Input((6,)), keras.Input((6,))
    both = layers.Concatenate()([middle(first), middle(second), middle(middle(first))])
    siamese = keras.Model([first, second], layers.Dense(2)(both))
    recurrent = keras.Sequential([layers.InputLayer((5, 3)), layers.LSTM(4, unroll=True), layers.Dense(2)])
    for model in (siamese, recurrent):
        described = architecture.describe(model)
        assert "keras" in described, described
        shapes = {name: value.shape for name, value in weights.portable(model).items()}
        assert len(architecture.build(described, shapes).weights) == len(model.weights)


def test_numbers_of_a_normalization_that_are_all_there_are_let_in():
    import keras
    import tf_keras

    for library in (keras, tf_keras):
        layers = library.layers
        norm = layers.Normalization(axis=-1, mean=[1.0, 2, 3, 4], variance=[1.0, 2, 3, 4])
        model = library.Sequential([layers.InputLayer((4,)), norm, layers.Dense(2)])
        assert "keras" in architecture.describe(model), architecture.describe(model)


def test_a_compiled_part_is_described_without_its_optimiser():
    import keras

    inner = keras.Sequential([keras.layers.InputLayer((4,)), keras.layers.Dense(2)])
    inner.compile("adam", "mse")
    model = keras.Sequential([keras.layers.InputLayer((4,)), inner])
    described = architecture.describe(model)
    assert "keras" in described and "compile_config" not in json.dumps(described)


def test_a_forged_type_that_keras_does_not_take_is_a_ticket_error():
    def tensors(values):
        values["start/dense/bias"] = values["start/dense/bias"].astype(bool)

    def record(values):
        values["variables"]["dense/bias"]["dtype"] = "bool"

    parts = unpacked(forge(SEEDS["tf-keras"], record, tensors))
    ticket = tickets.Ticket(parts.masks, parts.weights, parts.trained, **parts.about)
    try:
        ticket.model()
    except TicketError as error:
        assert fuzz_tickets.said_well(error)


# The format.


def test_the_same_ticket_is_the_same_bytes_in_every_process():
    program = (
        "import hashlib; from lottery.tickets import ticket_file; from tests.tickets.test_ticket_file import made_up;"
        "print(hashlib.sha256(ticket_file.pack(made_up())).hexdigest())"
    )
    here = hashlib.sha256(ticket_file.pack(made_up())).hexdigest()
    assert here == hashlib.sha256(ticket_file.pack(made_up())).hexdigest()
    command = [sys.executable, "-c", program]
    there = subprocess.run(command, capture_output=True, text=True, check=True, cwd=fuzz_tickets.CORPUS.parents[2])
    assert there.stdout.split()[-1] == here


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_kind_of_weight_comes_back(dtype):
    one = made_up(**{"w/a b/ñ 重み": np.array([[0.1, -0.0], [np.inf, np.nan]], dtype), "scalar": np.array(0.1, dtype)})
    kept = {**one.masks, "w/a b/ñ 重み": np.array([[True, True], [False, True]])}
    one = one._replace(masks=kept, weights=masks.apply(one.weights, kept), trained=None)
    found = unpacked(ticket_file.pack(one))
    assert not differences(found, one)
    assert found.weights["scalar"].shape == () and found.weights["count"].dtype == np.int64


def test_types_that_cannot_be_written_are_named():
    with pytest.raises(TicketError, match="x must have one of the types bool.*, not complex64"):
        ticket_file.pack(made_up(x=np.zeros(2, np.complex64)))
    with pytest.raises(TicketError, match="not plain data"):
        ticket_file.pack(made_up()._replace(about={"architecture": {}, "metrics": {"a": np.ones(2)}, "provenance": {}}))
    with pytest.raises(TicketError, match="not plain data"):
        ticket_file.pack(
            made_up()._replace(about={"architecture": {}, "metrics": {"a": float("nan")}, "provenance": {}})
        )


def test_a_format_of_the_future_is_named():
    content = forge(SEEDS["keras"], lambda record: record.update(format=3, more={"new": 1}))
    why = "it has format 3, and this version of lottery reads up to 2; install a newer version"
    with pytest.raises(TicketError, match=why):
        unpacked(content)
    with pytest.raises(TicketError, match="format"):
        unpacked(forge(SEEDS["keras"], lambda record: record.update(format=True)))


def test_lenet_at_a_density_of_three_and_a_half_percent_is_under_120_kb():
    rng = np.random.default_rng(0)
    shapes = {"dense": (784, 300), "dense_1": (300, 100), "dense_2": (100, 10)}
    kernels = {f"{name}/kernel": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    scores = {name: np.abs(value) for name, value in kernels.items()}
    kept = ranking.keep_highest(scores, masks.ones_like(kernels), rate=0.964)
    values = {}
    for name, shape in shapes.items():
        values[f"{name}/kernel"], values[f"{name}/bias"] = (
            kernels[f"{name}/kernel"],
            rng.normal(size=shape[1:]).astype(np.float32),
        )
    network = {"library": "keras", "name": "lenet_300_100", "input_shape": [28, 28], "num_classes": 10}
    about = {
        "architecture": network,
        "metrics": {"early_stop_test_accuracy": 0.98},
        "provenance": {"run": "lenet", "round": 15},
    }
    start = masks.apply(values, kept)
    one = ticket_file.Contents(
        kept, start, masks.apply({name: value * 2 for name, value in start.items()}, kept), about
    )
    content = ticket_file.pack(one)
    num_kept, total = sum(masks.num_kept(kept).values()), 266_200
    assert round(num_kept / total, 3) == 0.036
    # One bit an entry, two numbers for each that is kept, two for each bias; the rest is names.
    least = sum(-(-mask.size // 8) for mask in kept.values()) + 8 * num_kept + 8 * 410
    assert least < len(content) < least + 5000 and len(content) < 120_000
    assert not differences(unpacked(content), one)


# Every check is needed: a wrong file, which it refuses, is let in or read as something else without it.


def wrong_files():
    """Files that are wrong in one thing, by what refuses them."""
    header, record, body = split(SEEDS["keras"])
    bits = {"mask/dense/kernel": np.array([0b11111111], np.uint8)}

    def tensors(**values):
        return lambda old: old.update({name.replace("__", "/"): value for name, value in values.items()})

    def variables(name, **fields):
        return lambda one: one["variables"][name].update(fields)

    flipped = bytes([body[0] ^ 1, *body[1:]])  # of a bias
    more = {**header, "start/x": {"dtype": "U8", "shape": [0], "data_offsets": [len(body)] * 2}}
    types = json.loads(json.dumps(header))
    types["start/dense/bias"]["dtype"] = "I32"
    return {
        "the checksum of": [
            joined(header, flipped),
            joined(header, body, {**record, "lottery": "0"}),
            joined(header, body, {**record, "variables": dict(reversed(record["variables"].items()))}),
            *(joined(header, body, {**record, "sha256": {**record["sha256"], name: "0" * 64}}) for name in record["sha256"]),
        ],
        "does not keep as many": [forge(SEEDS["keras"], None, tensors(**{"mask__dense__kernel": bits["mask/dense/kernel"]}))],
        "density does not agree": [forge(SEEDS["keras"], lambda one: one.update(density=0.1)), forge(SEEDS["keras"], lambda one: one.update(num_kept=1))],
        "has no masks": [forge(SEEDS["keras"], lambda one: [value.update(masked=False) for value in one["variables"].values()])],
        "differ from those in its record": [
            joined(more, body),
            forge(SEEDS["keras"], None, lambda old: old.pop("start/dense/bias")),
            forge(SEEDS["keras"], lambda one: one["sha256"].pop("start/dense/bias")),
            forge(SEEDS["keras"], None, tensors(trained__dense__bias=np.zeros(2, np.float32))),
        ],
        "size or type": [
            joined(types, body),
            forge(SEEDS["keras"], variables("dense/bias", shape=[1, 2])),
            forge(SEEDS["keras"], variables("dense/kernel", shape=[4, 3])),
            forge(SEEDS["keras"], variables("dense/kernel", dtype="int32"), lambda old: old.update({"start/dense/kernel": old["start/dense/kernel"].view(np.int32)})),
            forge(SEEDS["keras"], None, lambda old: old.update({"mask/dense/kernel": old["mask/dense/kernel"].view(np.int8)})),
            forge(SEEDS["keras"], None, lambda old: old.update({"start/dense/kernel": old["start/dense/kernel"].reshape(1, -1)})),
            forge(SEEDS["pruned"], None, lambda old: old.update({"trained/dense/kernel": np.ones(1, np.float32)})),
        ],
        "must have a shape of at most 32 sizes": [
            joined({**header, "start/dense/bias": {**header["start/dense/bias"], "shape": shape}}, body)
            for shape in ([-2], [2.0], [True], [2**41], [1] * 33, 2, None, "2", ["2"])
        ],
        "its header announces": [joined(header, body + b"\0"), joined(header, body[:-1])],
        "not by names": [
            renamed(name) for name in ("../x", "/etc/passwd", "a//b", "a/../b", "a\0b", "a\\b", "c:d", "a\nb", "a\u2028b", "", ".", "x" * 1001)
        ],
        "a name appears twice": [
            joined(json.dumps(header)[:-1] + f', "start/dense/bias": {json.dumps(header["start/dense/bias"])}}}', body),
            joined(header, body, json.dumps(record)[:-1] + ', "format": 1}'),
        ],
        "is not a number": [joined(header, body, json.dumps(record)[:-1] + f', "x": {word}}}') for word in ("NaN", "-Infinity")],
        "nests more than": [forge(SEEDS["keras"], lambda one: one["metrics"].update(a=json.loads("[" * 300 + "]" * 300)))],
        "metadata has no": [joined({**header, "__metadata__": {**header["__metadata__"], "x": "y"}}, body)],
        "before its header does": [b"", b"1234567", SEEDS["keras"][:100], b"\xff" * 50],
    }  # fmt: skip


def renamed(name):
    def tensors(old):
        values = {key.replace("dense/bias", name): value for key, value in old.items()}
        old.clear()
        old.update(values)

    def record(one):
        one["variables"] = {name if key == "dense/bias" else key: value for key, value in one["variables"].items()}

    return forge(SEEDS["keras"], record, tensors)


@pytest.mark.parametrize("why", wrong_files())
def test_a_file_that_is_wrong_in_one_thing_is_refused_for_it(why):
    for content in wrong_files()[why]:
        with pytest.raises(TicketError, match=why):
            unpacked(content)


def test_checks_that_are_planted_away_let_wrong_files_in(monkeypatch):
    """What is refused above is refused by that check, and by no other."""
    files = wrong_files()

    def let_in(content):
        try:
            unpacked(content)
        except TicketError:
            return False
        return True

    with monkeypatch.context() as planted:  # no checksum of a tensor, of a record
        planted.setattr(ticket_file.hashlib, "sha256", Anything)
        assert let_in(files["the checksum of"][0])
    with monkeypatch.context() as planted:
        planted.setattr(ticket_file, "_digest", lambda record: record["record_sha256"])
        assert all(let_in(content) for content in files["the checksum of"][1:3])
    with monkeypatch.context() as planted:
        planted.setattr(ticket_file, "_check_name", lambda name: None)
        assert all(let_in(content) for content in files["not by names"])
    with monkeypatch.context() as planted:
        planted.setattr(ticket_file, "_check_tensors", lambda *_: None)
        # Of the type and the size, nothing else knows.
        sizes = files["size or type"]
        assert let_in(sizes[0]) and unpacked(sizes[0]).weights["dense/bias"].dtype == np.int32
        assert let_in(sizes[1]) and unpacked(sizes[1]).weights["dense/bias"].shape == (2,)
        assert all(let_in(content) for content in files["not by names"])
    with monkeypatch.context() as planted:
        planted.setattr("lottery.files.MOST_NESTED", 10_000)
        assert all(let_in(content) for content in files["nests more than"])


class Anything:
    """A checksum that is whatever was expected."""

    def __init__(self, _):
        pass

    def hexdigest(self):
        return Everything()


class Everything(str):
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = str.__hash__


def test_numbers_of_many_digits_take_no_time():
    header, _, body = split(SEEDS["keras"])
    header["start/dense/bias"]["shape"] = [int("9" * 4000)] * 1000
    content = joined(header, body)
    outcome, seconds, _ = judged(content, lambda: unpacked(content), [])
    assert outcome == "refused" and seconds < fuzz_tickets.SECONDS


def test_memory_is_bounded_by_the_file():
    """The worst that we know: masks that keep nothing, of the widest type, twice; and a record of nothing but errors."""
    num = 2**20
    none = {"mask/w": np.zeros(num // 8, np.uint8), "start/w": np.zeros(0), "trained/w": np.zeros(0)}

    def record(one):
        one["variables"] = {"w": {"shape": [num], "dtype": "float64", "masked": True}}
        one.update(density=0.0, num_kept=0)

    pruned = forge(SEEDS["keras"], record, lambda old: (old.clear(), old.update(none)))
    outcome, _, peak = judged(pruned, lambda: unpacked(pruned), [unpacked(pruned)])
    assert outcome == "same" and 100 * len(pruned) < peak < 160 * len(pruned)
    wrong = forge(SEEDS["keras"], lambda one: one.update(variables={str(index): {"a": []} for index in range(5000)}))
    outcome, _, peak = judged(wrong, lambda: unpacked(wrong), [])
    assert outcome == "refused" and peak < 160 * len(wrong)


def test_forging_nothing_changes_nothing():
    """The forger signs as `pack` does, so that it is not its signature that is refused."""
    for content in SEEDS.values():
        assert not differences(unpacked(forge(content)), unpacked(content))
        assert parse_arrays(forge(content)).keys() == parse_arrays(content).keys()
    rng = np.random.default_rng(0)
    assert any(forge(SEEDS["keras"]) != edit_record(rng, SEEDS["keras"]) for _ in range(3))
    assert forged("keras", "nothing wrong") != SEEDS["keras"]
