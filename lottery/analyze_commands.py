"""The commands below `lottery analyze`: a thin shell, as `lottery.cli`, which adds them to its own."""

from pathlib import Path
from typing import Annotated

import typer

from lottery import showing
from lottery.errors import LotteryError
from lottery.options import Csv, Json, Replicate, Round, RunPath, numbers, selected, stoppable

analyze = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look into masks, weights and solutions.",
)
Runs = Annotated[
    list[Path],
    typer.Argument(help="A run's folder, or several of the same network.", metavar="RUN...", show_default=False),
]


@analyze.command(short_help="Error barriers between two solutions.")
def connectivity(
    run: RunPath,
    rounds: Annotated[
        str, typer.Option(help="Which rounds, such as 0,7; 0 is dense. Every complete one if not given.")
    ] = "",
    steps: Annotated[
        str,
        typer.Option(
            help="From which steps two copies are trained, such as 0,500; the run's rewind step if not given."
        ),
    ] = "",
    replicate: Replicate = None,
    points: Annotated[
        int, typer.Option(min=3, help="Points on the line, ends included; a finer one that is stored stays.")
    ] = 30,
    recompute: Annotated[
        bool, typer.Option("--recompute-batch-norm", help="Compute BatchNorm statistics anew at each point.")
    ] = False,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Train copies of a round with another order of the data, and measure the error on the line between the two.

    What was trained and measured is kept below RUN/connectivity: the same command goes on where it was stopped.
    Example: lottery analyze connectivity runs/NAME --rounds 0,7 --steps 0,100,500
    """
    from lottery import analysis, connecting
    from lottery import connectivity as stored

    with stoppable():
        connecting.connect(
            run, numbers("--rounds", rounds), numbers("--steps", steps), replicate=replicate, num_points=points,
            recompute=recompute,
        )  # fmt: skip
    barriers = analysis.barriers(run)
    if as_json or as_csv:
        showing.rows(barriers, as_json, as_csv)
        return
    keys = ("batch_norm", "round", "density", "step", "split")
    showing.means(barriers, keys, ("ends", "highest", "barrier"))
    print(
        "Error in [0, 1]: the mean of the two ends, the highest on the line between them, and the one less the other."
    )
    for sentence in stored.sentences(barriers):
        print(sentence)


@analyze.command(short_help="Masks against each other, and chance.")
def overlap(
    runs: Runs,
    round: Round = None,
    matched: Annotated[
        bool, typer.Option("--matched", help="Also after matching hidden units by permutation; for chains of layers.")
    ] = False,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Compare the masks of replicates, or of several runs, with each other and with chance.

    Example: lottery analyze overlap runs/NAME --round 7 --matched
    """
    from lottery import overlaps, plots

    index = plots.last_common_round(runs[0]) if round is None else round
    found = overlaps.table(runs, index, matched=matched)
    if as_json or as_csv:
        showing.rows(found, as_json, as_csv)
        return
    columns = ("overlap", "chance", *(("matched_overlap", "matched_chance") if matched else ()))
    keys = ("round", "weight")
    if found["one"].str.contains(":").any():  # several runs, whose replicates may share their initial weights
        one, other = (found[side].str.rpartition(":") for side in ("one", "other"))
        within = (one[0] == other[0]).map({True: "one run", False: "two runs"})
        found["of"] = within.where((one[0] == other[0]) | (one[2] != other[2]), "two runs, one replicate")
        keys = ("of", *keys)
    showing.means(found, keys, columns, count="pairs")
    print("Overlap: intersection over union of two masks, the mean over pairs; chance: of random masks as dense.")
    if matched:
        print(
            "Matched: after the hidden units of one were permuted to overlap the other most, and the same for chance."
        )


@analyze.command(short_help="Density and dead units by weight.")
def layers(
    run: RunPath, replicate: Replicate = None, round: Round = None, as_json: Json = False, as_csv: Csv = False
) -> None:
    """Density, dead units and inputs of each weight, by round."""
    columns = ("weight_density", "kept", "dead_inputs", "dead_units")
    _shown("layers", run, replicate, round, columns, as_json, as_csv)


@analyze.command(short_help="How many entries units keep.")
def degrees(
    run: RunPath, replicate: Replicate = None, round: Round = None, as_json: Json = False, as_csv: Csv = False
) -> None:
    """How many entries the units of each weight keep, and its inputs; --csv gives how many have how many."""
    from lottery import analysis

    rows = selected(analysis.ANALYSES["degrees"](run), replicate, round)
    if as_json or as_csv:
        showing.rows(rows, as_json, as_csv)
        return
    keys = ["branch", "round", "density", "weight", "side"]
    rows = rows.assign(entries=rows["degree"] * rows["count"], dead=rows["count"].where(rows["degree"] == 0, 0))
    each = rows.groupby([*keys, "replicate"], sort=False).agg(
        num=("count", "sum"), dead=("dead", "sum"), entries=("entries", "sum"), least=("degree", "min"),
        most=("degree", "max"),
    ).reset_index()  # fmt: skip
    showing.means(
        each.assign(mean=each["entries"] / each["num"]), keys, ("num", "dead", "least", "mean", "most"), "replicates"
    )
    print(
        "in: entries that come into a unit; out: that leave an input. dead: how many have none. Means over replicates."
    )


@analyze.command(short_help="How far training moves the weights.")
def distance(
    run: RunPath, replicate: Replicate = None, round: Round = None, as_json: Json = False, as_csv: Csv = False
) -> None:
    """How far training moves the surviving weights from their start: L2, relative, cosine, changes of sign."""
    columns = ("start_norm", "distance", "relative_distance", "cosine", "sign_changes")
    _shown("distance", run, replicate, round, columns, as_json, as_csv)


@analyze.command(short_help="Compression, multiply-adds, time.")
def costs(
    run: RunPath, replicate: Replicate = None, round: Round = None, as_json: Json = False, as_csv: Csv = False
) -> None:
    """Compression, multiply-adds, theoretical speed-up, steps and seconds of each network."""
    columns = ("num_kept", "compression", "multiply_adds", "speedup", "steps", "seconds")
    _shown("costs", run, replicate, round, columns, as_json, as_csv)


@analyze.command(short_help="Losses and accuracies along the way.")
def curves(
    run: RunPath, replicate: Replicate = None, round: Round = None, as_json: Json = False, as_csv: Csv = False
) -> None:
    """Every loss and accuracy that was measured along the way."""
    _shown("curves", run, replicate, round, ("loss", "accuracy"), as_json, as_csv, ("step", "split"))


def _shown(
    name: str,
    run: Path,
    replicate: int | None,
    round: int | None,
    columns: tuple[str, ...],
    as_json: bool,
    as_csv: bool,
    more: tuple[str, ...] = (),
) -> None:
    """An analysis of a run: every row as JSON or CSV; or the means over replicates, as a table."""
    from lottery import analysis

    rows = selected(analysis.ANALYSES[name](run), replicate, round)
    if rows.empty:
        raise LotteryError(f"No round of {str(run)!r} is complete yet.")
    if as_json or as_csv:
        showing.rows(rows, as_json, as_csv)
        return
    keys = tuple(key for key in ("branch", "round", "density", "weight") if key in rows) + more
    showing.means(rows, keys, columns, count="replicates")
