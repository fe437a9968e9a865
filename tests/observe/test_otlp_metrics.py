"""Metrics arrive at a real OTLP/HTTP receiver that decodes the protocol, the last ones too."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

import perdure
from perdure.observe import Metrics
from tests.support.loopback import serving
from tests.support.polling import until


class Receiver:
    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], ExportMetricsServiceRequest]] = []
        self.status = 200
        self.url = ""

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the last request, by name."""
        [found] = self.requests[-1][2].resource_metrics
        [scope] = found.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    @property
    def resource(self) -> dict[str, str]:
        [found] = self.requests[-1][2].resource_metrics
        return {one.key: one.value.string_value for one in found.resource.attributes}


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            sent = ExportMetricsServiceRequest.FromString(body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.requests.append((self.path, headers, sent))
            self.send_response(receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as receiver.url:
        yield receiver


def test_metrics_are_exported_as_the_environment_says_and_flushed_at_close(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=abc")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=blue")
        with perdure.Client(sqlite_url, observe=True) as client:
            client.blocking.start("g")
            until(lambda: receiver.requests and "perdure_runs" in receiver.metrics)
            client.blocking.start("h")
        path, headers, _ = receiver.requests[-1]
        assert (path, headers["api-key"]) == ("/v1/metrics", "abc")
        assert receiver.resource["team"] == "blue"
        assert receiver.resource["service.name"] == "perdure"
        assert receiver.resource["service.instance.id"]
        started = receiver.metrics["perdure_runs_started_total"].sum
        assert started.is_monotonic
        assert {
            point.attributes[0].value.string_value: point.as_int for point in started.data_points
        } == {"g": 1, "h": 1}
        [commit] = receiver.metrics["perdure_journal_commit_seconds"].histogram.data_points
        assert commit.count == sum(commit.bucket_counts) == 2
        assert len(commit.bucket_counts) == len(commit.explicit_bounds) + 1
        assert commit.start_time_unix_nano < commit.time_unix_nano


def test_a_receiver_that_is_down_breaks_nothing(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving() as receiver:
        receiver.status = 400  # not one of those that are sent again
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        with (
            caplog.at_level(logging.ERROR, "opentelemetry"),
            perdure.Client(sqlite_url, observe=Metrics(otlp=True)) as client,
        ):
            client.blocking.start("g")
        assert len(receiver.requests) == 1
    assert "Failed to export metrics" in caplog.text
