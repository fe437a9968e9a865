"""A recorded effect is returned and never called again, wherever in an agent it is called.

Whatever runs a node again finds the outcomes of its effects: a retry of the run, LangGraph's
`RetryPolicy`, an answer, another process. Each call finds its own, in parallel branches too.
Before a function is called its intent is on disk, and with it the checkpoint it belongs to.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy, Send, interrupt

import perdure
from perdure.effects import task as effect_task
from perdure.errors import BadArgument, NotInRun
from perdure.types import State
from tests.support.agents import Log, chain, history, opened
from tests.support.effects import AT_ONCE, WAYS, Boom, Pair, Times, colour, drive, settled, started

every_way = pytest.mark.parametrize("way", WAYS)
QUICK = RetryPolicy(initial_interval=0.001, jitter=False, retry_on=Boom)


# -- what is recorded is not called again


@every_way
async def test_every_attempt_of_a_retry_policy_finds_what_the_first_one_did(
    sqlite_url: str, way: str
) -> None:
    calls: list[str] = []
    fails = Times(2)

    def send(to: str) -> str:
        calls.append(to)
        return f"sent {to}"

    effect = Pair(way, send)

    async def node(state: Log) -> Log:
        told = [await effect("ana"), await effect("ana"), await effect("ben")]
        fails()
        return {"log": told}

    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("node", colour(way, node), retry_policy=QUICK)
    builder.add_edge(START, "node")
    output = await drive(sqlite_url, way, builder)
    assert output["log"] == ["sent ana", "sent ana", "sent ben"]
    assert calls == ["ana", "ana", "ben"]


@pytest.mark.parametrize("way", ["runtime", "runtime-async"])
async def test_an_answer_comes_back_to_a_node_whose_effects_are_settled(url: str, way: str) -> None:
    calls: list[str] = []

    def send(to: str) -> str:
        calls.append(to)
        return f"sent {to}"

    effect = Pair(way, send)

    async def node(state: Log) -> Log:
        before = await effect("before")
        answer = perdure.ask("go on?")
        return {"log": [before, answer, await effect("after")]}

    async with opened(url) as rt:
        run = await started(rt, chain(colour(way, node)))
        assert run.state is State.WAITING
        [wait] = await rt.waits()
        await rt.answer(wait.id, "yes")
        await rt.tick()
        run = await rt.get(run.id)
        assert run.output["log"] == ["sent before", "yes", "sent after"]
        assert run.saved["effects"] == 1
        assert calls == ["before", "after"]


async def test_a_plain_interrupt_with_only_the_saver_finds_them_too(sqlite_url: str) -> None:
    from langgraph.types import Command

    calls: list[str] = []

    @perdure.effect
    def send(to: str) -> str:
        calls.append(to)
        return f"sent {to}"

    def node(state: Log) -> Log:
        return {"log": [send("before"), interrupt("go on?"), send("after")]}

    config: Any = {"configurable": {"thread_id": "t"}}
    with perdure.Saver(sqlite_url) as saver:
        chain(node).compile(checkpointer=saver).invoke({"log": []}, config)
    with perdure.Saver(sqlite_url) as saver:
        output = chain(node).compile(checkpointer=saver).invoke(Command(resume="yes"), config)
    assert output["log"] == ["sent before", "yes", "sent after"]
    assert calls == ["before", "after"]


# -- wherever it is called


@pytest.mark.parametrize("way", ["runtime-async", "saver-async"])
async def test_tasks_of_an_entrypoint_find_them(sqlite_url: str, way: str) -> None:
    calls: list[str] = []
    fails, fails_outside = Times(1), Times(1)

    @perdure.effect
    async def send(to: str) -> str:
        calls.append(to)
        return f"sent {to}"

    @task
    async def step(to: str) -> str:
        told = await send(to)
        if to == "ben":
            fails()
        return told

    def make(saver: Any = None) -> Any:
        @entrypoint(checkpointer=saver)
        async def agent(given: Any) -> list[str]:
            found = [await step(to) for to in ("ana", "ben")]
            found.append(await send("outside"))
            fails_outside()
            return found

        return agent

    if way == "runtime-async":
        async with opened(sqlite_url) as rt:
            run = await started(rt, make(), retry=AT_ONCE)
            assert run.output == ["sent ana", "sent ben", "sent outside"]
    else:
        config: Any = {"configurable": {"thread_id": "t"}}
        given: Any = "go"
        for n in range(3):
            with perdure.Saver(sqlite_url) as saver:
                try:
                    output = await make(saver).ainvoke(given, config)
                    assert output == ["sent ana", "sent ben", "sent outside"]
                except Boom:
                    assert n < 2
            given = None
    assert calls == ["ana", "ben", "outside"]


@pytest.mark.parametrize("checkpointer", [None, True, False])
@every_way
async def test_a_node_of_a_subgraph_finds_them(
    sqlite_url: str, way: str, checkpointer: bool | None
) -> None:
    calls: list[str] = []
    fails = Times(2)

    def send(to: str) -> str:
        calls.append(to)
        return f"sent {to}"

    effect = Pair(way, send)

    async def inner(state: Log) -> Log:
        return {"log": [await effect("inner")]}

    async def other(state: Log) -> Log:
        told = await effect("other")
        fails()
        return {"log": [told]}

    nested: Any = chain(
        ("inner", colour(way, inner)), ("again", colour(way, inner)), ("other", colour(way, other))
    ).compile(checkpointer=checkpointer)
    if way.startswith("saver") and checkpointer is False:
        # Which of its nodes would run again nobody can know; that is said, and nothing is called.
        effect_task.CHECKPOINT_TIMEOUT, before = 0.1, effect_task.CHECKPOINT_TIMEOUT
        try:
            with pytest.raises(BadArgument, match="checkpointer=False"):
                await drive(sqlite_url, way, chain(("nested", nested)))
        finally:
            effect_task.CHECKPOINT_TIMEOUT = before
        assert calls == []
        return
    output = await drive(sqlite_url, way, chain(("nested", nested)))
    assert output["log"][-3:] == ["sent inner", "sent inner", "sent other"]
    assert calls == ["inner", "inner", "other"]


@pytest.mark.parametrize("way", ["runtime", "runtime-async"])
async def test_a_subgraph_that_stores_nothing_finds_them_when_its_node_is_retried(
    sqlite_url: str, way: str
) -> None:
    calls: list[str] = []
    fails = Times(2)

    def send(to: str) -> str:
        calls.append(to)
        return f"sent {to} {len(calls)}"

    effect = Pair(way, send)

    async def inner(state: Log) -> Log:
        told = [await effect("inner"), await effect("inner")]
        fails()
        return {"log": told}

    nested: Any = chain(("inner", colour(way, inner))).compile(checkpointer=False)
    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("nested", nested, retry_policy=QUICK)
    builder.add_edge(START, "nested")
    output = await drive(sqlite_url, way, builder)
    assert output["log"] == ["sent inner 1", "sent inner 2"]
    assert calls == ["inner", "inner"]


@every_way
async def test_every_send_of_a_fan_out_finds_its_own(sqlite_url: str, way: str) -> None:
    calls: list[str] = []
    fails = Times(3)
    lock = threading.Lock()

    def send(to: str) -> str:
        with lock:
            calls.append(to)
        return f"sent {to}"

    effect = Pair(way, send)

    class Each(TypedDict):
        n: int

    async def each(state: Each) -> Any:
        # The same name, the same turn, in tasks that start in any order.
        told = await effect(f"number {state['n']}")
        if state["n"] % 2:
            fails()
        return {"log": [told]}

    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("each", colour(way, each))
    builder.add_conditional_edges(START, lambda _: [Send("each", {"n": n}) for n in range(5)])
    output = await drive(sqlite_url, way, builder)
    assert output["log"] == [f"sent number {n}" for n in range(5)]
    assert sorted(calls) == [f"number {n}" for n in range(5)]


async def test_the_one_that_is_awaited_first_does_not_get_the_answer_of_the_other(
    sqlite_url: str,
) -> None:
    """Two tasks of a node, of which only the second got as far as its effect before the end."""
    calls: list[str] = []
    fails = Times(1)

    @perdure.effect
    async def ask(what: str) -> str:
        calls.append(what)
        return f"answer to {what}"

    async def late() -> str:
        await asyncio.sleep(0)
        if fails.n:
            await asyncio.sleep(0.05)
            fails()
        return await ask("late")

    async def early() -> str:
        if not fails.n:
            await asyncio.sleep(0.05)
        return await ask("early")

    async def node(state: Log) -> Log:
        one, other = asyncio.create_task(late()), asyncio.create_task(early())
        try:
            return {"log": [await one, await other]}
        finally:
            await asyncio.gather(one, other, return_exceptions=True)

    output = await drive(sqlite_url, "runtime-async", chain(node))
    assert output["log"] == ["answer to late", "answer to early"]
    assert sorted(calls) == ["early", "late"]


@pytest.mark.smoke
async def test_a_model_that_words_it_differently_gets_the_recorded_outcome(url: str) -> None:
    calls: list[str] = []
    words = iter(["Dear Ana", "Hello Ana", "Hi Ana"])
    fails = Times(2)

    @perdure.effect
    async def send(body: str) -> str:
        calls.append(body)
        return f"sent {body}"

    async def node(state: Log) -> Log:
        told = await send(next(words))
        fails()
        return {"log": [told]}

    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.output["log"] == ["sent Dear Ana"]
        assert calls == ["Dear Ana"]
        noted = await settled(rt, run, "differs")
        assert [event.data["name"] for event in noted] == ["send", "send"]
        [effect] = await rt.effects(run.id)
        assert {event.data["key"] for event in noted} == {effect.key}
        assert run.saved["effects"] == 2


async def test_methods_are_effects_and_their_object_is_not_recorded(url: str) -> None:
    calls: list[Any] = []
    fails = Times(1)

    class Client:
        def __init__(self) -> None:
            self.lock = threading.Lock()  # nothing that could be stored

        @perdure.effect
        def send(self, to: str) -> str:
            with self.lock:
                calls.append(to)
            return f"sent {to}"

        @classmethod
        @perdure.effect
        def of_class(cls, to: str) -> str:
            calls.append(to)
            return f"{cls.__name__} {to}"

        @staticmethod
        @perdure.effect
        def static(to: str) -> str:
            calls.append(to)
            return f"static {to}"

        @perdure.effect
        async def asend(self, to: str) -> str:
            calls.append(to)
            return f"asent {to}"

    async def node(state: Log) -> Log:
        client = Client()
        told = await asyncio.to_thread(
            lambda: [client.send("ana"), Client.of_class("ben"), client.static("cleo")]
        )
        told.append(await client.asend("dan"))
        fails()
        return {"log": told}

    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.output["log"] == ["sent ana", "Client ben", "static cleo", "asent dan"]
        assert calls == ["ana", "ben", "cleo", "dan"]
        assert [dict(one.arguments) for one in await rt.effects(run.id)] == [
            {"to": name} for name in calls
        ]


# -- outside of a run


async def test_outside_of_a_run_it_is_the_plain_function() -> None:
    keys: list[str] = []

    @perdure.effect(unknown="hold", retry=AT_ONCE)
    def send(to: str) -> str:
        keys.append(perdure.key())
        if to == "nobody":
            raise Boom(to)
        return f"sent {to}"

    @perdure.effect(timeout=5)
    async def asend(to: str) -> str:
        keys.append(perdure.key())
        return f"sent {to}"

    assert send("ana") == send("ana") == await asend("ana") == "sent ana"
    with pytest.raises(Boom):
        send("nobody")
    assert len(keys) == len(set(keys)) == 4
    with pytest.raises(NotInRun, match=r"Durable\(\)"):
        perdure.key()


@pytest.mark.parametrize("stock", [True, False])
async def test_without_our_saver_it_is_the_plain_function_too(stock: bool) -> None:
    keys: list[str] = []
    fails = Times(1)

    @perdure.effect
    def send(to: str) -> str:
        keys.append(perdure.key())
        return f"sent {to}"

    def node(state: Log) -> Log:
        told = send("ana")
        fails()
        return {"log": [told]}

    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("node", node, retry_policy=QUICK)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=InMemorySaver() if stock else None)
    config: Any = {"configurable": {"thread_id": "t"}}
    assert graph.invoke({"log": []}, config)["log"] == ["sent ana"]
    assert len(keys) == len(set(keys)) == 2


# -- output commit


@pytest.mark.slow
@pytest.mark.parametrize("way", ["saver", "saver-async"])
async def test_without_checkpoints_an_effect_is_refused_and_does_not_wait_for_ever(
    sqlite_url: str, way: str
) -> None:
    calls: list[str] = []
    effect = Pair(way, lambda to: calls.append(to))

    async def node(state: Log) -> Log:
        return {"log": [await effect("ana")]}

    with perdure.Saver(sqlite_url) as saver:
        graph = chain(colour(way, node)).compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}}

        async def call() -> None:
            if way == "saver":
                await asyncio.to_thread(graph.invoke, {"log": []}, config, durability="exit")
            else:
                await graph.ainvoke({"log": []}, config, durability="exit")

        with pytest.raises(BadArgument, match="durability='exit'"):
            await call()
    assert calls == []


async def test_a_plain_effect_in_a_coroutine_with_the_saver_alone(sqlite_url: str) -> None:
    """It blocks the event loop that would hand over the checkpoint it waits for."""
    calls: list[str] = []

    @perdure.effect
    def send(to: str) -> str:
        calls.append(to)
        return f"sent {to}"

    async def think(state: Log) -> Log:
        return {"log": ["thought"]}

    async def node(state: Log) -> Log:
        return {"log": [send("ana"), send("ben")]}

    output = await drive(sqlite_url, "saver-async", chain(think, node))
    assert output["log"] == ["thought", "sent ana", "sent ben"]
    assert calls == ["ana", "ben"]


# -- history


async def test_every_effect_is_an_event_and_what_came_from_the_record_is_counted(url: str) -> None:
    fails = Times(2)

    @perdure.effect
    async def send(to: str) -> str:
        return f"sent {to}"

    async def node(state: Log) -> Log:
        told = [await send("ana"), await send("ben")]
        fails()
        return {"log": told}

    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        kinds = await history(rt, run)
        assert kinds.count("effect") == 2
        events = await settled(rt, run)
        effects = await rt.effects(run.id)
        assert [event.data["key"] for event in events] == [one.key for one in effects]
        assert {event.data["state"] for event in events} == {"done"}
        assert [one.result for one in effects] == ["sent ana", "sent ben"]
        assert (run.saved["effects"], run.saved["model_calls"]) == (4, 0)
