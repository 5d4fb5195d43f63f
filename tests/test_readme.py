"""What the README says is what happens."""

import re
import subprocess
import sys
from pathlib import Path

from lottery import config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_every_python_block_runs(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    assert len(blocks) == 2
    for block in blocks:  # the second reads what the first has written
        done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]


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


def test_commands_and_files_that_are_named_exist():
    from lottery import cli

    commands = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
    assert set(re.findall(r"^lottery (\w+)", README, re.M)) == commands
    for path in re.findall(r"\]\(([^)h][^)]*)\)", README):
        assert (ROOT / path).exists(), path
