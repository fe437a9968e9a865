"""Plans about schedules: store, list and delete them. `engine/schedule_firing.py` fires them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from perdure.errors import NotFound
from perdure.journal import Plan
from perdure.journal.clock import Clock
from perdure.operations import schedules
from perdure.operations.run_payload import redacted_setup
from perdure.operations.schedules import ScheduleRow
from perdure.serde.serializer import Serializer
from perdure.types import Schedule


class ScheduleService:
    """Plans about the schedules of a journal."""

    def __init__(self, serializer: Serializer, clock: Clock) -> None:
        self._serializer, self._clock = serializer, clock

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
        late = schedules.lateness(catch_up)
        row = ScheduleRow(name, graph[0], cron, timezone, late, next_at, b"")
        redacted = redacted_setup(self._serializer, setup)
        body = self._serializer.dumps(redacted, row.place, "schedule", own=True)
        yield schedules.put(row._replace(body=body))
        found = yield from self.all()
        return next(one for one in found if one.name == name)

    def all(self) -> Plan[list[Schedule]]:
        """Every schedule, by name."""
        rows: list[ScheduleRow] = yield schedules.every()
        return [row.to_schedule(self._serializer) for row in rows]

    def delete(self, name: str) -> Plan[None]:
        """Delete a schedule. Raises `NotFound`."""
        if name not in {one.name for one in (yield from self.all())}:
            raise NotFound("schedule", name)
        yield schedules.delete(name)
