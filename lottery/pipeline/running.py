"""An experiment from its file to its last round: opened or resumed, replicate by replicate."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lottery import config, progress, stopping
from lottery import data as data_module
from lottery.executors import cluster, scheduler
from lottery.models import networks
from lottery.pipeline import dispatch, environment
from lottery.pipeline.preparing import prepare
from lottery.pruning import criteria
from lottery.runs import results, store, verification
from lottery.runs.tensorboard import writer as tensorboard_writer
from lottery.training import checkpoints


def run(
    experiment: str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    model: Callable[[], Any] | None = None,
    data: Any = None,
    criterion: criteria.Criterion | None = None,
    out: str | Path = "runs",
    report: progress.Report | None = None,
    tensorboard: bool = True,
    workers: int | cluster.Ray | None = 1,
    checkpoint_every: checkpoints.Every | None = None,
    asked: stopping.Asked | None = None,
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
        criterion: A function from `criteria.CriterionInputs` to scores by weight, instead of a named criterion.
        out: The folder that holds runs.
        report: Told what happens; by default it is shown on standard error.
        tensorboard: Whether to write for TensorBoard too, in the run's folder; see `lottery.runs.tensorboard`.
        workers: In how many processes networks are trained; with None, in as many as this machine has room for, which
            is said; or on a cluster, as a `cluster.Ray`. The bits do not depend on it.
        checkpoint_every: How often a network in training is checkpointed; by default at most 60 seconds of work are at
            risk.
        asked: Whether somebody has asked to stop; by default, whether there was SIGINT or SIGTERM.

    Returns:
        The run, complete.

    Raises:
        LotteryError: Something is wrong with what was given, with the files, or with the training; one sentence says
            what. Networks that were complete stay so, and one that fails does not stop the others.
        Stopped: Somebody has asked to stop, as by Ctrl-C. Everything that was in training has a checkpoint, and the
            same call goes on from there. It is a ``KeyboardInterrupt``.
    """
    own = model is not None or data is not None
    settings = config.load({} if experiment is None and own else experiment, overrides)
    dispatch.check_workers(workers)
    with contextlib.ExitStack() as stack:
        if report is None:
            report = stack.enter_context(progress.shown())
        if asked is None:
            asked = stack.enter_context(stopping.asked())
        prepared = None
        if own or criterion is not None or not networks.is_built_in(settings.model.name):
            # What was passed is part of the experiment, so it is looked at before the run's folder has a name.
            environment.begin_threads(settings, environment.threads_of_like_runs(out, settings))
            prepared = prepare(settings, model, data, criterion)
            settings = prepared.experiment
        path = store.run_path(out, settings)
        if store.is_complete(path, settings):
            verification.refuse_damaged(path, settings)
            if settings.data.path and Path(settings.data.path).exists():
                environment.check_data(path, data_module.load(settings.data).fingerprint)
            if tensorboard:  # it was killed after its last round, or run without
                tensorboard_writer(path, settings, report)
            report(progress.Note(f"{path} is complete."))
            return results.Run(path)
        existed = path.exists()
        if existed:
            stack.enter_context(store.opened(path, settings))
            verification.refuse_damaged(path, settings)
        num_threads = environment.begin_threads(settings, store.read_environment(path).get("num_threads", 0))
        prepared = prepared or prepare(settings, model, data, criterion)
        if not existed:  # until here nothing was written, whatever was wrong
            stack.enter_context(store.opened(path, settings))
        notes = environment.record(path, settings, prepared.loop.model, prepared.data, num_threads)
        tasks = [task for task in wanted(path, settings) if not store.is_stored(path, *task.network)]
        size = f"{path}: replicates: {settings.run.num_replicates}, networks of each: {len(store.wanted(settings))}."
        for note in (*prepared.notes, *notes, size):
            report(progress.Note(note))
        if tensorboard:
            report = tensorboard_writer(path, settings, report)
        work = dispatch.Work(
            path, settings, num_threads, prepared.data.fingerprint, model, data, criterion,
            every=checkpoint_every or checkpoints.Every(),
        )  # fmt: skip
        workers = dispatch.num_workers(workers, {path: work}, tasks, report, prepared)
        dispatch.carry_out({path: work}, tasks, workers, {path: prepared}, report, asked)
    return results.Run(path)


def wanted(path: Path, settings: config.Experiment) -> list[scheduler.Task]:
    """Every network of a run, stored or not, in the order of training."""
    replicates = range(1, settings.run.num_replicates + 1)
    return [scheduler.Task(path, (number, *one)) for number in replicates for one in store.wanted(settings)]
