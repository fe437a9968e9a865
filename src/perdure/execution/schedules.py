"""Firing schedules: a run for each cron slot that is due. The key of a slot makes it one run.

A schedule that was made over HTTP has more to say about its runs, in the part `cron` of its setup:

    thread_id          the thread of its runs; without, each has one of its own
    strategy           what happens if a run of that thread is under way
    assistant_id       whose runs they are
    keep               whether the threads of their own are kept
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from perdure.commands import schedules, starting, threads
from perdure.commands.connection import Connection
from perdure.commands.runs import RunRow
from perdure.commands.schedules import CRON, ScheduleRow
from perdure.commands.starting import Beside
from perdure.commands.threads import ThreadContent
from perdure.errors import BadArgument, Closed, Error, NotFound, ThreadBusy, Unavailable, WriteLost
from perdure.failures import Failures
from perdure.journal import Plan
from perdure.serde.serializer import Serializer

log = logging.getLogger("perdure")

DUTY = "Firing schedules"
PIECE = 1.0
"""Seconds for which a worker fires schedules before it goes on with its other duties."""
KEPT_FOR = 1.0
"""Minutes from its start after which the thread of a cron's run is erased, once it has ended."""


class ThreadGone(NotFound):
    """The thread of a cron was erased."""


def fire_schedules(
    on: Connection,
    serializer: Serializer,
    graphs: Collection[str],
    found: Sequence[ScheduleRow],
    failures: Failures,
) -> Plan[int]:
    """Start a run for each due slot of these schedules, if their graphs are among `graphs`. Returns
    how many were started. What one of them raises keeps no other back: it is stored in its row, and
    its slot stays due."""
    now, started, until = on.clock.now(), 0, time.monotonic() + PIECE
    failures.keep_only(DUTY, {row.name for row in found})
    for row in found:
        if row.graph not in graphs:  # another application's, with other types and keys
            if row.is_overdue(now) and failures.is_news(f"schedule {row.name}"):
                log.warning("the schedule %r starts no run: %s", row.name, schedules.unstarted(row))
        elif time.monotonic() > until:
            break  # they are still due, and first in the next look: claims go on meanwhile
        elif not failures.is_resting(DUTY, row.name):
            with failures.guard(DUTY, row.name):
                started += yield from _fire_or_explain(on, serializer, row)
    return started


def _fire_or_explain(on: Connection, serializer: Serializer, row: ScheduleRow) -> Plan[int]:
    """Fire a schedule. What it raises is stored in its row first."""
    try:
        return (yield from _fire(on, serializer, row))
    except (Closed, Unavailable, WriteLost):
        raise
    except Exception as error:
        said = str(error) if isinstance(error, Error) else type(error).__qualname__
        problem = serializer.redacted_text(said)
        if problem != row.problem:
            yield schedules.move(row, row.next_at, on.clock.now(), problem=problem)
        raise


def _fire(on: Connection, serializer: Serializer, row: ScheduleRow) -> Plan[int]:
    """Start a run for each due slot of one schedule."""
    setup, started, problem, now = row.load(serializer), 0, None, on.clock.now()
    due, following, missed = schedules.due_slots(row, now)
    if missed:
        problem = (
            f"{missed} slots from {schedules.key_time(row.next_at)} on were skipped, because they "
            "were too late: no worker with its graph was running, or catch_up= is too short."
        )
        log.warning("the schedule %r: %s", row.name, problem)
    for slot in due:
        try:
            yield from _start(on, serializer, row, setup, schedules.key(row.name, slot))
            started, problem = started + 1, None
        except ThreadGone as error:  # erased while this cron was made, or by an older version
            log.warning("the cron %r is deleted: %s", row.name, error)
            yield schedules.delete_row(row.name)
            return started
        except (BadArgument, NotFound, ThreadBusy) as error:
            log.warning("the schedule %r starts no run: %s", row.name, error)
            missed, problem = missed + 1, serializer.redacted_text(str(error))
    yield schedules.move(row, following, now, missed=missed, problem=problem)
    return started


def fire_now(
    on: Connection, serializer: Serializer, name: str, nonce: str, by: str | None
) -> Plan[RunRow]:
    """Start an extra run of a schedule, as a slot would. The same `nonce` finds the run it started.
    `by` is in the run's metadata. Raises `NotFound`."""
    row: ScheduleRow | None = yield schedules.find(name)
    if row is None:
        raise NotFound("schedule", name)
    setup = row.load(serializer)
    started = {"schedule": name, "started_by": str(by)} if by else {"schedule": name}
    setup = {**setup, "metadata": {**(setup.get("metadata") or {}), **started}}
    return (yield from _start(on, serializer, row, setup, f"{name}@{nonce}"))


def _start(
    on: Connection,
    serializer: Serializer,
    row: ScheduleRow,
    setup: Mapping[str, Any],
    key: str,
) -> Plan[RunRow]:
    """Start the run of a key, or find it."""
    graph = (row.graph, str(setup.get("version", "")))
    own = {name: value for name, value in setup.items() if name not in ("version", CRON)}
    cron: Mapping[str, Any] | None = setup.get(CRON)
    if cron is None:
        return (yield from starting.accept(on, graph, f"schedule:{key}", own, "enqueue", key=key))
    now, thread_id = on.clock.now(), cron["thread_id"]
    owner: Any = {"graph": row.graph, "assistant": cron["assistant_id"]}
    if thread_id is None:
        thread_id = str(uuid.uuid5(uuid.NAMESPACE_OID, key))
        content = ThreadContent(cron.get("metadata") or {}, ttl=None if cron["keep"] else KEPT_FOR)
        record = threads.ensure(serializer, thread_id, content, now, **owner)
    else:
        record = threads.require(thread_id, now, **owner)

    def refuse() -> NoReturn:
        raise ThreadGone("thread", thread_id)

    strategy = cron["strategy"]
    return (
        yield from starting.accept(
            on,
            graph,
            thread_id,
            own,
            strategy,
            key=key,
            only="asking" if strategy in ("enqueue", "reject") else None,
            beside=Beside(record, refuse),
        )
    )
