"""A stand-in for LangSmith over HTTP: it records the spans and the feedback that it is given.

Spans come by OTLP, and runs of LangChain from LangSmith's client. The `langsmith.*` attributes are
read as LangSmith's documentation says. A span that it has is counted in `repeats`; a second
feedback with an id that it has is a conflict (409). With `trouble`, a share of the requests that
write ends badly: it says 503, closes the connection, or takes the request and loses the answer.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.observe.otlp_receiver import Span, decoded
from tests.support.http import serving

PROJECT = "11111111-1111-4111-8111-111111111111"
BAD = ("503", "closed", "lost")


class Store:
    """What LangSmith was given."""

    def __init__(self, trouble: float = 0.0, seed: int = 0) -> None:
        self.trouble = trouble
        self.runs: dict[str, dict[str, Any]] = {}
        self.feedback: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.repeats = 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.url = ""

    def answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, Any, bool]:
        """Status, body, and whether the answer is lost."""
        path = urlsplit(target).path
        with self._lock:
            if method == "GET":
                return 200, self._read(target), False
            given = _parse(path, headers, body)
            self.requests.append((method, path, headers, given))
            how = self._random.choice(BAD) if self._random.random() < self.trouble else "good"
            if how in BAD[:2]:
                return (503 if how == "503" else 0), {}, how == "closed"
            taken = self._take(method, path, given)
            return (200 if taken else 409), {}, how == "lost"

    def _read(self, target: str) -> Any:
        parts = urlsplit(target)
        if parts.path == "/sessions":
            [name] = parse_qs(parts.query)["name"]
            own = {"id": PROJECT, "tenant_id": PROJECT, "reference_dataset_id": None}
            return [{**own, "name": name}]
        config = {"use_multipart_endpoint": True, "size_limit_bytes": 20_000_000}
        config |= {"size_limit": 100, "scale_up_nthreads_limit": 1}
        config |= {"scale_up_qsize_trigger": 1000, "scale_down_nempty_trigger": 4}
        return {"version": "0.12.0", "batch_ingest_config": config}

    def _take(self, method: str, path: str, given: Any) -> bool:
        if path.startswith("/feedback"):
            if method == "PATCH":
                self.feedback[path.rpartition("/")[2]] |= given
            elif given["id"] in self.feedback:
                return False
            else:
                self.feedback[given["id"]] = given
            return True
        for run in given["post"]:
            if run["id"] in self.runs:
                self.repeats += 1
            self.runs[run["id"]] = run
        for run in given["patch"]:
            self.runs.setdefault(run["id"], {}).update(run)
        return True

    # -- what tests ask

    def roots(self, **metadata: Any) -> list[dict[str, Any]]:
        """Root runs in order, of this metadata."""
        return [run for run in self.ordered(**metadata) if not run.get("parent_run_id")]

    def ordered(self, **metadata: Any) -> list[dict[str, Any]]:
        with self._lock:
            found = [
                run
                for run in self.runs.values()
                if metadata.items() <= run["extra"]["metadata"].items()
            ]
        return sorted(found, key=lambda run: str(run["dotted_order"]))

    def check(self) -> None:
        """Every run is over, below a run that is there, and in its trace."""
        for run in self.runs.values():
            assert _at(run["end_time"]) >= _at(run["start_time"]), run
            order = run["dotted_order"].split(".")
            assert order[-1].endswith(run["id"])
            assert order[0].endswith(run["trace_id"])
            if (parent := run.get("parent_run_id")) is not None:
                assert self.runs[parent]["dotted_order"] == ".".join(order[:-1]), run
                assert _at(self.runs[parent]["start_time"]) <= _at(run["start_time"])
            else:
                assert run["trace_id"] == run["id"]
        assert {one["run_id"] for one in self.feedback.values()} <= self.runs.keys()


def _at(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _parse(path: str, headers: dict[str, str], body: bytes) -> Any:
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    if path == "/otel/v1/traces":
        sent = decoded(ExportTraceServiceRequest.FromString(body))
        return {"post": [_run(span) for span in sent], "patch": []}
    if path == "/runs/multipart":
        return _multipart(headers, body)
    given = json.loads(body)
    if path == "/runs":
        return {"post": [given], "patch": []}
    if path.startswith("/runs/") and path != "/runs/batch":
        return {"post": [], "patch": [{"id": path.rpartition("/")[2], **given}]}
    return given


def _run(span: Span) -> dict[str, Any]:
    """A span as LangSmith shows it."""
    given = {name.removeprefix("langsmith."): value for name, value in span.attributes.items()}
    parent = given.get("span.parent_id")
    assert bool(parent) == bool(span.parent)
    usage = {
        f"{part}_tokens": given.get(f"gen_ai.usage.{part}_tokens") for part in ("input", "output")
    }
    return {
        "id": given["span.id"],
        "trace_id": given["trace.id"],
        "parent_run_id": parent,
        "dotted_order": given["span.dotted_order"],
        "session_name": given["trace.session_name"],
        "name": given["trace.name"],
        "run_type": given["span.kind"],
        "inputs": json.loads(given.get("gen_ai.prompt", "{}")),
        "outputs": json.loads(given.get("gen_ai.completion", "{}")),
        "usage": {name: count for name, count in usage.items() if count is not None},
        "start_time": _time(span.start),
        "end_time": _time(span.end),
        "error": span.error,
        "extra": {
            "metadata": {
                name.removeprefix("metadata."): value
                for name, value in given.items()
                if name.startswith("metadata.")
            }
        },
    }


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="milliseconds")


def _multipart(headers: dict[str, str], body: bytes) -> dict[str, list[dict[str, Any]]]:
    kind = f"Content-Type: {headers['content-type']}\r\n\r\n".encode()
    found: dict[str, dict[str, dict[str, Any]]] = {"post": {}, "patch": {}}
    for part in BytesParser().parsebytes(kind + body).get_payload():
        assert not isinstance(part, str)
        name = str(part.get_param("name", header="content-disposition"))
        how, id, *field = name.split(".")
        value = json.loads(part.get_payload(decode=True))  # type: ignore[arg-type]
        run = found[how].setdefault(id, {})
        run |= {field[0]: value} if field else value
    return {how: list(runs.values()) for how, runs in found.items()}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    store: Store

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        status, answer, is_lost = self.store.answer(self.command, self.path, headers, body)
        if is_lost:
            self.close_connection = True
            return
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._do()

    def do_POST(self) -> None:
        self._do()

    def do_PATCH(self) -> None:
        self._do()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def langsmith_server(trouble: float = 0.0, seed: int = 0) -> Iterator[Store]:
    """LangSmith on loopback; its address is `url` of what this gives."""
    store = Store(trouble, seed)
    handler = type("Handler", (_Handler,), {"store": store})
    with serving(handler) as store.url:
        yield store
