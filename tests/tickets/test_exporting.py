"""Exports: each file is opened here by the library's own means, and its arrays are compared with the ticket's."""

import fcntl
import functools
import gzip
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from typing import Any

import numpy as np
import pytest

from lottery import enforcement, masks, weights
from lottery.enforcement import tfmot
from lottery.errors import LotteryError
from lottery.models import outputs
from lottery.pruning import one_shot
from lottery.tickets import exporting, tflite
from lottery.tickets.reopened import Opened, Stored, are_held

LIBRARIES = ("keras", "tf_keras")
FORMS = [form for form, how in exporting.EXPORTS.items() if not how.takes_wrappers]
NEEDS_ONNX = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime", "tf2onnx")), reason="needs ONNX"
)
ALL = [pytest.param(form, marks=NEEDS_ONNX if form == "onnx" else ()) for form in FORMS]
DEPTHWISE = "depthwise_conv2d/kernel"


def network(library):
    """Every kind of kernel that converters lay out differently, and a normalisation for them to fold in."""
    layers = library.layers
    image = layers.Input((8, 8, 1))
    x = layers.Conv2D(6, 3, activation="relu")(image)
    x = layers.DepthwiseConv2D(3, depth_multiplier=2)(x)
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, use_bias=False)(x)))
    x = layers.Dense(24, activation="relu")(layers.Flatten()(x))
    return library.Model(image, layers.Dense(10)(x))


@functools.cache
def digits():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return ((images.reshape(-1, 8, 8, 1) - 4.88) / 6.02).astype(np.float32), labels


@functools.cache
def trained(library):
    """A small ticket, trained on the digits, compiled; its masks; and 60 digits that it was not trained on."""
    keras = importlib.import_module(library)
    keras.utils.set_random_seed(3)
    model = network(keras)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=False)
    kept = one_shot.prune(model, sparsity=0.7)
    weights.assign(model, masks.apply(weights.read(model), kept))
    x, labels = digits()
    with enforcement.constraint(model, kept) as callbacks:
        model.fit(x[:1500], labels[:1500], batch_size=50, epochs=2, verbose=0, callbacks=callbacks)
    return model, kept, x[-60:]


@pytest.fixture(params=LIBRARIES)
def library(request):
    return request.param


@pytest.fixture
def ticket(library):
    return trained(library)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """The exports of what `trained` gives, by library and form, each made once and alone in a folder, to be read."""

    @functools.cache
    def made(library, form):
        model, kept, x = trained(library)
        path, by_path = target(tmp_path_factory.mktemp("exports"), form), form in ("saved_model", "tflite")
        return exporting.export(model, kept, path, None if by_path else form, x)

    return made


def without_depthwise(kept):
    return {name: mask for name, mask in kept.items() if name != DEPTHWISE}


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory):
    """What `trained` gives of tf_keras, exported by tfmot, which prunes no DepthwiseConv2D."""
    model, kept, x = trained("tf_keras")
    path = tmp_path_factory.mktemp("exports") / "wrapped.keras"
    return exporting.export(model, without_depthwise(kept), path, "tfmot", x)


def target(folder, form, name="ticket"):
    return folder / (name + exporting.EXPORTS[form].suffix)


def elsewhere(path, form, x) -> Any:
    """Outputs of a file without our own code: the library's other door, where it has one."""
    import tensorflow as tf

    if form == "keras":
        library = importlib.import_module("keras" if b'"keras_version": "3' in metadata(path) else "tf_keras")
        return library.saving.load_model(path).predict(x, verbose=0)
    if form == "saved_model":
        served = tf.saved_model.load(str(path)).signatures["serving_default"]
        return served(**{next(iter(served.structured_input_signature[1])): tf.constant(x)}).popitem()[1].numpy()
    if form.startswith("tflite"):
        interpreter = interpret(path)
        interpreter.allocate_tensors()
        outputs = []
        for one in x:  # no batches
            interpreter.set_tensor(interpreter.get_input_details()[0]["index"], one[None])
            interpreter.invoke()
            outputs.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"])[0])
        return np.stack(outputs)
    import onnxruntime  # pyright: ignore[reportMissingImports]

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def metadata(path):
    with zipfile.ZipFile(path) as archive:
        return archive.read("metadata.json")


def interpret(path):
    import tensorflow as tf

    with pytest.warns(UserWarning, match="deprecated"):
        return tf.lite.Interpreter(model_content=path.read_bytes(), num_threads=1)


@pytest.mark.parametrize("form", ALL)
def test_others_compute_the_same_from_the_file(library, ticket, exports, form, capfd):
    model, _, x = ticket
    before = weights.read_state(model)
    exported = exports(library, form)
    assert capfd.readouterr() == ("", "")
    path = target(exported.path.parent, form)
    assert (exported.path, exported.form, exported.zeros_checked) == (path, form, True)
    assert list(path.parent.iterdir()) == [path]
    after = weights.read_state(model)
    assert all(np.array_equal(after[name], value) for name, value in before.items())
    assert model.get_compile_config()["optimizer"]  # as compiled as before
    if form == "npz":
        return
    expected = np.asarray(model(x, training=False))
    found = elsewhere(path, form, x)
    agreement = (found.argmax(1) == expected.argmax(1)).mean()
    apart = np.abs(found - expected).max() / np.abs(expected).max()
    # Between batches of other sizes the last bit differs.
    assert exported.difference == pytest.approx(apart, abs=1e-6) and exported.agreement == agreement
    assert agreement == 1 if form != "tflite_int8" else agreement > 0.9
    assert apart < (1e-5 if form != "tflite_int8" else 0.1)


def test_an_npz_holds_every_variable_and_mask(ticket, tmp_path):
    model, kept, x = ticket
    path = exporting.export(model, kept, tmp_path / "new" / "a.npz", inputs=x).path
    with np.load(path, allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    expected = weights.read_state(model) | {f"mask:{name}": mask for name, mask in kept.items()}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and np.array_equal(found[name], value)


def test_sizes_are_those_of_the_files(exports):
    one = exports("tf_keras", "tflite")
    content = one.path.read_bytes()
    assert one.num_bytes == len(content)
    assert one.num_gzipped == len(gzip.compress(content, 9, mtime=0)) < len(content)
    folder = exports("tf_keras", "saved_model")
    found = [path for path in folder.path.rglob("*") if path.is_file()]
    assert folder.num_bytes == sum(path.stat().st_size for path in found)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in found:
            tar.add(path, path.name)
    assert folder.num_gzipped == pytest.approx(len(gzip.compress(packed.getvalue(), 9)), rel=0.05)


def test_int8_keeps_zeros_and_rounds_the_rest_by_half_a_step(library, ticket, exports):
    model, kept, _ = ticket
    path = exports(library, "tflite_int8").path
    interpreter, state = interpret(path), weights.read_state(model)
    stored = {tuple(one["shape"]): one for one in interpreter.get_tensor_details() if one["dtype"] is np.int8}
    for name, order in {"dense/kernel": (1, 0), "dense_1/kernel": (1, 0), "conv2d/kernel": (3, 0, 1, 2)}.items():
        one, mask = stored[tuple(np.transpose(kept[name], order).shape)], np.transpose(kept[name], order)
        integers = interpreter.get_tensor(one["index"])
        assert integers.dtype == np.int8 and not one["quantization_parameters"]["zero_points"].any()
        assert (integers[~mask] == 0).all() and np.count_nonzero(integers[mask]) > 0.9 * mask.sum()
        step = one["quantization_parameters"]["scales"].reshape(-1, *[1] * (mask.ndim - 1))
        assert (np.abs(integers * step - np.transpose(state[name], order)) <= 0.501 * step).all()


@pytest.mark.parametrize(
    ("density", "blocks"), [(1, None), (0.2, []), (0.02, [1])], ids=["dense", "entry by entry", "in blocks"]
)
def test_sparse_files_decode_to_the_weights(tmp_path, density, blocks):
    import keras

    model = keras.Sequential([keras.layers.InputLayer((160,)), keras.layers.Dense(50)])
    kept = {"dense/kernel": np.random.default_rng(1).random((160, 50)) < density}
    weights.assign(model, masks.apply(weights.read(model), kept))
    plain = exporting.export(model, kept, tmp_path / "plain.tflite")
    sparse = exporting.export(model, kept, tmp_path / "sparse.tflite", "tflite_sparse")
    assert sparse.zeros_checked and plain.difference < 1e-6 and sparse.difference < 1e-6
    details = interpret(sparse.path).get_tensor_details()
    encoded = [one["sparsity_parameters"] for one in details if one["sparsity_parameters"]]
    found = [one.values for one in tflite.opened(sparse.path, model).tensors.values() if one.values.shape == (50, 160)]
    assert any(np.array_equal(one, weights.read(model)["dense/kernel"].T) for one in found)
    if blocks is None:
        assert not encoded and abs(sparse.num_bytes - plain.num_bytes) < 100
    else:
        assert [list(one["block_map"]) for one in encoded] == [blocks]
        assert sparse.num_bytes < 0.5 * plain.num_bytes


def test_blocks_in_two_dimensions_are_decoded(rng):
    dense = np.where(np.kron(rng.random((3, 2)) < 0.5, np.ones((2, 4))) > 0, rng.normal(size=(6, 8)), 0)
    cut = dense.reshape(3, 2, 2, 4).transpose(0, 2, 1, 3)
    rows = [np.flatnonzero(cut[row].any((1, 2))) for row in range(3)]
    encoding = {
        "traversal_order": [0, 1, 2, 3],
        "block_map": [0, 1],
        "dim_metadata": [
            {"format": 0, "dense_size": 3},
            {"format": 1, "array_segments": np.cumsum([0, *map(len, rows)]), "array_indices": np.concatenate(rows)},
            {"format": 0, "dense_size": 2},
            {"format": 0, "dense_size": 4},
        ],
    }
    values = np.concatenate([cut[row][places].ravel() for row, places in enumerate(rows)])
    np.testing.assert_array_equal(tflite.decoded(values, (6, 8), encoding), dense)


# Bugs planted in what is written: each must be found, and the old file must stay.


def planted(monkeypatch, form, name, change):
    """Have a form written from a model in which one weight has been changed."""
    own = exporting.EXPORTS[form]

    def write(model, masks, path, inputs):
        before = weights.read_state(model)
        try:
            weights.assign(model, {name: change(before[name])})
            own.write(model, masks, path, inputs)
        finally:
            weights.assign(model, before)

    monkeypatch.setitem(exporting.EXPORTS, form, own._replace(write=write))


@pytest.mark.parametrize("form", ALL)
def test_a_masked_entry_that_comes_back_is_found(tmp_path, form, monkeypatch):
    model, kept, x = trained("tf_keras" if form in ("tflite_int8", "onnx", "keras") else "keras")
    # Too small for outputs to tell, but in 8 bits, where differences are not bounded.
    leak = 0.3 if form == "tflite_int8" else 1e-9
    place = tuple(np.argwhere(~kept["conv2d_1/kernel"])[5])

    def change(value):
        value = value.copy()
        value[place] = leak
        return value

    planted(monkeypatch, form, "conv2d_1/kernel", change)
    path = target(tmp_path, form)
    with pytest.raises(LotteryError, match=r"1 masked entries of 'conv2d_1/kernel' are not zero in the exported file"):
        exporting.export(model, kept, path, form, x)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["saved_model", "tflite"])
def test_other_outputs_are_found_and_the_old_file_stays(tmp_path, form, exports, monkeypatch):
    model, kept, x = trained("keras")
    first, path = exports("keras", form), target(tmp_path, form)
    (shutil.copytree if first.path.is_dir() else shutil.copy)(first.path, path)
    planted(monkeypatch, form, "dense_1/bias", lambda bias: bias + 1e-2)
    with pytest.raises(LotteryError, match="outputs of the exported .* differ from the outputs of the model"):
        exporting.export(model, kept, path, form, x)
    assert list(tmp_path.iterdir()) == [path]
    np.testing.assert_allclose(elsewhere(path, form, x), np.asarray(model(x, training=False)), atol=1e-4)
    monkeypatch.undo()
    again = exporting.export(model, kept, path, form, x)  # over a file, and over a folder
    assert again.num_bytes == pytest.approx(first.num_bytes, abs=100) and list(tmp_path.iterdir()) == [path]


def with_outputs(monkeypatch, file, outputs):
    """Have a file of 8 bits written as it is elsewhere, and compute something else when it is opened."""
    own = exporting.EXPORTS["tflite_int8"]

    def write(model, masks, path, inputs):
        shutil.copy(file, path)

    def opened(path, model):
        return own.opened(path, model)._replace(outputs=outputs)

    monkeypatch.setitem(exporting.EXPORTS, "tflite_int8", own._replace(write=write, opened=opened))


def test_integers_that_are_not_numbers_are_found(tmp_path, exports, monkeypatch):
    model, kept, x = trained("keras")
    file = exports("keras", "tflite_int8").path
    with_outputs(monkeypatch, file, lambda inputs: np.full((len(inputs), 10), np.nan))
    with pytest.raises(LotteryError, match="the limit is any finite difference"):
        exporting.export(model, kept, tmp_path / "a.tflite", "tflite_int8", x)


def test_difference_and_agreement_are_those_of_the_outputs(tmp_path, exports, monkeypatch):
    model, kept, x = trained("keras")
    expected = np.asarray(model(x, training=False))
    other = np.concatenate([-expected[:15], expected[15:]])
    with_outputs(monkeypatch, exports("keras", "tflite_int8").path, lambda inputs: other)
    exported = exporting.export(model, kept, tmp_path / "a.tflite", "tflite_int8", x)
    assert exported.agreement == 0.75
    assert exported.difference == pytest.approx(2 * np.abs(expected[:15]).max() / np.abs(expected).max())


@pytest.mark.parametrize(("model", "other"), [
    ([0.9, 0.2, 0.6, 0.4], [0.8, 0.1, 0.4, 0.3]),  # probabilities: the third is on the other side of a half
    ([2.0, -1.0, 0.3, -0.2], [1.0, -2.0, -0.1, -0.3]),  # logits: of zero
])  # fmt: skip
def test_an_output_of_one_entry_has_two_classes(model, other):
    assert exporting._agreement([np.array(model)[:, None]], [np.array(other)[:, None]]) == 0.75
    assert exporting._agreement([np.array(model)], [np.array(model)]) == 1


def test_weights_are_found_by_their_kept_values(rng):
    weight = np.where(rng.random((3, 3, 4, 10)) < 0.4, rng.normal(size=(3, 3, 4, 10)), 0)
    kept = {"w": weight != 0}
    scaled = weight * rng.uniform(-2, 2, 10)
    step = np.abs(scaled).max((0, 1, 2)) / 127
    rounded = np.round(scaled / step) * step
    other = Stored(rng.normal(size=(10, 3, 3, 4)))

    def seen(*stored):
        tensors = {str(index): one for index, one in enumerate((other, *stored))}
        return are_held(Opened(lambda inputs: inputs, tensors, named=False), {"w": weight}, kept, {})

    layouts = {
        "as it is": (lambda value: value, weight, 0.0),
        "transposed": (lambda value: value.transpose(3, 2, 0, 1), scaled, 0.0),
        "merged": (lambda value: value.reshape(36, 10).T, scaled, 0.0),
        "in integers": (lambda value: value.transpose(3, 0, 1, 2), rounded, step.reshape(-1, 1, 1, 1)),
    }
    leak = np.zeros(weight.shape)
    leak[tuple(np.argwhere(~kept["w"])[3])] = 0.1
    for lay_out, values, distance in layouts.values():
        assert seen(Stored(lay_out(values), distance))
        with pytest.raises(LotteryError, match="1 masked entries of 'w'"):
            seen(Stored(lay_out(values + leak), distance))
    assert not seen()  # another tensor of the same shape is not taken for it
    assert not seen(Stored(np.where(kept["w"], 0.0, 1.0)))  # follows it with a scale of zero, as any weight
    assert not seen(Stored(scaled[..., :5]), Stored(scaled[..., 5:]))  # taken apart
    with pytest.raises(LotteryError, match="'w' is not in the exported file"):
        are_held(Opened(lambda inputs: inputs, {"v": Stored(weight)}, named=True), {"w": weight}, kept, {})


# What is in the files of Keras and tfmot


def test_a_keras_file_holds_no_more_than_the_network(ticket, tmp_path):
    model, kept, x = ticket
    with enforcement.constraint(model, kept):
        path = exporting.export(model, kept, tmp_path / "a.keras", inputs=x).path
    with zipfile.ZipFile(path) as archive:
        config = archive.read("config.json").decode()
        num_bytes = len(archive.read("model.weights.h5"))
    layers = json.loads(config)["config"]["layers"]
    assert "lottery" not in config and not any(one["config"].get("kernel_constraint") for one in layers)
    assert not json.loads(config).get("compile_config")
    # Without the two slots of Adam, which would triple it; HDF5 itself takes some kB a layer.
    assert num_bytes < 4 * sum(value.size for value in weights.read_state(model).values()) + 40_000


def test_a_fresh_process_needs_no_lottery(tmp_path, exports, wrapped):
    for library in LIBRARIES:
        model, _, x = trained(library)
        shutil.copy(exports(library, "keras").path, tmp_path / f"{library}.keras")
        np.savez(tmp_path / f"{library}.npz", x=x, y=np.asarray(model(x, training=False)))
    shutil.copy(wrapped.path, tmp_path / "wrapped.keras")
    code = """
import sys, numpy as np
import keras
def check(model, name):
    with np.load(name) as data:
        np.testing.assert_allclose(model(data["x"], training=False), data["y"], atol=1e-5)
check(keras.models.load_model("keras.keras"), "keras.npz")
assert not {"lottery", "tensorflow_model_optimization"} & set(sys.modules)
import tf_keras
check(tf_keras.models.load_model("tf_keras.keras"), "tf_keras.npz")
import tensorflow_model_optimization as tfmot
with tfmot.sparsity.keras.prune_scope():
    check(tf_keras.models.load_model("wrapped.keras"), "tf_keras.npz")
assert "lottery" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=1800)


def test_tfmot_takes_no_model_of_keras_3(tmp_path):
    model, kept, x = trained("keras")
    with pytest.raises(LotteryError, match="tfmot wraps tf_keras models only"):
        exporting.export(model, kept, tmp_path / "a.keras", "tfmot", x)
    assert not list(tmp_path.iterdir())


def test_masks_in_tfmots_file_are_never_recomputed(tmp_path, wrapped):
    model, kept, x = trained("tf_keras")
    with pytest.raises(LotteryError, match="in a layer of type DepthwiseConv2D it prunes nothing"):
        exporting.export(model, kept, tmp_path / "a.keras", "tfmot", x)
    kept = without_depthwise(kept)
    assert wrapped.zeros_checked
    assert not any("get_prunable_weights" in vars(layer) for layer in model.layers)  # which wrappers give to layers

    import tensorflow_model_optimization as theirs
    import tf_keras

    with theirs.sparsity.keras.prune_scope():
        loaded: Any = tf_keras.models.load_model(wrapped.path)
    loaded.compile(tf_keras.optimizers.Adam(0.01), tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, labels = digits()
    loaded.fit(x[:400], labels[:400], batch_size=40, verbose=0)
    found = tfmot.read_masks(loaded)
    assert found.keys() == kept.keys() and all(np.array_equal(found[name], kept[name]) for name in kept)
    state = weights.read_state(model)
    assert not np.array_equal(weights.read_state(loaded)["dense/kernel"], state["dense/kernel"])
    with pytest.raises(LotteryError, match="is wrapped by tfmot, so 'keras' could not be loaded without tfmot"):
        exporting.export(loaded, {}, tmp_path / "b.keras", inputs=x)


@pytest.mark.parametrize("library", LIBRARIES)
def test_models_of_several_inputs_and_outputs(tmp_path, library):
    keras = importlib.import_module(library)
    layers = keras.layers
    one, two = layers.Input((5,), name="one"), layers.Input((7,), name="two")
    x = layers.Concatenate()([one, two])
    model = keras.Model({"one": one, "two": two}, {"out": layers.Dense(4)(x), "side": layers.Dense(2)(x)})
    kept = one_shot.prune(model, sparsity=0.5)
    weights.assign(model, masks.apply(weights.read(model), kept))
    for form in ("keras", "saved_model", "npz"):
        exported = exporting.export(model, kept, target(tmp_path, form), form)  # on random inputs
        assert exported.zeros_checked and exported.difference < 1e-6 and exported.agreement == 1
    with pytest.raises(LotteryError, match="has 2 inputs, and the form 'tflite' takes"):
        exporting.export(model, kept, tmp_path / "a.tflite")


# What is refused


@pytest.fixture(scope="module")
def small():
    import keras

    model = keras.Sequential([keras.layers.InputLayer((6,)), keras.layers.Dense(4)])
    kept = {"dense/kernel": np.arange(24).reshape(6, 4) % 2 == 0}
    weights.assign(model, masks.apply(weights.read(model), kept))
    return model, kept


@pytest.mark.parametrize("form", ["saved_model", "tflite", pytest.param("onnx", marks=NEEDS_ONNX)])
def test_examples_without_the_last_axis_of_the_model_are_taken_as_keras_takes_them(tmp_path, library, form, rng):
    """As images in grey, which data sets have without channels."""
    keras = pytest.importorskip(library)
    model = keras.Sequential([keras.layers.InputLayer((4, 4, 1)), keras.layers.Conv2D(2, 3), keras.layers.Flatten()])
    path = tmp_path / exporting.EXPORTS[form].file
    exported = exporting.export(model, masks.ones_like(weights.read(model)), path, form, rng.normal(size=(5, 4, 4)))
    assert exported.difference < 1e-5
    for shape, taken in (((5, 4, 4), (5, 4, 4, 1)), ((5, 4, 4, 1, 1), (5, 4, 4, 1)), ((5, 4), (5, 4))):
        assert outputs.as_taken(np.ones(shape), model.inputs[0]).shape == taken


@NEEDS_ONNX
def test_constants_that_would_become_inputs_are_named(tmp_path):
    import keras

    normalise = keras.layers.Normalization(mean=1.0, variance=2.0)
    model = keras.Sequential([keras.Input((3,)), normalise, keras.layers.Dense(2)])
    with pytest.raises(
        LotteryError, match="into additional inputs: '.*normalization.*'. .The layer Normalization of Keras 3"
    ):
        exporting.export(model, masks.ones_like(weights.read(model)), tmp_path / "a.onnx")


@pytest.mark.parametrize(
    ("path", "form", "inputs", "message"),
    [
        ("a.kears", None, None, "Did you mean '.keras'"),
        ("a.tflite", "tflite_sprase", None, "Did you mean 'tflite_sparse'"),
        ("a.tflite", "npz", None, r"is written to a file \*\.npz"),
        ("folder", None, None, "is there already, and is not a SavedModel"),
        ("folder.npz", None, None, "is there already, and is not a file"),
        ("file", None, None, "is there already, and is not a SavedModel"),
        ("file/a.npz", None, None, "cannot be written"),
        ("a.tflite", "tflite_int8", None, "needs inputs, real examples"),
        ("a.npz", None, np.zeros((0, 6), np.float32), "are empty, so there is nothing to compare"),
        ("a.npz", None, np.zeros((3, 5), np.float32), "fails on the inputs"),
    ],
)
def test_paths_and_inputs_that_do_not_fit_are_refused(small, tmp_path, path, form, inputs, message):
    for name in ("folder", "folder.npz"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    (tmp_path / "file").touch()
    with pytest.raises(LotteryError, match=message) as caught:
        exporting.export(small[0], small[1], tmp_path / path, form, inputs)
    assert "\n" not in str(caught.value)
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["file", "folder", "folder.npz", "mine", "mine"]


def test_a_ticket_that_is_not_sparse_is_refused(small, tmp_path):
    model, kept = small
    with pytest.raises(LotteryError, match=r"12 masked entries of 'dense/kernel' are not zero in the model"):
        exporting.export(model, {"dense/kernel": ~kept["dense/kernel"]}, tmp_path / "a.npz")
    with pytest.raises(LotteryError, match="Did you mean 'dense/kernel'"):
        exporting.export(model, {"dense/kernels": kept["dense/kernel"]}, tmp_path / "a.npz")
    assert not list(tmp_path.iterdir())


def test_a_converter_that_fails_is_one_sentence(small, tmp_path, monkeypatch, capfd):
    import tensorflow as tf

    def convert(self):
        print("chatter")
        raise RuntimeError("no such operation\nwith a long trace")

    monkeypatch.setattr(
        tf.lite.TFLiteConverter, "from_keras_model", lambda model: type("C", (), {"convert": convert})()
    )
    with pytest.raises(LotteryError, match=r"cannot be exported as 'tflite': no such operation$"):
        exporting.export(small[0], small[1], tmp_path / "a.tflite")
    assert not list(tmp_path.iterdir()) and capfd.readouterr() == ("", "")


def test_a_model_without_finite_outputs_is_refused(small, tmp_path, monkeypatch):
    model, kept = small
    monkeypatch.setitem(exporting.EXPORTS, "npz", exporting.EXPORTS["npz"]._replace(write=pytest.fail))
    before = weights.read_state(model)
    try:
        weights.assign(model, {"dense/bias": np.full(4, np.nan, "float32")})
        with pytest.raises(LotteryError, match="outputs of the model .* are NaN or infinite, so there is nothing to"):
            exporting.export(model, kept, tmp_path / "a.npz")
        monkeypatch.undo()
        weights.assign(model, {"dense/bias": np.array([0, np.nan, 0, np.inf], "float32")})
        exported = exporting.export(model, kept, tmp_path / "a.npz")  # what is not finite is the same there
        assert exported.difference == 0
        planted(monkeypatch, "npz", "dense/bias", lambda bias: np.nan_to_num(bias, posinf=np.inf))
        with pytest.raises(LotteryError, match="differ from the outputs of the model .* by inf of the largest"):
            exporting.export(model, kept, tmp_path / "a.npz")
    finally:
        weights.assign(model, before)


def lowest_free():
    number = os.open(os.devnull, os.O_RDONLY)
    os.close(number)
    return number


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2), (0, 1, 2), ()], ids=str)
def test_descriptors_and_streams_may_be_closed(small, tmp_path, closed, monkeypatch):
    """As after `>&-` or `2>&-`; those that are open go where they went before."""
    own = exporting.EXPORTS["npz"]

    def write(model, masks, path, inputs):
        for number in (1, 2):
            os.write(number, b"chatter")
        print("chatter", file=sys.stderr)
        own.write(model, masks, path, inputs)

    monkeypatch.setitem(exporting.EXPORTS, "npz", own._replace(write=write))
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    goes = {number: tmp_path / str(number) for number in (0, 1, 2)}
    saved = {number: fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10) for number in goes}
    lowest = lowest_free()
    states = {}
    try:
        for number, path in goes.items():
            with path.open("wb") as file:
                os.dup2(file.fileno(), number)
        for number in closed:
            os.close(number)
        exported = exporting.export(small[0], small[1], tmp_path / "a.npz")
        for number in goes:
            try:
                states[number] = os.fstat(number).st_ino
            except OSError:
                states[number] = None
    finally:
        for number, copy in saved.items():
            os.dup2(copy, number)
    assert lowest_free() == lowest  # nothing stays open
    for copy in saved.values():
        os.close(copy)
    assert states == {number: None if number in closed else path.stat().st_ino for number, path in goes.items()}
    assert not any(path.read_bytes() for path in goes.values())
    assert exported.difference == 0 and zipfile.is_zipfile(exported.path)


def test_onnx_says_what_to_install(small, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tf2onnx" else find(name))
    with pytest.raises(LotteryError, match=r"needs .*tf2onnx.*; install .*lottery\[onnx\]"):
        exporting.export(small[0], small[1], tmp_path / "a.onnx")


def half_masked(model, rng):
    kept = {name: rng.random(value.shape) < 0.5 for name, value in weights.read(model).items()}
    weights.assign(model, masks.apply(weights.read(model), kept))
    return kept


@pytest.mark.parametrize(
    ("library", "kind", "settings"),
    [
        ("keras", "LSTM", {}),
        ("tf_keras", "LSTM", {"unroll": True}),
        pytest.param("tf_keras", "GRU", {}, marks=pytest.mark.long),
    ],
)
def test_a_network_that_loops_over_steps_becomes_a_file_for_one_example(tmp_path, rng, library, kind, settings):
    keras = importlib.import_module(library)
    layers = keras.layers
    model = keras.Sequential([layers.InputLayer((5, 2)), getattr(layers, kind)(4, **settings), layers.Dense(3)])
    x, path = rng.normal(size=(7, 5, 2)).astype(np.float32), tmp_path / "t.tflite"
    done = exporting.export(model, half_masked(model, rng), path, inputs=x)
    assert done.difference <= 1e-5
    np.testing.assert_allclose(elsewhere(path, "tflite", x), model.predict(x, verbose=0), atol=1e-5)


@pytest.mark.parametrize("batch", [None, 4])
def test_a_loop_is_not_converted_to_integers_which_would_end_the_process(tmp_path, rng, library, batch):
    keras = importlib.import_module(library)
    x = rng.normal(size=(7, 5, 2)).astype(np.float32)
    for unroll in (False, True):
        layers = (keras.layers.GRU(4, unroll=unroll), keras.layers.Dense(3))
        model = keras.Sequential([keras.Input((5, 2), batch_size=batch), *layers])
        kept = half_masked(model, rng)
        if unroll:
            exporting.export(model, kept, tmp_path / "t.tflite", "tflite_int8", x)
            continue
        with pytest.raises(LotteryError, match="loops over steps, .* build its recurrent layers with unroll=True"):
            exporting.export(model, kept, tmp_path / "t.tflite", "tflite_int8", x)


def test_an_lstm_that_would_remember_the_last_example_is_refused(tmp_path, rng):
    """TFLite has an operation for the LSTM of tf_keras, which keeps its state until it is reset."""
    import tf_keras

    layers = tf_keras.layers
    model = tf_keras.Sequential([layers.InputLayer((5, 2)), layers.Bidirectional(layers.LSTM(4)), layers.Dense(3)])
    with pytest.raises(LotteryError, match="forward_lstm.*keeps from one call to the next; build it with unroll=True"):
        exporting.export(model, half_masked(model, rng), tmp_path / "t.tflite")


@pytest.mark.parametrize("library", LIBRARIES)
def test_models_of_a_fixed_batch_are_compared_in_batches_of_it(tmp_path, rng, library):
    keras = importlib.import_module(library)
    inputs = keras.Input(batch_shape=(4, 6))
    # Of any other number of examples, the network cannot make its own batch.
    fixed = keras.layers.Reshape((8,))(keras.layers.Dense(8, "relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(3)(fixed))
    kept, x = half_masked(model, rng), rng.normal(size=(7, 6)).astype(np.float32)
    for form in ("keras", "saved_model", "npz", "tflite"):
        for given in (x, None):
            assert exporting.export(model, kept, target(tmp_path, form), form, given).difference <= 1e-5
    exporting.export(model, kept, tmp_path / "int8.tflite", "tflite_int8", x)


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.long)])
def test_a_stateful_model_is_compared_from_its_first_state(tmp_path, rng, library):
    keras = importlib.import_module(library)
    inputs = keras.Input(batch_shape=(4, 5, 2))
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.GRU(4, stateful=True)(inputs)))
    kept, x = half_masked(model, rng), rng.normal(size=(11, 5, 2)).astype(np.float32)
    for form in ("keras", "saved_model", "npz"):
        assert exporting.export(model, kept, target(tmp_path, form), form, x).difference <= 1e-5
    with pytest.raises(LotteryError, match="keeps a state between batches.*stateful=False"):
        exporting.export(model, kept, tmp_path / "t.tflite", inputs=x)


def test_what_half_precision_rounds_off_is_no_difference(tmp_path, rng):
    import keras

    half = [keras.layers.Dense(8, "relu", dtype="mixed_bfloat16") for _ in range(2)]
    model = keras.Sequential([keras.Input((6,)), *half, keras.layers.Dense(3, dtype="float32")])
    kept = half_masked(model, rng)
    assert exporting.export(model, kept, tmp_path / "model", "saved_model").difference <= 0.05
    with pytest.raises(LotteryError, match=r"operations that TFLite does not have \(.*MatMul.*float32") as caught:
        exporting.export(model, kept, tmp_path / "t.tflite")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
