"""Plans about schedules: store, list and delete them. `execution/schedules.py` fires them."""

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
        row = yield from self.store(
            graph, setup, name=name, cron=cron, timezone=timezone, catch_up=catch_up
        )
        return row.to_schedule(self._serializer, self._clock.now())

    def store(
        self,
        graph: tuple[str, str],
        setup: dict[str, Any],
        *,
        name: str,
        cron: str,
        timezone: str,
        catch_up: bool | timedelta = False,
        enabled: bool | None = None,
        end_at: int | None = None,
        thread_id: str | None = None,
    ) -> Plan[ScheduleRow]:
        """The same, as it is stored. One that is not `enabled` starts nothing; None leaves that as
        it is, so that an application that stores its schedules when it starts enables none that a
        person disabled. After `end_at`, in milliseconds, none starts anything. With a `thread_id`
        it is deleted when that thread is erased."""
        setup, now = {**setup, "version": graph[1]}, self._clock.now()
        next_at = schedules.next_slot(cron, timezone, now)
        late = schedules.lateness(catch_up)
        at = (end_at, now, now, thread_id)
        row = ScheduleRow(name, graph[0], cron, timezone, late, next_at, b"", 1, *at)
        redacted = redacted_setup(self._serializer, setup)
        body = self._serializer.dumps(redacted, row.place, "schedule", own=True)
        yield schedules.put(row._replace(body=body), enabled)
        stored: ScheduleRow | None = yield schedules.find(name)
        return stored or row

    def rows(self) -> Plan[list[ScheduleRow]]:
        """Every schedule, by name, as it is stored."""
        found: list[ScheduleRow] = yield schedules.every()
        return found

    def find(self, name: str) -> Plan[ScheduleRow | None]:
        """A schedule as it is stored, or None."""
        found: ScheduleRow | None = yield schedules.find(name)
        return found

    def all(self) -> Plan[list[Schedule]]:
        """Every schedule, by name."""
        rows: list[ScheduleRow] = yield schedules.every()
        return [row.to_schedule(self._serializer, self._clock.now()) for row in rows]

    def page(self, after: str, count: int) -> Plan[list[ScheduleRow]]:
        """The schedules after a name, by name, as stored."""
        found: list[ScheduleRow] = yield schedules.page(after, count)
        return found

    def enable(self, name: str, enabled: bool) -> Plan[Schedule]:
        """Enable a schedule from its next slot on, or disable it. Raises `NotFound`."""
        row = yield from self.find(name)
        while row is not None:
            yield schedules.enable(row, enabled, self._clock.now())
            before, row = row, (yield from self.find(name))
            if row is None or (row.cron, row.timezone) == (before.cron, before.timezone):
                return (row or before).to_schedule(self._serializer, self._clock.now())
        raise NotFound("schedule", name)

    def delete(self, name: str) -> Plan[None]:
        """Delete a schedule. Raises `NotFound`."""
        if name not in {one.name for one in (yield from self.all())}:
            raise NotFound("schedule", name)
        yield schedules.delete(name)
