"""Keyset pagination: positions as query parameters, and filters without an index.

A list shows a page of `PAGE` rows. A filter without an index reads at most `LOOKED_AT` rows, shows
what it found, says how far it read, and offers to continue. So a request takes as long on a large
journal as on a small one.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from perdure.server.authorization import Scope
from perdure.server.bodies import parse_json
from perdure.server.errors import ApiError
from perdure.server.ui.page import Ui

PAGE = 50
"""Rows on a page."""
LOOKED_AT = 2000
"""Maximum number of rows that a filter without an index reads."""
EVALUATED = "evals:"
"""Prefix of the graphs of evaluations, which lists of everything leave out."""
LONGEST = 2000
"""Maximum length of a position in an address."""

R = TypeVar("R")


@dataclass(frozen=True)
class Looked(Generic[R]):
    """What a filter found among the rows it read."""

    rows: list[R]
    last: R | None
    """The row after which to continue. None at the end of the list."""
    is_cut: bool = False
    """Whether the filter stopped at its limit before the page was full."""


async def look(
    read: Iterable[R],
    wanted: Callable[[R], Awaitable[bool]],
    *,
    most: int = PAGE,
    looked_at: int = LOOKED_AT,
) -> Looked[R]:
    """The first matching rows, of `looked_at` that were read."""
    found: list[R] = []
    last, number = None, 0
    for row in read:
        number += 1
        last = row
        if await wanted(row):
            found.append(row)
            if len(found) == most:
                return Looked(found, row)
    return Looked(found, last, is_cut=True) if number >= looked_at else Looked(found, None)


def as_cursor(position: Sequence[int | str]) -> str:
    """A position as the parameter of an address."""
    return json.dumps(list(position), separators=(",", ":"), ensure_ascii=False)


def from_cursor(text: str, *kinds: type) -> tuple[Any, ...] | None:
    """The position in an address; None without one. Raises `ApiError`."""
    if not text:
        return None
    try:
        parts = parse_json(text.encode()) if len(text) <= LONGEST else None
    except ApiError:
        parts = None
    fits = (
        isinstance(parts, list)
        and len(parts) == len(kinds)
        and all(type(one) is kind for one, kind in zip(parts, kinds, strict=True))
        and all(abs(one) < 2**63 for one in parts if isinstance(one, int))
        and not any("\0" in one for one in parts if isinstance(one, str))
    )
    if not fits or parts is None:
        raise ApiError(422, "The position in this address is not valid. Start from the first page.")
    return tuple(parts)


def bounded(number: int, most: int = 1000) -> str:
    """A count that may have stopped at its limit: 12, or 1,000+."""
    return f"{number:,}+" if number >= most else f"{number:,}"


async def require_every_thread(ui: Ui, scope: Scope = Scope.READ) -> None:
    """Raise 403 unless the viewer has a scope and may see every thread. Where handlers hide some,
    pages that sum up or list across threads require 'admin'."""
    ui.require(scope)
    if await ui.api.authorize("threads", "search", {}) is not None:
        ui.require(Scope.ADMIN)
