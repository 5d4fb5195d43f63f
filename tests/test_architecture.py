"""The map of the package: floors, imports upward only, and what may import TensorFlow."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lottery

FOLDER = Path(lottery.__file__).parent
# A module may import those on floors below its own, and those before it on its own.
FLOORS = [
    ["errors", "masks", "schedules", "records", "config", "datasets", "data", "order"],
    ["weights", "networks", "models", "pruning", "allocation", "planning", "files", "store", "shipped", "smoking"],
    [
        "learning_rates",
        "augmenting",
        "precision",
        "spreading",
        "compiling",
        "saliency",
        "synaptic",
        "criteria",
        "scoring",
        "rewinding",
        "branches",
    ],
    [
        "intervals",
        "verdicts",
        "results",
        "contests",
        "findings",
        "claims",
        "layers",
        "curves",
        "survivors",
        "inputs",
        "distances",
        "matching",
        "overlaps",
        "costs",
        "copies",
        "connectivity",
        "analysis",
        "comparing",
        "fingerprints",
        "allowlist",
        "tracing",
        "architectures",
        "positions",
        "environment",
    ],
    ["holding", "patching", "wrappable", "wrappers", "fitting", "modes", "callbacks", "auditing", "enforcement"],
    ["ticket_files", "picking", "tickets", "examples"],
    ["chains", "rebuilding", "folding", "compaction"],
    ["reopened", "placing", "tflite", "formats", "exporting"],
    [
        "repeating",
        "evaluating",
        "loop",
        "stopping",
        "checkpoints",
        "training",
        "interpolation",
        "styles",
        "landscapes",
        "pictures",
        "plots",
        "showing",
        "ticket_tables",
        "progress",
        "launching",
        "processes",
        "sharing",
        "parcels",
        "nodes",
        "sending",
        "clustering",
    ],
    ["summaries", "checking", "facts", "checklist", "sections", "comparisons", "gallery", "report"],
    [
        "preparing",
        "rounds",
        "jobs",
        "replicates",
        "working",
        "running",
        "branching",
        "measuring",
        "connecting",
        "sweeping",
    ],
    [
        "options",
        "analyze_commands",
        "page_commands",
        "ticket_commands",
        "experiment_commands",
        "train_commands",
        "cli",
        "__main__",
    ],
]
WITHOUT_TENSORFLOW = [
    "errors", "masks", "schedules", "records", "config", "order", "pruning", "allocation", "planning", "files", "store", "shipped",
    "smoking", "criteria", "scoring", "rewinding", "branches", "results", "intervals", "verdicts", "contests", "findings", "claims", "plots",
    "showing", "progress", "stopping", "launching", "processes", "sharing", "parcels", "nodes", "sending", "clustering", "checking", "ticket_files", "picking", "tickets", "examples", "options", "reopened", "placing",
    "ticket_commands", "layers", "curves", "survivors", "inputs", "distances", "matching", "overlaps", "costs", "copies",
    "connectivity", "analysis", "styles", "landscapes", "pictures", "ticket_tables", "facts", "checklist", "sections", "comparisons", "gallery",
    "report", "analyze_commands", "page_commands", "experiment_commands", "train_commands",
]  # fmt: skip


def imports(module):
    """Modules of ours that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse((FOLDER / f"{module}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "lottery":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lottery."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("lottery.")}
    return found


def test_every_module_has_a_floor():
    assert {name for floor in FLOORS for name in floor} == {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert set(lottery._MODULES) == {name for floor in FLOORS for name in floor} - {"cli", "__main__"}


@pytest.mark.parametrize("module", [name for floor in FLOORS for name in floor])
def test_imports_go_one_way(module):
    order = [name for floor in FLOORS for name in floor]
    # The command line gives the version of the package.
    assert imports(module) <= set(order[: order.index(module)])


@pytest.mark.parametrize("module", [name for floor in FLOORS for name in floor])
def test_modules_are_of_one_idea(module):
    assert len((FOLDER / f"{module}.py").read_text().splitlines()) <= 300


def test_what_reads_a_run_never_imports_tensorflow():
    code = f"import sys\nfor name in {WITHOUT_TENSORFLOW}: __import__('lottery.' + name)\n"
    code += "assert not {'tensorflow', 'keras', 'tf_keras'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    for module in WITHOUT_TENSORFLOW:
        source = (FOLDER / f"{module}.py").read_text()
        assert "import tensorflow" not in source and "import keras" not in source, module


def test_no_function_bears_its_modules_name():
    for path in FOLDER.glob("*.py"):
        names = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert path.stem not in names


def test_the_top_level_is_small_and_says_what_is_there():
    assert set(dir(lottery)) >= {"run", "masks", "weights", "enforcement", "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lottery.nothing
