"""Read runs: one, by its id or the beginning of it; lists; the history; the runs below one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from perdure.commands import events, runs
from perdure.commands.connection import Connection
from perdure.commands.run_payload import (
    check_state,
    load_error,
    load_labels,
    load_output,
    load_setup,
    state_of,
    tags_of,
)
from perdure.commands.runs import ChildRow, Joined, RunRow
from perdure.commands.validation import (
    PAGE,
    check_dict,
    check_duration,
    check_limit,
    check_member,
    check_time,
)
from perdure.errors import UNREADABLE, BadArgument, NotFound
from perdure.journal import Op, Plan
from perdure.journal.names import check_id, check_text, maybe_id
from perdure.text import describe_error
from perdure.times import FIRST_MS, maybe_moment, milliseconds, moment, position_before
from perdure.types import Event, EventKind, Run, RunError, State
from perdure.verbs import verb


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


@dataclass(frozen=True)
class Descendant:
    """A run below another one, without its output."""

    run: Run
    is_joined: bool
    """Whether a node of its parent joined it."""
    is_waited_for: bool
    """Whether its parent waits for it now."""
    siblings: int
    """How many children its parent has, with this one."""


# -- showing


def find_row(on: Connection, run_id: str) -> Plan[RunRow]:
    """The row of a run. Raises `NotFound`."""
    row: RunRow | None = yield runs.find(check_id("run", run_id))
    if row is None:
        raise NotFound("run", run_id, lost=(yield events.loss_of_run(run_id)))
    return row


def input_of(on: Connection, run_id: str) -> Plan[Any]:
    """What a run was started with."""
    row = yield from find_row(on, run_id)
    return load_setup(on.serializer, row).get("input")


def read_rows(
    on: Connection,
    op: Callable[..., Op[list[RunRow]]],
    before: tuple[int, str] | None,
    limit: int,
    metadata: Mapping[str, Any],
) -> Plan[list[RunRow]]:
    """The rows of runs that have all of this metadata: at most `limit`, fewer only if there are no
    more. `op(before=, count=)` reads them."""
    found: list[RunRow] = []
    while len(found) < limit:
        size = max(limit, PAGE) if metadata else limit
        rows: list[RunRow] = yield op(before=before, count=size)
        found += [row for row in rows if not metadata or _has(on, row, metadata)]
        if len(rows) < size:
            break
        before = (rows[-1].created_at, rows[-1].id)
    return found[:limit]


def _has(on: Connection, row: RunRow, metadata: Mapping[str, Any]) -> bool:
    """Whether a run has all of this metadata, which SQL cannot see inside its blob."""
    has = labels(on, row)
    return all(key in has and has[key] == value for key, value in metadata.items())


def labels(on: Connection, row: RunRow) -> Mapping[str, Any]:
    """The metadata and labels of a run. Empty if they cannot be read."""
    try:
        metadata = load_setup(on.serializer, row).get("metadata") or {}
        return {**metadata, **load_labels(on.serializer, row)}
    except UNREADABLE:
        return {}


def show(on: Connection, row: RunRow, *, output: bool = True) -> Plan[Run]:
    """A run as its users see it, with its output if that is wanted."""
    setup: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    result = error = damaged = None
    try:
        setup = load_setup(on.serializer, row)
        check_state(row)
        labels = load_labels(on.serializer, row)
        if output:
            result = yield from load_output(on.serializer, row, on.state_at)
        error = load_error(on.serializer, row)
    except UNREADABLE as found:  # the other runs of a list can still be seen
        error, damaged = RunError(**describe_error(found)), str(found)
    return Run(
        id=row.id,
        thread_id=row.thread_id,
        graph=row.graph,
        state=state_of(row),
        output=result,
        error=error,
        reason=row.reason,
        metadata={**(setup.get("metadata") or {}), **labels},
        tags=tuple(tags_of(row, setup)),
        created_at=moment(row.created_at),
        updated_at=moment(row.updated_at),
        due_at=maybe_moment(row.due_at),
        key=row.key,
        version=row.version,
        attempts=row.attempts,
        saved={
            "steps": row.saved_steps,
            "effects": row.saved_effects,
            "model_calls": row.saved_calls,
        },
        parent_id=row.parent_id,
        damaged=damaged,
    )


def show_all(on: Connection, rows: Iterable[RunRow]) -> Plan[list[Run]]:
    """Runs as their users see them, without their outputs."""
    found: list[Run] = []
    for row in rows:
        found += [(yield from show(on, row, output=False))]
    return found


def read_events(
    on: Connection,
    run_id: str,
    after: int,
    limit: int | None,
    kinds: Collection[EventKind] | None = None,
) -> Plan[list[Event]]:
    """The events of a run after number `after`, all or those of some kinds."""
    row = yield from find_row(on, run_id)
    found: list[Event] = []
    while limit is None or len(found) < limit:
        count = 1000 if limit is None else min(1000, limit - len(found))
        last = found[-1].n if found else after
        place = (on.serializer, row.thread_id, row.id)
        page = yield events.events(*place, last, count, kinds=kinds)
        found += page
        if len(page) < count:
            break
    return found


def descendants(
    on: Connection, run_id: str, most: int, limit: int, levels: int
) -> Plan[tuple[list[Descendant], bool]]:
    """The runs below a run, level by level, oldest first: at most `most` of one parent, and
    `limit` in all, on so many levels. And whether there may be more."""
    found: list[Descendant] = []
    seen, level = {run_id}, [run_id]
    while level and len(found) < limit and levels > 0:
        levels -= 1
        rows: list[ChildRow] = yield runs.children(level, most, limit - len(found))
        level = []
        for row, joined, siblings in rows:
            if row.id not in seen:  # a damaged row may be its own ancestor
                run = yield from show(on, row, output=False)
                is_waited_for = joined is Joined.WAITS and not run.ended
                is_joined = joined is not Joined.NO
                found.append(Descendant(run, is_joined, is_waited_for, siblings))
                level.append(row.id)
        seen.update(level)
    return found, bool(level)


def _last_to_end(on: Connection, thread_id: str) -> Plan[RunRow | None]:
    """A run of a thread, preferably one that has not ended."""
    head: RunRow | None = yield runs.head(thread_id)
    newest: list[RunRow] = [] if head else (yield runs.page(thread_id=thread_id, count=1))
    return head or next(iter(newest), None)


@verb()
def get(on: Connection, run_id: str, *, output: bool = True) -> Plan[Run]:
    """Read a run as it is now.

    Args:
        run_id: The id of the run.
        output: Whether to read what the run returned. Without it `Run.output` is `None`, and
            less is read.

    Returns:
        The run. If its row cannot be read, `Run.damaged` says why.

    Raises:
        NotFound: The journal has no run with this id.
    """
    row = yield from find_row(on, run_id)
    return (yield from show(on, row, output=output))


@verb()
def find(on: Connection, prefix: str) -> Plan[Run]:
    """Find a run by its id, or by the beginning of its id, without its output.

    Args:
        prefix: The id, or at least 4 characters of its beginning.

    Raises:
        NotFound: No run has an id that begins with this prefix.
        BadArgument: The prefix is too short, or several runs match; the message lists them.
    """
    id = yield from runs.resolve("run", check_id("run", prefix))
    return (yield from get.plan(on, id, output=False))


@verb(name="runs")
def list_runs(
    on: Connection,
    *,
    thread_id: str | None = None,
    parent_id: str | None = None,
    state: State | str | Iterable[State | str] | None = None,
    graph: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    after: Run | None = None,
    limit: int = PAGE,
    output: bool = True,
) -> Plan[list[Run]]:
    """List runs, newest first.

    All filters must match.

        page = await client.runs(state="held")
        next_page = await client.runs(state="held", after=page[-1])

    A run whose row cannot be read is listed with the reason in `Run.damaged`.

    Args:
        thread_id: Runs of this thread.
        parent_id: Children of this run. Not together with `thread_id`.
        state: Runs in this state, or in one of several.
        graph: Runs of this graph, in any version.
        metadata: Keys and values that the run's metadata must contain. Metadata is stored in a
            blob that SQL cannot search, so runs are read until enough match.
        since: Runs accepted at this time or later, with a time zone.
        until: Runs accepted before this time, with a time zone.
        after: The last run of the previous page.
        limit: Maximum number of runs to return, 100 by default.
        output: Whether to read what each run returned.

    Raises:
        BadArgument: A state is unknown, a time has no time zone, or `limit` is less than 1.
    """
    which = select_runs(
        thread_id=thread_id,
        parent_id=parent_id,
        state=state,
        graph=graph,
        metadata=metadata,
        since=since,
        until=until,
    )
    position = which.before
    if after is not None:
        last = (position_before(after.created_at), after.id)
        position = last if position is None else min(position, last)
    found: list[Run] = []
    rows = yield from read_rows(on, which.page, position, check_limit(limit), which.metadata)
    for row in rows:
        found += [(yield from show(on, row, output=output))]
    return found


@verb(name="events")
def list_events(
    on: Connection,
    run_id: str,
    *,
    after: int | Event = 0,
    limit: int | None = None,
    kinds: Iterable[EventKind | str] | None = None,
) -> Plan[list[Event]]:
    """Read the history of a run, oldest event first. The run may still be in progress.

        for event in await client.events(run.id):
            print(event.at, event.kind, event.data)

    An event and the change that it reports are one commit. Events are numbered from 1 without
    gaps and never change.

    Args:
        run_id: The id of the run.
        after: The last event of the previous page, or its number.
        limit: Maximum number of events to return. By default all of them.
        kinds: Only events of these kinds.

    Raises:
        NotFound: The journal has no run with this id.
        BadArgument: A kind is unknown, or `limit` is less than 1.
    """
    if limit is not None:
        check_limit(limit)
    number = after.n if isinstance(after, Event) else after
    wanted = None
    if kinds is not None:
        wanted = [check_member(EventKind, "a kind of event", one) for one in kinds]
    return (yield from read_events(on, run_id, number, limit, wanted))


@verb()
async def join(on: Connection, run_id: str, *, timeout: timedelta | None = None) -> Run:
    """Wait until a run has ended, in any process, and return it.

    The wait ends when the database notifies this process, or at its next look at the run:
    within a second, on D1 within 1.5 seconds. A run that is `held` or `paused` has not ended.
    In a node use `perdure.join`, which frees the worker; this method keeps it busy.

        run = await client.join(run.id, timeout=timedelta(minutes=5))

    Args:
        run_id: The id of the run.
        timeout: How long to wait. By default as long as it takes.

    Returns:
        The run, `done`, `failed` or `cancelled`.

    Raises:
        TimeoutError: The run did not end in time. It continues.
        NotFound: The journal has no run with this id.
    """
    if timeout is not None:
        check_duration("timeout", timeout)
    await on.journal.aopen()
    async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
        with on.journal.feed.watch(check_id("run", run_id)) as watch:
            seen = watch.count
            while not (run := await on.journal.arun(get.plan(on, run_id))).ended:
                await watch.wait(seen)
                seen = watch.count
    return run
