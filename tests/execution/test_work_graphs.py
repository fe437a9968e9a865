"""`Runtime.work(graphs=...)` drives these graphs and no others; `register(hold=True)` keeps a run
that failed for good for a person to retry."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure.errors import UnknownGraph
from perdure.testing import TemporaryRuntime
from perdure.types import Message, Retry, Run, State
from tests.support.agents import Calls, chain, driving, history, opened, reaches
from tests.support.sqlite_only import url as url

ONCE = Retry(attempts=1)


async def start(rt: TemporaryRuntime, *graphs: str) -> list[Run]:
    return [await rt.start(name, {"log": []}, thread_id=f"t-{name}") for name in graphs]


def three(rt: TemporaryRuntime) -> Calls:
    calls = Calls()
    for name in ("a", "b", "c"):
        rt.register(chain(calls.node(name)), name=name)
    return calls


async def test_only_the_graphs_that_are_named_are_driven(url: str) -> None:
    async with opened(url) as rt:
        calls = three(rt)
        made = await start(rt, "a", "b", "c")
        counts = await rt.work(graphs=["a", "c"], until_idle=True)
        assert (sorted(calls), counts.done) == (["a", "c"], 2)
        states = [(await rt.get(run.id)).state for run in made]
        assert states == [State.DONE, State.PENDING, State.DONE]
        await rt.work(until_idle=True)
        assert sorted(calls) == ["a", "b", "c"]


async def test_a_name_that_is_not_registered_is_refused(url: str) -> None:
    async with opened(url) as rt:
        calls = three(rt)
        await start(rt, "a")
        with pytest.raises(UnknownGraph, match="No graph 'd' is registered here; there is a, b, c"):
            await rt.work(graphs=["a", "d"], until_idle=True)
        assert calls == []


async def test_two_workers_of_one_runtime_each_drive_their_own(url: str) -> None:
    async with opened(url) as rt:
        calls = three(rt)
        async with (
            driving(rt, graphs=["a"], handle_signals=False),
            driving(rt, graphs=["b"], handle_signals=False),
        ):
            made = await start(rt, "a", "b", "c")
            for run in made[:2]:
                await reaches(rt, run, State.DONE)
            assert (await rt.get(made[2].id)).state is State.PENDING
        assert sorted(calls) == ["a", "b"]


async def test_it_neither_fires_schedules_nor_delivers_messages(url: str) -> None:
    delivered: list[str] = []

    def deliver(message: Message) -> None:
        delivered.append(message.topic)

    async with opened(url) as rt:
        calls = three(rt)
        rt.deliver("mail", deliver)
        await rt.schedule("each minute", "a", cron="* * * * *", input={"log": []})
        rt.clock.advance(timedelta(minutes=1))
        counts = await rt.work(graphs=["a"], until_idle=True)
        assert (counts.scheduled, calls) == (0, [])
        await rt.work(until_idle=True)
        assert calls == ["a"]


# -- hold


def failing(calls: Calls, broken: list[str]) -> Any:
    def fail(state: Any) -> None:
        if broken:
            raise ConnectionError("the far side is away")

    return chain(calls.node("first"), calls.node("second", fail))


async def test_a_run_that_failed_for_good_is_held_and_its_history_says_why(url: str) -> None:
    async with opened(url) as rt:
        calls = Calls()
        retry = Retry(attempts=2, first=timedelta(seconds=10))
        rt.register(failing(calls, ["broken"]), name="a", retry=retry, hold=True)
        [run] = await start(rt, "a")
        await rt.tick()
        waiting = await rt.get(run.id)
        assert waiting.state is State.PENDING
        assert waiting.error is not None
        rt.clock.advance(timedelta(seconds=10))
        await rt.tick()
        held = await rt.get(run.id)
        assert (held.state, held.ended) == (State.HELD, False)
        assert held.reason == "ConnectionError: the far side is away"
        assert held.error is not None
        assert held.error.message == "the far side is away"
        assert held.attempts == 2
        assert held.due_at is None
        last = (await rt.events(run.id))[-1]
        assert (last.kind, last.data["final"]) == ("held", True)
        assert last.data["reason"] == held.reason
        assert (await history(rt, run)).count("failed") == 1
        assert calls == ["first", "second", "second"]


async def test_one_that_is_held_goes_on_from_its_last_step_after_retry(url: str) -> None:
    async with opened(url) as rt:
        calls, broken = Calls(), ["broken"]
        rt.register(failing(calls, broken), name="a", retry=ONCE, hold=True)
        [run] = await start(rt, "a")
        await rt.tick()
        broken.clear()
        again = await rt.retry(run.id)
        assert (again.state, again.attempts, again.error) == (State.PENDING, 0, None)
        await rt.tick()
        done = await rt.get(run.id)
        assert (done.state, done.reason, done.error) == (State.DONE, None, None)
        assert calls == ["first", "second", "second"]
        kinds = await history(rt, run)
        assert kinds.index("held") < kinds.index("retried") < kinds.index("done")


async def test_the_next_run_of_its_thread_waits_until_one_that_is_held_is_over(url: str) -> None:
    async with opened(url) as rt:
        calls, broken = Calls(), ["broken"]
        rt.register(failing(calls, broken), name="a", retry=ONCE, hold=True)
        first = await rt.start("a", {"log": []}, thread_id="t")
        await rt.tick()
        broken.clear()
        second = await rt.start("a", {"log": []}, thread_id="t")
        await rt.tick()
        assert (await rt.get(second.id)).state is State.PENDING
        await rt.cancel(first.id)
        await rt.tick()
        assert [(await rt.get(run.id)).state for run in (first, second)] == [
            State.CANCELLED,
            State.DONE,
        ]


async def test_for_a_caller_who_waits_an_exception_is_raised_as_ever(url: str) -> None:
    async with opened(url) as rt:
        bound = rt.register(failing(Calls(), ["broken"]), name="a", retry=ONCE, hold=True)
        with pytest.raises(ConnectionError):
            await bound.ainvoke({"log": []}, {"configurable": {"thread_id": "t"}})
        [run] = await rt.runs()
        assert run.state is State.FAILED
