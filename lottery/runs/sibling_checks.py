"""What is wrong with the siblings of a run, and with the paths between them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lottery import config, files, masks, weights
from lottery.errors import LotteryError
from lottery.runs import siblings, store
from lottery.runs.siblings import ORDERS, Siblings
from lottery.runs.stored import StoredRound, held_name

# Yields a sentence for everything that is wrong with what was measured of a network.
Evaluated = Callable[[StoredRound], Iterator[str]]


def wrong(run: Path, evaluated: Evaluated | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each stored sibling and path of a run, and sentences about everything that is wrong with it.

    For siblings see `wrong_network`; a path may be damaged, its networks others than when it was measured, or the
    errors at its ends not theirs. In a name ", network " comes before a sibling's step, and ", path " before a path's.
    `evaluated` yields a sentence for everything that is wrong with what was measured of a sibling.
    """
    experiment = store.read_experiment(run)
    for path in sorted(siblings.folder(run).glob("replicate-*/round-*/branch-*/round.json")):
        yield _checked(path.parent, "network", wrong_network(run, experiment, path.parent, evaluated))
    for pair, recomputed in siblings.stored_paths(run, experiment):
        yield _checked(pair.path_file(recomputed), "path", _wrong_path(pair, recomputed))


def wrong_network(
    run: Path, experiment: config.Experiment, folder: Path, evaluated: Evaluated | None = None
) -> Iterator[str]:
    """Yield a sentence for everything that is wrong with the sibling in a folder of a run.

    These are masks that are not the round's, masked weights that are not held, and training that did not start from the
    weights of its step under the masks. Raises `LotteryError` if a file is missing, or does not have its checksum.
    """
    store.check_files(folder)
    record = store.read_record(folder)
    replicate, index, step, order = (record[key] for key in ("replicate", "round", "first_step", "order"))
    pair = Siblings(run, experiment, replicate, index, step)
    if record["branch"] != pair.branch(order) or order not in ORDERS:
        yield f"It was trained from step {step} with order {order} of the data."
    stored = StoredRound(siblings.folder(run), replicate, index, record["branch"])
    kept, ticket = stored.masks, pair.pruned.masks
    if kept.keys() != ticket.keys() or any(not np.array_equal(kept[name], ticket[name]) for name in ticket):
        yield "Its masks are not those of the round."
    held_at = pair.pruned.held_at
    for name, count in masks.leaks(stored.weights, kept, held_at).items():
        yield f"{name} has {count} masked entries that are not {held_name(held_at)}."
    state = files.read_arrays(pair.state_file)
    if weights.fingerprint(state) != record["step_sha256"]:
        yield f"The stored weights of step {step} are not those that it started from."
    if not stored.began_with(pair.start(order, state), held_at):
        yield f"Training did not start from the weights of step {step} under the masks."
    if evaluated:
        yield from evaluated(stored)


def _checked(path: Path, what: str, sentences: Iterator[str]) -> tuple[str, list[str]]:
    """Name a sibling or a path, and collect what is wrong with it."""
    replicate, index = (part.replace("-", " ") for part in path.parts[-3:-1])
    own = path.stem.removeprefix("branch-").removeprefix("path-").replace("_", " ").replace("-", ", ")
    found: list[str] = []
    try:
        found.extend(sentences)
    except (LotteryError, KeyError) as error:
        found.append(str(error))
    return f"connectivity, {replicate}, {index.replace(' 0', ' ')}, {what} {own}", found


def _wrong_path(pair: Siblings, recomputed: bool) -> Iterator[str]:
    record, rows = siblings.read_path(pair.path_file(recomputed))
    if why := pair.misfit(record["networks"]):
        yield why
    elif "test" not in record["splits"]:
        yield "It has no points of the split 'test'."
    elif not recomputed:  # other statistics give the networks at the ends other errors
        tested = {row[0]: row[3] for row in rows if row[1] == "test"}
        for alpha, order in zip((0.0, 1.0), ORDERS, strict=True):
            error = 1 - pair.network(order).record["final_test_accuracy"]
            if not abs(tested[alpha] - error) <= 1e-6:
                yield f"At alpha {alpha:g} the test error is {tested[alpha]}, and that of the network {error}."
