"""The commands about the experiments that come with the package."""

from pathlib import Path
from typing import Annotated

import typer

from lottery.cli import options, output
from lottery.cli.commands import App

app = App(help="Experiments that come with the package.")


@app.command("ls", short_help="List the experiments.")
def ls(as_json: options.Json = False, as_csv: options.Csv = False) -> None:
    """List the experiments, the default first: paper and figure that each reproduces, data, and network."""
    from lottery.pipeline import presets

    rows = presets.listed()
    if as_json or as_csv:
        output.rows(rows, as_json, as_csv)
        return
    columns = ("name", "paper", "figure", "data", "model")
    output.rows([{column: row[column] for column in columns} for row in rows])
    output.say(
        f"`lottery run` trains {rows[0]['name']}, `lottery run NAME` another. `lottery experiments show NAME` prints "
        "what it reproduces, how long it takes and the numbers to expect."
    )


@app.command("show", short_help="Print an experiment.")
def show(name: options.ExperimentName) -> None:
    """Print an experiment, with what it reproduces, how long it takes and the numbers to expect."""
    from lottery.pipeline import presets

    print(presets.named(name).read_text(encoding="utf-8"), end="")


@app.command("cp", short_help="Copy an experiment, to change it.")
def cp(
    name: options.ExperimentName,
    to: Annotated[Path | None, typer.Argument(help="File or folder; by default here.", metavar="[TO]")] = None,
) -> None:
    """Copy an experiment, to change it."""
    from lottery.pipeline import presets

    print(presets.copied(name, to or Path()))
