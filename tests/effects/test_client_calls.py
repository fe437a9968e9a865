"""What a node asks of a client is an effect: it happens once, however often the node runs again."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config as langgraph_config

import perdure
from perdure.commands import health
from perdure.errors import ThreadBusy
from perdure.types import Retry, State
from tests.contract.test_children import cut, naps, rest
from tests.support.agents import Log, chain, driven, history, opened
from tests.support.effects import AT_ONCE, Boom, Times
from tests.support.raw import execute

ONCE = Retry(attempts=1)


def nothing(state: Log) -> Log:
    return {"log": ["did nothing"]}


@pytest.mark.parametrize("colour", ["blocking", "awaited"])
async def test_a_signal_sent_in_a_node_is_sent_once(url: str, colour: str) -> None:
    fails, sent = Times(1), []

    def listens(state: Log) -> Log:
        first = perdure.wait_for("news")
        second = perdure.wait_for("news", timeout=timedelta(hours=1), default="nothing more")
        return {"log": [first, second]}

    def plain(state: Log) -> Log:
        sent.append(rt.blocking.signal("listener", "news", "hello"))
        fails("after the signal")
        return {}

    async def coroutine(state: Log) -> Log:
        sent.append(await rt.signal("listener", "news", "hello"))
        fails("after the signal")
        return {}

    async with opened(url) as rt:
        rt.register(chain(listens), name="listener")
        node = plain if colour == "blocking" else coroutine
        rt.register(chain(("node", node)), name="sender", retry=AT_ONCE)
        listener = await rt.start("listener", {"log": []}, thread_id="listener")
        await rt.start("sender", {"log": []})
        await rt.tick()
        rt.clock.advance(timedelta(hours=2))
        await rt.tick()
        assert (await rt.get(listener.id)).output["log"] == ["hello", "nothing more"]
        assert sent == [True, True]


@pytest.mark.parametrize("name", ["start", "signal", "fork", "schedule", "unschedule", "score"])
async def test_what_a_node_makes_is_made_once_if_nobody_heard_of_it(url: str, name: str) -> None:
    async def node(state: Log) -> Log:
        if name == "start":
            await rt.start("nothing", {"log": []})
        elif name == "signal":
            assert await rt.signal("somebody", "news", "hello")
        elif name == "fork":
            await rt.fork(target.id)
        elif name == "schedule":
            made = await rt.schedule("daily", "nothing", cron="0 9 * * *")
            assert made.name == "daily"
        elif name == "unschedule":
            await rt.unschedule("weekly")
        else:
            await rt.score(target.id, "good", 1.0)
        return {"log": ["acted"]}

    async with opened(url) as rt:
        rt.register(chain(nothing), name="nothing")
        rt.register(chain(naps), name="naps")
        rt.register(chain(node), name="agent", retry=AT_ONCE)
        target = await rest(rt, "naps", State.WAITING)
        await rt.schedule("weekly", "nothing", cron="0 9 * * 1")
        run = await rt.start("agent", {"log": []})
        with cut(name):
            await rt.tick(limit=50)
        assert (await rt.get(run.id)).state is State.DONE
        made = {
            "start": len(await rt.runs(graph="nothing")),
            "signal": len(execute(url, "SELECT id FROM perdure_signals")),
            "fork": len(await rt.runs(graph="naps")) - 1,
            "schedule": len(await rt.schedules()) - 1,
            "unschedule": 1 - len(await rt.schedules()),
            "score": len(await rt.scores(target.id)),
        }
        assert made[name] == 1


@pytest.mark.parametrize("name", ["start", "signal", "score"])
async def test_a_run_that_no_longer_makes_a_call_that_was_cut_off_is_not_held(
    url: str, name: str
) -> None:
    attempts: list[str] = []

    async def node(state: Log) -> Log:
        attempts.append(name)
        if len(attempts) > 1:  # what led to the call is over
            return {"log": ["another way"]}
        if name == "start":
            await rt.start("nothing", {"log": []})
        elif name == "signal":
            await rt.signal("somebody", "news", "hello")
        else:
            await rt.score(target.id, "good", 1.0)
        return {"log": ["acted"]}

    async with opened(url) as rt:
        rt.register(chain(nothing), name="nothing")
        rt.register(chain(node), name="agent", retry=AT_ONCE)
        target = await rest(rt, "nothing", State.DONE)
        run = await rt.start("agent", {"log": []})
        with cut(name):
            await rt.tick(limit=50)
        found = await rt.get(run.id)
        assert (found.state, found.output) == (State.DONE, {"log": ["another way"]})
        assert not await rt.effects(state="unknown")
        assert not rt.journal.do(health.examine())


async def test_a_call_that_failed_is_made_again_when_its_run_is_retried(url: str) -> None:
    async def node(state: Log) -> Log:
        child = await rt.start("nothing", {}, thread_id="busy", multitask_strategy="reject")
        return {"log": [child.graph]}

    async with opened(url) as rt:
        rt.register(chain(naps), name="naps")
        rt.register(chain(nothing), name="nothing")
        rt.register(chain(node), name="agent", retry=ONCE)
        busy = await rt.start("naps", {"log": []}, thread_id="busy")
        run = await rt.start("agent", {"log": []})
        await rt.tick()
        assert (await rt.get(run.id)).state is State.FAILED
        await rt.cancel(busy.id)
        await rt.retry(run.id)
        await rt.tick()
        assert (await rt.get(run.id)).output == {"log": ["nothing"]}


async def test_an_error_of_a_call_is_recorded_and_raised_again(sqlite_url: str) -> None:
    told: list[str] = []
    raises = Times(1)

    async def node(state: Log) -> Log:
        try:
            await rt.start("nothing", {}, thread_id="busy", multitask_strategy="reject")
        except ThreadBusy as error:
            told.append(str(error))
        raises("afterwards")
        return {}

    async with opened(sqlite_url) as rt:
        rt.register(chain(naps), name="naps")
        rt.register(chain(nothing), name="nothing")
        rt.register(chain(node), name="agent", retry=AT_ONCE)
        await rt.start("naps", {"log": []}, thread_id="busy")
        run = await rt.start("agent", {"log": []})
        await rt.tick()
        assert (await rt.get(run.id)).state is State.DONE
        assert len(told) == 2
        assert told[0] == told[1]


@pytest.mark.parametrize("colour", ["blocking", "awaited"])
async def test_children_started_in_another_order_are_each_started_once(
    sqlite_url: str, colour: str
) -> None:
    orders, raises = iter(["abcd", "cdab"]), Times(1)

    def plain(state: Log) -> Log:
        for n, name in enumerate(next(orders)):
            rt.blocking.start("nothing", {"value": name})
            if n == 1:
                raises("between two starts")
        return {}

    async def coroutine(state: Log) -> Log:
        for n, name in enumerate(next(orders)):
            await rt.start("nothing", {"value": name})
            if n == 1:
                raises("between two starts")
        return {}

    async with opened(sqlite_url) as rt:
        rt.register(chain(nothing), name="nothing")
        node = plain if colour == "blocking" else coroutine
        rt.register(chain(("node", node)), name="agent", retry=AT_ONCE)
        orders = iter(["abcd", "cdab", "cdab"])
        run = await rt.start("agent", {"log": []})
        await rt.tick(limit=100)
        assert (await rt.get(run.id)).state is State.DONE
        found = await rt.runs(graph="nothing")
        assert sorted(one.output["value"] for one in found) == ["a", "b", "c", "d"]


async def test_a_client_of_another_journal_starts_once_and_no_child(
    url: str, tmp_path: Path
) -> None:
    raises = Times(1)

    async def node(state: Log) -> Log:
        await elsewhere.start("nothing", {"log": []})
        await here.start("nothing", {"log": []})
        raises("afterwards")
        return {}

    async with (
        opened(url) as rt,
        perdure.Client(f"sqlite:///{tmp_path}/other.db") as elsewhere,
        perdure.Client(url) as here,
    ):
        rt.register(chain(nothing), name="nothing")
        run = await driven(rt, chain(node), {"log": []}, name="agent", retry=AT_ONCE)
        assert [one.parent_id for one in await elsewhere.runs()] == [None]
        assert [one.parent_id for one in await rt.runs(graph="nothing")] == [run.id]


async def test_with_only_the_saver_a_run_is_started_once_too(sqlite_url: str) -> None:
    raises = Times(1)

    def node(state: Log) -> Log:
        rt.blocking.start("nothing", {"log": []})
        raises("afterwards")
        return {}

    async with opened(sqlite_url) as rt:
        rt.register(chain(nothing), name="nothing")
        with perdure.Saver(sqlite_url) as saver:
            graph = chain(node).compile(checkpointer=saver)
            config: Any = {"configurable": {"thread_id": "t"}}
            with pytest.raises(Boom):
                await asyncio.to_thread(graph.invoke, {"log": []}, config)
            await asyncio.to_thread(graph.invoke, None, config)
        [child] = await rt.runs()
        assert child.parent_id is None


@pytest.mark.parametrize("is_cut", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("colour", ["plain", "coroutine"])
async def test_a_bound_graph_that_a_node_invokes_on_a_thread_runs_once(
    url: str, colour: str, is_cut: bool
) -> None:
    raises, worked = Times(0 if is_cut else 1), []
    thread: Any = {"configurable": {"thread_id": "the child's"}}

    def work(state: Log) -> Log:
        worked.append(state["value"])
        return {"value": "worked"}

    def plain(state: Log) -> Log:
        found = child.invoke({"value": "in"}, thread)
        raises("afterwards")
        return {"value": found["value"]}

    async def coroutine(state: Log) -> Log:
        found = await child.ainvoke({"value": "in"}, thread)
        raises("afterwards")
        return {"value": found["value"]}

    async with opened(url) as rt:
        child = rt.register(chain(work), name="child")
        node = plain if colour == "plain" else coroutine
        rt.register(chain(("node", node)), name="parent", retry=AT_ONCE)
        run = await rt.start("parent", {"log": []})
        with cut("invoke") if is_cut else nullcontext():
            await rt.tick()
        done = await rt.get(run.id)
        assert (done.state, done.output["value"]) == (State.DONE, "worked")
        [made] = await rt.runs(graph="child")
        assert (made.parent_id, worked) == (run.id, ["in"])


async def test_a_bound_graph_that_failed_in_a_node_goes_on_from_its_last_step(
    sqlite_url: str,
) -> None:
    raises, ran = Times(1), []

    def first(state: Log) -> Log:
        ran.append("first")
        return {"log": ["first"]}

    def second(state: Log) -> Log:
        ran.append("second")
        raises("not yet")
        return {"log": ["second"]}

    def node(state: Log) -> Log:
        config: Any = {"configurable": {"thread_id": "the child's"}}
        return {"value": child.invoke({"log": []}, config)["log"]}

    async with opened(sqlite_url) as rt:
        child = rt.register(chain(first, second), name="child")
        run = await driven(rt, chain(node), {"log": []}, name="parent", retry=AT_ONCE)
        assert (await rt.get(run.id)).output["value"] == ["first", "second"]
        assert ran == ["first", "second", "second"]
        [made] = await rt.runs(graph="child")
        assert (await history(rt, made)).count("retried") == 1


@pytest.mark.parametrize("same_thread", [False, True], ids=["apart", "one thread"])
async def test_bound_graphs_that_a_node_invokes_in_another_order_each_get_their_own_input(
    sqlite_url: str, same_thread: bool
) -> None:
    orders, raises, ran = [["b", "a"], ["b", "a"], ["a", "b"]], Times(1), []

    def work(state: Log) -> Log:
        raises("not yet")
        ran.append((langgraph_config()["configurable"]["thread_id"], state["value"]))
        return {"value": state["value"].upper()}

    def node(state: Log) -> Log:
        found = {}
        for name in orders.pop() if len(orders) > 1 else orders[0]:
            config: Any = {"configurable": {"thread_id": "t" if same_thread else name}}
            found[name] = child.invoke({"value": name}, config)["value"]
        return {"value": found}

    async with opened(sqlite_url) as rt:
        child = rt.register(chain(work), name="child")
        run = await driven(rt, chain(node), {"log": []}, name="parent", retry=AT_ONCE)
        assert (await rt.get(run.id)).output["value"] == {"a": "A", "b": "B"}
        assert sorted(ran) == [("t" if same_thread else name, name) for name in "ab"]


@pytest.mark.parametrize("how", ["invoke", "stream"])
async def test_a_bound_graph_that_a_node_calls_twice_on_a_thread_takes_each_input(
    sqlite_url: str, how: str
) -> None:
    thread: Any = {"configurable": {"thread_id": "the child's"}}

    def work(state: Log) -> Log:
        return {"log": [state["value"]]}

    def node(state: Log) -> Log:
        found: Any = None
        for name in "ab":
            if how == "invoke":
                found = child.invoke({"value": name}, thread)
            else:
                *_, found = child.stream({"value": name}, thread, stream_mode="values")
        return {"value": found["log"]}

    async with opened(sqlite_url) as rt:
        child = rt.register(chain(work), name="child")
        run = await driven(rt, chain(node), {"log": []}, name="parent")
        assert (await rt.get(run.id)).output["value"] == ["a", "b"]


async def test_a_plain_graph_that_a_node_calls_twice_on_a_thread_takes_each_input(
    sqlite_url: str,
) -> None:
    """LangGraph takes a call that inherits the id of the thread's last run for a reconnect."""
    child = chain(("work", lambda state: {"log": [state["value"]]})).compile(InMemorySaver())
    seen: list[Any] = []

    def node(state: Log, config: RunnableConfig) -> Log:
        seen.append((config["configurable"]["run_id"], str(config["metadata"]["run_id"])))
        thread: Any = {"configurable": {"thread_id": "the child's"}}
        found: Any = None
        for name in "ab":
            found = child.invoke({"value": name}, thread)
        return {"value": found["log"]}

    async with opened(sqlite_url) as rt:
        run = await driven(rt, chain(node), {"log": []})
        assert (await rt.get(run.id)).output["value"] == ["a", "b"]
        assert seen == [(run.id, run.id)]
        stored = await rt.saver.aget_tuple({"configurable": {"thread_id": run.thread_id}})
        assert stored is not None
        assert stored.metadata.get("run_id") == run.id
