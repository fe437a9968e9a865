"""What a worker looks for, in one read: what is due, what will be soon, and who drives.

Pure, no I/O. It reads only what is due and what is driven, however many runs sleep.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from perdure.commands import claims, messages, schedules, workers
from perdure.commands.claims import LeaseTimes, WorkerLeases
from perdure.commands.schedules import ScheduleRow
from perdure.commands.workers import DrainRequest
from perdure.journal import Op, Rows, Statement, as_time, read_op

BEGINNING = -1
"""Before every time."""


class Oldest(NamedTuple):
    """What may be kept no longer."""

    expires_at: int | None
    """When the first thread is to be erased."""
    streamed_at: int | None
    """When the first run was accepted whose chunks are kept."""


class Found(NamedTuple):
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
) -> Op[Found]:
    """Look for runs of these graphs that are due, or will be by `until`; for suspects, slots of
    schedules, the oldest of what is to be deleted, and whether this worker is to drain, if asked
    to; and for messages of these topics."""
    names, now = json.dumps(sorted(graphs)), times.now

    def claimable(after: int, before: int, suspect: int) -> Statement:
        params = {**times.params, "names": names, "suspect": suspect}
        return Statement("claimable", params | {"after": after, "before": before, "count": 1})

    asked: dict[str, Op[Any]] = {
        "workers": claims.workers(),
        "first_at": claims.next_due(),
        "due_at": _time(claimable(BEGINNING, now, 0)),
        "soon_at": _time(claimable(now, until, 0)),
    }
    if suspects:
        asked["suspect_at"] = _time(claimable(BEGINNING, now, 1))
    if slots:
        asked["schedules"] = schedules.due(now)
    if topics:
        asked["message_at"] = messages.next_due(topics)
    if oldest:
        asked["oldest"] = read_op(
            "oldest_kept", {}, lambda rows: Oldest(*(as_time([[(at,)]]) for at in rows[0][0]))
        )
    if worker is not None:
        asked["drain"] = workers.drain_request(worker)

    def found(rows: Rows) -> Found:
        each = zip(asked.items(), rows, strict=True)
        return Found(**{name: op.result([own]) for (name, op), own in each})

    return Op("look", [statement for op in asked.values() for statement in op.render()], found)


def _time(statement: Statement) -> Op[int | None]:
    return Op(statement.name, [statement], as_time)
