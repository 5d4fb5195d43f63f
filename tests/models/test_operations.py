"""Operations in a network's description: Keras' own are built again, and whatever else a stranger may write is refused."""

import importlib
import inspect
import json

import numpy as np
import pytest

from lottery import tickets, weights
from lottery.errors import TicketError
from lottery.models import architecture
from tests.scripts.fuzz_tickets import functional, layer, said_well
from tests.test_zoo import ARCHITECTURES

EXPECTED = {"dense/kernel": (4, 2), "dense/bias": (2,)}
OF_TENSORFLOW = "tf_keras.src.layers.core.tf_op_layer"


def described(name, library):
    model = ARCHITECTURES[name].build(importlib.import_module(library))
    return model, architecture.describe(model)


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("residual", "keras"), ("residual", "tf_keras"), ("sliced", "keras"), ("sliced", "tf_keras"),
        ("operations", "keras"), ("operations of TensorFlow", "tf_keras"), ("constant array", "keras"),
        ("masked lstm", "keras"),
    ],
)  # fmt: skip
def test_a_ticket_builds_a_graph_with_operations(name, library):
    model, about = described(name, library)
    kept = {key: np.random.default_rng(1).random(value.shape) < 0.5 for key, value in weights.read(model).items()}
    ticket = tickets.of(model, kept)
    assert "keras" in ticket.architecture, ticket.architecture
    ticket.apply(model)
    shape = (7, *model.inputs[0].shape[1:])
    x = (
        np.random.default_rng(2).integers(0, 12, shape)
        if name == "masked lstm"
        else np.random.default_rng(2).normal(size=shape)
    )
    x = x.astype(np.float32)
    np.testing.assert_allclose(ticket.model()(x), model(x), rtol=1e-6)


def test_a_large_constant_is_not_part_of_a_ticket():
    import keras

    x = keras.Input((500,))
    model = keras.Model(x, keras.layers.Dense(2)(keras.ops.matmul(x, np.random.default_rng(0).normal(size=(500, 300)))))
    ticket = tickets.of(model, {"dense/kernel": np.ones((300, 2), bool)})
    with pytest.raises(
        TicketError, match=r"Its configuration has [\d,]+ bytes, more than the limit of 2,000,000"
    ) as caught:
        ticket.model()
    assert said_well(caught.value)


def test_every_name_is_an_operation_without_functions():
    from tensorflow.python.util import tf_export

    for module, names in architecture.KERAS_OPERATIONS.items():
        for name in names:
            of_keras = vars(importlib.import_module(module))[name]
            taken = {*inspect.signature(of_keras.__init__).parameters, *inspect.signature(of_keras.call).parameters}
            assert issubclass(of_keras, importlib.import_module("keras").Operation)
            assert not taken & {"function", "fn", "f", "fun", "body", "cond", "body_fun", "elems", "true_fn"}, name
    importlib.import_module("tf_keras")
    assert [name for name in architecture.TENSORFLOW_OPERATIONS if tf_export.get_symbol_from_name(name) is None] == []
    taken = {
        name: inspect.signature(tf_export.get_symbol_from_name(name)).parameters
        for name in architecture.TENSORFLOW_OPERATIONS
    }
    assert [name for name, of in taken.items() if {"func", "fn", "filename", "f"} & {*of}] == []


def attacks(library):
    """By what they try: what may be in the place of an operation that is let in, and what the refusal says."""

    def graph(operation):
        x = {"batch_shape" if library == "keras" else "batch_input_shape": [None, 4], "dtype": "float32", "name": "x"}
        parts = {"x": (layer("InputLayer", **x),), "it": (operation, ("x", 0, {}))}
        return functional(library, "f", {**parts, "dense": (layer("Dense", units=2), ("it", 0, {}))}, "dense")

    def of(name, /, module="numpy", **config):
        if library == "keras":
            return layer(name, f"keras.src.ops.{module}", **config)
        return layer("TFOpLambda", OF_TENSORFLOW, function=name, **config)

    if library == "keras":
        texts = graph(of("Add"))
        array = {"class_name": "__numpy__", "config": {"value": ["a"], "dtype": "U999999999"}}
        texts["config"]["layers"][1]["inbound_nodes"][0]["args"].append(array)
        return {
            "nothing wrong": (graph(of("Negative")), None),
            "map": (graph(of("Map", "core")), "Map of"),
            "loop": (graph(of("WhileLoop", "core", cond="a", body="b")), "WhileLoop of"),
            "made of nothing": (graph(of("Full", shape=[10**9])), "Full of"),
            "no operation": (graph(of("np")), "np of"),
            "function of the module": (graph(of("keras_export")), "keras_export of"),
            "other module": (graph(layer("Function", "keras.src.ops.function")), "Function of"),
            "activation": (
                graph(layer("Dense", units=4, activation={**of("Negative"), "inbound_nodes": []})),
                "an operation as 'activation'",
            ),
            "odd module": (graph(layer("Dense", units=4, name="it", bias_regularizer=layer("L2", []))), "'L2' of"),
            "text": (texts, "another type than numbers"),
            "of tf_keras": (graph(layer("TFOpLambda", OF_TENSORFLOW, function="math.add")), "TFOpLambda of"),
        }
    return {
        "nothing wrong": (graph(of("math.negative")), None),
        "files": (graph(of("io.read_file")), "io.read_file of"),
        "code": (graph(of("numpy_function")), "numpy_function of"),
        "raw": (graph(of("raw_ops.WriteFile")), "raw_ops.WriteFile of"),
        "no text": (graph(of(["math.add"])), "of tf_keras"),
        "class method": (graph(layer("ClassMethod", OF_TENSORFLOW, cls_symbol="a", method_name="b")), "None of"),
        "odd module": (graph(layer("Dense", units=4, name="it", bias_regularizer=layer("L2", []))), "'L2' of"),
        "of Keras 3": (graph(layer("Add", "keras.src.ops.numpy")), "None of"),
    }


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_other_operations_and_calls_are_refused(library):
    for name, (config, why) in attacks(library).items():
        about = json.loads(json.dumps({"library": library, "keras": config}))
        if why is None:
            architecture.build(about, EXPECTED)
            continue
        with pytest.raises(TicketError, match=why) as caught:
            architecture.build(about, EXPECTED)
        assert said_well(caught.value), name
