"""Tell an observer of the events that a journal has committed.

An event's statement stores it only if its change was made, and some decide its kind in SQL. So what
is told is what is found in the journal after the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from perdure.journal import Journal, Statement
from perdure.journal.commit_listener import Committed, Read
from perdure.operations import runs
from perdure.operations.runs import RunRow
from perdure.operations.stored_rows import every
from perdure.times import moment
from perdure.types import Observer

log = logging.getLogger("perdure")


def observe(journal: Journal, observers: Sequence[Observer]) -> Journal:
    """Have observers called for each event that is committed from now on through this journal."""
    if observers:

        def listener(committed: Sequence[Committed], read: Read) -> None:
            for event in _stored(committed, read):
                for one in observers:
                    try:
                        one.on_event(*event)
                    except Exception:
                        log.exception("The observer failed at the event %r of run %s.", *event[:2])

        journal.listen(listener)
    return journal


def _stored(committed: Sequence[Committed], read: Read) -> Iterator[tuple[Any, ...]]:
    """Of each statement the events it stored: kind, run id, thread id, data, time."""
    places = [
        ({"thread_id": thread_id, "id": run_id, "change": one.statement.params["change"]}, one)
        for one in committed
        for thread_id, run_id in _runs_of(one, read)
    ]
    numbers = read([Statement("find_event", place) for place, _ in places]) if places else []
    made = [
        ({**place, "after": found[0][0] - 1, "count": 1}, one)
        for (place, one), found in zip(places, numbers, strict=True)
        if found
    ]
    rows = read([Statement("events_after", place) for place, _ in made]) if made else []
    for (place, one), found in zip(made, rows, strict=True):
        for _, _, _, at, kind, _, _ in found:
            yield kind, place["id"], place["thread_id"], one.statement.event, moment(at)


def _runs_of(committed: Committed, read: Read) -> list[tuple[str, str]]:
    """The runs that a statement may have stored an event of, as (thread, run)."""
    name, params = committed.statement
    if name == "insert_claim_events":
        claimed = every(RunRow, committed.rows) if committed.rows else []
        return [(row.thread_id, row.id) for row in claimed]
    if name == "insert_takeover_events":
        page = runs.page(thread_id=params["thread_id"], count=1000)
        return [(row.thread_id, row.id) for row in page.result(read(page.render()))]
    if name == "insert_descendant_events":
        [found] = read([Statement("descendants", params)])
        return [(thread_id, run_id) for thread_id, run_id in found]
    return [(params["thread_id"], params["id"])]
