"""A form as values: its fields, what each starts with, and what was filled in. Pure.

A field says which widget it has and what it holds, never how it looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, NamedTuple


class Widget(StrEnum):
    """How a value is given."""

    FIXED = "fixed"
    """A single possible value: nothing to fill in."""
    RADIO = "radio"
    SELECT = "select"
    CHECKBOX = "checkbox"
    CHECKBOXES = "checkboxes"
    NUMBER = "number"
    LINE = "line"
    TEXT = "text"
    MOMENT = "moment"
    """A date and a time in the viewer's zone."""
    LINES = "lines"
    """A list, one line for each."""
    GROUP = "group"
    """An object: it has fields."""
    ONE_OF = "one of"
    """Alternatives: one of its fields is chosen."""
    JSON = "json"


class Nothing(Enum):
    """The value of a field that is not part of the answer."""

    LEFT_OUT = "left out"


LEFT_OUT = Nothing.LEFT_OUT


def is_empty(value: Any) -> bool:
    """Whether there is no value, or null."""
    return value is LEFT_OUT or value is None


class Choice(NamedTuple):
    """One choice."""

    key: str
    """Its value in the form."""
    label: str
    value: Any
    help: str = ""


@dataclass(frozen=True)
class Field:
    """One value of a form, empty or filled in."""

    name: str
    """Its name in the form."""
    id: str
    label: str
    widget: Widget
    schema: Mapping[str, Any]
    path: tuple[str | int, ...] = ()
    """The path of its value in the answer."""
    required: bool = True
    nullable: bool = False
    help: str = ""
    choices: tuple[Choice, ...] = ()
    fields: tuple[Field, ...] = ()
    input: str = "text"
    """The type of an input of one line."""
    start: Any = LEFT_OUT
    """The value it starts with."""
    shown: str | None = None
    """The text that the question showed under this name. Unchanged, it is not answered."""
    initial: tuple[str, ...] = ()
    """What is in it at first: a text, or the keys of what is chosen."""
    texts: tuple[str, ...] = ()
    """What is in it now."""
    error: str = ""

    @property
    def text(self) -> str:
        """What is in it now, if that is one text."""
        return self.texts[0] if self.texts else ""

    @property
    def key(self) -> str:
        """Its key in the object it is part of."""
        return str(self.path[-1]) if self.path else ""

    @property
    def is_optional(self) -> bool:
        """Whether it can be left empty."""
        is_blank = isinstance(self.start, (str, list)) and not self.start
        return self.nullable or (not self.required and (is_blank or is_empty(self.start)))

    @property
    def every(self) -> Iterator[Field]:
        """It, and the fields inside."""
        yield self
        for one in self.fields:
            yield from one.every
