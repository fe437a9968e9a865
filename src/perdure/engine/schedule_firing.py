"""Firing schedules: a run for each cron slot that is due. The key of a slot makes it one run.

A schedule that was made over HTTP has more to say about its runs, in the part `cron` of its setup:

    thread_id          the thread of its runs; without, each has one of its own
    strategy           what happens if a run of that thread is under way
    assistant_id       whose runs they are
    keep               whether the threads of their own are kept
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NoReturn

from perdure.errors import UNREADABLE, BadArgument, NotFound, ThreadBusy
from perdure.journal import Plan
from perdure.operations import schedules, threads
from perdure.operations.runs import Beside, RunRow
from perdure.operations.schedules import CRON, ScheduleRow
from perdure.operations.threads import ThreadContent
from perdure.serde.serializer import Serializer
from perdure.service.services import Services

log = logging.getLogger("perdure")

KEPT_FOR = 1.0
"""Minutes from its start after which the thread of a cron's run is erased, once it has ended."""


def fire_schedules(
    services: Services,
    serializer: Serializer,
    graphs: Collection[str],
    found: Iterable[ScheduleRow],
) -> Plan[int]:
    """Start a run for each due slot of these schedules, if their graphs are among `graphs`. Returns
    how many were started."""
    now, started = services.clock.now(), 0
    for row in found:
        if row.graph not in graphs:
            continue  # another application's, with other types and keys
        try:
            setup = row.load(serializer)
        except UNREADABLE as error:
            log.warning("the schedule %r cannot be read, so it starts no run: %s", row.name, error)
            continue
        due, following = schedules.due_slots(row, now)
        for slot in due:
            try:
                yield from _start(services, serializer, row, setup, schedules.key(row.name, slot))
                started += 1
            except (BadArgument, NotFound, ThreadBusy) as error:
                log.warning("the schedule %r starts no run: %s", row.name, error)
        yield schedules.move(row, following)
    return started


def fire_now(
    services: Services, serializer: Serializer, name: str, nonce: str, by: str | None
) -> Plan[RunRow]:
    """Start an extra run of a schedule, as a slot would. The same `nonce` finds the run it started.
    `by` is in the run's metadata. Raises `NotFound`."""
    row = yield from services.schedules.find(name)
    if row is None:
        raise NotFound("schedule", name)
    setup = row.load(serializer)
    started = {"schedule": name, "started_by": str(by)} if by else {"schedule": name}
    setup = {**setup, "metadata": {**(setup.get("metadata") or {}), **started}}
    return (yield from _start(services, serializer, row, setup, f"{name}@{nonce}"))


def _start(
    services: Services,
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
        return (yield from services.runs.accept(graph, f"schedule:{key}", own, "enqueue", key=key))
    now, thread_id = services.clock.now(), cron["thread_id"]
    owner: Any = {"graph": row.graph, "assistant": cron["assistant_id"]}
    if thread_id is None:
        thread_id = str(uuid.uuid5(uuid.NAMESPACE_OID, key))
        content = ThreadContent(cron.get("metadata") or {}, ttl=None if cron["keep"] else KEPT_FOR)
        record = threads.ensure(serializer, thread_id, content, now, **owner)
    else:
        record = threads.require(thread_id, now, **owner)

    def refuse() -> NoReturn:
        raise NotFound("thread", thread_id)

    strategy = cron["strategy"]
    return (
        yield from services.runs.accept(
            graph,
            thread_id,
            own,
            strategy,
            key=key,
            only="asking" if strategy in ("enqueue", "reject") else None,
            beside=Beside(record, refuse),
        )
    )
