"""The judge's side of the processes that are killed: starts them, and collects their messages.

A `ForkServer` is the process that imported the agent and forks a child for each order. This process
never imports the agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import IO, Any

from perdure.errors import BadArgument, Error

GRACE = 5.0  # seconds beyond its deadline in which a child prints where it hangs
LONGEST_OUTPUT = 20_000  # bytes of a child's output that are kept: its end


class ProcessLost(Error):
    """The process that imported the agent is gone; it can fork no more children."""


@dataclass(frozen=True)
class ProcessResult:
    """The messages and the output of one child."""

    facts: list[list[Any]]
    printed: str

    @property
    def killed(self) -> bool:
        """Whether it reached the point of its kill."""
        return self.last("killed") is not None

    def last(self, kind: str) -> list[Any] | None:
        """Its last message of a kind."""
        return next((fact[1:] for fact in reversed(self.facts) if fact[0] == kind), None)


class ForkServer:
    """The process that has imported the agent. Raises `BadArgument` if it cannot."""

    def __init__(self, place: str, *, url: str, stock: bool) -> None:
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        self._sending = threading.Lock()
        self._children: set[int] = set()
        self._control, self._process = start_process(self._printed)
        try:
            send(self._control, {"place": place, "path": _paths(), "url": url, "stock": stock})
            reply = receive(self._control)
        except (OSError, KeyboardInterrupt):
            self.close()
            raise
        if reply is None or "wrong" in reply:
            wrong = _end_of(self._printed) if reply is None else reply["wrong"]
            self.close()
            raise BadArgument(f"{place} cannot be tested. {wrong}")

    def run(self, order: dict[str, Any]) -> ProcessResult:
        """Fork a child for an order, and wait for its end."""
        ours, theirs = socket.socketpair()
        with Connection(ours.detach()) as child, tempfile.TemporaryFile() as printed:
            with theirs, self._sending:
                try:
                    socket.send_fds(self._control, [b"+"], [theirs.fileno(), printed.fileno()])
                except OSError as error:
                    raise self._lost() from error
            facts = self._listen(child, order)
            if not facts:
                raise self._lost()
            return ProcessResult(facts, _end_of(printed))

    def _lost(self) -> ProcessLost:
        printed = "" if self._printed.closed else _end_of(self._printed)
        more = f" It printed:\n{printed}" if printed else ""
        return ProcessLost(f"The process that imported the agent is gone.{more}")

    def stop(self) -> None:
        """End every child now. Other threads may be waiting for them."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        for pid in list(self._children):
            _kill_group(pid)

    def close(self) -> None:
        """End every process. No other thread may use the server any more."""
        self.stop()
        self._control.close()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._printed.close()

    def _listen(self, child: Connection, order: dict[str, Any]) -> list[list[Any]]:
        """Give a child its order, then collect and acknowledge its messages until it ends."""
        facts: list[list[Any]] = []
        pid = 0
        deadline = time.monotonic() + order["deadline"] + GRACE
        try:
            child.send_bytes(json.dumps(order).encode())
            while child.poll(max(0.01, deadline - time.monotonic())):
                facts.append(json.loads(child.recv_bytes()))
                if not pid:
                    pid = facts[0][1]
                    self._children.add(pid)
                child.send_bytes(b"")
        except (OSError, EOFError):  # the child is dead
            pass
        finally:
            if pid:
                _kill_group(pid)
                self._children.discard(pid)
        return facts


def _kill_group(pid: int) -> None:
    """Kill a child, and what the agent in it started."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def start_process(output: IO[bytes]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a fork server; the socket that controls it, and its process."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "perdure.testing.crashtest.fork_server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C ends the judge
        )
    return ours, process


def send(target: socket.socket, message: Any) -> None:
    """Send a line of JSON."""
    target.sendall(json.dumps(message).encode() + b"\n")


def receive(source: socket.socket) -> Any:
    """Wait for a line of JSON, after which nothing was sent yet; None at the end."""
    line = b""
    while not line.endswith(b"\n"):
        data = source.recv(1 << 16)
        if not data:
            return None
        line += data
    return json.loads(line)


def _paths() -> list[str]:
    """This process's module search path, for the one that imports the agent."""
    here = os.getcwd()
    paths = [path or here for path in sys.path]
    return paths if here in paths else [here, *paths]


def _end_of(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LONGEST_OUTPUT))
    return file.read().decode(errors="replace").strip()
