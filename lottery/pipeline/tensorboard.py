"""What TensorBoard shows of a run: curves by step, accuracies by round, and networks by their hyper-parameters."""

# Protocol buffers make their classes at run time.
# pyright: reportAttributeAccessIssue=false

import io
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.summary.writer.record_writer import RecordWriter

from lottery import config, files, progress
from lottery.runs import store
from lottery.statistics import results

FOLDER = "tensorboard"

# By round, one line for each replicate and branch; all but the density also beside a network's hyper-parameters.
BY_ROUND = ("density", "early_stop_test_accuracy", "final_test_accuracy", "early_stop_step", "seconds")

OF_NETWORK = {"branch": "STRING", "round": "FLOAT64", "density": "FLOAT64", "replicate": "FLOAT64"}
# In which networks of several runs below one folder may differ, and those of a run where they were transferred.
HYPER_PARAMETERS = {
    "data.name": "STRING", "model.name": "STRING", "train.num_steps": "FLOAT64", "train.batch_size": "FLOAT64",
    "train.optimizer": "STRING", "train.learning_rate": "STRING", "prune.criterion": "STRING",
    "prune.scope": "STRING", "prune.rate": "FLOAT64", "rewind.step": "FLOAT64", "rewind.mode": "STRING",
    "run.seed": "FLOAT64",
}  # fmt: skip

# TensorBoard looks for "tfevents". Its own writer appends the machine's name, which is private.
_EVENTS = "events.out.tfevents"


def write(run: Path) -> None:
    """Write for TensorBoard the networks that are stored and that it does not show yet.

    Below RUN/tensorboard, TensorBoard's runs are ``replicate-1/round-07/ticket/train`` and so on for other splits, each
    with ``steps/loss`` and ``steps/accuracy``, so that one chart shows all splits; ``replicate-1/rounds/ticket`` with
    `BY_ROUND`; and ``replicate-1/round-07/ticket`` with a network's hyper-parameters and results. Files are only
    appended to, because an open TensorBoard may be reading them: where a curve starts again, an event (the
    ``purge_step`` of other writers) makes it drop all points from there on.
    """
    with files.readable_errors(run / FOLDER):
        _write_stored(run, store.read_experiment(run), str(time.time_ns()))


def writer(run: Path, experiment: config.Experiment, on_event: progress.OnEvent = progress.silent) -> progress.OnEvent:
    """Write for TensorBoard while networks train: first all that is stored, as `write`, then each evaluation at once.

    Events are passed on to `on_event`. After an error, of which it gets one note, nothing more is written.
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
        except Exception as error:  # a display must not stop the run
            working = False
            on_event(progress.Note(f"Nothing more is written for TensorBoard: {str(error).rstrip('.')}."))

    def write_and_report(event: progress.Event) -> None:
        if isinstance(event, progress.Evaluated):
            attempt(_write_evaluation, event)
        elif isinstance(event, progress.Done):
            attempt(_write_done, event.record)
        on_event(event)

    attempt(_write_stored)
    return write_and_report


def _write_stored(run: Path, experiment: config.Experiment, session: str) -> None:
    if not any((run / FOLDER).glob(f"{_EVENTS}*")):
        _append(run / FOLDER, session, [_columns()])
    for _, rows in results.table(run).groupby(["replicate", "branch"], sort=False):
        records = [store.read_record(_folder(run, row)) for row in rows.to_dict("records")]
        missing = [record for record in records if not any(_place(run, record).glob(f"{_EVENTS}*"))]
        if missing or not any(_place(run, records[0], "rounds").glob(f"{_EVENTS}*")):
            _write_rounds(run, session, records)
        for record in missing:
            _write_curves(run, experiment, session, record)
            _write_results(run, experiment, session, record)


def _write_curves(run: Path, experiment: config.Experiment, session: str, record: Mapping[str, Any]) -> None:
    place, rows, ended = _place(run, record), store.read_metrics(_folder(run, record)), _ended(run, record)
    first, last = rows[0][0], rows[-1][0]
    pace = record["seconds"] / max(last - first, 1)  # seconds of a step, to estimate when it was
    _start_again(place, session, first)
    for split in dict.fromkeys(split for _, split, *_ in rows):
        if _has_curve(experiment, split):
            points = [(step, loss, accuracy) for step, one, loss, accuracy in rows if one == split]
            _append(place / split, session, [_point(*point, ended - pace * (last - point[0])) for point in points])


def _write_evaluation(run: Path, experiment: config.Experiment, session: str, event: progress.Evaluated) -> None:
    place, (step, split, loss, accuracy) = _place(run, vars(event)), event.row
    if event.first:
        _start_again(place, session, step)
    if _has_curve(experiment, split):
        _append(place / split, session, [_point(step, loss, accuracy, time.time())])


def _start_again(place: Path, session: str, step: int) -> None:
    """Drop what TensorBoard shows of a network, from a step on."""
    for path in place.glob(f"{_EVENTS}*"):
        path.unlink()
    for folder in {path.parent for path in place.glob(f"*/{_EVENTS}*")}:
        _append(folder, session, [_purge(step)])


def _write_done(run: Path, experiment: config.Experiment, session: str, record: Mapping[str, Any]) -> None:
    # A branch may be trained after that of a later round: then this one is written again.
    indices = range(record["round"] + 1, experiment.prune.num_rounds + 1)
    folders = [_folder(run, {**record, "round": index}) for index in indices]
    later = [store.read_record(folder) for folder in folders if (folder / "round.json").exists()]
    _write_rounds(run, session, [record, *later])
    _write_results(run, experiment, session, record)


def _write_rounds(run: Path, session: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Write rounds of one replicate and branch in place of all from the first of them on."""
    events = [
        _scalars(
            {f"rounds/{name}": value for name, value in _of_round(record).items()}, record["round"], _ended(run, record)
        )
        for record in records
    ]
    _append(_place(run, records[0], "rounds"), session, [_purge(records[0]["round"]), *events])


def _write_results(run: Path, experiment: config.Experiment, session: str, record: Mapping[str, Any]) -> None:
    """Write what a network was trained with and its results: last, and whole, as a sign that all is written."""
    ended = _ended(run, record)
    measured = {name: value for name, value in _of_round(record).items() if name != "density"}
    # TensorBoard has room for the first characters alone.
    name = f"{record['replicate']}-{record['round']:02d}-{record['branch']} {run.name}"
    start = SessionStartInfo(group_name=name, start_time_secs=ended - record["seconds"])
    for name, value in _hyper_parameters(experiment, record).items():
        setattr(start.hparams[name], "string_value" if isinstance(value, str) else "number_value", value)
    end = SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=ended)
    events = [
        _of_plugin(metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start)),
        _scalars({f"trained/{name}": value for name, value in measured.items()}, record["round"], ended),
        _of_plugin(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end)),
    ]
    files.write(_place(run, record) / f"{_EVENTS}.{session}", _packed([*_header(0), *events]))


def _of_round(record: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers of `BY_ROUND`, with losses in place of accuracies that the model does not measure."""
    found = {name: record[name] for name in BY_ROUND}
    missing = [name for name, value in found.items() if name.endswith("accuracy") and value is None]
    return found | {loss: record[loss] for loss in (name.replace("accuracy", "loss") for name in missing)}


def _hyper_parameters(experiment: config.Experiment, record: Mapping[str, Any]) -> dict[str, str | float]:
    tables = experiment.model_dump(mode="json")
    for section, changed in record.get("overrides", {}).items():  # of a transfer
        tables[section] |= changed
    values: dict[str, Any] = {name: record[name] for name in OF_NETWORK}
    for name, kind in HYPER_PARAMETERS.items():
        section, key = name.split(".")
        value = tables[section][key]
        # A learning rate or an optimizer may be a number, a name or a table.
        values[name] = json.dumps(value) if kind == "STRING" and not isinstance(value, str) else value
    return values


def _columns() -> Event:
    """The columns of TensorBoard's table of networks, first those in which the networks of a run differ."""
    columns = [
        api_pb2.HParamInfo(name=name, differs=name in OF_NETWORK, type=f"DATA_TYPE_{kind}")
        for name, kind in (OF_NETWORK | HYPER_PARAMETERS).items()
    ]
    metrics = [
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=f"trained/{name}"), display_name=name) for name in BY_ROUND[1:]
    ]
    experiment = api_pb2.Experiment(hparam_infos=columns, metric_infos=metrics)
    return _of_plugin(metadata.EXPERIMENT_TAG, HParamsPluginData(experiment=experiment))


def _of_plugin(tag: str, content: HParamsPluginData) -> Event:
    value = Summary.Value(tag=tag, metadata=metadata.create_summary_metadata(content), tensor=metadata.NULL_TENSOR)
    return Event(wall_time=time.time(), summary=Summary(value=[value]))


def _point(step: int, loss: float, accuracy: float, at: float) -> Event:
    return _scalars({"steps/loss": loss, "steps/accuracy": accuracy}, step, at)


def _scalars(values: Mapping[str, float | None], step: int, at: float) -> Event:
    known = [(tag, value) for tag, value in values.items() if value is not None and value == value]
    found = [Summary.Value(tag=tag, simple_value=value) for tag, value in known]
    return Event(wall_time=at, step=step, summary=Summary(value=found))


def _header(step: int) -> list[Event]:
    # One of TensorBoard's readers ignores the first purge that it sees, so every file begins with one.
    return [Event(wall_time=time.time(), file_version="brain.Event:2"), _purge(step)]


def _purge(step: int) -> Event:
    """An event that makes TensorBoard drop all points of a folder at a step and after it."""
    return Event(wall_time=time.time(), step=step, session_log=SessionLog(status=SessionLog.START))


def _append(folder: Path, session: str, events: Sequence[Event]) -> None:
    """Append to a file of this session, which is opened and closed each time: readers see the events at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{_EVENTS}.{session}").open("ab") as file:
        file.write(_packed([*([] if file.tell() else _header(events[0].step)), *events]))


def _packed(events: Sequence[Event]) -> bytes:
    content = io.BytesIO()
    writing = RecordWriter(content)
    for event in events:
        writing.write(event.SerializeToString())
    return content.getvalue()


def _has_curve(experiment: config.Experiment, split: str) -> bool:
    return split != "test" or experiment.train.test_curve  # else only at the early-stop step and the last step


def _folder(run: Path, record: Mapping[str, Any]) -> Path:
    return store.round_path(run, record["replicate"], record["round"], record["branch"])


def _ended(run: Path, record: Mapping[str, Any]) -> float:
    return (_folder(run, record) / "round.json").stat().st_mtime


def _place(run: Path, record: Mapping[str, Any], of: str = "") -> Path:
    return run / FOLDER / f"replicate-{record['replicate']}" / (of or f"round-{record['round']:02d}") / record["branch"]
