"""A fork server whose children are killed at an I/O operation: `python -m matrix.kills.process`.

It imports LangGraph and the agents once, then forks a child for each order, one line of JSON, and
answers with one line about it. It is the supervisor of its children. Start several of them with
different hash seeds, so that a child finds its sets in another order than the one before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matrix.kills.io_stops import Operation, listen, supervise
from perdure.testing import Clock
from perdure.times import milliseconds, moment

CALLS = {
    "journal": (
        *("pwrite64", "fsync", "fdatasync", "truncate", "ftruncate", "fallocate"),
        *("rename", "renameat", "unlink", "unlinkat"),
    ),
    "lock": ("fcntl",),
    "world": ("write", "fsync"),
    "send": ("sendto",),
    "receive": ("recvfrom",),
}
"""Kind of operation → the system calls that make it. A process is stopped only at those it may be
killed at: each stop costs two switches of process."""
DEADLINE = 60.0
"""Seconds that a child may take."""


@dataclass
class Result:
    """How a child ended, and what it reported."""

    status: int
    counts: dict[str, int]
    """Kind of operation → how many it made."""
    killed: str | None = None
    """The operation it was killed at."""
    reported: dict[str, Any] = field(default_factory=dict)
    printed: str = ""


class ForkServer:
    """The judge's side. One child at a time."""

    def __init__(self, hash_seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "matrix.kills.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
            start_new_session=True,  # Ctrl-C is for the judge
        )

    def run(self, order: dict[str, Any]) -> Result:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        assert reply, "the fork server is gone"
        return Result(**json.loads(reply))

    def close(self) -> None:
        self._process.communicate(timeout=30)


class Counting:
    """Counts the operations of a process by kind, and decides at which one it dies."""

    def __init__(self, journal: str, world: str, kill: tuple[str, int] | None) -> None:
        self._journal, self._world, self._kill = journal, world, kill
        self._sockets: dict[str, bool] = {}
        self.counts: Counter[str] = Counter()
        self.at = ""

    def __call__(self, operation: Operation) -> bool:
        kind, target = self._kind(operation)
        if not kind:
            return False
        self.counts[kind] += 1
        if self._kill != (kind, self.counts[kind]):
            return False
        name = "a socket" if target.startswith("socket:") else Path(target).name
        self.at = f"{kind} {self.counts[kind]}: {operation.call} {name}".strip()
        return True

    def _kind(self, operation: Operation) -> tuple[str, str]:
        target = operation.target
        if target.startswith("socket:"):
            if not self._is_tcp(target):
                return "", target
            return "receive" if operation.call == "recvfrom" else "send", target
        if target == self._world:
            return "world", target
        if operation.call in ("unlink", "unlinkat") or target.startswith(self._journal):
            return "lock" if operation.call == "fcntl" else "journal", target
        return "", target

    def _is_tcp(self, target: str) -> bool:
        if target not in self._sockets:
            inode = re.sub(r"\D", "", target)
            tables = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
            lines = [line.split() for file in tables if file.exists() for line in file.open()]
            self._sockets[target] = any(line[9] == inode for line in lines)
        return self._sockets[target]


def main() -> None:
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        result = _serve(json.loads(line))
        print(json.dumps(result.__dict__), flush=True)


def _serve(order: dict[str, Any]) -> Result:
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    with ours, tempfile.TemporaryFile() as printed:
        pid = os.fork()
        if pid == 0:
            ours.close()
            os.close(reader)
            _child(order, theirs, writer, printed.fileno())
        theirs.close()
        os.close(writer)
        with open(reader, "rb") as report:
            counting = _watch(ours, pid, order)
            facts = json.loads(report.read() or b"{}")
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        printed.seek(0)
        words = printed.read().decode(errors="replace")[-6000:]
    return Result(status, dict(counting.counts), counting.at or None, facts, words)


def _calls(order: dict[str, Any]) -> set[str]:
    """The calls at which a child is stopped; none if it is neither killed nor counted."""
    if order["kill"] is not None:
        return set(CALLS[order["kill"][0]])
    return {call for calls in CALLS.values() for call in calls} if order["count"] else set()


def _watch(ours: socket.socket, pid: int, order: dict[str, Any]) -> Counting:
    kill = order["kill"]
    counting = Counting(order["journal"], order["world"], None if kill is None else tuple(kill))
    _, files, _, _ = socket.recv_fds(ours, 1, 1)
    for stops in files:
        try:
            supervise(stops, pid, counting, time.monotonic() + DEADLINE + 5)
        except TimeoutError:
            pass
        finally:
            os.close(stops)
    return counting


def _child(order: dict[str, Any], theirs: socket.socket, report: int, printed: int) -> None:
    code = 3
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for file, ours in ((nothing, 0), (printed, 1), (printed, 2)):
            os.dup2(file, ours)
        faulthandler.dump_traceback_later(DEADLINE, exit=True, file=2)
        random.seed()
        if calls := _calls(order):
            stops = listen(calls)
            socket.send_fds(theirs, [b"."], [stops])
            os.close(stops)
        theirs.close()
        facts = asyncio.run(_tell(order))
        os.write(report, json.dumps(facts, default=str).encode())
        code = 0
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    os._exit(code)


def _clock(file: Path, begin: int) -> tuple[Clock, Callable[[], None]]:
    """A clock that goes on where the last process left it, and what stores it after a move."""
    clock = Clock(moment(int(file.read_text()) if file.exists() else begin))
    return clock, lambda: os.replace(_written(file, str(milliseconds(clock.time))), file)


def _written(file: Path, text: str) -> Path:
    new = file.with_suffix(".new")
    new.write_text(text)
    return new


async def _tell(order: dict[str, Any]) -> dict[str, Any]:
    """Play the scenario from where the last process died. Returns what is to be judged."""
    import perdure
    from matrix.kills import orders, scenarios, world
    from perdure.types import EventKind

    here = world.enter(order["world"])
    scenario = scenarios.SCENARIOS[order["scenario"]]
    clock, moved = _clock(Path(order["clock"]), order["begin"])
    async with perdure.Runtime(order["url"], clock=clock) as rt:
        for name, graph in scenario.graphs.items():
            rt.register(graph(rt), name=name)
        rt.deliver("booked", orders.deliver)
        performer = scenarios.Performer(scenario, rt, clock, here)
        runs = await performer.play(moved)
        diagnosis = await rt.doctor()
        outputs = {run.graph: run.output for run in runs}
        ended = [
            [run.graph, run.state.value, run.reason or (str(run.error) if run.error else "")]
            for run in runs
        ]
        events = [event for run in runs for event in await rt.events(run.id)]
        settled = [event for event in events if event.kind == EventKind.SETTLED]
        unfinished = any(state != scenario.ends[graph] for graph, state, _ in ended)
        return {
            "ended": ended,
            "result": None if unfinished else scenario.result(outputs),
            "settled": len(settled),
            "strange": performer.strange,
            "doctor": [str(one) for one in diagnosis.findings],
        }


if __name__ == "__main__":
    import perdure.journal.postgres
    import perdure.runtime  # noqa: F401
    from matrix.kills import scenarios  # noqa: F401

    main()
