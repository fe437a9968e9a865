"""Gauges that are counted in the journal, and kept for a while.

What is due is read whenever metrics are collected, at most once a second. The rest reads each
unfinished run and each open wait, so it is counted at most every `every` seconds, and never for
more than a hundredth of the time. On D1, which bills the rows that are read, at most 2,000 rows a
second on average. If the journal cannot be read, the gauges of the journal are left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

import perdure
from perdure.errors import Error
from perdure.observe.metric_catalogue import Series
from perdure.observe.observers import Observed
from perdure.operations import journal_counts
from perdure.operations.journal_counts import GraphDue, Rest
from perdure.types import Kind

log = logging.getLogger("perdure")

FRESH = 1.0
"""Seconds for which what is due is not read again."""
SHARE = 100
"""Counting the journal takes at most 1/SHARE of the time."""
BILLED_ROWS = 2_000
"""Rows read per second, at most, from a database that bills them."""


class JournalGauges:
    """The gauges of one journal. `read` may be called from any thread."""

    def __init__(self, engine: Observed, every: float) -> None:
        self._engine, self._every = engine, every
        self._counting = threading.Lock()
        self._due: list[GraphDue] = []
        self._rest: Rest | None = None
        self._due_until = self._rest_until = float("-inf")
        self._took = 0.0

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
                return found | self._of(self._count())
        except Exception as error:  # the other metrics say what is wrong
            reason = error if isinstance(error, Error) else type(error).__qualname__
            log.warning("Metrics of the journal cannot be counted now: %s", reason)
            return found

    def _count(self) -> Rest:
        journal = self._engine.journal
        here, now = time.monotonic(), self._engine.clock.now()
        if here >= self._due_until:
            self._due = journal.read_committed(journal_counts.due(now))
            self._due_until = here + min(FRESH, self._every)
        if self._rest is None or here >= self._rest_until:
            begun = time.monotonic()
            self._rest = journal.read_committed(journal_counts.rest(now))
            self._took = time.monotonic() - begun
            bills_rows = journal.capabilities.bills_rows
            pause = pause_after(self._rest.rows, self._took, self._every, bills_rows=bills_rows)
            self._rest_until = time.monotonic() + pause
        return self._rest

    def _of(self, rest: Rest) -> dict[str, Series]:
        due = self._due
        late: Series = {(one.graph,): one.late_ms / 1000 for one in due}
        questions = {one.kind: one for one in rest.waits}.get(Kind.HUMAN)
        found: dict[str, Series] = {
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
            "perdure_journal_counting_seconds": {(): self._took},
        }
        if rest.database_bytes is not None:
            found["perdure_database_bytes"] = {(): float(rest.database_bytes)}
        return found


def pause_after(rows: int, took: float, every: float, *, bills_rows: bool) -> float:
    """Seconds until the rest is counted again, after a count that read so many rows."""
    if not every:
        return 0.0
    pause = max(every, SHARE * took)
    return max(pause, rows / BILLED_ROWS) if bills_rows else pause


def by_name(counts: Mapping[str, int]) -> Series:
    """A series with one label."""
    return {(name,): float(count) for name, count in counts.items()}
