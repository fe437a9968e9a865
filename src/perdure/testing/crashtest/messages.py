"""Messages between the judge and a process that may be killed: one line, then its acknowledgement.

A message that was acknowledged survives the death of its sender.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

GONE = 4
"""Exit status of a process whose judge is gone."""


class JudgeConnection:
    """The side of the process that is killed. Plain reads and writes only: they are not audited."""

    def __init__(self, fd: int) -> None:
        self._fd, self._pid = fd, os.getpid()
        self._lock = threading.Lock()
        self._thread = threading.local()

    def send(self, kind: str, *facts: Any) -> None:
        """Return when the judge has it."""
        if os.getpid() != self._pid:
            return  # a process that the agent forked
        if getattr(self._thread, "sending", False):
            return  # the collector cleans up something, in the middle of a line
        self._thread.sending = True
        try:
            line = json.dumps([kind, *facts], default=str).encode() + b"\n"
            with self._lock:
                self._send(memoryview(line))
        finally:
            self._thread.sending = False

    def _send(self, line: memoryview) -> None:
        try:
            while line:
                line = line[os.write(self._fd, line) :]
            heard = os.read(self._fd, 1)
        except OSError:
            heard = b""
        if not heard:
            os._exit(GONE)


class JsonLines:
    """Lines of JSON from a socket, with the file descriptors that came with them."""

    def __init__(self, source: socket.socket) -> None:
        self._source, self._rest = source, b""
        self.files: list[int] = []

    def take(self) -> Iterator[Any] | None:
        """The lines of one read; None at the end."""
        data, files, _, _ = socket.recv_fds(self._source, 1 << 16, 4)
        self.files += files
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return iter([json.loads(line) for line in lines])

    def next(self) -> Any:
        """Wait for the next line; None at the end. The sender must not send more than one."""
        while (lines := self.take()) is not None:
            for line in lines:
                return line
        return None


def send(target: socket.socket, message: Any, *files: int) -> None:
    data = json.dumps(message).encode() + b"\n"
    sent = socket.send_fds(target, [data[:1024]], list(files)) if files else 0
    target.sendall(data[sent:])
