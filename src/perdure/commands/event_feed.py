"""What happens now: the events of every run, for observers, and what the open pages of a server
poll for, small reads by index, however large the journal.

Each look of a feed reads running runs, those that were running at the last look, and the newest
ones, then the new events of those that changed. A segment of an older run that starts and ends
between two looks is not seen: the history of a run, which is complete, is in its own events.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from perdure.commands import events, runs
from perdure.commands.runs import RunRow
from perdure.journal import Op, Plan, Rows, Statement
from perdure.serde.serializer import Serializer
from perdure.times import milliseconds
from perdure.types import Event, Kind, State

NEWEST = 100
"""How many of the newest runs are followed."""

DRIVEN = 1000
"""How many running ones are."""

REMEMBERED = 10_000
"""Number of runs that a feed remembers, so that the events of a run that rested for long are not
repeated."""

GLANCED = 50
"""Number of newest runs and questions read. More than these in one interval appear when a page is
opened next."""


class EventFeed:
    """The events of a journal from a moment on."""

    def __init__(self, serializer: Serializer, since: datetime) -> None:
        self._serializer, self._since = serializer, since
        self._first = milliseconds(since)
        self._seen: dict[str, int] = {}
        """How many events of each run were read; the last seen run is last."""
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
        new = []
        for row in found.values():
            new += yield from self._new(row)
        for id in [*islice(self._seen, max(0, len(self._seen) - REMEMBERED))]:
            del self._seen[id]
        return new

    def _new(self, row: RunRow) -> Plan[list[tuple[RunRow, Event]]]:
        """The events of a run that are new: its row counts them."""
        is_old = row.id not in self._seen and row.updated_at < self._first
        n = row.events if is_old else self._seen.get(row.id, 0)
        new: list[tuple[RunRow, Event]] = []
        while n < row.events:
            page: list[Event] = yield events.events(
                self._serializer, row.thread_id, row.id, n, 1000
            )
            new += [(row, event) for event in page if event.at >= self._since]
            if not page:  # pruned in the meantime
                break
            n = page[-1].n
        self._seen.pop(row.id, None)
        self._seen[row.id] = n
        return new


# -- what open pages poll for


class Glance(NamedTuple):
    """What one poll saw."""

    versions: dict[str, Any]
    """A version of each followed run that differs once it has changed."""
    runs: dict[str, int]
    """The newest runs, newest first: the id of each, and when it was started."""
    questions: dict[str, int]
    """The newest open questions to people: the id of each, and when it was asked."""
    asking: dict[str, str]
    """The run of each of these questions."""


def glance(run_ids: Collection[str]) -> Op[Glance]:
    """Look at these runs, and at the newest runs and questions."""
    names = ("newest_runs", "newest_questions")
    statements = [Statement(name, {"count": GLANCED}) for name in names]
    if run_ids:
        names_json = json.dumps(sorted(run_ids))
        statements.append(Statement("versions_of_runs", {"names": names_json}))

    def result(rows: Rows) -> Glance:
        runs, questions, *versions = rows
        found = {str(id): change for row in versions for id, change, _ in row}
        return Glance(
            found,
            {str(id): int(at) for id, at in runs},
            {str(id): int(at) for id, at, _ in questions},
            {str(id): str(run_id) for id, _, run_id in questions},
        )

    return Op("glance", statements, result)


def new_ids(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """What the later of two lists of the newest has and the earlier had not, oldest first. One that
    came into a full list because another left it is older than all that it had, and not new."""
    oldest = min(((at, id) for id, at in before.items()), default=(0, ""))
    is_full = len(before) >= GLANCED
    new = [id for id, at in now.items() if id not in before and not (is_full and (at, id) < oldest)]
    return new[::-1]


def count_questions(most: int) -> Op[int]:
    """The number of open questions to people, up to `most`."""
    return Op(
        "count_questions",
        [Statement("count_open_waits", {"kind": Kind.HUMAN.value, "most": most})],
        lambda rows: int(rows[0][0][1]),
    )
