"""An effect that takes too long, is cancelled or loses its journal ends as its policy says."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from datetime import timedelta
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy

import perdure
from perdure.cli import main
from perdure.types import Retry, State
from tests.support.agents import Log, chain, driving, gate, history, opened, reaches
from tests.support.effects import AT_ONCE, HOUR, Boom, Times, one, started
from tests.support.polling import auntil


@pytest.mark.parametrize("way", ["runtime", "runtime-async"])
@pytest.mark.parametrize("unknown", ["retry", "hold"])
async def test_a_timeout_leaves_what_the_policy_says(
    sqlite_url: str, way: str, unknown: Any
) -> None:
    calls: list[str] = []
    go = threading.Event()

    if way == "runtime":

        @perdure.effect(name="send", unknown=unknown, timeout=0.05, retry=AT_ONCE)
        def send(to: str) -> str:
            calls.append(perdure.key())
            if len(calls) == 1:
                go.wait(20)
            return f"sent {to}"

        def node(state: Log) -> Log:
            return {"log": [send("ana")]}

        builder = chain(node)
    else:

        @perdure.effect(name="send", unknown=unknown, timeout=0.05, retry=AT_ONCE)
        async def asend(to: str) -> str:
            calls.append(perdure.key())
            if len(calls) == 1:
                await asyncio.sleep(20)
            return f"sent {to}"

        builder = one(asend, "ana")
    async with opened(sqlite_url) as rt:
        try:
            run = await started(rt, builder)
        finally:
            go.set()
        if unknown == "retry":
            assert run.output["log"] == ["sent ana"]
            assert len(calls) == 2
            assert len(set(calls)) == 1
        else:
            assert run.state is State.HELD
            [effect] = await rt.effects(state="unknown")
            assert "EffectTimeout" in str(effect.error)
            assert len(calls) == 1


@pytest.mark.parametrize("how", ["sibling", "timeout"])
async def test_an_effect_of_a_node_that_is_cancelled_goes_on_and_is_recorded(
    sqlite_url: str, how: str
) -> None:
    calls: list[str] = []
    fails = Times(1)
    with gate() as stands:

        @perdure.effect
        async def send(to: str) -> str:
            calls.append(to)
            await stands.wait()
            return f"sent {to}"

        async def node(state: Log) -> Log:
            return {"log": [await send("ana")]}

        async def sibling(state: Log) -> Log:
            if how == "sibling":
                await stands.reached()
                fails()
            return {"log": []}

        builder: StateGraph[Any] = StateGraph(Log)
        builder.add_node("node", node, timeout=0.1 if how == "timeout" else None)
        builder.add_node("sibling", sibling)
        builder.add_edge(START, "node")
        builder.add_edge(START, "sibling")
        async with opened(sqlite_url) as rt:
            rt.register(builder, name="agent", retry=Retry(attempts=9, first=timedelta(0)))
            run = await rt.start("agent", {"log": []})
            async with driving(rt):
                await stands.reached()
                await auntil(lambda: rt.engine.keeper.driven[0].ending, "the node's end")
                assert (await rt.get(run.id)).state is State.RUNNING
                stands.open()
                run = await reaches(rt, run, State.DONE, State.FAILED)
            assert run.output["log"] == ["sent ana"]
            assert calls == ["ana"]


@pytest.mark.parametrize("way", ["runtime", "saver", "second invoke"])
async def test_a_retry_of_the_node_waits_for_the_call_that_is_on_its_way(
    sqlite_url: str, way: str
) -> None:
    calls: list[str] = []
    fails = Times(1)
    with gate() as stands:

        @perdure.effect
        async def send(to: str) -> str:
            calls.append(to)
            await stands.wait()
            return f"sent {to}"

        async def node(state: Log) -> Log:
            task = asyncio.ensure_future(send("ana"))
            await stands.reached()
            if fails.n:
                task.cancel()
                fails()
            asyncio.get_running_loop().call_later(0.1, stands.open)
            return {"log": [await task]}

        builder: StateGraph[Any] = StateGraph(Log)
        policy = RetryPolicy(initial_interval=0.001, jitter=False, retry_on=Boom)
        builder.add_node("node", node, retry_policy=None if way == "second invoke" else policy)
        builder.add_edge(START, "node")
        config: Any = {"configurable": {"thread_id": "t"}}
        if way == "runtime":
            async with opened(sqlite_url) as rt:
                output = (await started(rt, builder)).output
        else:
            input: Any = {"log": []}
            with perdure.Saver(sqlite_url) as saver:
                graph = builder.compile(checkpointer=saver)
                if way == "second invoke":
                    with pytest.raises(Boom):
                        await graph.ainvoke(input, config)
                    input = None
                output = await graph.ainvoke(input, config)
        assert output["log"] == ["sent ana"]
        assert calls == ["ana"]


@pytest.mark.parametrize("grace", [HOUR, timedelta(0)])
async def test_cancel_waits_for_an_effect_or_tells_that_nobody_knows(
    sqlite_url: str, grace: timedelta
) -> None:
    with gate() as stands:

        @perdure.effect
        async def send(to: str) -> str:
            await stands.wait()
            return f"sent {to}"

        async def later(state: Log) -> Log:
            raise AssertionError("it was cancelled")

        async with opened(sqlite_url, lease=timedelta(seconds=0.4)) as rt:
            rt.register(chain(("node", one(send, "ana").nodes["node"].runnable), later), name="a")
            run = await rt.start("a", {"log": []})
            async with driving(rt):
                await stands.reached()
                await rt.cancel(run.id, grace=grace)
                if grace:
                    await auntil(lambda: rt.engine.keeper.driven[0].stop, "the request to stop")
                    assert (await rt.get(run.id)).state is State.RUNNING
                else:
                    await reaches(rt, run, State.CANCELLED)
                stands.open()
                run = await reaches(rt, run, State.CANCELLED)
            [effect] = await rt.effects(run.id)
            assert (await history(rt, run))[-1] == "cancelled"
            last = (await rt.events(run.id))[-1]
            if grace:
                assert effect.result == "sent ana"
                assert list(last.data["kept"]) == [effect.key]
            else:  # it was not waited for any longer, and that is said
                assert effect.state == "open"
                assert list(last.data["unknown"]) == [effect.key]


async def test_a_journal_that_goes_away_in_the_middle_does_not_leave_the_run_hanging(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its intent could not be stored: the effect is over, and nobody waits for it."""
    fails = Times(1)
    calls: list[str] = []

    @perdure.effect
    async def send(to: str) -> str:
        calls.append(to)
        return f"sent {to}"

    async with opened(sqlite_url) as rt:
        rt.register(one(send, "ana"), name="agent")
        run = await rt.start("agent", {"log": []})
        commit = rt.journal._backend.commit

        def breaks(statements: Any) -> Any:
            if fails.n and any("insert_effect" in str(one) for one in statements):
                fails.n -= 1
                raise perdure.Unavailable("the disk is full")
            return commit(statements)

        monkeypatch.setattr(rt.journal._backend, "commit", breaks)
        async with asyncio.timeout(20):
            await rt.tick()
            await auntil(lambda: _done(rt, run))
        assert calls == ["ana"]


async def _done(rt: Any, run: Any) -> bool:
    await rt.tick()
    return bool((await rt.get(run.id)).ended)


async def test_effects_are_listed_page_by_page_and_by_what_is_asked_for(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @perdure.effect(retry=None)
    async def send(to: str) -> str:
        if to == "c":
            raise Boom("no such address")
        return f"sent {to}"

    async def node(state: Log) -> Log:
        for to in "abcde":
            with contextlib.suppress(Boom):
                await send(to)
        return {"log": []}

    async with opened(url) as rt:
        first = await started(rt, chain(node), thread="one")
        await started(rt, chain(node), thread="two", name="other")
        whole = await rt.effects()
        pages, after = [], None
        while page := await rt.effects(after=after, limit=3):
            pages += page
            after = page[-1]
        assert pages == whole
        assert len(whole) == 10
        mine = await rt.effects(first.id)
        assert sorted(effect.arguments["to"] for effect in mine) == list("abcde")
        assert [e.arguments["to"] for e in await rt.effects(first.id, state="failed")] == ["c"]
        found = await rt.effects(thread_id="two", state="done")
        assert {effect.thread_id for effect in found} == {"two"}
        assert len(found) == 4

        async def told(*arguments: str) -> str:
            capsys.readouterr()
            assert await asyncio.to_thread(main, ["effects", "--at", url, *arguments]) == 0
            return capsys.readouterr().out

        assert "No effect has an unknown outcome." in await told()
        shown = await told("--run", first.id)
        assert shown.count("send(to=") == 5
        assert "no such address" in shown
        assert (await told("--thread", "two", "--state", "failed")).count("send(to='c')") == 1
        assert len((await told("--state", "all", "--json", "--limit", "7")).splitlines()) == 7
