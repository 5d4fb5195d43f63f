"""The readers in docs/tickets.md read every ticket, without this package."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lottery
from lottery import tickets
from lottery.models import networks

PAGE = (Path(__file__).parents[2] / "docs" / "tickets.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
(NUMPY,) = [block for block in BLOCKS if "def read_ticket" in block]
(TORCH,) = [block for block in BLOCKS if "def state_dict" in block]
_own: dict = {}
exec(NUMPY, _own)
read_ticket = _own["read_ticket"]  # which other tests read tickets with
# Prints nothing, writes what it read, and shows that it was alone.
ALONE = """
import sys
path, out = sys.argv[1:]
for part in ("start", "trained"):
    masks, values, record = read_ticket(path, part)
    np.savez(f"{out}-{part}.npz", **{f"mask:{name}": mask for name, mask in masks.items()}, **values)
assert not {"lottery", "tensorflow", "keras", "tf_keras"} & set(sys.modules)
"""


def ticket_of(name, shape, rng, library="keras"):
    model = networks.builder(name, shape, 10, library)()
    masks = {
        name: rng.random(value.shape) < density
        for (name, value), density in zip(
            lottery.weights.read(model).items(), np.resize([0.04, 0.5, 1, 0], 30), strict=False
        )
    }
    state = lottery.weights.read_state(model)
    trained = {name: rng.normal(size=value.shape).astype(value.dtype) for name, value in state.items()}
    return tickets.of(model, masks, trained=trained)


@pytest.mark.parametrize(("name", "shape"), [("lenet_300_100", (8, 8)), ("resnet_8", (8, 8, 3))])
def test_the_numpy_reader(name, shape, rng, tmp_path):
    ticket = ticket_of(name, shape, rng)
    path = ticket.save(tmp_path / "ticket.safetensors")
    script = tmp_path / "reader.py"
    script.write_text(NUMPY + ALONE)
    subprocess.run([sys.executable, "-I", script, path, tmp_path / "read"], check=True)
    for part, expected in (("start", ticket.weights), ("trained", ticket.trained)):
        with np.load(tmp_path / f"read-{part}.npz") as found:
            assert {key for key in found if not key.startswith("mask:")} == set(expected)
            for key, value in expected.items():
                assert found[key].dtype == value.dtype and found[key].tobytes() == value.tobytes()
            for key, mask in ticket.masks.items():
                assert np.array_equal(found[f"mask:{key}"], mask)


def test_the_numpy_reader_is_short_and_sees_damage(rng, tmp_path):
    assert len(NUMPY.strip().splitlines()) < 40
    path = ticket_of("lenet_300_100", (8, 8), rng).save(tmp_path / "ticket.safetensors")
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        for part in ("start", "trained"):
            read_ticket(path, part)


MODULES = """
import sys
import torch
from torch import nn

path, x, out = sys.argv[1:]
torch.set_num_threads(1)
x = torch.from_numpy(np.load(x))
if x.ndim == 2:
    model = nn.Sequential()
    for name, sizes in (("dense", (12, 300)), ("dense_1", (300, 100)), ("dense_2", (100, 10))):
        model.add_module(name, nn.Linear(*sizes))
        model.add_module(f"{name}_relu", nn.ReLU() if name != "dense_2" else nn.Identity())
else:
    model = nn.Sequential()
    model.add_module("conv2d", nn.Conv2d(3, 5, (3, 2)))
    model.add_module("batch_normalization", nn.BatchNorm2d(5, eps=1e-3))
    x = x.permute(0, 3, 1, 2)
state = state_dict(path, "trained")
missing = model.load_state_dict(state, strict=False)
assert not missing.unexpected_keys and all("num_batches" in key for key in missing.missing_keys), missing
with torch.no_grad():
    y = model.eval()(x)
np.save(out, (y.permute(0, 2, 3, 1) if y.ndim == 4 else y).numpy())
assert not {"lottery", "tensorflow", "keras"} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def torch():
    """PyTorch in a process of its own: beside TensorFlow, either may take the other's threads."""
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode:
        pytest.skip("needs PyTorch")


# The tensors of each ticket, turned back into what Keras has.
ALL_BACK = """
import sys

for path in sys.argv[1:]:
    names = [name for name in read_ticket(path)[1]]
    state = state_dict(path)
    assert len(state) == len(names)
    back = {}
    for name, value in zip(names, state.values()):
        value = value.numpy()
        back[name] = np.moveaxis(value, (0, 1), (-1, -2)) if name.endswith("kernel") else value
    np.savez(path + ".npz", **back)
assert not {"lottery", "tensorflow", "keras"} & set(sys.modules)
"""


@pytest.mark.long
def test_the_pytorch_reader_reads_every_built_in_network(rng, tmp_path, torch):
    images = {"lenet_5": 16, "conv_4": 4, "conv_6": 8, "vgg_11": 16, "vgg_16": 16, "vgg_19": 16}
    made = {name: ticket_of(name, (images.get(name, 2),) * 2, rng) for name in networks.MODELS}
    paths = [ticket.save(tmp_path / f"{name}.safetensors") for name, ticket in made.items()]
    script = tmp_path / "reader.py"
    script.write_text(NUMPY + TORCH + ALL_BACK)
    subprocess.run([sys.executable, script, *paths], check=True)
    for path, ticket in zip(paths, made.values(), strict=True):
        with np.load(f"{path}.npz") as found:
            assert set(found) == set(ticket.weights)
            assert all(found[key].tobytes() == value.tobytes() for key, value in ticket.weights.items())


@pytest.mark.parametrize("kind", ["dense", "convolution"])
def test_the_pytorch_reader(kind, rng, tmp_path, torch):
    import keras

    if kind == "dense":
        model, x = networks.builder("lenet_300_100", (12,), 10)(), rng.normal(size=(20, 12)).astype(np.float32)
    else:
        layers = keras.layers
        model = keras.Sequential([keras.Input((6, 6, 3)), layers.Conv2D(5, (3, 2)), layers.BatchNormalization()])
        x = rng.normal(size=(4, 6, 6, 3)).astype(np.float32)
    masks = {name: rng.random(value.shape) < 0.3 for name, value in lottery.weights.read(model).items()}
    trained = {
        name: rng.uniform(0.1, 1, value.shape).astype(value.dtype)
        for name, value in lottery.weights.read_state(model).items()
    }
    ticket = tickets.of(model, masks, trained=trained)
    path = ticket.save(tmp_path / "ticket.safetensors")
    np.save(tmp_path / "x.npy", x)
    script = tmp_path / "reader.py"
    script.write_text(NUMPY + TORCH + MODULES)
    subprocess.run([sys.executable, script, path, tmp_path / "x.npy", tmp_path / "y.npy"], check=True)
    ticket.apply(model, trained=True)
    expected = np.asarray(model(x, training=False))
    assert np.abs(np.load(tmp_path / "y.npy") - expected).max() <= 1e-5 * np.abs(expected).max()
