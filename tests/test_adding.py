"""A method is added in one file, an entry of the dict of its kind; everything else finds it there."""

import importlib.util
import json
import textwrap

import pytest

import lottery
from lottery import analysis, config, datasets
from lottery.errors import LotteryError
from lottery.pruning import branches, criteria
from lottery.runs.stored import StoredRound
from lottery.tickets import formats
from tests.conftest import quietly

FILES = {
    "criterion": """
        import numpy as np

        from lottery.pruning.criteria import CRITERIA, Criterion, CriterionInputs


        def moved_away(inputs: CriterionInputs) -> dict[str, np.ndarray]:
            \"\"\"How far training has moved an entry away from zero.\"\"\"
            return {name: np.abs(value) - np.abs(inputs.initial[name]) for name, value in inputs.trained.items()}


        CRITERIA["moved_away"] = Criterion(moved_away, is_signed=True)
    """,
    "control": """
        import dataclasses

        from lottery.pruning.branches import BRANCHES, Branch, BranchStart, StoredTicket, untrained


        def negated(ticket: StoredTicket) -> BranchStart:
            \"\"\"The ticket's masks on its start weights with the other sign.\"\"\"
            start = {name: -value if name in ticket.kept else value for name, value in ticket.start.items()}
            return BranchStart(start, ticket.kept, ticket.step, ticket.num_steps)


        BRANCHES["negated"] = Branch(negated, takes_away="the signs of the start weights")
    """,
    "data_set": """
        import numpy as np

        from lottery.datasets import DATASETS, Dataset


        def quadrants() -> dict[str, np.ndarray]:
            \"\"\"Points of the plane, by their quadrant.\"\"\"
            points = np.random.default_rng(0).normal(size=(600, 2)).astype(np.float32)
            labels = 2 * (points[:, 0] > 0) + (points[:, 1] > 0)
            return {
                "x_train": points[:500], "y_train": labels[:500], "x_test": points[500:], "y_test": labels[500:],
            }


        DATASETS["quadrants"] = Dataset(quadrants, shape=(2,), is_pixels=False, is_local=True)
    """,
    "dynamic_method": """
        import numpy as np

        from lottery import masks
        from lottery.masks import Change
        from lottery.pruning import dynamic
        from lottery.pruning.branches import BRANCHES, Branch, BranchStart, StoredTicket


        def halving(ticket: StoredTicket) -> BranchStart:
            \"\"\"Magnitude pruning to the ticket's counts in one change, halfway through training.\"\"\"
            counts = masks.num_kept(ticket.kept)

            def prune(kept, state):
                changed = {}
                for name, mask in kept.items():
                    order = np.argsort(np.abs(state[name]), axis=None, kind="stable")
                    left = np.zeros(mask.size, bool)
                    left[order[mask.size - counts[name] :]] = True
                    changed[name] = left.reshape(mask.shape)
                return changed

            changes = {ticket.num_steps // 2: Change(prune, counts)}
            return BranchStart(ticket.initial, masks.ones_like(ticket.kept), 0, ticket.num_steps, 0, changes)


        BRANCHES["halving"] = Branch(
            halving,
            kind="alternative",
            starts="initial",
            needs_ticket=False,
            needs_model=("masks",),
            starts_from="the dense network's initial weights",
            past="not at all",
        )
    """,
    "analysis": """
        from lottery.analysis import ANALYSES
        from lottery.figures.record import Analysis
        from lottery.text_tables import frame
        from lottery.runs.stored import stored_rounds


        def largest(run):
            \"\"\"The largest absolute weight of each network.\"\"\"
            rows = [
                (*network.labels, max(float(abs(network.weights[name]).max()) for name in network.masks))
                for network in stored_rounds(run)
            ]
            return frame(rows, ("replicate", "branch", "round", "density", "largest"))


        def figure(table, ax=None):
            \"\"\"Draw the largest weight against density.\"\"\"
            import matplotlib.pyplot as plt

            ax = plt.gca() if ax is None else ax
            tickets = table[table["branch"] == "ticket"]
            ax.plot(tickets["density"], tickets["largest"], "o")
            ax.set(xlabel="density", ylabel="largest weight")
            return ax


        ANALYSES["largest_weight"] = Analysis(
            largest, figure, "The largest absolute weight of each network.", columns=("largest",)
        )
    """,
    "export_format": """
        from pathlib import Path

        import numpy as np

        from lottery import weights
        from lottery.tickets.formats import EXPORTS, ExportFormat
        from lottery.tickets.reopened import Opened, Stored


        def write(model, masks, path, inputs):
            \"\"\"Write the kernels one after the other, as bytes.\"\"\"
            path.write_bytes(b"".join(np.float32(value).tobytes() for value in weights.read_state(model).values()))


        def opened(path, model):
            \"\"\"Read the numbers, and compute with them in place of the model's own.\"\"\"
            whole, arrays, first = np.frombuffer(path.read_bytes(), np.float32), {}, 0
            for name, value in weights.read_state(model).items():
                arrays[name] = whole[first : first + value.size].reshape(value.shape)
                first += value.size

            def outputs(inputs):
                weights.assign(model, arrays)
                return model(inputs, training=False)

            return Opened(outputs, {name: Stored(value) for name, value in arrays.items()}, named=True)


        EXPORTS["raw"] = ExportFormat(write, opened, "model.raw")
    """,
}
SETTINGS = {
    "name": "added",
    "data": {"name": "quadrants", "validation": 100},
    "train": {"num_steps": 40, "eval_every": 10, "batch_size": 20, "jit_compile": False, "learning_rate": 0.01},
    "prune": {"num_rounds": 2, "criterion": "moved_away"},
    "run": {"num_replicates": 2, "controls": ["negated", "halving"]},
}


METHODS = (criteria.CRITERIA, branches.BRANCHES, datasets.DATASETS, analysis.ANALYSES, formats.EXPORTS)


@pytest.fixture
def added(tmp_path):
    """Every file is imported; the dicts are put back afterwards."""
    before = [dict(methods) for methods in METHODS]
    for name, source in FILES.items():
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location(f"added_{name}", path)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    yield tmp_path
    for methods, kept in zip(METHODS, before, strict=True):
        methods.clear()
        methods.update(kept)


def test_a_method_of_each_kind_is_one_file(added, lottery_command):
    for wrong, name in (
        ({"prune": {"criterion": "nothing"}}, "moved_away"),
        ({"run": {"controls": ["nothing"]}}, "negated"),
        ({"run": {"controls": ["nothing"]}}, "halving"),
        ({"data": {"name": "nothing"}}, "quadrants"),
    ):
        with pytest.raises(LotteryError, match=f"'{name}'"):
            config.load(wrong)
    said = lottery_command("run", "--help").stdout
    assert all(name in said for name in ("moved_away", "negated", "halving", "quadrants"))

    run = lottery.run(SETTINGS, out=added / "runs", on_event=quietly, tensorboard=False)
    assert run.verify() == []
    assert set(run.table()["branch"]) == {"ticket", "negated", "halving"}

    wrong_kind = lottery_command("plot", run.path, "--kind", "nothing")
    assert wrong_kind.returncode == 2 and "largest_weight" in wrong_kind.stderr
    drawn = added / "largest.png"
    assert lottery_command("plot", run.path, "--kind", "largest_weight", "--out", drawn).returncode == 0
    assert drawn.stat().st_size > 1000
    rows = json.loads(lottery_command("analyze", "largest_weight", run.path, "--json").stdout)
    assert rows and all(row["largest"] > 0 for row in rows)
    for kind in ("early_stop", "curves", "learning_curves", "distance", "degrees", "overlap"):  # drawn by other tests
        del analysis.ANALYSES[kind]
    page = run.report(added / "page.html").read_text()
    assert "largest weight" in page and "negated" in page and "halving" in page

    wrong_form = lottery_command("export", run.path, "--round", 1, "--format", "nothing", "--out", added / "x")
    assert wrong_form.returncode == 2 and "raw" in wrong_form.stderr
    out = added / "ticket.raw"
    assert lottery_command("export", run.path, "--round", 1, "--format", "raw", "--out", out).returncode == 0
    network = StoredRound(run.path, 1, 1)
    assert out.stat().st_size == 4 * sum(value.size for value in network.weights.values())
