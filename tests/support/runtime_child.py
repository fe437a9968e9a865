"""What processes do that are killed, stopped and woken: children of `tests.support.fork_server`.

What the nodes of a child do to the world goes to a ledger: a file to which each line is appended
with fsync, and which no crash of the child can take back.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar

from langgraph.graph import END, START, StateGraph

import perdure
from perdure.errors import AlreadyAnswered
from perdure.testing import Clock, HostClock, set_commit_interval, watch_points
from perdure.types import Kind
from tests.support.fork_server import Child, ForkServer, Tell
from tests.support.polling import until

T = TypeVar("T")

NEVER = 3600.0
BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
PATIENCE = 30.0


class Ledger:
    """What happened in the world, whatever becomes of the process that did it."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)

    def add(self, line: str) -> None:
        file = os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        os.write(file, f"{line}\n".encode())
        os.fsync(file)
        os.close(file)

    def lines(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return Path(self._path).read_text().splitlines()
        return []

    def count(self) -> Counter[str]:
        return Counter(self.lines())


# -- the story: a step, two branches that wait, a subgraph that waits twice, a wait nobody answers


class Story(TypedDict, total=False):
    ledger: str
    log: Annotated[list[str], operator.add]


def does(state: Story, line: str) -> Story:
    Ledger(state["ledger"]).add(line)
    return {"log": [line]}


def think(state: Story) -> Story:
    return does(state, "think")


def nap(state: Story) -> Story:
    perdure.sleep(timedelta(minutes=5))
    return does(state, "nap")


def approve(state: Story) -> Story:
    answer = perdure.ask({"draft": "hello"})
    return does(state, f"approve {answer}")


def listen(state: Story) -> Story:
    early = perdure.wait_for("early")
    late = perdure.wait_for("late")
    return does(state, f"listen {early} {late}")


def again(state: Story) -> Story:
    more = perdure.wait_for("late", timeout=timedelta(hours=1), default="nothing")
    return does(state, f"again {more}")


def _in_a_loop(node: Callable[[Story], Story]) -> Callable[[Story], Awaitable[Story]]:
    async def run(state: Story) -> Story:
        await asyncio.sleep(0)
        return node(state)

    return run


def story(in_loop: bool = False) -> StateGraph[Any, Any, Any, Any]:
    """Of plain functions, or of coroutines."""

    def node(function: Callable[[Story], Story]) -> Any:
        return _in_a_loop(function) if in_loop else function

    nested = StateGraph(Story)
    nested.add_node("listen", node(listen))
    nested.add_edge(START, "listen")
    graph = StateGraph(Story)
    for function in (think, nap, approve, again):
        graph.add_node(function.__name__, node(function))
    # Its log begins empty, or it would hand back what it was given.
    compiled: Any = nested.compile()
    graph.add_node("nested", compiled, input_schema=Inner)
    graph.add_edge(START, "think")
    graph.add_edge("think", "nap")
    graph.add_edge("think", "approve")
    graph.add_edge(["nap", "approve"], "nested")
    graph.add_edge("nested", "again")
    graph.add_edge("again", END)
    return graph


class Inner(TypedDict, total=False):
    ledger: str


async def play(rt: perdure.Runtime, clock: Clock, order: dict[str, Any], tell: Tell) -> None:
    """Start the story, or find it, say what is asked for in `words`, and drive it to its end."""
    thread, words = order["thread"], order["words"]
    given = {"ledger": order["ledger"], "log": []}
    run = await rt.start("story", given, thread_id=thread, key="the one")
    tell("started", run.id)
    signals = ["early", "late"] if order["kill"] is None and order["again"] else ["early"]
    for name in signals:
        if await rt.signal(thread, name, words, key=name):
            tell("signalled", name)
    while not (run := await rt.get(run.id)).ended:
        await rt.tick()
        for wait in await rt.waits(run_id=run.id):
            if wait.kind is Kind.HUMAN:
                with contextlib.suppress(AlreadyAnswered):
                    await rt.answer(wait.id, words, by=words)
                    tell("answered")
            asked = wait.name == "late" and wait.expires_at is None
            if asked and await rt.signal(thread, "late", words, key="late"):
                tell("signalled", "late")
        assert clock.time < BEGIN + timedelta(days=30), f"it does not end: {run}"
        clock.advance(timedelta(minutes=10))


async def left_behind(rt: perdure.Runtime, order: dict[str, Any], tell: Tell) -> None:
    """What a killed process left on disk."""
    config = {"configurable": {"thread_id": order["thread"]}}
    done: set[str] = set()
    async for one in rt.saver.alist(config):  # type: ignore[arg-type]
        done.update(one.checkpoint["channel_values"].get("log", ()))
        for _, channel, value in one.pending_writes or ():
            if channel == "log":
                done.update(value)
    tell("on disk", sorted(done))
    tell("runs", [run.id for run in await rt.runs(thread_id=order["thread"])])


async def look_back(rt: perdure.Runtime, order: dict[str, Any], tell: Tell) -> None:
    [run] = await rt.runs(thread_id=order["thread"])
    events = await rt.events(run.id)
    tell("ended", run.id, run.state, run.output["log"])
    tell("events", [[event.n, event.kind] for event in events])
    tell("findings", [str(finding) for finding in (await rt.doctor()).findings])


@contextlib.contextmanager
def killed_at(kill: list[Any] | None) -> Iterator[Counter[str]]:
    """Count how often each point is reached; kill this process at a point and count, `kill`."""
    counts: Counter[str] = Counter()

    def hook(point: str) -> None:
        counts[point] += 1
        if kill == [point, counts[point]]:
            os.kill(os.getpid(), signal.SIGKILL)

    watch_points(hook)
    try:
        yield counts
    finally:
        watch_points(None)


async def crash(order: dict[str, Any], tell: Tell) -> None:
    clock = Clock(BEGIN + timedelta(days=1 if order["again"] else 0))
    rt = perdure.Runtime(order["url"], clock=clock, durability=order["durability"])
    rt.register(story(order["in_loop"]), name="story")
    async with rt:
        set_commit_interval(rt, NEVER)  # a clock that stands still: the same point is the same
        if order["again"]:
            await left_behind(rt, order, tell)
        with killed_at(order["kill"]) as counts:
            await play(rt, clock, order, tell)
        await look_back(rt, order, tell)
    tell("points", dict(counts))


# -- workers


class Work(TypedDict, total=False):
    folder: str
    """Where its ledger is, and the files that let it go on."""
    name: str
    log: Annotated[list[str], operator.add]


def _note(state: Work, word: str) -> None:
    Ledger(Path(state["folder"]) / "ledger").add(f"{state['name']} {word} {os.getpid()}")


def _is_there(state: Work, file: str) -> bool:
    return (Path(state["folder"]) / file).exists()


def hold(state: Work) -> Work:
    """Until there is a file `go`."""
    _note(state, "hold")
    until(lambda: _is_there(state, "go"), "a file `go`", 60.0)
    _note(state, "held")
    return {"log": [f"hold {os.getpid()}"]}


async def block(state: Work) -> Work:
    """The same, and the event loop stands still meanwhile."""
    return hold(state)


def kill(state: Work) -> Work:
    """Takes the worker with it, unless it was fixed."""
    _note(state, "kill")
    if not _is_there(state, "fixed"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"log": ["survived"]}


def spawn(state: Work) -> Work:
    """Leaves children behind, forked and executed, until there is a file `over` or no folder."""
    folder = Path(state["folder"])
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            until(lambda: not folder.exists() or (folder / "over").exists(), "its end", 60.0)
        os._exit(0)
    script = (
        "import os, sys, time\n"
        "while os.path.exists(sys.argv[1]) and not os.path.exists(sys.argv[1] + '/over'):\n"
        "    time.sleep(0.05)"
    )
    other = subprocess.Popen([sys.executable, "-S", "-c", script, str(folder)], close_fds=False)
    _note(state, f"spawned {child} {other.pid}")
    return hold(state)


def step(state: Work) -> Work:
    _note(state, "step")
    return {"log": ["step"]}


def last(state: Work) -> Work:
    _note(state, "last")
    return {"log": ["last"]}


def doze(state: Work) -> Work:
    perdure.sleep(timedelta(milliseconds=200))
    return {"log": ["doze"]}


def chain(*nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(Work)
    graph.add_sequence(nodes)
    graph.add_edge(START, nodes[0].__name__)
    return graph


class SteppedClock(HostClock):
    """This host's clocks, whose wall clock is set by as many seconds as a file says. Of a `host`
    that is named it is another host's."""

    def __init__(self, file: str, host: str | None = None) -> None:
        super().__init__(host)
        self._file = Path(file)

    @property
    def ahead(self) -> timedelta:
        return timedelta(seconds=float(self._file.read_text()))


def worker_runtime(
    url: str, lease: float = 3.0, deaths: int = 3, clock: SteppedClock | None = None
) -> perdure.Runtime:
    """What every worker of these tests drives."""
    rt = perdure.Runtime(url, lease=timedelta(seconds=lease), clock=clock)
    rt.register(chain(hold, last), name="hold")
    rt.register(chain(block, last), name="block")
    rt.register(chain(kill, last), name="kill", deaths=deaths)
    rt.register(chain(spawn, last), name="spawn")
    rt.register(chain(step, doze, last), name="steps", deaths=deaths)
    return rt


def stop_when_told(folder: str) -> None:
    """Stop this process with SIGSTOP once there is a file `stop`, right behind a commit: a process
    that is stopped inside a transaction on SQLite keeps the others waiting, which is another test.
    """
    stops = Path(folder) / "stop"

    def hook(point: str) -> None:
        if point == "commit.after" and stops.exists():
            stops.unlink()
            # Sent to the process, it might stop this thread inside its next commit.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    watch_points(hook)


async def work(order: dict[str, Any], tell: Tell) -> None:
    if order.get("host"):  # another one: it sees no lock file of ours
        tempfile.tempdir = order["host"]
    if order.get("stops"):
        stop_when_told(order["stops"])
    clock = SteppedClock(*order["clock"]) if "clock" in order else None
    rt = worker_runtime(order["url"], **order.get("options", {}), clock=clock)
    async with rt:
        await rt.work(concurrency=order.get("concurrency", 50), grace=timedelta(seconds=1))


def worker_process(server: ForkServer, url: str, **order: Any) -> AbstractContextManager[Child]:
    """A worker that is killed at the end of the block, if it is still there."""
    return server.child("runtime_child:work", url=url, **order)
