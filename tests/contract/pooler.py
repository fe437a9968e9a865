"""A pooler on loopback between perdure and PostgreSQL, as PgBouncer in transaction mode: clients
stay connected while the server behind them changes, between any two of their transactions.

It needs no program beside PostgreSQL. It does not follow prepared statements, as PgBouncer before
1.21, and may leave the startup parameter `options` out, as `ignore_startup_parameters` does.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from urllib.parse import urlsplit

from tests.support.polling import until

_CONNECTIONS = 3
"""Connections to the server that all clients take turns on."""


class Pooler:
    """`turns`: each transaction is on the next of the server's connections. Otherwise a client has
    its own, and gets a new one when the server was restarted."""

    def __init__(self, url: str, *, turns: bool = False, drops_options: bool = False) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._turns, self._drops_options = turns, drops_options
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._shared: dict[bytes, list[_ToServer]] = {}
        self._next = itertools.count()
        self._sockets: list[socket.socket] = []
        self._is_closed = False
        self.served = 0
        """Transactions and single statements passed on."""
        port = self._listening.getsockname()[1]
        self.url = parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for one in self._sockets:
            _hang_up(one)
        self._accepting.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client = self._listening.accept()[0]
            except OSError:
                return
            self._sockets.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            self._talk(client)
        except (OSError, EOFError) as error:
            with contextlib.suppress(OSError):
                client.sendall(b"".join(one for one in error.args if isinstance(one, bytes)))
        finally:
            for one in self._sockets if self._is_closed else (client,):
                _hang_up(one)

    def _talk(self, client: socket.socket) -> None:
        startup = _startup(client)
        if startup is None:
            return
        if self._drops_options:
            startup = _without(startup, b"options")
        server = self._server_of(startup)
        with server.lock:
            client.sendall(server.welcome)
        while True:
            head = _read(client, 5)  # a client begins: it gets a server until it is idle again
            server = self._server_of(startup, server)
            with server.lock:
                self.served += 1
                server.exchange(client, head)

    def _server_of(self, startup: bytes, last: _ToServer | None = None) -> _ToServer:
        if last is not None and not self._turns and not last.is_gone:
            return last
        if last is None or not self._turns:
            return self._connected(startup)
        with self._lock:
            shared = self._shared.setdefault(startup, [])
            shared[:] = [one for one in shared if not one.is_gone]
            if len(shared) < _CONNECTIONS:
                shared.append(self._connected(startup))
            return shared[next(self._next) % len(shared)]

    def _connected(self, startup: bytes) -> _ToServer:
        return until(lambda: self._maybe_connected(startup), "the server")

    def _maybe_connected(self, startup: bytes) -> _ToServer | None:
        """A connection to the server. None while it restarts: clients wait for it."""
        with contextlib.suppress(OSError):
            to_server = socket.create_connection(self._target)
            self._sockets.append(to_server)
            try:
                return _ToServer(to_server, startup)
            except (OSError, EOFError):
                _hang_up(to_server)
                raise
        return None


class _ToServer:
    """A connection to the server, and what it said at its beginning."""

    def __init__(self, to_server: socket.socket, startup: bytes) -> None:
        self.socket, self.lock = to_server, threading.Lock()
        to_server.sendall(startup)
        self.welcome, kind = b"", b""
        while kind != b"Z":
            kind, message = _message(to_server)
            if kind == b"K":  # a pooler's clients have a process id that it made up
                message = b"K" + struct.pack("!iii", 12, 1, 1)
            self.welcome += message
            if kind == b"E":
                raise EOFError(message)

    @property
    def is_gone(self) -> bool:
        self.socket.setblocking(False)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
            return True  # its end, or the message that it shuts down
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            with contextlib.suppress(OSError):
                self.socket.setblocking(True)

    def exchange(self, client: socket.socket, head: bytes) -> None:
        """Pass messages on until the server says that no transaction is open."""
        while True:
            kind, message = _message(client, head)
            if kind == b"X":
                raise EOFError
            self.socket.sendall(message)
            head = b""
            if kind in (b"S", b"Q") and self._answered(client):
                return

    def _answered(self, client: socket.socket) -> bool:
        """Pass on the answers to a `Sync`; whether the server is idle then."""
        while True:
            kind, message = _message(self.socket)
            client.sendall(message)
            if kind == b"Z":
                return message[5:6] == b"I"


def _startup(client: socket.socket) -> bytes | None:
    while True:
        head = _read(client, 4)
        message = head + _read(client, struct.unpack("!i", head)[0] - 4)
        code = struct.unpack("!i", message[4:8])[0]
        if code == 196608:
            return message
        if code == 80877102:  # a request to cancel
            return None
        client.sendall(b"N")  # no TLS, no GSS


def _without(startup: bytes, name: bytes) -> bytes:
    parts = startup[8:].rstrip(b"\0").split(b"\0")
    pairs = zip(parts[::2], parts[1::2], strict=True)
    kept = b"".join(b"%s\0%s\0" % pair for pair in pairs if pair[0] != name) + b"\0"
    return struct.pack("!ii", len(kept) + 8, 196608) + kept


def _message(source: socket.socket, head: bytes = b"") -> tuple[bytes, bytes]:
    head = head or _read(source, 5)
    return head[:1], head + _read(source, struct.unpack("!i", head[1:])[0] - 4)


def _read(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        data = source.recv(count - len(found))
        if not data:
            raise EOFError
        found += data
    return found


def _hang_up(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
