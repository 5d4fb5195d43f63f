"""Mixed precision: what is built, what is held, and what a checkpoint has of it."""

import contextlib
import itertools

import keras
import numpy as np
import pytest
import tf_keras

import lottery
from lottery import config, enforcement, files, interrupts, weights
from lottery.errors import LotteryError
from lottery.models import networks, precision
from lottery.pipeline import building, preparing
from lottery.pipeline.prepared import Ingredients
from lottery.pruning import gradients
from lottery.runs import verification
from lottery.runs.stored import StoredRound
from lottery.training import checkpoints
from tests.conftest import SMALL, quietly, toy_arrays

LIBRARIES = {"keras": keras, "tf_keras": tf_keras}
# That half precision is slow without a GPU is no matter here.
pytestmark = pytest.mark.filterwarnings("ignore:.*mixed_float16")


def plain(library, **last):
    layers = library.layers
    return lambda: library.Sequential([library.Input((6,)), layers.Dense(20, "relu"), layers.Dense(3, **last)])


def prepared(build, policy, mode="constraint", **train):
    settings = {"num_steps": 40, "batch_size": 16, "eval_every": 15, "learning_rate": 0.02, "precision": policy} | train
    tables = {"data": {"validation": 77}, "train": settings, "prune": {"num_rounds": 1}, "run": {"enforcement": mode}}
    return preparing.prepare(
        config.load(tables), Ingredients(build, toy_arrays(np.random.default_rng(3), num_train=277))
    )


def half(one):
    rng = np.random.default_rng(1)
    return {name: rng.random(value.shape) < 0.5 for name, value in weights.read(one.trainer.model).items()}


def globals_now():
    return [library.mixed_precision.global_policy().name for library in LIBRARIES.values()]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name,shape", [("lenet_300_100", (8, 8)), ("lenet_5", (16, 16)), ("resnet_8", (8, 8, 3))])
def test_networks_compute_in_half_and_end_in_float32(library, name, shape):
    before = globals_now()
    model = precision.in_precision(networks.builder(name, shape, 3, library), "mixed_bfloat16")()
    assert globals_now() == before == ["float32", "float32"]
    assert {value.dtype for value in weights.read(model).values()} == {np.dtype("float32")}
    *_, last = [layer for layer in model.layers if layer.weights]
    assert last.compute_dtype == "float32" and model.outputs[0].dtype == "float32"
    rest = [layer.compute_dtype for layer in model.layers if layer.weights and layer is not last]
    assert set(rest) == {"bfloat16"}
    full = precision.in_precision(networks.builder(name, shape, 3, library), "float32")()
    assert precision.policies(full) == {"float32"}


def test_the_policy_is_put_back_and_has_its_say():
    def breaks():
        raise ValueError("no")

    with pytest.raises(ValueError):
        precision.in_precision(breaks, "mixed_float16")()
    assert globals_now() == ["float32", "float32"]
    own = lambda: keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, dtype="float32")])  # noqa: E731
    with pytest.raises(LotteryError, match='is "mixed_float16", but the function .* policies float32'):
        precision.in_precision(own, "mixed_float16")()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("compiles", [False, True])
def test_half_precision_scales_the_loss(library, compiles):
    module = LIBRARIES[library]

    def build():
        model = plain(module)()
        if compiles:
            loss = module.losses.SparseCategoricalCrossentropy(from_logits=True)
            decay = module.optimizers.schedules.PiecewiseConstantDecay([20], [0.02, 0.01])
            model.compile(module.optimizers.SGD(decay), loss, metrics=["accuracy"])
        return model

    given = {"optimizer": "compiled"} if compiles else {}
    one = prepared(build, "mixed_float16", **given)
    optimizer = one.trainer.model.optimizer
    assert "LossScale" in type(optimizer).__name__
    assert "LossScale" not in type(prepared(build, "mixed_bfloat16", **given).trainer.loop.model.optimizer).__name__
    # The model's own last layer is not in float32, which is said.
    assert any("outputs of the model are of type float16" in note for note in one.notes)
    if compiles:  # the schedule is where it was asked to be
        one.trainer.schedule_step.assign([30, 1, 1])
        assert float(optimizer.inner_optimizer._learning_rate(0)) == pytest.approx(0.01)


MODES = [
    ("keras", "constraint"), ("keras", "callback"), ("keras", "reparameterization"),
    ("tf_keras", "gradient"), ("tf_keras", "tfmot"),
]  # fmt: skip
MORE = [("keras", "gradient"), ("tf_keras", "constraint"), ("tf_keras", "callback")]
CASES = [(*one, "mixed_float16") for one in MODES]
REST = [(*one, "mixed_float16") for one in MORE] + [(*one, "mixed_bfloat16") for one in MODES + MORE]


def test_the_cases_are_all_modes():
    assert {mode for _, mode, _ in CASES} == set(enforcement.ENFORCEMENTS)


@pytest.mark.parametrize("library,mode,policy", [*CASES, *(pytest.param(*one, marks=pytest.mark.long) for one in REST)])
def test_masked_entries_are_zero_after_every_step(library, mode, policy):
    one = prepared(plain(LIBRARIES[library], dtype="float32"), policy, mode, optimizer="adamw")
    kept, model = half(one), one.trainer.model
    with contextlib.closing(one.trainer):
        one.trainer.hold()
        one.trainer.set_masks(kept)
        weights.assign(model, {name: value * kept.get(name, 1) for name, value in weights.read_state(model).items()})
        one.trainer.reset()
        batches = one.trainer.loop.batches((9,))
        for _ in range(5):
            before = weights.read(model)
            one.trainer.loop.steps(*batches(1))
            for name, value in weights.read(model).items():
                assert value.dtype == np.float32
                assert not value[~kept[name]].any() and np.any(value[kept[name]] != before[name][kept[name]])


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.long)])
def test_a_checkpoint_has_the_scale_of_the_loss(library, tmp_path):
    def made():
        # Inputs so large that steps are skipped and the scale goes down.
        return prepared(plain(LIBRARIES[library], dtype="float32"), "mixed_float16", learning_rate=0.5)

    def train(one, **options):
        with contextlib.closing(one.trainer):
            result = one.trainer.train(start, half(one), (9,), **options)
        return [repr(result.metrics), *(value.tobytes() for value in result.weights.values())]

    one = made()
    start = {name: value * 30 for name, value in weights.read_state(one.trainer.model).items()}
    whole = train(one)
    assert train(one) == whole
    file = tmp_path / "checkpoint.safetensors"
    calls = itertools.count()
    with pytest.raises(interrupts.Stopped):
        train(one, checkpointer=checkpoints.Checkpointer(file, should_stop=lambda: 15 * (next(calls) > 2)))
    scales = {float(value) for name, value in files.read_arrays(file).items() if "scale" in name and value.ndim == 0}
    assert scales and max(scales) < 2**15, scales
    assert train(made(), checkpointer=checkpoints.Checkpointer(file, note=pytest.fail)) == whole


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.long)])
def test_synflow_is_in_double_precision_all_the_same(library):
    """It looks at the same weights, so it keeps the same of them."""
    build = networks.builder("lenet_300_100", (6,), 3, library)
    scores = []
    for policy in ("float32", "mixed_float16"):
        tables = {"prune": {"criterion": "synflow", "num_rounds": 1}, "train": {"precision": policy, "batch_size": 16}}
        given = toy_arrays(np.random.default_rng(3))
        one = preparing.prepare(config.load(tables | {"data": {"validation": 50}}), Ingredients(build, given))
        network = building.scoring_network(one, 1)
        assert precision.policies(network.model) == {"float32"}
        kept = {name: np.ones(value.shape, bool) for name, value in weights.read(network.model).items()}
        scores.append(gradients.flow_through(network.model, network.build, network.x, list(kept))(kept))
    for name, value in scores[0].items():
        np.testing.assert_allclose(scores[1][name], value, rtol=1e-9, err_msg=name)


def test_a_run_in_mixed_precision_is_whole(tmp_path):
    changed = {"train": {"precision": "mixed_bfloat16", "num_steps": 60}, "prune": {"num_rounds": 1}}
    done = lottery.run(SMALL, changed | {"run": {"num_replicates": 1}}, out=tmp_path, on_event=quietly)
    assert not [found for _, found in verification.verify(done.path) if found]
    assert len(StoredRound(done.path, 1, 1).predictions["label"]) == 360
    ticket = lottery.tickets.load(done.path, round=1)
    model = ticket.model()
    assert all(str(one.dtype) == "float32" for one in model.trainable_variables)
    plain_one = lottery.run(SMALL, {**changed, "train": {"num_steps": 60}, "run": {"num_replicates": 1}}, out=tmp_path)
    ends = [files.read_arrays(one.path / "replicate-1/round-00/weights.safetensors") for one in (done, plain_one)]
    assert any(np.any(value != ends[1][name]) for name, value in ends[0].items()) and done.path != plain_one.path
