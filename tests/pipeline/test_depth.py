"""How far it is from a command to an optimiser step, and how often a user's model is built before the first."""

import numpy as np
import pytest

import lottery
from lottery.training.trainer import Trainer
from tests.conftest import quietly, toy_arrays
from tests.scripts import depth_of_a_step


def test_a_step_is_at_most_sixteen_frames_in_thirteen_files_below_the_command():
    stacks = depth_of_a_step.stacks()
    assert len(stacks) >= 4
    for stack in stacks:
        assert stack[0] == ("cli/entry.py", "main") and stack[-1] == ("training/loop.py", "advance")
        assert len(stack) <= 16 and len({file for file, _ in stack}) <= 13, stack


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_users_model_is_built_twice_before_its_first_step(tmp_path, monkeypatch, library, compiled):
    import keras
    import tf_keras

    module = {"keras": keras, "tf_keras": tf_keras}[library]
    builds, at_start = [], []

    def build():
        builds.append(library)
        layers = module.layers
        model = module.Sequential([layers.InputLayer((6,)), layers.Dense(8, "relu"), layers.Dense(3, "softmax")])
        if compiled:
            model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    original = Trainer.train

    def train(*arguments):
        at_start.append(len(builds))
        return original(*arguments)

    monkeypatch.setattr(Trainer, "train", train)
    tables = {"data": {"validation": 40}, "train": {"num_steps": 4, "batch_size": 20}, "prune": {"num_rounds": 1}}
    tables["run"] = {"num_replicates": 1, "controls": ["random_reinit"]}
    lottery.run(tables, model=build, data=toy_arrays(np.random.default_rng(3)), out=tmp_path, on_event=quietly)
    assert at_start[0] == 2
    builds.clear()
    at_start.clear()
    (run,) = tmp_path.iterdir()
    (run / "replicate-1/round-01/round.json").unlink()
    data = toy_arrays(np.random.default_rng(3))
    lottery.run(tables, model=build, data=data, out=tmp_path, on_event=quietly)
    assert at_start[0] == 2, "a run that resumes builds it no more often"
