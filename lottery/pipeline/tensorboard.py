"""What TensorBoard shows of a run: curves by step, results by round, and networks by their hyper-parameters."""

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tensorboardX import SummaryWriter, record_writer

from lottery import config, files, progress
from lottery.runs import store
from lottery.statistics import results

FOLDER = "tensorboard"
PATTERN = "events.out.tfevents*"  # what TensorBoard looks for
FLUSH = 0.5  # seconds until an evaluation is in its file

# By round, one line for each replicate and branch; all but the density also beside a network's hyper-parameters.
BY_ROUND = ("density", "early_stop_test_accuracy", "final_test_accuracy", "early_stop_step", "seconds")

# What tells the networks of a run apart.
OF_NETWORK = ("branch", "round", "density", "replicate")
# In which networks of several runs below one folder may differ, and those of a run where they were transferred.
OF_EXPERIMENT = (
    "data.name", "model.name", "train.num_steps", "train.batch_size", "train.optimizer", "train.learning_rate",
    "prune.criterion", "prune.scope", "prune.rate", "rewind.step", "rewind.mode", "run.seed",
)  # fmt: skip
# These may be a number, a name or a table; in one column of TensorBoard's they are all texts.
AS_TEXT = ("train.optimizer", "train.learning_rate")


@contextlib.contextmanager
def observing(
    run: Path, experiment: config.Experiment, on_event: progress.OnEvent = progress.silent
) -> Iterator[progress.OnEvent]:
    """Write for TensorBoard while networks train: first all that is stored, then each evaluation as it happens.

    Below RUN/tensorboard, TensorBoard's runs are ``replicate-1/round-07/ticket/train`` and so on for other splits, each
    with ``steps/loss`` and ``steps/accuracy``, so that one chart shows all splits; ``replicate-1/rounds/ticket`` with
    `BY_ROUND`; and ``replicate-1/round-07/ticket`` with a network's hyper-parameters and results. No file is written
    again, because an open TensorBoard may be reading it: where a curve starts again, a new file begins with a
    ``purge_step``, from which on all points of before are dropped.

    Events are passed on to `on_event`. After an error, of which it gets one note, nothing more is written.
    """
    board = _Board(run, experiment)
    working = True

    def attempt(function: Callable[..., None], *arguments: Any) -> None:
        nonlocal working
        if not working:
            return
        try:
            with files.readable_errors(run / FOLDER):
                store.check_there(run)
                function(*arguments)
                board.disk.check()
        except Exception as error:  # a display must not stop the run
            working = False
            on_event(progress.Note(f"Nothing more is written for TensorBoard: {str(error).rstrip('.')}."))

    def observe(event: progress.Event) -> None:
        if isinstance(event, progress.Evaluated):
            attempt(board.write_evaluation, event)
        elif isinstance(event, progress.Done):
            attempt(board.write_done, event.record)
        on_event(event)

    try:
        attempt(board.write_stored)
        yield observe
    finally:
        board.close()
        attempt(board.disk.check)


class _Board:
    """The writers of a run: of each network in training one for each split, which stay open until it is stored."""

    def __init__(self, run: Path, experiment: config.Experiment):
        self.run, self.experiment, self.disk = run, experiment, _Disk()
        self.open: dict[Path, dict[str, SummaryWriter]] = {}  # by the folder of the network, and by split

    def write_stored(self) -> None:
        """Write the networks that are stored and not shown yet."""
        if not store.replicates(self.run, self.experiment):  # a new run, of which there is no table
            return
        for _, rows in results.table(self.run).groupby(["replicate", "branch"], sort=False):
            records = [store.read_record(self._stored(row)) for row in rows.to_dict("records")]
            missing = [record for record in records if not _is_written(self._place(record))]
            if missing or not _is_written(self._rounds(records[0])):
                self._write_rounds(records)
            for record in missing:
                self._write_curves(record)
                self._write_results(record)

    def write_evaluation(self, event: progress.Evaluated) -> None:
        """Add a point to the curves of a split; the first after a start or a resume begins them again."""
        place = self._place(vars(event))
        step = event.row[0]
        if event.first:
            self._begin_curves(place, step)
        self._add_point(place, event.row, step, time.time())

    def write_done(self, record: Mapping[str, Any]) -> None:
        """Write the results of a network that was stored just now."""
        self._close_curves(self._place(record))
        # A branch may be trained after that of a later round: then this one is written again.
        later = range(record["round"] + 1, self.experiment.prune.num_rounds + 1)
        folders = [self._stored({**record, "round": number}) for number in later]
        stored = [store.read_record(folder) for folder in folders if (folder / "round.json").exists()]
        self._write_rounds([record, *stored])
        self._write_results(record)

    def close(self) -> None:
        """Close what is open: of networks whose training was stopped."""
        for place in list(self.open):
            self._close_curves(place)

    def _write_curves(self, record: Mapping[str, Any]) -> None:
        place = self._place(record)
        ended = self._ended(record)
        rows = store.read_metrics(self._stored(record))
        first, last = rows[0][0], rows[-1][0]
        pace = record["seconds"] / max(last - first, 1)  # seconds of a step, to estimate when it was
        self._begin_curves(place, first)
        for row in rows:
            self._add_point(place, row, first, ended - pace * (last - row[0]))
        self._close_curves(place)

    def _add_point(self, place: Path, row: tuple[int, str, float, float], begun: int, at: float) -> None:
        """Add an evaluation to the curves of its split, whose file begins at the step `begun`."""
        step, split, loss, accuracy = row
        # Without a test curve it is measured at the early-stop step and the last step alone.
        if split == "test" and not self.experiment.train.test_curve:
            return
        writers = self.open.setdefault(place, {})
        if split not in writers:
            writers[split] = self._writer(place / split, begun)
        _add(writers[split], {"steps/loss": loss, "steps/accuracy": accuracy}, step, at)

    def _begin_curves(self, place: Path, step: int) -> None:
        """Drop what TensorBoard shows of a network from a step on."""
        self._close_curves(place)
        for path in place.glob(PATTERN):
            path.unlink()
        begun = {path.parent for path in place.glob(f"*/{PATTERN}")}
        self.open[place] = {folder.name: self._writer(folder, step) for folder in begun}

    def _close_curves(self, place: Path) -> None:
        for writer in self.open.pop(place, {}).values():
            writer.close()

    def _write_rounds(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write rounds of one replicate and branch in place of all from the first of them on."""
        with self._writer(self._rounds(records[0]), records[0]["round"]) as writer:
            for record in records:
                values = {f"rounds/{name}": value for name, value in _of_round(record).items()}
                _add(writer, values, record["round"], self._ended(record))

    def _write_results(self, record: Mapping[str, Any]) -> None:
        """Write what a network was trained with and its results: last, as a sign that all is written."""
        place = self._place(record)
        measured = {f"trained/{name}": value for name, value in _known(_of_round(record)).items() if name != "density"}
        # `add_hparams` writes a file of its own, into a folder below that of the writer, which writes none.
        writer = SummaryWriter(self.disk.name(place.parent), write_to_disk=False)
        writer.add_hparams(self._hyper_parameters(record), measured, place.name, record["round"])

    def _writer(self, folder: Path, step: int) -> SummaryWriter:
        """Open a new file of a folder, which drops what files before it have from a step on."""
        # In tensorboardX 2.6 a queue of 0 has no end, so training never waits for the disk.
        return SummaryWriter(self.disk.name(folder), purge_step=step, max_queue=0, flush_secs=FLUSH)  # type: ignore

    def _hyper_parameters(self, record: Mapping[str, Any]) -> dict[str, str | float]:
        tables = self.experiment.model_dump(mode="json")
        for section, changed in record.get("overrides", {}).items():  # of a transfer
            tables[section] |= changed
        values: dict[str, Any] = {name: record[name] for name in OF_NETWORK}
        for name in OF_EXPERIMENT:
            section, key = name.split(".")
            values[name] = tables[section][key]
            if name in AS_TEXT and not isinstance(values[name], str):
                values[name] = json.dumps(values[name])
        return values

    def _stored(self, record: Mapping[str, Any]) -> Path:
        return store.round_path(self.run, record["replicate"], record["round"], record["branch"])

    def _ended(self, record: Mapping[str, Any]) -> float:
        return (self._stored(record) / "round.json").stat().st_mtime

    def _rounds(self, record: Mapping[str, Any]) -> Path:
        return self.run / FOLDER / f"replicate-{record['replicate']}" / "rounds" / record["branch"]

    def _place(self, record: Mapping[str, Any]) -> Path:
        folder = self.run / FOLDER / f"replicate-{record['replicate']}"
        return folder / f"round-{record['round']:02d}" / record["branch"]


class _Disk:
    """Opens files for tensorboardX 2.6, which asks whoever is registered for the beginning of a path.

    It would put the machine's name, which is private, into that of a file. And it writes in a thread, which an error
    ends unheard: so errors wait here.
    """

    def __init__(self) -> None:
        # The library keeps factories by prefix for the whole process, in which several runs may be open.
        self._prefix = f"lottery-{secrets.token_hex(8)}"
        self.errors: list[OSError] = []
        record_writer.register_writer_factory(self._prefix, self)

    def name(self, folder: Path) -> str:
        return f"{self._prefix}:{folder}"

    def check(self) -> None:
        for error in self.errors:
            raise error

    def directory_check(self, name: str) -> None:
        self._path(name).mkdir(parents=True, exist_ok=True)

    def open(self, name: str) -> "_File":
        # Its own name counts seconds, in which a curve may begin anew, and one file would overwrite another.
        path = self._path(name).with_name(f"events.out.tfevents.{time.time_ns()}")
        return _File(path.open("wb"), self.errors)

    def _path(self, name: str) -> Path:
        return Path(name.removeprefix(f"{self._prefix}:"))


class _File:
    """A file that keeps its errors to be raised elsewhere, and does not wait for the disk."""

    def __init__(self, file: BinaryIO, errors: list[OSError]):
        self._file, self._errors = file, errors

    def write(self, content: bytes) -> None:
        self._attempt(self._file.write, content)

    def flush(self) -> None:
        self._attempt(self._file.flush)

    def close(self) -> None:
        self._attempt(self._file.close)

    def _attempt(self, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            function(*arguments)
        except OSError as error:
            self._errors.append(error)


def _add(writer: SummaryWriter, values: Mapping[str, float | None], step: int, at: float) -> None:
    for tag, value in _known(values).items():
        writer.add_scalar(tag, value, step, at)


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None and value == value}


def _of_round(record: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers of `BY_ROUND`, with losses in place of accuracies that the model does not measure."""
    found = {name: record[name] for name in BY_ROUND}
    missing = [name for name, value in found.items() if name.endswith("accuracy") and value is None]
    losses = [name.replace("accuracy", "loss") for name in missing]
    return found | {name: record[name] for name in losses}


def _is_written(folder: Path) -> bool:
    return any(folder.glob(PATTERN))
