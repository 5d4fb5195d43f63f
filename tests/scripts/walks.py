"""How far a reader walks through the package to follow a user's model to its first step, or a rate to its masks.

    python -m tests.scripts.walks                           # this checkout
    python -m tests.scripts.walks --package OTHER_CHECKOUT  # another one, with the packages installed here
    python -m tests.scripts.walks --list                    # also the functions of each walk

A small experiment runs in a process of its own, and each call of a function of the package is looked at. No name of
the package but `lottery.run` decides what counts, so that two versions with other modules can be compared; what counts
is seen in the values that functions receive (their arguments) and return.

**The model's walk** goes from ``lottery.run(model=build_model, data=...)`` to the first step. It stops at each function
that receives or returns the model, or the function that builds it: by itself, or inside of what is received, such as a
trainer that has it as an attribute. The first step is taken by the first call of a compiled function of TensorFlow that
makes the optimizer of the model count; what is called while that function is traced is part of the walk.

**The rate's walk** goes from a TOML file to the first masks with as many entries as the rate leaves. Its *handlers* are
the functions that receive or return the rate or numbers that follow from it: the density, and how many entries of a
weight, or of all, are kept or pruned. The experiment has a rate and weights for which these numbers occur nowhere else.
What has the rest of the experiment, too, such as a whole configuration or a trainer, does not make a function that
receives it a handler, or almost every function would be one. The walk is the handlers and the functions through which
they are called: those on the stack, from `lottery.run` on. A second row adds the functions that handlers call.

A function inside of another is a function; a lambda, a comprehension and the body of a class are not. What runs while
modules are imported does not count.
"""

import argparse
import contextlib
import functools
import importlib
import inspect
import io
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

HERE = Path(__file__).resolve().parents[2]
GOALS = {"model": (60, 18), "rate": (25, 12)}  # functions, files

DEPTH = 4  # how deep inside of an object something is looked for: an attribute of an attribute of an item ...
MOST_ITEMS = 100  # of a collection that are looked at

# A rate, and a learning rate that stands for the rest of the experiment, which no other number equals.
RATE, LEARNING_RATE = 0.2137, 0.0123457
NUM_INPUTS, NUM_UNITS, NUM_CLASSES = 64, 97, 10
SIZES = (NUM_INPUTS * NUM_UNITS, NUM_UNITS * NUM_CLASSES)  # entries of the two weights
NUM_TRAIN = 1400  # examples of the digits; the others are for the test

EXPERIMENT = f"""
[data]
validation = 250
[train]
num_steps = 4
eval_every = 2
learning_rate = {LEARNING_RATE}
[prune]
num_rounds = 1
rate = {RATE}
[run]
num_replicates = 1
"""

Function = tuple[str, str]  # the file below the package's folder, and the qualified name


def kept_entries() -> list[int]:
    """Count the entries of each weight that one round of the rate keeps."""
    return [size - round(RATE * size) for size in SIZES]


def numbers_of_the_rate() -> set[int]:
    """List the numbers of entries that follow from the rate: kept and pruned, of each weight and of both."""
    sizes = [*SIZES, sum(SIZES)]
    together = {sum(kept_entries()), sum(SIZES) - sum(kept_entries())}  # rounded by weight
    return together | {round(RATE * size) for size in sizes} | {size - round(RATE * size) for size in sizes}


NUMBERS = numbers_of_the_rate()


def is_of_the_rate(value: Any) -> bool:
    """Return True for the rate, its density, and numbers of entries that follow from it."""
    if isinstance(value, bool):
        return False
    if isinstance(value, float):
        return min(abs(value - RATE), abs(value - (1 - RATE))) < 1e-9
    return hasattr(value, "__index__") and not hasattr(value, "__len__") and value in NUMBERS


def is_of_the_rest(value: Any) -> bool:
    """Return True for a value that only the rest of the experiment has."""
    return type(value) is float and value == LEARNING_RATE


def inside(value: Any) -> list[Any]:
    """List what a value consists of: items, attributes of our own objects, and what our own functions have bound.

    Objects of other packages are closed: everything hangs together with everything in a Keras model.
    """
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, Mapping):
        return [*value.values()][:MOST_ITEMS]
    if isinstance(value, list | tuple | set | frozenset):
        return [*value][:MOST_ITEMS]
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 0) == 1 and value.size <= MOST_ITEMS:
        return value.tolist()
    if inspect.ismethod(value):
        return [value.__self__]
    if inspect.isfunction(value):
        return bound(value) if is_ours(value.__module__) else []
    if isinstance(value, type) or not is_ours(type(value).__module__):
        return []
    slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ()) if isinstance(name, str)]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]


def is_ours(module: str | None) -> bool:
    """Return True for the name of a module of the package."""
    return (module or "").split(".")[0] == "lottery"


def bound(function: Callable[..., Any]) -> list[Any]:
    """List the values that a function has from the functions around it, and its defaults."""
    found = [*(function.__defaults__ or ())]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing is assigned yet
            found.append(cell.cell_contents)
    return found


def holds(value: Any, is_it: Callable[[Any], bool], depth: int = DEPTH) -> bool:
    """Return True if a value is, or has inside, what is looked for."""
    if is_it(value):
        return True
    return depth > 0 and any(holds(inner, is_it, depth - 1) for inner in inside(value))


def handles_the_rate(value: Any) -> bool:
    """Return True if a value has the rate, and not the rest of the experiment."""
    # One deeper, so that nothing which has both is taken for the rate alone.
    return holds(value, is_of_the_rate) and not holds(value, is_of_the_rest, DEPTH + 1)


def are_the_masks(value: Any) -> bool:
    """Return True for masks of both weights that keep as many entries as the rate leaves."""
    if not isinstance(value, Mapping) or len(value) != len(SIZES):
        return False
    masks = [*value.values()]
    if not all(str(getattr(mask, "dtype", "")) == "bool" for mask in masks):
        return False
    return sorted(int(mask.sum()) for mask in masks) == sorted(kept_entries())


class Walk:
    """A record of the calls of the package's functions, and of those among them that handle something.

    Args:
        folder: The package's.
        handles: Tells of each argument and result if its function is a handler.
        ends: Tells of each result if the walk is at its end.
    """

    def __init__(
        self, folder: Path, handles: Callable[[Any], bool], ends: Callable[[Any], bool] = lambda result: False
    ) -> None:
        self.folder, self.handles, self.ends = f"{folder}{os.sep}", handles, ends
        self.is_over = False
        self.handlers: set[Function] = set()
        self.above: set[Function] = set()  # the functions on the stack when a handler is called, and the handlers
        self.calls: set[tuple[Function, Function]] = set()  # who calls whom

    def begin(self) -> None:
        """Look at every call from now on, in every thread."""
        threading.setprofile(self.look)
        sys.setprofile(self.look)

    def end(self) -> None:
        """Look no more; what other threads still call is not looked at either."""
        self.is_over = True
        sys.setprofile(None)
        threading.setprofile(None)

    def look(self, frame: FrameType, event: str, result: Any) -> None:
        """Look at a call or a return, for `sys.setprofile`."""
        if self.is_over or event not in ("call", "return") or not self.counts(frame.f_code):
            return
        stack = self.stack(frame)
        self.calls |= {(caller, stack[0]) for caller in stack[1:2]}
        if any(self.handles(value) for value in (arguments(frame) if event == "call" else [result])):
            self.handlers.add(stack[0])
            self.above |= {*stack}
        if event == "return" and self.ends(result):
            self.end()

    def counts(self, code: CodeType) -> bool:
        """Return True for a function of the package that has a name."""
        # Bodies of modules and classes are code, too, but not optimized.
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        return bool(is_function) and code.co_filename.startswith(self.folder)

    def stack(self, frame: FrameType | None) -> list[Function]:
        """List the functions of the package from a frame outwards."""
        found = []
        while frame is not None:
            code = frame.f_code
            if self.counts(code):
                found.append((code.co_filename.removeprefix(self.folder), code.co_qualname))
            frame = frame.f_back
        return found

    def called_by_handlers(self) -> set[Function]:
        """List the functions that handlers call."""
        return {called for caller, called in self.calls if caller in self.handlers}


def arguments(frame: FrameType) -> list[Any]:
    """List the values of a function's parameters."""
    code = frame.f_code
    several = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + several]
    # A parameter that an inner function uses is a cell, and is there by the same name.
    return [frame.f_locals[name] for name in names if name in frame.f_locals]


class FirstStepTaken(BaseException):
    """Ends a run that was started for its beginning only."""


@contextlib.contextmanager
def ended_by_the_first_step(walk: Walk, models: list[Any]) -> Iterator[None]:
    """End the walk, and whatever is run, where a compiled function makes the optimizer of one of the models count."""
    import tensorflow as tf

    kind = type(tf.function(lambda: None))
    original = kind.__call__

    def num_steps() -> int:
        optimizers = [getattr(model, "optimizer", None) for model in models]
        return max((int(each.iterations.numpy()) for each in optimizers if each is not None), default=0)

    def call(self: Any, *inputs: Any, **named: Any) -> Any:
        if walk.is_over or not tf.executing_eagerly():
            return original(self, *inputs, **named)
        before = num_steps()
        returned = original(self, *inputs, **named)
        if num_steps() > before:
            walk.end()
            raise FirstStepTaken
        return returned

    kind.__call__ = call
    try:
        with contextlib.suppress(FirstStepTaken):
            yield
    finally:
        kind.__call__ = original


def digits() -> tuple[Any, Any, Any, Any]:
    """Load examples that need no download, as arrays to train and to test on."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    return x[:NUM_TRAIN], y[:NUM_TRAIN], x[NUM_TRAIN:], y[NUM_TRAIN:]


def import_everything(package: Any) -> None:
    """Import every module, so that no import is part of a walk."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # what a module needs may not be installed
                importlib.import_module(module.name)


def walked(kind: str) -> dict[str, list[Function]]:
    """Go one walk in this process; return its functions, and for a rate those that handlers call as well."""
    import keras

    import lottery

    import_everything(lottery)
    folder, models = Path(lottery.__file__).parent, []

    def build_model() -> Any:
        layers = [keras.Input((NUM_INPUTS,)), keras.layers.Dense(NUM_UNITS, "relu"), keras.layers.Dense(NUM_CLASSES)]
        models.append(keras.Sequential(layers))
        return models[-1]

    def is_the_model(value: Any) -> bool:
        return value is build_model or isinstance(value, keras.Model)

    with tempfile.TemporaryDirectory() as out:
        if kind == "model":
            walk = Walk(folder, lambda value: holds(value, is_the_model))
            with ended_by_the_first_step(walk, models):
                walk.begin()
                lottery.run(model=build_model, data=digits(), out=out)
        else:
            walk = Walk(folder, handles_the_rate, are_the_masks)
            experiment = Path(out) / "experiment.toml"
            experiment.write_text(EXPERIMENT)
            walk.begin()
            lottery.run(experiment, model=build_model, data=digits(), out=out)
    if not walk.is_over:
        raise SystemExit(f"The walk of the {kind} has no end: it never came to its last stop.")
    if kind == "model":
        return {"walk": sorted(walk.handlers)}
    return {"walk": sorted(walk.above), "with calls": sorted(walk.above | walk.called_by_handlers())}


def walked_in(package: Path, kind: str) -> dict[str, list[Function]]:
    """Go one walk through a checkout's package, in a process of its own."""
    settings = {"PYTHONPATH": str(package), "TF_CPP_MIN_LOG_LEVEL": "3", "LOTTERY_DATA": ""}
    command = [sys.executable, "-P", __file__, "--go", kind]
    with tempfile.TemporaryDirectory() as here:
        done = subprocess.run(
            command, cwd=here, env={**os.environ, **settings}, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(f"The walk of the {kind} failed.\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    answer = json.loads(done.stdout)
    if Path(answer["package"]) != package / "lottery":
        raise SystemExit(f"The package that was imported is {answer['package']}, not that of {package}.")
    return {name: [(file, function) for file, function in stops] for name, stops in answer["walks"].items()}


def answer(kind: str) -> None:
    """Go one walk, and print it for the process that asked."""
    with contextlib.redirect_stdout(io.StringIO()):
        walks = walked(kind)
    import lottery

    print(json.dumps({"package": str(Path(lottery.__file__).resolve().parent), "walks": walks}))


def row(what: str, stops: list[Function], goal: tuple[int, int] | None = None) -> str:
    """Make a row of the table: functions and files, and the goals for them."""
    files = len({file for file, _ in stops})
    goals = "".join(f"{number:>8}" for number in goal or ())
    return f"{what:<44}{len(stops):>11}{files:>8}{goals}"


def show(stops: list[Function]) -> None:
    """Print the functions of a walk by file."""
    for file in sorted({file for file, _ in stops}):
        print(f"{file}: {', '.join(function for each, function in stops if each == file)}")


def main() -> None:
    """Go both walks, and print how long they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, default=HERE, help="a checkout")
    parser.add_argument("--list", action="store_true", help="print the functions of each walk, too")
    parser.add_argument("--go", choices=list(GOALS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.go:
        answer(options.go)
        return
    package = options.package.resolve()
    model, rate = (walked_in(package, kind) for kind in GOALS)
    print(f"{'':<44}{'functions':>11}{'files':>8}{'goals':>16}")
    print(row("lottery.run(model=...) to the first step", model["walk"], GOALS["model"]))
    print(row("prune.rate in TOML to the masks", rate["walk"], GOALS["rate"]))
    print(row("  with what its handlers call", rate["with calls"]))
    if options.list:
        for what, stops in (("The model's walk:", model["walk"]), ("The rate's walk:", rate["walk"])):
            print(f"\n{what}")
            show(stops)


if __name__ == "__main__":
    main()
