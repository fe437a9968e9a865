"""Shared by the operations: parameters, positions in lists, errors.

A list is `{"items": [...], "next": ...}`. Pass `next` as `after` to get the next page; it is null
on the last one. Changes between two pages neither repeat nor skip existing items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")

TEXT = r"^[^\x00]*$"  # PostgreSQL stores no NUL
Id = Annotated[str, Path(min_length=1, max_length=512, pattern=TEXT)]
Name = Annotated[str, Path(min_length=1, max_length=256, pattern=TEXT)]
Which = Annotated[str | None, Query(max_length=512, pattern=TEXT)]
Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items.")]
After = Annotated[
    str | None,
    Query(max_length=600, pattern=r"^[0-9]{1,15}\.[^\x00]+$", description="`next` of a page."),
]
Text = Annotated[str, Field(max_length=10_000, pattern=TEXT)]
Person = Annotated[
    str | None, Field(max_length=256, pattern=TEXT, description="Who does it, for the record.")
]


class Detail(BaseModel):
    """Why a request was refused."""

    detail: str


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of an operation, for OpenAPI."""
    return {status: {"model": Detail} for status in (401, 403, 422, 503, *statuses)}


class Body(BaseModel):
    """The body of a request. Unknown keys are refused, because they are probably misspelt."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some items of a list. Pass `next` as `after` for the next page."""

    items: list[T]
    next: str | None

    @classmethod
    def of(cls, items: list[T], last: tuple[int, str] | None) -> Page[T]:
        """Make a page. `last` is the position of the last item, if there may be more."""
        return cls(items, None if last is None else f"{last[0]}.{last[1]}")


def position(after: str | None) -> tuple[int, str] | None:
    """The position that `after` names."""
    if after is None:
        return None
    at, _, id = after.partition(".")
    return int(at), id
