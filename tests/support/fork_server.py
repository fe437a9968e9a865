"""One process that forks all those that a test kills: `python -m tests.support.fork_server`.

It imports LangGraph, and each module whose function is asked for, once; then a child is there in
milliseconds. A child calls `function(order, tell)`, which may be a coroutine function: one of the
test's own module, or, by its name, one of a module below `tests.support`. `tell` sends
a fact, any JSON, to the test; what was told survives the child. A child that returns leaves by
`os._exit`, or with `exits=True` as any interpreter does, with what is registered for its exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import importlib
import inspect
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.polling import PATIENCE, until

Tell = Callable[..., None]
Function = str | Callable[[dict[str, Any], Tell], Any]
"""What a child calls, or `module:function` below `tests.support`."""


class Ended(NamedTuple):
    """How a child ended, 0 or the signal, negative; and what it told."""

    status: int
    facts: list[list[Any]]

    def all(self, kind: str) -> list[list[Any]]:
        return [fact[1:] for fact in self.facts if fact[0] == kind]

    def one(self, kind: str) -> Any:
        [found] = self.all(kind)
        return found[0] if len(found) == 1 else found


class Child:
    """A process that a test started."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid = server, pid
        self._ended: Ended | None = None

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        """Stop it, and wait until it stands still: its threads see the signal only when they are
        scheduled, and write until then."""
        self.send(signal.SIGSTOP)
        until(self.is_stopped, "a process that stands still")

    def is_stopped(self) -> bool:
        """Whether every thread of it stands still."""
        try:
            stats = [file.read_text() for file in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        except (FileNotFoundError, ProcessLookupError):  # a thread that just ended
            return False
        return bool(stats) and all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    def ended(self, seconds: float = 0.01) -> Ended | None:
        """How it ended; None if it did not within this time."""
        if self._ended is None:
            found = self._server.ask(do="wait", pid=self.pid, seconds=seconds)
            self._ended = None if found["status"] is None else Ended(**found)
        return self._ended

    def is_over(self) -> bool:
        return self.ended() is not None

    @property
    def facts(self) -> list[list[Any]]:
        """What it told, once it has ended."""
        assert self._ended is not None
        return self._ended.facts

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its status."""
        found = self.ended(seconds)
        assert found is not None, f"process {self.pid} is still there after {seconds} s"
        return found.status

    def kill(self) -> None:
        if not self.is_over():
            self.send(signal.SIGKILL)
            self.wait()


class ForkServer:
    """The test's side."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, function: Function, *, exits: bool = False, **order: Any) -> Child:
        """A child that calls the function."""
        found = self.ask(do="start", function=_name(function), exits=exits, order=order)
        return Child(self, found["pid"])

    def run(self, function: Function, *, exits: bool = False, **order: Any) -> Ended:
        """The same, to its end."""
        found = self.ask(do="run", function=_name(function), exits=exits, order=order)
        return Ended(**found)

    @contextlib.contextmanager
    def child(self, function: Function, **order: Any) -> Iterator[Child]:
        """One that is killed at the end of the block, if it is still there."""
        child = self.start(function, **order)
        try:
            yield child
        finally:
            child.kill()

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        assert reply, "the fork server is gone"
        found: dict[str, Any] = json.loads(reply)
        return found

    def close(self) -> None:
        self._process.communicate(timeout=30)


def _name(function: Function) -> str:
    if isinstance(function, str):
        return function if function.startswith("tests.") else f"tests.support.{function}"
    return f"{function.__module__}:{function.__name__}"


# -- the server's side


def main() -> None:
    facts: dict[int, int] = {}
    gc.freeze()
    for line in sys.stdin:
        question = json.loads(line)
        if question["do"] == "wait":
            pid = question["pid"]
            status = _status(pid, question["seconds"])
            reply: dict[str, Any] = {"status": status, "facts": []}
            if status is not None:
                reply["facts"] = _told(facts.pop(pid), to_the_end=False)
        else:
            pid, pipe = _fork(**question)
            if question["do"] == "run":
                told = _told(pipe, to_the_end=True)
                reply = {"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "facts": told}
            else:
                facts[pid] = pipe
                reply = {"pid": pid}
        print(json.dumps(reply), flush=True)
    for pid in facts:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _fork(do: str, function: str, exits: bool, order: dict[str, Any]) -> tuple[int, int]:
    module, _, name = function.partition(":")
    if module not in sys.modules:
        importlib.import_module(module)
        gc.collect()
        gc.freeze()  # a child that looks for garbage need not look at what was here before it
    called = getattr(sys.modules[module], name)
    reader, writer = os.pipe()
    if pid := os.fork():
        os.close(writer)
        return pid, reader
    os.close(reader)
    for ours in (0, 1):  # a process that outlives us must not keep our orders and replies open
        os.dup2(os.open(os.devnull, os.O_RDWR), ours)
    if "log" in order:
        os.dup2(os.open(order.pop("log"), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), 2)
    code = _call(called, order, writer)
    sys.stderr.flush()
    if exits:
        sys.exit(code)
    os._exit(code)


def _call(function: Callable[..., Any], order: dict[str, Any], pipe: int) -> int:
    faulthandler.dump_traceback_later(order.pop("limit", 120), exit=True)  # says where it hangs
    random.seed()

    def tell(*fact: Any) -> None:
        os.write(pipe, json.dumps(fact).encode() + b"\n")

    try:
        found = function(order, tell)
        if inspect.iscoroutine(found):
            asyncio.run(found)
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        return 3
    return 0


def _status(pid: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)


def _told(pipe: int, to_the_end: bool) -> list[Any]:
    """Whole lines: a child may die in the middle of one, and its own children outlive it."""
    os.set_blocking(pipe, to_the_end)
    with open(pipe, "rb") as lines:
        return [
            json.loads(line) for line in (lines.read() or b"").splitlines(True) if line[-1] == 10
        ]


if __name__ == "__main__":
    import psycopg  # noqa: F401

    from perdure.testing import runtime  # noqa: F401
    from tests.support.trusted_roots import read_once

    read_once()
    main()
