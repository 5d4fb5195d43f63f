"""Training on a Ray cluster: its options, the shared folder, and that nothing which dies changes a bit."""

import os

# Ray takes 127.0.0.1, which every node here is bound to, for another address unless it hears this before its import.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

import contextlib
import dataclasses
import json
import shutil
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest

import lottery
from lottery import config, files, progress
from lottery.cli import options
from lottery.errors import LotteryError, StorageError
from lottery.executors import scheduler
from lottery.executors.ray import (
    Attempt,
    Ray,
    _check_room,
    _has_kinds,
    _join,
    _meaning,
    _resources,
    _stamp,
    _start,
    _Worker,
    joined,
)
from lottery.executors.scheduler import Job
from lottery.pipeline import worker
from lottery.runs import store
from lottery.training import checkpoints
from tests.conftest import checksum, quietly, toy_arrays

pytestmark = [pytest.mark.rewritten, pytest.mark.xla]  # as in the processes of the workers


def bits(run):
    """The checksum of every file, without times."""
    found = {}
    for path in sorted(Path(run).rglob("*")):
        if not path.is_file() or "tensorboard" in path.parts or path.name in (".lock", "environment.json"):
            continue  # an architecture counts the models that a process has built
        found[str(path.relative_to(run))] = checksum(path)
        if path.name == "round.json":
            record = files.read_json(path)
            found[str(path.relative_to(run))] = json.dumps(
                {key: value for key, value in record.items() if key not in ("seconds", "record_sha256")}
            )
    return found


def same(run, other):
    mine, theirs = bits(run), bits(other)
    assert sorted(mine) == sorted(theirs)
    assert [name for name in mine if mine[name] != theirs[name]] == []
    return True


# Options and resources.


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"on": "ray", "workers": 2}, "--workers cannot be used with --on ray"),
        ({"on": "rays"}, "--on must be 'processes' or 'ray', not 'rays'. Did you mean 'ray'"),
        ({"address": "10.0.0.1:6379"}, "--address needs --on ray"),
        ({"on": "processes", "task_cpus": 2}, "--task-cpus needs --on ray"),
        ({"task_gpus": 0.5}, "--task-gpus needs --on ray"),
        ({"task_memory": "4GB"}, "--task-memory needs --on ray"),
        ({"on": "ray", "task_memory": "much"}, "a number of bytes with its unit, such as 4GB or 500MB, not 'much'"),
        ({"on": "ray", "task_memory": "4"}, "--task-memory must be a number of bytes with its unit, .*, not '4'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words, sentence):
    with pytest.raises(LotteryError, match=sentence):
        options.Training(**words).workers_or_ray()


def test_options_say_what_a_network_takes():
    assert options.Training(workers=3).workers_or_ray() == 3
    assert options.Training(on="processes").workers_or_ray() is None
    on_ray = options.Training(on="ray", address="head:6379", task_cpus=4, task_gpus=0.5, task_memory="1.5GiB")
    assert on_ray.workers_or_ray() == Ray("head:6379", 4, 0.5, 3 * 2**29)
    assert options.num_bytes("--task-memory", "4GB") == 4_000_000_000
    assert options.num_bytes("--task-memory", "250 mb") == 250_000_000


@pytest.mark.parametrize(
    "wrong", [{"num_cpus": -1}, {"num_gpus": 1.5}, {"memory": -2}, {"num_gpus": float("nan")}, {"memory": "4GB"}]
)
def test_amounts_that_cannot_be_are_refused(wrong, tmp_path):
    with pytest.raises(LotteryError, match=f"{next(iter(wrong))} must be"):
        lottery.run({}, out=tmp_path, workers=Ray(**wrong), on_event=quietly)


def test_without_ray_one_sentence_says_what_to_install(monkeypatch, lottery_command, tmp_path):
    monkeypatch.setattr("lottery.executors.ray.find_spec", lambda name: None)
    done = lottery_command("run", "--on", "ray", "--out", tmp_path)
    assert done.returncode == 2 and not list(tmp_path.iterdir())
    assert done.stderr == 'lottery: Training on a cluster needs Ray: pip install "lottery[ray]".\n'


def test_a_network_never_takes_fewer_processors_than_threads():
    assert _resources(Ray(), 3) == {"CPU": 3}
    assert _resources(Ray(num_cpus=2), 3) == {"CPU": 3}
    wanted = _resources(Ray(num_cpus=4, num_gpus=0.5, memory=10), 3)
    assert wanted == {"CPU": 4, "GPU": 0.5, "memory": 10}


class Started:
    """Stands for the executor of a cluster."""

    def __init__(self, resources):
        self.resources = resources

    def shutdown(self):
        pass


class Nodes:
    """Stands for Ray, which lists its nodes."""

    def __init__(self, *resources, alive=True):
        self.resources, self.alive = resources, alive

    def nodes(self):
        return [{"Alive": self.alive, "Resources": one} for one in self.resources]


def test_what_no_single_node_has_is_refused_at_once(monkeypatch):
    wanted = {"CPU": 3, "memory": 10}
    monkeypatch.setattr("lottery.executors.ray._grows", lambda: False)
    _check_room(Nodes({"CPU": 1}, {"CPU": 4, "memory": 10}), wanted, quietly)
    for found in (
        Nodes({"CPU": 2, "memory": 20}, {"CPU": 4, "memory": 9}),
        Nodes({"CPU": 4, "memory": 99}, alive=False),
    ):
        with pytest.raises(LotteryError, match="Each network needs 3 CPUs and 10 bytes of memory, but no node"):
            _check_room(found, wanted, quietly)
    with pytest.raises(LotteryError, match=r"needs 8,589,934,592 bytes of memory, .* most is 4,294,967,296 bytes"):
        _check_room(Nodes({"memory": float(2**32)}), {"memory": 2**33}, quietly)
    said = []
    monkeypatch.setattr("lottery.executors.ray._grows", lambda: True)
    _check_room(Nodes({"CPU": 2}), wanted, said.append)
    assert "waiting for the cluster to grow" in said[0].text


def test_what_a_cluster_lacks_is_said_once_for_all_runs_of_a_sweep(monkeypatch):
    monkeypatch.setattr("lottery.executors.ray._grows", lambda: True)
    monkeypatch.setattr("lottery.executors.ray._connected", lambda *_: contextlib.nullcontext(Nodes({"CPU": 2})))
    monkeypatch.setattr("lottery.executors.ray._RayExecutor", lambda ray, resources, pickle: Started(resources))
    said, threads = [], {Path("a"): 3, Path("b"): 3, Path("c"): 4}
    with joined(Ray(), print, threads, said.append) as executor:
        assert executor.resources == {run: {"CPU": number} for run, number in threads.items()}
    assert [note.text[:26] for note in said] == ["Each network needs 3 CPUs,", "Each network needs 4 CPUs,"]


def test_a_cluster_grows_if_its_nodes_are_of_kinds():
    for kind, grows in (("node_c186", False), ("ray.head.default", True)):  # from two clusters, by Ray 2.60
        status = {"autoscaler_report": {"active_nodes": {}, "node_type_mapping": {"c186": kind}}}
        assert _has_kinds(json.dumps(status).encode()) is grows


def test_a_cluster_that_nobody_answers_for_is_refused_in_seconds(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for address, why in (
        ("127.0.0.1:1", "Connection refused"),
        ("nonsense", "an address is a host and a port"),
        ("head..cluster:6379", ".*'idna' codec"),
    ):
        with (
            pytest.raises(LotteryError, match=f"The Ray cluster at '{address}' cannot be joined: {why}"),
            joined(Ray(address), print, {}, quietly),
        ):
            pass


class Init(Nodes):
    """Stands for Ray, which joins or starts a cluster."""

    def init(self, *addresses, **options):
        self.options = options


@pytest.mark.parametrize(("mode", "told"), [("token", 1), (None, 2)])
def test_a_cluster_that_asks_for_no_token_is_named(monkeypatch, mode, told):
    monkeypatch.setattr("lottery.executors.ray._asks_for_token", lambda: mode == "token")
    said = []
    _join(Init({"CPU": 4}), "", "10.0.0.1:6379", said.append)
    assert len(said) == told and "10.0.0.1:6379: 1 node, 4 CPUs" in said[0].text
    assert mode or "asks for no token" in said[1].text


def test_a_private_cluster_has_the_priority_of_other_programs(monkeypatch):
    monkeypatch.delenv("RAY_worker_niceness", raising=False)
    made = Init()
    _start(made, quietly)
    assert os.environ["RAY_worker_niceness"] == "0"  # noqa: SIM112 (Ray's own spelling)
    assert made.options["_node_ip_address"] == "127.0.0.1"
    monkeypatch.undo()


def test_what_cannot_be_sent_is_refused_in_a_sentence():
    with pytest.raises(LotteryError, match="cannot be sent to another process"):
        scheduler.pickled(x for x in ())


# The shared folder.


class Sent:
    """Stands for a queue of Ray's."""

    def __init__(self):
        self.sent = []

    def put(self, item):
        self.sent.append(item)

    def empty(self):
        return not self.sent


def step(run, at=0):
    return progress.Step(run, 1, 1, 0, 1, "ticket", 1.0, at, 0, 9, 0.5)


def worker_of(train):
    """A worker with queues of its own."""
    worker = _Worker(Sent(), Sent())
    worker.train = lambda job: train(worker, job)
    return worker


def folder_of(place, content=b"settings", rounds=1):
    files.write(place / "environment.json", content)
    for index in range(rounds):
        files.write(place / f"replicate-1/round-0{index}/round.json", b"{}")
    return place


def test_a_node_that_shares_the_folder_works_in_it_and_tells_in_the_runs_own_words(tmp_path):
    run = Path("runs/one")

    def train(worker, job):
        folder = tmp_path / run
        worker.collect(step(folder))
        worker.collect(step(folder / "connectivity"))
        worker.collect(progress.Evaluated(folder, 1, 1, "ticket", (0, "train", 1.0, 0.5), True))
        worker.collect(progress.Note("Words."))
        worker.collect(progress.Done(step(folder, 9), {}))

    folder, worker = folder_of(tmp_path / run), worker_of(train)
    assert worker.carry_out(Attempt(7, Job(run, store.NetworkId(1, 1)), folder, _stamp(folder))) is True
    assert worker.events.sent == [
        (7, []),  # it has begun
        (
            7,
            [
                step(run),
                step(run / "connectivity"),
                progress.Evaluated(run, 1, 1, "ticket", (0, "train", 1.0, 0.5), True),
                progress.Note("Words."),
                progress.Done(step(run, 9), {}),
            ],
        ),
    ]


@pytest.mark.parametrize(
    ("there", "network"),
    [
        (None, (1, 0, "ticket")),
        (b"of another run", (1, 0, "ticket")),
        (b"settings", (1, 2, "ticket")),
        (b"settings", (1, 1, "own")),
    ],
)
def test_a_node_that_does_not_see_all_of_the_folder_is_refused_before_it_trains(tmp_path, monkeypatch, there, network):
    monkeypatch.setattr("lottery.executors.ray.PATIENCE", 0.0)
    stamp = _stamp(folder_of(tmp_path / "here"))
    if there:
        folder_of(tmp_path / "node", there)
        os.utime(tmp_path / "node/environment.json", (stamp[0], stamp[0]))
    trained = []
    worker = worker_of(lambda worker, job: trained.append(job))
    sentence = (
        f"^Node '.+' does not see the run's folder '{tmp_path / 'node'}', which must be on storage that all nodes"
    )
    with pytest.raises(StorageError, match=sentence):
        worker.carry_out(Attempt(1, Job(Path("one"), network), tmp_path / "node", stamp))
    assert not trained


def test_a_folder_that_was_made_at_another_time_is_another_one(tmp_path):
    one, other = folder_of(tmp_path / "one"), folder_of(tmp_path / "other")
    os.utime(other / "environment.json", (0, 0))
    assert _stamp(one) != _stamp(other)


def test_what_happens_arrives_before_a_failure(tmp_path):
    def train(worker, job):
        worker.collect(progress.Note("Words."))
        raise LotteryError("Too small.")

    folder, worker = folder_of(tmp_path), worker_of(train)
    with pytest.raises(LotteryError, match=r"^Too small\."):
        worker.carry_out(Attempt(1, Job(Path("one"), store.NetworkId(1, 0)), folder, _stamp(folder)))
    assert worker.events.sent[-1] == (1, [progress.Note("Words.")])


def test_a_worker_that_was_stopped_trains_no_more(tmp_path):
    def train(worker, job):
        worker.orders.put(True)
        worker.deliver()
        raise lottery.interrupts.Stopped(worker.should_stop())

    folder, worker = folder_of(tmp_path), worker_of(train)
    attempt = Attempt(1, Job(Path("one"), store.NetworkId(1, 0)), folder, _stamp(folder))
    assert worker.should_stop() == 0
    assert worker.carry_out(attempt) is False and worker.should_stop() == signal.SIGTERM
    worker.train = None
    assert worker.carry_out(attempt) is False


def test_what_has_died_is_lost_and_what_has_failed_is_not():
    errors = pytest.importorskip("ray").exceptions
    for error in (errors.WorkerCrashedError(), errors.NodeDiedError("gone"), errors.OutOfMemoryError("full"),
                  errors.ObjectLostError("00" * 28, None, "")):  # fmt: skip
        assert isinstance(_meaning(error), scheduler.Lost)
    failed = errors.RayTaskError("train", "...", LotteryError("The loss is not finite."))
    assert str(_meaning(failed)) == "The loss is not finite."
    assert _meaning(errors.TaskCancelledError()) is None
    assert isinstance(_meaning(errors.RayTaskError("train", "", errors.WorkerCrashedError())), scheduler.Lost)


def test_a_node_with_other_data_fails_and_one_with_another_processor_says_so(small_run, tmp_path):
    settings, run = small_run.experiment, tmp_path / small_run.path.name
    shutil.copytree(small_run.path, run)
    shutil.rmtree(run / "replicate-1/round-03")
    recorded = store.read_environment(run)
    known = {key: value for key, value in recorded.items() if key != "record_sha256"}
    store.write_record(run / "environment.json", known | {"processor": "an abacus"})
    recipe = worker.Recipe(run, settings, data_sha256="0" * 64, away=True)
    said, job = [], Job(Path("elsewhere"), store.NetworkId(1, 3))
    with pytest.raises(LotteryError, match="On .*: The data differ from the data of"):
        worker.Worker({job.run: recipe}, said.append, lottery.interrupts.never, OFTEN)(job)
    recipe = dataclasses.replace(recipe, data_sha256=recorded["data_sha256"])
    worker.Worker({job.run: recipe}, said.append, lottery.interrupts.never, OFTEN)(job)
    (note,) = [one.text for one in said if isinstance(one, progress.Note)]
    assert "computes with another processor (an abacus; now " in note and "python" not in note
    assert store.read_record(run / "replicate-1/round-03")["elsewhere"] == ["another processor"]
    assert checksum(run / "replicate-1/round-03/weights.safetensors") == checksum(
        small_run.path / "replicate-1/round-03/weights.safetensors"
    )


# A real cluster: a head without processors, and two nodes.

EXPERIMENT = {
    "name": "small",
    "train": {"num_steps": 3000, "eval_every": 100, "batch_size": 20},
    "prune": {"num_rounds": 2},
    "rewind": {"step": 50},
    "run": {"num_replicates": 2, "controls": ["random_reinit"]},
}
OFTEN = checkpoints.CheckpointInterval(0, 300)


def given():
    """A model with dropout and BatchNorm, by a function that no module has, and data."""

    def build():
        import keras

        layers = keras.layers
        parts = [layers.Dense(16, "relu"), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(3, "softmax")]
        return keras.Sequential([keras.Input((6,)), *parts])

    return {"model": build, "data": toy_arrays(np.random.default_rng(12))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run as this process trains it."""
    return lottery.run(EXPERIMENT, **given(), out=tmp_path_factory.mktemp("local"), on_event=quietly).path


@pytest.fixture(scope="module")
def cluster(whole):
    """Ray's own cluster for tests. A node that a test removes is replaced by the test."""
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "node_ip_address": "127.0.0.1", "include_dashboard": False},
        )
        made.num_cpus = store.read_environment(whole)["num_threads"]
        for _ in range(2):
            add_node(made)
        yield made
        made.shutdown()


def add_node(cluster):
    cluster.add_node(num_cpus=cluster.num_cpus, node_ip_address="127.0.0.1")


def trainers(node):
    """The processes of a node that train."""
    import psutil

    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return [one for one in raylet.children(recursive=True) if "train" in " ".join(one.cmdline())]


def remove_node(cluster):
    node = next(node for node in cluster.worker_nodes if trainers(node))
    cluster.remove_node(node, allow_graceful=False)
    add_node(cluster)


def kill_process(cluster):
    next(one for node in cluster.worker_nodes for one in trainers(node)).kill()


def train(cluster, out, harm=None, should_stop=lottery.interrupts.never, experiment=EXPERIMENT):
    """Train on the cluster, and do harm once while a round is trained."""
    notes, harmed = [], []

    def report(event):
        if isinstance(event, progress.Note):
            notes.append(event.text)
        if isinstance(event, progress.Step) and event.round == 1 and event.step > 900 and harm and not harmed:
            harmed.append(event)
            harm(cluster)

    workers = Ray(cluster.address)
    run = lottery.run(
        experiment,
        **given(),
        out=out,
        workers=workers,
        on_event=report,
        checkpoint_every=OFTEN,
        should_stop=should_stop,
    )
    assert len(harmed) == bool(harm)
    return run.path, notes


@pytest.mark.long
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("harm", [None, remove_node, kill_process])
def test_the_bits_are_those_of_this_machine_whatever_dies(cluster, whole, tmp_path, harm):
    path, notes = train(cluster, tmp_path, harm)
    assert same(path, whole)
    again = [note for note in notes if "starts again" in note]
    assert len(again) >= 1 if harm else not again


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_a_run_that_is_stopped_on_a_cluster_goes_on_here(cluster, tmp_path):
    # So long that no machine completes the network before it hears of the stop.
    longer = {"train": {"num_steps": 50_000, "eval_every": 5000}, "prune": {"num_rounds": 1}}
    longer = config.merged(EXPERIMENT, longer | {"run": {"num_replicates": 1, "controls": []}})
    number, notes, out = [], [], tmp_path / "stopped"
    with pytest.raises(lottery.interrupts.Stopped):
        train(cluster, out, lambda _: number.append(signal.SIGTERM), lambda: number[0] if number else 0, longer)
    assert list(out.rglob("checkpoint.safetensors"))
    run = lottery.run(longer, **given(), out=out, on_event=notes.append)
    assert not [one for one in notes if isinstance(one, progress.Note) and "from its beginning" in one.text]
    assert same(run.path, lottery.run(longer, **given(), out=tmp_path / "whole", on_event=quietly).path)


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_one_that_fails_does_not_stop_the_others(cluster, whole, tmp_path):
    path = tmp_path / whole.name
    shutil.copytree(whole, path)

    def picky(origin):
        kept = sum(int(mask.sum()) for mask in origin.kept.values())
        if kept < 0.7 * sum(mask.size for mask in origin.kept.values()):
            raise LotteryError("That is too sparse.")
        return lottery.pruning.branches.BranchStart(origin.start, origin.kept, origin.step, origin.num_steps)

    workers = Ray(cluster.address)
    with pytest.raises(LotteryError, match="round 2, branch picky: That is too sparse"):
        lottery.branch(path, picky, **given(), workers=workers, on_event=quietly)
    stored = {str(one.parent.relative_to(path)) for one in path.glob("*/*/branch-picky/round.json")}
    assert stored == {"replicate-1/round-01/branch-picky", "replicate-2/round-01/branch-picky"}
