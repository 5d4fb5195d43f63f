"""docs/settings.md lists each key of an experiment with its default."""

import re
import tomllib
from pathlib import Path

import pytest

from lottery import config

PAGE = (Path(__file__).parents[1] / "docs" / "settings.md").read_text()
SECTIONS = {name: field.annotation for name, field in config.Experiment.model_fields.items() if name != "name"}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_there_with_its_default(section):
    (rows,) = re.findall(rf"^\| `\[{section}\]` \| default \|.*\n\| ---.*\n((?:\|.*\n)+)", PAGE, re.M)
    listed = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", rows, re.M))
    defaults = SECTIONS[section]().model_dump(mode="json", exclude={"fingerprint"})
    assert {key: tomllib.loads(f"value = {text}")["value"] for key, text in listed.items()} == defaults
