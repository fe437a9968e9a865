"""A wait that a node catches still waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, interrupt

import perdure
from perdure.errors import WaitCaught
from perdure.types import Kind, Run, State
from tests.support.agents import Calls, Log, chain, history, opened

HOUR = timedelta(hours=1)


Wait = Callable[[], Any]


def said(*texts: Any) -> dict[str, Any]:
    return {"log": list(texts)}


def an_exception(wait: Wait) -> Any:
    try:
        return wait()
    except Exception:
        return "skipped"


def everything(wait: Wait) -> Any:
    try:
        return wait()
    except:  # noqa: E722
        return "skipped"


def suppressed(wait: Wait) -> Any:
    with contextlib.suppress(Exception):
        return wait()
    return "skipped"


def returned_in_finally(wait: Wait) -> Any:
    found = "skipped"
    try:
        found = wait()
    finally:
        return found  # noqa: B012


def a_fallback(wait: Wait) -> Any:
    risky = RunnableLambda(lambda _: wait())
    return risky.with_fallbacks([RunnableLambda(lambda _: "skipped")]).invoke(None)


def slept() -> str:
    perdure.sleep(HOUR)
    return "slept"


SWALLOWS = [an_exception, everything, suppressed, returned_in_finally, a_fallback]


WAITS: dict[str, Wait] = {
    "ask": lambda: perdure.ask("ok?"),
    "sleep": slept,
    "wait_for": lambda: perdure.wait_for("reply"),
    "interrupt": lambda: interrupt("ok?"),
}


async def let_go(rt: Any, run: Run, value: Any = "yes") -> Run:
    """The run, after what it waits for has come."""
    for wait in await rt.waits(run_id=run.id):
        if wait.kind is Kind.HUMAN:
            await rt.answer(wait.id, value)
        elif wait.kind is Kind.SIGNAL:
            await rt.signal(run.thread_id, wait.name, value)
    rt.clock.advance(HOUR)
    await rt.tick()
    found: Run = await rt.get(run.id)
    return found


async def waiting(rt: Any, builder: Any, **options: Any) -> Run:
    """A run of this graph, driven until it waits."""
    rt.register(builder, name="g", **options)
    run = await rt.start("g", said(), thread_id="t")
    await rt.tick()
    found: Run = await rt.get(run.id)
    assert found.state is State.WAITING, found
    return found


@pytest.mark.parametrize("colour", ["plain", "coroutine"])
@pytest.mark.parametrize(
    ("url", "swallow"),
    [
        *[("sqlite", swallow) for swallow in SWALLOWS],
        pytest.param("postgres", an_exception, marks=pytest.mark.postgres),
        pytest.param("d1", an_exception, marks=pytest.mark.d1),
    ],
    indirect=["url"],
)
@pytest.mark.parametrize("wait", WAITS)
async def test_the_run_waits_anyway(url: str, wait: str, swallow: Any, colour: str) -> None:
    calls = Calls()

    def plain(state: Log) -> Any:
        return said(swallow(WAITS[wait]))

    async def coroutine(state: Log) -> Any:
        return said(swallow(WAITS[wait]))

    node = plain if colour == "plain" else coroutine
    async with opened(url) as rt:
        run = await waiting(rt, chain(("node", node), calls.node("after")))
        assert calls == []
        [event] = [one for one in await rt.events(run.id) if one.kind == "waiting"]
        assert event.data["caught_in"] == "node"
        run = await let_go(rt, run)
        assert run.output["log"] == ["slept" if wait == "sleep" else "yes", "after"]
        await history(rt, run)


async def test_no_effect_is_called_after_a_question_that_was_caught(url: str) -> None:
    paid: list[str] = []

    @perdure.effect
    def pay(who: str) -> str:
        paid.append(who)
        return f"paid {who}"

    def node(state: Log) -> Any:
        answer = an_exception(lambda: perdure.ask("pay?"))
        with contextlib.suppress(Exception):
            return said(answer, pay("ana"))
        return said(answer, "not paid")

    async with opened(url) as rt:
        run = await waiting(rt, chain(node))
        assert paid == []
        run = await let_go(rt, run)
        assert run.output["log"] == ["yes", "paid ana"]
        assert paid == ["ana"]


async def test_a_gather_that_returns_exceptions_does_not_skip_the_question(sqlite_url: str) -> None:
    async def asks() -> Any:
        return perdure.ask("ok?")

    async def node(state: Log) -> Any:
        found = await asyncio.gather(asks(), return_exceptions=True)
        return said(*map(str, found))

    async with opened(sqlite_url) as rt:
        run = await let_go(rt, await waiting(rt, chain(node)))
        assert run.output["log"] == ["yes"]


@pytest.mark.parametrize("where", ["inside", "around"])
@pytest.mark.parametrize("how", ["as a node", "in a function"])
async def test_a_subgraph_waits_too(sqlite_url: str, where: str, how: str) -> None:
    calls = Calls()
    inner_calls = Calls()

    def asks(state: Log) -> Any:
        if where == "inside":
            return said(an_exception(lambda: perdure.ask("ok?")))
        return said(perdure.ask("ok?"))

    inner = chain(inner_calls.node("first"), asks, inner_calls.node("last")).compile()

    def outer(state: Log) -> Any:
        if where == "around":
            found = an_exception(lambda: inner.invoke(said()))
            return said("skipped") if found == "skipped" else found
        return inner.invoke(said())

    if how == "as a node" and where == "around":
        pytest.skip("nothing is around a subgraph that is a node")
    node: Any = inner if how == "as a node" else outer
    async with opened(sqlite_url) as rt:
        run = await waiting(rt, chain(("outer", node), calls.node("after")))
        assert (calls, inner_calls) == ([], ["first"])
        run = await let_go(rt, run)
        assert run.output["log"][-4:] == ["first", "yes", "last", "after"]
        assert inner_calls == ["first", "last"]


async def test_a_task_of_an_entrypoint_waits_too(sqlite_url: str) -> None:
    paid: list[str] = []

    @perdure.effect
    def pay() -> None:
        paid.append("ana")

    @task
    def asks() -> str:
        return str(an_exception(lambda: perdure.ask("ok?")))

    @entrypoint()
    def flow(input: Any) -> Any:
        answer = asks().result()
        pay()
        return answer

    async with opened(sqlite_url) as rt:
        run = await waiting(rt, flow)
        assert paid == []
        run = await let_go(rt, run)
        assert (run.output, paid) == ("yes", ["ana"])


async def test_a_tool_that_catches_its_question_waits_too(sqlite_url: str) -> None:
    def careless(what: str) -> str:
        """Ask somebody."""
        return str(an_exception(lambda: perdure.ask(what)))

    calls = [{"name": "careless", "args": {"what": "one?"}, "id": "1", "type": "tool_call"}]
    tools = ToolNode([careless], handle_tool_errors=True)
    async with opened(sqlite_url) as rt:
        builder = StateGraph(MessagesState).add_node(tools).add_edge(START, "tools")
        rt.register(builder, name="g")
        input = {"messages": [AIMessage("", tool_calls=calls)]}
        run = await rt.start("g", input, thread_id="t")
        await rt.tick()
        assert (await rt.get(run.id)).state is State.WAITING
        run = await let_go(rt, run)
        assert run.output["messages"][-1].content == "yes"


async def test_a_retry_policy_for_every_exception_does_not_retry_a_wait(sqlite_url: str) -> None:
    calls = Calls()

    def node(state: Log) -> Any:
        calls.append("node")
        return said(perdure.ask("ok?"))

    builder = chain()
    policy = RetryPolicy(initial_interval=0, jitter=False, retry_on=Exception)
    builder.add_node("node", node, retry_policy=policy)
    builder.add_edge(START, "node")
    async with opened(sqlite_url) as rt:
        run = await waiting(rt, builder)
        assert calls == ["node"]
        assert (await let_go(rt, run)).output["log"] == ["yes"]


async def test_a_node_that_fails_after_it_caught_a_wait_is_retried(sqlite_url: str) -> None:
    fails = [True]

    def node(state: Log) -> Any:
        answer = an_exception(lambda: perdure.ask("ok?"))
        if fails:
            fails.clear()
            raise ConnectionError("not yet")
        return said(answer)

    async with opened(sqlite_url) as rt:
        rt.register(chain(node), name="g", retry=perdure.Retry(attempts=3, first=timedelta(0)))
        run = await rt.start("g", said(), thread_id="t")
        await rt.tick()
        assert (await rt.get(run.id)).state is State.WAITING
        assert (await let_go(rt, run)).output["log"] == ["yes"]


def in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function for coroutines."""
    return lambda *args, **kwargs: asyncio.to_thread(function, *args, **kwargs)


@pytest.mark.parametrize("colour", ["plain", "coroutine"])
async def test_a_bound_graph_says_so_and_its_run_waits(sqlite_url: str, colour: str) -> None:
    def node(state: Log) -> Any:
        return said(an_exception(lambda: interrupt("ok?")))

    config: Any = {"configurable": {"thread_id": "t"}}
    async with opened(sqlite_url) as rt:
        graph = rt.register(chain(node), name="g")
        invoke = graph.ainvoke if colour == "coroutine" else in_thread(graph.invoke)
        with pytest.raises(WaitCaught, match="'node'"):
            await invoke(said(), config)
        [run] = await rt.runs()
        assert run.state is State.WAITING
        assert (await graph.ainvoke(Command(resume="yes"), config))["log"] == ["yes"]


@pytest.mark.parametrize("colour", ["plain", "coroutine"])
@pytest.mark.parametrize(
    ("url", "durability"),
    [
        ("sqlite", "sync"),
        ("sqlite", "async"),
        pytest.param("postgres", "async", marks=pytest.mark.postgres),
        pytest.param("d1", "async", marks=pytest.mark.d1),
    ],
    indirect=["url"],
)
async def test_with_only_the_saver_the_question_is_kept_and_nothing_after_it(
    url: str, colour: str, durability: Any
) -> None:
    paid: list[str] = []

    @perdure.effect
    def pay() -> None:
        paid.append("ana")

    def node(state: Log) -> Any:
        return said(an_exception(lambda: interrupt("ok?")))

    def after(state: Log) -> Any:
        pay()
        return said("after")

    config: Any = {"configurable": {"thread_id": "t"}}
    with perdure.Saver(url) as saver:
        graph = chain(node, after).compile(checkpointer=saver)
        invoke = graph.ainvoke if colour == "coroutine" else in_thread(graph.invoke)
        with pytest.raises(WaitCaught, match="'node'"):
            await invoke(said(), config, durability=durability)
        assert paid == []
        state = graph.get_state(config)
        assert state.next == ("node",)
        assert [one.value for one in state.interrupts] == ["ok?"]
        found = await invoke(Command(resume="yes"), config, durability=durability)
        assert found["log"] == ["yes", "after"]
        assert paid == ["ana"]
