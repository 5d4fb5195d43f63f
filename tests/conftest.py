"""What the tests share: real data where there are any, and one small run that many tests only read."""

import functools
import gc
import hashlib
import json
import os
import random
import re
import signal
import warnings
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["LOTTERY_DATA"] = ""  # nothing that lies on the machine may decide a test
# For sums as small as those of a test, NumPy's threads wait for each other, busily, longer than they compute.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

# TensorFlow keeps a million objects alive: walking them as often as by default takes a tenth of the time.
gc.set_threshold(100_000, 20, 20)

# A flush to disk guards against a power cut, which no test makes, and takes longer than many a test.
os.fsync = lambda file: None

# A shell lets what it starts in the background ignore Ctrl-C, and tests of Ctrl-C, and their children, would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The default run is the same each time; `--hypothesis-profile=explore` looks at other examples.
# However slow the machine is, no example takes too long.
patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, **patient)
settings.register_profile("explore", derandomize=False, max_examples=1000, **patient)
settings.load_profile("same")

SHARED = Path(__file__).parents[2] / "shared" / "data"
SLOW = Path(__file__).with_name("slow.txt")
SMALL = {
    "name": "small",
    "data": {"name": "digits", "validation": 137},
    # XLA takes longer to compile, and Adam to trace, than this run to train.
    "train": {
        "num_steps": 110,
        "eval_every": 40,
        "batch_size": 32,
        "jit_compile": False,
        "optimizer": {"name": "sgd", "momentum": 0.9},
        "learning_rate": 0.02,
    },
    "prune": {"num_rounds": 3, "rates": {"dense_2/kernel": 0.1}},
    "run": {"num_replicates": 2},
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker of `-n 3` a contiguous part of the tests, so that fixtures and traces are made once, not twice."""
    from xdist.scheduler.worksteal import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items):
    """Mark the cases that were measured to be slow; see `tests.scripts.tiers`."""
    slow = set(SLOW.read_text().splitlines())
    for item in items:
        if item.nodeid in slow:
            item.add_marker("slow")


def quietly(event):
    """Report nothing."""


def checksum(path):
    """What tests compare instead of bytes: where `CI` is set, pytest spends minutes on how two long values differ."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def contents(out):
    """By name, the checksum of every file below a folder that does not depend on when it was made, or how fast."""
    found = {}
    for path in sorted(out.rglob("*")):
        if path.is_dir() or path.name == ".lock" or "tensorboard" in path.parts:
            continue
        content = path.read_bytes()
        if path.name == "round.json":
            record = json.loads(content)
            content = json.dumps([record.pop("seconds") >= 0, record.pop("record_sha256") != "", record]).encode()
        elif path.name == "environment.json":  # Keras counts the layers that a process has built, in their names
            record = json.loads(content)
            content = json.dumps([record.pop("architecture") != "", record.pop("record_sha256") != "", record]).encode()
        found[str(path.relative_to(out))] = hashlib.sha256(content).hexdigest()
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish():
    """Look once for what was left behind: pytest walks all objects five times, and Python again when it ends."""
    # Now, while Python is whole: what still enforces masks then ends it.
    _made_once.cache_clear()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def xla_where_it_is_tested(request, monkeypatch):
    """Let `train.jit_compile = "auto"` mean no: XLA takes longer to compile than a test to train, and has its own tests."""
    if not request.node.get_closest_marker("xla"):
        monkeypatch.setattr("lottery.training.loop.gains_on_cpu", lambda model: False)


@pytest.fixture(scope="module")
def traced_once():
    """Let runs of a module share one trainer where networks, data and settings are equal, as the runs of a sweep do.

    To trace the steps and evaluations of such a trainer takes longer than to train it. Everything before it, and all
    that depends on a run, is as ever: the model is built, compiled and checked anew, and its values are assigned. The
    digest of a model is that of the shared trainer's, which is traced once, too. A test that compares the bits of two
    runs calls ``clear`` in between.
    """
    from lottery import enforcement, weights
    from lottery.data import Splits
    from lottery.models.kerases import keras_of
    from lottery.pipeline import fingerprinting, mask_training, preparing
    from lottery.training import engine_choice, loop, mirrored
    from lottery.training.trainer import Trainer

    keep_graphs()
    made, make_learner, of_model = {}, mask_training._made, fingerprinting.of_model
    shareable = [enforcement.ENFORCEMENTS[name].hold for name in ("constraint", "gradient", "callback")]

    def description(model, data, settings, enforce, augment):
        """What decides a trace, as text; None if it cannot be known."""
        own = {"call", "train_step", "test_step", "compute_loss"} & set(vars(model))
        if own or not isinstance(data, Splits) or mirrored.strategy_of(model) or enforce not in shareable:
            return None
        try:
            with warnings.catch_warnings(action="ignore"):  # about what cannot be loaded again
                text = json.dumps(keras_of(model).saving.serialize_keras_object(model), default=repr)
        except Exception:  # layers of a test's own may raise anything
            return None
        modules = {one.partition(".")[0] for one in re.findall(r'"module": "([^"]*)"', text)}
        if not modules <= {"keras", "tf_keras", "lottery", "builtins"} or '"function"' in text or "__lambda__" in text:
            return None
        for number, name in enumerate(dict.fromkeys(re.findall(r'"name": "([^"]*)"', text))):
            text = text.replace(f'"{name}"', f'"{number}"')  # Keras counts the layers of a process
        arrays = [getattr(split, key) for split in (data.train, data.validation, data.test) for key in "xy"]
        digest = hashlib.sha256(b"".join([repr((one.dtype, one.shape)).encode() + one.tobytes() for one in arrays]))
        scaled = data.mean, data.standard_deviation, data.unit_norm
        xla = settings.jit_compile == "auto" and loop.gains_on_cpu(model)
        return repr((text, digest.hexdigest(), scaled, settings, shareable.index(enforce), sorted(augment), xla))

    def trainer(model, data, settings, enforce, schedule_step, augment, obstacle):
        text = description(model, data, settings, enforce, augment)
        key = None if text is None else (text, obstacle)  # the sentence of the last is stored with the run
        if key is None or key not in made:
            new = Trainer(model, data, settings, enforce, schedule_step, augment, obstacle)
            return new if key is None else made.setdefault(key, new)
        known = made[key]
        if known.held:
            known.hold_at_start = lambda: None  # the trace knows the variables
            known.network = engine_choice.read(known.model, data, settings, augment, obstacle)
        if known._first_values:
            known.reset()  # the optimizer counts in what is observed of a model
        known.close()
        known.set_masks({})
        known.seconds_per_step = None
        weights.assign(known.model, weights.read_state(model))
        return known

    def learner(prepared):
        if prepared.trainer not in made.values():
            return make_learner(prepared)
        key = id(prepared.trainer)
        if key not in made:
            made[key] = make_learner(prepared)
        return made[key]

    def digest(model, examined, example):
        if not any(model is one.model for one in made.values() if isinstance(one, Trainer)):
            return of_model(model, examined, example)
        key = id(model), weights.fingerprint(weights.read_state(model))
        if key not in made:
            made[key] = of_model(model, examined, example)
        return made[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(preparing, "Trainer", trainer)
        patched.setattr(mask_training, "_made", learner)
        patched.setattr(fingerprinting, "of_model", digest)
        yield made


def keep_graphs(kept=True):
    """Keep TensorFlow from rewriting each graph, and from taking the stack of each operation."""
    import tensorflow as tf
    from tensorflow.python.util import tf_stack

    if tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False) != kept:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": kept})
    tf_stack.extract_stack = lambda stacklevel=1: None


@pytest.hookimpl(tryfirst=True)  # before the fixtures
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Start the random numbers that a test does not seed at its name, so that it passes or fails alike each time."""
    random.seed(item.nodeid)  # Keras draws the seeds of layers from it
    np.random.seed(zlib.crc32(item.nodeid.encode()))


def pytest_runtest_setup(item):
    """Keep graphs as they are, unless a test has the marker `rewritten`.

    To rewrite them takes longer than the few steps of a test. What a test starts in a process of its own trains as for
    users. A rewritten graph may round differently: a fixture that may be the first to import TensorFlow calls
    `keep_graphs` where its bits are compared.
    """
    if "tensorflow" in sys.modules:
        keep_graphs(not item.get_closest_marker("rewritten"))


@pytest.fixture
def short_pages(monkeypatch):
    """Let pages about runs have the figures of accuracy alone: to draw all takes seconds, and has tests of its own."""
    from lottery.report import figures

    draw = figures._drawn
    monkeypatch.setattr(
        figures, "_drawn", lambda one, kind, *rest: draw(one, kind, *rest) if kind == "accuracy" else []
    )


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """A complete run of two replicates and four rounds on the digits. Tests only read it."""
    import lottery

    keep_graphs()
    return lottery.run(SMALL, out=tmp_path_factory.mktemp("runs"), on_event=quietly)


@pytest.fixture(scope="session")
def compiled_kernels():
    """Let one worker compile the sparse engine, which takes longer than all its tests; others read what numba keeps."""
    kernels = pytest.importorskip("lottery.sparse.kernels", exc_type=ImportError)
    import keras

    from lottery.data import Data, given
    from lottery.sparse import engine, reading

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    with FileLock(Path(kernels.compute.stats.cache_path) / "compiling.lock"):
        for kind in (np.uint8, np.float32):
            x, y = np.arange(16, dtype=kind).reshape(8, 2), np.arange(8) % 2
            one = engine.Engine(model, reading.read(model), given((x, y, x, y), Data(name="given", validation=2)), 2, 1)
            one.begin({}, (1,))
            one.advance(1)
            one.evaluate("test")


class Done(NamedTuple):
    """What came of a command."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def lottery_command(monkeypatch, capfd):
    """The command `lottery` in this process, which need not import everything again."""
    from lottery import cli

    def call(*words, cwd=None):
        capfd.readouterr()
        with monkeypatch.context() as patched:
            patched.setattr(sys, "argv", ["lottery", *map(str, words)])
            patched.setenv("COLUMNS", "100")
            if cwd is not None:
                patched.chdir(cwd)
            status = 0
            try:
                cli.main()
            except SystemExit as ended:
                status = ended.code or 0
        return Done(status, *capfd.readouterr())

    return call


@pytest.fixture
def mnist_path():
    path = SHARED / "mnist.npz"
    if not path.exists():
        pytest.skip("needs the real MNIST beside the repository")
    return path


@pytest.fixture
def rng():
    return np.random.default_rng(12)


def toy_arrays(rng, num_train=200, num_test=60, shape=(6,), num_classes=3):
    """Separable made-up data as the four arrays."""
    centres = rng.normal(size=(num_classes, *shape)) * 2
    labels = rng.integers(0, num_classes, num_train + num_test)
    x = (centres[labels] + rng.normal(size=(len(labels), *shape))).astype(np.float32)
    return x[:num_train], labels[:num_train], x[num_train:], labels[num_train:]


BATCHES = {}


def batches(x, y, batch_size=32):
    """Arrays as a data set of batches, made once: of arrays, Keras takes longer to make it than to train on it."""
    import tensorflow as tf

    key = batch_size, *((one.shape, one.dtype.str, one.tobytes()) for one in (x, y))
    if key not in BATCHES:
        BATCHES[key] = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)
    return BATCHES[key]


def fit(model, x, y, batch_size=32, validation_data=None, **arguments):
    """Train by Keras' own ``fit`` on `batches`, in their order."""
    if validation_data is not None:
        validation_data = batches(*validation_data)
    data = batches(x, y, batch_size)
    return model.fit(data, shuffle=False, verbose=0, validation_data=validation_data, **arguments)


@functools.cache
def _made_once(make):
    return make()


def shared_trainer(make):
    """The trainer that a function makes, made and traced once. Each training on it begins anew."""
    trainer = _made_once(make)
    trainer.seconds_per_step = None
    return trainer


def subclassed(keras, num_inputs):
    """A model of a class of its own, with two dense layers."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = keras.layers.Dense(6, "relu"), keras.layers.Dense(3)

        def call(self, x):
            return self.second(self.first(x))

    model = Own()
    model(np.zeros((1, num_inputs), np.float32))
    return model


def each_in_both(cases, libraries=("keras", "tf_keras")):
    """Every case with both libraries; by default in turns, which halves the time."""
    return [
        pytest.param(case, library, marks=[] if (place + turn) % 2 else pytest.mark.long)
        for place, case in enumerate(cases)
        for turn, library in enumerate(libraries)
    ]
