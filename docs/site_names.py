"""An extension of Griffe: comments of the code describe constants and fields in the API, and names become links."""

import re
from collections.abc import Iterator
from typing import Any

import griffe

COMMENT = re.compile(r"\s*# (?!fmt:|noqa|type:|pyright:)(.+)$")
NAME = re.compile(r"(?<![`\w])`([A-Za-z_][\w.]*)`(?!`)")


class CommentsAndNames(griffe.Extension):
    """Give attributes their comments as docstrings, and link what stands in single backquotes to its entry."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Describe an attribute without a docstring by the comment behind it, or by the lines of comment above it."""
        if attr.docstring or attr.lineno is None:
            return
        lines = attr.lines_collection[attr.filepath]
        behind = COMMENT.search(lines[attr.lineno - 1])
        above: list[str] = []
        for line in reversed(lines[: attr.lineno - 1]):
            if not line.strip().startswith("# "):
                break
            above.insert(0, line.strip()[2:])
        text = behind[1] if behind else " ".join(above)
        if text:
            text = text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")
            attr.docstring = griffe.Docstring(text, lineno=attr.lineno, parent=attr)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Link names as they are understood where they stand: in their class, in their module, or below the package."""
        for one in _documented(pkg):
            one.docstring.value = NAME.sub(lambda found, one=one: _linked(found, one, pkg), one.docstring.value)


def _documented(one: Any) -> Iterator[Any]:
    if one.docstring:
        yield one
    for member in one.members.values():
        if not member.is_alias:
            yield from _documented(member)


def _linked(found: re.Match[str], one: Any, pkg: griffe.Module) -> str:
    first, dot, rest = found[1].partition(".")
    if first == pkg.name:
        path = found[1]
    else:
        try:
            path = one.resolve(first) + dot + rest
        except griffe.NameResolutionError:
            path = f"{pkg.name}.{found[1]}" if first in pkg.members else ""
    if not path.startswith(f"{pkg.name}.") or "(" in path:  # a parameter, or something of another package
        return found[0]
    return f'<autoref identifier="{path}" optional><code>{found[1]}</code></autoref>'
