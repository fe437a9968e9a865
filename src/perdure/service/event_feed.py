"""The events of every run as they happen, read from the journal.

Each look reads running runs, those that were running at the last look, and the newest ones, then
the new events of those that changed. A segment of an older run that starts and ends between two
looks is not seen: the history of a run, which is complete, is in its own events.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from perdure.journal import Plan
from perdure.operations import events, runs
from perdure.operations.runs import RunRow
from perdure.serde.serializer import Serializer
from perdure.times import milliseconds
from perdure.types import Event, State

NEWEST = 100
"""How many of the newest runs are followed."""
DRIVEN = 1000
"""How many running ones are."""


class _Seen(NamedTuple):
    """How far the events of a run were read."""

    updated_at: int
    n: int
    settled: bool
    """Whether two looks agreed; a second event may share the millisecond."""


class EventFeed:
    """The events of a journal from a moment on."""

    def __init__(self, serializer: Serializer, since: datetime) -> None:
        self._serializer, self._since = serializer, since
        self._first = milliseconds(since)
        self._seen: dict[str, _Seen] = {}
        self._driven: set[str] = set()

    def look(self) -> Plan[list[tuple[RunRow, Event]]]:
        """What is new, run by run."""
        driven: list[RunRow] = yield runs.page(states=[State.RUNNING.value], count=DRIVEN)
        newest: list[RunRow] = yield runs.page(count=NEWEST)
        found = {row.id: row for row in reversed([*driven, *newest])}
        if rested := self._driven - found.keys():
            others: list[RunRow] = yield runs.find_all(rested)  # what is pruned is not among them
            found |= {row.id: row for row in others}
        self._driven = {row.id for row in driven}
        self._seen = {id: seen for id, seen in self._seen.items() if id in found}
        new = []
        for row in found.values():
            new += yield from self._new(row)
        return new

    def _new(self, row: RunRow) -> Plan[list[tuple[RunRow, Event]]]:
        changed, n, settled = self._seen.get(row.id, _Seen(self._first, 0, False))
        unchanged = row.updated_at == changed
        if row.updated_at < changed or (unchanged and settled):
            return []
        new: list[tuple[RunRow, Event]] = []
        while True:
            page: list[Event] = yield events.events(
                self._serializer, row.thread_id, row.id, n, 1000
            )
            new += [(row, event) for event in page if event.at >= self._since]
            n = page[-1].n if page else n
            if len(page) < 1000:
                break
        self._seen[row.id] = _Seen(row.updated_at, n, unchanged)
        return new
