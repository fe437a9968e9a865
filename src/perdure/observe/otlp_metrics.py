"""Metrics by OTLP over HTTP, configured by the standard `OTEL_*` variables: extra `otel`.

OpenTelemetry's reader exports every `OTEL_METRIC_EXPORT_INTERVAL` milliseconds (a minute), and once
more at the end. An export that fails is logged. Counters are cumulative: the next one has it all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource

import perdure
from perdure.observe.metric_catalogue import COUNTERS, GAUGES, HISTOGRAMS, Description, Readings

FLUSH = 5_000  # milliseconds that closing waits for the last export


class OTLPMetrics:
    """Exports what `read` gives, and the histograms that it records."""

    def __init__(self, read: Callable[[], Readings]) -> None:
        self._read = read
        self._provider = MeterProvider(
            [PeriodicExportingMetricReader(OTLPMetricExporter())],
            _resource(),
            exemplar_filter=AlwaysOffExemplarFilter(),
            shutdown_on_exit=False,
        )
        meter = self._provider.get_meter("perdure", perdure.__version__)
        for one in GAUGES:
            observe = partial(self._observe, 0, one)
            meter.create_observable_gauge(one.name, [observe], one.unit, one.help)
        for one in COUNTERS:
            observe = partial(self._observe, 1, one)
            meter.create_observable_counter(one.name, [observe], one.unit, one.help)
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
        if metric is GAUGES[0]:  # the first that is collected: all others are of the same moment
            self._readings = self._read()
        return [
            Observation(value, dict(zip(metric.labels, labels, strict=True)))
            for labels, value in list(self._readings[kind].get(metric.name, {}).items())
        ]


def _resource() -> Resource:
    """From OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME. Each process counts for itself, so it
    needs an id: a collector would mistake two processes for one whose counters jump."""
    found = Resource.create({SERVICE_INSTANCE_ID: f"{os.uname().nodename}:{os.getpid()}"})
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: "perdure"}))
    return found
