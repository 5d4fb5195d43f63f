"""The error on the path between two copies of a run's networks, measured and stored."""

import contextlib
import csv
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from lottery import config, files, masks, progress, weights
from lottery.analysis import connectivity, connectivity_files
from lottery.analysis.connectivity_files import Place
from lottery.data import Streams
from lottery.errors import LotteryError, unknown
from lottery.pipeline import branching, interpolation, preparing
from lottery.pipeline import rounds as rounds_module
from lottery.pipeline.dispatch import Execution
from lottery.pipeline.preparing import Ingredients, Prepared
from lottery.pipeline.rounds import Network, Training, Watch
from lottery.runs import store
from lottery.training.checkpoints import Every
from lottery.training.loop import Logs
from lottery.training.trainer import Span

# By split, what reports; what recomputes statistics, if anything; and how many points.
Measure = tuple[Mapping[str, Callable[[], Logs]], Callable[[], None] | None, int]


def is_measured(path: Path, settings: config.Experiment, place: Place, recomputed: bool, num_points: int) -> bool:
    """Whether a path between the networks that are stored is there, with so many points."""
    file = connectivity_files.path_file(path, *place, recomputed)
    if not (file.exists() and connectivity_files.record_file(file).exists()):
        return False
    record, _ = connectivity_files.read_path(file)
    return record["num_points"] >= num_points and not connectivity_files.misfit(
        path, settings, place, record["networks"]
    )


def measure_path(job: Training, path: Path, place: Place, measure: Measure) -> None:
    """Evaluate and store the path between the two copies."""
    (replicate, index, step), loop = place, job.prepared.trainer.loop
    evaluations, recompute, num_points = measure
    folders = [
        connectivity_files.network_path(path, job.prepared.experiment, *place, number)
        for number in connectivity_files.ORDERS
    ]
    for folder in folders:
        store.check_files(folder)
    one, other = (files.read_arrays(folder / "weights.safetensors") for folder in folders)
    job.prepared.trainer.set_masks(files.read_masks(folders[0] / "masks.safetensors"))
    rows = interpolation.path(loop.model, one, other, evaluations, np.linspace(0, 1, num_points), recompute)
    digests = connectivity_files.network_digests(path, job.prepared.experiment, place)
    connectivity_files.write_path(connectivity_files.path_file(path, *place, recompute is not None), rows, digests)
    tested = [row for row in rows if row[1] == "test"]
    found = connectivity.measured([row[0] for row in tested], [row[3] for row in tested])
    job.report(
        progress.Note(
            f"Replicate {replicate}, round {index}, step {step}: the test-error barrier is "
            f"{100 * found['barrier']:.2f} % ({'' if found['stable'] else 'not '}stable)."
        )
    )


def connect(
    run: str | Path,
    rounds: Sequence[int] = (),
    steps: Sequence[int] = (),
    replicate: int | None = None,
    num_points: int = 30,
    recompute: bool = False,
    ingredients: Ingredients = Ingredients(),  # noqa: B008 (frozen)
    execution: Execution = Execution(),  # noqa: B008 (frozen)
) -> None:
    """Measure how stable a run's networks are to the noise of training, or go on, or find it complete.

    Linear mode connectivity of Frankle et al. 2020, https://arxiv.org/abs/1912.05671: from W_k, the weights of the
    dense network at step k, two copies are trained to the end under a round's masks, with two orders of the data and
    a fresh optimiser each, and the networks on the straight line between the two are evaluated. The first order is
    the run's own, so that a round which starts from step k is the first copy. The second copy has chance of its own in
    all else too: augmentation and the states of random layers, such as those of dropout, are drawn anew for it.
    `connectivity` has what comes of it.

    The masks of a round are those that the run has found by rewinding to its own rewind step, whatever k is. The
    paper finds masks for each k anew, which takes a run of its own for each.

    Of training data that do not end within one training, such as those that repeat, only the test error is measured.

    Args:
        run: The run's folder; below it everything is stored as soon as it is there.
        rounds: Which rounds; every complete one, the dense network among them, where it is empty.
        steps: From which steps k; the run's rewind step where it is empty.
        replicate: Of which replicate; of all where it is None.
        num_points: Points on the line, its ends included; a path that is stored with more is kept.
        recompute: Whether statistics of BatchNormalization layers are measured anew at each point (see
            `interpolation.recomputed`), and not interpolated as they are stored.
        ingredients: The objects that were passed to the run.
        execution: How to train; always in this process.

    Raises:
        LotteryError: There is no such run, round, replicate or step; its rounds do not start from rewound weights; the
            two orders of its data are one; or a copy that is stored is damaged or has not the round's masks any more.
    """
    path = Path(run)
    settings = store.read_experiment(path)
    steps = _steps(settings, steps)
    interpolation.check_num_points(num_points)
    chosen = branching.stored_rounds(path, settings, rounds, replicate)
    _check_accuracy(path, chosen)
    places = [(number, index, step) for number, index in chosen for step in steps]
    with execution.begun() as (report, asked), contextlib.ExitStack() as stack:
        prepared = preparing.open_run(stack, path, settings, ingredients)[0]
        loop, again = prepared.trainer.loop, None
        stack.callback(prepared.trainer.close)
        prepared.trainer.hold()
        if recompute:
            again = interpolation.recomputed(loop.model, interpolation.training_batches(prepared.data))
            if again is None:
                report(progress.Note("The network has no BatchNormalization, so there are no statistics to recompute."))
        begun = {
            place for place in places if connectivity_files.state_path(path, settings, place[0], place[2]).exists()
        }
        _check_copies(path, settings, [place for place in places if place in begun])
        spans = _spans(path, settings, places)
        report = progress.tallied(
            report, {(connectivity_files.folder(path), *network): span for network, span in spans.items()}
        )
        every, report = execution.checkpoint_every or Every(), rounds_module.while_there(path, report)
        job = Training(connectivity_files.folder(path), prepared, report, every, asked)
        todo = {place: [one for one in connectivity_files.ORDERS if _network(place, one) in spans] for place in places}
        wanted = [
            place for place in places
            if todo[place] or not is_measured(path, settings, place, again is not None, num_points)
        ]  # fmt: skip
        if not spans and not wanted:
            report(progress.Note(f"All {len(places)} paths of {path} are complete."))
        if spans:
            _check_orders(prepared)
        evaluations = interpolation.evaluations(loop, prepared.data, settings.train.num_steps) if wanted else {}
        if wanted and "train" not in evaluations:
            report(
                progress.Note("The training data do not end within one training, so only the test error is measured.")
            )
        measure = (evaluations, again, num_points)
        for number in dict.fromkeys(place[0] for place in places):
            own = [place for place in places if place[0] == number]
            _store_states(job, path, number, {step for _, _, step in own})
            _check_copies(path, settings, [place for place in own if place not in begun])
            for place in own:
                for order in todo[place]:
                    _train(job, path, place, order)
                if place in wanted:
                    measure_path(job, path, place, measure)


def _steps(settings: config.Experiment, steps: Sequence[int]) -> list[int]:
    if settings.rewind.mode != "weights":
        raise unknown("rewind.mode of a run whose networks are to be connected", settings.rewind.mode, ["weights"])
    last = settings.train.num_steps
    for step in steps:
        if not 0 <= step < last:
            raise LotteryError(f"steps: received {step}, allowed are some from 0 to {last - 1}.")
    return sorted(set(steps)) or [settings.rewind.step]


def _check_accuracy(path: Path, chosen: Sequence[tuple[int, int]]) -> None:
    for place in chosen:
        if store.read_record(store.round_path(path, *place))["final_test_accuracy"] is None:
            raise LotteryError("The model of this run measures no accuracy, so there is no error to find a barrier of.")


def _check_orders(prepared: Prepared) -> None:
    """Refuse a data set that comes in one order, whatever the seed: its two copies would be one."""
    import tensorflow as tf

    if not isinstance(prepared.data, Streams):
        return
    words = [connectivity_files.words(prepared.experiment, 1, order) for order in connectivity_files.ORDERS]
    one, other = (tf.nest.flatten(next(prepared.trainer.loop.batches(each)(1)[0])) for each in words)
    if all(np.array_equal(np.array(first), np.array(second)) for first, second in zip(one, other, strict=True)):
        raise LotteryError(
            "The training data come in the same order whatever the seed, so two copies would be one; pass a function "
            "that builds and shuffles them."
        )


def _check_copies(path: Path, settings: config.Experiment, places: Sequence[Place]) -> None:
    """Refuse copies that are damaged, or not of the round as it is now: neither trained beside nor called complete."""
    for place in places:
        for folder in (
            connectivity_files.network_path(path, settings, *place, number) for number in connectivity_files.ORDERS
        ):
            if connectivity_files.folder(path) in folder.parents and (folder / "round.json").exists():
                for said in connectivity.wrong_network(path, settings, folder):
                    raise LotteryError(f"{str(folder)!r}: {said} Delete it to have it trained again.")


def _spans(path: Path, settings: config.Experiment, places: Sequence[Place]) -> dict[Network, tuple[int, int]]:
    """From which step to which what is missing is still to be trained: for each replicate the dense network up to the
    last step that is wanted, then the copies."""
    spans: dict[Network, tuple[int, int]] = {}
    for number in dict.fromkeys(place[0] for place in places):
        own = [place for place in places if place[0] == number]
        wanted = {place[2] for place in own}
        if missing := _missing(path, settings, number, wanted):
            spans[number, 0, _dense(missing)] = 0, missing[-1]
        for place in own:
            for order in connectivity_files.ORDERS:
                if not (connectivity_files.network_path(path, settings, *place, order) / "round.json").exists():
                    spans[_network(place, order)] = place[2], settings.train.num_steps
    return spans


def _network(place: Place, number: int) -> Network:
    replicate, index, step = place
    return replicate, index, connectivity_files.label(step, number)


def _missing(path: Path, settings: config.Experiment, number: int, steps: Collection[int]) -> list[int]:
    """The steps of a replicate's dense network that are not stored yet."""
    return sorted(step for step in steps if not connectivity_files.state_path(path, settings, number, step).exists())


def _dense(steps: Sequence[int]) -> str:
    """What the training of the dense network up to the last of some steps is called, while it lasts."""
    return f"to_step_{steps[-1]}"


def _store_states(job: Training, path: Path, number: int, steps: Collection[int]) -> None:
    """Make the dense network of a replicate again, as far as it takes for the steps that are not stored."""
    settings = job.prepared.experiment
    missing = _missing(path, settings, number, steps)
    if not missing:
        return

    def keep(step: int) -> Callable[[dict[str, np.ndarray]], None]:
        file = connectivity_files.state_path(path, settings, number, step)
        return lambda state: None if file.exists() else files.write(file, files.pack_arrays(state))

    initial = rounds_module.initial_state(dataclasses.replace(job, path=path), number)
    dense = masks.ones_like({name: initial[name] for name in job.prepared.trainer.masks})
    # All that are asked for, stored or not, so that a checkpoint is one of the same training.
    watch = {step: keep(step) for step in steps if 0 < step <= missing[-1]}
    network = number, 0, _dense(missing)
    trained = rounds_module.train_network(job, network, initial, dense, Span(0, missing[-1]), Watch(watch))
    store.clear_checkpoints(store.round_path(job.path, *network))
    if _missing(path, settings, number, steps):  # somebody took away what was stored before the checkpoint
        _store_states(job, path, number, steps)
    found = {step: loss for step, split, loss, _ in trained.metrics if split == "validation"}
    table = files.read(store.round_path(path, number, 0) / "metrics.csv").decode()
    lines = csv.DictReader(table.splitlines())
    before = {int(line["step"]): float(line["loss"]) for line in lines if line["split"] == "validation"}
    if other := [step for step in sorted(found) if before.get(step, found[step]) != found[step]]:
        job.report(
            progress.Note(
                f"Replicate {number}: the dense network was made again with other bits than those of the run (see the "
                f"validation loss at step {other[0]}): the processor or a version is another."
            )
        )


def _train(job: Training, path: Path, place: Place, number: int) -> None:
    """Train and store one of the copies."""
    replicate, index, step = place
    settings, network = job.prepared.experiment, _network(place, number)
    start = files.read_arrays(connectivity_files.state_path(path, settings, replicate, step))
    state_sha256 = weights.fingerprint(start)
    for folder in connectivity_files.networks_from(path, replicate, step):
        if store.read_record(folder)["step_sha256"] != state_sha256:
            raise LotteryError(
                f"The weights of step {step} of replicate {replicate} are not those that {str(folder)!r} began with."
            )
    kept = files.read_masks(store.round_path(path, replicate, index) / "masks.safetensors")
    words, begun = (
        connectivity_files.words(settings, replicate, number),
        connectivity_files.begun(settings, replicate, number, start),
    )
    job = _with_chance(job, replicate, number)
    trained = rounds_module.train_network(job, network, begun, kept, Span(step), words=words)
    about = {"order": number, "first_step": step, "last_step": settings.train.num_steps, "step_sha256": state_sha256}
    rounds_module.store_network(job, network, kept, trained, {**about, "thresholds": dict.fromkeys(kept)})


def _with_chance(job: Training, replicate: int, number: int) -> Training:
    """Begin the random generators that are no variables of the model as an order of the data has them."""
    if number == 1:
        return job
    settings = job.prepared.experiment

    def draw(name: str, value: np.ndarray) -> np.ndarray:
        # Names count the models that a process has built, so they do not decide what is drawn.
        if connectivity_files.is_generator(name):
            return connectivity_files.redrawn(settings, replicate, number, "", value)
        return value

    trainer = job.prepared.trainer.redrawn(draw)
    return dataclasses.replace(job, prepared=dataclasses.replace(job.prepared, trainer=trainer))
