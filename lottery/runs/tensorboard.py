"""What TensorBoard shows of a run: curves by step, accuracies by round, and networks by their hyper-parameters."""

import functools
import io
import json
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lottery import config, files, progress
from lottery.runs import results, store

FOLDER = "tensorboard"


# By round, one line for each replicate and branch; but for the density, of each network beside its hyper-parameters.
BY_ROUND = ("density", "early_stop_test_accuracy", "final_test_accuracy", "early_stop_step", "seconds")


# What networks of a run, or of several runs below one folder, may differ in.
HYPER_PARAMETERS = {
    "data.name": "STRING", "model.name": "STRING", "train.num_steps": "FLOAT64", "train.batch_size": "FLOAT64",
    "train.optimizer": "STRING", "train.learning_rate": "STRING", "prune.criterion": "STRING",
    "prune.scope": "STRING", "prune.rate": "FLOAT64", "rewind.step": "FLOAT64", "rewind.mode": "STRING",
    "run.seed": "FLOAT64",
}  # fmt: skip


_OF_NETWORK = {"branch": "STRING", "round": "FLOAT64", "density": "FLOAT64", "replicate": "FLOAT64"}


# TensorBoard looks for "tfevents". TensorFlow's own writer adds the name of the machine, which is nobody's business.
_EVENTS = "events.out.tfevents"


def write(run: Path) -> None:
    """Write what TensorBoard is to show of the networks that are stored, where it is not written yet.

    Below RUN/tensorboard, runs of TensorBoard are called ``replicate-1/round-07/ticket/train`` and ``.../validation``
    (and ``.../test`` if ``train.test_curve`` is true), with ``steps/loss`` and ``steps/accuracy``, so that a chart has
    both, as with Keras' own callback; ``replicate-1/rounds/ticket``, with `BY_ROUND` by round; and
    ``replicate-1/round-07/ticket``, with the hyper-parameters of a network and what came of it. Times are those of the
    stored files.

    Files are added to, never deleted while somebody may read them: a TensorBoard that is open drops what is superseded
    at an event that says from which step on, and goes on. Steps and rounds only ever go up after it, for its faster
    reader drops whatever does not precede what comes.

    Args:
        run: The run's folder.

    Raises:
        LotteryError: It is not a run, a record is damaged, or nothing can be written.
    """
    with files.readable_errors(run / FOLDER):
        _catch_up(run, store.read_experiment(run), str(time.time_ns()))


def writer(run: Path, experiment: config.Experiment, report: progress.Report = progress.silent) -> progress.Report:
    """Write for TensorBoard while networks are trained, each evaluation at once; first what `write` would write.

    A network's curves begin anew when its training does. Whatever goes wrong is said in one note; then nothing more is
    written, and training goes on.

    Args:
        run: The run's folder.
        experiment: The experiment.
        report: Told everything too.

    Returns:
        A function that takes what happens.
    """
    working, session = True, str(time.time_ns())

    def attempt(function: Any, *arguments: Any) -> None:
        nonlocal working
        if not working:
            return
        try:
            with files.readable_errors(run / FOLDER):
                store.check_there(run)
                function(run, experiment, session, *arguments)
        except Exception as error:  # a picture of the run must not stop it
            working = False
            report(progress.Note(f"Nothing more is written for TensorBoard: {str(error).rstrip('.')}."))

    def told(event: progress.Event) -> None:
        if isinstance(event, progress.Measured | progress.Done):
            attempt(_write_event, event)
        report(event)

    attempt(_catch_up)
    return told


def _catch_up(run: Path, experiment: config.Experiment, session: str) -> None:
    """Write every network and every round that is stored and not written."""
    begin = run / FOLDER
    _complete(begin, session, [_hyper_parameters_of_all()])
    rounds: dict[Path, list[Any]] = {place: [] for place in begin.glob("replicate-*/rounds/*")}
    for row in results.table(run).to_dict("records"):
        folder = store.round_path(run, row["replicate"], row["round"], row["branch"])
        record, ended = store.read_record(folder), (folder / "round.json").stat().st_mtime
        if not any(_place(run, record).glob(f"{_EVENTS}*")):
            rows = store.read_metrics(folder)
            first, last = rows[0][0], rows[-1][0]
            pace = record["seconds"] / max(last - first, 1)  # of its clock, which nobody wrote down
            for split in dict.fromkeys(split for _, split, *_ in rows):
                if _has_curve(experiment, split):
                    events = [
                        _scalars(_curves(loss, accuracy), step, ended - pace * (last - step))
                        for step, one, loss, accuracy in rows
                        if one == split
                    ]
                    _complete(_place(run, record) / split, session, events)
            _write_network(run, experiment, session, record, ended)
        rounds.setdefault(_rounds_place(run, record), []).append(_of_round(record, ended))
    for place, events in rounds.items():
        _complete(place, session, sorted(events, key=lambda event: event.step))


def _write_event(
    run: Path, experiment: config.Experiment, session: str, event: progress.Measured | progress.Done
) -> None:
    now = time.time()
    if isinstance(event, progress.Done):
        _write_network(run, experiment, session, event.record, now)
        place = _rounds_place(run, event.record)
        rounds = {one.step: one for one in [*_written(place), _of_round(event.record, now)]}
        _complete(place, session, [rounds[index] for index in sorted(rounds)])
        return
    place, (step, split, loss, accuracy) = _place(run, vars(event)), event.row
    if event.first:
        for whole in place.glob(f"{_EVENTS}*"):  # it says that the network is complete
            whole.unlink()
        for folder in {path.parent for path in place.glob(f"*/{_EVENTS}*")}:
            _append(folder, session, [_restart(step)])
    if _has_curve(experiment, split):
        _append(place / split, session, [_scalars(_curves(loss, accuracy), step, now)])


def _write_network(
    run: Path, experiment: config.Experiment, session: str, record: Mapping[str, Any], ended: float
) -> None:
    """What a network was trained with and what came of it: written last, and whole, so that it says that all is."""
    place = _place(run, record)
    # The first characters are all that there is room for.
    name = f"{record['replicate']}-{record['round']:02d}-{record['branch']} {run.name}"
    begun = _messages().SessionStartInfo(group_name=name, start_time_secs=ended - record["seconds"])
    for name, value in _hyper_parameters(experiment, record).items():
        if isinstance(value, str):
            begun.hparams[name].string_value = value
        else:
            begun.hparams[name].number_value = value
    end = _messages().SessionEndInfo(status=_messages().Status.STATUS_SUCCESS, end_time_secs=ended)
    events = [
        _of_plugin("session_start_info", begun),
        _scalars({f"trained/{name}": record[name] for name in BY_ROUND[1:]}, record["round"], ended),
        _of_plugin("session_end_info", end),
    ]
    files.write(place / f"{_EVENTS}.{session}", _header(0) + b"".join(_packed(event) for event in events))


def _of_round(record: Mapping[str, Any], ended: float) -> Any:
    return _scalars({f"rounds/{name}": record[name] for name in BY_ROUND}, record["round"], ended)


def _hyper_parameters(experiment: config.Experiment, record: Mapping[str, Any]) -> dict[str, str | float]:
    tables = experiment.model_dump(mode="json")
    for section, changed in record.get("overrides", {}).items():  # of a transfer
        tables[section] |= changed
    flat = {name: tables[name.split(".")[0]][name.split(".")[1]] for name in HYPER_PARAMETERS}
    values = {**{name: record[name] for name in _OF_NETWORK}, **flat}
    kinds = _OF_NETWORK | HYPER_PARAMETERS
    # A learning rate or an optimiser may be a number, a name or a table.
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return {name: texts[name] if kinds[name] == "STRING" else values[name] for name in values}


def _hyper_parameters_of_all() -> Any:
    """Which columns TensorBoard's table of networks has, those first in which the networks of a run differ."""
    columns = [
        _messages().HParamInfo(name=name, differs=name in _OF_NETWORK, type=f"DATA_TYPE_{kind}")
        for name, kind in (_OF_NETWORK | HYPER_PARAMETERS).items()
    ]
    metrics = [
        _messages().MetricInfo(name=_messages().MetricName(tag=f"trained/{name}"), display_name=name)
        for name in BY_ROUND[1:]
    ]
    return _of_plugin("experiment", _messages().Experiment(hparam_infos=columns, metric_infos=metrics))


def _of_plugin(what: str, message: Any) -> Any:
    """An event for TensorBoard's table of hyper-parameters."""
    content = _messages().HParamsPluginData(**{what: message})
    value = _messages().Summary.Value(
        tag=getattr(_messages().of, f"{what.upper()}_TAG"),
        metadata=_messages().of.create_summary_metadata(content),
        tensor=_messages().of.NULL_TENSOR,
    )
    return _messages().Event(wall_time=time.time(), summary=_messages().Summary(value=[value]))


def _scalars(values: Mapping[str, float | None], step: int, at: float) -> Any:
    known = {tag: value for tag, value in values.items() if value is not None and value == value}
    found = [_messages().Summary.Value(tag=tag, simple_value=value) for tag, value in known.items()]
    return _messages().Event(wall_time=at, step=step, summary=_messages().Summary(value=found))


def _complete(folder: Path, session: str, wanted: Sequence[Any]) -> None:
    """Add what a folder lacks of the events it is to have, whose steps go up; from where it is wrong, all anew."""
    written, right = _written(folder), 0
    for one, other in zip(written, wanted, strict=False):
        if (one.step, one.summary) != (other.step, other.summary):
            break
        right += 1
    missing = list(wanted[right:])
    if written[right:]:
        step = min(event.step for event in [*written[right:], *missing])
        missing = [_restart(step), *(event for event in wanted if event.step >= step)]
    if missing:
        _append(folder, session, missing)


def _written(folder: Path) -> list[Any]:
    """The events with values of a folder that TensorBoard shows, in the order in which they were written."""
    events: list[Any] = []
    for path in sorted(folder.glob(f"{_EVENTS}*")):
        content, start = path.read_bytes(), 0
        while start + 12 <= len(content):  # of each record: its length, a checksum, the event, a checksum
            end = start + 12 + struct.unpack_from("<Q", content, start)[0]
            if content[start : end + 4] != _record(content[start + 12 : end]):
                break  # the end of a file whose writer was killed; the readers go no further either
            event = _messages().Event.FromString(content[start + 12 : end])
            if event.session_log.status == _messages().SessionLog.START:
                events = [one for one in events if one.step < event.step]
            elif event.HasField("summary"):
                events.append(event)
            start = end + 4
    return events


def _append(folder: Path, session: str, events: Sequence[Any]) -> None:
    """Add events to a file of this session, opened and closed each time: whoever reads it sees them at once."""
    path = folder / f"{_EVENTS}.{session}"
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write((b"" if file.tell() else _header(events[0].step)) + b"".join(_packed(event) for event in events))


def _header(step: int) -> bytes:
    """What a file begins with. One reader takes only the second restart that it sees for one, so every file has it."""
    return _packed(_messages().Event(wall_time=time.time(), file_version="brain.Event:2")) + _packed(_restart(step))


def _restart(step: int) -> Any:
    """An event that makes TensorBoard drop what a run of its has at a step and after it."""
    started = _messages().SessionLog(status=_messages().SessionLog.START)
    return _messages().Event(wall_time=time.time(), step=step, session_log=started)


def _packed(event: Any) -> bytes:
    return _record(event.SerializeToString())


def _record(content: bytes) -> bytes:
    """Bytes as a record of TensorFlow's."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    record = io.BytesIO()
    RecordWriter(record).write(content)
    return record.getvalue()


@functools.cache
def _messages() -> Any:
    """TensorBoard's own; without TensorFlow, which ``tensorboard.plugins.hparams.api`` would import."""
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    return SimpleNamespace(
        **{**vars(plugin_data_pb2), **vars(api_pb2), **vars(summary_pb2), **vars(event_pb2)}, of=metadata
    )


def _curves(loss: float, accuracy: float) -> dict[str, float]:
    return {"steps/loss": loss, "steps/accuracy": accuracy}


def _has_curve(experiment: config.Experiment, split: str) -> bool:
    """The test set is a curve only where it is measured each time, not at the early-stop step and the last alone."""
    return split != "test" or experiment.train.test_curve


def _place(run: Path, record: Mapping[str, Any]) -> Path:
    return run / FOLDER / f"replicate-{record['replicate']}" / f"round-{record['round']:02d}" / record["branch"]


def _rounds_place(run: Path, record: Mapping[str, Any]) -> Path:
    return run / FOLDER / f"replicate-{record['replicate']}" / "rounds" / record["branch"]
