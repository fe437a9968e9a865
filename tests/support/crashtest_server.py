"""Crash tests whose server is forked from a process that has imported LangGraph already."""

from __future__ import annotations

import faulthandler
import importlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from perdure.testing.crashtest import fork_server, processes
from tests.support.fork_server import Child, ForkServer, Tell

for needed in (
    "langchain_core.tracers.context",
    "langchain_core.tracers.run_collector",
    "langchain_core.tracers.stdout",
    "perdure.journal.sqlite",
    "tests.support.crashtest_agents",
):
    importlib.import_module(needed)  # here, in the process that forks


def serve(order: dict[str, Any], tell: Tell) -> None:
    """What `python -m perdure.testing.crashtest.fork_server` does."""
    faulthandler.cancel_dump_traceback_later()  # its children have one each, and would hang here
    os.setsid()
    os.dup2(2, 1)
    control = socket.socket(socket.AF_UNIX)
    control.connect(order["path"])
    fork_server.main(control)


class Process:
    """A child, as `subprocess` shows it."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def wait(self, timeout: float = 60.0) -> int:
        ended = self._child.ended(timeout)
        if ended is None:
            raise subprocess.TimeoutExpired("the crash test's server", timeout)
        return ended.status

    def kill(self) -> None:
        self._child.kill()


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """Inside, no crash test of this process imports LangGraph and its agent again."""
    server = ForkServer()

    def start(output: IO[bytes]) -> tuple[socket.socket, Process]:
        log = f"/proc/{os.getpid()}/fd/{output.fileno()}"
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as door:
            path = str(Path(folder) / "door")
            door.bind(path)
            door.listen()
            child = server.start("crashtest_server:serve", path=path, log=log)
            control, _ = door.accept()
        return control, Process(child)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "start_process", start)
        yield
    server.close()
