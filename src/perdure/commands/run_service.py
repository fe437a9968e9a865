"""Which runs a list is about: the filters of `runs`, checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from perdure.commands import (
    deleting,
    effects,
    events,
    health,
    prefixes,
    run_control,
    runs,
    starting,
    waits,
)
from perdure.commands.effects import report
from perdure.commands.events import change
from perdure.commands.local_engine import LocalEngine
from perdure.commands.run_control import RunAction, stopped_state, why_not_stopped
from perdure.commands.run_payload import (
    check_state,
    load_error,
    load_labels,
    load_output,
    load_setup,
    maybe_control,
    redacted_setup,
    state_of,
    tags_of,
)
from perdure.commands.runs import ChildRow, Joined, LateGraph, RunRow
from perdure.commands.starting import Beside, Parent, caller_span
from perdure.commands.validation import (
    check_command,
    check_config,
    check_dict,
    check_member,
    check_tags,
    check_time,
)
from perdure.commands.waits import WaitRow
from perdure.errors import (
    UNREADABLE,
    BadArgument,
    NotFound,
    ThreadBusy,
    WrongState,
    did_you_mean,
)
from perdure.journal import Op, Plan, in_pieces
from perdure.journal.clock import Clock
from perdure.journal.names import check_id, check_text, maybe_id, new_id
from perdure.serde import places
from perdure.text import describe_error
from perdure.times import FIRST_MS, deadline, maybe_moment, milliseconds, moment
from perdure.types import ENDED, Control, Event, EventKind, Run, RunError, State


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


GRACE = timedelta(seconds=10)

PAGE = 100

DEEPEST = 50
"""How many runs may be above a run in its tree."""

LATE = 5000
"""How long, in milliseconds, a run is due before we ask whether any worker has its graph."""

LOOKED_BACK = 10_000
"""Among how many runs we look for one of a graph that was driven."""


@dataclass(frozen=True)
class UnknownGraphName:
    """A graph with runs that no worker has driven lately."""

    graph: str
    version: str
    runs: int
    suggestion: str
    """A sentence that names the graph that may be meant, after a space; or empty."""


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


class RunService:
    """Plans about the runs of a journal."""

    def __init__(self, engine: LocalEngine, clock: Clock) -> None:
        self._engine, self._serializer, self._clock = engine, engine.serializer, clock

    # -- accepting

    def accept(
        self,
        graph: tuple[str, str],
        thread_id: str,
        setup: dict[str, Any],
        strategy: str,
        *,
        key: str | None = None,
        after: timedelta | datetime | None = None,
        reserve: float = 0.0,
        only: str | None = None,
        fingerprint: str | None = None,
        begun: bool = False,
        parent: Parent | None = None,
        run_id: str | None = None,
        beside: Beside | None = None,
        grace: timedelta = GRACE,
    ) -> Plan[RunRow]:
        """Accept a run of a graph, given as (name, version), or find the one of this key.

        For `reserve` seconds no worker claims it, only a caller that drives it itself. With `only`,
        runs in that state alone are stopped, whatever the strategy; the step of a run that is
        stopped may go on for its `grace`. What is `beside` is stored in the same batch.
        The URL in `setup["webhook"]` is told when the run ends, is held, or waits for a person.
        """
        # The effects of a run that a node of an evaluated one starts would not be simulated.
        self._engine.refuse_in_evaluation("perdure.start")
        if parent is not None and parent.depth >= DEEPEST:
            raise BadArgument(
                f"Run {parent.id} has {parent.depth} runs above it, and cannot start a child: do "
                "its runs start each other endlessly? Start it with detached=True to begin a tree "
                "of its own."
            )
        check_command(setup.get("input"))
        url = setup.get("webhook")
        now = self._clock.now()
        made = change(thread_id, run_id or new_id(), now)
        begin = deadline("after", after, lambda: moment(now))
        ready = (now if begin is None else begin) + round(reserve * 1000)
        place = places.of_setup(thread_id, made.run_id, *graph, key, now)
        row: RunRow | None = yield starting.start(
            self._serializer,
            made,
            graph=graph[0],
            version=graph[1],
            key=key,
            ready_at=ready,
            setup=self._serializer.dumps(
                redacted_setup(self._serializer, setup), place, "start", own=True
            ),
            strategy=strategy,
            only=only,
            grace=round(grace.total_seconds() * 1000),
            fingerprint=fingerprint,
            begun=begun,
            parent=parent,
            traceparent=caller_span(),
            beside=beside,
            webhook=None if url is None else self._engine.webhook_topic(url),
            streams=bool(setup.get("stream")),
        )
        if row is None:
            raise ThreadBusy(thread_id, "has not ended")
        return row

    # -- showing

    def find(self, run_id: str) -> Plan[RunRow]:
        """The row of a run. Raises `NotFound`."""
        row: RunRow | None = yield runs.find(check_id("run", run_id))
        if row is None:
            raise NotFound("run", run_id, lost=(yield health.loss_of_run(run_id)))
        return row

    def get(self, run_id: str, *, output: bool = True) -> Plan[Run]:
        """A run as its users see it, with its output if that is wanted."""
        row = yield from self.find(run_id)
        return (yield from self.show(row, output=output))

    def input(self, run_id: str) -> Plan[Any]:
        """What a run was started with."""
        row = yield from self.find(run_id)
        return load_setup(self._serializer, row).get("input")

    def by_prefix(self, prefix: str) -> Plan[Run]:
        """The run with this id, or the only one whose id begins so, without its output."""
        id = yield from prefixes.resolve("run", check_id("run", prefix))
        return (yield from self.get(id, output=False))

    def page(
        self,
        op: Callable[..., Op[list[RunRow]]],
        before: tuple[int, str] | None,
        limit: int,
        metadata: Mapping[str, Any],
        *,
        output: bool = True,
    ) -> Plan[list[Run]]:
        """Runs that have all of this metadata. `op(before=, count=)` reads the rows."""
        found: list[Run] = []
        for row in (yield from self.rows(op, before, limit, metadata)):
            found += [(yield from self.show(row, output=output))]
        return found

    def rows(
        self,
        op: Callable[..., Op[list[RunRow]]],
        before: tuple[int, str] | None,
        limit: int,
        metadata: Mapping[str, Any],
    ) -> Plan[list[RunRow]]:
        """Their rows: at most `limit`, fewer only if there are no more."""
        found: list[RunRow] = []
        while len(found) < limit:
            size = max(limit, PAGE) if metadata else limit
            rows: list[RunRow] = yield op(before=before, count=size)
            found += [row for row in rows if not metadata or self._has(row, metadata)]
            if len(rows) < size:
                break
            before = (rows[-1].created_at, rows[-1].id)
        return found[:limit]

    def _has(self, row: RunRow, metadata: Mapping[str, Any]) -> bool:
        """Whether a run has all of this metadata, which SQL cannot see inside its blob."""
        has = self.labels(row)
        return all(key in has and has[key] == value for key, value in metadata.items())

    def labels(self, row: RunRow) -> Mapping[str, Any]:
        """The metadata and labels of a run. Empty if they cannot be read."""
        try:
            metadata = load_setup(self._serializer, row).get("metadata") or {}
            return {**metadata, **load_labels(self._serializer, row)}
        except UNREADABLE:
            return {}

    def show(self, row: RunRow, *, output: bool = True) -> Plan[Run]:
        """A run as its users see it, with its output if that is wanted."""
        setup: dict[str, Any] = {}
        labels: dict[str, Any] = {}
        result = error = damaged = None
        try:
            setup = load_setup(self._serializer, row)
            check_state(row)
            labels = load_labels(self._serializer, row)
            if output:
                result = yield from load_output(self._serializer, row, self._engine.state_at)
            error = load_error(self._serializer, row)
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

    def comment(
        self,
        run_id: str,
        text: str,
        wait_id: str | None,
        by: str | None,
        *,
        number: int | None = None,
    ) -> Plan[None]:
        """Add a comment to the history of a run. The same `number` does so once."""
        if not check_text("comment", text).strip():
            raise BadArgument("A comment is a text that is not empty.")
        if by is not None:
            check_text("by", by)
        row = yield from self.find(check_id("run", run_id))
        if (yield from events.was_made(row.thread_id, row.id, number)):
            return
        if wait_id is not None:
            wait: WaitRow | None = yield waits.find(check_id("wait", wait_id))
            if wait is None or wait.run_id != row.id:
                raise NotFound(f"wait of run {row.id}", wait_id)
        made = change(row.thread_id, row.id, self._clock.now(), number)
        if not (yield run_control.comment(self._serializer, made, text, wait_id, by)):
            raise NotFound("run", run_id)

    def show_all(self, rows: Iterable[RunRow]) -> Plan[list[Run]]:
        """Runs as their users see them, without their outputs."""
        found: list[Run] = []
        for row in rows:
            found += [(yield from self.show(row, output=False))]
        return found

    def events(
        self,
        run_id: str,
        after: int,
        limit: int | None,
        kinds: Collection[EventKind] | None = None,
    ) -> Plan[list[Event]]:
        """The events of a run after number `after`, all or those of some kinds."""
        row = yield from self.find(run_id)
        found: list[Event] = []
        while limit is None or len(found) < limit:
            count = 1000 if limit is None else min(1000, limit - len(found))
            last = found[-1].n if found else after
            place = (self._serializer, row.thread_id, row.id)
            page = yield events.events(*place, last, count, kinds=kinds)
            found += page
            if len(page) < count:
                break
        return found

    def descendants(
        self, run_id: str, most: int, limit: int, levels: int
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
                    run = yield from self.show(row, output=False)
                    is_waited_for = joined is Joined.WAITS and not run.ended
                    is_joined = joined is not Joined.NO
                    found.append(Descendant(run, is_joined, is_waited_for, siblings))
                    level.append(row.id)
            seen.update(level)
        return found, bool(level)

    # -- graphs that no worker has

    def unknown_graphs(self) -> Plan[list[UnknownGraphName]]:
        """Graphs whose runs have been due for a while, and that no worker has driven lately."""
        now, found = self._clock.now(), []
        late: list[LateGraph] = yield runs.late_graphs(now - LATE)
        driven: set[tuple[str, str]] = set()
        if late:
            driven = yield runs.driven_graphs(now + 1, LOOKED_BACK)
        for name, version, number, first_at in late:
            place = (name, version)
            # Behind a long queue of its own runs, the driven ones are older.
            if place in driven or place in (yield runs.driven_graphs(first_at, LOOKED_BACK)):
                continue
            suggestion = _suggestion(name, version, driven)
            found.append(UnknownGraphName(name, version, number, suggestion))
        return found

    def unknown_graph(self, name: str, version: str) -> Plan[UnknownGraphName | None]:
        """The graph of this name, if no worker has driven it lately but some have driven others."""
        driven: set[tuple[str, str]] = yield runs.driven_graphs(self._clock.now() + 1, LOOKED_BACK)
        if not driven or (name, version) in driven:
            return None
        return UnknownGraphName(name, version, 1, _suggestion(name, version, driven))

    # -- cancelling and pausing

    def stop(
        self,
        run_id: str,
        control: Control,
        grace: timedelta,
        *,
        reason: str | None = None,
        by: str | None = None,
        number: int | None = None,
        undo: bool = False,
    ) -> Plan[None]:
        """Cancel or pause a run: at once, or by asking its driver. The same `number` does so
        once. With `undo` its checkpoints are to be deleted once it has ended."""
        row = yield from self.find(run_id)
        if (yield from events.was_made(row.thread_id, row.id, number)):
            return
        found = (yield effects.of_run(row.id)) if control is Control.CANCEL else []
        done = yield run_control.stop(
            self._serializer,
            change(row.thread_id, row.id, self._clock.now(), number),
            control,
            round(grace.total_seconds() * 1000),
            effects=report(found),
            reason=reason,
            by=by,
            undo=undo,
        )
        row = yield from self.find(run_id)
        state = stopped_state(control)
        if not done and row.state != state:
            action, asked = RunAction(control.value), maybe_control(row.control)
            why = why_not_stopped(State(row.state), asked, action) or "it is being cancelled"
            raise WrongState(row.id, row.state, f"be {state.value}", f"{why}.")

    def resume(
        self, run_id: str, by: str | None = None, *, number: int | None = None
    ) -> Plan[None]:
        """Make a paused run due. The same `number` does so once."""
        why = "only a paused run can."
        return self._make_due(run_id, (State.PAUSED,), EventKind.RESUMED, why, by, number)

    def retry(self, run_id: str, by: str | None = None, *, number: int | None = None) -> Plan[None]:
        """Make a failed or held run due. The same `number` does so once."""
        why = "only a failed or held run can, if no later run of its thread has begun."
        states = (State.FAILED, State.HELD)
        return self._make_due(run_id, states, EventKind.RETRIED, why, by, number)

    def _make_due(
        self,
        run_id: str,
        states: tuple[State, ...],
        kind: EventKind,
        why: str,
        by: str | None,
        number: int | None,
    ) -> Plan[None]:
        if by is not None:
            check_text("by", by)
        row = yield from self.find(run_id)
        if (yield from events.was_made(row.thread_id, row.id, number)):
            return
        made = change(row.thread_id, row.id, self._clock.now(), number)
        if not (yield run_control.resume(self._serializer, made, states, kind, by)):
            row = yield from self.find(run_id)
            raise WrongState(run_id, row.state, f"be {kind.value}", why)

    # -- pruning

    def prune(
        self,
        older_than: timedelta,
        states: list[State],
        limit: int | None,
        *,
        dry_run: bool = False,
    ) -> Plan[int]:
        """Delete runs that ended longer ago than that. Returns how many; `dry_run` only counts.

        Each run is deleted in one transaction, or in as many as the database needs: after a crash
        between two of them, pruning again goes on with it.
        """
        before = self._clock.now() - round(older_than.total_seconds() * 1000)
        count, rows = 0, self._engine.journal.capabilities.delete_count
        chosen, after = frozenset(states), (FIRST_MS, "")
        while limit is None or count < limit:
            page: list[deleting.OldRun] = yield deleting.oldest(after, before, PAGE)
            old = [run for run in page if run.is_due(chosen, before)]
            for run in old if limit is None else old[: limit - count]:
                if not dry_run:
                    yield from in_pieces(deleting.delete(run.thread_id, run.id, rows))
                    self._engine.forget(run.thread_id)
                count += 1
            if len(page) < PAGE:
                break
            after = (page[-1].created_at, page[-1].id)
        return count

    def delete(self, run_id: str) -> Plan[None]:
        """Delete an ended run and its history. The state of its thread stays. Raises `WrongState`
        if it has not ended."""
        row = yield from self.find(run_id)
        if State(row.state) not in ENDED:
            why = "cancel it and wait until it has ended."
            raise WrongState(row.id, row.state, "be deleted", why)
        rows = self._engine.journal.capabilities.delete_count
        yield from in_pieces(deleting.delete(row.thread_id, row.id, rows, keeps_state=True))

    # -- erasing

    def erase(self, thread_id: str) -> Plan[dict[str, int]]:
        """Delete every row of a thread. Returns how many there were, by table.

        Its runs go first, each in one transaction or in as many as the database needs, then
        everything else, the row of the thread last. After a crash in between the next call finds
        what is left.
        """
        found: dict[str, int] = yield deleting.rows_of_thread(thread_id)
        rows = self._engine.journal.capabilities.delete_count
        while (run := (yield from self._last_to_end(thread_id))) is not None:
            if State(run.state) not in ENDED:
                why = "cancel it, wait until it has ended, and erase the thread again."
                raise WrongState(run.id, run.state, "be erased", why)
            yield from in_pieces(deleting.delete(thread_id, run.id, rows))
        yield from in_pieces(deleting.erase(thread_id, rows))
        self._engine.forget(thread_id)
        if (run := (yield from self._last_to_end(thread_id))) is not None:
            raise WrongState(run.id, run.state, "be erased", "it was started meanwhile.")
        return found

    def _last_to_end(self, thread_id: str) -> Plan[RunRow | None]:
        """A run of a thread, preferably one that has not ended."""
        head: RunRow | None = yield runs.head(thread_id)
        newest: list[RunRow] = [] if head else (yield runs.page(thread_id=thread_id, count=1))
        return head or next(iter(newest), None)


def _suggestion(name: str, version: str, driven: set[tuple[str, str]]) -> str:
    versions = sorted(other for known, other in driven if known == name)
    if versions:
        has = ", ".join(repr(one) if one else "none" for one in versions)
        return f" Runs of {name!r} were driven in another version: {has}."
    return did_you_mean(name, {known for known, _ in driven})


def make_setup(
    *,
    input: Any,
    metadata: Mapping[str, Any] | None,
    tags: Iterable[str],
    context: Any,
    config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What each segment of a run is started with."""
    setup: dict[str, Any] = {
        "metadata": check_dict("metadata", metadata),
        "tags": check_tags(tags),
        "config": check_config(config),
    }
    if input is not None:
        setup["input"] = input
    if context is not None:
        setup["context"] = context
    return setup
