import tomllib
from pathlib import Path

import numpy as np
import pytest

from lottery import config, data, enforcement
from lottery.errors import LotteryError
from lottery.models import networks
from lottery.pruning import allocation, criteria, rewinding, schedules
from lottery.runs import store
from lottery.training import compiling
from lottery.training.settings import OPTIMIZERS, Train

EXPERIMENTS = sorted((Path(__file__).parents[1] / "experiments").glob("*.toml"))


@pytest.mark.parametrize("path", [None, *EXPERIMENTS], ids=lambda path: path.name if path else "mnist1d")
def test_files_load_and_survive_a_round_trip(path):
    experiment = config.load(path)
    again = config.load(tomllib.loads(config.dump(experiment)))
    assert again == experiment and config.digest(again) == config.digest(experiment)


def test_every_value_reaches_the_digest():
    digests = {config.digest(config.load({}))}
    words = [
        "name=a", "data.name=digits", "data.path=x", "data.validation=3", "data.pixels=unit", "data.pixels=unit_norm", "model.name=a:b",
        "train.num_steps=3", "train.batch_size=3", "train.optimizer=sgd", "train.learning_rate=0.5", "train.eval_every=3",
        "train.test_curve=true", "train.jit_compile=true", "prune.scope=global", "prune.schedule=linear",
        "prune.rate=0.3", "prune.num_rounds=3", "prune.rates.a/b=0.1", "run.num_replicates=2", "run.seed=4",
        "run.num_threads=1", "data.augment=['crop']", "train.warmup_steps=3", "train.drop_at=[3]", "train.drop_factor=0.5",
        "prune.allocation=erk", "prune.iterative=false", "prune.final_density=0.05", "prune.num_examples=3",
        "rewind.step=3", "rewind.mode=fine_tune", "run.controls=['untrained']", "run.control_rounds=[2]",
        "run.enforcement=gradient", "prune.criterion=random",
    ]  # fmt: skip
    for word in words:
        digests.add(config.digest(config.load({}, config.parse_overrides([word]))))
    assert len(digests) == len(words) + 1


def test_a_key_that_is_at_its_default_is_as_if_it_were_not_there():
    assert config.digest(config.load({"prune": {"rate": 0.2}})) == config.digest(config.load({}))


def test_fewer_rounds_leave_fewer_controls():
    tables = {"prune": {"num_rounds": 9}, "run": {"controls": ["untrained"], "control_rounds": [4, 8]}}
    assert config.load(tables, {"prune": {"num_rounds": 5}}).run.control_rounds == (4,)
    assert config.load(tables, {"prune": {"num_rounds": 2}}).run.control_rounds == (2,)
    assert config.load(None, {"prune": {"schedule": "explicit", "densities": [0.5, 0.2]}}).run.control_rounds == (2,)
    assert config.load(tables, {"prune": {"num_rounds": 0}}).run.control_rounds == config.ALL
    with pytest.raises(LotteryError, match=r"prune\.densities must be .* not 0\.5"):
        config.load(None, config.parse_overrides(["prune.schedule=explicit", "prune.densities=0.5"]))
    final = tomllib.loads(config.dump(config.load({"prune": {"final_density": 0.5, "num_rounds": 2}})))
    assert config.load(final, {"prune": {"num_rounds": 1}}).prune.rate == 0.5
    with pytest.raises(LotteryError, match="must be at most .* not 8"):
        config.load(tables, {"prune": {"num_rounds": 5}, "run": {"control_rounds": [8]}})


def test_no_control_rounds_means_no_controls():
    tables = {"run": {"controls": ["untrained"], "control_rounds": []}}
    found = config.load(tables)
    assert store.wanted(found) == store.wanted(config.load({"run": {"controls": []}}))
    assert config.digest(found) == config.digest(config.load({}))  # as if nobody had asked for controls
    every = config.load({"run": {"controls": ["untrained"]}})
    assert every.run.control_rounds == "all" and len(store.wanted(every)) == 1 + 2 * every.prune.num_rounds
    assert not config.load(None, config.parse_overrides(["run.control_rounds=[]"])).run.controls


def test_an_earlier_version_stored_all_rounds_as_none(tmp_path):
    experiment = config.load({"name": "old", "run": {"controls": ["untrained"]}})
    text = config.dump(experiment)
    assert 'control_rounds = "all"' in text
    (tmp_path / "experiment.toml").write_text(text.replace('control_rounds = "all"', "control_rounds = []"))
    assert store.read_experiment(tmp_path) == experiment
    with pytest.raises(
        LotteryError, match="has run.controls, but run.control_rounds is empty. Set run.control_rounds to 'all'"
    ):
        config.load(tmp_path / "experiment.toml")


@pytest.mark.parametrize("value", ["3", "[0.5]", "some"])
def test_control_rounds_of_another_type_are_refused_in_a_sentence(value):
    with pytest.raises(LotteryError, match=r"run.control_rounds must be 'all' or a list of rounds, such as \[2, 4\]"):
        config.load({}, config.parse_overrides([f"run.control_rounds={value}"]))


def test_a_final_density_decides_the_rate():
    prune = config.load({"prune": {"final_density": 0.01, "num_rounds": 10}}).prune
    assert (1 - prune.rate) ** 10 == pytest.approx(0.01)
    again = config.load(tomllib.loads(config.dump(config.load({"prune": {"final_density": 0.01, "num_rounds": 10}}))))
    assert again.prune == prune
    with pytest.raises(LotteryError, match=r"Set prune.rate or prune.final_density, not both. They are 0\.3 and 0\.01"):
        config.load({"prune": {"final_density": 0.01, "num_rounds": 10, "rate": 0.3}})
    assert config.load({"prune": {"rate": 0.3}}, {"prune": {"final_density": 0.5, "num_rounds": 1}}).prune.rate == 0.5


def test_numbers_of_numpy_are_those_of_python():
    final = {"final_density": np.float64(0.1), "num_rounds": np.int64(3)}
    assert config.load({"prune": final}) == config.load({"prune": {"final_density": 0.1, "num_rounds": 3}})
    lists = {
        "prune": {"schedule": "explicit", "densities": np.array([0.5, 0.2])},
        "run": {"control_rounds": np.array([1, 2])},
    }
    assert config.load(lists).run.control_rounds == (1, 2)
    with pytest.raises(LotteryError, match="Set prune.rate or prune.final_density, not both"):
        config.load({"prune": {**final, "rate": 0.5}})


def test_overrides_are_toml_and_else_strings():
    words = [
        "train.num_steps=300",
        "data.name=digits",
        "prune.rates.dense/kernel=0.5",
        "train.optimizer={name='sgd', momentum=0.9}",
    ]
    assert config.parse_overrides(words) == {
        "train": {"num_steps": 300, "optimizer": {"name": "sgd", "momentum": 0.9}},
        "data": {"name": "digits"},
        "prune": {"rates.dense/kernel": 0.5},
    }


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train.num_step=3", "Unknown key 'num_step' in .train.. Did you mean 'num_steps'"),
        ("trian.num_steps=3", "Unknown key 'trian'. Did you mean 'train'"),
        ("num_steps=3", "Unknown key 'num_steps'. Did you mean 'train.num_steps'"),
        ("train.rate=0.5", "Unknown key 'rate' in .train.. Did you mean 'prune.rate'"),
        (
            "data.name=mnits",
            "data.name must be 'mnist1d', 'digits', 'mnist', .*not 'mnits'.*Did you mean 'mnist'",
        ),
        ("data.name=npz", "needs data.path"),
        ("model.name=lenet_300", "Did you mean 'lenet_300_100'"),
        ("model.name=resnet_21", "Did you mean 'resnet_20'"),
        ("prune.criterion=magnitud", "Did you mean 'magnitude'"),
        ("train.optimizer=addam", "train.optimizer must be .*not 'addam'.*Did you mean 'adam'"),
        ("prune.rate=1.0", "prune.rate must be a number between 0 and 1.*not 1.0"),
        ("prune.rate=0", "prune.rate must be a number between 0 and 1.*not 0"),
        ("prune.rate=-0.2", "prune.rate must be .*not -0.2"),
        ("prune.rates.dense/kernel=2", "prune.rates.dense/kernel must be .*not 2"),
        ("prune.rate=nan", "prune.rate must be .*not nan"),
        ("prune.scope=local", "prune.scope must be 'layerwise' or 'global', not 'local'"),
        ("train.num_steps=0", "train.num_steps must be greater than or equal to 1.*not 0"),
        ("train.num_steps=ten", "train.num_steps must be a valid integer.*not 'ten'"),
        ("run.seed=9223372036854775808", "run.seed must be less than or equal to 9223372036854775807"),
        ("train.num_steps=true", "train.num_steps must be .*not True"),
        ("train.learning_rate=-1", "train.learning_rate must be .*not -1"),
        ("train.learning_rate={a=1}", "a table needs the name of a class"),
        ("train=3", "train must be a valid table .*not 3"),
        ("rewind.step=-5", "rewind.step must be greater than or equal to 0.*not -5"),
        ("rewind.step=50000", "rewind.step must be less than train.num_steps, 50000, not 50000"),
        (
            "rewind.mode=late",
            "rewind.mode must be 'weights', 'learning_rate', 'fine_tune', .*not 'late'",
        ),
        ("data.augment=['rotate']", "must be 'crop' or 'flip', not 'rotate'"),
        ("train.drop_at=[5, 5]", "train.drop_at must rise"),
        ("model=5", "model must be .*not 5"),
        ("train.drop_at=[50000]", "train.drop_at must be less than train.num_steps, 50000, not 50000"),
        ("train.warmup_steps=50001", "train.warmup_steps must be at most .* not 50001"),
        ("train.optimizer={name='sgd', weight_decay='a'}", "weight_decay must be a number, true or false, not 'a'"),
        ("train.optimizer=1", "train.optimizer must be the name of an optimizer, or a table such as .*, not 1"),
        ("train.optimizer={name=1}", "train.optimizer must be 'adadelta', .* or 'sgd', not 1"),
        ("train.warmup_steps=-1", "train.warmup_steps must be .*not -1"),
        (
            "prune.allocation=erd",
            "prune.allocation must be 'rates', 'uniform' or 'erk', not 'erd'. Did you mean 'erk'",
        ),
        ("prune.final_density=1.0", "prune.final_density must be .*not 1.0"),
        ("run.controls=['random_init']", "run.controls must be .*not 'random_init'.*Did you mean 'random_reinit'"),
        ("run.controls=[random_mask]", r"run.controls must be a list, .*not '\[random_mask\]'. In a shell, put quotes"),
        ("run.controls=3", "run.controls must be a list, .*not 3.$"),
        ("run.controls=['transfer']", "run.controls must be .*not 'transfer'"),
        ("run.controls=['untrained', 'untrained']", "run.controls has 'untrained' twice"),
        ("run.control_rounds=[3, 3]", "run.control_rounds has 3 twice"),
        ("prune={final_density=0.1, densities=[0.5], schedule='explicit'}", "prune.final_density replaces prune.dens"),
        ("run.control_rounds=[21]", "run.control_rounds must be at most prune.num_rounds, 20, not 21"),
        (
            "run.enforcement=hope",
            "run.enforcement must be 'constraint', 'gradient', 'reparameterization', 'callback' or 'tfmot', not 'hope'",
        ),
        ("name=../elsewhere", "name must be .*not '../elsewhere'"),
        ("prune.schedule=explicit", "go together"),
        ("prune.densities=[0.5]", "go together"),
        ("num_steps", "section.key=value"),
        ("train.optimizer={name='adam', clipnorm=[1]}", "clipnorm must be a number"),
        ("train.jit_compile=3", "must be true, false or 'auto', not 3"),
        (
            "prune.rates={dense/kernel=0.1}",
            "must be a table, not '{dense/kernel=0.1}'. In a shell, write 'prune.rates=",
        ),
        ("train.optimizer={name=sgd}", "train.optimizer must be a table"),
    ],
)
def test_a_wrong_key_or_value_is_refused_in_one_sentence(word, message):
    with pytest.raises(LotteryError, match=message) as caught:
        config.load({}, config.parse_overrides([word]))
    assert "\n" not in str(caught.value) and "pydantic" not in str(caught.value)


def test_a_sweep_is_not_an_experiment():
    with pytest.raises(LotteryError, match="makes several experiments. Use `lottery sweep`"):
        config.load({"experiment": "mnist1d", "sweep": {"prune.rate": [0.1, 0.2]}})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"name": "mnist1d"}, 500),
        ({"name": "digits"}, 143),
        ({"name": "digits", "validation": 7}, 7),
        ({"name": "mnist1d", "num_examples": 24_000}, 5000),
        ({"num_examples": 9}, 1),
        ({"name": "cifar10"}, 5000),
        ({"name": "npz", "path": "mine.npz", "num_examples": 100}, 5000),
    ],
)
def test_without_a_number_validation_leaves_examples_for_training(settings, expected):
    experiment = config.load({"data": settings})
    assert experiment.data.validation == expected
    assert config.load(config.plain(experiment.model_dump(mode="json"))).data == experiment.data


def test_a_table_that_is_a_value_is_replaced_and_a_dotted_key_is_merged():
    file = {"train": {"optimizer": {"name": "sgd", "momentum": 0.9}}, "prune": {"rates": {"a/kernel": 0.1}}}
    experiment = config.load(file, {"train": {"optimizer": {"name": "rmsprop"}}, "prune": {"rates": {}}})
    assert experiment.train.optimizer == {"name": "rmsprop"} and experiment.prune.rates == {}
    experiment = config.load(file, config.parse_overrides(["prune.rates.b/kernel=0.3"]))
    assert experiment.prune.rates == {"a/kernel": 0.1, "b/kernel": 0.3}
    with pytest.raises(LotteryError, match="prune.rates is 0.1, which has no key 'b/kernel'. Set the whole value"):
        config.load({}, config.parse_overrides(["prune.rates=0.1", "prune.rates.b/kernel=0.3"]))


def test_an_experiment_that_ships_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config.load("lenet_mnist") == config.load(config.shipped()["lenet_mnist"])
    (tmp_path / "lenet_mnist").write_text('name = "mine"')
    assert config.load("lenet_mnist").name == "mine"  # a file of that name comes first


@pytest.mark.parametrize("rounds", [["1"], [[1], 2], [None]])
def test_control_rounds_of_another_type_are_refused_beside_fewer_rounds(rounds):
    tables = {"run": {"controls": ["random_mask"], "control_rounds": rounds}}
    with pytest.raises(LotteryError, match="run.control_rounds must be 'all' or a list of rounds"):
        config.load(tables, {"prune": {"num_rounds": 2}})


def test_a_run_with_a_larger_seed_of_an_earlier_version_can_be_read(tmp_path):
    stored = config.dump(config.Experiment(run=config.Run(seed=2**100)))
    assert config.validated(config.parsed(tmp_path, stored.encode())).run.seed == 2**100


def test_a_key_that_is_no_text_is_refused():
    with pytest.raises(LotteryError, match=r"Unknown key '1' in \[prune\]"):
        config.load({}, {"prune": {1: 2}})


def test_numbers_of_numpy_count_as_those_of_python():
    tables = {"run": {"controls": ["random_mask"], "control_rounds": [np.int64(1), np.int64(4)]}}
    assert config.load(tables).run.control_rounds == (1, 4)
    assert config.load(tables, {"prune": {"num_rounds": np.int64(2)}}).run.control_rounds == (1,)


def test_overrides_that_contradict_each_other_are_refused():
    with pytest.raises(LotteryError, match="'train' is set to a value"):
        config.parse_overrides(["train=3", "train.num_steps=5"])


@pytest.mark.parametrize(
    ("section", "key", "methods"),
    [
        ("data", "name", data.DATASETS),
        ("model", "name", networks.MODELS),
        ("prune", "criterion", criteria.CRITERIA),
        ("prune", "schedule", schedules.SCHEDULES),
        ("prune", "allocation", allocation.ALLOCATIONS),
        ("rewind", "mode", rewinding.REWINDS),
        ("run", "enforcement", enforcement.ENFORCEMENTS),
    ],
)
def test_the_names_of_methods_are_the_keys_of_their_dicts(section, key, methods, monkeypatch):
    for name in methods:
        needed = {"npz": {"path": "some.npz"}, "explicit": {"densities": [0.5]}}.get(name, {})
        tables = {section: {key: name} | needed}
        assert getattr(getattr(config.load(tables), section), key) == name
    with pytest.raises(LotteryError) as refused:
        config.load({section: {key: "nothing"}})
    assert all(repr(name) in str(refused.value) for name in methods)
    monkeypatch.setitem(methods, "nothing", next(iter(methods.values())))  # another name of a method that is there
    assert getattr(getattr(config.load({section: {key: "nothing"}}), section), key) == "nothing"


def test_explicit_densities_count_the_rounds():
    experiment = config.load({"prune": {"schedule": "explicit", "densities": [0.5, 0.2, 0.1]}})
    assert experiment.prune.num_rounds == 3
    with pytest.raises(LotteryError, match="must fall"):
        config.load({"prune": {"schedule": "explicit", "densities": [0.5, 0.6]}})
    with pytest.raises(LotteryError, match="leave prune.num_rounds out"):
        config.load({"prune": {"schedule": "explicit", "densities": [0.5], "num_rounds": 4}})
    for key, value in (("rate", 0.4), ("rates", {"dense/kernel": 0.4})):
        with pytest.raises(LotteryError, match=f"leave out prune.{key}"):
            config.load({"prune": {"schedule": "explicit", "densities": [0.5], key: value}})


def test_other_data_are_not_read_from_the_file_of_those_they_replace():
    file = {"data": {"name": "cifar10", "path": "cifar10.npz", "num_examples": 9000}}
    assert config.load(file, {"data": {"name": "fashion_mnist"}}).data == data.Data(name="fashion_mnist")
    assert config.load({"data": {"path": "mnist.npz"}}, {"data": {"name": "mnist"}}).data.path == "mnist.npz"
    kept = config.load(file, {"data": {"name": "cifar10", "validation": 10}}).data
    assert (kept.path, kept.num_examples) == ("cifar10.npz", 0)
    assert config.load(file, {"data": {"name": "mnist", "path": "other.npz"}}).data.path == "other.npz"


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(LotteryError, match=r"no experiment file .*nowhere\.toml"):
        config.load(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("name = \n")
    with pytest.raises(LotteryError, match="not valid TOML"):
        config.load(tmp_path / "bad.toml")


def test_optimizers_are_those_of_keras():
    import keras

    theirs = {name.lower() for name, value in vars(keras.optimizers).items() if isinstance(value, type)}
    # Base classes; and one that keeps the weights it is judged by apart from those it trains.
    left_out = {"optimizer", "optimizermap", "lossscaleoptimizer", "multioptimizer", "schedulefreeadamw"}
    assert theirs - left_out == set(OPTIMIZERS)
    for name in OPTIMIZERS:
        made = compiling.optimizer(keras, Train(optimizer=name, learning_rate=0.5))
        assert type(made).__name__.lower() == name and float(made.learning_rate) == 0.5


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"optimizer": {"name": "sgd", "momentun": 0.9}}, "momentun"),
        ({"learning_rate": {"name": "CosineDecoy"}}, "CosineDecoy"),
        ({"learning_rate": {"name": "CosineDecay", "decay": 3}}, "decay"),
    ],
)
def test_an_argument_that_keras_refuses_is_one_sentence(train, message):
    import keras

    with pytest.raises(LotteryError, match=message) as caught:
        compiling.optimizer(keras, Train(**train))
    assert "\n" not in str(caught.value)


def test_a_schedule_of_learning_rates_and_arguments():
    import keras

    rate = {"name": "PiecewiseConstantDecay", "boundaries": [5], "values": [0.1, 0.01]}
    made = compiling.optimizer(keras, Train(optimizer={"name": "sgd", "momentum": 0.9}, learning_rate=rate))
    assert made.momentum == 0.9 and float(made.learning_rate) == pytest.approx(0.1)
    made.iterations.assign(6)
    assert float(made.learning_rate) == pytest.approx(0.01)
