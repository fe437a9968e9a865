"""What perdure measures: `Runtime(observe=Metrics())`.

Two sources. *Of this process*: events after their commit (`on_event`, in the observer's thread) and
commits of the journal (`on_commit`, in the thread that commits). Both only add to plain numbers, a
few microseconds per step, and are lost with the process, as Prometheus expects. *Of the journal*:
counted when metrics are collected, and kept for a while (`JournalGauges`).

Labels are names that code gives: of graphs, effects, states and kinds. Never an id, never content.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from perdure.errors import Error, needs_extra
from perdure.journal import read_op
from perdure.journal.committer import QueuedOperation
from perdure.observe.journal_gauges import JournalGauges
from perdure.observe.observed import Observed, check_is_new
from perdure.observe.registry import (
    LONG_SECONDS,
    SECONDS,
    SIZES,
    Counter,
    Description,
    Family,
    Histogram,
)
from perdure.operations.runs import RunRow
from perdure.types import EffectState, EventKind, State

log = logging.getLogger("perdure")

MOST_RUNS = 10_000
"""Runs whose graph and last step are remembered: those that moved last."""
UNKNOWN_GRAPH = "unknown"
"""The label of a run that another process started, and that was not driven here."""
OUTCOMES = frozenset({EffectState.DONE, EffectState.FAILED, EffectState.UNKNOWN})


class _Driven:
    """A run that this process started or drives: its graph, and when it last moved."""

    __slots__ = ("claim", "graph", "moved_at")

    def __init__(self, graph: str) -> None:
        self.graph = graph
        self.moved_at: datetime | None = None
        self.claim: tuple[str, int] | None = None
        """Of a recovered run: its thread, and the number of the event of this claim."""


class Metrics:
    """Observer that counts what happens in this process and in the journal.

    For Prometheus and OTLP. `rt.asgi()` serves it at `/metrics`.

        runtime = Runtime(observe=Metrics())

    Args:
        count_every: How long a count of the journal is kept. Counting takes at most 1 % of the
            time, so a slow count is kept longer. `timedelta(0)` counts at each scrape.
        listen: Serve `/metrics` at this port, or `host:port`, for a process without a web server.
            Without a host, on this machine only.
        otlp: Export over OTLP, as configured by the `OTEL_*` variables. Needs the extra `otel`.
    """

    def __init__(
        self,
        *,
        count_every: timedelta = timedelta(seconds=15),
        listen: str | None = None,
        otlp: bool = False,
    ) -> None:
        self._engine: Observed | None = None
        self._listen, self._otlp = listen, otlp
        self._gauges = JournalGauges(count_every.total_seconds())
        self._closers: list[Callable[[], None]] = []
        self.port: int | None = None
        """The port at which it listens, if it does."""
        self._runs: dict[str, _Driven] = {}
        self._families: list[Family] = []

        def counter(*description: Any) -> Counter:
            made = Counter(Description(*description))
            self._families.append(made)
            return made

        def histogram(*description: Any, bounds: Sequence[float] = SECONDS) -> Histogram:
            made = Histogram(Description(*description), bounds)
            self._families.append(made)
            return made

        self._events = counter("perdure_events_total", "Events stored by this process.", ("kind",))
        self._started = counter("perdure_runs_started_total", "Runs accepted.", ("graph",))
        self._ended = counter("perdure_runs_ended_total", "Runs that ended.", ("graph", "state"))
        self._claims = counter("perdure_claims_total", "Segments begun.", ("graph",))
        self._claim_latency = histogram(
            "perdure_claim_latency_seconds",
            "How late a worker claimed: of each claim, the run that was due first.",
            (),
            "s",
        )
        self._steps = histogram(
            "perdure_step_seconds", "Time of a step, from the one before.", ("graph",), "s"
        )
        self._run_retries = counter(
            "perdure_run_retries_total", "Segments that raised and are tried again.", ("graph",)
        )
        self._takeovers = counter(
            "perdure_takeovers_total", "Runs taken from a worker that died.", ("graph",)
        )
        self._recovery = histogram(
            "perdure_recovery_seconds",
            "From the last event of a worker that died to the claim that recovered the run.",
            ("graph",),
            "s",
            bounds=LONG_SECONDS,
        )
        self._effects = counter(
            "perdure_effects_total", "Outcomes of effects.", ("effect", "state")
        )
        self._effect_retries = counter(
            "perdure_effect_retries_total", "Calls of effects to be made again.", ("effect",)
        )
        self._saved = {
            what: counter(
                f"perdure_saved_{what}_total", f"{title} returned from the record.", ("graph",)
            )
            for what, title in (
                ("effects", "Effects"),
                ("model_calls", "Model calls"),
                ("tokens", "Tokens of model calls"),
            )
        }
        self._failures = counter(
            "perdure_worker_failures_total", "Failures of workers, by what they did.", ("duty",)
        )
        self._lag = histogram(
            "perdure_event_loop_lag_seconds", "How late the event loop of a worker is.", (), "s"
        ).series[()]
        self._commit_seconds = histogram(
            "perdure_journal_commit_seconds", "Time of one commit of the journal.", (), "s"
        ).series[()]
        self._batch = histogram(
            "perdure_journal_batch_operations", "Operations in one commit.", (), "1", bounds=SIZES
        ).series[()]
        self._by_operation: dict[str, Callable[[QueuedOperation[Any]], None]] = {
            "claim": self._claimed,
            "claim_run": self._claimed,
        }
        self._by_kind: dict[str, Callable[[str, Mapping[str, Any], datetime], None]] = {
            EventKind.STARTED: self._on_started,
            EventKind.CLAIMED: self._on_claimed,
            EventKind.RECOVERED: self._on_recovered,
            EventKind.STEP: self._on_step,
            EventKind.EFFECT: self._on_effect,
            EventKind.FAILED: self._on_failed,
            EventKind.DONE: self._on_end(State.DONE),
            EventKind.CANCELLED: self._on_end(State.CANCELLED),
        }

    # -- as an observer

    def attach(self, engine: Observed) -> None:
        """Measure an engine."""
        check_is_new(self, self._engine)
        self._engine = engine
        self._gauges.attach(engine)
        self.reopen()

    def reopen(self) -> None:
        """Start to listen and to export, if configured. Called again after `close`."""
        if self._listen is not None:
            self.serve(self._listen)
        if self._otlp:
            try:
                from perdure.observe.otlp_metrics import OTLPExport
            except ImportError as error:
                raise Error(needs_extra("Metrics(otlp=True)", "otel")) from error
            self._closers.append(OTLPExport(self).close)

    def serve(self, listen: str) -> str:
        """Serve `/metrics` until `close`.

        Args:
            listen: A port, or `host:port`. Without a host, on this machine only.

        Returns:
            The address.

        Raises:
            BadArgument: The port is invalid or taken.
        """
        from perdure.observe.metrics_server import MetricsServer

        server = MetricsServer(self, listen)
        self.port = server.port
        self._closers.append(server.close)
        return server.address

    def close(self) -> None:
        """Export the last numbers, and stop. Closing the runtime does it too."""
        if self._engine is not None and self._engine.is_open:
            with contextlib.suppress(Error):
                self._engine.journal.drain()  # so that the last events are counted
        while self._closers:
            self._closers.pop()()

    def collect(self) -> list[Family]:
        """Every metric as it is now. Reads the journal, unless it was counted just now."""
        if self._engine is not None:
            totals = self._engine.failures.totals.copy()
            self._failures.series = {(duty,): float(count) for duty, count in totals.items()}
        return [*self._families, *self._gauges.collect()]

    def on_lag(self, seconds: float) -> None:
        """Measure the event loop of a worker, which calls it.

        Args:
            seconds: How late the loop is.
        """
        self._lag.observe(max(0.0, seconds))

    # -- commits: in the thread that commits

    def on_commit(self, batch: Sequence[QueuedOperation[Any]], seconds: float) -> None:
        """Measure a commit. The journal calls it after each.

        Args:
            batch: The operations that were committed together.
            seconds: How long the commit took.
        """
        self._commit_seconds.observe(seconds)
        self._batch.observe(len(batch))
        for queued in batch:
            look = self._by_operation.get(queued.op.name)
            if look is not None and queued.error is None:
                try:
                    look(queued)
                except Exception:
                    log.exception("Measuring %r failed.", queued.op.name)

    def _claimed(self, queued: QueuedOperation[Any]) -> None:
        rows: list[RunRow] = queued.value or []
        if isinstance(queued.value, RunRow):
            rows = [queued.value]
        for row in rows:
            driven = _Driven(row.graph)
            if row.was == State.RUNNING:
                driven.claim = (row.thread_id, row.events)
            self._remember(row.id, driven)
            self._claims.add((row.graph,))
        params = queued.op.render()[0].params
        if rows and params.get("since") is not None:
            self._claim_latency.observe((), max(0, params["now"] - params["since"]) / 1000)

    # -- events: in the observer's thread

    def on_event(
        self, kind: str, run_id: str, thread_id: str, data: Mapping[str, Any], at: datetime
    ) -> None:
        """Count one event. The parameters are those of `Observer.on_event`."""
        self._events.add((kind,))
        if saved := data.get("saved"):
            for what, counted in self._saved.items():
                if saved.get(what):
                    counted.add((self._graph(run_id),), saved[what])
        count = self._by_kind.get(kind)
        if count is not None:
            count(run_id, data, at)

    def _on_started(self, run_id: str, data: Mapping[str, Any], at: datetime) -> None:
        self._started.add((data["graph"],))
        if run_id not in self._runs:
            self._remember(run_id, _Driven(data["graph"]))

    def _on_claimed(self, run_id: str, data: Mapping[str, Any], at: datetime) -> None:
        if (driven := self._runs.get(run_id)) is not None:
            driven.moved_at = at

    def _on_recovered(self, run_id: str, data: Mapping[str, Any], at: datetime) -> None:
        self._on_claimed(run_id, data, at)
        driven = self._runs.get(run_id)
        self._takeovers.add((self._graph(run_id),))
        if driven is not None and driven.claim is not None and self._engine is not None:
            (thread_id, n), driven.claim = driven.claim, None
            params = {"thread_id": thread_id, "id": run_id, "after": n - 2, "count": 1}
            before = self._engine.journal.read_committed(
                read_op("events_after", params, lambda rows: rows[0])
            )
            if before:
                lost = at.timestamp() - before[0][3] / 1000
                self._recovery.observe((driven.graph,), max(0.0, lost))

    def _on_step(self, run_id: str, data: Mapping[str, Any], at: datetime) -> None:
        driven = self._runs.get(run_id)
        if driven is None or "ns" in data:  # the step of a subgraph is part of another
            return
        if driven.moved_at is not None and "nodes" in data:  # not the one that stores the input
            self._steps.observe((driven.graph,), (at - driven.moved_at).total_seconds())
        driven.moved_at = at
        self._remember(run_id, driven)  # as the last that moved

    def _on_effect(self, run_id: str, data: Mapping[str, Any], at: datetime) -> None:
        state = data["state"]
        if state in OUTCOMES:
            if not str(data.get("how", "")).startswith("in run"):  # it is that run's outcome
                self._effects.add((data["name"], state))
        else:
            self._effect_retries.add((data["name"],))

    def _on_failed(self, run_id: str, data: Mapping[str, Any], at: datetime) -> None:
        labels = (self._graph(run_id),)
        if "retry_at" in data:
            self._run_retries.add(labels)
        else:
            self._ended.add((*labels, State.FAILED.value))

    def _on_end(self, state: State) -> Callable[[str, Mapping[str, Any], datetime], None]:
        def on_end(run_id: str, data: Mapping[str, Any], at: datetime) -> None:
            self._ended.add((self._graph(run_id), state.value))
            self._runs.pop(run_id, None)

        return on_end

    # -- the graph of a run

    def _graph(self, run_id: str) -> str:
        driven = self._runs.get(run_id)
        return UNKNOWN_GRAPH if driven is None else driven.graph

    def _remember(self, run_id: str, driven: _Driven) -> None:
        self._runs.pop(run_id, None)
        self._runs[run_id] = driven
        if len(self._runs) > MOST_RUNS:
            with contextlib.suppress(StopIteration, KeyError, RuntimeError):  # two threads at once
                del self._runs[next(iter(self._runs))]
