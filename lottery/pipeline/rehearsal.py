"""How long an experiment would take here: the dense network is trained for some seconds, and thrown away."""

import contextlib
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import loky

from lottery import config, interrupts, progress
from lottery.formatting import duration
from lottery.pipeline import dispatch, environment, preview, running
from lottery.pipeline.prepared import Ingredients
from lottery.pipeline.session import Execution

SECONDS = 4.0  # of training that are measured, after the first steps, which wait for the compiler


@dataclass
class _Watch:
    """The times at which steps were reported."""

    reported: list[tuple[float, int]] = field(default_factory=list)
    whole: float = 0.0  # seconds of all steps, where they end before they are measured

    def on_event(self, event: progress.Event) -> None:
        if isinstance(event, progress.Step) and event.step:
            self.reported.append((time.monotonic(), event.step))
        elif isinstance(event, progress.Done):
            self.whole = event.record["seconds"] / event.where.num_steps

    def should_stop(self) -> int:
        # From the first report on, which comes when everything is traced and compiled.
        is_over = bool(self.reported) and time.monotonic() - self.reported[0][0] > SECONDS
        return signal.SIGINT if is_over else 0

    @property
    def seconds_of_step(self) -> float:
        if not self.reported:  # the training ended with its first step
            return self.whole
        (began, first), (ended, last) = self.reported[0], self.reported[-1]
        return (ended - began) / (last - first) if last > first else self.whole


def sentence(experiment: config.Experiment, import_code: bool = False) -> str:
    """Say how long all networks of an experiment would train on this machine, from a measurement of some seconds.

    Raises `LotteryError` if the data are not there, or the network cannot be trained.
    """
    num_threads = environment.begin(experiment, {})  # as the whole experiment would have them
    how = {"num_replicates": 1, "num_threads": num_threads, "enforcement": experiment.run.enforcement}
    dense = config.as_tables(experiment) | {"prune": {"num_rounds": 0}, "rewind": {}, "run": how}
    watch = _Watch()
    execution = Execution(on_event=watch.on_event, should_stop=watch.should_stop, tensorboard=False)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(interrupts.Stopped):
        running.run(dense, None, Ingredients(import_code=import_code), folder, execution)
    seconds = watch.seconds_of_step * preview.sizes(experiment, 0)["steps"]
    # The rounds of a replicate follow each other, however many cores there are.
    workers = min(loky.cpu_count() // num_threads, dispatch.most_at_once(dispatch.wanted({Path(): experiment})))
    parallel = f", or {duration(seconds / workers)} with {workers} networks in parallel" if workers > 1 else ""
    each = 1000 * watch.seconds_of_step
    each_in_words = f"{each:.2f} ms" if each < 10 else f"{each:.0f} ms"
    return (
        f"About {duration(seconds)} of training on this machine{parallel}: a step takes {each_in_words} (measured now)."
    )
