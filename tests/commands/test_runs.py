"""`start` is a ledger: what it accepted is on disk, once per key, and is driven in order.

What was given with a run is given again at every segment. Runs, outputs and histories can be read
at any time, also while a run goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.func import entrypoint
from langgraph.runtime import Runtime as NodeRuntime

import perdure
from perdure import Runtime
from perdure.errors import NotFound, ThreadBusy, Unserializable
from perdure.execution.segment_end import MAX_STORED_OUTPUT
from perdure.testing import Clock
from perdure.types import State
from tests.support.agents import (
    Calls,
    Log,
    chain,
    checkpoints,
    driven,
    driving,
    gate,
    history,
    opened,
    reaches,
    told_to_stop,
)
from tests.support.controls import nap

HOUR = timedelta(hours=1)


def approve(state: Log) -> Any:
    return {"log": [f"approved {perdure.ask('go on?')}"]}


def echo(state: Log) -> Any:
    return {"log": [f"{len(state.get('log', []))} before"]}


def said(*texts: str) -> dict[str, Any]:
    return {"log": list(texts)}


async def ids(rt: Runtime, **filters: Any) -> list[str]:
    return [run.id for run in await rt.runs(**filters)]


# -- accepting


async def test_a_key_without_a_thread_has_a_thread_of_its_own(url: str) -> None:
    async with opened(url) as rt, opened(url) as another:
        for one in (rt, another):
            one.register(chain(echo), name="g")
            one.register(chain(echo), name="h")
        first = await rt.start("g", said("a"), key="k")
        assert (await another.start("g", said("b"), key="k")).id == first.id
        others = [
            await rt.start("g", said("a"), key="l"),
            await rt.start("h", said("a"), key="k"),
            await rt.start("g", said("a")),
            await rt.start("g", said("a"), thread_id="t", key="k"),
        ]
        assert len({first.thread_id, *(run.thread_id for run in others)}) == 5


# -- what cannot be accepted


async def test_a_strategy_that_stops_others_stops_nothing_when_its_run_is_refused(
    sqlite_url: str,
) -> None:
    async with opened(sqlite_url) as rt:
        run = await driven(rt, chain(approve), said("a"), thread_id="t")
        with pytest.raises(Unserializable, match="value"):
            await rt.start("g", {"value": print}, thread_id="t", multitask_strategy="rollback")
        assert (await rt.get(run.id)).state == State.WAITING


async def test_of_several_runs_that_are_due_the_one_due_longest_is_claimed_first(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(echo), name="g")
        minutes = [30, 10, 50, 20, 40]
        for n in minutes:
            await rt.start("g", said(str(n)), thread_id=str(n), after=timedelta(minutes=n))
        rt.clock.advance(HOUR)
        claimed = []
        for _ in minutes:
            assert (await rt.tick(limit=1)).claimed == 1
            claimed += [
                int(run.thread_id)
                for run in await rt.runs(state=State.DONE)
                if int(run.thread_id) not in claimed
            ]
        assert claimed == sorted(minutes)


@pytest.mark.parametrize("method", ["get", "events", "pause", "resume", "cancel", "retry", "fork"])
async def test_a_run_that_is_not_there_is_told_by_its_id(sqlite_url: str, method: str) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(echo), name="g")
        with pytest.raises(NotFound, match="'nobody'") as told:
            await getattr(rt, method)("nobody")
        assert (told.value.what, told.value.id) == ("run", "nobody")


# -- order


@pytest.mark.parametrize("way", ["pending", "waiting", "paused", "running"])
async def test_reject_refuses_a_run_on_a_busy_thread(url: str, way: str) -> None:
    with gate() as closed:
        nodes: dict[str, Any] = {"running": ("stand", closed.wait), "waiting": approve}
        async with opened(url) as rt:
            rt.register(chain(nodes.get(way, echo)), name="g")
            run = await rt.start("g", said("a"), thread_id="t")
            async with driving(rt) if way in nodes else opened(url):
                if way == "paused":
                    await rt.pause(run.id)
                await reaches(rt, run, State(way))
                with pytest.raises(ThreadBusy, match="'t'") as told:
                    await rt.start("g", said("b"), thread_id="t", multitask_strategy="reject")
                assert told.value.thread_id == "t"
                assert await ids(rt) == [run.id]
                assert (await rt.get(run.id)).state == State(way)
                closed.open()


async def test_reject_accepts_on_a_free_thread_and_finds_its_own_key(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(echo), name="g")
        for _ in range(2):
            await rt.start("g", said("a"), thread_id="t", multitask_strategy="reject")
            await rt.tick()
        first = await rt.start("g", thread_id="t", key="k", multitask_strategy="reject")
        again = await rt.start("g", thread_id="t", key="k", multitask_strategy="reject")
        assert again.id == first.id
        assert len(await rt.runs()) == 3


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
async def test_a_pending_run_is_taken_over(url: str, strategy: Any) -> None:
    async with opened(url) as rt:
        rt.register(chain(echo), name="g")
        olds = [await rt.start("g", said("old"), thread_id="t") for _ in range(2)]
        new = await rt.start("g", said("new"), thread_id="t", multitask_strategy=strategy)
        for old in olds:
            stopped = await rt.get(old.id)
            assert stopped.state == State.CANCELLED
            assert new.id in (stopped.reason or "")
            assert await history(rt, old) == ["started", "cancelled"]
        await rt.tick()
        assert (await rt.get(new.id)).output == said("new", "1 before")


async def test_interrupt_keeps_the_steps_of_a_waiting_run(url: str) -> None:
    async with opened(url) as rt:
        old = await driven(rt, chain(echo, approve), said("old"), thread_id="t")
        [wait] = await rt.waits()
        new = await rt.start("g", said("new"), thread_id="t", multitask_strategy="interrupt")
        assert (await rt.get(old.id)).state == State.CANCELLED
        assert await rt.waits() == []
        with pytest.raises(perdure.Error, match=wait.id):
            await rt.answer(wait.id, "late")
        await rt.tick()
        [wait] = await rt.waits(run_id=new.id)
        await rt.answer(wait.id, "yes")
        await rt.tick()
        expected = said("old", "1 before", "new", "3 before", "approved yes")
        assert (await rt.get(new.id)).output == expected


async def test_rollback_deletes_the_steps_and_messages_of_a_waiting_run(url: str) -> None:
    async with opened(url) as rt:
        bound = rt.register(chain(echo, approve), name="g")
        kept = await rt.start("g", said("kept"), thread_id="t")
        await rt.tick()
        [wait] = await rt.waits()
        await rt.answer(wait.id, "yes")
        await rt.tick()
        before = [found.checkpoint["id"] for found in await checkpoints(rt, "t")]
        old = await rt.start("g", said("old"), thread_id="t")
        await rt.tick()
        assert len(await checkpoints(rt, "t")) > len(before)
        new = await rt.start("g", said("new"), thread_id="t", multitask_strategy="rollback")
        assert (await rt.get(old.id)).state == State.CANCELLED
        await rt.tick()
        left = await checkpoints(rt, "t")
        assert old.id not in {found.metadata.get("run_id") for found in left}
        assert before == [found.checkpoint["id"] for found in left][-len(before) :]
        snapshot = await bound.aget_state({"configurable": {"thread_id": "t"}})
        assert snapshot.values == said("kept", "1 before", "approved yes", "new", "4 before")
        assert (await rt.get(kept.id)).output == said("kept", "1 before", "approved yes")
        assert (await rt.get(new.id)).state == State.WAITING


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
@pytest.mark.parametrize("color", ["thread", "loop"])
async def test_a_running_run_stops_at_its_next_step_and_the_new_one_goes(
    url: str, strategy: Any, color: str
) -> None:
    calls = Calls()
    with gate() as closed:

        def stand(state: Log) -> None:
            if state["log"][-1] == "old":
                closed.block()

        async def stand_in_loop(state: Log) -> None:
            if state["log"][-1] == "old":
                await closed.wait()

        nodes = (
            (calls.node("stand", stand), calls.node("after"))
            if color == "thread"
            else (calls.coroutine("stand", stand_in_loop), calls.coroutine("after"))
        )
        async with opened(url) as rt:
            rt.register(chain(*nodes), name="g")
            old = await rt.start("g", said("old"), thread_id="t")
            async with driving(rt):
                await closed.reached()
                new = await rt.start("g", said("new"), thread_id="t", multitask_strategy=strategy)
                assert (await rt.get(old.id)).state == State.RUNNING
                await told_to_stop(rt, old)
                assert "cancelling" in await history(rt, old)
                closed.open()
                await reaches(rt, old, State.CANCELLED)
                done = await reaches(rt, new, State.DONE)
            kept = ["old", "stand"] if strategy == "interrupt" else []
            assert done.output == said(*kept, "new", "stand", "after")
            assert calls == ["stand", "stand", "after"]


async def test_the_same_key_again_does_not_stop_the_run_it_made(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(approve), name="g")
        for strategy in ("interrupt", "rollback"):
            options: Any = {"thread_id": "t", "key": strategy, "multitask_strategy": strategy}
            run = await rt.start("g", said("a"), **options)
            await rt.tick()
            assert (await rt.start("g", said("a"), **options)).id == run.id
            assert (await rt.get(run.id)).state == State.WAITING


async def test_a_run_without_input_goes_on_where_the_thread_stopped(url: str) -> None:
    calls = Calls()
    async with opened(url) as rt:
        stopped = await driven(rt, chain(calls.node("one"), approve), said("a"), thread_id="t")
        await rt.cancel(stopped.id)
        run = await rt.start("g", thread_id="t")
        await rt.tick()
        [wait] = await rt.waits(run_id=run.id)
        await rt.answer(wait.id, "yes")
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", "one", "approved yes")
        assert calls == ["one"]


# -- later


async def test_a_time_that_has_passed_is_now(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(echo), name="g")
        await rt.start("g", said("a"), after=-HOUR)
        assert (await rt.tick()).done == 1


async def test_a_queued_run_keeps_its_own_time(url: str) -> None:
    clock = Clock()
    async with opened(url, clock) as rt:
        rt.register(chain(nap), name="g")
        await rt.start("g", said("a"), thread_id="t")
        early = await rt.start("g", said("b"), thread_id="t", after=3 * HOUR)
        await rt.tick()
        clock.advance(HOUR)
        assert (await rt.tick()).done == 1
        assert (await rt.get(early.id)).due_at == clock.time + 2 * HOUR
        clock.advance(2 * HOUR)
        assert (await rt.tick()).waiting == 1


# -- what every segment is given


@dataclass
class Context:
    """What the nodes of one run share."""

    user: str
    limits: dict[str, int]


async def test_context_config_metadata_and_tags_are_given_again_at_every_segment(url: str) -> None:
    seen: list[Any] = []

    def look(state: Log, config: RunnableConfig, runtime: NodeRuntime[Context]) -> Any:
        found = config["metadata"]
        seen.append(
            (
                runtime.context,
                config["configurable"]["tenant"],
                config["recursion_limit"],
                {name: found[name] for name in ("order", "from")},
                sorted(tag for tag in config["tags"] if not tag.startswith("graph:")),
            )
        )
        return {"log": ["look"]}

    def graph() -> Any:
        from langgraph.graph import START, StateGraph

        builder: Any = StateGraph(Log, context_schema=Context)
        builder.add_sequence([("look", look), ("nap", nap), ("again", look)])
        return builder.add_edge(START, "look")

    clock = Clock()
    async with opened(url, clock) as rt:
        rt.register(graph(), name="g")
        run = await rt.start(
            "g",
            said("a"),
            context=Context("ana", {"mails": 3}),
            config={
                "configurable": {"tenant": "t1"},
                "recursion_limit": 17,
                "metadata": {"from": "config"},
                "tags": ["one"],
            },
            metadata={"order": 7},
            tags=["two"],
        )
        assert (await rt.tick()).waiting == 1
    clock.advance(HOUR)
    async with opened(url, clock) as rt:
        rt.register(graph(), name="g")
        assert (await rt.tick()).done == 1
        expected = (
            Context("ana", {"mails": 3}),
            "t1",
            17,
            {"order": 7, "from": "config"},
            ["one", "runtime:cron", "two"],
        )
        assert seen == [expected, expected]
        assert (await rt.get(run.id)).output == said("a", "look", "nap", "look")


@pytest.mark.parametrize("durability", ["auto", "sync", "async", "exit"])
async def test_a_run_ends_the_same_with_every_durability(sqlite_url: str, durability: Any) -> None:
    clock = Clock()
    async with opened(sqlite_url, clock) as rt:
        rt.register(chain(echo, nap, ("last", echo)), name="g")
        run = await rt.start("g", said("a"), durability=durability)
        assert (await rt.tick()).waiting == 1
        clock.advance(HOUR)
        async with opened(sqlite_url, clock) as another:
            another.register(chain(echo, nap, ("last", echo)), name="g")
            assert (await another.tick()).done == 1
        assert (await rt.get(run.id)).output == said("a", "1 before", "nap", "3 before")


# -- reading


@pytest.mark.parametrize("durability", ["auto", "exit"])
async def test_a_large_output_can_be_read_whole_when_the_thread_went_on(
    url: str, durability: Any
) -> None:
    def produce(state: Log) -> Any:
        return {"value": f"{len(state['log'])}" * (4 * MAX_STORED_OUTPUT)}

    async with opened(url) as rt:
        rt.register(chain(produce), name="g")
        first = await rt.start("g", said("a"), thread_id="t", durability=durability)
        second = await rt.start("g", said("b"), thread_id="t", durability=durability)
        await rt.tick()
        async with opened(url) as another:
            for n, run in ((1, first), (2, second)):
                output = (await another.get(run.id)).output
                assert output == {**said(*"ab"[:n]), "value": f"{n}" * (4 * MAX_STORED_OUTPUT)}


async def test_a_large_output_of_an_entrypoint_can_be_read_whole(url: str) -> None:
    @entrypoint()
    def flow(size: int, *, previous: Any = None) -> Any:
        return entrypoint.final(value="x" * size, save=size)

    async with opened(url) as rt:
        rt.register(flow, name="g")
        runs = [await rt.start("g", size, thread_id="t") for size in (10, 4 * MAX_STORED_OUTPUT)]
        await rt.tick()
        assert [len((await rt.get(run.id)).output) for run in runs] == [10, 4 * MAX_STORED_OUTPUT]
