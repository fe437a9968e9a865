"""`python script.py` and `python -c code`, forked from a process that has imported LangGraph.

A new interpreter takes two seconds for that. What is forked runs the same code, in the directory
and the environment it is given, and dies as any process does.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.fork_server import Child, ForkServer, Tell


def start(
    server: ForkServer,
    *arguments: str,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    quiet: bool = False,
) -> Child:
    """A process that does what `python` does with these arguments."""
    return server.start(
        "forked_python:run",
        exits=True,
        arguments=arguments,
        directory=str(cwd or Path.cwd()),
        environment=dict(os.environ if env is None else env),
        **({"log": os.devnull} if quiet else {}),
    )


def run(order: dict[str, Any], tell: Tell) -> None:
    """The child."""
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    first, *rest = order["arguments"]
    sys.path[0] = order["directory"]
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(rest[0], main.__dict__)
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


class Process:
    """What pages of the docs use of `Popen`."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._is_over = False

    def kill(self) -> None:
        """From any thread, while another one waits."""
        if not self._is_over:
            with contextlib.suppress(ProcessLookupError):
                self._child.send(signal.SIGKILL)

    def wait(self) -> int:
        status = self._child.wait()
        self._is_over = True
        return status


def instead_of_subprocess(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on `subprocess` forks Python; other programs and options are started as ever."""
    plain_run, plain_popen = subprocess.run, subprocess.Popen

    def is_ours(command: Any, options: dict[str, Any]) -> bool:
        return (
            isinstance(command, list)
            and command[0] == sys.executable
            and (command[1] == "-c" or command[1].endswith(".py"))
            and options.keys() <= {"env", "stderr"}
        )

    def forked(command: list[str], options: dict[str, Any]) -> Process:
        quiet = options.get("stderr") == subprocess.DEVNULL
        return Process(start(server, *command[1:], env=options.get("env"), quiet=quiet))

    def run(command: Any, **options: Any) -> Any:
        if is_ours(command, options):
            return subprocess.CompletedProcess(command, forked(command, options).wait())
        return plain_run(command, **options)

    def popen(command: Any, **options: Any) -> Any:
        if is_ours(command, options):
            return forked(command, options)
        return plain_popen(command, **options)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(subprocess, "Popen", popen)
