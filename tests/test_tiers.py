"""The two tiers of the tests: what is slow is named in a file, and was measured."""

import ast
from pathlib import Path

from tests.conftest import SLOW
from tests.scripts import tiers

ROOT = Path(__file__).parents[1]


def test_every_slow_case_is_of_a_test_that_is_there():
    cases = SLOW.read_text().splitlines()
    assert cases == sorted(set(cases)) and cases
    tests = {case.partition("[")[0] for case in cases}
    for file in {test.partition("::")[0] for test in tests}:
        names = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
        missing = {test for test in tests if test.partition("::")[0] == file} - {f"{file}::{name}" for name in names}
        assert not missing, f"tests/slow.txt names {missing}: remove the lines, or measure again"


def test_cases_are_chosen_by_their_time_and_each_test_keeps_one():
    log = """
    9.00s call     tests/a.py::test_long
    0.90s setup    tests/a.py::test_short
    0.20s call     tests/a.py::test_short
    2.00s call     tests/a.py::test_of_three[x]
    0.50s call     tests/a.py::test_of_three[y z]
    0.10s call     tests/a.py::test_of_three[w]
    9.00s call     tests/test_readme.py::test_every_python_block_runs[README.md]
    """
    found = tiers.slow(tiers.measured(log), single=1.0, cases=1.0)
    assert found == ["tests/a.py::test_long", "tests/a.py::test_of_three[x]", "tests/a.py::test_of_three[y z]"]
