"""An experiment from its file to its last round: opened or resumed, replicate by replicate."""

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lottery import (
    compiling,
    config,
    criteria,
    enforcement,
    environment,
    files,
    masks,
    models,
    order,
    progress,
    pruning,
    results,
    rewinding,
    rounds,
    store,
    training,
    weights,
)
from lottery import data as data_module
from lottery.errors import LotteryError
from lottery.preparing import Prepared, build_model, prepare


def run(
    experiment: str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    model: Callable[[], Any] | None = None,
    data: Any = None,
    out: str | Path = "runs",
    report: progress.Report | None = None,
) -> results.Run:
    """Run an experiment, or go on with it where it was stopped, or find it complete.

    Args:
        experiment: A TOML file, the tables themselves, or None: the experiment that ships with the package, or the
            defaults of every key where a model or data are given.
        overrides: Tables that replace single values.
        model: A function without arguments that builds a Keras model. One that comes compiled keeps its optimiser,
            loss and metrics; otherwise the experiment's optimiser and a cross-entropy loss are used.
        data: ``(x_train, y_train, x_test, y_test)``, or ``(train, validation, test)`` as batched
            ``tf.data.Dataset`` or functions without arguments that return one.
        out: The folder that holds runs.
        report: Told what happens; by default it is shown on standard error.

    Returns:
        The run, complete.

    Raises:
        LotteryError: Something is wrong with what was given, with the files, or with the training; one sentence says
            what. Rounds that were complete stay so.
    """
    own = model is not None or data is not None
    settings = config.load({} if experiment is None and own else experiment, overrides)
    with contextlib.ExitStack() as stack:
        if report is None:
            report = stack.enter_context(progress.shown())
        prepared = None
        if own or settings.model.name not in models.MODELS:
            # What was passed is part of the experiment, so it is looked at before the run's folder has a name.
            environment.use_threads(environment.threads_of_like_runs(out, settings) or settings.run.num_threads)
            prepared = prepare(settings, model, data)
            settings = prepared.experiment
        path = store.run_path(out, settings)
        if store.is_complete(path, settings):
            _check_all(path, settings)
            if settings.data.path and Path(settings.data.path).exists():
                environment.check_data(path, data_module.load(settings.data).fingerprint)
            report(progress.Note(f"{path} is complete."))
            return results.Run(path)
        existed = path.exists()
        if existed:
            stack.enter_context(store.opened(path, settings))
            _check_all(path, settings)
        num_threads = store.read_environment(path).get("num_threads") or settings.run.num_threads
        num_threads = environment.use_threads(num_threads)
        prepared = prepared or prepare(settings, model, data)
        loop, mode = prepared.loop, settings.run.enforcement
        loop.callbacks.extend(stack.enter_context(enforcement.ENFORCEMENTS[mode](loop.model, loop.masks)))
        if not existed:  # until here nothing was written, whatever was wrong
            stack.enter_context(store.opened(path, settings))
        notes = environment.record(path, settings, prepared.loop.model, prepared.data.fingerprint, num_threads)
        size = f"{path}: replicates: {settings.run.num_replicates}, rounds of each: {settings.prune.num_rounds + 1}."
        for note in (*prepared.notes, *notes, size):
            report(progress.Note(note))
        for replicate in range(1, settings.run.num_replicates + 1):
            if len(store.complete_rounds(path, replicate)) <= settings.prune.num_rounds:
                _find_ticket(path, prepared, replicate, report)
    return results.Run(path)


def _find_ticket(path: Path, prepared: Prepared, replicate: int, report: progress.Report) -> None:
    import tensorflow as tf

    experiment, loop = prepared.experiment, prepared.loop
    start = _start(path, prepared, replicate)
    score = criteria.CRITERIA[experiment.prune.criterion]
    initial = {name: start[name] for name in loop.masks}
    thresholds: dict[str, float | None] = dict.fromkeys(loop.masks)
    began = time.perf_counter()

    def where(index: int, kept: masks.Masks, step: int, accuracy: float) -> progress.Step:
        return progress.Step(
            replicate, experiment.run.num_replicates, index, experiment.prune.num_rounds, masks.density(kept), step,
            experiment.train.num_steps, accuracy,
        )  # fmt: skip

    def prune(index: int, trained: Mapping[str, np.ndarray], kept: masks.Masks) -> masks.Masks:
        nonlocal thresholds
        scores = score(initial, {name: trained[name] for name in kept})
        pruned = pruning.round_masks(experiment.prune, index, scores, kept)
        thresholds = pruning.thresholds(scores, kept, pruned)
        return pruned

    def train(index: int, kept: masks.Masks) -> training.Trained:
        words = (experiment.run.seed, replicate, order.BATCHES)
        try:
            return training.train(
                loop, start, kept, experiment.train, words,
                lambda step, accuracy: report(where(index, kept, step, accuracy)),
            )  # fmt: skip
        except (LotteryError, tf.errors.OpError) as error:
            what = error if isinstance(error, LotteryError) else f"TensorFlow stopped: {compiling.reason(error)}."
            raise LotteryError(
                f"Replicate {replicate}, round {index}: {what} The rounds before it are kept in {str(path)!r}."
            ) from error

    for one in rounds.find_ticket(initial, train, prune, experiment.prune.num_rounds, _last(path, replicate)):
        counts = masks.num_kept(one.kept)
        record = {
            "replicate": replicate, "branch": "ticket", "round": one.index,
            "density": masks.density(one.kept), "num_kept": sum(counts.values()),
            "num_weights": sum(mask.size for mask in one.kept.values()),
            "kept": counts, "thresholds": thresholds,
            "collapsed": [name for name, count in counts.items() if not count],
            **one.trained.summary,
            "start_sha256": one.trained.start_sha256, "jit_compile": loop.jit_compile,
            "seconds": round(time.perf_counter() - began, 3),
        }  # fmt: skip
        folder = store.round_path(path, replicate, one.index)
        record = store.write_round(folder, one.kept, one.trained.weights, one.trained.metrics, record)
        began = time.perf_counter()
        report(
            progress.Done(where(one.index, one.kept, experiment.train.num_steps, record["final_val_accuracy"]), record)
        )


def _start(path: Path, prepared: Prepared, replicate: int) -> dict[str, np.ndarray]:
    """The weights that every round of a replicate starts from, stored before the first."""
    seed = order.seed_for(prepared.experiment.run.seed, replicate, order.INITIALISATION)
    built = build_model(prepared.build, seed)
    start, file = weights.read_state(built), path / f"replicate-{replicate}" / "initial.safetensors"
    if not file.exists():
        files.write(file, files.pack_arrays(start))
    stored = files.read_arrays(file)
    if rewinding.fingerprint(stored) != rewinding.fingerprint(start):
        raise LotteryError(
            f"The model is built with other initial weights than those in {str(file)!r}, so this run cannot go on: "
            "the file was changed, or the model, or a version of what it is built with."
        )
    return start


def _last(path: Path, replicate: int) -> tuple[int, masks.Masks, dict[str, np.ndarray]] | None:
    """The last complete round, to go on from."""
    indices = store.complete_rounds(path, replicate)
    if not indices:
        return None
    folder = store.round_path(path, replicate, indices[-1])
    return (
        indices[-1],
        files.read_masks(folder / "masks.safetensors"),
        files.read_arrays(folder / "weights.safetensors"),
    )


def _check_all(path: Path, settings: config.Experiment) -> None:
    """Refuse a run of which a file is not what was written: its table would show it, its next round build on it."""
    store.read_experiment(path)
    for replicate in range(1, settings.run.num_replicates + 1):
        folders = [store.round_path(path, replicate, index) for index in store.complete_rounds(path, replicate)]
        for folder in folders:
            store.check_files(folder)
        initial = path / f"replicate-{replicate}" / "initial.safetensors"
        if not folders:
            continue
        if rewinding.fingerprint(files.read_arrays(initial)) != store.read_record(folders[0])["start_sha256"]:
            raise LotteryError(f"{str(initial)!r} is damaged: it is not what round 0 started from.")
