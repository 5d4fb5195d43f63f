"""How calm the text of the package is: lines, imports, long functions, and expressions that do much in one place.

    python -m tests.scripts.calm                            # this checkout
    python -m tests.scripts.calm --before OTHER_CHECKOUT    # a column for another one, before this one's
    python -m tests.scripts.calm --functions                # also every function of more than 50 lines

Nothing of the package is imported or run: the files are read and parsed. What is counted, row by row:

- Lines are those of Python files, docstrings and empty lines among them. All rows but the first are about all of
  `lottery/`, with `sparse/`.
- An import is a pair of a file and a module of the package that it imports at its top, outside of functions and of
  ``if TYPE_CHECKING``. ``from lottery.runs import store, verdicts`` are two, ``from lottery.errors import unknown,
  LotteryError`` is one. The mean is over the modules that have any.
- A chain is a module, one that it imports, one that this imports, and so on. A second row leaves out the faces of
  folders (``__init__``), which only gather what others wrote.
- A function's lines go from ``def`` to its end, functions inside it included; in brackets without its docstring. The
  goals are for the number in brackets.
- A parallel assignment has a tuple on both sides. A comprehension may be a list, a set, a dictionary or a generator.
- `one` as a name: a variable, a parameter, an attribute or a keyword.
- A line that is a comment has nothing else. The last row adds those with a comment behind code.
"""

import argparse
import ast
import graphlib
import io
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
LONG = 50  # lines of a function
WIDTH = 80  # of what is printed

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Function:
    """A function, by its lines with and without its docstring."""

    file: str
    name: str
    lines: int
    undocumented: int


@dataclass(frozen=True)
class Module:
    """A Python file of the package: its text, and what it means to Python."""

    file: str  # below the package's folder
    name: str  # as in an import
    text: str
    tree: ast.Module

    @property
    def is_face(self) -> bool:
        return self.file.endswith("__init__.py")

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def modules(checkout: Path) -> dict[str, Module]:
    """Read every module of a checkout's package, by name."""
    found = {}
    for path in sorted((checkout / "lottery").rglob("*.py")):
        name = ".".join(path.relative_to(checkout).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        file = path.relative_to(checkout / "lottery").as_posix()
        found[name] = Module(file, name, text, ast.parse(text))
    if not found:
        raise SystemExit(f"There is no package lottery in {checkout}.")
    return found


def at_top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """List what runs when a module is imported, but for type checkers' eyes only and inside of classes."""
    for statement in body:
        if isinstance(statement, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(statement.test):
                yield from at_top([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            handlers = [inner for handler in statement.handlers for inner in handler.body]
            yield from at_top([*statement.body, *handlers, *statement.orelse, *statement.finalbody])
        else:
            yield statement


def source_of(module: Module, statement: ast.ImportFrom) -> str:
    """Name the module that a statement imports from, which may be relative to the one that it stands in."""
    if not statement.level:
        return statement.module or ""
    above = module.name.split(".")
    # A dot is the folder of the module, and the face of a folder is the folder.
    levels = statement.level - (1 if module.is_face else 0)
    folder = above[: len(above) - levels]
    return ".".join([*folder, statement.module] if statement.module else folder)


def imports_of(module: Module, known: Mapping[str, Module]) -> set[str]:
    """Name the modules of the package that a module imports at its top."""
    found = set()
    for statement in at_top(module.tree.body):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            source = source_of(module, statement)
            for alias in statement.names:
                inner = f"{source}.{alias.name}"
                found.add(inner if inner in known else source)
    return (found & known.keys()) - {module.name}


def longest_chain(imports: Mapping[str, set[str]]) -> list[str]:
    """Find the longest chain of imports, from the module that imports to the one that imports nothing."""
    try:
        order = list(graphlib.TopologicalSorter(imports).static_order())
    except graphlib.CycleError as error:
        raise SystemExit(f"These modules import each other: {' -> '.join(error.args[1])}.") from None
    chains: dict[str, list[str]] = {}
    for name in order:  # what is imported comes first
        below = max((chains[inner] for inner in sorted(imports.get(name, ()))), key=len, default=[])
        chains[name] = [name, *below]
    return max((chains[name] for name in sorted(chains)), key=len)


def functions_of(module: Module) -> Iterator[Function]:
    """List the functions and methods of a module, those inside of others too."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        first = node.body[0]
        documented = ast.get_docstring(node, clean=False) is not None
        docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
        yield Function(module.file, node.name, lines, lines - docstring)


def is_parallel(node: ast.AST) -> bool:
    """Return True for ``a, b = c, d``."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return any(isinstance(target, ast.Tuple) for target in node.targets)


def comment_lines(module: Module) -> tuple[int, int]:
    """Count the lines of a module that are comments, and those that have one."""
    alone, any_comment = 0, 0
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            any_comment += 1
            alone += module.lines[token.start[0] - 1].lstrip().startswith("#")
    return alone, any_comment


def uses_of_one(module: Module) -> int:
    """Count how often `one` is a name."""
    tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
    return sum(token.type == tokenize.NAME and token.string == "one" for token in tokens)


@dataclass(frozen=True)
class Calm:
    """What was counted in a checkout."""

    modules: dict[str, Module]
    imports: dict[str, set[str]]
    functions: list[Function]

    def nodes(self, is_counted: Callable[[ast.AST], bool]) -> int:
        """Count the nodes of all syntax trees that are so."""
        return sum(is_counted(node) for module in self.modules.values() for node in ast.walk(module.tree))

    def num_lines(self, with_sparse: bool = True) -> int:
        counted = [each for each in self.modules.values() if with_sparse or not each.file.startswith("sparse/")]
        return sum(len(module.lines) for module in counted)

    def chain(self, with_faces: bool = True) -> list[str]:
        left = {name for name in self.modules if with_faces or not self.modules[name].is_face}
        return longest_chain({name: self.imports[name] & left for name in left})

    def most_imports(self) -> Module:
        return self.modules[max(self.imports, key=lambda name: len(self.imports[name]))]

    def longest(self) -> Function:
        return max(self.functions, key=lambda function: function.undocumented)

    def long_functions(self) -> list[Function]:
        long = [function for function in self.functions if function.lines > LONG]
        return sorted(long, key=lambda function: (-function.undocumented, function.file, function.name))


def measured(checkout: Path) -> Calm:
    """Count everything in a checkout."""
    found = modules(checkout)
    imports = {name: imports_of(module, found) for name, module in found.items()}
    functions = [function for module in found.values() for function in functions_of(module)]
    return Calm(found, imports, functions)


def cells(calm: Calm) -> list[tuple[str, str, str]]:
    """Make the rows of the table: what is counted, how much there is, and the goal."""
    importing = [names for names in calm.imports.values() if names]
    comments = [comment_lines(module) for module in calm.modules.values()]
    alone, any_comment = (100 * sum(column) / calm.num_lines() for column in zip(*comments, strict=True))
    longest, long = calm.longest(), calm.long_functions()
    undocumented = sum(function.undocumented > LONG for function in long)
    return [
        ("lines of lottery/ without sparse/", f"{calm.num_lines(with_sparse=False):,}", "23,000"),
        ("lines of lottery/", f"{calm.num_lines():,}", ""),
        ("modules", f"{len(calm.modules)}", ""),
        ("imports of a module that has any", f"{sum(map(len, importing)) / len(importing):.1f}", "4.5"),
        ("longest chain of imports", f"{len(calm.chain())}", "15"),
        ("  without the faces of folders", f"{len(calm.chain(with_faces=False))}", ""),
        ("most imports of one file", f"{len(calm.imports[calm.most_imports().name])}", "16"),
        ("longest function", f"{longest.lines} ({longest.undocumented})", "(60)"),
        (f"functions over {LONG} lines", f"{len(long)} ({undocumented})", "(0)"),
        ("conditional expressions", f"{calm.nodes(lambda node: isinstance(node, ast.IfExp)):,}", ""),
        ("comprehensions", f"{calm.nodes(lambda node: isinstance(node, COMPREHENSIONS)):,}", ""),
        ("parallel assignments", f"{calm.nodes(is_parallel):,}", ""),
        ("walruses", f"{calm.nodes(lambda node: isinstance(node, ast.NamedExpr)):,}", ""),
        ("`one` as a name", f"{sum(map(uses_of_one, calm.modules.values())):,}", ""),
        ("lines that are comments", f"{alone:.1f} %", "4 %"),
        ("lines with any comment", f"{any_comment:.1f} %", ""),
    ]


def table(before: Calm | None, now: Calm) -> str:
    """Align the rows, with a column for the checkout before if there is one."""
    earlier = cells(before) if before else None
    lines = [("", *(["before"] if earlier else []), "now", "goal")]
    for place, (what, value, goal) in enumerate(cells(now)):
        lines.append((what, *([earlier[place][1]] if earlier else []), value, goal))
    aligned = (f"{line[0]:<36}" + "".join(f"{cell:>13}" for cell in line[1:]) for line in lines)
    return "\n".join(line.rstrip() for line in aligned)


def extremes(calm: Calm) -> str:
    """Say where the longest of everything stands."""
    longest, most = calm.longest(), calm.most_imports()
    chain = " > ".join(name.removeprefix("lottery.") for name in calm.chain())
    lines = [f"Longest function: {longest.name} in {longest.file}.", f"Most imports: {most.file}."]
    return "\n".join([*lines, *textwrap.wrap(f"Longest chain: {chain}.", WIDTH)])


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout, to compare with")
    parser.add_argument("--functions", action="store_true", help=f"list the functions of more than {LONG} lines")
    options = parser.parse_args()
    before = measured(options.before.resolve()) if options.before else None
    now = measured(HERE)
    print(table(before, now), end="\n\n")
    print(extremes(now))
    if options.functions:
        print(f"\nFunctions over {LONG} lines (without their docstrings):")
        for function in now.long_functions():
            print(f"{function.lines:>5} {f'({function.undocumented})':>5}  {function.name}, {function.file}")


if __name__ == "__main__":
    main()
