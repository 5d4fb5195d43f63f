"""The commands about experiments that ship with the package."""

from pathlib import Path
from typing import Annotated

import typer

from lottery import showing
from lottery.options import Csv, ExperimentName, Json

experiments = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Experiments that ship with the package.")


@experiments.command("ls", short_help="List them.")
def ls(as_json: Json = False, as_csv: Csv = False) -> None:
    """List them: name, data, network, and what each reproduces."""
    import pandas as pd

    from lottery import shipped

    showing.rows(pd.DataFrame(shipped.listed()), as_json, as_csv)


@experiments.command("show", short_help="Print one.")
def show(name: ExperimentName) -> None:
    """Print one, with what it reproduces, its time and the numbers to expect."""
    from lottery import shipped

    print(shipped.named(name).read_text(encoding="utf-8"), end="")


@experiments.command("cp", short_help="Copy one, to be changed.")
def cp(
    name: ExperimentName,
    to: Annotated[Path | None, typer.Argument(help="The file or folder; by default here.", show_default=False)] = None,
) -> None:
    """Copy one, to be changed."""
    from lottery import shipped

    print(shipped.copied(name, to or Path()))
