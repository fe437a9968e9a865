"""Operations of callers: accept a run, look at it, cancel or pause it, resume it. Pure, no I/O.

What drivers do is in `claims.py`. Which of two callers wins is decided by the statement named here:

    start and start, one key     insert_run: the key is unique
    start and the end of a run   count_run / lock_thread: one row per thread
    stop and the run's driver    end_segment: it reads `control` in the row
    a decision and the driver    continue_run, end_segment: the later one sees both
    a call's end and its claim   withdraw_run: only what the call has not begun
    a dead call and its claim    withdraw_run: only what is reserved no longer; claim_run
    stop and a child's start     fence: the start holds the row of its parent that stop_run changes.
                                 stop_descendants finds the child, or insert_run the `control`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, NoReturn

from perdure.journal import EventStatement, Op, Row, Statement, is_left, read_op, with_params
from perdure.journal.names import random_number
from perdure.operations import messages, stored_rows
from perdure.operations.events import Change, actor_data, change, dump_event
from perdure.serde.serializer import Serializer
from perdure.times import FIRST_MS, LAST_MS
from perdure.types import Control, EventKind, State

ASKING = "asking"
"""Runs that rest until a person answers, as `only` of `start`."""
GAVE_UP = "its caller went away"
"""The reason of a run that only its caller would have driven."""
NAMES = 1000
"""How many ids one statement looks for."""
DELETING = "it is being deleted: prune again to finish that"
"""The reason of a run that is deleted in several pieces, until the last."""
ROWS_OF_RUN = (
    *("events", "reads", "stream", "effects", "signals", "joins", "waits"),
    *("scores", "traces", "turn"),
)
"""What is deleted with a run, each by its statement, in this order."""


class RunRow(NamedTuple):
    """A run as it is stored."""

    thread_id: str
    id: str
    n: int
    graph: str
    version: str
    key: str | None
    state: str
    due_at: int | None
    ready_at: int
    token: int
    attempts: int
    begun: int
    was: str | None
    control: str | None
    undo: int
    events: int
    created_at: int
    updated_at: int
    fingerprint: str | None
    reason: str | None
    setup: bytes
    output: bytes | None
    error: bytes | None
    saved_steps: int
    saved_effects: int
    saved_calls: int
    labels: bytes | None
    driven: str | None
    parent_id: str | None
    depth: int
    streams: int
    streamed: str | None
    webhook: str | None
    """Topic of the messages that tell the run's own webhook about it."""
    has_checkpoints: bool
    """Whether its thread has checkpoints."""


class GraphUse(NamedTuple):
    """A graph as runs were last driven with it, and how many of them are unfinished."""

    graph: str
    version: str
    fingerprint: str | None
    """None: they have not begun."""
    runs: int


class UnfinishedRun(NamedTuple):
    """The columns for a list of unfinished runs."""

    thread_id: str
    n: int
    id: str
    graph: str
    state: str


class LateGraph(NamedTuple):
    """A graph with runs that are due, and were never claimed."""

    graph: str
    version: str
    runs: int
    first_at: int
    """When the first of them was accepted."""


class Joined(IntEnum):
    """Whether the parent of a run joined it."""

    NO = 0
    YES = 1
    WAITS = 2
    """It waits for the run now."""


class ChildRow(NamedTuple):
    """A run that a node of another one started."""

    run: RunRow
    joined: Joined
    siblings: int
    """How many children its parent has."""


class Ahead(NamedTuple):
    """The data for a line about a run besides its row and its waits."""

    control: str | None
    """What it was asked to do after its current step."""
    recoveries: int
    """How often its worker was lost."""
    head: str | None
    """The first unfinished run of its thread."""


class AtStake(NamedTuple):
    """What cancelling or retrying a run affects besides it."""

    control: str | None
    is_passed: bool
    """Whether a later run of its thread has begun."""
    children: int
    """Number of unfinished runs that are cancelled with it."""
    effects: tuple[tuple[str, str], ...]
    """State and name of its effects: done ones can be undone."""


class Parent(NamedTuple):
    """The run that starts another one, under its lease."""

    thread_id: str
    id: str
    token: int
    depth: int
    ignores_parent_cancel: bool
    """Whether the child goes on when its parent is cancelled."""
    refuse: Callable[[], NoReturn]
    """Called if the lease is lost."""


class Beside(NamedTuple):
    """What is stored in the batch that accepts a run, before the run."""

    statements: Sequence[Statement]
    refuse: Callable[[], NoReturn]
    """Called if one of them refuses the batch."""


_runs = partial(stored_rows.every, RunRow)


def _first(rows: Sequence[Sequence[Row]]) -> RunRow | None:
    return stored_rows.first(RunRow, rows[-1:]) if rows else None


def start(
    serializer: Serializer,
    made: Change,
    *,
    graph: str,
    version: str,
    key: str | None,
    ready_at: int,
    setup: bytes,
    strategy: str,
    only: str | None = None,
    grace: int = 0,
    fingerprint: str | None = None,
    begun: bool = False,
    parent: Parent | None = None,
    traceparent: str | None = None,
    streams: bool = False,
    beside: Beside | None = None,
    webhook: str | None = None,
) -> Op[RunRow | None]:
    """Accept a run, or find the one accepted before with this key. None if the thread is busy.
    With `only`, the run takes the thread over from the runs in that state, whatever the strategy.
    A fork has `begun`, with a graph of this fingerprint. A child is refused if its parent has lost
    its lease. `traceparent` is the span of the caller, as W3C's trace context writes it. `streams`:
    what it produces is kept. What is `beside` is stored in the same batch. `webhook` is the topic
    of the messages for its own webhook."""
    params = {
        **made.params,
        "graph": graph,
        "version": version,
        "key": key,
        "ready_at": ready_at,
        "due_at": ready_at,
        "setup": setup,
        "webhook": webhook,
        "fingerprint": fingerprint,
        "begun": int(begun),
        "streams": int(streams),
        "reject": int(strategy == "reject"),
        "parent_id": None if parent is None else parent.id,
        "depth": 0 if parent is None else parent.depth + 1,
        "ignores_parent_cancel": int(parent is not None and parent.ignores_parent_cancel),
        "parent_reason": None if parent is None else parent_cancelled(parent.id),
    }
    statements = with_params(params, "count_run")
    if parent is not None:
        held = {"thread_id": parent.thread_id, "id": parent.id, "token": parent.token}
        statements.insert(0, Statement("fence", held))
    if beside is not None:
        statements[:0] = beside.statements
    data = {"graph": graph, "version": version, "key": key, "parent": params["parent_id"]}
    data["traceparent"] = traceparent
    found = Statement("find_run", params)
    inserted = [
        Statement("insert_run", params),
        made.event(serializer, EventKind.STARTED, {k: v for k, v in data.items() if v}),
    ]
    refuse: Callable[[], Any] | None = None if parent is None else parent.refuse
    if beside is not None:
        refuse = beside.refuse

    def op(between: Sequence[Statement], after: Sequence[Statement], otherwise: Any) -> Op[Any]:
        batch = [*statements, *between, *inserted, *after, found]
        return Op(
            "start", batch, _first, write=True, key=found, proof=made.key, otherwise=otherwise
        )

    def take_over() -> Op[RunRow | None]:
        stopped = "idle" if strategy == "replace" else only
        alone, undo = strategy == "reject", strategy == "rollback"
        between = stop_thread(serializer, made, key, stopped, undo, grace, alone=alone)
        # Runs before it may be left: those that the strategy does not stop.
        return op(between, [Statement("make_next_due", params)], refuse)

    if only == ASKING:  # most threads have none, and the statements for those are many
        return op([Statement("refuse_waiting", params)], [], take_over)
    if only is not None or strategy in ("interrupt", "rollback", "replace"):
        return take_over()
    return op([], [], refuse)


def stop_thread(
    serializer: Serializer,
    by: Change,
    key: str | None,
    only: str | None,
    undo: bool,
    grace: int,
    *,
    alone: bool = False,
) -> list[Statement]:
    """Cancel the earlier runs of a thread, for the batch of the run that takes it over. If it is to
    be `alone`, one run is cancelled at most, and none if others are under way too."""
    number, data = random_number(), {"by": by.run_id}
    params = {
        **by.params,
        "change": number,
        "key": key,
        "only": only,
        "alone": int(alone),
        "undo": int(undo),
        "control_at": by.now + grace,
        "reason": f"run {by.run_id} took the thread over",
        "asked": EventKind.CANCELLING.value,
        "kind": EventKind.CANCELLED.value,
        "body": dump_event(
            serializer,
            number,
            by.now,
            (EventKind.CANCELLING, EventKind.CANCELLED),
            data,
            by.thread_id,
        ),
    }
    return [
        Statement("stop_thread", params),
        EventStatement("insert_takeover_events", params, data),
        *with_params(params, "trace_stopped", "close_waits"),
        *wake_joiners(by.params),
        messages.announce_ends(by._replace(number=number)),
        *stop_children(serializer, by._replace(run_id="", number=number), grace),
    ]


def wake_joiners(params: Mapping[str, Any]) -> list[Statement]:
    """Wake the runs that wait for one of a thread, for a batch that ends some of them."""
    return with_params(params, "lock_joiners", "wake_joiners")


def stop_children(serializer: Serializer, by: Change, grace: int) -> list[Statement]:
    """Cancel the children of the run, or runs, that a change cancels, for its batch."""
    number = random_number()
    reason = parent_cancelled(by.run_id) if by.run_id else "its parent run was cancelled"
    data = {"reason": reason}
    params = {
        **by.params,
        "by": by.number,
        "change": number,
        "control_at": by.now + grace,
        "reason": reason,
        "kind": EventKind.CANCELLING.value,
        "body": dump_event(serializer, number, by.now, [EventKind.CANCELLING], data),
    }
    return [
        Statement("stop_descendants", params),
        EventStatement("insert_descendant_events", params, data),
    ]


def parent_cancelled(run_id: str) -> str:
    """Why a child is cancelled."""
    return f"its parent, run {run_id}, was cancelled"


def supersede(serializer: Serializer, by: Change) -> Op[None]:
    """Cancel the run before this one, if it waits."""
    return Op(
        "supersede",
        [
            Statement("lock_thread", by.params),
            *stop_thread(serializer, by, None, State.WAITING.value, False, 0),
            Statement("make_next_due", by.params),
        ],
        lambda rows: None,
        write=True,
    )


def reserve(row: RunRow, until: int) -> Op[None]:
    """Reserve a run for the caller that waits to drive it."""
    params = {"thread_id": row.thread_id, "id": row.id, "until": until}
    return Op("reserve", [Statement("reserve_run", params)], lambda rows: None, write=True)


def withdraw(serializer: Serializer, made: Change, worker: str | None = None) -> Op[bool]:
    """Cancel a run that only its call would drive, and has not begun: with the call, which was made
    by this worker; or once it is reserved no longer. False: it was begun, or has ended."""
    reason = serializer.redacted_text(GAVE_UP)
    params = {**made.params, "worker": worker, "reason": reason}
    return Op(
        "withdraw",
        [
            *with_params(params, "lock_thread", "withdraw_run"),
            made.event(serializer, EventKind.CANCELLED, {"reason": reason}),
            *with_params(params, "trace_changed", "make_next_due"),
            *wake_joiners(params),
            messages.announce_ends(made),
        ],
        lambda rows: bool(rows[1] if len(rows) > 1 else rows[0]),
        write=True,
        key=made.key,
    )


def find(run_id: str) -> Op[RunRow | None]:
    return read_op("run_by_id", {"id": run_id}, _first)


def find_all(run_ids: Iterable[str]) -> Op[list[RunRow]]:
    return Op(
        "runs_by_ids",
        [Statement("runs_by_ids", params) for params in names_in_pieces(run_ids)],
        lambda rows: _runs([[row for some in rows for row in some]]),
    )


def names_in_pieces(names: Iterable[str]) -> list[dict[str, str]]:
    """The parameter `:names` of several statements, for a list that may be long."""
    every = sorted({*names})
    return [
        {"names": json.dumps(every[start : start + NAMES])} for start in range(0, len(every), NAMES)
    ]


def children(of: Iterable[str], most: int, count: int) -> Op[list[ChildRow]]:
    """The oldest children of these runs, at most `most` of each, and `count` in all."""

    def result(rows: Sequence[Sequence[Row]]) -> list[ChildRow]:
        found = _runs([[row[:-2] for row in rows[0]]])
        return [
            ChildRow(run, Joined(joined or 0), siblings)
            for run, (*_, joined, siblings) in zip(found, rows[0], strict=True)
        ]

    params = {"names": json.dumps(sorted(of)), "most": most, "count": count}
    return read_op("children_of_runs", params, result)


def unfinished(first: str, last: str, after: tuple[int, str], count: int) -> Op[list[RunRow]]:
    """Runs that are not over, of graphs named from `first` up to `last`, oldest first."""
    at, id = after
    params = {"first": first, "last": last, "after": at, "after_id": id, "count": count}
    return read_op("unfinished_runs", params, _runs)


def unfinished_of_threads(
    first: str, last: str, after: tuple[str, int] | None, count: int
) -> Op[list[UnfinishedRun]]:
    """Unfinished runs of the threads with ids from `first` up to `last`, by thread. Ended runs are
    not read."""
    thread_id, n = after or (first, -1)
    params = {"after": thread_id, "after_n": n, "last": last, "count": count}
    return read_op(
        "unfinished_of_threads", params, lambda rows: [UnfinishedRun(*row) for row in rows[0]]
    )


def of_schedule(name: str, count: int) -> Op[list[RunRow]]:
    """The last runs that a schedule started on threads of their own, newest first."""
    thread = f"schedule:{name}@"  # and a time, which begins with a digit
    params = {"first": f"{thread}0", "last": f"{thread}:", "count": count}
    return read_op("last_runs_of_threads", params, _runs)


def head(thread_id: str) -> Op[RunRow | None]:
    """The first run of a thread that is not over."""
    return read_op("head_of_thread", {"thread_id": thread_id}, _first)


def find_with_head(thread_id: str, run_id: str) -> Op[tuple[RunRow | None, RunRow | None]]:
    """A run, and the first one of its thread that is not over."""
    params = {"thread_id": thread_id, "id": run_id}
    return Op(
        "find_with_head",
        with_params(params, "run_by_id", "head_of_thread"),
        lambda rows: (_first(rows[:1]), _first(rows[1:])),
    )


def ahead(run_ids: Iterable[str]) -> Op[dict[str, Ahead]]:
    """The data for lines about these runs, by run."""
    return Op(
        "runs_ahead",
        [Statement("runs_ahead", names) for names in names_in_pieces(run_ids)],
        lambda rows: {id: Ahead(*rest) for some in rows for id, *rest in some},
    )


def at_stake(run_ids: Iterable[str]) -> Op[dict[str, AtStake]]:
    """What cancelling or retrying each of these runs affects besides it, by run."""
    names = ("runs_at_stake", "children_at_stake", "effects_at_stake")
    pieces = names_in_pieces(run_ids)
    statements = [Statement(name, piece) for name in names for piece in pieces]

    def result(rows: Sequence[Sequence[Row]]) -> dict[str, AtStake]:
        size = len(pieces)
        every, trees, effects = (
            [row for some in rows[start : start + size] for row in some]
            for start in range(0, len(statements), size)
        )
        children = {root: int(number) for root, number in trees}
        touched: dict[str, list[tuple[str, str]]] = {}
        for run_id, state, name in effects:
            touched.setdefault(run_id, []).append((state, name))
        return {
            id: AtStake(control, bool(passed), children.get(id, 0), tuple(touched.get(id, ())))
            for id, control, passed in every
        }

    return Op("at_stake", statements, result)


def after(thread_id: str, number: int, count: int) -> Op[list[RunRow]]:
    """The runs of a thread behind a number, in their order."""
    params = {"thread_id": thread_id, "after": number, "count": count}
    return read_op("runs_after", params, _runs)


def page(
    *,
    thread_id: str | None = None,
    parent_id: str | None = None,
    states: Iterable[str] | None = None,
    graph: str | None = None,
    since: int = FIRST_MS,
    before: tuple[int, str] | None = None,
    count: int,
) -> Op[list[RunRow]]:
    """Runs of a thread, or children of a run, or all; newest first. Those of some states are found
    by an index; those that are done, or of a graph, by going through the newest runs."""
    at, id = before or (LAST_MS, "\U0010ffff")
    params = {
        "thread_id": thread_id,
        "parent_id": parent_id,
        "names": None if states is None else json.dumps(sorted(states)),
        "graph": graph,
        "since": since,
        "before": at,
        "before_id": id,
        "count": count,
    }
    if parent_id is not None or thread_id is not None:
        name = "runs_of_thread" if parent_id is None else "runs_of_parent"
        return read_op(name, params, _runs)
    return Op(
        "runs_before",
        [Statement(name, {**params, **more}) for name, more in _lists(states)],
        lambda rows: _newest_of_all(rows, count),
    )


def _lists(states: Iterable[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The statements that list runs of these states, each by its index."""
    wanted = {*State} if states is None else {State(state) for state in states}
    if State.DONE in wanted:
        yield "runs_before", {}
        return
    if State.RUNNING in wanted:
        yield "running_runs", {}
    if State.PENDING in wanted:
        yield "pending_runs", {}
    for state in sorted(wanted - {State.RUNNING, State.PENDING}):
        yield "runs_in_state", {"state": state.value}


def _newest_of_all(rows: Sequence[Sequence[Row]], count: int) -> list[RunRow]:
    """The newest of several lists of runs."""
    every = [row for some in rows for row in _runs([some])]
    return sorted(every, key=lambda row: (row.created_at, row.id), reverse=True)[:count]


def newer(
    *, since: int = FIRST_MS, until: int = LAST_MS, after: tuple[int, str], count: int
) -> Op[list[RunRow]]:
    """All runs behind a position, oldest first: the other direction of `page`."""
    at, id = after
    params = {"since": since, "until": until, "after": at, "after_id": id, "count": count}
    return read_op("runs_newer", params, _runs)


def held(after: tuple[int, str], count: int) -> Op[list[RunRow]]:
    """Held runs behind a position, oldest first."""
    at, id = after
    return read_op("held_runs", {"after": at, "after_id": id, "count": count}, _runs)


def stop(
    serializer: Serializer,
    made: Change,
    control: Control,
    grace: int,
    *,
    reason: str | None = None,
    by: str | None = None,
    effects: Mapping[str, Any] | None = None,
    undo: bool = False,
) -> Op[bool]:
    """Cancel or pause a run. False if its state does not allow that. With `undo` its checkpoints
    are to be deleted once it has ended."""
    is_cancel = control is Control.CANCEL
    reason = serializer.redacted_text(reason)
    given = {"reason": reason, **actor_data(by), **(effects or {})}
    data = {name: value for name, value in given.items() if value}
    asked = EventKind.CANCELLING if is_cancel else EventKind.PAUSING
    kind = EventKind.CANCELLED if is_cancel else EventKind.PAUSED
    params = {
        **made.params,
        "control": control.value,
        "control_at": made.now + grace,
        "state": stopped_state(control).value,
        "undo": int(undo),
        "reason": reason,
        "asked": asked.value,
        "kind": kind.value,
        "body": made.body(serializer, (asked, kind), data),
    }
    return Op(
        control.value,
        [
            *with_params(params, "lock_thread", "stop_run"),
            EventStatement("insert_stop_events", params, data),
            *with_params(params, "trace_changed", "close_waits", "make_next_due"),
            *(_after_cancel(serializer, made, grace) if is_cancel else ()),
        ],
        lambda rows: bool(rows[1] if len(rows) > 1 else rows[0]),
        write=True,
        key=made.key,
    )


def _after_cancel(serializer: Serializer, made: Change, grace: int) -> list[Statement]:
    """Tell those that a cancelled run concerns, for its batch."""
    told = [*wake_joiners(made.params), messages.announce_ends(made)]
    return told + stop_children(serializer, made, grace)


def stopped_state(control: Control) -> State:
    """The state of a run once it has been cancelled or paused."""
    return State.CANCELLED if control is Control.CANCEL else State.PAUSED


def resume(
    serializer: Serializer,
    made: Change,
    states: Sequence[State],
    kind: EventKind,
    by: str | None = None,
) -> Op[bool]:
    """Make a run due that is in one of these states. False if it is in another."""
    params = {**made.params, "names": json.dumps([state.value for state in states])}
    params["decision"] = None
    is_retry = kind is EventKind.RETRIED
    return Op(
        kind.value,
        [
            *with_params(params, "lock_thread", "lock_runs", "continue_run"),
            *([Statement("unpause", params)] if State.PAUSED in states else []),
            *(with_params(params, "retry_effects", "reopen_joins") if is_retry else []),
            made.event(serializer, kind, actor_data(by)),
            Statement("requeue_later", params),
        ],
        lambda rows: any(rows[2:4] if len(rows) > 1 else rows),
        write=True,
        key=made.key,
    )


def release(
    serializer: Serializer, decided: Change, states: Sequence[State], kind: EventKind
) -> list[Statement]:
    """The statements that make a run due that is in one of these states, once a person's decision
    was made and none of its effects is unknown, for the batch of that decision."""
    made = change(decided.thread_id, decided.run_id, decided.now)
    params = {**made.params, "names": json.dumps([*states]), "decision": decided.number}
    return [
        Statement("continue_run", params),
        *(
            with_params(params, "retry_effects", "reopen_joins")
            if kind is EventKind.RETRIED
            else []
        ),
        made.event(serializer, kind),
        *([Statement("requeue_later", params)] if State.FAILED in states else []),
    ]


def comment(
    serializer: Serializer, made: Change, text: str, wait_id: str | None, by: str | None
) -> Op[bool]:
    """Add a person's comment to the history of a run, optionally about one of its questions. False:
    the run was deleted."""
    data = {**({"wait": wait_id} if wait_id else {}), "text": text, **actor_data(by)}
    return Op(
        "comment",
        [
            Statement("count_comment", made.params),
            made.event(serializer, EventKind.COMMENT, data),
            made.key,
        ],
        lambda rows: bool(rows[-1]),
        write=True,
        key=made.key,
    )


def has_begun(row: RunRow) -> Op[bool]:
    """Whether the history of a run has a step or a question."""
    params = {"thread_id": row.thread_id, "id": row.id}
    return read_op("has_begun", params, lambda rows: bool(rows[0]))


def rolled_back(thread_id: str) -> Op[list[str]]:
    """Runs of a thread that were stopped by `rollback` and still have checkpoints to delete."""
    return read_op(
        "runs_to_roll_back", {"thread_id": thread_id}, lambda rows: [row[0] for row in rows[0]]
    )


def note_rolled_back(thread_id: str, run_id: str) -> Op[None]:
    """Note that the checkpoints of a run have been deleted."""
    params = {"thread_id": thread_id, "id": run_id}
    return Op(
        "note_rolled_back", [Statement("note_rolled_back", params)], lambda rows: None, write=True
    )


def set_setup(row: RunRow, setup: bytes) -> Op[None]:
    """Replace the setup of a run, under the driver's lease."""
    params = {"thread_id": row.thread_id, "id": row.id, "token": row.token, "setup": setup}
    params |= {"streams": None, "webhook": None}
    statements = with_params(params, "fence", "set_setup")
    return Op("set_setup", statements, lambda rows: None, write=True)


def store_topology(fingerprint: str, topology: str) -> Op[None]:
    """Store the topology that a fingerprint stands for."""
    params = {"name": f"graph {fingerprint}", "body": topology.encode()}
    statements = [Statement("insert_entry", params)]
    return Op("store_topology", statements, lambda rows: None, write=True)


def topology(fingerprint: str) -> Op[str | None]:
    """The topology that a fingerprint stands for."""
    return read_op(
        "entry",
        {"name": f"graph {fingerprint}"},
        lambda rows: bytes(rows[0][0][1]).decode() if rows[0] else None,
    )


def graphs_in_use() -> Op[list[GraphUse]]:
    """The graphs that unfinished runs were last driven with."""
    return read_op("graphs_in_use", {}, lambda rows: [GraphUse(*row) for row in rows[0]])


def last_driven_with(use: GraphUse, after: str, count: int) -> Op[list[RunRow]]:
    """Unfinished runs that were last driven with one graph, by id, after `after`."""
    return read_op(
        "runs_last_driven_with", {**use._asdict(), "after": after, "count": count}, _runs
    )


def late_graphs(late: int) -> Op[list[LateGraph]]:
    """Graphs with runs that were due by `late`, and never claimed."""
    return read_op("late_graphs", {"late": late}, lambda rows: [LateGraph(*one) for one in rows[0]])


def driven_graphs(before: int, count: int) -> Op[set[tuple[str, str]]]:
    """(name, version) of the graphs with a run that a worker has claimed, among the last `count`
    accepted before a time."""
    params = {"before": before, "count": count}
    return read_op("driven_graphs", params, lambda rows: {(a, b) for a, b in rows[0]})


def ended_before(states: Iterable[str], before: int, count: int) -> Op[list[tuple[str, str]]]:
    """(thread, run) of each run that ended before a time, or whose deletion was begun."""
    params = {"before": before, "names": json.dumps(sorted(states)), "count": count}
    params["deleting"] = DELETING
    return read_op("old_runs", params, lambda rows: [(row[0], row[1]) for row in rows[0]])


class OldRun(NamedTuple):
    """What decides whether a run is to be deleted."""

    thread_id: str
    id: str
    state: str
    created_at: int
    updated_at: int
    is_deleted_in_part: int
    has_live_parent: int


def oldest(after: tuple[int, str], before: int, count: int) -> Op[list[OldRun]]:
    """The oldest runs behind a position, accepted before a time."""
    at, id = after
    params = {"after": at, "after_id": id, "before": before, "count": count, "deleting": DELETING}
    return read_op("oldest_runs", params, lambda rows: [OldRun(*row) for row in rows[0]])


def delete(thread_id: str, run_id: str, count: int, *, keeps_state: bool = False) -> Op[bool]:
    """Delete an ended run with all its rows, and, unless it `keeps_state`, the checkpoints of a
    thread left without runs: up to `count` rows of a table. True: rows are left, so it has to be
    done again.

    The state of the thread goes first and at once, the run's own row last. A crash between two such
    operations leaves a cancelled run whose reason is `DELETING`; pruning again finds it.
    """
    params = {"thread_id": thread_id, "id": run_id, "count": count, "deleting": DELETING}
    params["keeps_state"] = int(keeps_state)
    names = ["lock_thread"]
    if not keeps_state:
        params["only"] = "alone"
        names += ["delete_state", "delete_state_writes", "delete_state_values"]
    names += [f"delete_run_{what}" for what in ROWS_OF_RUN]
    names += ["delete_run", "retire_run", "is_run_left"]
    return Op("delete_run", with_params(params, *names), is_left, write=True)
