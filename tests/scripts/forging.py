"""Copy a stored run, change what is in it, and sign it again: what a stranger can do, who knows how runs are stored."""

import contextlib
import hashlib
import json
import shutil
import tomllib
from pathlib import Path

import tomli_w

from lottery import config


def checksum_of(record):
    """The checksum of a record, by the rule of `lottery.runs.store`."""
    rest = {key: value for key, value in record.items() if key != "record_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def sign(path, **changes):
    """Change entries of a JSON record, or drop those that become `...`, and sign it."""
    record = json.loads(path.read_text()) | changes
    record = {key: value for key, value in record.items() if value is not ...}
    record["record_sha256"] = checksum_of(record)
    path.write_text(json.dumps(record, indent=1) + "\n")


def sign_files(folder, **changes):
    """Sign the record of a round for the files that lie beside it now."""
    named = json.loads((folder / "round.json").read_text())["sha256"]
    there = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in named}
    sign(folder / "round.json", sha256=there, **changes)


def copied(run, to, change=lambda tables: None, **environment):
    """Copy a run; change the tables of its experiment in place, and entries of its environment; return the folder."""
    shutil.copytree(run, to)
    path = Path(to) / "experiment.toml"
    tables = tomllib.loads(path.read_text())
    if config.asks_for_no_rounds(tables):  # in the corpus, which an earlier version stored
        tables["run"]["control_rounds"] = config.ALL
    change(tables)
    path.write_text(tomli_w.dumps(tables))
    with contextlib.suppress(ValueError):  # no such experiment may exist, so that no digest is right
        environment = {"digest": config.digest(config.validated(tables)), **environment}
    sign(Path(to) / "environment.json", **environment)
    return Path(to)
