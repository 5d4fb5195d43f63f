"""An experiment from its file to its last round, in one run: `lottery.run` and `lottery run`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lottery import config
from lottery.errors import LotteryError
from lottery.formatting import counted
from lottery.pipeline import dispatch, environment, opening
from lottery.pipeline.prepared import Ingredients, Prepared, with_functions
from lottery.pipeline.session import Execution, Session
from lottery.pipeline.worker import Recipe
from lottery.runs import store


def run(
    source: str | Path | Mapping[str, Any] | None,
    overrides: Mapping[str, Any] | None,
    ingredients: Ingredients,
    out: str | Path,
    execution: Execution,
    tolerance: float | None = None,
) -> Path:
    """Run an experiment, resume it, or find it complete, and return its folder; see `lottery.run`.

    A person will judge the run by `tolerance`, so a test set that cannot resolve it is reported before training.
    """
    stored = Path(source) if isinstance(source, str | Path) and Path(source).is_dir() else None
    if stored:
        experiment = store.read_experiment(stored)
        if overrides:
            # It may have come from another machine.
            hint = " To read its data elsewhere, set LOTTERY_DATA to their folder." if "data" in overrides else ""
            raise LotteryError(f"{str(stored)!r} has its experiment already, and takes no other values.{hint}")
        if Path(out) != Path("runs") and Path(out).resolve() != stored.resolve().parent:
            raise LotteryError(f"The run {str(stored)!r} goes on in its own folder. Leave out the folder {str(out)!r}.")
    else:
        has_objects = ingredients.model is not None or ingredients.data is not None
        # The default experiment is tuned to its own data and network.
        experiment = config.load({} if source is None and has_objects else source, overrides)
        experiment = with_functions(experiment, ingredients)
    # The model is built before its run is found only where objects of the caller's decide the name of the folder.
    with execution.started() as session:
        path, prepared = stored, None
        if path is None:
            path, experiment, prepared = _found(session, out, experiment, ingredients)
        experiments = {path: experiment}
        if store.is_complete(path, experiment):
            if stored and ingredients.are_passed:  # which are compared with those of the run
                opening.open_run(session.stack, path, experiment, ingredients)
            opening.check_complete(path, experiment)
            # It may have been killed after its last round, or have run without TensorBoard.
            session = session.writing(experiments)
            session.note(f"{path} is complete.")
            return path
        prepared = opening.open_run(session.stack, path, experiment, ingredients, prepared=prepared)
        session.note(*prepared.notes, *opening.too_fine(prepared, tolerance), _size(path, experiment))
        recipe = Recipe(path, experiment, ingredients)
        jobs = [job for job in dispatch.wanted(experiments) if not job.is_stored]
        dispatch.carry_out({path: recipe}, jobs, session.writing(experiments), {path: prepared})
    return path


def _found(
    session: Session, out: str | Path, experiment: config.Experiment, ingredients: Ingredients
) -> tuple[Path, config.Experiment, Prepared | None]:
    """Return the folder of an experiment's run, the experiment as the run has it, and the run if it was prepared."""
    if ingredients.data is None and not ingredients.are_observed(experiment):
        return store.run_path(out, experiment), experiment, None
    # These come first: TensorFlow is imported, and begins to compute, when the model is built.
    like = environment.of_like_run(out, experiment)
    environment.begin(experiment, like, () if ingredients.model else [experiment.model.name])
    path, prepared, compared = opening.located(out, experiment, ingredients)
    session.note(*compared)
    return path, prepared.experiment, prepared


def _size(path: Path, experiment: config.Experiment) -> str:
    stored, num = store.progress(path, experiment)
    replicates = counted(experiment.run.num_replicates, "replicate")
    size = f"{path}: {counted(num, 'network')} of {replicates}"
    if not stored:
        return f"{size}."
    return f"{size}, of which {stored:,} {'are' if stored > 1 else 'is'} stored."
