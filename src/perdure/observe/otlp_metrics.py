"""Metrics by OTLP over HTTP, configured by the standard `OTEL_*` variables: extra `otel`.

A thread exports every `OTEL_METRIC_EXPORT_INTERVAL` milliseconds (a minute), and once more when the
runtime closes. An export that fails is logged; counters are cumulative, so the next one has it all.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

import perdure
from perdure.observe import registry
from perdure.observe.registry import Distribution, Family, Labels

log = logging.getLogger("perdure")

CUMULATIVE = AggregationTemporality.CUMULATIVE
FLUSH = 5.0
"""Seconds that closing waits for the last export."""


class OTLPExport:
    """The thread that exports what `source.collect()` gives."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._resource = _resource()
        self._began = time.time_ns()
        self._exporter = OTLPMetricExporter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="perdure-otlp", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = _milliseconds("OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1000
        while not self._stop.wait(pause):
            self.export()
        self.export()

    def export(self) -> None:
        """Export now."""
        try:
            data = self._data(self._source.collect())
            timeout = _milliseconds("OTEL_METRIC_EXPORT_TIMEOUT", 30_000)
            if self._exporter.export(data, timeout) is not MetricExportResult.SUCCESS:
                log.warning("Metrics could not be exported%s", self._outlook())
        except Exception:
            log.warning("Exporting metrics failed%s", self._outlook(), exc_info=True)

    def _outlook(self) -> str:
        is_last = self._stop.is_set()
        return ": this was the last export." if is_last else "; the next export has them too."

    def close(self) -> None:
        """Export what there is, for a few seconds at most, and stop."""
        self._stop.set()
        self._thread.join(FLUSH)
        self._exporter.shutdown()

    def _data(self, families: Iterable[Family]) -> MetricsData:
        now = time.time_ns()
        metrics = [metric for family in families for metric in self._metric(family, now)]
        scope = InstrumentationScope("perdure", perdure.__version__)
        scoped = ScopeMetrics(scope, metrics, schema_url="")
        return MetricsData([ResourceMetrics(self._resource, [scoped], schema_url="")])

    def _metric(self, family: Family, now: int) -> Iterator[Metric]:
        name, help, labels, unit = family.description
        data: Sum | Gauge | Histogram
        if isinstance(family, registry.Histogram):
            series = list(family.series.items())
            points = [self._distribution(labels, key, found, now) for key, found in series]
            data = Histogram(points, CUMULATIVE)
        else:
            numbers = [
                NumberDataPoint(_attributes(labels, key), self._began, now, value)
                for key, value in list(family.series.items())
            ]
            is_counter = isinstance(family, registry.Counter)
            data = Sum(numbers, CUMULATIVE, is_monotonic=True) if is_counter else Gauge(numbers)
        if data.data_points:
            yield Metric(name, help, unit, data)

    def _distribution(
        self, labels: Labels, values: Labels, found: Distribution, now: int
    ) -> HistogramDataPoint:
        counts = list(found.counts)
        return HistogramDataPoint(
            attributes=_attributes(labels, values),
            start_time_unix_nano=self._began,
            time_unix_nano=now,
            count=sum(counts),
            sum=found.sum,
            bucket_counts=counts,
            explicit_bounds=[float(bound) for bound in found.bounds],
            min=None,  # type: ignore[arg-type]  # not known; optional in the protocol
            max=None,  # type: ignore[arg-type]
        )


def _attributes(labels: Labels, values: Labels) -> dict[str, str]:
    return dict(zip(labels, values, strict=True))


def _resource() -> Resource:
    """From OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME. Each process counts for itself, so it
    needs an id: a collector would mistake two processes for one whose counters jump."""
    found = Resource.create({SERVICE_INSTANCE_ID: f"{os.uname().nodename}:{os.getpid()}"})
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: "perdure"}))
    return found


def _milliseconds(name: str, default: float) -> float:
    try:
        return float(os.environ.get(name) or default)
    except ValueError:
        log.warning("%s is not a number of milliseconds; %s is used.", name, default)
        return default
