"""Lists by key: positions as parameters of an address, and filters without an index.

A list shows a page of `PAGE` rows. A filter that no index serves looks at `LOOKED_AT` rows at most,
shows what it found, and offers to look further: a request takes as long on a large journal as on a
small one, and the page says how far it looked.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from perdure.server.caller import Scope
from perdure.server.json_body import parse_json
from perdure.server.json_errors import ApiError
from perdure.server.ui.page import Ui

PAGE = 50
"""Rows on a page."""
LOOKED_AT = 2000
"""Rows that a filter without an index looks at, at most."""
EVALUATED = "evals:"
"""Prefix of the graphs of evaluations, which lists of everything leave out."""
LONGEST = 2000
"""Characters of a position in an address."""

R = TypeVar("R")


@dataclass(frozen=True)
class Looked(Generic[R]):
    """What a filter found among the rows it looked at."""

    rows: list[R]
    last: R | None
    """The row behind which to look further; None at the end of the list."""
    is_cut: bool = False
    """Whether it stopped because it had looked at enough rows, not because it had found enough."""


async def look(
    read: Iterable[R],
    wanted: Callable[[R], Awaitable[bool]],
    *,
    most: int = PAGE,
    looked_at: int = LOOKED_AT,
) -> Looked[R]:
    """The first rows that are wanted, of `looked_at` that were read."""
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
        raise ApiError(422, "This address has a position that is not valid. Start from the top.")
    return tuple(parts)


def bounded(number: int, most: int = 1000) -> str:
    """A count that may have been cut: 12, or 1,000+."""
    return f"{number:,}+" if number >= most else f"{number:,}"


async def require_every_thread(ui: Ui, scope: Scope = Scope.READ) -> None:
    """Raise 403 unless the viewer has a scope, and may see every thread: what a page sums up, or
    lists by other things than threads, needs 'admin' where handlers hide some threads."""
    ui.require(scope)
    if await ui.api.authorize("threads", "search", {}) is not None:
        ui.require(Scope.ADMIN)
