"""The network that the project's question was asked of: lock chosen entries while the rest trains, and find tickets."""

import importlib
import itertools

import numpy as np
import pytest

import lottery
from lottery import enforcement, files, masks, weights
from lottery.runs import store, verification
from tests.conftest import quietly

UNITS = (256, 128, 64, 32)


def build(library):
    dense = library.layers.Dense
    layers = [dense(units, "softsign", bias_initializer="ones") for units in UNITS]
    model = library.Sequential([library.layers.InputLayer((8,)), *layers, dense(1, "tanh")])
    model.compile(library.optimizers.Adam(0.001), "binary_crossentropy", metrics=["accuracy"])
    return model


def made(num_examples, dtype=np.float32):
    """Inputs, and labels 0 and 1 by which side of a plane they lie on."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(num_examples, 8)).astype(np.float32)
    return x, (x @ rng.normal(size=8) > 0).astype(dtype)


def go_on(model, callbacks=()):
    x, y = made(320)
    return model.fit(x, y, epochs=10, batch_size=32, verbose=0, callbacks=callbacks).history["loss"]


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_chosen_entries_are_locked_in_three_ways_and_the_rest_trains(library):
    library = importlib.import_module(library)
    library.utils.set_random_seed(1)
    model = build(library)
    assert all(np.all(weights.read_state(model)[name] == 1) for name in biases())
    first, *losses = go_on(model)
    assert min(losses) < 0.8 * first

    before, rng = weights.read_state(model), np.random.default_rng(1)
    free = {name: rng.random(value.shape) < 0.9 for name, value in before.items() if name != "dense_4/kernel"}
    free["dense_2/kernel"] = np.ones((128, 64), bool)
    free["dense_2/kernel"][3, 5] = free["dense_2/kernel"][:, 7] = False  # an edge, and all edges into a unit
    free["dense_4/bias"] = np.zeros(1, bool)  # a whole weight
    values = rng.permutation(before["dense_3/kernel"])
    ways = {
        None: ["dense/kernel", "dense_2/kernel"],
        "present": ["dense_1/kernel", "dense/bias", "dense_2/bias"],
        "given": ["dense_1/bias", "dense_3/kernel", "dense_3/bias", "dense_4/bias"],
    }
    given = {"dense_1/bias": 1.0, "dense_3/kernel": values, "dense_4/bias": 0.25}  # and zero where it says nothing
    enforce = [
        enforcement.EnforceMasks({name: free[name] for name in names}, held_at=given if how == "given" else how)
        for how, names in ways.items()
    ]
    expected = before | {name: np.zeros_like(before[name]) for name in [*ways[None], "dense_3/bias"]}
    expected |= {name: np.full_like(before[name], value) for name, value in given.items()}
    assert sorted(itertools.chain(*ways.values())) == sorted(free)

    for also in ([enforcement.AuditMasks(free, expected)], []):  # the same callbacks, twice
        losses = go_on(model, [*enforce, *also])
        assert min(losses) < 0.5 * first  # the lowest, for this network's loss jumps, locked or not
        after = weights.read_state(model)
        for name, mask in free.items():
            assert after[name][~mask].tobytes() == expected[name][~mask].tobytes(), name
            assert moved(after[name][mask], before[name][mask]), name
        assert moved(after["dense_4/kernel"], before["dense_4/kernel"])
        before = after
    outputs = model.predict(made(320)[0], verbose=0)
    assert np.isfinite(outputs).all() and outputs.std() > 0.1

    go_on(model)  # nothing holds them any more
    after = weights.read_state(model)
    assert all(moved(after[name][~mask], expected[name][~mask]) for name, mask in free.items())


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_tickets_are_found_in_it(dtype, tmp_path):
    import keras

    x, y = made(600, dtype)
    run = lottery.run(
        {
            "name": "question",
            "data": {"validation": 100},
            "train": {"num_steps": 60, "eval_every": 20, "batch_size": 32, "jit_compile": False},
            "prune": {"num_rounds": 3},
            "run": {"num_replicates": 1, "seed": 3},  # some seeds begin with all outputs below 0, and never learn
        },
        model=lambda: build(keras),
        data=(x[:450], y[:450], x[450:], y[450:]),
        out=tmp_path,
        on_event=quietly,
    )
    rows = run.table()
    assert rows["round"].tolist() == [0, 1, 2, 3]
    shapes = dict(zip(kernels(), zip((8, *UNITS), (*UNITS, 1), strict=True), strict=True))
    counts = [{name: size(shape) for name, shape in shapes.items()}]
    for _ in range(3):
        counts.append({name: kept - round(0.2 * kept) for name, kept in counts[-1].items()})
    assert rows["num_kept"].tolist() == [sum(each.values()) for each in counts]
    measured = rows.filter(regex="(early_stop|final).*(loss|accuracy)").to_numpy()
    assert np.isfinite(measured).all()
    assert (rows["final_test_accuracy"] > 0.7).all()  # one class alone has about half

    found = dict(verification.verify(run.path))
    assert len(found) == 4 and not any(found.values()), found
    initial = files.read_arrays(run.path / "replicate-1" / "initial.safetensors")
    assert all(np.all(initial[name] == 1) for name in biases()) and not initial["dense_4/bias"].any()
    kept = [files.read_masks(store.round_path(run.path, 1, index) / "masks.safetensors") for index in range(4)]
    assert [masks.num_kept(each) for each in kept] == counts
    assert all(masks.is_nested(inner, outer) for outer, inner in itertools.pairwise(kept))
    for index, each in enumerate(kept):
        trained = files.read_arrays(store.round_path(run.path, 1, index) / "weights.safetensors")
        assert not any(trained[name][~mask].any() for name, mask in each.items())
        assert all(np.any(trained[name] != initial[name]) for name in initial)


def moved(now, before):
    """All of them, but for one in a hundred that might have come back."""
    return np.count_nonzero(now == before) <= 0.01 * now.size


def kernels():
    return ["dense/kernel", *(f"dense_{index}/kernel" for index in range(1, 5))]


def biases():
    """Those that begin as ones."""
    return ["dense/bias", *(f"dense_{index}/bias" for index in range(1, 4))]


def size(shape):
    return shape[0] * shape[1]
