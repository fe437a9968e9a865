"""Gauges that are counted in the journal, and kept for a while.

A count reads each unfinished run and each open wait, so it is made at most every `every` seconds,
and never for more than a hundredth of the time. On D1, which bills the rows that are read, at most
2,000 rows a second on average. If the journal cannot be read, its gauges are left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

import perdure
from perdure.commands import counts
from perdure.errors import Error
from perdure.observe.metric_catalogue import Series
from perdure.observe.observers import Observed
from perdure.types import Kind

log = logging.getLogger("perdure")

SHARE = 100  # counting the journal takes at most 1/SHARE of the time
BILLED_ROWS = 2_000  # rows read per second, at most, from a database that bills them


class JournalGauges:
    """The gauges of one journal. `read` may be called from any thread."""

    def __init__(self, engine: Observed, every: float) -> None:
        self._engine, self._every = engine, every
        self._counting = threading.Lock()
        self._counted: dict[str, Series] = {}
        self._fresh_until = float("-inf")

    def read(self) -> dict[str, Series]:
        """The gauges by name. None of the journal's before the first use has opened it."""
        engine = self._engine
        found: dict[str, Series] = {
            "perdure_info": {(perdure.__version__,): 1},
            "perdure_worker_failing": by_name(engine.failures.failing),
        }
        if not engine.is_open:
            return found
        found["perdure_journal_queue_depth"] = {(): engine.journal.queue_depth}
        try:
            with self._counting:
                if time.monotonic() >= self._fresh_until:
                    self._count()
                return found | self._counted
        except Exception as error:  # the other metrics say what is wrong
            reason = error if isinstance(error, Error) else type(error).__qualname__
            log.warning("Metrics of the journal cannot be counted now: %s", reason)
            return found

    def _count(self) -> None:
        journal, now, begun = self._engine.journal, self._engine.clock.now(), time.monotonic()
        due = journal.read_committed(counts.due(now))
        rest = journal.read_committed(counts.rest(now))
        took = time.monotonic() - begun
        bills_rows = journal.capabilities.bills_rows
        pause = pause_after(rest.rows, took, self._every, bills_rows=bills_rows)
        self._fresh_until = time.monotonic() + pause
        late: Series = {(one.graph,): one.late_ms / 1000 for one in due}
        questions = {one.kind: one for one in rest.waits}.get(Kind.HUMAN)
        self._counted = {
            "perdure_runs": {key: float(count) for key, count in rest.runs.items()},
            "perdure_runs_due": {(one.graph,): float(one.runs) for one in due},
            "perdure_due_lag_seconds": {(): max(late.values(), default=0.0)},
            "perdure_graph_due_lag_seconds": late,
            "perdure_waits_open": {(one.kind,): float(one.waits) for one in rest.waits},
            "perdure_questions_open": {(): float(questions.waits if questions else 0)},
            "perdure_question_oldest_seconds": {(): (questions.age_ms if questions else 0) / 1000},
            "perdure_effects_unknown": by_name(rest.unknown),
            "perdure_outbox_messages": {(): float(rest.messages)},
            "perdure_outbox_oldest_seconds": {(): rest.message_age_ms / 1000},
            "perdure_schedule_slots_missed": by_name(rest.missed),
            "perdure_schedules_failing": by_name(rest.failing),
            "perdure_lost_changes": {(): float(rest.losses)},
            "perdure_journal_counting_seconds": {(): took},
        }
        if rest.database_bytes is not None:
            self._counted["perdure_database_bytes"] = {(): float(rest.database_bytes)}


def pause_after(rows: int, took: float, every: float, *, bills_rows: bool) -> float:
    """Seconds until the rest is counted again, after a count that read so many rows."""
    if not every:
        return 0.0
    pause = max(every, SHARE * took)
    return max(pause, rows / BILLED_ROWS) if bills_rows else pause


def by_name(counts: Mapping[str, int]) -> Series:
    """A series with one label."""
    return {(name,): float(count) for name, count in counts.items()}
