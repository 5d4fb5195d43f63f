"""Digests of what a traced step computes: observed, not read off the objects behind it.

A graph of TensorFlow has every operation of a step, with the values of whatever its Python code closes over. So two
models with the same graphs, variables and initial weights are the same experiment, however they were written.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from typing import Any

import numpy as np

from lottery import weights
from lottery.models.kerases import operations

# Operations that change no number; their texts have names of layers, which Keras numbers anew in each process.
_SILENT = {"Assert", "Print", "PrintV2"}
# Attributes that name something of one process; those that begin with "_" are TensorFlow's own hints.
_OF_A_PROCESS = {"token", "shared_name", "container", "debug_name", "config", "config_proto", "executor_type"}
# Sums of gradients, whose order depends on numbers that count a process's tensors.
_ANY_ORDER = {"AddN"}


def of_parts(*parts: Any) -> str:
    """Compute a digest of values that JSON holds: sixteen hexadecimal digits."""
    return _digest(json.dumps(parts, sort_keys=True))[:16]


def of_variables(model: Any) -> list[Any]:
    """Describe the variables of a model: names, types, shapes, and which are trained and pruned."""
    trained = {id(value) for value in model.trainable_variables}
    described = {
        name: [str(value.dtype), list(value.shape), id(value) in trained]
        for name, value in weights.variables(model).items()
    }
    return [described, list(weights.prunable(model))]


def of_step(model: Any, step: Any, masks: Mapping[str, Any] | None = None) -> str:
    """Compute a digest of a traced step of a model, a ``ConcreteFunction``.

    Variables of the model count by name, and those of its metrics by place; all other variables, such as those of the
    optimizer, and constants count by their values. Names of operations do not count.

    Args:
        model: The model.
        step: Its step, traced on an example; not called yet.
        masks: The variables of its masks, by the name of the weight, where the step enforces them.
    """
    of_metrics = [variable for metric in model.metrics for variable in metric.variables]
    named = list(weights.variables(model).items())
    named += [(f"metric {place}", variable) for place, variable in enumerate(of_metrics)]
    named += [(f"mask of {name}", mask) for name, mask in (masks or {}).items()]
    # By handle, for a graph captures the handles of variables, and not the variables.
    names = {id(part.handle): name for name, variable in named for part in weights.components(variable)}
    leaves = _leaves(step.graph, names)
    definition = step.graph.as_graph_def()
    functions = _Functions({function.signature.name: function for function in definition.library.function})
    nodes = functions.of_nodes(definition.node, leaves)
    logs, tensors = step.structured_outputs, step.graph.outputs
    # A graph returns the values of a dict in the order of its sorted keys.
    keys = sorted(logs) if isinstance(logs, dict) and len(logs) == len(tensors) else range(len(tensors))
    # Metrics without a name of their own are numbered by Keras.
    outputs = [
        _digest(_unnumbered(key), nodes[tensor.op.name], tensor.value_index)
        for key, tensor in zip(keys, tensors, strict=True)
    ]
    effects = {nodes[operation.name] for operation in step.graph.control_outputs}
    return _digest(*sorted(outputs), *sorted(effects - {""}))


def is_opaque(step: Any) -> bool:
    """Check if a traced step has parts that its graph does not show: calls of Python, or tables of values."""
    known = {id(variable.handle) for variable in step.graph.variables}
    unseen = (tensor for tensor, _ in step.graph.captures if tensor.dtype.name in ("resource", "variant"))
    return any(id(tensor) not in known for tensor in unseen) or any("PyFunc" in name for name in operations(step))


def _leaves(graph: Any, names: Mapping[int, str]) -> dict[str, str]:
    """Compute digests of what a graph takes, inputs and captured tensors; variables by handle have `names`."""
    captured = {id(inner) for _, inner in graph.captures}
    own = [tensor for tensor in graph.inputs if id(tensor) not in captured]
    variables = {id(variable.handle): variable for variable in graph.variables}
    inputs = {
        tensor.op.name: _digest("input", place, tensor.dtype.name, tensor.shape) for place, tensor in enumerate(own)
    }
    return inputs | {inner.op.name: _captured(tensor, names, variables) for tensor, inner in graph.captures}


def _captured(tensor: Any, names: Mapping[int, str], variables: Mapping[int, Any]) -> str:
    if id(tensor) in names:
        return _digest("variable", names[id(tensor)])
    if id(tensor) in variables:
        tensor = variables[id(tensor)]
    elif tensor.dtype.name in ("resource", "variant"):
        return _digest("unseen", tensor.dtype.name)
    value = np.asarray(tensor.numpy())
    # Strings of TensorFlow are objects to NumPy, whose bytes would be addresses in memory.
    content = value.tobytes() if value.dtype != object else repr(value.tolist()).encode()
    return _digest("value", value.dtype.str, value.shape, hashlib.sha256(content).hexdigest())


class _Functions:
    """Digests of the functions in a graph's library, each computed once."""

    def __init__(self, library: Mapping[str, Any]) -> None:
        self._library = library
        self._digests: dict[str, str] = {}

    def of_nodes(self, nodes: Iterable[Any], leaves: Mapping[str, str]) -> dict[str, str]:
        """Compute a digest of each node from its operation and the digests of its inputs; `leaves` have one already."""
        by_name, digests = {node.name: node for node in nodes}, dict(leaves)
        before = {name: map(_source, node.input) for name, node in by_name.items() if name not in leaves}
        for name in TopologicalSorter(before).static_order():
            if name not in digests:
                digests[name] = self._of_node(by_name[name], digests)
        return digests

    def _of_node(self, node: Any, digests: Mapping[str, str]) -> str:
        if node.op in _SILENT:
            return ""
        attributes = [
            (key, self._of_attribute(node.attr[key]))
            for key in sorted(node.attr)
            if not key.startswith("_") and key not in _OF_A_PROCESS
        ]
        # An input that begins with ^ only comes before: it is not a value.
        inputs = [_input(text, digests) for text in node.input if not text.startswith("^")]
        if node.op in _ANY_ORDER:
            inputs.sort()
        before = {digests[_source(text)] for text in node.input if text.startswith("^")} - {""}
        return _digest(node.op, attributes, inputs, sorted(before))

    def _of_attribute(self, value: Any) -> Any:
        if value.HasField("func"):
            return self._of_function(value.func.name)
        if value.list.func:
            return [self._of_function(function.name) for function in value.list.func]
        # By default the entries of a map may be written in any order.
        return hashlib.sha256(value.SerializeToString(deterministic=True)).hexdigest()

    def _of_function(self, name: str) -> str:
        if name not in self._digests:
            function = self._library[name]
            arguments = enumerate(function.signature.input_arg)
            nodes = self.of_nodes(
                function.node_def, {argument.name: _digest("argument", place) for place, argument in arguments}
            )
            outputs = [_input(function.ret[result.name], nodes) for result in function.signature.output_arg]
            effects = {nodes[_source(text)] for text in function.control_ret.values()} - {""}
            self._digests[name] = _digest(outputs, sorted(effects))
        return self._digests[name]


def _input(text: str, digests: Mapping[str, str]) -> tuple[str, str]:
    """Return the digest of the node that an input comes from, and which of its outputs it is."""
    return digests[_source(text)], text.partition(":")[2]


def _source(text: str) -> str:
    """Return the name of the node that an input such as ``^name`` or ``name:out:0`` comes from."""
    return text.removeprefix("^").partition(":")[0]


def _unnumbered(key: str | int) -> str | int:
    """Return the name of a metric without its numbers; a place stays."""
    if isinstance(key, int):
        return key
    return "_".join(word for word in key.split("_") if not word.isdigit())


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
