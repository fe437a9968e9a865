"""Worker processes that are killed with SIGKILL, and replaced at once.

They are forked from a process that has imported everything, so a new one starts in no time. When
the process that started them is gone, for whatever reason, they exit.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

PROCESSES = multiprocessing.get_context("forkserver")


def warm_up() -> None:
    """Import everything now, in the process that workers are forked from."""
    parts = [__name__, *(f"{__package__.rpartition('.')[0]}.app", f"{__package__}.stock")]
    PROCESSES.set_forkserver_preload(["__main__", *parts])
    first = PROCESSES.Process(target=int)
    first.start()
    first.join()


class Crew:
    """Some workers of one kind. Their output goes to `log` in a folder, with everything else they
    leave behind."""

    def __init__(self, folder: Path, count: int, worker: Callable[..., None], **order: Any) -> None:
        self._folder, self._worker, self._order = folder, worker, order
        self._changing = threading.RLock()
        self._alive: dict[int, ForkServerProcess] = {}
        self.killed = 0
        with self._changing:
            self.pids = [self._start() for _ in range(count)]

    def _start(self) -> int:
        order = (self._folder, self._worker, self._order)
        process = PROCESSES.Process(target=_work, args=order, daemon=True)
        process.start()
        assert process.pid is not None
        self._alive[process.pid] = process
        return process.pid

    def name(self, pid: int) -> str:
        return f"process {pid}"

    def kill(self, pid: int) -> bool:
        """Kill one of them, now, and start another. False: it is no longer one of them."""
        with self._changing:
            if pid not in self.pids:
                return False
            self._end(pid)
            self.killed += 1
            self.pids[self.pids.index(pid)] = self._start()
            return True

    def _end(self, pid: int) -> None:
        process = self._alive.pop(pid)
        process.kill()
        process.join()

    def check(self) -> None:
        """Raise if a worker has ended that was not killed here."""
        with self._changing:
            dead = [pid for pid, process in self._alive.items() if process.exitcode is not None]
            if dead:
                raise RuntimeError(f"A worker ended by itself: {dead}")

    def end(self) -> None:
        with self._changing:
            for pid in list(self._alive):
                self._end(pid)
            self.pids = []


# -- in the workers


def _work(folder: Path, worker: Callable[..., None], order: dict[str, Any]) -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    with (folder / "log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ["TMPDIR"] = str(folder)
    worker(**order)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def campaign(settings: dict[str, Any], clock: str, environment: dict[str, str]) -> None:
    """A worker of the campaign application. `environment` decides where its traces go."""
    from perdure.observe import LangSmith, from_env

    from ..app import App
    from ..settings import Settings
    from .clock import SharedClock

    os.environ.update(environment)
    observers = from_env()
    if "LANGSMITH_ENDPOINT" in environment:  # LangChain itself reports nothing
        observers.append(LangSmith())
    with App(Settings(**settings), clock=SharedClock(clock), observe=observers) as app:
        asyncio.run(app.runtime.work(concurrency=6))


def host(settings: dict[str, Any], clock: str, port: int, secret: str) -> None:
    """A web server that a cron ticks."""
    import uvicorn

    from ..app import App
    from ..settings import Settings
    from .clock import SharedClock

    with App(Settings(**settings), clock=SharedClock(clock)) as app:
        uvicorn.run(app.runtime.asgi(secret=secret, worker=False), port=port, log_level="warning")


def cron(path: str, smtp_port: int, clock: str) -> None:
    """The cron of the same campaign on stock LangGraph."""
    from .clock import SharedClock
    from .stock import Cron

    Cron(path, smtp_port, SharedClock(clock)).run()
