"""The judge's side of the processes that are killed: starts them, and collects their messages.

A `ForkServer` is the process that imported the agent; each of its slots runs one child at a time.
This process never imports the agent.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import IO, Any

from perdure.errors import BadArgument, Error
from perdure.testing.crashtest.messages import JsonLines, send

GRACE = 5.0
"""Seconds beyond its deadline in which a child prints where it hangs."""
MOST = 20_000
"""Maximum length of a child's output that is kept: its end."""


class ProcessLost(Error):
    """The process that imported the agent is gone; it can fork no more children."""


@dataclass(frozen=True)
class ProcessResult:
    """The messages, exit status and output of one child."""

    facts: list[list[Any]]
    status: int
    printed: str

    @property
    def killed(self) -> bool:
        """Whether it reached the point of its kill."""
        return any(fact[0] == "killed" for fact in self.facts)

    def last(self, kind: str) -> list[Any] | None:
        """Its last message of a kind."""
        return next((fact[1:] for fact in reversed(self.facts) if fact[0] == kind), None)


class ForkServer:
    """The process that has imported the agent. Raises `BadArgument` if it cannot."""

    def __init__(self, place: str, *, url: str, stock: bool) -> None:
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        self._slots: list[_Slot] = []
        self._free: list[_Slot] = []
        self._stopped = False
        self._opening = threading.Lock()
        self._control, self._process = start_process(self._printed)
        try:
            order = {"place": place, "path": _paths(), "url": url, "stock": stock}
            send(self._control, order)
            reply = JsonLines(self._control).next()
        except (OSError, KeyboardInterrupt):
            self.close()
            raise
        if reply is None or "wrong" in reply:
            wrong = self.output() if reply is None else reply["wrong"]
            self.close()
            raise BadArgument(f"{place} cannot be tested. {wrong}")

    def run(self, order: dict[str, Any]) -> ProcessResult:
        """Fork a child in a free slot, or in a new one, and wait for its end."""
        with self._opening:
            if self._stopped:
                raise ProcessLost("The crash test is stopped.")
            slot = self._free.pop() if self._free else self._open_slot()
        try:
            return slot.run(order)
        finally:
            self._free.append(slot)

    def _open_slot(self) -> _Slot:
        ours, theirs = socket.socketpair()
        with theirs:
            send(self._control, {"slot": True}, theirs.fileno())
        slot = _Slot(self, ours)
        self._slots.append(slot)
        return slot

    def output(self) -> str:
        return "" if self._printed.closed else _end_of(self._printed)

    def stop(self) -> None:
        """End every child now. Other threads may be waiting for them."""
        with self._opening:
            self._stopped = True
            for slot in self._slots:
                slot.stop()

    def close(self) -> None:
        """End every process. No other thread may use the server any more."""
        self.stop()
        for slot in self._slots:
            slot.close()
        self._control.close()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._printed.close()


class _Slot:
    """Children, one after the other."""

    def __init__(self, server: ForkServer, control: socket.socket) -> None:
        self._server, self._control = server, control
        self._replies = JsonLines(control)
        self._pid: int | None = None

    def run(self, order: dict[str, Any]) -> ProcessResult:
        """Fork a child, and wait for its end."""
        ours, theirs = socket.socketpair()
        with ours, tempfile.TemporaryFile() as printed:
            with theirs:
                try:
                    send(self._control, order, theirs.fileno(), printed.fileno())
                except OSError as error:
                    raise ProcessLost(self._lost()) from error
            facts: list[list[Any]] = []
            status = self._listen(ours, facts, time.monotonic() + order["deadline"] + GRACE)
            return ProcessResult(facts, status, _end_of(printed))

    def _listen(self, ours: socket.socket, facts: list[list[Any]], deadline: float) -> int:
        messages = JsonLines(ours)
        status: int | None = None
        with selectors.DefaultSelector() as waiting:
            waiting.register(ours, selectors.EVENT_READ)
            waiting.register(self._control, selectors.EVENT_READ)
            while True:
                ready = waiting.select(0 if status is not None else 0.5)
                if not ready and status is not None:
                    return status
                if time.monotonic() > deadline:
                    self.kill()
                for key, _ in ready:
                    if key.fileobj is ours:
                        if not _note(messages, ours, facts):
                            waiting.unregister(ours)
                    elif (found := self._reply()) is not None:
                        status = found

    def _reply(self) -> int | None:
        try:
            replies = self._replies.take()
        except OSError:
            replies = None
        if replies is None:
            raise ProcessLost(self._lost())
        status = None
        for reply in replies:
            self._pid = reply.get("pid")
            status = reply.get("status", status)
        return status

    def _lost(self) -> str:
        words = self._server.output()
        said = f" It said:\n{words}" if words else ""
        return f"The process that imported the agent is gone.{said}"

    def kill(self) -> None:
        if self._pid is not None:
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)

    def stop(self) -> None:
        self.kill()
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._control.close()


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


def _note(messages: JsonLines, ours: socket.socket, facts: list[list[Any]]) -> bool:
    """Collect messages and acknowledge them; False at the end."""
    try:
        lines = messages.take()
    except OSError:
        lines = None
    for fact in lines or ():
        facts.append(fact)
        with contextlib.suppress(OSError):  # it is dead by now
            ours.send(b".")
    return lines is not None


def _paths() -> list[str]:
    """This process's module search path, for the one that imports the agent."""
    here = os.getcwd()
    paths = [path or here for path in sys.path]
    return paths if here in paths else [here, *paths]


def _end_of(file: Any) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MOST))
    text: str = file.read().decode(errors="replace").strip()
    return text
