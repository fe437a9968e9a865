"""A network that misbehaves: a TCP proxy on loopback between perdure and PostgreSQL.

Bytes pass until it is told otherwise: to hold everything back, or to cut the one connection on
which something is seen next.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Literal
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
