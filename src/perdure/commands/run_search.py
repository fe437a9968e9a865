"""Plans that search runs: by state, graph and time in SQL, by label and text in what was read.

Labels, tags and errors are inside blobs that SQL cannot read and that may be encrypted. So a search
reads at most `MOST_READ` runs, newest first, and reports where it stopped; the caller can continue
from there. The cost of a search does not depend on the size of the journal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from perdure.commands import effects, runs, waits
from perdure.commands.connection import Connection
from perdure.commands.runs import (
    LAST_ID,
    RunRow,
    load_error,
    load_labels,
    load_setup,
    maybe_control,
    names_in_pieces,
    tags_of,
)
from perdure.commands.waits import WaitRow
from perdure.errors import UNREADABLE
from perdure.journal import Op, Plan, Row, Statement, all_rows
from perdure.text import json_default
from perdure.times import FIRST_MS, LAST_MS, milliseconds
from perdure.types import Control, Run, State, Wait

MOST_READ = 1000
"""Maximum number of rows that one search reads."""

LONGEST_ID = 512
"""Maximum length of the id of a thread."""

CHUNK = 250
"""Number of rows read at a time when filtering by what SQL cannot see."""

R = TypeVar("R")

Position = tuple[int, str]
"""The position of a row in a list: its time, such as when a run was accepted, and its id."""

Visible = Callable[[Collection[str]], Plan[Collection[str]]]
"""Which of these threads the caller may see."""


class Direct(StrEnum):
    """Kinds of query text that an index can find."""

    RUN = "run"
    """The beginning of a run's id."""
    THREAD = "thread"
    """The id of a thread."""


@dataclass(frozen=True)
class RunQuery:
    """A search for runs. Empty fields match everything."""

    states: frozenset[State] = frozenset()
    graph: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    """Names and values, as text, of metadata and labels."""
    since: datetime | None = None
    until: datetime | None = None
    text: str = ""
    """Words that occur in the id, thread, graph, tags, metadata, labels, reason or error."""
    thread_id: str = ""
    parent_id: str = ""

    def __bool__(self) -> bool:
        return self != RunQuery()


@dataclass(frozen=True)
class Page(Generic[R]):
    """Rows that were found, newest first."""

    rows: list[R]
    older: Position | None = None
    """Position of the next page of older rows. None if there are no more."""
    newer: Position | None = None
    """Position of the next page of newer rows, in a search for newer ones."""
    read: int = 0
    """How many rows were read."""
    is_cut: bool = False
    """Whether the search stopped at its limit before the page was full."""


RunPage = Page[RunRow]


class Named(NamedTuple):
    """What the text of a query names."""

    kind: Direct
    query: RunQuery
    """Of a thread: the query of its runs."""
    rows: list[RunRow] | None = None
    """The run, or the few runs whose ids start with the text."""


def read_page(
    read: Callable[[Position | None, int], Op[list[R]]],
    matching: Callable[[list[R]], Plan[list[R]]] | None,
    position: Callable[[R], Position],
    limit: int,
    start: Position | None,
    *,
    newer: bool = False,
    hides: bool = False,
) -> Plan[Page[R]]:
    """At most `limit` rows behind a position that match; without `matching` all do. If it `hides`
    rows from the caller, no position names one that is hidden."""
    found: list[R] = []
    place, number = start, 0
    while True:
        size = limit + 1 if matching is None else min(CHUNK, MOST_READ - number)
        rows: list[R] = yield read(place, size)
        number += len(rows)
        found += rows if matching is None else (yield from matching(rows))
        stopped_at = None
        if len(found) <= limit and len(rows) >= size:
            place = position(rows[-1])
            if number < MOST_READ:
                continue
            stopped_at = place
            if hides:
                # The last row may be hidden: the next page starts with its whole millisecond.
                found = [row for row in found if position(row)[0] != place[0]]
                stopped_at = (place[0] - 1, LAST_ID) if newer else unnamed(place[0], start)
        is_cut, page = stopped_at is not None, found[:limit]
        more = position(page[-1]) if len(found) > limit else stopped_at
        if newer:
            oldest = position(page[0]) if page else None
            return Page(page[::-1], oldest, more, number, is_cut)
        return Page(page, more, None, number, is_cut)


def unnamed(at: int, began: Position | None) -> Position:
    """The position before a millisecond, which names no row in it. A search that began there skips
    past it: that millisecond has more rows than one search reads."""
    return (at if began == (at + 1, "") else at + 1, "")


def search(
    on: Connection,
    query: RunQuery,
    limit: int,
    *,
    before: Position | None = None,
    after: Position | None = None,
    visible: Visible | None = None,
) -> Plan[RunPage]:
    """At most `limit` runs, the next ones older than `before` or newer than `after`. `visible`
    hides the threads that the caller may not see."""
    newer = after is not None
    is_filtered = bool(newer or query.labels or query.text or visible)
    return read_page(
        lambda place, size: _read(query, place, size, newer=newer),
        (lambda rows: matching(on, rows, query, visible)) if is_filtered else None,
        _position,
        limit,
        after if newer else before,
        newer=newer,
        hides=visible is not None,
    )


def matching(
    on: Connection, rows: list[RunRow], query: RunQuery, visible: Visible | None
) -> Plan[list[RunRow]]:
    """The runs among these that match a query."""
    found = [row for row in rows if _is_in(row, query) and _has(on, row, query)]
    if visible is None or not found:
        return found
    allowed = yield from visible({row.thread_id for row in found})
    return [row for row in found if row.thread_id in allowed]


def find_direct(
    on: Connection, query: RunQuery, visible: Visible | None = None
) -> Plan[Named | None]:
    """What the text of a query names: the beginning of a run's id, or a thread. None if
    neither."""
    text, rest = query.text.strip(), replace(query, text="")
    if not text or len(text) > LONGEST_ID:
        return None
    if not query.thread_id and not query.parent_id:
        of_thread = replace(rest, thread_id=text)
        page = yield from search(on, of_thread, 1, visible=visible)
        if page.rows:
            return Named(Direct.THREAD, of_thread)
    if len(text) < runs.SHORTEST_PREFIX:
        return None
    ids: list[str] = yield from runs.with_prefix("run", text)
    rows: list[RunRow] = (yield runs.find_all(ids)) if ids else []
    rows = yield from matching(on, rows, rest, visible)
    newest_first = sorted(rows, key=_position, reverse=True)
    return Named(Direct.RUN, query, newest_first) if rows else None


def _has(on: Connection, row: RunRow, query: RunQuery) -> bool:
    """Whether a run has the labels and the words of a query."""
    if not query.labels and not query.text:
        return True
    setup: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    error = ""
    try:
        setup = load_setup(on.serializer, row)
        labels = {**(setup.get("metadata") or {}), **load_labels(on.serializer, row)}
        error = str(load_error(on.serializer, row) or "") if query.text else ""
    except UNREADABLE as damage:
        error = str(damage)
    if any(name not in labels or as_text(labels[name]) != one for name, one in query.labels):
        return False
    texts = (
        *(row.id, row.thread_id, row.graph, row.version, row.key, row.reason, error),
        *tags_of(row, setup),
        *(f"{name}={as_text(one)}" for name, one in labels.items()),
    )
    whole = "\n".join(one for one in texts if one).casefold()
    return all(word in whole for word in query.text.casefold().split())


def as_text(value: Any) -> str:
    """The value of a label as people write it: a text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=json_default)


def labels_in(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Labels written `name=value`. Without `=`, the value is empty."""
    pairs = (text.partition("=") for text in texts if text.strip())
    return tuple((name.strip(), one.strip()) for name, _, one in pairs)


def _read(query: RunQuery, place: Position | None, count: int, *, newer: bool) -> Op[list[RunRow]]:
    """The next runs after a position: older ones that match as far as SQL can tell, or all newer
    ones."""
    since = FIRST_MS if query.since is None else milliseconds(query.since)
    until = LAST_MS if query.until is None else milliseconds(query.until)
    if newer and place is not None:
        return runs.newer(since=since, until=until, after=place, count=count)
    if query.until is not None and (place is None or until < place[0]):
        place = (until, "")
    return runs.page(
        thread_id=query.thread_id or None,
        parent_id=query.parent_id or None,
        states=sorted(query.states) or None,
        graph=query.graph or None,
        since=since,
        before=place,
        count=count,
    )


def _is_in(row: RunRow, query: RunQuery) -> bool:
    """The same conditions, of one run."""
    checks: Mapping[str, bool] = {
        "state": not query.states or row.state in query.states,
        "graph": query.graph in ("", row.graph),
        "thread": query.thread_id in ("", row.thread_id),
        "parent": query.parent_id in ("", row.parent_id or ""),
        "since": query.since is None or row.created_at >= milliseconds(query.since),
        "until": query.until is None or row.created_at < milliseconds(query.until),
    }
    return all(checks.values())


def _position(row: RunRow) -> Position:
    return row.created_at, row.id


# -- lines of a list

SHOWN_WAITS = 3
"""Maximum number of open waits that are read of one run."""


def lines_of(on: Connection, found: Sequence[Run]) -> Plan[list[RunLine]]:
    """These runs with their open waits, turns, unknown effects and survived crashes: at most
    three reads for any number of runs."""
    if not found:
        return []
    resting = [run.id for run in found if run.state is State.WAITING]
    held = [run.id for run in found if run.state is State.HELD]
    open_waits: list[tuple[WaitRow, int]] = (
        (yield waits.of_runs(resting, SHOWN_WAITS)) if resting else []
    )
    unknown: dict[str, list[str]] = (yield effects.unknown_of_runs(held)) if held else {}
    pieces = names_in_pieces(run.id for run in found)
    rows: list[Row] = yield Op(
        "runs_ahead", [Statement("runs_ahead", ids) for ids in pieces], all_rows
    )
    ahead = {id: facts for id, *facts in rows}

    def line(run: Run) -> RunLine:
        own = [(row, total) for row, total in open_waits if row.run_id == run.id]
        control, recoveries, head = ahead.get(run.id, (None, 0, None))
        waits_for_turn = run.state is State.PENDING and run.due_at is None and head != run.id
        return RunLine(
            run,
            tuple(waits.to_wait(on.serializer, row) for row, _ in own),
            own[0][1] if own else 0,
            head if waits_for_turn else None,
            tuple(unknown.get(run.id, ())),
            maybe_control(control) if run.state is State.RUNNING else None,
            recoveries,
        )

    return [line(run) for run in found]


@dataclass(frozen=True)
class RunLine:
    """A run with the data for its line in a list."""

    run: Run
    waits: tuple[Wait, ...] = ()
    """Its first open waits, those for people first; empty if they were not read."""
    open_waits: int = 0
    """How many open waits it has."""
    ahead: str | None = None
    """The unfinished run before it on its thread, if it waits for its turn."""
    unknown: tuple[str, ...] = ()
    """Names of its effects with an unknown outcome."""
    control: Control | None = None
    """What it was asked to do after its current step."""
    recoveries: int = 0
    """Number of times that its worker was lost and another took over."""
