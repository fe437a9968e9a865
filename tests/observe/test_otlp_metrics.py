"""Metrics arrive at a real OTLP/HTTP receiver that decodes the protocol, the last ones too."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

import perdure
from perdure.observe import Metrics
from tests.support.http import serving
from tests.support.polling import until

Requests = list[tuple[str, str | None, ResourceMetrics]]


@contextmanager
def receiving(monkeypatch: pytest.MonkeyPatch, status: int = 200) -> Iterator[Requests]:
    """Requests to the endpoint of the environment: path, API key and content."""
    requests: Requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            [sent] = ExportMetricsServiceRequest.FromString(body).resource_metrics
            requests.append((self.path, self.headers["api-key"], sent))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        yield requests


def metrics(requests: Requests) -> dict[str, Any]:
    """The metrics of the last request, by name."""
    [scope] = requests[-1][2].scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def test_metrics_are_exported_as_the_environment_says_and_flushed_at_close(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=abc")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=blue")
    with receiving(monkeypatch) as requests:
        with perdure.Client(sqlite_url, observe=True) as client:
            client.blocking.start("g")
            until(lambda: requests and "perdure_runs" in metrics(requests))
            client.blocking.start("h")
        path, key, sent = requests[-1]
        assert (path, key) == ("/v1/metrics", "abc")
        resource = {one.key: one.value.string_value for one in sent.resource.attributes}
        assert (resource["team"], resource["service.name"]) == ("blue", "perdure")
        assert resource["service.instance.id"]
        started = metrics(requests)["perdure_runs_started_total"].sum
        assert started.is_monotonic
        assert {
            point.attributes[0].value.string_value: point.as_int for point in started.data_points
        } == {"g": 1, "h": 1}
        [commit] = metrics(requests)["perdure_journal_commit_seconds"].histogram.data_points
        assert commit.count == sum(commit.bucket_counts) == 2
        assert len(commit.bucket_counts) == len(commit.explicit_bounds) + 1
        assert commit.start_time_unix_nano < commit.time_unix_nano


def test_a_receiver_that_is_down_breaks_nothing(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        receiving(monkeypatch, status=400) as requests,  # not one of those that are sent again
        caplog.at_level(logging.ERROR, "opentelemetry"),
    ):
        with perdure.Client(sqlite_url, observe=Metrics(otlp=True)) as client:
            client.blocking.start("g")
        assert len(requests) == 1
    assert "Failed to export metrics" in caplog.text
