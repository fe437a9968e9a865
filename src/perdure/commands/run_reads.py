"""Read runs: one, by its id or the beginning of it; lists; the history; the runs below one
as a tree; and a report of all that belongs to one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from perdure.commands import effect_decisions, events, runs, scores, waits, workers
from perdure.commands.connection import Connection
from perdure.commands.runs import (
    LAST_ID,
    ChildRow,
    Joined,
    RunRow,
    check_state,
    load_error,
    load_labels,
    load_output,
    load_setup,
    state_of,
    tags_of,
)
from perdure.commands.waits import Answer
from perdure.commands.workers import UnknownGraphName
from perdure.errors import UNREADABLE, BadArgument, Loss, NotFound
from perdure.journal import Plan
from perdure.journal.names import check_id, maybe_id, maybe_text
from perdure.text import describe_error
from perdure.times import (
    FIRST_MS,
    LAST_MS,
    check_duration,
    check_time,
    maybe_moment,
    milliseconds,
    moment,
    position_before,
)
from perdure.types import (
    EffectRecord,
    EffectState,
    Event,
    EventKind,
    Run,
    RunError,
    Score,
    State,
    WaitRecord,
)
from perdure.verbs import PAGE, check_dict, check_limit, check_member, verb

T = TypeVar("T")


def find_row(on: Connection, run_id: str) -> Plan[RunRow]:
    """The row of a run. Raises `NotFound`."""
    row: RunRow | None = yield runs.find(check_id("run", run_id))
    if row is None:
        lost: list[Loss] = yield events.losses(run_id, 1)
        raise NotFound("run", run_id, lost=lost[0] if lost else None)
    return row


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


def show_all(on: Connection, rows: Iterable[RunRow], *, output: bool = False) -> Plan[list[Run]]:
    """Runs as their users see them."""
    shown: list[Run] = []
    for row in rows:
        shown += [(yield from show(on, row, output=output))]
    return shown


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
        page = yield events.events_of(*place, last, count, kinds=kinds)
        found += page
        if len(page) < count:
            break
    return found


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
        state: Runs in this state, or in any of several.
        graph: Runs of this graph, in any version.
        metadata: Keys and values that the run's metadata must contain. SQL cannot search them,
            so runs are read until enough match.
        since: Runs accepted at this time or later.
        until: Runs accepted before this time.
        after: The last run of the previous page.
        limit: Maximum number of runs to return, 100 by default.
        output: Whether to read what each run returned.

    Raises:
        BadArgument: A state is unknown, a time has no time zone, or `limit` is less than 1.
    """
    if parent_id is not None and thread_id is not None:
        raise BadArgument("Give thread_id or parent_id, not both.")
    wanted = [state] if isinstance(state, str) else state
    page = partial(
        runs.page,
        thread_id=maybe_id("thread", thread_id),
        parent_id=maybe_id("run", parent_id),
        states=wanted and {check_member(State, "a state", one) for one in wanted},
        graph=maybe_text("graph", graph),
        since=FIRST_MS if since is None else milliseconds(check_time("since", since)),
    )
    ends = [(LAST_MS, LAST_ID)]
    if until is not None:
        ends.append((milliseconds(check_time("until", until)), ""))
    if after is not None:
        ends.append((position_before(after.created_at), after.id))
    before, matching = min(ends), list[RunRow]()
    metadata, size = check_dict("metadata", metadata), check_limit(limit)
    size = max(size, PAGE) if metadata else size
    while len(matching) < limit:
        rows: list[RunRow] = yield page(before=before, count=size)
        # SQL cannot see metadata inside its blob.
        matching += [
            row for row in rows if not metadata or metadata.items() <= labels(on, row).items()
        ]
        if len(rows) < size:
            break
        before = (rows[-1].created_at, rows[-1].id)
    return (yield from show_all(on, matching[:limit], output=output))


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


# -- the runs below one


@dataclass(frozen=True)
class Children:
    """Children of a run."""

    listed: tuple[Descendant, ...] = ()
    """The oldest, in order."""
    left_out: int = 0
    """How many more there are."""


@dataclass(frozen=True)
class Descendant:
    """A run below another one, without its output, with its own children."""

    run: Run
    joined: Joined
    """Whether a node of its parent joined it."""
    siblings: int
    """How many children its parent has, with this one."""
    children: Children = Children()

    @property
    def relation(self) -> str:
        """What its parent has to do with it, in words."""
        return {Joined.WAITS: "its parent waits for it", Joined.YES: "joined"}.get(self.joined, "")


@dataclass(frozen=True)
class TreeLine:
    """One line of a tree that is drawn: a run, or how many children of a run are left out."""

    parent_id: str
    is_last: tuple[bool, ...]
    """From the top down to this line: whether it is the last of its siblings."""
    node: Descendant | None = None
    left_out: int = 0


def descendants(
    on: Connection, run_id: str, most: int, limit: int, levels: int
) -> Plan[tuple[list[Descendant], bool]]:
    """The runs below a run, level by level, oldest first: at most `most` of one parent, and
    `limit` in all, on so many levels. And whether there may be more."""
    below: list[Descendant] = []
    seen, level = {run_id}, [run_id]
    while level and len(below) < limit and levels > 0:
        levels -= 1
        rows: list[ChildRow] = yield runs.children(level, most, limit - len(below))
        level = []
        for row, joined, siblings in rows:
            if row.id not in seen:  # a damaged row may be its own ancestor
                run = yield from show(on, row, output=False)
                joined = Joined.YES if joined is Joined.WAITS and run.ended else joined
                below.append(Descendant(run, joined, siblings))
                level.append(row.id)
        seen.update(level)
    return below, bool(level)


def run_tree(root: str, level_by_level: Iterable[Descendant]) -> Children:
    """The children of a run, with theirs."""
    by_parent: dict[str | None, list[Descendant]] = {}
    for one in level_by_level:
        by_parent.setdefault(one.run.parent_id, []).append(one)

    def below(id: str) -> Children:
        children = by_parent.pop(id, [])
        whole = max((one.siblings for one in children), default=0)
        listed = tuple(replace(one, children=below(one.run.id)) for one in children)
        return Children(listed, max(0, whole - len(listed)))

    return below(root)


def tree_lines(root: str, children: Children, above: tuple[bool, ...] = ()) -> list[TreeLine]:
    """A tree line by line: each run is followed by what is below it."""
    lines: list[TreeLine] = []
    for number, node in enumerate(children.listed, 1):
        place = (*above, number == len(children.listed) and not children.left_out)
        lines.append(TreeLine(root, place, node))
        lines += tree_lines(node.run.id, node.children, place)
    if children.left_out:
        lines.append(TreeLine(root, (*above, True), left_out=children.left_out))
    return lines


def _children_as_json(children: Children) -> dict[str, Any]:
    more = {"more_children": children.left_out} if children.left_out else {}
    names = ("id", "thread_id", "graph", "version", "state")
    listed = [
        {
            **{name: getattr(one.run, name) for name in names},
            "joined": one.joined is not Joined.NO,
            "waited_for": one.joined is Joined.WAITS,
            **_children_as_json(one.children),
        }
        for one in children.listed
    ]
    return {"children": listed, **more}


# -- reports

MOST_CHILDREN, MOST_BELOW, MOST_LEVELS = 50, 500, 50
"""Maximum number of children of one run, and of all runs, in the tree below a run."""


@dataclass(frozen=True)
class RunReport:
    """A run with everything that belongs to it."""

    run: Run
    events: list[Event]
    waits: list[WaitRecord]
    effects: list[EffectRecord]
    scores: list[Score]
    children: Children
    """The runs that its nodes started, and theirs."""
    tree_is_cut: bool = False
    """Whether the tree of its children may have more runs than are here."""
    unknown_graphs: list[UnknownGraphName] = field(default_factory=list)
    """Graphs without a worker, if that may be why the run waits."""
    answers: dict[str, Answer] = field(default_factory=dict)
    """How each of its questions can be answered again."""
    unreadable: str = ""
    """Why a part could not be read: this process lacks a type or a key."""

    def as_json(self) -> dict[str, Any]:
        whole = {**vars(self), **_children_as_json(self.children)}
        del whole["answers"]
        maybe = ("tree_is_cut", "unreadable", "unknown_graphs")
        return {name: value for name, value in whole.items() if name not in maybe or value}


class RunReporter:
    """Reads the reports of runs. Graphs without a worker are looked up once for all runs, because
    that reads everything that is due."""

    def __init__(self, on: Connection) -> None:
        self._on = on
        self._unknown: list[UnknownGraphName] | None = None

    async def report(self, run: Run, events: list[Event] | None = None) -> RunReport:
        """Everything that belongs to a run. With its `events`, only what explains why it does not
        continue: its unfinished effects, but neither children nor scores. A part that cannot be
        read here is left out, with the reason."""
        on, ask, problems = self._on, self._on.journal.arun, list[str]()

        async def read(part: Plan[list[T]]) -> list[T]:
            try:
                return await ask(part)
            except UNREADABLE as error:
                problems.append(str(error))
                return []

        effects: list[EffectRecord] = []
        unfinished = (EffectState.OPEN, EffectState.UNKNOWN, EffectState.FAILED)
        for state in (None,) if events is None else unfinished:
            of_run = effect_decisions.list_effects.plan(on, run.id, state=state, limit=sys.maxsize)
            effects += await read(of_run)
        tree, is_cut, own_scores = Children(), False, list[Score]()
        if events is None:
            limits = (MOST_CHILDREN, MOST_BELOW, MOST_LEVELS)
            below, is_cut = await ask(descendants(on, run.id, *limits))
            tree = run_tree(run.id, below)
            events = await read(read_events(on, run.id, 0, None))
            own_scores = await read(scores.list_scores.plan(on, run.id))
        return RunReport(
            run,
            events=events,
            waits=await read(waits.wait_history.plan(on, run.id)),
            effects=effects,
            scores=own_scores,
            children=tree,
            tree_is_cut=is_cut,
            unknown_graphs=await self.unknown_graphs(run),
            answers=await on.journal.ado(waits.answer_options_of(run.id)),
            unreadable=" ".join(dict.fromkeys(problems)),
        )

    async def unknown_graphs(self, *runs: Run) -> list[UnknownGraphName]:
        """The graphs that no worker has, if one of these runs may be waiting because of that."""
        pending = [run.due_at for run in runs if run.state is State.PENDING and run.due_at]
        if not pending or min(pending) > moment(self._on.clock.now()):
            return []
        if self._unknown is None:
            self._unknown = await self._on.journal.arun(workers.unknown_graphs(self._on))
        return self._unknown
