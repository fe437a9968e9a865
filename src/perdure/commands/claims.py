"""Operations of drivers: claim a run, renew its lease, end its segment. Pure, no I/O.

A dead or silent worker loses its runs here: `expire` makes them due at once, and a lease that is
not renewed runs out. It is over when the journal's clock says so and, between processes of one
host, the host's monotonic clock as well (`{held}` in the SQL). Which of two drivers wins is decided
by the statement named here:

    claim and claim              claim: it raises the token
    a driver and its keeper      revoke_lease: it raises the token
    a driver and its successor   progress, fence, end_segment: they carry the token
    a driver and a stop request  end_segment: it reads `control` in the row
    a driver and a decision      end_segment: it looks whether effects are still unknown

Before it claims, a worker looks in one read for what is due, what will be soon, and who drives. It
reads only what is due and what is driven, however many runs sleep.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from perdure.commands import messages, schedules
from perdure.commands.connection import Connection
from perdure.commands.effects import NOTHING_SAVED, Owner, Saved, record_saved
from perdure.commands.events import (
    WAKE_JOINERS,
    Change,
    change,
    dump_event,
    redacted_data,
    stop_children,
)
from perdure.commands.runs import RunRow, names_in_pieces
from perdure.commands.schedules import ScheduleRow
from perdure.commands.webhooks import Endpoint
from perdure.commands.workers import DrainRequest, WorkerLeases, drain_request, leased_workers
from perdure.journal import (
    EventStatement,
    Op,
    Plan,
    Rows,
    Statement,
    as_time,
    changed,
    first_as,
    read_op,
    read_together,
    rows_as,
    with_params,
    write_op,
)
from perdure.journal.clock import LONGEST_LEASE, UNLIMITED, HostTime
from perdure.journal.names import random_number
from perdure.serde.serializer import Serializer
from perdure.types import DrivenBy, EventKind, State
from perdure.verbs import verb

T = TypeVar("T")

_DECIDED_IN_SQL = (EventKind.RELEASED, EventKind.CANCELLED, EventKind.PAUSED)
"""What `insert_event` makes of a segment's end, if a request to stop came meanwhile."""


class LeaseRow(NamedTuple):
    """A lease as it is stored, and what the driver was asked to do."""

    run_id: str
    token: int
    control: str | None
    control_at: int | None
    events: int


class LeaseTimes(NamedTuple):
    """Now, and the end of a lease that begins now: by the journal's clock, and by the host's."""

    now: int
    until: int
    host: HostTime = HostTime()

    @property
    def params(self) -> dict[str, Any]:
        length = self.until - self.now
        lease_until = self.host.tick + length if self.host.clock else 0
        times = {"now": self.now, "until": self.until, "lease_until": lease_until}
        # Others of this host are taken to have leases as long as ours.
        latest = self.host.tick + max(length, LONGEST_LEASE)
        return times | self.host.params | {"latest": latest}


class SegmentEnd(NamedTuple):
    """How a segment ends: the argument of `end_segment`."""

    state: State
    kind: EventKind
    data: Mapping[str, Any]
    due_at: int | None = None
    attempts: int = 0
    output: bytes | None = None
    error: bytes | None = None
    reason: str | None = None
    in_step: bool = False
    """Whether it was stopped in the middle of a step: its answers and questions stay."""
    saved: Saved = NOTHING_SAVED
    """What came from the record since its last event."""


def claim(
    serializer: Serializer,
    worker: str,
    times: LeaseTimes,
    graphs: Iterable[str],
    count: int,
    *,
    driven: DrivenBy = DrivenBy.WORKER,
    suspect: bool = False,
    since: int | None = None,
    only: str | None = None,
    silent: Sequence[str] = (),
) -> Op[list[RunRow]]:
    """Claim up to `count` due runs of these graphs, or `only` the run with this id. `silent` are
    workers that live, and let leases run out.

    With `suspect` only runs whose last workers died, otherwise only the others. `since` is when the
    first of them was due, as far as the caller knows: no statement uses it, but metrics do.
    """
    params = {
        "worker": worker,
        **times.params,
        "names": json.dumps(sorted(graphs)),
        "count": count,
        "suspect": int(suspect),
        "driven": driven.value,
        "since": since,
        "only": only,
        "silent": silent,
    }
    return _claim("claim", serializer, params, rows_as(RunRow))


def claimable(
    times: LeaseTimes,
    graphs: Iterable[str],
    count: int,
    result: Callable[[Rows], T],
    *,
    suspect: bool,
    after: int = -UNLIMITED,
    before: int | None = None,
) -> Op[T]:
    """The runs that `claim` would take that are due after `after`, and by `before` or now: when,
    thread and id of each."""
    params = {**times.params, "names": json.dumps(sorted(graphs)), "count": count}
    params |= {"suspect": int(suspect), "after": after}
    return read_op(
        "claimable", {**params, "before": times.now if before is None else before}, result
    )


def postpone(thread_id: str, run_id: str, until: int, reason: str) -> Op[None]:
    """Try a due run again at `until`, and say why."""
    params = {"thread_id": thread_id, "id": run_id, "until": until, "reason": reason}
    return write_op(params, "postpone_run")


def claim_run(
    serializer: Serializer, worker: str, times: LeaseTimes, thread_id: str, run_id: str
) -> Op[RunRow | None]:
    """Claim one run for a caller, due or not. None if another worker has it."""
    params = {"worker": worker, **times.params, "driven": DrivenBy.CALL.value}
    params |= {"thread_id": thread_id, "id": run_id}
    return _claim("claim_run", serializer, params, first_as(RunRow))


def _claim(
    name: str,
    serializer: Serializer,
    params: dict[str, Any],
    result: Callable[[Rows], T],
) -> Op[T]:
    number = random_number()
    data = {"worker": params["worker"], "driven": params["driven"]}
    if silent := params.pop("silent", ()):
        data["silent"] = [*silent]
    kinds = (EventKind.CLAIMED, EventKind.RECOVERED)
    body = dump_event(serializer, number, params["now"], kinds, data)
    params = {**params, "change": number, "body": body}
    return Op(
        name,
        [Statement(name, params), EventStatement("insert_claim_events", params, data)],
        lambda rows: result(rows[:1]),
        write=True,
        key=Statement("claimed", params),
    )


def next_due() -> Op[int | None]:
    """When the first run is due, of any graph."""
    return read_op("next_due", {}, as_time)


def unregistered_due(times: LeaseTimes, graphs: Iterable[str]) -> Op[list[str]]:
    """Names of graphs with due runs that are not among `graphs`."""
    params = {**times.params, "names": json.dumps(sorted(graphs))}
    return read_op(
        "other_graphs_due",
        params,
        lambda rows: [f"{graph}@{version}".removesuffix("@") for graph, version in rows[0]],
    )


def is_due(graph: str, worker: str, before: int, now: int, soon: int) -> Op[bool]:
    """Whether a graph has runs scheduled before `before` that are due by `soon`, or that this
    worker drives."""
    params = {"graph": graph, "worker": worker, "before": before, "now": now, "soon": soon}
    return read_op("is_due", params, lambda rows: bool(rows[0]))


def renew(worker: str, times: LeaseTimes, run_ids: Iterable[str]) -> Op[list[LeaseRow]]:
    """Renew a worker's leases of these runs. Returns all that it has."""
    params = {"worker": worker, **times.params}
    statements = [Statement("renew", {**params, **some}) for some in names_in_pieces(run_ids)]
    return Op(
        "renew",
        [*statements, Statement("leases", params)],
        lambda rows: [LeaseRow(*row) for row in rows[-1]],
        write=True,
    )


def expire(worker: str, now: int, *, before: int | None = None) -> Op[None]:
    """End the leases of a dead worker: its runs are due. With `before`, only the leases that ended
    by then by the clock of its host."""
    params = {"worker": worker, "now": now, "tick": before}
    return write_op(params, "expire")


def revoke_lease(serializer: Serializer, row: RunRow, now: int, reason: str) -> Op[bool]:
    """End the lease of a driver that does not respond, before it runs out: the run is due as if its
    worker were dead. False if the lease was lost; then nothing is changed."""
    made = change(row.thread_id, row.id, now)
    event = made.event(serializer, EventKind.RELEASED, {"forced": True, "reason": reason})
    return Op(
        f"revoke_lease {row.id}",
        [Statement("revoke_lease", {**made.params, "token": row.token}), event],
        lambda rows: bool(rows[0]),
        write=True,
        key=made.key,
    )


def end_segment(
    serializer: Serializer,
    made: Change,
    token: int,
    end: SegmentEnd,
    sinks: Iterable[str] = (),
    *,
    has_webhook: bool = False,
    endpoints: Iterable[Endpoint] = (),
) -> Op[bool]:
    """End a segment and its lease. False if the lease was lost; then nothing is changed. `sinks`
    are given the run's trace. The run's own webhook, if it has one, and these endpoints are told of
    the state it is in then."""
    data = {**redacted_data(serializer, end.data), **end.saved.data}
    params = {
        **made.params,
        "token": token,
        "state": end.state.value,
        "held": int(end.state is State.HELD and end.error is None),
        "due_at": end.due_at,
        "attempts": end.attempts,
        "output": end.output,
        "error": end.error,
        "reason": serializer.redacted_text(end.reason),
        "kind": end.kind.value,
        "body": made.body(serializer, (end.kind, *_DECIDED_IN_SQL), data),
    }
    statements = with_params(params, "lock_thread", "lock_run")
    statements += record_saved(Owner(made.thread_id, made.run_id, token), end.saved)
    consumes = end.state in (State.WAITING, State.DONE) and not end.in_step
    closes = (end.state is State.WAITING and not end.in_step) or end.kind is EventKind.UPDATED
    if consumes or closes:
        passed = {**params, "consumes": int(consumes), "closes": int(closes)}
        statements.append(Statement("consume_and_close_waits", passed))
    at = len(statements)
    statements += [
        Statement("end_segment", params),
        EventStatement("insert_event", params, data),
        *(Statement("trace_segment", {**params, "sink": sink, "empty": b""}) for sink in sinks),
        *with_params(params, "close_waits", "make_next_due", *WAKE_JOINERS),
        *([messages.announce_ends(made)] if has_webhook else []),
        *messages.announce_states(made, endpoints),
    ]
    if end.state is State.CANCELLED:
        statements += stop_children(serializer, made, 0)
    return Op(
        f"end_segment {made.run_id}",
        statements,
        changed(at),
        write=True,
        key=made.key,
    )


@verb()
def ping(on: Connection) -> Plan[None]:
    """Read one row, to check that the journal answers.

    Raises:
        Unavailable: The journal does not answer.
    """
    yield next_due()


GAVE_UP = "its caller went away"
"""The reason of a run that only its caller would have driven."""


def reserve(row: RunRow, until: int) -> Op[None]:
    """Reserve a run for the caller that waits to drive it."""
    params = {"thread_id": row.thread_id, "id": row.id, "until": until}
    return write_op(params, "reserve_run")


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
            *with_params(params, "trace_changed", "make_next_due", *WAKE_JOINERS),
            messages.announce_ends(made),
        ],
        changed(1),
        write=True,
        key=made.key,
    )


BEGINNING = -1
"""Before every time."""


class Oldest(NamedTuple):
    """What may be kept no longer."""

    expires_at: int | None
    """When the first thread is to be erased."""
    streamed_at: int | None
    """When the first run was accepted whose chunks are kept."""


class WorkFound(NamedTuple):
    """What a worker found. Times are milliseconds, None if there is nothing."""

    workers: list[WorkerLeases]
    """Every worker that has a lease."""
    first_at: int | None
    """When the first run is due, of any graph."""
    due_at: int | None
    """Since when a run has been due that the worker can claim."""
    soon_at: int | None
    """When the next one is, if that is before the worker looks again."""
    suspect_at: int | None = None
    """Since when a suspect has been due."""
    schedules: Sequence[ScheduleRow] | None = None
    """Schedules with a slot to start, if they were asked for."""
    message_at: int | None = None
    """When the first message is due that the worker can deliver."""
    oldest: Oldest = Oldest(None, None)
    drain: DrainRequest | None = None
    """The request to drain this worker, if there is one."""


def look(
    times: LeaseTimes,
    graphs: Iterable[str],
    *,
    until: int,
    suspects: bool,
    slots: bool,
    topics: Iterable[str],
    oldest: bool = False,
    worker: str | None = None,
) -> Op[WorkFound]:
    """Look for runs of these graphs that are due, or will be by `until`; for suspects, slots of
    schedules, the oldest of what is to be deleted, and whether this worker is to drain, if asked
    to; and for messages of these topics."""
    now, due = times.now, partial(claimable, times, graphs, 1, as_time)
    asked: dict[str, Op[Any]] = {
        "workers": leased_workers(),
        "first_at": next_due(),
        "due_at": due(suspect=False, after=BEGINNING),
        "soon_at": due(suspect=False, after=now, before=until),
    }
    if suspects:
        asked["suspect_at"] = due(suspect=True, after=BEGINNING)
    if slots:
        asked["schedules"] = schedules.due(now)
    if topics:
        asked["message_at"] = messages.next_due(topics)
    if oldest:
        asked["oldest"] = read_op(
            "oldest_kept", {}, lambda rows: Oldest(*(as_time([[(at,)]]) for at in rows[0][0]))
        )
    if worker is not None:
        asked["drain"] = drain_request(worker)
    every = read_together("look", *asked.values())
    return Op(
        "look",
        every.statements,
        lambda rows: WorkFound(**dict(zip(asked, every.result(rows), strict=True))),
    )
