"""Firing schedules: a run for each cron slot that is due. The key of a slot makes it one run."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from perdure.errors import UNREADABLE
from perdure.journal import Plan
from perdure.operations import schedules
from perdure.operations.schedules import ScheduleRow
from perdure.serde.serializer import Serializer
from perdure.service.services import Services

log = logging.getLogger("perdure")


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
        graph = (row.graph, str(setup.pop("version", "")))
        due, following = schedules.due_slots(row, now)
        for slot in due:
            key = schedules.key(row.name, slot)
            yield from services.runs.accept(graph, f"schedule:{key}", setup, "enqueue", key=key)
            started += 1
        yield schedules.move(row, following)
    return started
