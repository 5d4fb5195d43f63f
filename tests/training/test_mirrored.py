"""A network on several devices; what needs two of them runs in a process of its own."""

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from lottery import config, weights
from lottery.errors import LotteryError
from lottery.pipeline import preparing
from lottery.pipeline.prepared import Ingredients
from lottery.training import mirrored
from tests.conftest import toy_arrays

TABLES = {"data": {"validation": 77}, "train": {"num_steps": 20, "batch_size": 15}, "prune": {"num_rounds": 1}}


def build():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(9, "relu"), keras.layers.Dense(3)])


def prepared(devices="one", **run):
    arrays = toy_arrays(np.random.default_rng(3))
    return preparing.prepare(
        config.load(TABLES, {"run": run, "train": {"jit_compile": False, "devices": devices}}),
        Ingredients(build, arrays),
    )


def on_two_devices(*options):
    words = [sys.executable, "-m", "pytest", "-v", "-x", "tests/scripts/on_two_devices.py", *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=1800, cwd=Path(__file__).parents[2])


@pytest.fixture(scope="module")
def some_on_two_devices():
    """Masks on each device after every step, a stop and resume, and tf_keras; the rest is left to `-m long`."""
    few = "not tf_keras and (after_every_step and constraint or from_a_checkpoint) or replica"
    return on_two_devices("-k", f"{few} or tf_keras and weights_of_one_device")


def test_on_two_devices(some_on_two_devices):
    done = some_on_two_devices
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-3000:]
    assert all(name in done.stdout for name in ("after_every_step", "from_a_checkpoint", "tf_keras-sgd"))


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_constraint_holds_on_every_replica_of_a_mirrored_strategy(library, some_on_two_devices):
    done = some_on_two_devices
    assert f"test_the_constraint_holds_on_every_replica[{library}] PASSED" in done.stdout, done.stdout[-3000:]


@pytest.mark.long
def test_the_rest_on_two_devices():
    done = on_two_devices("-m", "long or not long")
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-3000:]


def test_one_device_is_enough_and_is_said():
    alone, mirrored = prepared(), prepared(devices="mirrored")
    assert not alone.notes and any("There is one device" in note for note in mirrored.notes)
    start = weights.read_state(alone.trainer.model)
    results = [one.trainer.train(start, {}, (1,)) for one in (alone, mirrored)]
    for name, value in results[0].weights.items():
        np.testing.assert_allclose(results[1].weights[name], value, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("mode", ["reparameterization", "tfmot"])
def test_modes_that_it_cannot_hold_by_are_refused(mode):
    with pytest.raises(LotteryError, match=f'must be "constraint", "gradient" or "callback" with .*, not "{mode}"'):
        prepared(devices="mirrored", enforcement=mode)


def test_the_keys_are_checked_and_are_nothing_at_their_defaults():
    plain = config.load(TABLES)
    said = config.load(TABLES, {"train": {"devices": "one", "precision": "float32"}})
    assert config.digest(plain) == config.digest(said)
    assert config.digest(plain) != config.digest(config.load(TABLES, {"train": {"devices": "mirrored"}}))
    assert config.digest(plain) != config.digest(config.load(TABLES, {"train": {"precision": "mixed_float16"}}))
    with pytest.raises(LotteryError, match="train.devices must be 'one' or 'mirrored', not 'mirored'"):
        config.load(TABLES, {"train": {"devices": "mirored"}})
    with pytest.raises(LotteryError, match="train.precision must be 'float32', 'mixed_float16' or .*not 'float16'"):
        config.load(TABLES, {"train": {"precision": "float16"}})


def test_a_plain_model_is_left_alone():
    model = build()
    assert mirrored.strategy_of(model) is None and mirrored.num_devices(model) == 1
    assert not mirrored.differing(weights.variables(model), weights.read_state(model))
    assert all(len(weights.components(one)) == 1 for one in model.variables)
    batch = object()
    assert mirrored.run(model, lambda given: {"same": given is batch}, batch) == {"same": True}
