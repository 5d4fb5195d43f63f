"""The reader of a Keras graph, and the table of layers."""

import importlib

import pytest

from lottery.models import architecture, graph, kerases, multiply_adds


@pytest.fixture(params=kerases.LIBRARIES)
def keras(request):
    return importlib.import_module(request.param)


def test_every_name_is_a_layer_and_every_rule_is_known():
    libraries = [importlib.import_module(name) for name in kerases.LIBRARIES]
    missing = [name for name in graph.LAYERS if not any(hasattr(library.layers, name) for library in libraries)]
    assert missing == ["GroupedQueryAttention"]  # which Keras exports as GroupQueryAttention
    rules = {facts.multiplied for facts in graph.LAYERS.values()}
    assert rules == {"", *multiply_adds._RULES, *multiply_adds._MADE_BY_WRAPPERS}


def test_calls_come_after_what_they_need(keras):
    layers = keras.layers
    x = keras.Input((4,), name="x")
    shared = layers.Dense(4, name="shared")
    both = layers.Add(name="sum")([shared(x), shared(shared(x))])
    inner = keras.Sequential([layers.InputLayer((4,)), layers.Dense(2, "softmax", name="last")], name="inner")
    model = keras.Model(x, [inner(both), layers.Dropout(0.5, name="drop")(both, training=True)])
    calls = graph.calls(model)
    names = [call.layer.name for call in calls]
    assert sorted(names) == ["drop", "inner", "shared", "shared", "shared", "sum", "x"]
    made = set()
    for call in calls:
        assert {id(tensor) for tensor in call.inputs} <= made
        made |= {id(tensor) for tensor in call.outputs}
    by_name = dict(zip(names, calls, strict=True))
    assert len(by_name["sum"].inputs) == 2 and graph.shapes(by_name["inner"].outputs) == [(None, 2)]
    assert by_name["drop"].arguments["training"] is True
    assert [layer.name for layer in graph.last_layers(model)] == ["last", "drop"]
    assert [graph.is_squashing(layer) for layer in graph.last_layers(model)] == [True, False]
    assert graph.is_plain(model) and graph.is_graph(inner) and not graph.is_graph(shared)


def test_a_class_that_derives_from_keras_has_no_name_but_may_inherit_one(keras):
    class Same(keras.layers.Dense):
        pass

    class Other(keras.layers.Dense):
        def call(self, inputs):
            return 2 * super().call(inputs)

    assert graph.class_name(keras.layers.Dense(2)) == graph.inherited_name(keras.layers.Dense(2)) == "Dense"
    assert (graph.class_name(Same(2)), graph.inherited_name(Same(2))) == ("", "Dense")
    assert (graph.class_name(Other(2)), graph.inherited_name(Other(2))) == ("", "")


def test_a_layer_acts_entry_by_entry_as_an_activation_if_it_is_of_kerass_own_class(keras):
    class ReLU(keras.layers.Layer):
        def call(self, x):
            return x[..., ::-1]

    class Derived(keras.layers.LeakyReLU):
        pass

    known = (None, keras.layers.ReLU(), keras.layers.LeakyReLU(), keras.layers.ELU())
    assert all(graph.is_entrywise(activation, keras) for activation in known)
    assert not any(graph.is_entrywise(activation, keras) for activation in (ReLU(), Derived(), keras.layers.PReLU()))


def test_layers_of_a_stored_architecture(keras):
    model = keras.Sequential([keras.layers.InputLayer((4,)), keras.layers.Dense(2, name="own")])
    found = graph.described_layers(architecture.describe(model))
    assert [layer.name for layer in found] == ["InputLayer", "Dense"] and found[1].settings["name"] == "own"
    assert graph.described_layers({"library": "keras", "name": "conv_2"}) == []
