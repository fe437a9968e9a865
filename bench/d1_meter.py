"""What goes over the wire to D1, counted in the same way for every contender.

A reverse proxy between them and workerd. It holds back each request for as long as a data centre
is away, since what a saver batches depends on how long a request takes.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

DISTANCE = 0.02
"""Seconds that a request is held back."""


@dataclass(frozen=True, slots=True)
class Used:
    """Of D1: HTTP requests, the rows it counts, bytes of bodies."""

    requests: float = 0
    read: float = 0
    written: float = 0
    sent: float = 0
    received: float = 0

    def __add__(self, other: Used) -> Used:
        return Used(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Used) -> Used:
        return self + other.times(-1)

    def times(self, factor: float) -> Used:
        return Used(*(one * factor for one in astuple(self)))


class Meter:
    """Counts what is asked of the D1 behind it."""

    def __init__(self, port: int) -> None:
        self.behind = port
        self.used = Used()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Passing)
        self._server.daemon_threads = True
        self._server.meter = self  # type: ignore[attr-defined]  # how a handler finds it
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def url(self, url: str) -> str:
        """The same database, through this meter."""
        return url.replace(f":{self.behind}/", f":{self.port}/")

    def count(self, sent: bytes, received: bytes, path: str) -> None:
        read, written = _rows(received, path)
        with self._lock:
            self.used += Used(1, read, written, len(sent), len(received))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def metered(port: int) -> Iterator[Meter]:
    meter = Meter(port)
    try:
        yield meter
    finally:
        meter.close()


class _Passing(BaseHTTPRequestHandler):
    """One connection of a client. Each of its requests has one of its own to workerd."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body in one packet

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client is gone
            super().handle()

    def do_POST(self) -> None:
        meter: Meter = self.server.meter  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(DISTANCE)
        names = ("Authorization", "Content-Type")
        with closing(HTTPConnection("127.0.0.1", meter.behind)) as far:
            far.request("POST", self.path, body, {name: self.headers[name] for name in names})
            reply = far.getresponse()
            answer = reply.read()
        meter.count(body, answer, urlsplit(self.path).path)
        self.send_response(reply.status)
        for name in ("Content-Type", "X-Perdure"):
            if value := reply.headers.get(name):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _rows(reply: bytes, path: str) -> tuple[int, int]:
    """Rows read and written, as D1 reports them to each of the two ways in."""
    if path.endswith("/v1/batch"):
        [length] = struct.unpack_from(">I", reply)
        head = json.loads(reply[4 : 4 + length])
        return head.get("read", 0), head.get("written", 0)
    results = json.loads(reply).get("result") or []
    metas = [one["meta"] for one in results]
    return sum(m["rows_read"] for m in metas), sum(m["rows_written"] for m in metas)
