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
from typing import Any

import perdure
from perdure.errors import Error
from perdure.observe.observed import Observed
from perdure.observe.registry import Description, Family, Gauge
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
    """The gauges of one journal. `collect` may be called from any thread."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._engine: Observed | None = None
        self._counting = threading.Lock()
        self._due: list[GraphDue] = []
        self._rest: Rest | None = None
        self._due_until = self._rest_until = float("-inf")
        self._took = 0.0

    def attach(self, engine: Observed) -> None:
        self._engine = engine

    def collect(self) -> list[Family]:
        """The gauges. None of the journal's before the first use has opened it."""
        families: list[Family] = [_gauge(_INFO, {(perdure.__version__,): 1})]
        engine = self._engine
        if engine is None:
            return families
        failing = engine.failures.failing
        families.append(_gauge(_FAILING, {(duty,): float(n) for duty, n in failing.items()}))
        if not engine.is_open:
            return families
        families.append(_gauge(_QUEUE, {(): engine.journal.queue_depth}))
        with self._counting:
            try:
                rest = self._count(engine)
            except Exception as error:  # the other metrics say what is wrong
                said = error if isinstance(error, Error) else type(error).__qualname__
                log.warning("Metrics of the journal cannot be counted now: %s", said)
                return families
            return [*families, *self._families(rest)]

    def _count(self, engine: Observed) -> Rest:
        journal = engine.journal
        here, now = time.monotonic(), engine.clock.now()
        if here >= self._due_until:
            self._due = journal.read_committed(journal_counts.due(now))
            self._due_until = here + min(FRESH, self._every)
        if self._rest is None or here >= self._rest_until:
            begun = time.monotonic()
            self._rest = journal.read_committed(journal_counts.rest(now))
            self._took = time.monotonic() - begun
            bills_rows = journal.capabilities.bills_rows
            pause = self._pause(self._rest, self._took, bills_rows=bills_rows)
            self._rest_until = time.monotonic() + pause
        return self._rest

    def _pause(self, rest: Rest, took: float, *, bills_rows: bool) -> float:
        """Seconds until the rest is counted again."""
        if not self._every:
            return 0.0
        pause = max(self._every, SHARE * took)
        return max(pause, rest.rows / BILLED_ROWS) if bills_rows else pause

    def _families(self, rest: Rest) -> list[Family]:
        due = self._due
        late = {(one.graph,): one.late_ms / 1000 for one in due}
        questions = {one.kind: one for one in rest.waits}.get(Kind.HUMAN)
        found: list[Family] = [
            _gauge(_RUNS, {key: float(count) for key, count in rest.runs.items()}),
            _gauge(_DUE, {(one.graph,): float(one.runs) for one in due}),
            _gauge(_LAG, {(): max(late.values(), default=0.0)}),
            _gauge(_GRAPH_LAG, late),
            _gauge(_WAITS, {(one.kind,): float(one.waits) for one in rest.waits}),
            _gauge(_QUESTIONS, {(): float(questions.waits if questions else 0)}),
            _gauge(_OLDEST, {(): (questions.age_ms if questions else 0) / 1000}),
            _gauge(_UNKNOWN, {(name,): float(n) for name, n in rest.unknown.items()}),
            _gauge(_OUTBOX, {(): float(rest.messages)}),
            _gauge(_OUTBOX_AGE, {(): rest.message_age_ms / 1000}),
            _gauge(_MISSED, {(graph,): float(n) for graph, n in rest.missed.items()}),
            _gauge(_SCHEDULES, {(graph,): float(n) for graph, n in rest.failing.items()}),
            _gauge(_LOSSES, {(): float(rest.losses)}),
            _gauge(_COUNTING, {(): self._took}),
        ]
        if rest.database_bytes is not None:
            found.append(_gauge(_BYTES, {(): float(rest.database_bytes)}))
        return found


def _gauge(description: Description, series: Mapping[Any, float]) -> Gauge:
    gauge = Gauge(description)
    gauge.replace(dict(series))
    return gauge


_INFO = Description("perdure_info", "1, with the version of perdure.", ("version",))
_FAILING = Description(
    "perdure_worker_failing",
    "What a duty of the workers in this process failed at, and tries again.",
    ("duty",),
)
_QUEUE = Description("perdure_journal_queue_depth", "Operations queued, and not committed yet.")
_RUNS = Description("perdure_runs", "Unfinished runs.", ("graph", "state"))
_DUE = Description("perdure_runs_due", "Runs that are due, and not claimed.", ("graph",))
_LAG = Description("perdure_due_lag_seconds", "How late the first due run is.", (), "s")
_GRAPH_LAG = Description(
    "perdure_graph_due_lag_seconds", "How late the first due run of a graph is.", ("graph",), "s"
)
_WAITS = Description("perdure_waits_open", "Open waits.", ("kind",))
_QUESTIONS = Description("perdure_questions_open", "Questions that wait for a person.")
_OLDEST = Description("perdure_question_oldest_seconds", "Age of the oldest of them.", (), "s")
_UNKNOWN = Description(
    "perdure_effects_unknown",
    "Effects with an unknown outcome, for a person to settle.",
    ("effect",),
)
_OUTBOX = Description("perdure_outbox_messages", "Messages that are not delivered.")
_OUTBOX_AGE = Description("perdure_outbox_oldest_seconds", "Age of the oldest of them.", (), "s")
_MISSED = Description(
    "perdure_schedule_slots_missed", "Times of schedules that started no run.", ("graph",)
)
_SCHEDULES = Description(
    "perdure_schedules_failing", "Schedules that start no runs although they should.", ("graph",)
)
_LOSSES = Description(
    "perdure_lost_changes", "Acknowledged changes that the database lost in the last 30 days.", ()
)
_COUNTING = Description(
    "perdure_journal_counting_seconds", "Time that counting the journal took.", (), "s"
)
_BYTES = Description("perdure_database_bytes", "Size of the journal's database.", (), "By")

DESCRIPTIONS = (
    _INFO,
    _FAILING,
    _QUEUE,
    _RUNS,
    _DUE,
    _LAG,
    _GRAPH_LAG,
    _WAITS,
    _QUESTIONS,
    _OLDEST,
    _UNKNOWN,
    _OUTBOX,
    _OUTBOX_AGE,
    _MISSED,
    _SCHEDULES,
    _LOSSES,
    _COUNTING,
    _BYTES,
)
"""All gauges."""
