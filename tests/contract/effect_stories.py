"""Agents whose effects are killed in the middle, in children of `tests.support.fork_server`.

What an effect does to the world is a line of the ledger: its name, its key, its label and the
process that did it. What it returns says the same, so that an outcome can be told from another's,
and from one of another call.
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import random
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send

import perdure
from perdure.errors import EffectHeld
from perdure.testing import Clock, set_commit_interval, watch_points
from perdure.types import EffectRecord, EffectState, Kind, State
from tests.support import runtime_child
from tests.support.fork_server import Child, ForkServer, Tell
from tests.support.polling import until
from tests.support.runtime_child import BEGIN, NEVER, Ledger

TABLE = "CREATE TABLE bookings (thread TEXT, label TEXT, pid TEXT)"
"""Where the transactional effect writes, beside the journal."""


class Line(NamedTuple):
    """What the ledger says of one call."""

    name: str
    key: str
    label: str
    pid: int

    @property
    def result(self) -> str:
        return f"{self.label} by {self.pid}"


def calls(ledger: Ledger) -> list[Line]:
    return [Line(*json.loads(line)) for line in ledger.lines()]


# -- the effects


def _does(name: str, ledger: str, label: str) -> str:
    line = Line(name, perdure.key(), label, os.getpid())
    Ledger(ledger).add(json.dumps(line))
    return line.result


@perdure.effect
def act(ledger: str, label: str) -> str:
    return _does("act", ledger, label)


@perdure.effect
async def aact(ledger: str, label: str) -> str:
    await asyncio.sleep(0)
    return _does("aact", ledger, label)


@perdure.effect(key=lambda ledger, label: [ledger, label])
def notify(ledger: str, label: str) -> str:
    return _does("notify", ledger, label)


@perdure.effect(unknown="hold")
def wire(ledger: str, label: str) -> str:
    return _does("wire", ledger, label)


@perdure.effect(unknown="hold")
async def awire(ledger: str, label: str) -> str:
    await asyncio.sleep(0)
    return _does("awire", ledger, label)


@perdure.effect(transactional=True)
def book(ledger: str, label: str) -> str:
    connection = perdure.transaction()
    mark = "%s" if hasattr(connection, "pgconn") else "?"
    values = (ledger, label, str(os.getpid()))
    sql = f"INSERT INTO bookings VALUES ({mark}, {mark}, {mark})"
    connection.execute(sql, values)
    return f"{label} by {os.getpid()}"


def unbuy(result: str, ledger: str, label: str) -> str:
    return _does("undo buy", ledger, f"undo {result}")


@perdure.effect(name="buy in a crash", compensate=unbuy)
def buy(ledger: str, label: str) -> str:
    return _does("buy", ledger, label)


# -- the stories


class Story(TypedDict, total=False):
    ledger: str
    log: Annotated[list[str], operator.add]


class Part(TypedDict, total=False):
    ledger: str
    part: int


def _did(*results: str) -> Story:
    return {"log": list(results)}


def first(state: Story) -> Story:
    """Two in a row."""
    ledger = state["ledger"]
    return _did(act(ledger, "first 1"), act(ledger, "first 2"))


async def left(state: Story) -> Story:
    ledger = state["ledger"]
    return _did(await aact(ledger, "left 1"), await aact(ledger, "left 2"))


def right(state: Story) -> Story:
    ledger = state["ledger"]
    return _did(act(ledger, "right 1"), act(ledger, "right 2"))


def fan(state: Story) -> list[Send]:
    parts = [Part(ledger=state["ledger"], part=part) for part in range(3)]
    return [Send("afan" if part["part"] % 2 else "each", part) for part in parts]


def each(state: Part) -> Story:
    return _did(act(state["ledger"], f"part {state['part']}"))


async def afan(state: Part) -> Story:
    return _did(await aact(state["ledger"], f"part {state['part']}"))


def branches() -> StateGraph[Any, Any, Any, Any]:
    """Two in a row, then two branches side by side, then one task for each of three parts."""
    graph = StateGraph(Story)
    for node in (first, left, right, each, afan):
        graph.add_node(node.__name__, node)
    graph.add_node("join", lambda state: {})
    graph.add_edge(START, "first")
    graph.add_edge("first", "left")
    graph.add_edge("first", "right")
    graph.add_edge(["left", "right"], "join")
    graph.add_conditional_edges("join", fan, ["each", "afan"])
    return graph


async def gathered(state: Story) -> Story:
    """Helpers side by side inside of one node, each with two calls of the same effect; in another
    order each time the node runs."""
    ledger = state["ledger"]
    names = ["x", "y", "z"]
    random.shuffle(names)

    async def helper(name: str) -> list[str]:
        return [await aact(ledger, f"{name} 1"), await aact(ledger, f"{name} 2")]

    found = await asyncio.gather(*map(helper, names))
    return _did(*(result for results in sorted(found) for result in results))


def asking(state: Story) -> Story:
    """One before a question, which runs again with its node, and one after it."""
    ledger = state["ledger"]
    before = act(ledger, "before asking")
    answer = perdure.ask("go on?")
    return _did(before, act(ledger, f"after {answer}"))


async def inner(state: Story) -> Story:
    ledger = state["ledger"]
    return _did(await aact(ledger, "inner 1"), await aact(ledger, "inner 2"))


def deeper(state: Story) -> Story:
    return _did(act(state["ledger"], "deeper"))


class Given(TypedDict, total=False):
    ledger: str


def inside() -> StateGraph[Any, Any, Any, Any]:
    """Gathered inside of a node, around a question, and in a subgraph."""
    nested = StateGraph(Story)
    nested.add_node("inner", inner)
    nested.add_node("deeper", deeper)
    nested.add_edge(START, "inner")
    nested.add_edge("inner", "deeper")
    graph = StateGraph(Story)
    graph.add_node("gathered", gathered)
    graph.add_node("asking", asking)
    compiled: Any = nested.compile()
    graph.add_node("nested", compiled, input_schema=Given)
    graph.add_edge(START, "gathered")
    graph.add_edge("gathered", "asking")
    graph.add_edge("asking", "nested")
    return graph


def settled(state: Story) -> Story:
    ledger = state["ledger"]
    return _did(book(ledger, "book 1"), notify(ledger, "notify 1"), wire(ledger, "wire 1"))


async def asettled(state: Story) -> Story:
    ledger = state["ledger"]
    wired = await awire(ledger, "wire 2")
    booked = await asyncio.to_thread(book, ledger, "book 2")
    return _did(wired, booked, await awire(ledger, "wire 3"))


def policies() -> StateGraph[Any, Any, Any, Any]:
    """A transactional effect, one with a business key, and ones that hold, in both colours."""
    graph = StateGraph(Story)
    graph.add_node("settled", settled)
    graph.add_node("asettled", asettled)
    graph.add_edge(START, "settled")
    graph.add_edge("settled", "asettled")
    return graph


@task
def errand(ledger: str, label: str) -> list[str]:
    return [act(ledger, f"{label} 1"), act(ledger, f"{label} 2")]


@task
async def aerrand(ledger: str, label: str) -> list[str]:
    return [await aact(ledger, f"{label} 1"), await aact(ledger, f"{label} 2")]


async def functional(given: dict[str, Any]) -> dict[str, Any]:
    """Tasks, side by side and one after the other, and an effect of the entrypoint itself."""
    ledger = given["ledger"]
    both = await asyncio.gather(errand(ledger, "task a"), aerrand(ledger, "task b"))
    own = await aact(ledger, "entry")
    last = await errand(ledger, "task c")
    return {"log": [*both[0], *both[1], own, *last]}


def buys(state: Story) -> Story:
    return _did(buy(state["ledger"], "a bed"), act(state["ledger"], "a note"))


def waits(state: Story) -> Story:
    bought = buy(state["ledger"], "a lamp")
    perdure.ask("nobody answers")
    return _did(bought)


def cancelled() -> StateGraph[Any, Any, Any, Any]:
    """Things that can be undone, and a question at which it is cancelled."""
    graph = StateGraph(Story)
    graph.add_node("buys", buys)
    graph.add_node("waits", waits)
    graph.add_edge(START, "buys")
    graph.add_edge("buys", "waits")
    return graph


STORIES: dict[str, Callable[[], Any]] = {
    "branches": branches,
    "inside": inside,
    "policies": policies,
    "functional": lambda: functional,
    "cancelled": cancelled,
}


def made(name: str, saver: perdure.Saver | None = None) -> Any:
    """What the runtime registers, or, with a saver, what is invoked."""
    found = STORIES[name]()
    if name == "functional":
        return entrypoint(checkpointer=saver)(found)
    return found if saver is None else found.compile(checkpointer=saver)


# -- whoever drives them


class Scene:
    """One thread of a story, in this process."""

    def __init__(self, order: dict[str, Any], tell: Tell) -> None:
        self.order, self.tell = order, tell
        self.thread, self.ledger = order["thread"], Ledger(order["ledger"])
        self.given = {"ledger": order["ledger"], "log": []}
        self.clock = Clock(BEGIN + timedelta(days=order["nth"]))

    async def effects(self) -> list[EffectRecord]:
        raise NotImplementedError

    async def left_behind(self) -> None:
        """What a process that was killed left on disk."""
        found = await self.effects()
        self.tell("on disk", [[one.key, one.name, one.state, one.result] for one in found])

    async def settle_all(self, settle: Callable[..., Awaitable[None]]) -> None:
        """As a person does who looks at the far side."""
        for one in await self.effects():
            if one.state is not EffectState.UNKNOWN:
                continue
            made = [line for line in calls(self.ledger) if line.key == one.key]
            self.tell("held", one.name, one.key, len(made))
            if made:
                await settle(one.key, "done", made[-1].result)
            else:
                await settle(one.key, "retry")


class Driven(Scene):
    """By the runtime."""

    async def play(self) -> None:
        durability = self.order.get("durability", "auto")
        rt = perdure.Runtime(self.order["url"], clock=self.clock, durability=durability)
        rt.register(made(self.order["story"]), name="story", deaths=10)
        async with rt:
            self._rt = rt
            set_commit_interval(rt, NEVER)  # a clock that stands still: the same point is the same
            if self.order["nth"]:
                await self.left_behind()
            with_hook(self.order, self.tell)
            await self._drive()
            watch_points(None)
            await self._look_back()

    async def effects(self) -> list[EffectRecord]:
        return await self._rt.effects(thread_id=self.thread, limit=1000)

    async def _drive(self) -> None:
        rt = self._rt
        run = await rt.start("story", self.given, thread_id=self.thread, key="the one")
        for _ in range(50):
            await rt.tick()
            run = await rt.get(run.id)
            if run.ended:
                return
            if run.state is State.HELD:
                await self.settle_all(rt.settle)
            for wait in await rt.waits(run_id=run.id, kind=Kind.HUMAN):
                if wait.value == "nobody answers":
                    await rt.cancel(run.id)
                else:
                    await rt.answer(wait.id, "yes")
            self.clock.advance(timedelta(minutes=10))
        raise AssertionError(f"it does not end: {run}")

    async def _look_back(self) -> None:
        rt = self._rt
        [run] = await rt.runs(thread_id=self.thread)
        events = await rt.events(run.id)
        findings = [str(finding) for finding in (await rt.doctor()).findings]
        assert [event.n for event in events] == list(range(1, len(events) + 1)), events
        assert findings == [], findings
        log = None if run.output is None else run.output["log"]
        self.tell("ended", run.state, log)
        if run.state is State.CANCELLED:
            names = {one.key: one.name for one in await self.effects()}
            told = dict(events[-1].data)
            self.tell("undone", {what: [names[key] for key in keys] for what, keys in told.items()})


class Invoked(Scene):
    """With only the saver, by whoever invokes the graph."""

    async def play(self) -> None:
        saver = perdure.Saver(self.order["url"])
        set_commit_interval(saver, NEVER)
        self._graph = made(self.order["story"], saver)
        self._config: Any = {"configurable": {"thread_id": self.thread}}
        async with saver, perdure.Client(self.order["url"]) as self._client:
            if self.order["nth"]:
                await self.left_behind()
            with_hook(self.order, self.tell)
            log = await self._drive()
            await saver.aflush()
            watch_points(None)
            self.tell("ended", "done", log)

    async def effects(self) -> list[EffectRecord]:
        return await self._client.effects(thread_id=self.thread, limit=1000)

    async def _drive(self) -> Any:
        durability = self.order.get("durability", "async")
        for _ in range(50):
            at = await self._graph.aget_state(self._config)
            given: Any = None
            if not at.metadata:
                given = self.given
            elif at.interrupts:
                given = Command(resume="yes")
            elif not at.next:
                return at.values["log"]
            try:
                found = await self._graph.ainvoke(given, self._config, durability=durability)
            except EffectHeld:
                await self.settle_all(self._client.settle)
            else:
                if "__interrupt__" not in found:
                    return found["log"]
        raise AssertionError("it does not end")


def with_hook(order: dict[str, Any], tell: Tell) -> None:
    """Die at the point that was ordered. Without one, tell every point that is reached."""
    counts: Counter[str] = Counter()

    def hook(point: str) -> None:
        counts[point] += 1
        if order["kill"] is None:
            tell("point", point)
        elif order["kill"] == [point, counts[point]]:
            os.kill(os.getpid(), signal.SIGKILL)

    watch_points(hook)


async def crash(order: dict[str, Any], tell: Tell) -> None:
    await (Invoked if order["saver"] else Driven)(order, tell).play()


# -- workers that are stopped in the middle of an effect


class Work(TypedDict, total=False):
    folder: str
    log: Annotated[list[str], operator.add]


def _stand(folder: str, name: str) -> str:
    """Do it, and stand still until there is a file `go`, or it was done before."""
    ledger = Ledger(Path(folder) / "ledger")
    line = Line(name, perdure.key(), name, os.getpid())
    before = ledger.lines()
    ledger.add(json.dumps(line))
    if not before:
        until(lambda: (Path(folder) / "go").exists(), "a file `go`", 60.0)
    return line.result


@perdure.effect
def stand(folder: str) -> str:
    return _stand(folder, "stand")


@perdure.effect
async def astand(folder: str) -> str:
    return await asyncio.to_thread(_stand, folder, "astand")


@perdure.effect(unknown="hold")
async def stand_and_hold(folder: str) -> str:
    return await asyncio.to_thread(_stand, folder, "stand_and_hold")


@perdure.effect(verify=lambda folder: _seen(folder))
def stand_and_verify(folder: str) -> str:
    return _stand(folder, "stand_and_verify")


def _seen(folder: str) -> str | None:
    found = [line for line in calls(Ledger(Path(folder) / "ledger")) if line.key == perdure.key()]
    return found[0].result if found else None


@perdure.effect
def after(folder: str) -> str:
    line = Line("after", perdure.key(), "after", os.getpid())
    Ledger(Path(folder) / "ledger").add(json.dumps(line))
    return line.result


def worker_runtime(url: str, lease: float = 1.0) -> perdure.Runtime:
    rt = perdure.Runtime(url, lease=timedelta(seconds=lease))

    def standing(state: Work) -> Work:
        return {"log": [stand(state["folder"]), after(state["folder"])]}

    async def holding(state: Work) -> Work:
        held = await stand_and_hold(state["folder"])
        return {"log": [held, await asyncio.to_thread(after, state["folder"])]}

    def verifying(state: Work) -> Work:
        return {"log": [stand_and_verify(state["folder"]), after(state["folder"])]}

    for node in (standing, holding, verifying):
        graph = StateGraph(Work)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        rt.register(graph, name=node.__name__)
    return rt


def stop_behind_an_intent() -> None:
    """Stop this process with SIGSTOP when an intent is on disk, and its effect not called yet."""
    thread: int | None = None

    def hook(point: str) -> None:
        nonlocal thread
        if point == "insert_effect.after":
            thread = threading.get_ident()
        if point == "commit.after" and thread == threading.get_ident():  # not that of a lease
            watch_points(None)
            # Sent to the process, it would stop this thread a little later than the others.
            signal.pthread_kill(thread, signal.SIGSTOP)

    watch_points(hook)


async def work(order: dict[str, Any], tell: Tell) -> None:
    if order.get("host"):  # another one: it sees no lock file of ours
        tempfile.tempdir = order["host"]
    if order.get("stops"):
        runtime_child.stop_when_told(order["stops"])
    if order.get("stops_before_the_call"):
        stop_behind_an_intent()
    async with worker_runtime(order["url"]) as rt:
        await rt.work(concurrency=5, grace=timedelta(seconds=5))


# -- processes that have only the saver, on one thread at once


async def alone(order: dict[str, Any], tell: Tell) -> None:
    """Invoke a graph of one standing effect, and leave word of how it ended."""
    folder = order["folder"]

    async def node(state: Work) -> Work:
        function = stand_and_hold if order["hold"] else astand
        return {"log": [await function(folder)]}

    graph = StateGraph(Work)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    async with perdure.Saver(order["url"]) as saver:
        compiled: Any = graph.compile(checkpointer=saver)
        config = {"configurable": {"thread_id": "t"}}
        given = {"folder": folder, "log": []} if order["begins"] else None
        try:
            found = await compiled.ainvoke(given, config)
            Ledger(Path(folder) / "ended").add(json.dumps(found["log"]))
        except EffectHeld:
            Ledger(Path(folder) / "ended").add(json.dumps("held"))


def worker_process(server: ForkServer, url: str, **order: Any) -> AbstractContextManager[Child]:
    """A worker that is killed at the end of the block, if it is still there."""
    return server.child(work, url=url, **order)
