"""The base of every pydantic model: no signal interrupts pydantic while it builds one."""

from typing import Any

from pydantic import BaseModel

from lottery import interrupts


class _Uninterrupted(type(BaseModel)):
    """Build a class while signals are held: pydantic swallows what their handlers raise, and builds a wrong class."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        with interrupts.held():
            return super().__new__(cls, *arguments, **options)


class Schema(BaseModel, metaclass=_Uninterrupted):
    """A pydantic model."""
