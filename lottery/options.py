"""The arguments and options that commands share, so that they mean the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

RunPath = Annotated[Path, typer.Argument(help="The run's folder.", metavar="RUN", show_default=False)]
Source = Annotated[
    Path, typer.Argument(help="A run's folder, or a ticket file.", metavar="RUN|FILE", show_default=False)
]
ExperimentName = Annotated[str, typer.Argument(help="A name that `ls` lists.", metavar="NAME", show_default=False)]
Out = Annotated[Path, typer.Option("--out", help="The folder that holds runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")]
Replicate = Annotated[int | None, typer.Option("--replicate", help="Only this replicate, from 1.")]
Round = Annotated[int | None, typer.Option("--round", help="Only this round; 0 is dense.")]
Rounds = Annotated[str, typer.Option(help="Which rounds, such as 7,15; every pruned one if not given.")]
Tolerance = Annotated[float, typer.Option(min=0, max=1, help="Accuracy that a matching ticket may lose, in [0, 1].")]

# Of the commands that take one ticket.
OneRound = Annotated[
    str | None,
    typer.Option("--round", help="Of a run: a number, best or smallest_matching.", show_default=False),
]
Density = Annotated[
    float | None,
    typer.Option("--density", help="Of a run, instead: the round of the nearest density.", show_default=False),
]
OneReplicate = Annotated[int, typer.Option("--replicate", help="Of a run: which replicate, from 1.")]
DataPath = Annotated[
    str, typer.Option("--data", help="A file with the ticket's data, where they are not found.", show_default=False)
]
