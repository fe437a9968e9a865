"""Each call of a bound graph is a run under a lease, and what it leaves behind, workers finish."""

from __future__ import annotations

import asyncio
import signal
import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime as NodeRuntime
from langgraph.types import Command, interrupt

import perdure
from perdure.errors import WaitClosed
from perdure.testing import TemporaryRuntime, runtime
from perdure.types import Kind, State
from tests.support.bound import Log, T, asking, kinds, says, sequence, states
from tests.support.bound import rt as rt
from tests.support.fork_server import ForkServer
from tests.support.forked_python import start
from tests.support.polling import until
from tests.support.sqlite_only import url as url

# -- each call is a run


def test_each_call_leaves_a_run_with_its_events(rt: TemporaryRuntime) -> None:
    graph = rt.register(asking(), name="agent")
    graph.invoke({"log": ["in"]}, {**T, "metadata": {"user": "ana"}})
    [run] = rt.blocking.runs()
    assert (run.graph, run.thread_id, run.state) == ("agent", "t", State.WAITING)
    assert run.metadata == {"user": "ana"}
    graph.invoke(Command(resume="yes"), T)
    assert rt.blocking.get(run.id).output == {"log": ["in", "a", "asked", "yes", "b"]}
    events = rt.blocking.events(run.id)
    assert [event.kind for event in events] == [
        "started", "claimed", "step", "step", "step", "wait", "waiting",
        "answer", "claimed", "step", "step", "done",
    ]  # fmt: skip
    assert [event.n for event in events] == list(range(1, len(events) + 1))


def test_a_new_input_supersedes_the_run_that_waits(rt: TemporaryRuntime) -> None:
    graph = rt.register(asking(), name="agent")
    graph.invoke({"log": ["in"]}, T)
    [old] = rt.blocking.waits()
    rt.clock.advance(timedelta(seconds=1))
    graph.invoke({"log": ["instead"]}, T)
    second, first = rt.blocking.runs()
    assert (first.state, second.state) == (State.CANCELLED, State.WAITING)
    assert second.id in str(first.reason)
    with pytest.raises(WaitClosed):
        rt.blocking.answer(old.id, "yes")
    assert [wait.run_id for wait in rt.blocking.waits()] == [second.id]


class OutOfPaper(Exception):
    pass


def test_an_exception_reaches_the_caller_and_the_run_is_failed(url: str) -> None:
    failing = [True]

    def flaky(state: Log) -> Log:
        if failing.pop() if failing else False:
            raise OutOfPaper("tray 2")
        return {"log": ["printed"]}

    with runtime(url) as rt:
        graph = rt.register(sequence(a=says("a"), flaky=flaky), name="agent")
        with pytest.raises(OutOfPaper, match="tray 2") as raised:
            graph.invoke({"log": ["in"]}, T)
        assert raised.traceback[-1].name == "flaky"
        [run] = rt.blocking.runs()
        assert run.state is State.FAILED
        assert run.error is not None
        assert (run.error.kind.rpartition(".")[2], run.error.message) == ("OutOfPaper", "tray 2")
        assert (rt.blocking.tick()).claimed == 0  # it is the caller's turn, not a retry's
        assert graph.invoke(None, T) == {"log": ["in", "a", "printed"]}
        assert states(rt) == ["done", "failed"]


def test_a_failed_call_can_be_retried_by_a_worker(rt: TemporaryRuntime) -> None:
    broken = [True]

    def flaky(state: Log) -> Log:
        if broken:
            raise OutOfPaper("tray 2")
        return {"log": ["printed"]}

    graph = rt.register(sequence(a=says("a"), flaky=flaky), name="agent")
    with pytest.raises(OutOfPaper):
        graph.invoke({"log": ["in"]}, T)
    broken.clear()
    [run] = rt.blocking.runs()
    rt.blocking.retry(run.id)
    rt.blocking.tick()
    assert graph.get_state(T).values == {"log": ["in", "a", "printed"]}


@dataclass
class Desk:
    operator: str


def test_what_a_call_was_given_is_there_when_a_worker_goes_on_with_it(url: str) -> None:
    def sign(state: Any, config: RunnableConfig, runtime: NodeRuntime[Desk]) -> Log:
        answer = interrupt("sign?")
        inner = config["configurable"]
        found = [answer, inner["user"], runtime.context.operator, config["metadata"]["ticket"]]
        return {"log": [*found, config["recursion_limit"], "urgent" in (config["tags"] or ())]}

    builder: Any = StateGraph(Log, context_schema=Desk)
    builder.add_node("sign", sign)
    builder.add_edge(START, "sign")
    heard: list[str] = []

    class Listener(BaseCallbackHandler):
        def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
            heard.append("start")

    with runtime(url) as rt, runtime(url) as worker:
        graph = rt.register(builder, name="agent")
        worker.register(builder, name="agent")
        config: RunnableConfig = {
            "configurable": {"thread_id": "t", "user": "ana", "phone": threading.Lock()},
            "metadata": {"ticket": 7},
            "tags": ["urgent"],
            "recursion_limit": 9,
            "callbacks": [Listener()],
        }
        graph.invoke({"log": []}, config, context=Desk("ugo"))
        assert heard
        [wait] = worker.blocking.waits()
        worker.blocking.answer(wait.id, "yes")
        assert worker.blocking.tick().done == 1
        assert graph.get_state(T).values == {"log": ["yes", "ana", "ugo", 7, 9, True]}


# -- together with workers


def test_a_run_of_a_worker_can_be_answered_through_the_graph(url: str) -> None:
    with runtime(url) as rt, runtime(url) as worker:
        graph = rt.register(asking(), name="agent")
        worker.register(asking(), name="agent")
        run = worker.blocking.start("agent", {"log": ["in"]}, thread_id="t")
        worker.blocking.tick()
        end = {"log": ["in", "a", "asked", "yes", "b"]}
        assert graph.invoke(Command(resume="yes"), T) == end
        assert worker.blocking.get(run.id).output == end


def test_none_drives_a_run_that_nobody_claimed_yet_with_its_own_input(
    rt: TemporaryRuntime,
) -> None:
    graph = rt.register(sequence(a=says("a")), name="agent")
    run = rt.blocking.start("agent", {"log": ["in"]}, thread_id="t")
    assert graph.invoke(None, T) == {"log": ["in", "a"]}
    assert rt.blocking.get(run.id).state is State.DONE


def test_a_sleep_of_a_call_is_ended_by_a_worker(rt: TemporaryRuntime) -> None:
    def nap(state: Log) -> Log:
        perdure.sleep(timedelta(days=4))
        return {"log": ["rested"]}

    graph = rt.register(sequence(nap=nap, a=says("a")), name="agent")
    assert "__interrupt__" in graph.invoke({"log": ["in"]}, T)
    [wait] = rt.blocking.waits(kind=Kind.CLOCK)
    assert wait.wake_at == rt.clock.time + timedelta(days=4)
    assert rt.blocking.tick().claimed == 0
    rt.clock.advance(timedelta(days=4))
    assert rt.blocking.tick().done == 1
    assert graph.get_state(T).values == {"log": ["in", "rested", "a"]}


def test_a_stream_that_is_not_read_to_its_end_leaves_the_run_to_workers(url: str) -> None:
    with runtime(url) as rt:
        graph = rt.register(sequence(a=says("a"), b=says("b"), c=says("c")), name="agent")
        chunks: Any = graph.stream({"log": ["in"]}, T, stream_mode="updates")
        assert next(chunks) == {"a": {"log": ["a"]}}
        chunks.close()
        [run] = rt.blocking.runs()
        assert run.state is State.PENDING
        assert rt.blocking.tick().done == 1
        assert rt.blocking.get(run.id).output == {"log": ["in", "a", "b", "c"]}
        assert "released" in kinds(rt, run.id)


async def test_an_async_stream_that_is_closed_stops_its_nodes_before_it_lets_the_run_go() -> None:
    told: list[Any] = []

    async def slow(state: Log) -> Log:
        if "stopped" not in told:
            try:
                await asyncio.Event().wait()
            finally:
                told.append("stopped")
        return {"log": ["slow"]}

    builder = StateGraph(Log)
    for name, node in (("fast", says("fast")), ("slow", slow)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    async with runtime() as rt:
        graph = rt.register(builder, name="agent")
        chunks: Any = graph.astream({"log": ["in"]}, T, stream_mode="updates")
        assert await anext(chunks) == {"fast": {"log": ["fast"]}}
        await chunks.aclose()
        assert told == ["stopped"]
        [run] = await rt.runs()
        assert run.state is State.PENDING
        assert (await rt.tick()).done == 1
        assert (await rt.get(run.id)).output == {"log": ["in", "fast", "slow"]}


async def test_a_cancelled_call_leaves_its_run_to_workers() -> None:
    entered: list[asyncio.Event] = [asyncio.Event()]

    async def slow(state: Log) -> Log:
        if entered:
            entered.pop().set()
            await asyncio.Event().wait()
        return {"log": ["slow"]}

    async with runtime() as rt:
        graph = rt.register(sequence(a=says("a"), slow=slow), name="agent")
        is_in = entered[0]
        call = asyncio.create_task(graph.ainvoke({"log": ["in"]}, T))
        await is_in.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await rt.tick()).done == 1
        assert (await graph.aget_state(T)).values == {"log": ["in", "a", "slow"]}


CALLER = """
import sys, time
from pathlib import Path
from typing import Annotated, TypedDict
import operator
import perdure
from langgraph.graph import START, StateGraph

class Log(TypedDict, total=False):
    log: Annotated[list, operator.add]

def a(state):
    return {"log": ["a by the caller"]}

def slow(state):
    Path("entered").touch()
    time.sleep(600)

builder = StateGraph(Log)
builder.add_sequence([("a", a), ("slow", slow), ("b", a)])
builder.add_edge(START, "a")
graph = perdure.Runtime(sys.argv[1]).register(builder, name="agent")
config = {"configurable": {"thread_id": "t"}}
graph.invoke({"log": ["in"]}, config, durability="sync")
"""


@pytest.mark.slow
def test_a_worker_finishes_the_run_of_a_caller_that_was_killed(
    fork_server: ForkServer, url: str, tmp_path: Path
) -> None:
    caller = start(fork_server, "-c", CALLER, url, cwd=tmp_path)
    try:
        until((tmp_path / "entered").exists)
        caller.send(signal.SIGKILL)
        assert caller.wait(10) == -signal.SIGKILL
        with perdure.Runtime(url) as rt:
            rt.register(sequence(a=says("a"), slow=says("slow"), b=says("b")), name="agent")

            def is_done() -> bool:
                rt.blocking.tick()
                return rt.blocking.runs()[0].state is State.DONE

            until(is_done)
            [run] = rt.blocking.runs()
            assert run.output == {"log": ["in", "a by the caller", "slow", "b"]}
            assert "recovered" in [event.kind for event in rt.blocking.events(run.id)]
    finally:
        caller.kill()
