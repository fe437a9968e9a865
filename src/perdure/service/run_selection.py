"""Which runs a list is about: the filters of `runs`, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from perdure.errors import BadArgument
from perdure.journal import Op
from perdure.journal.names import check_text, maybe_id
from perdure.operations import runs
from perdure.operations.runs import RunRow
from perdure.service.validation import check_dict, check_member, check_time
from perdure.times import FIRST_MS, milliseconds
from perdure.types import State


@dataclass(frozen=True)
class Selection:
    """The runs of `page(before=, count=)` behind a position, with this metadata."""

    page: Callable[..., Op[list[RunRow]]]
    before: tuple[int, str] | None
    metadata: Mapping[str, Any]


def select_runs(
    *,
    thread_id: str | None = None,
    parent_id: str | None = None,
    state: State | str | Iterable[State | str] | None = None,
    graph: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Selection:
    """The runs that these filters select."""
    if parent_id is not None and thread_id is not None:
        raise BadArgument("Give thread_id or parent_id, not both.")
    given = [state] if isinstance(state, str) else state
    states = None if given is None else {check_member(State, "a state", one) for one in given}
    page = partial(
        runs.page,
        thread_id=maybe_id("thread", thread_id),
        parent_id=maybe_id("run", parent_id),
        states=states,
        graph=None if graph is None else check_text("graph", graph),
        since=FIRST_MS if since is None else milliseconds(check_time("since", since)),
    )
    return Selection(
        page,
        None if until is None else (milliseconds(check_time("until", until)), ""),
        check_dict("metadata", metadata),
    )
