"""Operations on runs: accept, claim, keep, let go, stop. Pure, no I/O, no colour.

Which of two callers wins is decided by the statement named here:

    start and start, one key     insert_run: the key is unique
    start and the end of a run   count_run / lock_thread: one row per thread
    claim and claim              claim: it raises the token
    a driver and its successor   progress, fence, let_go: they carry the token
    a driver and who stops it    let_go: it looks at `control` in the row
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.journal import Op, Plan, Row, Statement
from perdure.journal.ids import random_number
from perdure.operations.events import Change
from perdure.serde.serializer import Serializer, where_event
from perdure.types import State

DISTANT = 2**62
"""Later than any time."""


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
    saved_effects: int
    saved_calls: int
    saved_tokens: int
    labels: bytes | None
    driven: str | None
    has_checkpoints: bool
    """Whether its thread has any."""


class Lease(NamedTuple):
    """What the journal says about a run that is driven."""

    run_id: str
    token: int
    control: str | None
    control_at: int | None


def _runs(rows: Sequence[Sequence[Row]]) -> list[RunRow]:
    return [RunRow(*row) for row in rows[0]]


def _first(rows: Sequence[Sequence[Row]]) -> RunRow | None:
    found = rows[-1] if rows else []
    return RunRow(*found[0]) if found else None


def start(
    serializer: Serializer,
    made: Change,
    *,
    graph: str,
    version: str,
    key: str | None,
    ready_at: int,
    due_at: int,
    setup: bytes,
    strategy: str,
    only: str | None = None,
    grace: int = 0,
) -> Op[RunRow | None]:
    """Accept a run, or find the one that was accepted with this key. None: the thread is busy."""
    params = {
        **made.params,
        "graph": graph,
        "version": version,
        "key": key,
        "ready_at": ready_at,
        "due_at": due_at,
        "setup": setup,
        "reject": int(strategy == "reject"),
    }
    statements = [Statement("insert_thread", params), Statement("count_run", params)]
    takes_over = strategy in ("interrupt", "rollback", "replace")
    if takes_over:
        only = "idle" if strategy == "replace" else only
        statements += stop_thread(serializer, made, key, only, strategy == "rollback", grace)
    data = {"graph": graph, "version": version, "key": key}
    statements += [
        Statement("insert_run", params),
        made.event(serializer, "started", {k: v for k, v in data.items() if v}),
    ]
    if takes_over:
        statements.append(Statement("next_of_thread", params))  # if not all before it was stopped
    statements.append(Statement("find_run", params))
    key_found = Statement("find_run", params)
    return Op("start", statements, _first, write=True, key=key_found, proof=made.key)


def stop_thread(
    serializer: Serializer, by: Change, key: str | None, only: str | None, undo: bool, grace: int
) -> list[Statement]:
    """Another run takes over: what goes before it is stopped, in the same batch."""
    number = random_number()
    params = {
        **by.params,
        "change": number,
        "key": key,
        "only": only,
        "undo": int(undo),
        "control_at": by.now + grace,
        "reason": f"run {by.run_id} took the thread over",
        "asked": "cancelling",
        "kind": "cancelled",
        "body": serializer.dumps({"by": by.run_id}, where_event(number)),
    }
    names = ("stop_thread", "insert_takeover_events", "close_waits")
    return [Statement(name, params) for name in names]


def supersede(serializer: Serializer, by: Change) -> Op[None]:
    """A run takes over from the one before it, if that waits."""
    return Op(
        "supersede",
        [
            Statement("lock_thread", by.params),
            *stop_thread(serializer, by, None, State.WAITING.value, False, 0),
            Statement("next_of_thread", by.params),
        ],
        lambda rows: None,
        write=True,
    )


def reserve(row: RunRow, until: int) -> Op[None]:
    """Keep a run for its caller, who waits for its turn."""
    params = {"thread_id": row.thread_id, "id": row.id, "until": until}
    return Op("reserve", [Statement("reserve_run", params)], lambda rows: None, write=True)


def find(run_id: str) -> Op[RunRow | None]:
    return Op("run", [Statement("run_by_id", {"id": run_id})], _first)


def find_all(run_ids: Iterable[str]) -> Op[list[RunRow]]:
    params = {"names": json.dumps(sorted(run_ids))}
    return Op("runs_by_ids", [Statement("runs_by_ids", params)], _runs)


def of_prefix(prefix: str) -> Op[list[RunRow]]:
    """Up to two runs whose ids begin so."""
    params = {"first": prefix, "last": f"{prefix}\U0010ffff"}
    return Op("runs_of_prefix", [Statement("runs_of_prefix", params)], _runs)


def unfinished(first: str, last: str, after: tuple[int, str], count: int) -> Op[list[RunRow]]:
    """Runs that are not over, of the graphs from one name to before another, oldest first."""
    params = {
        "first": first,
        "last": last,
        "after": after[0],
        "after_id": after[1],
        "count": count,
    }
    return Op("unfinished", [Statement("unfinished_runs", params)], _runs)


def take_turn(scope: str, run_id: str) -> Plan[bool]:
    """Take one's turn with what only one run at a time may work on. False: another has it."""
    params = {"scope": scope, "run_id": run_id}
    yield Op("take_turn", [Statement("take_turn", params)], lambda rows: None, write=True)
    turn = yield Op("turn_of", [Statement("turn_of", params)], lambda rows: rows[0][0][0])
    return bool(turn == run_id)


def has_turn(scope: str, run_id: str) -> Op[bool]:
    """Whether nobody else took his turn since this run, which is driven, did."""
    statement = Statement("lock_turn", {"scope": scope})
    return Op("has_turn", [statement], lambda rows: [run_id] in map(list, rows[0]), write=True)


def is_due(graph: str, worker: str, before: int, now: int, soon: int) -> Op[bool]:
    """Whether runs of a graph that were to begin by then are due, or about to be, or driven by this
    worker."""
    params = {"graph": graph, "worker": worker, "before": before, "now": now, "soon": soon}
    return Op("is_due", [Statement("is_due", params)], lambda rows: bool(rows[0]))


def head(thread_id: str) -> Op[RunRow | None]:
    """The first run of a thread that is not over."""
    return Op("head", [Statement("head_of_thread", {"thread_id": thread_id})], _first)


def page(
    *,
    thread_id: str | None,
    states: Iterable[str] | None = None,
    graph: str | None = None,
    since: int = 0,
    before: tuple[int, str] | None = None,
    count: int,
) -> Op[list[RunRow]]:
    """Runs, newest first."""
    at, id = before or (DISTANT, "")
    params = {
        "thread_id": thread_id,
        "names": None if states is None else json.dumps(sorted(states)),
        "graph": graph,
        "since": since,
        "before": at,
        "before_id": id,
        "count": count,
    }
    name = "runs_before" if thread_id is None else "runs_of_thread"
    return Op("runs", [Statement(name, params)], _runs)


def claim(
    serializer: Serializer,
    worker: str,
    now: int,
    until: int,
    graphs: Iterable[str],
    count: int,
    *,
    driven: str = "worker",
    suspect: bool = False,
) -> Op[list[RunRow]]:
    """Take up to `count` runs that are due: those that may have killed workers, or the others.
    `driven` says by what kind of driver."""
    number = random_number()
    params = {
        "worker": worker,
        "now": now,
        "until": until,
        "names": json.dumps(sorted(graphs)),
        "count": count,
        "suspect": int(suspect),
        "driven": driven,
        "change": number,
        "body": serializer.dumps({"worker": worker, "driven": driven}, where_event(number)),
    }
    return Op(
        "claim",
        [Statement("claim", params), Statement("insert_claim_events", params)],
        _runs,
        write=True,
        key=Statement("claimed", params),
    )


def claim_run(
    serializer: Serializer, worker: str, now: int, until: int, thread_id: str, run_id: str
) -> Op[RunRow | None]:
    """Take one run, due or not. None if it is another's."""
    number = random_number()
    params = {
        "worker": worker,
        "now": now,
        "until": until,
        "thread_id": thread_id,
        "id": run_id,
        "change": number,
        "body": serializer.dumps({"worker": worker, "driven": "call"}, where_event(number)),
    }
    return Op(
        "claim_run",
        [Statement("claim_run", params), Statement("insert_claim_events", params)],
        lambda rows: RunRow(*rows[0][0]) if rows[0] else None,
        write=True,
        key=Statement("claimed", params),
    )


def next_due() -> Op[int | None]:
    """When the next run is due."""
    return Op(
        "next_due",
        [Statement("next_due", {})],
        lambda rows: int(rows[0][0][0]) if rows[0] else None,
    )


def strangers_due(now: int, graphs: Iterable[str]) -> Op[list[str]]:
    """Graphs that have something due, but are not these."""
    params = {"now": now, "names": json.dumps(sorted(graphs))}
    return Op(
        "strangers_due",
        [Statement("strangers_due", params)],
        lambda rows: [f"{graph}@{version}".removesuffix("@") for graph, version in rows[0]],
    )


def suspect_due(now: int, graphs: Iterable[str]) -> Op[int | None]:
    """Since when a suspect is due."""
    params = {"now": now, "names": json.dumps(sorted(graphs))}
    return Op(
        "suspect_due",
        [Statement("suspect_due", params)],
        lambda rows: int(rows[0][0][0]) if rows[0] else None,
    )


def renew(worker: str, until: int, run_ids: Iterable[str]) -> Op[None]:
    """Keep leases."""
    params = {"worker": worker, "until": until, "names": json.dumps(sorted(run_ids))}
    return Op("renew", [Statement("renew", params)], lambda rows: None, write=True)


def leases(worker: str) -> Op[list[Lease]]:
    """What a worker still holds."""
    return Op(
        "leases",
        [Statement("leases", {"worker": worker})],
        lambda rows: [Lease(*row) for row in rows[0]],
    )


def workers() -> Op[list[str]]:
    """Everybody who drives something now."""
    return Op("workers", [Statement("workers", {})], lambda rows: [row[0] for row in rows[0]])


def expire(worker: str, now: int) -> Op[None]:
    """A worker is dead: what it drove is due."""
    params = {"worker": worker, "now": now}
    return Op("expire", [Statement("expire", params)], lambda rows: None, write=True)


class End(NamedTuple):
    """How a segment ends: what `let_go` is told."""

    state: State
    kind: str
    data: Mapping[str, Any]
    due_at: int | None = None
    attempts: int = 0
    output: bytes | None = None
    error: bytes | None = None
    reason: str | None = None


def let_go(
    serializer: Serializer, made: Change, token: int, end: End, *, waited: bool = True
) -> Op[bool]:
    """End a segment. False if the lease was lost meanwhile: then nothing is changed.

    `waited` says that the run may have waits, open or answered.
    """
    params = {
        **made.params,
        "token": token,
        "state": end.state.value,
        "due_at": end.due_at,
        "attempts": end.attempts,
        "output": end.output,
        "error": end.error,
        "reason": end.reason,
        "kind": end.kind,
        "body": made.body(serializer, end.data),
    }
    statements = [Statement("lock_thread", params), Statement("lock_run", params)]
    postponed = end.kind == "postponed"  # its nodes were stopped: answers and questions stay
    if end.state in (State.WAITING, State.DONE) and not postponed:
        statements.append(Statement("consume_waits", params))
    if (end.state is State.WAITING and not postponed) or end.kind == "updated":
        statements.append(Statement("close_stale", params))
    at = len(statements)
    statements += [
        Statement("let_go", params),
        Statement("insert_end_event", params),
        Statement("close_waits", params),
        Statement("next_of_thread", params),
    ]
    return Op(
        f"let_go {made.run_id}",
        statements,
        lambda rows: bool(rows[at] if len(rows) > at else rows[0]),
        write=True,
        key=made.key,
    )


def stop(
    serializer: Serializer,
    made: Change,
    *,
    control: str,
    state: State,
    grace: int,
    reason: str | None,
    by: str | None,
    effects: Mapping[str, Any] | None = None,
) -> Op[bool]:
    """Cancel or pause a run. False if it is not in a state for it."""
    told = {"reason": reason, "by": by, **(effects or {})}
    params = {
        **made.params,
        "control": control,
        "control_at": made.now + grace,
        "state": state.value,
        "reason": reason,
        "asked": "cancelling" if control == "cancel" else "pausing",
        "kind": state.value,
        "body": made.body(serializer, {k: v for k, v in told.items() if v}),
    }
    return Op(
        control,
        [
            Statement("lock_thread", params),
            Statement("stop_run", params),
            Statement("insert_stop_events", params),
            Statement("close_waits", params),
            Statement("next_of_thread", params),
        ],
        lambda rows: bool(rows[1] if len(rows) > 1 else rows[0]),
        write=True,
        key=made.key,
    )


def go_on(serializer: Serializer, made: Change, states: Sequence[State], kind: str) -> Op[bool]:
    """Make a run due that rests in one of these states. False if it does not."""
    params = {**made.params, "names": json.dumps([state.value for state in states])}
    return Op(
        kind,
        [
            Statement("lock_thread", params),
            Statement("lock_runs", params),
            Statement("go_on", params),
            *([Statement("unpause", params)] if State.PAUSED in states else []),
            *([Statement("retry_effects", params)] if kind == "retried" else []),
            made.event(serializer, kind),
            Statement("block_later", params),
        ],
        lambda rows: any(rows[2:4] if len(rows) > 1 else rows),
        write=True,
        key=made.key,
    )


def fenced(row: RunRow, statements: Sequence[Statement]) -> Op[None]:
    """Statements of whoever drives a run, refused when the lease is lost."""
    params = {"thread_id": row.thread_id, "id": row.id, "token": row.token}
    return Op("fenced", [Statement("fence", params), *statements], lambda rows: None, write=True)


def to_undo(thread_id: str) -> Op[list[str]]:
    """Runs of a thread whose checkpoints are still to be deleted."""
    return Op(
        "to_undo",
        [Statement("to_undo", {"thread_id": thread_id})],
        lambda rows: [row[0] for row in rows[0]],
    )


def undone(thread_id: str, run_id: str) -> Op[None]:
    params = {"thread_id": thread_id, "id": run_id}
    return Op("undone", [Statement("undone", params)], lambda rows: None, write=True)


def note_shape(fingerprint: str, body: str) -> Op[None]:
    """Keep what a fingerprint stands for."""
    params = {"fingerprint": fingerprint, "body": body}
    return Op("note_shape", [Statement("insert_graph", params)], lambda rows: None, write=True)


def shape(fingerprint: str) -> Op[str | None]:
    """The shape a fingerprint stands for."""
    return Op(
        "shape",
        [Statement("graph_by_fingerprint", {"fingerprint": fingerprint})],
        lambda rows: rows[0][0][0] if rows[0] else None,
    )


def old(states: Iterable[str], before: int, count: int) -> Op[list[tuple[str, str]]]:
    """(thread, run) of runs that ended before a time."""
    params = {"before": before, "names": json.dumps(sorted(states)), "count": count}
    return Op(
        "old_runs",
        [Statement("old_runs", params)],
        lambda rows: [(row[0], row[1]) for row in rows[0]],
    )


def delete(thread_id: str, run_id: str) -> Op[None]:
    """Delete an ended run, all that belongs to it, and the state of a thread without runs."""
    params = {"thread_id": thread_id, "id": run_id}
    names = ["lock_thread", "delete_run"]
    names += [
        f"delete_run_{what}"
        for what in ("events", "reads", "effects", "signals", "waits", "scores", "turn")
    ]
    names += [f"delete_idle_{what}" for what in ("checkpoints", "writes", "values")]
    statements = [Statement(name, params) for name in names]
    return Op("delete_run", statements, lambda rows: None, write=True)
