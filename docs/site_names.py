"""An extension of Griffe: what the code says of a field or constant in a comment is its entry in the API."""

import re
from typing import Any

import griffe

MARK = re.compile(r"\s*# (?!fmt:|noqa|type:|pyright:)(.+)$")


class CommentsAsDocstrings(griffe.Extension):
    """Describe an attribute without a docstring by the comment behind it, or by the lines of comment above it."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Give an attribute its description."""
        if attr.docstring or attr.lineno is None:
            return
        lines = attr.lines_collection[attr.filepath]
        behind = MARK.search(lines[attr.lineno - 1])
        above: list[str] = []
        for line in reversed(lines[: attr.lineno - 1]):
            if not line.strip().startswith("# "):
                break
            above.insert(0, line.strip()[2:])
        text = behind[1] if behind else " ".join(above)
        if text:
            text = text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")
            attr.docstring = griffe.Docstring(text, lineno=attr.lineno, parent=attr)
