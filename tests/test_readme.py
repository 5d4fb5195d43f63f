"""What the README and the pages under docs/ say is what happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lottery import config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}
every_page = pytest.mark.parametrize("page", PAGES)
# A block of Python, and of text if it follows at once: that is what the block prints.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
END = "=== end of a block ==="


@every_page
def test_every_python_block_runs(page, tmp_path):
    """In order and in one process, for the later use what the earlier have made."""
    blocks = BLOCK.findall(PAGES[page])
    assert len(blocks) == len(re.findall(r"^ *```py", PAGES[page], re.M)) >= 2
    script = tmp_path / "page.py"
    script.write_text("".join(f"{code}\nprint({END!r})\n" for code, _ in blocks))
    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    printed = done.stdout.split(f"{END}\n")
    assert len(printed) == len(blocks) + 1
    for (_, expected), found in zip(blocks, printed, strict=False):
        if expected:
            assert without_fractions(found) == without_fractions(expected)


def without_fractions(text):
    """The last digits, and so the sign of a small number, are those of the machine; whole numbers and 0.0 are not."""
    return re.sub(r"-?\d+\.\d{4,}(e[-+]\d+)?", "#", text)


@every_page
def test_tests_and_files_that_are_named_exist(page):
    for path, name, case in re.findall(r"\b(tests/\w+\.py)::(\w+)(?:\[(\w+)\])?", PAGES[page]):
        text = (ROOT / path).read_text()
        assert f"\ndef {name}(" in text, (path, name)
        assert not case or f'"{case}"' in text, (path, name, case)
    folder = (ROOT / page).parent
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", PAGES[page]):
        target = folder / path if path else ROOT / page
        assert target.exists(), path
        assert not anchor or anchor in headings(target.read_text()), (path, anchor)


@every_page
def test_nothing_was_left_to_be_written(page):
    assert not re.search(r"^(?:[A-Z_]{4,}|.*\b(?:TODO|TBD|FIXME|XXX)\b.*)$", PAGES[page], re.M)


def headings(text):
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


def test_every_key_is_in_the_table():
    for section, field in config.Experiment.model_fields.items():
        if section == "name":
            continue
        (row,) = re.findall(rf"^\| `\[{section}\]` \| (.*) \|$", README, re.M)
        keys = set(field.annotation.model_fields) - {"fingerprint"}
        assert {key for key in keys if f"`{key}`" in row} == keys


def test_the_two_commands_come_first():
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S)
    assert len(blocks) >= 2
    assert "lottery run" in blocks[0] and "pytest" in blocks[1]


def test_commands_that_are_named_exist():
    from lottery import cli

    commands = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
    commands |= {group.name for group in cli.app.registered_groups}
    assert set(re.findall(r"^lottery (\w+)", README, re.M)) == commands
