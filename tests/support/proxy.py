"""A network that misbehaves: a TCP proxy on loopback between perdure and PostgreSQL.

Bytes pass until it is told otherwise: to hold everything back, or to cut the one connection on
which something is seen next.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

Cut = Literal["request", "half", "reply"]
BATCH = b"entry"
"""In every request that stores an entry of `tests.support.entries`, or a signal of this name."""
COMMITTED = b"COMMIT\x00"
"""In every reply to a COMMIT."""


class Proxy:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._cuts: list[Cut] = []
        self.cut_count = 0
        self.connections = 0
        """Connections that were accepted."""
        port = self._server.getsockname()[1]
        self.url = parts._replace(netloc=f"postgres@127.0.0.1:{port}").geturl()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut(self, *which: Cut) -> None:
        """Cut the next connections that store something, each at a certain moment.

        `request`: before the batch gets through; `half`: in the middle of it; `reply`: when it
        is committed, before that is told.
        """
        self._cuts += which

    def hold(self) -> None:
        """Forward nothing any more, and say nothing: a black hole."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def lead_to(self, url: str) -> None:
        """Lead to another server from now on; connections are cut."""
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._hang_up(*self._sockets)
        self._sockets.clear()

    def close(self) -> None:
        self.release()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._hang_up(*self._sockets)
        self._accepting.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client = self._server.accept()[0]
            except OSError:
                return
            self._sockets.append(client)
            self.connections += 1
            with contextlib.suppress(OSError):
                server = socket.create_connection(self._target)
                self._sockets.append(server)
                for pump in (self._requests, self._replies):
                    threading.Thread(target=pump, args=(client, server), daemon=True).start()
                continue
            self._hang_up(client)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        for data in self._read(client):
            if BATCH in data and self._cuts and self._cuts[0] != "reply":
                if self._cuts.pop(0) == "half":
                    _send(server, data[: data.index(BATCH)])
                self.cut_count += 1
                break
            _send(server, data)
        self._hang_up(client, server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        for data in self._read(server):
            if COMMITTED in data and self._cuts and self._cuts[0] == "reply":
                self._cuts.pop(0)
                self.cut_count += 1
                break
            _send(client, data)
        self._hang_up(client, server)

    def _read(self, source: socket.socket) -> Iterator[bytes]:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                self._open.wait()
                yield data

    def _hang_up(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def _send(target: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # it hung up; the other direction will notice
        target.sendall(data)


# -- A network that misbehaves between perdure and D1: an HTTP proxy on loopback.


class Fault(StrEnum):
    """What becomes of a request. `AFTER`: the Worker ran it, so it is committed."""

    CUT_BEFORE = "the connection is cut before the Worker sees the request"
    LOST_AFTER = "the reply is lost"
    TRUNCATED_AFTER = "the reply ends early, and the connection with it"
    SHORTENED_AFTER = "the reply ends early, and says that it is whole"
    TOO_MANY = "429: the edge takes in no more requests"
    PAGE_500_BEFORE = "500: a page of the edge, before the Worker ran"
    PAGE_502_AFTER = "502: a page of the edge, after the Worker ran"
    PAGE_520_BEFORE = "520: a page of the edge, before the Worker ran"
    PAGE_520_AFTER = "520: a page of the edge, after the Worker ran"
    BUSY = "the Worker says that D1 is overloaded"
    UNKNOWN_BEFORE = "the Worker says that it lost D1, which had not begun"
    UNKNOWN_AFTER = "the Worker says that it lost D1, which had committed"
    FULL = "the Worker says that the database is full"
    SLOW = "the reply comes late"

    @property
    def passes(self) -> bool:
        """Whether the Worker sees the request."""
        return self.name.endswith("_AFTER") or self is Fault.SLOW


PASSING = tuple(fault for fault in Fault if fault is not Fault.FULL)
"""Faults that go away. A database that is full is a fact."""
SECONDS = 0.3
"""How late a slow reply is."""

_PAGES = {
    Fault.TOO_MANY: 429,
    Fault.PAGE_500_BEFORE: 500,
    Fault.PAGE_502_AFTER: 502,
    Fault.PAGE_520_BEFORE: 520,
    Fault.PAGE_520_AFTER: 520,
}
_OVERLOADED = "D1_ERROR: D1 DB is overloaded. Requests queued for too long."
_CONNECTION_LOST = "D1_ERROR: Network connection lost."
_KINDS = {
    Fault.BUSY: (503, "busy", _OVERLOADED),
    Fault.UNKNOWN_BEFORE: (500, "unknown", _CONNECTION_LOST),
    Fault.UNKNOWN_AFTER: (500, "unknown", _CONNECTION_LOST),
    Fault.FULL: (507, "full", "D1_ERROR: Exceeded maximum DB size."),
}


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class FaultyProxy:
    """Stands before the D1 of `url`. Of all requests a share of `rate` meets one of `faults`."""

    def __init__(
        self, url: str, *, rate: float = 0.0, seed: int = 0, faults: Sequence[Fault] = PASSING
    ) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self.rate, self._faults = rate, list(faults)
        self._random = random.Random(seed)
        self._script: list[Fault | None] = []
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self.secret: str | None = None
        """Goes to the Worker instead of the client's."""
        self.requests = 0
        self.seen: Counter[Fault] = Counter()
        """How often each fault has happened."""
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        port = self._server.server_address[1]
        self.url = url.replace(f"@{parts.hostname}:{parts.port}/", f"@127.0.0.1:{port}/")
        self._serving = threading.Thread(
            target=self._server.serve_forever, args=[0.02], daemon=True
        )
        self._serving.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.hang_up()
        self._serving.join(10)

    def script(self, *faults: Fault | None) -> None:
        """What becomes of the next requests; None: nothing."""
        with self._lock:
            self._script += faults

    def clear(self) -> None:
        """Forget the rest of the script."""
        with self._lock:
            self._script.clear()

    def hang_up(self) -> None:
        """Close every connection of a client, as the edge does with idle ones."""
        with self._lock:
            for one in self._sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    # -- for the handler

    def _next(self) -> Fault | None:
        with self._lock:
            self.requests += 1
            if self._script:
                fault = self._script.pop(0)
            elif self._random.random() < self.rate:
                fault = self._random.choice(self._faults)
            else:
                fault = None
            if fault is not None:
                self.seen[fault] += 1
            return fault

    def forwarded(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        if self.secret is not None:
            headers["Authorization"] = f"Bearer {self.secret}"
        connection = http.client.HTTPConnection(*self._target, timeout=60)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            kept = {name: value for name, value in reply.getheaders() if name in _KEPT}
            return Reply(reply.status, kept, reply.read())
        finally:
            connection.close()


_KEPT = ("Content-Type", "X-Perdure")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    proxy: FaultyProxy

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: the client was killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        with self.server.proxy._lock:
            self.server.proxy._sockets.add(self.connection)

    def finish(self) -> None:
        with self.server.proxy._lock:
            self.server.proxy._sockets.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def do_POST(self) -> None:
        proxy, fault = self.server.proxy, self.server.proxy._next()
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        reply = None
        if fault is None or fault.passes:
            headers = {name: self.headers[name] or "" for name in ("Authorization", "Content-Type")}
            with suppress(OSError, http.client.HTTPException):
                reply = proxy.forwarded(self.command, self.path, headers, body)
            if reply is None:  # the Worker is down, or went down
                self.close_connection = True
                return
        if fault is Fault.SLOW:
            time.sleep(SECONDS)
        with suppress(OSError):  # the client is gone
            self._answer(fault, reply)

    def do_GET(self) -> None:
        self.headers["Content-Length"] = "0"
        self.do_POST()

    def _answer(self, fault: Fault | None, reply: Reply | None) -> None:
        if fault in (Fault.CUT_BEFORE, Fault.LOST_AFTER):
            self.close_connection = True
        elif fault in _PAGES:
            self._send(Reply(_PAGES[fault], {"Content-Type": "text/html"}, _page(_PAGES[fault])))
        elif fault in _KINDS:
            status, kind, message = _KINDS[fault]
            self._send(self._refusal(status, kind, message))
        elif reply is not None and fault is Fault.TRUNCATED_AFTER:
            self._send(reply, reply.body[: len(reply.body) // 2])
            self.close_connection = True
        elif reply is not None and fault is Fault.SHORTENED_AFTER:
            self._send(reply._replace(body=reply.body[: len(reply.body) // 2]))
        elif reply is not None:
            self._send(reply)

    def _refusal(self, status: int, kind: str, message: str) -> Reply:
        """What the Worker says of an error of D1, or the REST API."""
        if self.path.endswith("/query"):
            errors = [{"code": 7500, "message": message}]
            told = {"success": False, "errors": errors, "messages": [], "result": None}
            return Reply(400, {"Content-Type": "application/json"}, json.dumps(told).encode())
        frame = _frame({"ok": False, "kind": kind, "message": message})
        return Reply(status, {"X-Perdure": "1"}, frame)

    def _send(self, reply: Reply, body: bytes | None = None) -> None:
        """Send a reply, or the head of it and another body."""
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body if body is None else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _page(status: int) -> bytes:
    return f"<!DOCTYPE html><html><h1>Error {status}</h1><p>cloudflare</p></html>".encode()


def _frame(head: Any) -> bytes:
    text = json.dumps(head).encode()
    return struct.pack(">I", len(text)) + text
