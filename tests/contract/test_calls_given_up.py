"""A call of a bound graph that is given up takes its run with it: its input is never applied, and
later calls of the thread return, with and without a worker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import perdure
from perdure import AlreadyAnswered, ThreadBusy
from perdure.testing import runtime, watch_points
from perdure.types import EventKind, State
from tests.support.agent_server import refused, served
from tests.support.bound import Gate, Log, T, asking, says, sequence
from tests.support.fork_server import ForkServer, Tell
from tests.support.polling import auntil, until
from tests.support.sweep import sample

LEASE = timedelta(seconds=0.5)


def echo(state: Log) -> Log:
    return {"log": ["echo"]}


def call(order: dict[str, Any], tell: Tell) -> None:
    """Call a graph by its method `how`. At the statement of the number `at`, counted from the call
    to the graph's first node, the process gets the signal `gets`: SIGKILL, or SIGINT, which cancels
    the task of a coroutine. Without a number each statement is told.

    `by` says how signals end it: `default`, or `raises`, as a web server's handler does.
    """
    number = 0
    tasks: list[asyncio.Task[Any]] = []

    def stop(how: signal.Signals) -> None:
        if how == signal.SIGKILL:
            os.kill(os.getpid(), how)
        if tasks:  # what a signal does, once the loop has woken up
            tasks[0].get_loop().call_soon_threadsafe(tasks[0].cancel)
            until(lambda: tasks[0].cancelling() or tasks[0].done(), "its cancellation")
        else:
            signal.pthread_kill(cast(int, threading.main_thread().ident), how)

    def hook(point: str) -> None:
        nonlocal number
        number += 1
        if number == order.get("at"):
            stop(order["gets"])
        if "at" not in order:
            tell("point", point)

    def echoes(state: Log) -> Log:
        watch_points(None)
        tell("begun")
        return echo(state)

    def leave(*_: Any) -> None:
        raise SystemExit(0)

    async def in_task() -> None:
        tasks.append(cast(asyncio.Task[Any], asyncio.current_task()))
        await graph.ainvoke(given, on)

    if order.get("by") == "raises":
        signal.signal(signal.SIGTERM, leave)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with perdure.Runtime(order["url"], lease=LEASE) as rt:
        graph = rt.register(sequence(echo=echoes), name="agent")
        rt.setup()
        if order.get("counts", True):
            watch_points(hook)
        given: Any = {"log": ["given up"]}
        on: RunnableConfig = {"configurable": {"thread_id": order.get("thread", "t")}}
        on["metadata"] = {"call": "given up"}
        match order["how"]:
            case "update_state":
                graph.update_state(on, given, as_node="__start__")
            case "ainvoke":
                asyncio.run(in_task())
            case _:
                tell("returned", graph.invoke(given, on)["log"])


SOON = 30.0
"""Seconds. A call that waits without end fails its test."""
GIVEN_UP: Any = {"log": ["given up"]}
MARKED: Any = {**T, "metadata": {"call": "given up"}}
"""By its metadata the run of a call is found again."""
NEXT: Any = {"log": ["next"]}


async def invoked(graph: Any, input: Any, config: Any = T) -> Any:
    return await asyncio.wait_for(graph.ainvoke(input, config), SOON)


async def read(graph: Any, input: Any, config: Any = T) -> Any:
    return [chunk async for chunk in graph.astream(input, config)]


async def read_events(graph: Any, input: Any, config: Any = T) -> Any:
    return [chunk async for chunk in graph.astream_events(input, config)]


async def batched(graph: Any, input: Any, config: Any = T) -> Any:
    return await graph.abatch([input], config)


CALLS: dict[str, Callable[..., Any]] = {
    "ainvoke": invoked,
    "astream": read,
    "astream_events": read_events,
    "abatch": batched,
}


def registered(rt: perdure.Runtime, gate: Any = None) -> Any:
    return rt.register(sequence(gate=gate or echo), name="agent")


@contextmanager
def busy(graph: Any, gate: Gate) -> Iterator[None]:
    """While a call drives the thread."""
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(graph.invoke, {"log": ["first"]}, T)
        try:
            assert gate.entered.wait(SOON)
            yield
        finally:
            gate.open.set()
        first.result(SOON)


def given_up_run(rt: perdure.Runtime) -> Any:
    """The run of the call that was given up. There is only one."""
    [found] = rt.blocking.runs(thread_id="t", metadata={"call": "given up"})
    return found


def check_it_ended(rt: perdure.Runtime, run: Any = None) -> None:
    run = run or given_up_run(rt)
    until(lambda: rt.blocking.get(run.id).ended, "its end", SOON)
    run = rt.blocking.get(run.id)
    assert (run.state, run.reason) == (State.CANCELLED, "its caller went away")
    last = rt.blocking.events(run.id)[-1]
    assert (last.kind, last.data["reason"]) == (EventKind.CANCELLED, "its caller went away")


def log_of(graph: Any) -> Any:
    return graph.get_state(T).values.get("log", [])


# -- an exception ends the call


@pytest.mark.parametrize("how", list(CALLS))
async def test_a_call_that_is_cancelled_while_it_waits_takes_its_run_with_it(
    url: str, how: str
) -> None:
    gate = Gate("echo")
    with runtime(url) as rt, runtime(url, clock=rt.clock) as worker:
        graph = registered(rt, gate)
        registered(worker)
        with busy(graph, gate):
            call = asyncio.create_task(CALLS[how](graph, GIVEN_UP, MARKED))
            await auntil(lambda: len(rt.blocking.runs()) == 2, "its run")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        check_it_ended(rt)
        rt.clock.advance(timedelta(minutes=1))  # nothing is reserved any longer
        assert (await worker.tick()).claimed == 0
        assert (await invoked(graph, NEXT))["log"] == ["first", "echo", "next", "echo"]


async def test_a_call_that_times_out_leaves_no_run_behind_each_time(url: str) -> None:
    gate = Gate("echo")
    with runtime(url) as rt:
        graph = registered(rt, gate)
        with busy(graph, gate):
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(graph.ainvoke(GIVEN_UP, T), 0.2)
        assert (await invoked(graph, NEXT))["log"] == ["first", "echo", "next", "echo"]
        states = [run.state for run in rt.blocking.runs()]
        assert states.count(State.DONE) == 2
        assert set(states) <= {State.DONE, State.CANCELLED}


def is_claim(event: Any) -> bool:
    return bool(event.kind == EventKind.CLAIMED)


# -- a signal ends the process


@pytest.mark.slow
@pytest.mark.parametrize("worker", [False, True], ids=["no worker", "a worker"])
@pytest.mark.parametrize("how", ["invoke", "update_state"])
def test_a_call_killed_at_any_statement_keeps_no_thread_waiting(
    fork_server: ForkServer, url: str, how: str, worker: bool
) -> None:
    """The next call returns. What the dead one was given is applied only if it had begun."""
    order: dict[str, Any] = {"url": url, "how": how}
    whole = fork_server.run(call, thread="whole", **order)
    assert whole.status == 0
    points = [fact[1] for fact in whole.facts if fact[0] == "point"]
    assert {"insert_run.after", "claim_run.before"} <= {*points}
    unbegun = 0
    with perdure.Runtime(url, lease=LEASE) as rt:
        graph = registered(rt)
        for n in sample(range(1, len(points) + 1), 8, lambda n: points[n - 1]):
            where = f"killed at {points[n - 1]}, statement {n} of {len(points)}"
            on: Any = {"configurable": {"thread_id": where}}
            killed = fork_server.run(call, thread=where, at=n, gets=signal.SIGKILL, **order)
            assert killed.status == -signal.SIGKILL, where
            found = rt.blocking.runs(thread_id=where)
            begun = any(is_claim(event) for run in found for event in rt.blocking.events(run.id))
            if worker:
                until(partial(are_over, rt, where), f"an end, {where}", SOON)
            log = asyncio.run(invoked(graph, NEXT, on))["log"]
            assert log[-2:] == ["next", "echo"], where
            if how == "update_state":
                assert "echo" not in log[:-2], f"nothing was to be driven, {where}"
            elif begun and worker:
                assert log == ["given up", "echo", "next", "echo"], where
            elif not begun:
                assert log == ["next", "echo"], where
            if found and not begun:
                unbegun += 1
                check_it_ended(rt, *found)
    assert unbegun, "no process was killed between the acceptance and the claim"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["invoke", "ainvoke", "update_state"])
def test_a_call_interrupted_at_any_statement_leaves_nothing_that_is_driven_by_nobody(
    fork_server: ForkServer, url: str, how: str
) -> None:
    """By Ctrl-C, which cancels the task of a coroutine."""
    order: dict[str, Any] = {"url": url, "how": how, "log": os.devnull}
    whole = fork_server.run(call, thread="whole", **order)
    points = [fact[1] for fact in whole.facts if fact[0] == "point"]
    assert {"insert_run.after", "claim_run.after"} <= {*points}
    cancelled = 0
    with perdure.Runtime(url, lease=LEASE) as rt:
        graph = registered(rt)
        for n in sample(range(1, len(points) + 1), 10, lambda n: points[n - 1]):
            where = f"interrupted at {points[n - 1]}, statement {n} of {len(points)}"
            on: Any = {"configurable": {"thread_id": where}}
            ended = fork_server.run(call, thread=where, at=n, gets=signal.SIGINT, **order)
            assert ended.status == 3 or ended.all("returned"), where
            for run in rt.blocking.runs(thread_id=where):
                kinds = [event.kind for event in rt.blocking.events(run.id)]
                assert run.ended or kinds[-1] == "released", (where, kinds)
                if "step" not in kinds and "released" not in kinds:
                    cancelled += 1
                    check_it_ended(rt, run)
            log = asyncio.run(invoked(graph, NEXT, on))["log"]
            assert log[-2:] == ["next", "echo"], where
    assert cancelled, "no call was interrupted before it had begun"


def are_over(rt: perdure.Runtime, thread_id: str) -> bool:
    """Whether no run of a thread is left, once a worker has looked."""
    rt.blocking.tick()
    return all(run.ended for run in rt.blocking.runs(thread_id=thread_id))


@pytest.mark.slow
async def test_a_call_that_was_taken_for_dead_applies_its_input_when_it_wakes_up(
    fork_server: ForkServer, url: str
) -> None:
    gate = Gate("echo")
    with perdure.Runtime(url, lease=LEASE) as rt:
        graph = registered(rt, gate)
        with busy(graph, gate):
            child = fork_server.start(call, url=url, how="invoke", counts=False)
            await auntil(lambda: len(rt.blocking.runs()) == 2, "its run")
            child.stop()
        assert (await invoked(graph, NEXT))["log"] == ["first", "echo", "next", "echo"]
        child.send(signal.SIGCONT)
        assert await asyncio.to_thread(child.wait) == 0
        assert child.facts[-1] == ["returned", [*log_of(graph)]]
        assert log_of(graph) == ["first", "echo", "next", "echo", "given up", "echo"]


# -- others who meet the run of a call


async def test_the_run_of_a_call_that_waits_is_driven_by_no_one_else(url: str) -> None:
    gate = Gate("echo")
    with runtime(url) as rt, runtime(url, clock=rt.clock) as other:
        graph, elsewhere = registered(rt, gate), registered(other)
        with busy(graph, gate):
            head = rt.blocking.runs()[0]
            waits = asyncio.create_task(elsewhere.ainvoke({"log": ["second"]}, T))
            await auntil(lambda: len(rt.blocking.runs()) == 2, "its run")
        rt.blocking.get(head.id)
        assert (await asyncio.wait_for(waits, SOON))["log"] == ["first", "echo", "second", "echo"]
        assert (await other.tick()).claimed == 0


@pytest.mark.slow
@pytest.mark.parametrize("what", ["invoke(None)", "a resume", "update_state", "start"])
async def test_the_run_of_a_dead_call_is_nobodys_to_drive(
    fork_server: ForkServer, url: str, what: str
) -> None:
    with perdure.Runtime(url, lease=LEASE) as rt:
        graph = registered(rt)
        graph.invoke({"log": ["first"]}, T)
        killed = accepted_and_killed(fork_server, url, rt)
        if what == "start":
            run = await rt.start("agent", NEXT, thread_id="t")
            await auntil(lambda: is_done(rt, run.id), "the started run")
        else:
            await auntil(lambda: returns(graph, what), f"{what} to be free of it")
        check_it_ended(rt)
        assert killed.id == given_up_run(rt).id
        assert "given up" not in log_of(graph)


def accepted_and_killed(server: ForkServer, url: str, rt: perdure.Runtime) -> Any:
    """The run of a call whose process died between the acceptance and the claim."""
    whole = server.run(call, url=url, how="invoke", thread="whole")
    points = [fact[1] for fact in whole.facts if fact[0] == "point"]
    at = points.index("claim_run.before") + 1
    server.run(call, url=url, how="invoke", at=at, gets=signal.SIGKILL)
    run = next(one for one in rt.blocking.runs(thread_id="t") if one.state is State.PENDING)
    assert [event.kind for event in rt.blocking.events(run.id)] == ["started"]
    return run


async def is_done(rt: perdure.Runtime, run_id: str) -> bool:
    await rt.tick()
    return (await rt.get(run_id)).state is State.DONE


def returns(graph: Any, what: str) -> bool:
    try:
        match what:
            case "invoke(None)":
                graph.invoke(None, T)
            case "a resume":
                graph.invoke(Command(resume="yes"), T)
            case _:
                graph.update_state(T, NEXT)
    except ThreadBusy:  # the dead call has it for a lease
        return False
    return True


@pytest.mark.parametrize("durability", ["exit", "async", "sync"])
async def test_a_stream_that_is_closed_early_keeps_no_thread_waiting(
    url: str, durability: Any
) -> None:
    with perdure.Runtime(url, lease=LEASE) as rt:
        graph = rt.register(sequence(echo=echo, more=says("more")), name="agent")
        stream: Any = graph.stream(GIVEN_UP, T, durability=durability)
        next(iter(stream))
        stream.close()
        reader: Any = graph.astream(GIVEN_UP, T, durability=durability)
        await anext(reader)
        await reader.aclose()
        assert (await invoked(graph, NEXT))["log"][-3:] == ["next", "echo", "more"]


# -- an answer at an old checkpoint


def asks_x(state: Log) -> Any:
    return {"log": [interrupt("x?")]}


def asks_y(state: Log) -> Any:
    return {"log": [interrupt("y?")]}


def in_a_row() -> Any:
    return sequence(x=asks_x, y=asks_y)


def beside() -> Any:
    builder = StateGraph(Log).add_node("x", asks_x).add_node("y", asks_y)
    return builder.add_edge(START, "x").add_edge(START, "y")


def inside() -> Any:
    builder = StateGraph(Log).add_node("in", sequence(x=asks_x).compile())
    return builder.add_edge(START, "in")


ANSWERS: dict[str, Callable[..., Any]] = {
    "invoke": lambda graph, command, config: graph.invoke(command, config),
    "stream": lambda graph, command, config: list(graph.stream(command, config)),
    "ainvoke": lambda graph, command, config: asyncio.run(invoked(graph, command, config)),
    "astream": lambda graph, command, config: asyncio.run(read(graph, command, config)),
}


@pytest.mark.parametrize("how", list(ANSWERS))
@pytest.mark.parametrize("names", [False, True], ids=["plain", "by id"])
@pytest.mark.parametrize("build", [asking, in_a_row, beside, inside])
def test_a_second_answer_at_an_old_checkpoint_is_refused(
    sqlite_url: str, build: Any, names: bool, how: str
) -> None:
    with runtime(sqlite_url) as rt:
        graph = rt.register(build(), name="agent")
        graph.invoke({"log": ["in"]}, T)
        asked = graph.get_state(T)
        ids = [one.id for one in asked.interrupts]
        graph.invoke(Command(resume=dict.fromkeys(ids, "yes")), T)
        before, runs = log_of(graph), rt.blocking.runs()
        answer: Any = {ids[-1]: "NO"} if names else "NO"
        with pytest.raises(AlreadyAnswered, match=asked.config["configurable"]["checkpoint_id"]):
            ANSWERS[how](graph, Command(resume=answer), asked.config)
        assert (log_of(graph), rt.blocking.runs()) == (before, runs), "nothing was changed"


def test_what_the_refusal_advises_takes_the_second_answer(url: str) -> None:
    with runtime(url) as rt:
        graph = rt.register(asking(), name="agent")
        graph.invoke({"log": ["in"]}, T)
        asked = graph.get_state(T).config
        graph.invoke(Command(resume="yes"), T)
        with pytest.raises(AlreadyAnswered, match=r"invoke\(None, config\)"):
            graph.invoke(Command(resume="NO"), asked)
        graph.invoke(None, asked)
        assert graph.invoke(Command(resume="NO"), T)["log"] == ["in", "a", "asked", "NO", "b"]


def test_a_question_that_was_left_open_is_answered_at_its_old_checkpoint(url: str) -> None:
    with runtime(url) as rt:
        graph = rt.register(in_a_row(), name="agent")
        graph.invoke({"log": ["in"]}, T)
        asked = graph.get_state(T).config
        graph.invoke(NEXT, T)  # takes its place, as in LangGraph
        assert graph.invoke(Command(resume="late"), asked)["log"] == ["in", "late"]


def test_a_second_answer_at_an_old_checkpoint_is_refused_over_http(url: str) -> None:
    with runtime(url) as rt, served(rt, worker=False) as server:
        graph = rt.register(asking(), name="agent")
        graph.invoke({"log": ["in"]}, T)
        asked = graph.get_state(T).config["configurable"]["checkpoint_id"]
        graph.invoke(Command(resume="yes"), T)
        client, runs = server.sync_client(), rt.blocking.runs()
        for call in (client.runs.wait, client.runs.create):
            refused(409, call, "t", "agent", command={"resume": "NO"}, checkpoint_id=asked)
        assert rt.blocking.runs() == runs
