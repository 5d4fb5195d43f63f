"""Networks are trained as soon as what they need is stored, whatever fails or is lost on the way."""

from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lottery import interrupts, progress
from lottery.errors import LotteryError, StorageError
from lottery.executors import scheduler
from lottery.executors.scheduler import Executor, Job, Lost
from lottery.runs.store import NetworkId

RUN = Path("run")


def networks(num_replicates, num_rounds, branches=(), run=RUN):
    return [
        Job(run, NetworkId(replicate, index, branch))
        for replicate in range(1, num_replicates + 1)
        for branch in ("ticket", *branches)
        for index in range(num_rounds + 1)
        if index or branch == "ticket"
    ]


class Planned(Executor):
    """An executor whose networks end in an order, and in a way, that a test decides."""

    def __init__(self, choose, max_workers, outcome):
        super().__init__()
        self.choose, self.max_workers, self.outcome = choose, max_workers, outcome
        self.begun, self.ended, self.running, self.most = [], [], {}, 0
        self.stopped = False

    def next(self, timeout):
        if not self.running:
            return None
        job = self.choose(sorted(self.running))
        future = self.running.pop(job)
        self.ended.append(job)
        found = "stopped" if self.stopped else self.outcome(job)
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found != "stopped")
        return future

    def submit(self, job):
        self.begun.append(job)
        self.running[job] = Future()
        self.most = max(self.most, len(self.running))
        return self.running[job]

    def cancel(self):
        self.stopped = True


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_everything_is_trained_once_after_what_it_needs(data):
    jobs = networks(
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(0, 3)),
        ("random_mask", "own")[: data.draw(st.integers(0, 2))],
    )
    fails = data.draw(st.sets(st.sampled_from(jobs), max_size=2))
    lost = {job: data.draw(st.integers(1, 2)) for job in data.draw(st.sets(st.sampled_from(jobs), max_size=3))}
    slots = data.draw(st.one_of(st.none(), st.integers(1, 4)))

    def outcome(job):
        if lost.get(job):
            lost[job] -= 1
            return Lost("the process has died")
        return LotteryError("Replicate 1: no.") if job in fails else True

    planned = Planned(lambda running: data.draw(st.sampled_from(running)), slots, outcome)
    attempts = {job: 1 + lost.get(job, 0) for job in jobs}
    doomed = set()
    for job in sorted(jobs, key=lambda one: (one.network[1], one.network[2] != "ticket")):
        doomed |= {job} if any(one in doomed | fails for one in scheduler.needs(job)) else set()
    said = []
    if fails:
        with pytest.raises(LotteryError, match="no"):
            scheduler.launch(jobs, planned, said.append)
    else:
        scheduler.launch(jobs, planned, said.append)
    assert planned.most <= (slots or len(jobs)) and not doomed & set(planned.begun)
    assert set(planned.begun) == set(jobs) - doomed
    assert all(planned.begun.count(job) == attempts[job] for job in planned.begun)


def test_what_needs_a_network_begins_after_it_has_ended():
    order = []
    planned = Planned(lambda running: running[-1], None, lambda job: order.append(("end", job)) or True)
    submit = planned.submit
    planned.submit = lambda job: order.append(("begin", job)) or submit(job)
    jobs = networks(2, 3, ("random_mask",))
    scheduler.launch(jobs, planned)
    for job in jobs:
        for one in scheduler.needs(job):
            assert order.index(("end", one)) < order.index(("begin", job))
    assert len(order) == 2 * len(jobs)


def test_lost_again_and_again_without_progress_is_a_failure():
    planned = Planned(lambda running: running[0], 1, lambda job: Lost("the process has died"))
    jobs = networks(1, 1)
    with pytest.raises(LotteryError, match=r"Replicate 1, round 0: the process has died 3 times without any progress"):
        scheduler.launch(jobs, planned)
    assert planned.begun == [jobs[0]] * 3


def test_lost_with_progress_starts_again(tmp_path):
    folder = tmp_path / "replicate-1/round-00"
    folder.mkdir(parents=True)
    left = list(range(10))

    def outcome(job):
        if not left:
            return True
        (folder / f"checkpoint-{left.pop()}.safetensors").write_text("")
        return Lost("the process has died")

    planned = Planned(lambda running: running[0], 1, outcome)
    scheduler.launch(networks(1, 0, run=tmp_path), planned)
    assert len(planned.begun) == 11


def test_a_full_disk_stops_all():
    def outcome(job):
        return StorageError("full") if job.network == (1, 0, "ticket") else True

    planned = Planned(lambda running: running[0], 2, outcome)
    with pytest.raises(StorageError):
        scheduler.launch(networks(3, 3), planned)
    assert planned.stopped and len(planned.begun) == 2


def test_asked_to_stop():
    planned = Planned(lambda running: running[0], 2, lambda job: True)
    with pytest.raises(interrupts.Stopped) as stopped:
        scheduler.launch(networks(3, 3), planned, should_stop=lambda: 15 if len(planned.ended) >= 3 else 0)
    assert stopped.value.signal == 15 and planned.stopped and len(planned.begun) == len(planned.ended) <= 5
    assert isinstance(stopped.value, KeyboardInterrupt)


def test_a_request_to_stop_counts_though_it_is_made_once():
    requests, planned = iter([2]), Planned(lambda running: running[0], 2, lambda job: True)
    with pytest.raises(interrupts.Stopped) as stopped:
        scheduler.launch(networks(3, 3), planned, should_stop=lambda: next(requests, 0))
    assert stopped.value.signal == 2 and not planned.begun


def test_asked_to_stop_after_a_single_failure():
    fails = Job(RUN, NetworkId(2, 2))
    planned = Planned(lambda running: running[-1], 2, lambda job: LotteryError("no") if job == fails else True)
    with pytest.raises(interrupts.Stopped):
        scheduler.launch(networks(2, 2), planned, should_stop=lambda: 15 if fails in planned.ended else 0)


def test_one_that_was_stopped_alone_goes_on():
    answers = iter(["stopped", True, True])
    planned = Planned(lambda running: running[0], 1, lambda job: next(answers))
    scheduler.launch(networks(1, 1), planned)
    assert [job.network[1] for job in planned.begun] == [0, 0, 1]


def test_several_failures_are_counted_and_reported_at_once():
    said = []
    planned = Planned(lambda running: running[0], 1, lambda job: ValueError("odd") if job.network[1] == 1 else True)
    with pytest.raises(LotteryError, match=r"Replicate 1, round 1: ValueError: odd. 3 other networks could not"):
        scheduler.launch(networks(2, 2), planned, said.append)
    assert [event.text for event in said if isinstance(event, progress.Note)] == [
        f"Replicate {number}, round 1: ValueError: odd. The others continue." for number in (1, 2)
    ]


def test_priority_is_rounds_of_all_replicates_then_branches_run_by_run():
    one, other = networks(2, 1, ("a",)), networks(1, 1, run=Path("other"))
    found = [(job.run.name, *job.network) for job in scheduler.by_priority([*one, *other])]
    assert found == [
        ("run", 1, 0, "ticket"), ("run", 2, 0, "ticket"), ("run", 1, 1, "ticket"), ("run", 2, 1, "ticket"),
        ("run", 1, 1, "a"), ("run", 2, 1, "a"), ("other", 1, 0, "ticket"), ("other", 1, 1, "ticket"),
    ]  # fmt: skip
