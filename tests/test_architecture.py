"""The house: which room may import which, and which rooms are free of TensorFlow."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lottery

FOLDER = Path(lottery.__file__).parent
HEAVY = ("tensorflow", "keras", "tf_keras", "tensorflow_model_optimization")

# A room may import those named, and what they may import; modules beside the folders are rooms of one file.
BESIDE = {
    "errors",
    "formatting",
    "text_tables",
    "masks",
    "weights",
    "data",
    "datasets",
    "streamed_data",
    "files",
    "progress",
    "randomness",
    "settings",
    "interrupts",
}
MAY_IMPORT = {
    "models": BESIDE,
    "sparse": {"models"},
    "training": {"sparse"},
    "pruning": {"models"},
    "enforcement": {"models"},
    "config": {"data", "models", "training", "pruning", "enforcement"},
    "runs": {"pruning", "config"},
    "statistics": {"runs"},
    "executors": {"runs"},
    "figures": {"statistics"},
    "analysis": {"figures", "models"},
    "plots": {"analysis"},
    "tickets": {"enforcement", "models", "statistics"},
    "report": {"analysis", "plots"},
    "pipeline": {"training", "pruning", "enforcement", "executors", "statistics"},
    "api": {"pipeline", "tickets", "report", "plots"},
    "cli": {"api"},
}
WITHOUT_TENSORFLOW = ("runs", "statistics", "figures", "executors", "analysis", "plots", "report", "cli")


def room(path):
    return path.relative_to(FOLDER).parts[0].removesuffix(".py")


def imports(path):
    """The rooms that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        modules = []
        if isinstance(node, ast.ImportFrom) and node.module == "lottery":
            modules = [f"lottery.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in modules if name.startswith("lottery.")}
    return found


def allowed(name):
    """Everything that a room may import, directly or through others, and itself."""
    found, waiting = {name}, list(MAY_IMPORT.get(name, BESIDE))
    while waiting:
        if (one := waiting.pop()) not in found:
            found.add(one)
            waiting += MAY_IMPORT.get(one, BESIDE)
    return found


FILES = sorted(path for path in FOLDER.rglob("*.py") if path.parent != FOLDER or not path.stem.startswith("__"))


def test_every_room_has_its_place():
    assert {room(path) for path in FILES} == {*MAY_IMPORT, *BESIDE}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_imports_go_one_way(path):
    assert imports(path) <= allowed(room(path))


def test_no_file_imports_another_that_imports_it():
    graph = {}
    for path in FILES:
        name = ".".join(["lottery", *path.relative_to(FOLDER).with_suffix("").parts]).removesuffix(".__init__")
        graph[name] = path
    edges = {}
    for name, path in graph.items():
        edges[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lottery":
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    edges[name].add(whole if whole in graph else node.module)
    # A room's own face imports its files, and they never import the face.
    edges = {name: {one for one in found if one in graph and one != name} for name, found in edges.items()}
    import graphlib

    tuple(graphlib.TopologicalSorter(edges).static_order())


@pytest.mark.parametrize("name", WITHOUT_TENSORFLOW)
def test_what_reads_a_run_never_imports_tensorflow(name):
    own = [path for path in FILES if room(path) == name]
    modules = [
        ".".join(["lottery", *path.relative_to(FOLDER).with_suffix("").parts]).removesuffix(".__init__") for path in own
    ]
    code = f"import importlib, sys\nfor name in {modules}: importlib.import_module(name)\n"
    code += f"assert not set({HEAVY}) & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    if name != "cli":
        for path in own:
            source = path.read_text()
            assert not re.search(rf"import ({'|'.join(HEAVY)})\b", source), path


def test_no_function_bears_its_modules_name():
    for path in FILES:
        names = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert path.stem not in names, path


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_public_function_has_more_than_seven_parameters(path):
    for node in ast.walk(ast.parse(path.read_text())):
        # Typer makes an option of each parameter of a command.
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or room(path) == "cli":
            continue
        given = node.args
        names = [
            one.arg for one in [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg] if one
        ]
        assert len(set(names) - {"self", "cls"}) <= 7, node.name


def test_the_top_level_is_small_and_every_name_is_there():
    assert len(dir(lottery)) < 20
    assert all(getattr(lottery, name) is not None for name in dir(lottery))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lottery.nothing
