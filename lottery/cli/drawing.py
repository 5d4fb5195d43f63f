"""The commands that draw: plot and report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from lottery.cli import commands, options
from lottery.cli.options import Replicate, Round, RunPath
from lottery.errors import LotteryError


def _kinds() -> list[tuple[str, str]]:
    from lottery import plots

    return [(name, kind.help) for name, kind in plots.kinds().items()]


WithKinds = commands.listing("Kinds", _kinds)


@dataclass(frozen=True)
class Drawn:
    """Options of some kinds of figures: what is drawn, and how."""

    rounds: Annotated[str, Option(help="For kinds that draw some rounds: the rounds, such as 0,7,15.")] = ""
    weight: Annotated[str, Option(help="For initial_weights, degrees and overlap: which weight.")] = ""
    full: Annotated[bool, Option("--full", help="For accuracy and learning_curves: the whole range.")] = False
    interval: Annotated[
        str,
        Option(
            metavar="INTERVAL",
            help="For accuracy, speed, early_stop and classes: range (lowest to highest) or t (95 % interval of the "
            "mean; usual in paper style).",
        ),
    ] = ""
    label: Annotated[
        list[str] | None,
        Option(metavar="NAME=TEXT", help='Name a branch in the legend, such as random_mask="random mask".'),
    ] = None
    by: Annotated[
        str, Option(help="For accuracy: against density or cost, the computation of all trainings a network takes.")
    ] = ""

    def of(self, kind: str) -> dict[str, Any]:
        """Return those that are given, or raise `LotteryError` if the kind does not take one."""
        from lottery import plots

        given = {
            "rounds": options.numbers("--rounds", self.rounds),
            "weight": self.weight,
            "full": self.full,
            "interval": self.interval,
            "labels": self._labels(),
            "by": self.by,
        }
        chosen = {name: value for name, value in given.items() if value}
        for name in chosen:
            if name not in plots.options_of(kind):
                fitting = ", ".join(other for other in plots.kinds() if name in plots.options_of(other))
                # The option is given once for each label, so it has the singular.
                name = "label" if name == "labels" else name
                raise LotteryError(f"--{name} cannot be used with --kind {kind}, only with {fitting}.")
        return chosen

    def _labels(self) -> dict[str, str]:
        labels = {}
        for word in self.label or []:
            name, _, text = word.partition("=")
            if not (name and text):
                raise LotteryError(f"--label must be NAME=TEXT, such as random_mask='random mask', not {word!r}.")
            labels[name] = text
        return labels


def plot(
    run: RunPath,
    kind: Annotated[str, Option(help="The figure to draw, of the kinds below.")] = "accuracy",
    out: Annotated[
        Path | None,
        Option(help="The file; png, svg or pdf. By default KIND.png in the run's folder, in paper style KIND.pdf."),
    ] = None,
    style: Annotated[
        str, Option(metavar="STYLE", help="The size of letters, lines and figure: screen, paper or slides.")
    ] = "screen",
    width: Annotated[
        float | None,
        Option(metavar="INCHES", help="The width; by default 7.2 on the screen, 5.5 in a paper, 10 on slides."),
    ] = None,
    title: Annotated[str | None, Option(help="By default what is drawn and the run's name; none in a paper.")] = None,
    caption: Annotated[
        bool, Option("--caption", help="Print a LaTeX caption: what is shown, n, and what the bars are.")
    ] = False,
    axis: Annotated[str, Option(metavar="UNIT", help="Densities and accuracies as fraction or percent.")] = "fraction",
    replicate: Replicate = None,
    round: Round = None,
    *,
    drawn: Drawn,
) -> None:
    """Draw a figure of a run to a file, and print its path.

    With --caption, the output is the LaTeX caption alone, and the path goes to the error stream.

    Examples: lottery plot runs/NAME --kind inputs --rounds 0,7,15;
    lottery plot runs/NAME --style paper --out accuracy.pdf --caption > caption.tex
    """
    from lottery import plots
    from lottery.figures import sheets
    from lottery.runs import store

    sheet = sheets.named(style)
    chosen = drawn.of(kind)
    table = _read(run, kind, replicate, round, chosen.get("rounds"))
    if "replicate" in plots.options_of(kind) and replicate is not None:
        chosen["replicate"] = replicate
    text = plots.latex_caption(table, kind, style, **chosen) if caption else ""
    if title is None:
        title = f"{plots.kinds()[kind].title} ({store.read_experiment(run).name})" if sheet.is_titled else ""
    out = out or run / f"{kind}.{sheet.suffix}"
    path = plots.save(table, out, kind, style, width=width, title=title, axis=axis, **chosen)
    typer.echo(path, err=caption)
    if caption:
        print(text)


def _read(run: Path, kind: str, replicate: int | None, round: int | None, rounds: list[int] | None) -> Any:
    """Read what a kind of figure draws: some analyses read one round, of others a round's rows are chosen."""
    import inspect

    from lottery import plots

    if rounds and round is not None:
        raise LotteryError("Use --round or --rounds, not both.")
    # Kinds that draw several rounds take --round, too.
    if round is not None:
        rounds = [round]
    table = plots.read(run, kind, round=round, rounds=rounds)
    if table.empty:  # the figure says why
        return table
    reads_a_round = "round" in inspect.signature(plots.kinds()[kind].table).parameters
    return options.selected(table, replicate, None if reads_a_round else round)


def report(
    runs: options.RunPaths,
    out: Annotated[
        Path | None, Option(help="The .html file; by default report.html in the first run's folder.")
    ] = None,
    tolerance: options.Tolerance = None,
    author: Annotated[str, Option(help="Who made the runs, to be named on the page.")] = "",
) -> None:
    """Write one HTML page about a run, or about several side by side, that fetches nothing and can be mailed.

    Example: lottery report runs/NAME --out page.html
    """
    from lottery.report import page

    print(page.write(runs, out or runs[0] / "report.html", tolerance, author))
