"""What a command's help looks like, and the groups of options that several commands share."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

import typer
from typer.core import TyperCommand


class Command(TyperCommand):
    """A command whose help shows what to type, without the types of Python."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """List the words of the usage line."""
        arguments: list[Any] = [parameter for parameter in self.params if parameter.param_type_name == "argument"]
        return ["[OPTIONS]", *(argument.metavar for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        arguments, options = [], []
        for parameter in self.get_params(ctx):
            name, text = parameter.get_help_record(ctx) or ("", "")
            if parameter.param_type_name == "argument":
                arguments.append((parameter.metavar, text))
            elif name:
                # An option without a metavar has its Python type in angle brackets.
                options.append((re.sub(r"<(\w+)[^>]*>", _placeholder, name), text))
        for title, lines in (("Arguments", arguments), ("Options", options)):
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)


def _placeholder(found: re.Match[str]) -> str:
    """Return what to type for an option of a Python type."""
    return {"path": "FILE", "int": "NUMBER", "float": "NUMBER"}.get(found[1].lower(), "TEXT")


class App(typer.Typer):
    """An application of such commands, without Rich's boxes."""

    def __init__(self, **options: Any) -> None:
        # Rich would put a mistake into boxes, and print the local variables of a traceback.
        super().__init__(
            no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **options
        )

    def command(self, name: str | None = None, *, cls: Any = Command, **options: Any) -> Any:
        """Add a command, whose parameters may be dataclasses of arguments and options."""
        add = super().command(name, cls=cls, **options)
        return lambda command: add(_ungrouped(command))


def _ungrouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the fields of dataclasses in their place, since Typer knows no groups of options."""
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            groups[name] = kind
            parameters += inspect.signature(kind).parameters.values()
        else:
            parameters.append(parameter)

    @functools.wraps(command)
    def ungrouped(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
        command(**given)

    # By keyword, as Typer calls, so that a parameter without a default may come after one with a default.
    named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    ungrouped.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined] (typer reads it)
    ungrouped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return ungrouped


def listing(title: str, read: Callable[[], Iterable[tuple[str, str]]], kind: type[Command] = Command) -> type[Command]:
    """Return a kind of command that lists names and what they are below its help, and reads them only then."""

    class Listing(kind):
        def format_epilog(self, ctx: Any, formatter: Any) -> None:
            super().format_epilog(ctx, formatter)  # the lists of `kind`
            with formatter.section(title):
                formatter.write_dl(list(read()))

    return Listing
