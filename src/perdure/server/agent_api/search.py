"""Shared parts of the Agent Server's searches: limits, filters, fields, page headers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field

from perdure.server.authorization import Filters
from perdure.server.errors import WireResponse

T = TypeVar("T")
Limit = Annotated[int, Field(ge=1, le=1000)]
Offset = Annotated[int, Field(ge=0, le=2**31)]


class Page(BaseModel):
    """Which page of a search to return."""

    limit: Limit = 10
    offset: Offset = 0
    sort_order: Literal["asc", "desc"] | None = None
    select: list[str] | None = None
    """The fields to return, by default all."""


def has_metadata(metadata: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether metadata, or a state, contains `wanted`, including nested objects."""
    return all(
        key in metadata and _holds(metadata[key], one) for key, one in (wanted or {}).items()
    )


def _holds(value: Any, wanted: Any) -> bool:
    if isinstance(value, Mapping) and isinstance(wanted, Mapping):
        return has_metadata(value, wanted)
    return bool(value == wanted)


def passes(filters: Filters | None, metadata: Mapping[str, Any]) -> bool:
    """Whether metadata meets the conditions of an authorization handler, if there are any."""
    return filters is None or filters.match(dict(metadata))


def selected(item: Mapping[str, Any], select: Iterable[str] | None) -> dict[str, Any]:
    """The selected fields of an item, by default all; `values.name` is one key of its values."""
    if select is None:
        return dict(item)
    fields: dict[str, Any] = {}
    for name in select:
        field, _, key = name.partition(".")
        if field not in item:
            continue
        if not key:
            fields[field] = item[field]
        elif isinstance(item[field], Mapping) and key in item[field]:
            fields.setdefault(field, {})[key] = item[field][key]
    return fields


def page_response(items: Sequence[Any], offset: int, *, has_more: bool) -> WireResponse:
    """A page of a search. Its total is a lower bound: items so far, plus one if there are more."""
    end = offset + len(items)
    headers = {"x-pagination-total": str(end + has_more)}
    if has_more:
        headers["x-pagination-next"] = str(end)
    return WireResponse(list(items), headers=headers)


def page_of(every: Sequence[T], page: Page, wire: Callable[[T], Mapping[str, Any]]) -> WireResponse:
    """A page of items that were all read; `wire` is how clients get each."""
    end = page.offset + page.limit
    items = [selected(wire(one), page.select) for one in every[page.offset : end]]
    return page_response(items, page.offset, has_more=len(every) > end)
