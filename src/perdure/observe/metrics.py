"""What perdure measures: `Runtime(observe=Metrics())`, for Prometheus and OTLP.

Two sources. *Of this process*: events after their commit (`on_event`, in the observer's thread) and
commits of the journal (`on_commit`, in the thread that commits), lost with the process, as
Prometheus expects. *Of the journal*: counted when metrics are collected, and kept for a while
(`JournalGauges`). A count reads each unfinished run and each open wait, so it is made at most every
`count_every`, and never for more than a hundredth of the time. On D1, which bills the rows that are
read, at most 2,000 rows a second on average. If the journal cannot be read, its gauges are left
out.

Counters are plain numbers, read when metrics are collected: adding 1 takes 0.1 µs. Histograms are
Prometheus's: 0.5 to 1.3 µs a value. OpenTelemetry's meter takes 3 to 5 µs for either, so its
histograms are used only with `otlp`, and its counters are observed.

Labels are names that code gives: of graphs, effects, states and kinds. Never an id, never content.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    Metric,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

import perdure
from perdure.commands import health
from perdure.errors import BadArgument, Error, needs_extra
from perdure.journal.committer import QueuedOperation
from perdure.observe.observers import Observed, check_is_new
from perdure.types import EffectState, EventKind, Kind

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.resources import Resource

log = logging.getLogger("perdure")

HOST = "127.0.0.1"
FLUSH = 5_000  # milliseconds that closing waits for the last export over OTLP
SHARE = 100  # counting the journal takes at most 1/SHARE of the time
BILLED_ROWS = 2_000  # rows read per second, at most, from a database that bills them
MOST_RUNS = 10_000  # runs whose graph and last step are remembered: those that moved last
MOST_SERIES = 500  # combinations of labels that a counter has, before the rest is `other`
OTHER = "other"
UNKNOWN_GRAPH = "unknown"  # of a run that another process started, and that was not driven here
OUTCOMES = frozenset({EffectState.DONE, EffectState.FAILED, EffectState.UNKNOWN})
CLAIMS = ("claim", "claim_run")  # operations that claim runs
SAVED = ("effects", "model_calls", "tokens")

# -- what is measured; docs/guides/metrics.md explains each

Labels = tuple[str, ...]
# The values of a metric, by the values of its labels.
Series = dict[Labels, float]
# Gauges and counters, by name.
Readings = tuple[dict[str, Series], dict[str, Series]]


class Description(NamedTuple):
    """What a metric is."""

    name: str
    help: str
    labels: Labels
    unit: str  # as OpenTelemetry writes it: `s`, `By`, `1`


def _metric(name: str, help: str, *labels: str) -> Description:
    unit = {"seconds": "s", "bytes": "By"}.get(name.rpartition("_")[2], "1")
    return Description(name, help, labels, unit)


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

GAUGES = (
    _metric("perdure_info", "1, with the version of perdure.", "version"),
    _metric(
        "perdure_worker_failing", "What a duty of workers here failed at, and tries again.", "duty"
    ),
    _metric("perdure_journal_queue_depth", "Operations queued, and not committed yet."),
    _metric("perdure_runs", "Unfinished runs.", "graph", "state"),
    _metric("perdure_runs_due", "Runs that are due, and not claimed.", "graph"),
    _metric("perdure_due_lag_seconds", "How late the first due run is."),
    _metric("perdure_graph_due_lag_seconds", "How late the first due run of a graph is.", "graph"),
    _metric("perdure_waits_open", "Open waits.", "kind"),
    _metric("perdure_questions_open", "Questions that wait for a person."),
    _metric("perdure_question_oldest_seconds", "Age of the oldest of them."),
    _metric("perdure_effects_unknown", "Effects with an unknown outcome.", "effect"),
    _metric("perdure_outbox_messages", "Messages that are not delivered."),
    _metric("perdure_outbox_oldest_seconds", "Age of the oldest of them."),
    _metric("perdure_schedule_slots_missed", "Times of schedules that started no run.", "graph"),
    _metric("perdure_schedules_failing", "Schedules that start no runs and should.", "graph"),
    _metric("perdure_lost_changes", "Acknowledged changes that were lost in 30 days."),
    _metric("perdure_journal_counting_seconds", "Time that counting the journal took."),
    _metric("perdure_database_bytes", "Size of the journal's database."),
)
COUNTERS = (
    _metric("perdure_events_total", "Events stored by this process.", "kind"),
    _metric("perdure_runs_started_total", "Runs accepted.", "graph"),
    _metric("perdure_runs_ended_total", "Runs that ended.", "graph", "state"),
    _metric("perdure_claims_total", "Segments begun.", "graph"),
    _metric("perdure_run_retries_total", "Segments that raised and are tried again.", "graph"),
    _metric("perdure_takeovers_total", "Runs taken from a worker that died.", "graph"),
    _metric("perdure_effects_total", "Outcomes of effects.", "effect", "state"),
    _metric("perdure_effect_retries_total", "Calls of effects to be made again.", "effect"),
    _metric("perdure_saved_effects_total", "Effects returned from the record.", "graph"),
    _metric("perdure_saved_model_calls_total", "Model calls returned from the record.", "graph"),
    _metric("perdure_saved_tokens_total", "Tokens of those model calls.", "graph"),
    _metric("perdure_worker_failures_total", "Failures of workers, by what they did.", "duty"),
)
# With the bounds of their buckets.
HISTOGRAMS = {
    _metric("perdure_claim_latency_seconds", "How late the first due run was claimed."): SECONDS,
    _metric("perdure_step_seconds", "Time of a step, from the one before.", "graph"): SECONDS,
    _metric("perdure_event_loop_lag_seconds", "How late the event loop of a worker is."): SECONDS,
    _metric("perdure_journal_commit_seconds", "Time of one commit of the journal."): SECONDS,
    _metric("perdure_journal_batch_operations", "Operations in one commit."): SIZES,
}


class Metrics:
    """Observer that counts what happens in this process and in the journal.

    For Prometheus and OTLP. Needs the extra `otel`. `rt.asgi()` serves it at `/metrics`.

        runtime = Runtime(observe=Metrics())

    Args:
        count_every: How long a count of the journal is kept. Counting takes at most 1 % of the
            time, so a slow count is kept longer. `timedelta(0)` counts at each scrape.
        listen: Serve `/metrics` at this port, or `host:port`, for a process without a web server.
            Without a host, on this machine only.
        otlp: Export over OTLP, as configured by the `OTEL_*` variables.
    """

    def __init__(
        self,
        *,
        count_every: timedelta = timedelta(seconds=15),
        listen: str | None = None,
        otlp: bool = False,
    ) -> None:
        self._engine: Observed | None = None
        self._every, self._listen, self._otlp = count_every.total_seconds(), listen, otlp
        self._closers: list[Callable[[], Any]] = []
        self.port: int | None = None
        """The port at which it listens, if it does."""
        # Of each run that this process started or drives: its graph, and when it last moved.
        self._runs: dict[str, tuple[str, datetime | None]] = {}
        self._counts: dict[str, Series] = {one.name: {} for one in COUNTERS}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._histograms = {
            name: Histogram(name, help, labels, buckets=bounds, registry=None)
            for (name, help, labels, _), bounds in HISTOGRAMS.items()
        }
        # What else histograms record to.
        self._recorders: list[Callable[..., None]] = []

    # -- as an observer

    def attach(self, engine: Observed) -> None:
        """Measure an engine."""
        check_is_new(self, self._engine)
        self._engine = engine
        self._gauges = JournalGauges(engine, self._every)
        self.reopen()

    def reopen(self) -> None:
        """Start to listen and to export, if configured. Called again after `close`."""
        if self._listen is not None:
            self.serve(self._listen)
        if self._otlp:
            try:
                export = Export(self.read)
            except ImportError as error:
                raise Error(needs_extra("Metrics(otlp=True)", "otel")) from error
            self._recorders.append(export.record)
            self._closers += [partial(self._recorders.remove, export.record), export.close]

    def read(self) -> Readings:
        """Every gauge and counter as it is now. Reads the journal, unless it was counted just
        now."""
        if self._engine is None:
            return {}, self._counts
        totals = self._engine.failures.totals.copy()
        self._counts["perdure_worker_failures_total"] = by_name(totals)
        return self._gauges.read(), self._counts

    def collect(self) -> Iterator[Metric]:
        """Every metric, for Prometheus's registry."""
        gauges, counts = self.read()
        families = ((GaugeMetricFamily, GAUGES, gauges), (CounterMetricFamily, COUNTERS, counts))
        for family, metrics, numbers in families:
            for name, help, labels, _ in metrics:
                metric = family(name, help, labels=labels)
                for values, number in list(numbers.get(name, {}).items()):
                    metric.add_metric(values, number)
                yield metric
        for histogram in self._histograms.values():
            for found in histogram.collect():
                named = found.samples
                found.samples = [one for one in named if not one.name.endswith("_created")]
                yield found

    def scrape(self) -> bytes:
        """Every metric as it is now, as Prometheus reads it: the text format, version 0.0.4."""
        return generate_latest(self._registry)

    def serve(self, listen: str) -> str:
        """Serve `/metrics` until `close`.

        Args:
            listen: A port, or `host:port`. Without a host, on this machine only.

        Returns:
            The address.

        Raises:
            BadArgument: The port is invalid or taken.
        """
        host, _, port = listen.rpartition(":")
        host = host or HOST
        try:
            server, thread = start_http_server(int(port), host.strip("[]"), self._registry)
        except (OSError, ValueError, OverflowError) as error:
            why = error if isinstance(error, OSError) else "that is not a port"
            raise BadArgument(
                f"Metrics cannot be served at {listen!r}: {why}. Use host:port, such as "
                f"{HOST}:9464, with a port that is free."
            ) from error
        self._closers += [thread.join, server.server_close, server.shutdown]  # called from the end
        self.port = server.server_address[1]
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Export the last numbers, and stop. Closing the runtime does it too."""
        if self._engine is not None and self._engine.is_open:
            with contextlib.suppress(Error):
                self._engine.journal.drain()  # so that the last events are counted
        while self._closers:
            self._closers.pop()()

    def on_lag(self, seconds: float) -> None:
        """Measure the event loop of a worker, which calls it.

        Args:
            seconds: How late the loop is.
        """
        self._record("perdure_event_loop_lag_seconds", max(0.0, seconds))

    # -- commits: in the thread that commits

    def on_commit(self, batch: Sequence[QueuedOperation[Any]], seconds: float) -> None:
        """Measure a commit. The journal calls it after each.

        Args:
            batch: The operations that were committed together.
            seconds: How long the commit took.
        """
        self._record("perdure_journal_commit_seconds", seconds)
        self._record("perdure_journal_batch_operations", len(batch))
        for queued in batch:
            if queued.op.name in CLAIMS and queued.error is None and queued.value:
                params = queued.op.render()[0].params
                if params.get("since") is not None:
                    late = max(0, params["now"] - params["since"]) / 1000
                    self._record("perdure_claim_latency_seconds", late)

    # -- events: in the observer's thread

    def on_event(
        self, kind: str, run_id: str, thread_id: str, data: Mapping[str, Any], at: datetime
    ) -> None:
        """Count one event. The parameters are those of `Observer.on_event`."""
        self._add("perdure_events_total", kind)
        graph, moved_at = self._runs.get(run_id, (UNKNOWN_GRAPH, None))
        if saved := data.get("saved"):
            for what in SAVED:
                if saved.get(what):
                    self._add(f"perdure_saved_{what}_total", graph, by=saved[what])
        match kind:
            case EventKind.STEP if "ns" not in data:  # the step of a subgraph is part of another
                if moved_at is not None and "nodes" in data:  # not the one that stores the input
                    took = (at - moved_at).total_seconds()
                    self._record("perdure_step_seconds", took, graph)
                self._note_move(run_id, graph, at)
            case EventKind.EFFECT:
                self._effect(data)
            case EventKind.STARTED:
                self._add("perdure_runs_started_total", data["graph"])
                self._note_move(run_id, data["graph"], None)
            case EventKind.CLAIMED | EventKind.RECOVERED:
                graph = data.get("graph", graph)
                self._add("perdure_claims_total", graph)
                if kind == EventKind.RECOVERED:
                    self._add("perdure_takeovers_total", graph)
                self._note_move(run_id, graph, at)
            case EventKind.FAILED if "retry_at" in data:
                self._add("perdure_run_retries_total", graph)
            case EventKind.DONE | EventKind.FAILED | EventKind.CANCELLED:
                self._add("perdure_runs_ended_total", graph, str(kind))
                self._runs.pop(run_id, None)

    def _effect(self, data: Mapping[str, Any]) -> None:
        state = data["state"]
        if state not in OUTCOMES:
            self._add("perdure_effect_retries_total", data["name"])
        elif not str(data.get("how", "")).startswith("in run"):  # else it is that run's outcome
            self._add("perdure_effects_total", data["name"], state)

    # -- the numbers, and the runs

    def _add(self, counter: str, *labels: str, by: float = 1) -> None:
        series = self._counts[counter]
        if labels not in series and len(series) >= MOST_SERIES:
            labels = (OTHER,) * len(labels)
        series[labels] = series.get(labels, 0) + by

    def _record(self, name: str, value: float, *labels: str) -> None:
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe(value)
        for record in self._recorders:
            record(name, value, *labels)

    def _note_move(self, run_id: str, graph: str, at: datetime | None) -> None:
        if graph != UNKNOWN_GRAPH:
            self._runs.pop(run_id, None)
            self._runs[run_id] = (graph, at)
            if len(self._runs) > MOST_RUNS:
                del self._runs[next(iter(self._runs))]


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
        due = journal.read_committed(health.count_due(now))
        rest = journal.read_committed(health.count_rest(now))
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


class Export:
    """Exports metrics over OTLP, as the `OTEL_*` variables say: what `read` gives, and the
    histograms that it records. Raises `ImportError` without OpenTelemetry's SDK, which `/metrics`
    does not need.

    OpenTelemetry's reader exports every `OTEL_METRIC_EXPORT_INTERVAL` milliseconds (a minute), and
    once more at the end. An export that fails is logged. Counters are cumulative: the next one has
    it all.
    """

    def __init__(self, read: Callable[[], Readings]) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        self._read = read
        self._provider = MeterProvider(
            [PeriodicExportingMetricReader(OTLPMetricExporter())],
            _resource(),
            exemplar_filter=AlwaysOffExemplarFilter(),
            shutdown_on_exit=False,
        )
        meter = self._provider.get_meter("perdure", perdure.__version__)
        for one in GAUGES:
            meter.create_observable_gauge(
                one.name, [partial(self._observe, 0, one)], one.unit, one.help
            )
        for one in COUNTERS:
            meter.create_observable_counter(
                one.name, [partial(self._observe, 1, one)], one.unit, one.help
            )
        self._histograms = {
            name: meter.create_histogram(
                name, unit, help, explicit_bucket_boundaries_advisory=bounds
            )
            for (name, help, _, unit), bounds in HISTOGRAMS.items()
        }
        self._labels = {one.name: one.labels for one in HISTOGRAMS}

    def record(self, name: str, value: float, *labels: str) -> None:
        """Record a value of a histogram."""
        attributes = dict(zip(self._labels[name], labels, strict=True))
        self._histograms[name].record(value, attributes)

    def close(self) -> None:
        """Export what there is, for a few seconds at most, and stop."""
        self._provider.shutdown(FLUSH)

    def _observe(self, kind: int, metric: Description, _: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        if metric is GAUGES[0]:  # the first that is collected: all others are of the same moment
            self._readings = self._read()
        return [
            Observation(value, dict(zip(metric.labels, labels, strict=True)))
            for labels, value in list(self._readings[kind].get(metric.name, {}).items())
        ]


def _resource() -> Resource:
    """From OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME. Each process counts for itself, so it
    needs an id: a collector would mistake two processes for one whose counters jump."""
    from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource

    found = Resource.create({SERVICE_INSTANCE_ID: f"{os.uname().nodename}:{os.getpid()}"})
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: "perdure"}))
    return found
