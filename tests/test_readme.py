"""What the README and the pages under docs/ say is what happens."""

import contextlib
import functools
import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import mock

import pytest

import lottery
from lottery import config, plots
from lottery.pipeline import sweeping
from lottery.pruning import branches, criteria
from lottery.runs import store
from lottery.tickets import exporting
from tests.conftest import SMALL

pytestmark = pytest.mark.usefixtures("traced_once")

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in FILES}
every_page = pytest.mark.parametrize("page", PAGES)
# A block of Python, and of text if it follows at once: that is what the block prints.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```\n", re.M | re.S)
END = "=== end of a block ==="
NO_PYTHON = {"docs/commands.md", "docs/glossary.md", "docs/index.md", "docs/speed.md"}
TRACKERS = "docs/logging.md"  # it needs a tracker, which is not installed for tests
# Pages that only look at runs say that this needs no TensorFlow.
NO_TENSORFLOW = {"docs/concepts.md", "docs/metrics.md", "docs/files.md", "docs/reproductions.md", "docs/seeing.md"}
# The default run, which pages look at; `small_run` stands in for it, and its last round for any later one.
RUN, LAST_ROUND = store.run_path("runs", config.load()), 3
# A command that reads what these make with it needs no training, no model and no data.
READING = {
    "show", "ls", "plot", "report", "verify", "compare", "export", "tickets ls", "tickets show", "experiments ls",
    "experiments show", "experiments cp", "analyze overlap", "analyze layers", "analyze degrees", "analyze distance",
    "analyze costs", "analyze curves",
}  # fmt: skip
DRAWN: set[tuple[str, str | None]] = set()
PROGRAMS = ("lottery", "python", "tensorboard", "pip")
# A shell that does nothing but say which programs it is asked for: what a word is, only the shell knows.
SHELL = "set -u\n" + "".join(f"""{one}() {{ printf '%s\\x1f' {one} "$@"; printf '\\x1e'; }}\n""" for one in PROGRAMS)


@pytest.fixture
def here(small_run, tmp_path):
    """A folder that has the run that pages look at, and the measured numbers of the repository."""
    shutil.copytree(small_run.path, tmp_path / RUN)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    return tmp_path


@pytest.mark.parametrize("page", sorted(PAGES.keys() - NO_PYTHON - {TRACKERS}))
def test_every_python_block_runs(page, here, monkeypatch):
    """In order, each with the names that the blocks before it made; pages that need no TensorFlow never import it."""
    blocks = BLOCK.findall(PAGES[page])
    assert len(blocks) == len(re.findall(r"^ *```py", PAGES[page], re.M)) >= 1
    run = in_a_new_process if page in NO_TENSORFLOW else in_this_process
    printed = run([code for code, _ in blocks], here, monkeypatch)
    assert len(printed) == len(blocks)
    for (_, expected), found in zip(blocks, printed, strict=True):
        if expected:
            assert without_fractions(found) == without_fractions(expected)


def test_the_page_on_trackers_logs_each_network(small_run, tmp_path, monkeypatch):
    """Its block, with a stand-in for MLflow; the page says with which version it was tried."""
    ((code, _),) = BLOCK.findall(PAGES[TRACKERS])
    tracker = mock.MagicMock()
    monkeypatch.setitem(sys.modules, "mlflow", tracker)
    quick = {"train": {"num_steps": 4, "eval_every": 2, "jit_compile": False}, "prune": {"num_rounds": 1}}
    quick["run"] = {"num_replicates": 2, "controls": []}
    with mock.patch("lottery.run", functools.partial(lottery.run, SMALL | quick, out=tmp_path)):
        exec(code, {})
    logged = [(*call.args, call.kwargs["step"]) for call in tracker.log_metric.call_args_list]
    assert len(logged) == 2 * 4 and {step for *_, step in logged} == {0, 1}
    names = {f"ticket/replicate {one}/{what}" for one in (1, 2) for what in ("density", "test accuracy")}
    assert {name for name, *_ in logged} == names and all(0 <= value <= 1 for _, value, _ in logged)
    assert tracker.set_tag.call_args.args[0] == "verdict" and tracker.log_figure.call_args.args[1] == "accuracy.png"


def in_a_new_process(blocks, folder, _):
    """Print what each block prints, after checking that the process has not imported TensorFlow."""
    code = "".join(f"{code}\nprint({END!r})\n" for code in blocks)
    code += "import sys\nassert not {'tensorflow', 'keras', 'tf_keras'} & sys.modules.keys()\n"
    script = folder / "page.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script.name], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split(f"{END}\n")[:-1]


def in_this_process(blocks, folder, monkeypatch):
    """Return what each block prints; TensorFlow is imported already, which takes longer than most blocks."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    names, printed = {"__name__": "__main__"}, []
    with mock.patch.dict(criteria.CRITERIA):  # a page may add one
        for code in blocks:
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(compile(code, "page.py", "exec"), names)
            printed.append(stream.getvalue())
    return printed


def without_fractions(text):
    """The last digits, and so the sign of a small number, are those of the machine; whole numbers and 0.0 are not."""
    return re.sub(r"-?\d+\.\d{4,}(e[-+]\d+)?", "#", text)


def test_pages_without_python_have_none():
    assert not [page for page in NO_PYTHON & PAGES.keys() if "```py" in PAGES[page]]


@every_page
def test_tests_and_files_that_are_named_exist(page):
    for path, name, case in re.findall(r"\b(tests/[\w/]+\.py)::(\w+)(?:\[(\w+)\])?", PAGES[page]):
        text = (ROOT / path).read_text()
        assert f"\ndef {name}(" in text, (path, name)
        assert not case or f'"{case}"' in text, (path, name, case)
    folder = (ROOT / page).parent
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", PAGES[page]):
        target = folder / path if path else ROOT / page
        assert target.exists(), path
        assert not anchor or anchor in headings(target.read_text()), (path, anchor)


def test_functions_that_pages_name_are_there_after_import_lottery():
    """A module that nothing has imported is no attribute of its room."""
    found = {name for text in PAGES.values() for name in re.findall(r"`lottery\.([\w.]+)\(", text)}
    code = f"import lottery, operator\nfor name in {sorted(found)}: operator.attrgetter(name)(lottery)"
    subprocess.run([sys.executable, "-c", code], check=True)


@every_page
def test_nothing_was_left_to_be_written(page):
    assert not re.search(r"^(?:[A-Z_]{4,}|.*\b(?:TODO|TBD|FIXME|XXX)\b.*)$", PAGES[page], re.M)


def headings(text):
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


def test_the_two_commands_come_first():
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S)
    assert len(blocks) >= 2
    assert "lottery run" in blocks[0] and "pytest" in blocks[1]


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


def test_no_link_of_the_readme_is_dead_on_pypi():
    """There it has no files beside it; pyproject.toml says what becomes of links to them."""
    text = README
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    for one in hook["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    assert len(text) > 0.8 * len(README) and "experiments" in text
    assert all(target.startswith("https:") for target in re.findall(r"\]\(([^)]*)\)", text))


def test_every_command_is_on_the_home_page():
    from lottery import cli

    commands = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
    commands |= {group.name for group in cli.app.registered_groups}
    assert set(re.findall(r"^lottery (\w+)", PAGES["docs/index.md"], re.M)) == commands


@every_page
def test_the_default_run_has_its_name(page):
    """Its digest changes with the experiment, and nothing else would notice."""
    assert set(re.findall(r"runs/mnist1d-\w+", PAGES[page])) <= {str(RUN)}


# From a copy of the repository, and then what a command needs beyond that.
BEYOND = ("onnx", "ray", "sparse")
INSTALLS = {
    ".",
    "tensorboard",
    "-e '.[test]'",
    "-e '.[dev]'",
    "-e '.[docs]'",
    *(f"'lottery[{extra}]'" for extra in BEYOND),
}


@pytest.mark.parametrize("path", [*FILES, *ROOT.glob("notebooks/*.ipynb")], ids=lambda path: path.name)
def test_it_is_installed_the_same_everywhere(path):
    assert set(re.findall(r"pip install (?:-q )?((?:-e )?[^\s`)]+)", path.read_text())) <= INSTALLS


@every_page
def test_every_block_is_of_a_kind_that_is_tested(page):
    """Python and commands are run or parsed elsewhere; what is left is read by whoever reads such files, or is text."""
    rest = BLOCK.sub("", PAGES[page])
    assert rest.count("```") == 2 * len(FENCE.findall(rest))
    own = FENCE.findall(rest)
    if page == "README.md":  # what a newcomer types first is what CI types
        own = [one for one in own if one[0] != "sh"] + [one for one in own if one[0] == "sh"][2:]
    for kind, text in own:
        assert kind in ("text", "sh", "toml", "json")
        assert kind != "sh" or text in command_blocks(page)
        if kind == "toml":
            tables = tomllib.loads(text)
            _ = sweeping.points(tables) if "sweep" in tables else config.load(tables)
        if kind == "json":
            json.loads(text)


def command_blocks(page):
    """Blocks that somebody might type. What ``--help`` prints begins otherwise."""
    blocks = [text for _, text in FENCE.findall(BLOCK.sub("", PAGES[page])) if not text.startswith("Usage:")]
    return [text for text in blocks if re.search(rf"^ *(?:\w+=\S* +)*(?:{'|'.join(PROGRAMS)}) ", text, re.M)]


PAGES_WITH_COMMANDS = [page for page in PAGES if command_blocks(page)]
every_page_with_commands = pytest.mark.parametrize("page", PAGES_WITH_COMMANDS)


def commands_of(page, folder):
    """The words of each command in the blocks of a page, in order, as a shell in an empty folder makes them."""
    found = []
    for block in command_blocks(page):
        done = subprocess.run(
            [shutil.which("bash"), "-c", SHELL + block], cwd=folder, capture_output=True, text=True, env={"PATH": ""}
        )
        assert not done.stderr, (block, done.stderr)
        found += [said.split("\x1f")[:-1] for said in done.stdout.split("\x1e")[:-1]]
    return found


@functools.cache
def the_command():
    import typer

    from lottery import cli

    return typer.main.get_command(cli.app)


def below(command, name):
    """The command of that name below a command, or None."""
    return command.get_command(None, name) if hasattr(command, "get_command") else None


def parsed(words):
    """What the command line makes of a command: its name, and its arguments and options by name."""
    command, rest, names = the_command(), list(words[1:]), []
    while rest and (found := below(command, rest[0])):
        command = found
        names.append(rest.pop(0))
    assert not hasattr(command, "list_commands"), f"no such command: {' '.join(words)}"
    try:
        return " ".join(names), command.make_context("lottery", rest).params
    except Exception as error:  # of the library's own, which it may keep to itself
        pytest.fail(f"{' '.join(words)}: {getattr(error, 'message', error)}")


@every_page_with_commands
def test_every_command_can_be_typed(page, tmp_path):
    """Nothing is run, but it is there, with its options; and values that are names are those of something."""
    for words in commands_of(page, tmp_path):
        if words[0] != "lottery":
            check_program(words)
            continue
        name, given = parsed(words)
        if name == "run":
            check_run(given)
        assert given.get("kind", "accuracy") in {*plots.kinds(), *branches.BRANCHES}, words
        assert not given.get("form") or given["form"] in ("safetensors", *exporting.EXPORTS, "all"), words


def check_run(given):
    """An experiment that comes with the package, or lies in the repository, takes these values."""
    first, values = given["experiment"], list(given["overrides"] or [])
    if first and "=" in first:
        first, values = None, [first, *values]
    source = None if first is None else Path(first) if first in config.shipped() else ROOT / first
    assert config.load(source, config.parse_overrides(values))


def check_program(words):
    program, *rest = words
    if program == "python":
        program, *rest = rest
    if program == "-m":
        program, *rest = rest
    options = [word.partition("=")[0] for word in rest if word.startswith("--")]
    if program.endswith(".py"):
        text = (ROOT / program).read_text()
        beside = [(ROOT / program).with_name(f"{one}.py") for one in re.findall(r"^from (\w+) import", text, re.M)]
        text += "".join(one.read_text() for one in beside if one.exists())
        assert all(f'"{one}"' in text for one in options), words
    else:
        assert importlib.util.find_spec(program), words
        assert program != "tensorboard" or {*options} <= {"--logdir", "--port", "--host", "--bind_all"}, words


@every_page
def test_commands_within_sentences_exist(page):
    """Words in capitals stand for a reader's own, and brackets for what may be left out."""
    prose = FENCE.sub("", PAGES[page])
    for text in re.findall(r"`lottery\s([^`]+)`", prose):
        words = re.sub(r"[\[\]|]", " ", text).split()
        command, rest = the_command(), list(words)
        while rest and (found := below(command, rest[0])):
            command = found
            rest.pop(0)
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= known, (text, used - known)
        assert not hasattr(command, "list_commands") or not rest or rest[0] in known or rest[0].isupper(), text
        if words[0] == "run" and rest and words == text.split() and not any(word.isupper() for word in words):
            check_run(parsed(["lottery", *words])[1])
    for text in re.findall(r"`(python\s[^`]+)`", prose):
        check_program(text.split())


@every_page_with_commands
def test_commands_that_only_read_do(page, here, lottery_command, short_pages):
    """Where a page names the run, or a file that an earlier command has made of it. What needs a model is only parsed."""
    for words in commands_of(page, here / "runs"):  # where no pattern of a page fits a file
        if words[0] != "lottery":
            continue
        name, given = parsed(words)
        if name not in READING or given.get("form") or given.get("kind") in ("barrier", "instability"):
            continue
        sources = [given[one] for one in ("run", "source", "file") if given.get(one)] + list(given.get("runs") or [])
        drawn = (name, given.get("kind"))
        if not all((here / one).exists() for one in sources) or drawn in DRAWN:
            continue
        if name in ("plot", "report"):  # which take seconds: a page of each kind is enough
            DRAWN.add(drawn)
        done = lottery_command(*with_rounds(words[1:]), cwd=here)
        assert done.returncode == 0, (words, done.stderr)
        assert done.stdout or name == "ls", words


def with_rounds(words):
    """The words of a command with rounds that the run at hand has: those after its last become that one."""
    after = [None, *words[:-1]]
    return [
        re.sub(r"\d+", lambda one: str(min(int(one[0]), LAST_ROUND)), word)
        if option in ("--round", "--rounds")
        else word
        for option, word in zip(after, words, strict=True)
    ]
