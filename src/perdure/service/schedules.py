"""Plans about schedules: store them, and start the runs of their due slots."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import timedelta
from typing import Any

from perdure.errors import NotFound
from perdure.journal import Plan
from perdure.journal.clock import Clock
from perdure.operations import schedules
from perdure.operations.run_payload import UNREADABLE
from perdure.operations.schedules import ScheduleRow
from perdure.serde.serializer import Serializer, where_schedule
from perdure.service.runs import RunService
from perdure.types import Schedule

log = logging.getLogger("perdure")


class ScheduleService:
    """Plans about the schedules of a journal."""

    def __init__(self, serializer: Serializer, clock: Clock, runs: RunService) -> None:
        self._serializer, self._clock, self._runs = serializer, clock, runs

    def put(
        self,
        graph: tuple[str, str],
        setup: dict[str, Any],
        *,
        name: str,
        cron: str,
        timezone: str,
        catch_up: bool | timedelta,
    ) -> Plan[Schedule]:
        """Store a schedule of a graph, given as (name, version)."""
        setup = {**setup, "version": graph[1]}
        next_at = schedules.next_slot(cron, timezone, self._clock.now())
        body = self._serializer.dumps(setup, where_schedule(name), "schedule")
        late = schedules.lateness(catch_up)
        yield schedules.put(ScheduleRow(name, graph[0], cron, timezone, late, next_at, body))
        found = yield from self.all()
        return next(one for one in found if one.name == name)

    def all(self) -> Plan[list[Schedule]]:
        """Every schedule, by name."""
        rows: list[ScheduleRow] = yield schedules.every()
        return [row.to_schedule() for row in rows]

    def delete(self, name: str) -> Plan[None]:
        """Delete a schedule. Raises `NotFound`."""
        if name not in {one.name for one in (yield from self.all())}:
            raise NotFound("schedule", name)
        yield schedules.delete(name)

    def fire(self, graphs: Collection[str]) -> Plan[int]:
        """Start a run for each due slot of these graphs. Returns how many were started."""
        now, started = self._clock.now(), 0
        for row in (yield schedules.due(now)):
            if row.graph not in graphs:
                continue  # another application's, with other types and keys
            try:
                setup = self._serializer.loads(row.body, where_schedule(row.name))
            except UNREADABLE as error:
                log.warning(
                    "the schedule %r cannot be read, so it starts no run: %s", row.name, error
                )
                continue
            graph = (row.graph, setup.pop("version"))
            due, following = schedules.due_slots(row, now)
            for slot in due:
                key = schedules.key(row.name, slot)
                yield from self._runs.accept(graph, f"schedule:{key}", setup, "enqueue", key=key)
                started += 1
            yield schedules.move(row, following)
        return started
