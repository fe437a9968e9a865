"""A collector of traces: OTLP over HTTP on loopback, in a process of its own.

`Receiver` is the test's side. Its process decodes each request (protobuf, gzip too) and appends it
to a file before it answers, so that it can be killed and started again. It can be down: with
`down=0.5` half of the requests fail, in one of three ways:

    refuse   503: what was sent is not taken
    cut      the connection is cut before the request is read: it is not taken
    lose     taken, and the connection is cut instead of an answer
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import random
import socket
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tests.support.fork_server import Child, ForkServer, Tell
from tests.support.polling import until

HOST = "127.0.0.1"
FAULTS = ("refuse", "cut", "lose")
TAKEN = ("take", "lose")


class Span(NamedTuple):
    """A span as it was received. Ids are hexadecimal, times in nanoseconds."""

    trace: str
    id: str
    parent: str
    name: str
    start: int
    end: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    error: str | None
    encoded: bytes
    """All of it, for comparison."""

    @property
    def what(self) -> str:
        """Which part of a run it is; empty for a step, and for a span that is not perdure's."""
        return str(self.attributes.get("perdure.span", ""))


class Receiver:
    """The collector, as its test sees it. A fixture of its folder survives its process."""

    def __init__(self, server: ForkServer, folder: Path, *, seed: int = 7) -> None:
        self._server, self._folder, self._seed = server, folder, seed
        self._child: Child | None = None
        self._starts = 0
        self.kills = 0
        with socket.create_server((HOST, 0)) as free:
            self.port = free.getsockname()[1]
        self.set_down(0.0)

    @property
    def url(self) -> str:
        """For OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://{HOST}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process export to it."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "3",
            "OTEL_METRICS_EXPORTER": "none",
        }

    def start(self) -> None:
        self._starts += 1
        order = {"port": self.port, "folder": str(self._folder), "limit": 7200}
        seed = f"{self._seed}/{self._starts}"
        self._child = self._server.start("tests.observe.otlp_receiver:receive", seed=seed, **order)
        until(self._is_up, "a collector")

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None
            self.kills += 1

    def set_down(self, rate: float) -> None:
        """How many of the requests fail, from now on."""
        new = self._folder / "down.new"
        new.write_text(str(rate))
        new.rename(self._folder / "down")

    def __enter__(self) -> Receiver:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()

    def _is_up(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1):
            return True
        return False

    # -- what it received

    def requests(self) -> list[dict[str, Any]]:
        """Every request: how it ended (`how`), and its content, if that was read."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self._folder / "requests").read_bytes().split(b"\n")
            return [one for line in lines if (one := _loaded(line)) is not None]
        return []

    def spans(self) -> list[Span]:
        """Every span that it took, as often as it did."""
        taken = [
            ExportTraceServiceRequest.FromString(base64.b64decode(request["body"]))
            for request in self.requests()
            if request["how"] in TAKEN and request["path"] == "/v1/traces"
        ]
        return [span for request in taken for span in decoded(request)]


class Collector(SpanExporter):
    """A collector in the process that exports. It gets what others get by OTLP."""

    def __init__(self) -> None:
        self.is_down = False
        self.spans: list[Span] = []
        self._lock = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.is_down:
            return SpanExportResult.FAILURE
        with self._lock:
            self.spans += decoded(encode_spans(spans))
        return SpanExportResult.SUCCESS


def _loaded(line: bytes) -> dict[str, Any] | None:
    """A line; None if it is empty or its writer was killed in the middle of it."""
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return found


def decoded(request: ExportTraceServiceRequest) -> Iterator[Span]:
    """The spans of a request."""
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            yield from (_span(one) for one in scope.spans)


def _span(one: Message) -> Span:
    return Span(
        one.trace_id.hex(),
        one.span_id.hex(),
        one.parent_span_id.hex(),
        one.name,
        one.start_time_unix_nano,
        one.end_time_unix_nano,
        {pair.key: _value(pair.value) for pair in one.attributes},
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in one.links),
        one.status.message if one.status.code == 2 else None,
        one.SerializeToString(deterministic=True),
    )


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)


# -- its process


def receive(order: dict[str, Any], tell: Tell) -> None:
    """Serve, until it is killed."""
    folder, dice, lock = Path(order["folder"]), random.Random(order["seed"]), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            with lock:
                down = dice.random() < float((folder / "down").read_text())
                how = dice.choice(FAULTS) if down else "take"
            if how == "cut":
                _append(folder, {"how": how, "path": self.path})
                self._cut()
                return
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/traces" and not _is_readable(body):
                how = "bad"
            kept = base64.b64encode(body).decode()
            _append(folder, {"how": how, "path": self.path, "body": kept})
            if how == "lose":
                self._cut()
            else:
                self._reply({"take": 200, "bad": 400, "refuse": 503}[how])

        def _cut(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def _reply(self, status: int) -> None:
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A sender was killed, or its connection was cut."""

    Server((HOST, order["port"]), Handler).serve_forever()


def _is_readable(body: bytes) -> bool:
    try:
        ExportTraceServiceRequest.FromString(body)
    except DecodeError:
        return False
    return True


def _append(folder: Path, request: dict[str, Any]) -> None:
    # It begins with a new line, in case a process was killed in the middle of the one before.
    file = os.open(folder / "requests", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(file, b"\n" + json.dumps(request).encode() + b"\n")
    os.close(file)
