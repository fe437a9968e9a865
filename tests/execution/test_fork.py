"""A fork goes on where its run was: with the rest of a sleep, with its questions, in its subgraphs.

It never ends quietly because the code changed: it is refused, and says what to give.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from langgraph.graph import START

import perdure
from perdure.errors import BadArgument, GraphChanged
from perdure.testing import Clock
from perdure.types import Kind, State
from tests.support.agents import NOON, Calls, Log, chain, driven, opened
from tests.support.controls import HOUR, ONCE, SECOND, approve, echo, nap, said

# -- the code changed


async def test_a_fork_of_a_run_whose_node_is_gone_is_refused_and_says_what_to_give(
    sqlite_url: str,
) -> None:
    calls = Calls()
    async with opened(sqlite_url) as rt:
        run = await driven(rt, chain(echo, nap, ("last", echo)), said("a"), thread_id="t")
    async with opened(sqlite_url, Clock(NOON + HOUR)) as rt:
        rt.register(chain(echo, ("snooze", nap), calls.node("last")), name="g")
        await rt.tick()
        held = await rt.get(run.id)
        assert held.state is State.HELD
        with pytest.raises(GraphChanged, match="as_node") as raised:
            await rt.fork(run.id)
        assert (raised.value.run_id, raised.value.lost) == (run.id, ("nap",))
        with pytest.raises(GraphChanged):  # an update does not say where to go on
            await rt.fork(run.id, update=said("b"))
        with pytest.raises(BadArgument, match="no node 'nap', only echo, snooze, last"):
            await rt.fork(run.id, as_node="nap")
        assert [one.id for one in await rt.runs()] == [run.id]
        # What the message of the held run recommends works.
        assert "as_node" in str(held.reason)
        forked = await rt.fork(run.id, as_node="snooze")
        await rt.tick()
        assert (await rt.get(forked.id)).output == said("a", "echo", "last")
        assert calls == ["last"]


async def test_a_fork_of_a_run_whose_node_was_renamed_goes_on_at_its_new_name(url: str) -> None:
    async with opened(url) as rt:
        run = await driven(rt, chain(echo, nap, ("last", echo)), said("a"), thread_id="t")
    async with opened(url) as rt:
        renamed = {"nap": "snooze"}
        rt.register(chain(echo, ("snooze", nap), ("last", echo)), name="g", renamed=renamed)
        forked = await rt.fork(run.id)
        await rt.tick()
        assert (await rt.get(forked.id)).state is State.WAITING
        rt.clock.advance(HOUR)
        await rt.tick()
        for one in (run, forked):
            assert (await rt.get(one.id)).output == said("a", "echo", "nap", "echo")


@pytest.mark.parametrize("is_driven", [False, True])
async def test_code_that_changes_under_a_fork_holds_it(url: str, is_driven: bool) -> None:
    async with opened(url) as rt:
        run = await driven(rt, chain(echo, approve, ("last", echo)), said("a"), thread_id="t")
        forked = await rt.fork(run.id)
        if is_driven:
            await rt.tick()
            [wait] = await rt.waits(run_id=forked.id)
            await rt.answer(wait.id, "yes")
    async with opened(url) as rt:
        rt.register(chain(echo, ("consent", approve), ("last", echo)), name="g")
        await rt.tick()
        assert (await rt.get(forked.id)).state is State.HELD


# -- what it waited for


async def test_a_fork_of_a_sleeping_run_keeps_the_rest_of_its_sleep(url: str) -> None:
    async with opened(url) as rt:
        run = await driven(rt, chain(echo, nap), said("a"), thread_id="t")
        [old] = await rt.waits(run_id=run.id)
        rt.clock.advance(HOUR - SECOND)
        plain = await rt.fork(run.id)
        changed = await rt.fork(run.id, update=said("changed"))
        await rt.tick()
        for fork in (plain, changed):
            [wait] = await rt.waits(run_id=fork.id)
            assert (wait.kind, wait.wake_at) == (Kind.CLOCK, old.wake_at)
        assert await rt.prune(older_than=timedelta(0)) == 0
        rt.clock.advance(SECOND)
        await rt.tick()
        assert (await rt.get(plain.id)).output == said("a", "echo", "nap")
        assert (await rt.get(changed.id)).output == said("a", "echo", "changed", "nap")


async def test_a_fork_from_before_the_sleep_sleeps_anew(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        run = await driven(rt, chain(echo, nap), said("a"), thread_id="t")
        config: Any = {"configurable": {"thread_id": "t"}}
        ids = [one.checkpoint["id"] async for one in rt.saver.alist(config)]
        rt.clock.advance(HOUR / 2)
        fork = await rt.fork(run.id, at=ids[1])
        await rt.tick()
        [wait] = await rt.waits(run_id=fork.id)
        assert wait.wake_at == NOON + HOUR * 1.5


async def test_a_fork_draws_its_own_random_numbers(sqlite_url: str) -> None:
    async def draws(state: Log) -> Any:
        told = [str(perdure.uuid()), str(perdure.now())]
        perdure.ask(told)
        return said(*told)

    async with opened(sqlite_url) as rt:
        run = await driven(rt, chain(draws), said(), thread_id="t")
        rt.clock.advance(HOUR)
        fork = await rt.fork(run.id)
        await rt.tick()
        [old], [new] = [await rt.waits(run_id=one.id) for one in (run, fork)]
        assert old.value[0] != new.value[0]
        assert old.value[1] == new.value[1]


async def test_a_fork_of_a_run_that_waits_has_its_questions_and_signals(url: str) -> None:
    def hears(state: Log) -> Any:
        return said(perdure.wait_for("reply", timeout=HOUR))

    def asks(state: Log) -> Any:
        return said(perdure.ask("ok?", expires=HOUR))

    builder = chain()
    for node in (hears, asks):
        builder.add_node(node.__name__, node)
        builder.add_edge(START, node.__name__)
    async with opened(url) as rt:
        run = await driven(rt, builder, said("a"), thread_id="t")
        rt.clock.advance(HOUR / 2)
        fork = await rt.fork(run.id)
        await rt.tick()
        waits = {wait.kind: wait for wait in await rt.waits(run_id=fork.id)}
        assert {wait.expires_at for wait in waits.values()} == {NOON + HOUR}
        await rt.signal(fork.thread_id, "reply", "heard")
        await rt.answer(waits[Kind.HUMAN].id, "yes")
        await rt.tick()
        assert sorted((await rt.get(fork.id)).output["log"]) == ["a", "heard", "yes"]
        assert (await rt.get(run.id)).state is State.WAITING


async def test_a_fork_keeps_what_a_subgraph_and_a_branch_beside_have_done(sqlite_url: str) -> None:
    calls = Calls()
    inner = chain(calls.node("before"), ("approve", approve)).compile()
    builder = chain()
    builder.add_node("inner", inner)
    builder.add_node(*calls.node("beside"))
    builder.add_edge(START, "inner")
    builder.add_edge(START, "beside")
    async with opened(sqlite_url) as rt:
        run = await driven(rt, builder, said("a"), thread_id="t")
        fork = await rt.fork(run.id)
        await rt.tick()
        [wait] = await rt.waits(run_id=fork.id)
        await rt.answer(wait.id, "yes")
        await rt.tick()
        assert sorted(calls) == ["before", "beside"]
        assert (await rt.get(fork.id)).state is State.DONE


async def test_a_fork_of_a_run_at_a_breakpoint_stops_there_too(sqlite_url: str) -> None:
    calls = Calls()
    async with opened(sqlite_url) as rt:
        graph = chain(echo, calls.node("guarded")).compile(interrupt_before=["guarded"])
        run = await driven(rt, graph, said("a"), thread_id="t")
        fork = await rt.fork(run.id)
        await rt.tick()
        [wait] = await rt.waits(run_id=fork.id)
        assert calls == []
        await rt.answer(wait.id, True)
        await rt.tick()
        assert (await rt.get(fork.id)).output == said("a", "echo", "guarded")


# -- a run in each state


async def test_a_fork_of_a_failed_run_tries_its_step_again(sqlite_url: str) -> None:
    broken = [True]

    def fragile(state: Log) -> Any:
        answer = perdure.ask("ok?")
        if broken:
            raise ValueError("broken")
        return said(answer)

    async with opened(sqlite_url) as rt:
        run = await driven(rt, chain(echo, fragile), said("a"), thread_id="t", retry=ONCE)
        [wait] = await rt.waits()
        await rt.answer(wait.id, "yes")
        await rt.tick()
        assert (await rt.get(run.id)).state is State.FAILED
        broken.clear()
        fork = await rt.fork(run.id)
        await rt.tick()
        assert (await rt.get(fork.id)).output == said("a", "echo", "yes")  # the answer is kept
        assert (await rt.get(run.id)).state is State.FAILED


async def test_a_fork_of_a_held_run_makes_its_unknown_call_anew(url: str) -> None:
    calls: list[str] = []

    @perdure.effect(unknown="hold")
    async def send(to: str) -> str:
        calls.append(perdure.key())
        if len(calls) == 1:
            raise ConnectionError("no reply")
        return f"sent {to}"

    async def node(state: Log) -> Any:
        return said(await send("ana"))

    async with opened(url) as rt:
        run = await driven(rt, chain(node), said("a"), thread_id="t")
        assert (await rt.get(run.id)).state is State.HELD
        fork = await rt.fork(run.id)
        await rt.tick()
        assert (await rt.get(fork.id)).output == said("a", "sent ana")
        assert (await rt.get(run.id)).state is State.HELD
        assert len(set(calls)) == 2
