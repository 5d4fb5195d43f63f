"""The notebooks: short, without logic of their own, and what they keep is what comes out.

``python tests/test_notebooks.py`` runs each of them in a kernel and keeps its outputs, without what is of the machine.
"""

import ast
import base64
import contextlib
import dataclasses
import io
import itertools
import json
import os
import re
import tempfile
from pathlib import Path

import pytest

import lottery
from lottery.pipeline import connecting

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.ipynb"))}
pytestmark = pytest.mark.usefixtures("traced_once")
every_notebook = pytest.mark.parametrize("name", NOTEBOOKS)
# What TensorFlow's own code writes when it is imported.
LOG = re.compile(
    r"^(?:WARNING: All log messages before absl|[IWE]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IWE] |To enable the foll).*"
)
MACHINE = re.compile(
    r"(?<![\w.:/])/(?:home|tmp|root|work|Users|usr|opt|var|mnt|dev|proc)\b|\b[A-Z]:\\|Traceback|<ipython-"
)


def source(cell):
    return "".join(cell["source"])


def codes(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(outputs):
    """What is shown of each output: a stream's name, or the richest form of a value."""
    shown = []
    for output in outputs:
        data = output.get("data", {})
        if output["output_type"] == "error":
            shown.append(f"error {output['ename']}")
        elif output["output_type"] == "stream":
            shown.append(output["name"])
        else:
            shown.append(next(kind for kind in ("image/png", "text/html", "text/plain") if kind in data))
    return sorted(shown)


def tables(outputs):
    """The column names of each table, and how many rows it has."""
    pages = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
    return [
        (re.findall(r"<th[^>]*>(.*?)</th>", page.split("</thead>")[0]), page.split("</thead>")[1].count("<tr"))
        for page in pages
        if "</thead>" in page
    ]


def pictures(outputs):
    return [
        base64.b64decode(output["data"]["image/png"]) for output in outputs if "image/png" in output.get("data", {})
    ]


def executed(code, names):
    """Run a cell as Jupyter does, in this process: what is printed, the last value, and the figures."""
    import matplotlib.pyplot as plt

    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, value, outputs = io.StringIO(), None, []
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    if value is not None and not code.rstrip().endswith(";"):
        html = getattr(value, "_repr_html_", lambda: None)()
        outputs.append(
            {
                "output_type": "execute_result",
                "data": {"text/plain": repr(value)} | ({"text/html": html} if html else {}),
            }
        )
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", bbox_inches="tight")
        encoded = base64.b64encode(picture.getvalue()).decode()
        outputs.append({"output_type": "display_data", "data": {"image/png": encoded}})
    plt.close("all")
    return outputs


def in_small(run):
    """The same run of fewer steps and replicates: the whole of it is for `test_it_runs_in_a_kernel`."""

    def small(tables, **options):
        train, replicates = tables["train"], tables["run"]
        fewer = {"num_replicates": 2, "control_rounds": replicates.get("control_rounds", [])[-1:]}
        plain = {"num_steps": 60, "jit_compile": False}  # compiling takes longer than so few steps
        return run(tables | {"train": train | plain, "run": replicates | fewer}, **options)

    return small


def in_one_epoch(fit):
    """The same training in one epoch."""
    return lambda model, *data, epochs, **options: fit(model, *data, **options)


def by_three_points(connect):
    """The same paths by their ends and their middles: each point is evaluated on all examples."""
    return lambda path, line, **options: connect(path, line=dataclasses.replace(line, num_points=3), **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all: notebooks share a run, as they do for a reader."""
    return tmp_path_factory.mktemp("notebooks")


def test_there_are_five():
    assert len(NOTEBOOKS) == 5


@every_notebook
def test_the_form(name):
    notebook, path = NOTEBOOKS[name], FOLDER / f"{name}.ipynb"
    cells = notebook["cells"]
    assert 5 <= len(cells) <= 15
    assert path.stat().st_size < 300_000
    assert cells[0]["cell_type"] == "markdown" and source(cells[0]).startswith("# ")
    assert "pip install . jupyterlab" in source(cells[0])
    for before, cell in itertools.pairwise(cells):
        assert cell["cell_type"] == "markdown" or before["cell_type"] == "markdown", "a step without a word"
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert not any(cell["metadata"] for cell in cells)
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert [cell["execution_count"] for cell in codes(notebook)] == list(range(1, len(codes(notebook)) + 1))


@every_notebook
def test_there_is_no_logic_in_it(name):
    """Functions are those that a user hands over; no loops, no classes."""
    for cell in codes(NOTEBOOKS[name]):
        for node in ast.walk(ast.parse(source(cell))):
            assert not isinstance(node, ast.For | ast.While | ast.ClassDef | ast.Try | ast.If), source(cell)
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 12, node.name


@every_notebook
def test_what_is_kept_is_clean(name):
    for cell in codes(NOTEBOOKS[name]):
        assert not {"stderr"} & set(kinds(cell["outputs"]))
        assert not any(kind.startswith("error") for kind in kinds(cell["outputs"]))
        without_pictures = [
            {**output, "data": {kind: text for kind, text in output.get("data", {}).items() if kind != "image/png"}}
            for output in cell["outputs"]
        ]
        assert not MACHINE.search(json.dumps(without_pictures))


@every_notebook
def test_what_comes_out_is_like_what_is_kept(name, folder, monkeypatch, short_pages):
    import keras
    import matplotlib
    from matplotlib import image

    matplotlib.use("Agg")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(lottery, "run", in_small(lottery.run))
    monkeypatch.setattr(keras.Model, "fit", in_one_epoch(keras.Model.fit))
    monkeypatch.setattr(connecting, "connect", by_three_points(connecting.connect))
    names = {"__name__": "__main__"}
    for cell in codes(NOTEBOOKS[name]):
        found, kept = executed(source(cell), names), cell["outputs"]
        assert kinds(found) == kinds(kept), source(cell)
        assert [columns for columns, _ in tables(found)] == [columns for columns, _ in tables(kept)], source(cell)
        for one, other in zip(pictures(found), pictures(kept), strict=True):
            for picture in (one, other):
                pixels = image.imread(io.BytesIO(picture))
                assert min(pixels.shape[:2]) > 200
                assert 0.01 < (pixels[..., :3].min(axis=2) < 0.9).mean() < 0.9, "a picture that is blank, or full"
    assert {path.name for path in folder.iterdir()} == {"runs"}, "anything else would have to be ignored by git"


@pytest.mark.long
@every_notebook
def test_it_runs_in_a_kernel(name, tmp_path):
    notebook = run_in_kernel(FOLDER / f"{name}.ipynb", tmp_path)
    for now, kept in zip(codes(notebook), codes(NOTEBOOKS[name]), strict=True):
        assert kinds(now["outputs"]) == kinds(kept["outputs"]), source(kept)
        assert tables(now["outputs"]) == tables(kept["outputs"]), source(kept)


def run_in_kernel(path, folder):
    """The notebook with outputs of now, and nothing of the machine in it."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    own = os.environ | {"IPYTHONDIR": str(folder / ".ipython")}  # a person's settings may decide what comes out
    nbclient.NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": str(folder)}}).execute(env=own)
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell["outputs"] = [output for output in cell["outputs"] if not is_log(output)]
            for output in cell["outputs"]:
                if "image/png" in output.get("data", {}):
                    output["data"]["image/png"] = in_few_colors(output["data"]["image/png"])
    return notebook


def in_few_colors(encoded):
    """A picture in a palette of 128 colours: a third of the bytes, and no difference that can be seen."""
    from PIL import Image

    picture = io.BytesIO()
    whole = Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB")
    whole.quantize(128, dither=Image.Dither.NONE).save(picture, format="png", optimize=True)
    return base64.b64encode(picture.getvalue()).decode()


def is_log(output):
    """Whether it is nothing but the lines with which TensorFlow's own code begins."""
    lines = output["text"].splitlines() if output.get("name") == "stderr" else [""]
    return all(LOG.match(line) for line in lines)


def test_only_the_log_is_dropped():
    line = "I0000 00:00:1795258626.949035   10566 port.cc:153] oneDNN custom operations are on.\n"
    output = {"output_type": "stream", "name": "stderr", "text": line}
    assert is_log(output)
    assert not is_log(output | {"text": line + "UserWarning: look here\n"})
    assert not is_log(output | {"name": "stdout"})


if __name__ == "__main__":
    import nbformat

    with tempfile.TemporaryDirectory() as one_folder:
        for one in sorted(FOLDER.glob("*.ipynb")):
            nbformat.write(run_in_kernel(one, Path(one_folder)), one)
            print(one.name, one.stat().st_size)
