"""How deep an optimiser step lies: the frames of our own code between the command and the call of the compiled steps.

    python -m tests.scripts.depth_of_a_step

A tiny experiment runs through `lottery.cli.main` in this process. Frames of other packages, such as typer's, do not
count.
"""

import sys
import tempfile
from pathlib import Path
from types import FrameType
from unittest import mock

import lottery
from lottery import cli
from lottery.training import loop, trainer

FOLDER = Path(lottery.__file__).parent
WORDS = (
    "run", "train.num_steps=4", "train.eval_every=2", "prune.num_rounds=1", "run.num_replicates=1", "run.controls=[]",
    "run.control_rounds=[]", "--workers", "1",
)  # fmt: skip


def ours(frame: FrameType | None) -> list[tuple[str, str]]:
    """List file and function of the frames of our own code, outermost first."""
    found = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if FOLDER in path.parents:
            found.append((str(path.relative_to(FOLDER)), frame.f_code.co_name))
        frame = frame.f_back
    return found[::-1]


def stacks() -> list[list[tuple[str, str]]]:
    """Run the experiment; return our frames at each call of the compiled steps."""
    found: list[list[tuple[str, str]]] = []
    original = trainer.compile_loop

    def compile_loop(*arguments: object) -> loop.Loop:
        compiled = original(*arguments)
        steps = compiled.steps

        class Watched:
            get_concrete_function = steps.get_concrete_function

            def __call__(self, *inputs: object) -> object:
                found.append(ours(sys._getframe(1)))
                return steps(*inputs)

        object.__setattr__(compiled, "steps", Watched())
        return compiled

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(trainer, "compile_loop", compile_loop):
        words = ["lottery", *WORDS, "--out", folder]
        with mock.patch.object(sys, "argv", words):
            try:
                cli.main()
            except SystemExit as ended:
                assert not ended.code, ended.code
    return found


def main() -> None:
    """Print the deepest stack."""
    deepest = max(stacks(), key=len)
    for file, function in deepest:
        print(f"{file}: {function}")
    print(f"{len(deepest)} frames in {len({file for file, _ in deepest})} files")


if __name__ == "__main__":
    main()
