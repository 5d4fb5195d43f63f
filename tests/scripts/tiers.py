"""Choose the slow tier of the tests from measured durations, and print it.

    python -m pytest -n 2 -m "not long" --durations=0 --durations-min=0.05 > durations.log
    python -m tests.scripts.tiers durations.log > tests/slow.txt

`conftest.py` gives the marker `slow` to the cases in `tests/slow.txt`. Of a test with several cases that take `--cases`
seconds together, the quickest case stays in the first tier, and so do all that take less than 0.3 seconds; a test of
one case goes if it takes `--single` seconds. The tests in `FIRST` always stay: what a newcomer reads, and each room's
most important promise.
"""

import argparse
import collections
import re
from pathlib import Path

LINE = re.compile(r"^([\d.]+)s call +(\S.*)$")
QUICK = 0.3  # seconds
FIRST = (
    "tests/cli/test_cli.py::test_a_run_from_nothing",
    "tests/executors/test_processes.py::test_two_workers",
    "tests/report/test_in_a_browser.py",
    "tests/test_experiments.py",
    "tests/test_notebooks.py",
    "tests/test_pitfalls.py",
    "tests/test_question.py",
    "tests/test_readme.py",
    "tests/test_site.py",
)


def measured(log: str) -> dict[str, dict[str, float]]:
    """Read seconds by case, for each test, from the durations that pytest prints."""
    found: dict[str, dict[str, float]] = collections.defaultdict(dict)
    for line in log.splitlines():
        if call := LINE.match(line.strip()):
            case = call[2].strip()
            found[case.partition("[")[0]][case] = float(call[1])
    return found


def slow(tests: dict[str, dict[str, float]], single: float, cases: float) -> list[str]:
    """List the cases that are not in the first tier."""
    found = []
    for test, seconds in tests.items():
        if test.startswith(FIRST):
            continue
        if len(seconds) == 1:
            found += [case for case, taken in seconds.items() if taken >= single]
        elif sum(seconds.values()) >= cases:
            quickest = min(seconds, key=lambda case: seconds[case])
            found += [case for case, taken in seconds.items() if case != quickest and taken >= QUICK]
    return sorted(found)


def main() -> None:
    """Print the cases of the slow tier."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="what pytest printed with --durations=0")
    parser.add_argument("--single", type=float, default=0.7, help="seconds of a test of one case")
    parser.add_argument("--cases", type=float, default=0.8, help="seconds of all cases of a test")
    options = parser.parse_args()
    print("\n".join(slow(measured(options.log.read_text()), options.single, options.cases)))


if __name__ == "__main__":
    main()
