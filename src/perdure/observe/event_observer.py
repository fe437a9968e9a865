"""Report to observers the events that a journal has committed.

An event's statement stores it only if its change was made, and some decide its kind in SQL. So
observers get what the statement returned; if its reply was lost, what is found in the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from perdure.commands import runs
from perdure.commands.runs import RunRow
from perdure.journal import Journal, Statement, rows_as
from perdure.journal.acknowledged import Read
from perdure.journal.committer import Committed
from perdure.times import moment
from perdure.types import Observer

log = logging.getLogger("perdure")


class StoredEvent(NamedTuple):
    """The columns of an event that the statement which stores it returns."""

    thread_id: str
    run_id: str
    n: int
    at: int
    kind: str


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
    """The events that each statement stored: kind, run id, thread id, data, time."""
    for one in committed:
        claims = _claims_of(one)
        for row in _read_again(one, read) if one.returned is None else one.returned:
            event = StoredEvent(*row)
            data = {**one.statement.event, **claims.get(event.run_id, {})}
            yield event.kind, event.run_id, event.thread_id, data, moment(event.at)


def _claims_of(committed: Committed) -> dict[str, dict[str, Any]]:
    """What observers get about a claim besides the data of its event, by run. It is in the rows
    that the claim returned."""
    if committed.statement.name != "insert_claim_events" or not committed.rows:
        return {}
    claimed = rows_as(RunRow)(committed.rows[:1])
    return {row.id: {"graph": row.graph, "segment": row.token} for row in claimed}


def _read_again(committed: Committed, read: Read) -> list[Any]:
    """What a statement whose reply was lost would have returned."""
    change = committed.statement.params["change"]
    places = [
        Statement("find_event", {"thread_id": thread_id, "id": run_id, "change": change})
        for thread_id, run_id in _runs_of(committed, read)
    ]
    return [row for rows in read(places) for row in rows] if places else []


def _runs_of(committed: Committed, read: Read) -> list[tuple[str, str]]:
    """The runs that a statement may have stored an event of, as (thread, run)."""
    name, params = committed.statement
    if name == "insert_claim_events":
        claimed = rows_as(RunRow)(committed.rows[:1]) if committed.rows else []
        return [(row.thread_id, row.id) for row in claimed]
    if name == "insert_stop_events" and params["id"] is None:  # the runs of a thread
        page = runs.page(thread_id=params["thread_id"], count=1000)
        return [(row.thread_id, row.id) for row in page.result(read(page.render()))]
    if name == "insert_descendant_events":
        [found] = read([Statement("descendants", params)])
        return [(thread_id, run_id) for thread_id, run_id in found]
    return [(params["thread_id"], params["id"])]
