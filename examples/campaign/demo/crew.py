"""Worker processes that are killed with SIGKILL, and replaced at once.

One process, the nursery, imports everything and then forks a worker for each order it reads, so a
new one starts in no time. When the process that gives the orders is gone, for whatever reason, the
nursery kills its workers and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import {0}; {0}.serve()"


class Nursery:
    """The process that forks workers. Their output goes to `log` in a folder, with everything else
    they leave behind."""

    def __init__(self, folder: Path) -> None:
        self._giving = threading.Lock()
        with (folder / "log").open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START.format(__name__), json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,  # Ctrl-C is for the process that gives the orders
                env={**os.environ, "TMPDIR": str(folder)},
                text=True,
            )

    def order(self, *words: Any) -> Any:
        with self._giving:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(words) + "\n")
                self._process.stdin.flush()
            if not (answer := self._process.stdout.readline()):
                raise RuntimeError("The process that starts the workers has ended.")
            return json.loads(answer)

    def wait(self) -> None:
        """Wait until it has imported everything."""
        self.order("dead")

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Crew:
    """Some workers of one kind."""

    def __init__(self, nursery: Nursery, count: int, kind: str, **order: Any) -> None:
        self._nursery, self._kind, self._order = nursery, kind, order
        self._changing = threading.RLock()
        self.pids: list[int] = []
        self.killed = 0
        with self._changing:
            self.pids = [self._start() for _ in range(count)]

    def _start(self) -> int:
        return int(self._nursery.order("start", self._kind, self._order))

    def name(self, pid: int) -> str:
        return f"process {pid}"

    def kill(self, pid: int) -> bool:
        """Kill one of them, now, and start another. False: it is no longer one of them."""
        with self._changing:
            if pid not in self.pids:
                return False
            os.kill(pid, signal.SIGKILL)  # the pid is ours until it is reaped
            self._nursery.order("bury", pid)
            self.killed += 1
            self.pids[self.pids.index(pid)] = self._start()
            return True

    def check(self) -> None:
        """Raise if a worker has ended that was not killed here."""
        with self._changing:
            dead = self._nursery.order("dead")
            if dead:
                raise RuntimeError(f"A worker ended by itself: {dead}")

    def end(self) -> None:
        with self._changing:
            for pid in self.pids:
                os.kill(pid, signal.SIGKILL)
                self._nursery.order("bury", pid)
            self.pids = []


# -- in the nursery, and in the workers


def serve() -> None:
    """Fork workers until the orders end."""
    for name in ("..app", ".stock"):
        importlib.import_module(name, __package__)
    alive: set[int] = set()
    for line in sys.stdin:
        word, *rest = json.loads(line)
        answer: Any = None
        if word == "start":
            answer = os.fork()
            if answer == 0:
                _work(WORKERS[rest[0]], rest[1])
            alive.add(answer)
        elif word == "bury":
            os.waitpid(rest[0], 0)
            alive.discard(rest[0])
        elif word == "dead":
            answer = [pid for pid in alive if os.waitpid(pid, os.WNOHANG)[0]]
            alive.difference_update(answer)
        print(json.dumps(answer), flush=True)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


def _work(worker: Callable[..., None], order: dict[str, Any]) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    try:
        worker(**order)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
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


WORKERS: dict[str, Callable[..., None]] = {"campaign": campaign, "host": host, "cron": cron}
