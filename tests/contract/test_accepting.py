"""What is accepted: a run is on disk once, starts once, in its turn, and never early."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import perdure
from perdure import Runtime
from perdure.errors import BadArgument, Error, UnknownGraph, Unserializable
from perdure.testing import Clock, runtime
from perdure.types import Event, State
from tests.support.agents import Log, chain, history, opened
from tests.support.bound import Gate, T, sequence, states, two_calls
from tests.support.bound import rt as rt
from tests.support.polling import until

HOUR = timedelta(hours=1)


def nap(state: Log) -> Any:
    perdure.sleep(HOUR)
    return {"log": ["nap"]}


def echo(state: Log) -> Any:
    return {"log": [f"{len(state.get('log', []))} before"]}


def said(*texts: str) -> dict[str, Any]:
    return {"log": list(texts)}


async def ids(rt: Runtime, **filters: Any) -> list[str]:
    return [run.id for run in await rt.runs(**filters)]


async def test_a_started_run_is_on_disk_when_start_returns(url: str) -> None:
    async with opened(url) as rt, opened(url) as another:
        rt.register(chain(echo), name="g")
        run = await rt.start("g", said("hi"), thread_id="t", metadata={"a": 1}, tags=["x"])
        found = await another.get(run.id)
        assert found == run
        assert (found.state, found.thread_id, found.graph) == (State.PENDING, "t", "g")
        assert (found.metadata, found.tags, found.output) == ({"a": 1}, ("x",), None)
        assert await history(another, run) == ["started"]


@pytest.mark.smoke
async def test_the_same_key_gives_the_run_it_made_before(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(echo), name="g")
        first = await rt.start("g", said("first"), thread_id="t", key="k")
        assert (await rt.start("g", said("second"), thread_id="t", key="k")).id == first.id
        await rt.tick()
        again = await rt.start("g", said("third"), thread_id="t", key="k")
        assert (again.id, again.state) == (first.id, State.DONE)
        assert again.output == said("first", "1 before")
        assert await ids(rt) == [first.id]


@pytest.mark.smoke
async def test_of_twenty_starts_at_once_with_one_key_all_get_one_run(url: str) -> None:
    async with opened(url) as rt, opened(url) as another:
        for one in (rt, another):
            one.register(chain(echo), name="g")
        started = await asyncio.gather(
            *(
                (rt, another)[n % 2].start("g", said(str(n)), thread_id="t", key="k")
                for n in range(20)
            )
        )
        assert len({run.id for run in started}) == 1
        assert (await rt.tick()).claimed == 1
        assert len((await rt.get(started[0].id)).output["log"]) == 2


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"graph": "unknown"}, UnknownGraph, "unknown"),
    ({"version": "7"}, UnknownGraph, "g@7"),
    ({"multitask_strategy": "merge"}, BadArgument, "enqueue"),
    ({"durability": "never"}, BadArgument, "durability"),
    ({"after": 5}, BadArgument, "after"),
    ({"after": datetime(2030, 1, 1)}, BadArgument, "time zone"),  # noqa: DTZ001 - that is the point
    ({"tags": "urgent"}, BadArgument, "tags"),
    ({"metadata": ["a"]}, BadArgument, "metadata"),
    ({"config": ["a"]}, BadArgument, "config"),
    ({"config": {"callbacks": []}}, BadArgument, "callbacks"),
    ({"config": {"configurable": {"thread_id": "u"}}}, BadArgument, "thread_id"),
    ({"config": {"configurable": {"run_id": "u"}}}, BadArgument, "run_id"),
    ({"key": 7}, Error, "key"),
    ({"key": "k\x00"}, Unserializable, "NUL"),
    ({"thread_id": "t" * 10_000}, Unserializable, "thread_id"),
    ({"input": {"value": {"deep": [1, threading.Lock()]}}}, Unserializable, r"value.*deep.*1"),
    ({"context": {"hook": print}}, Unserializable, r"context.*hook"),
    ({"metadata": {"who": object()}}, Unserializable, r"metadata.*who"),
    ({"config": {"configurable": {"db": open}}}, Unserializable, r"configurable.*db"),
]


@pytest.mark.parametrize(
    ("given", "error", "words"), WRONG, ids=[f"{n}-{'-'.join(w[0])}" for n, w in enumerate(WRONG)]
)
async def test_what_cannot_be_accepted_is_named_and_nothing_is_stored(
    sqlite_url: str, given: dict[str, Any], error: type[Exception], words: str
) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(echo), name="g")
        with pytest.raises(error, match=words):
            await rt.start(**{"graph": "g", "input": said("a"), "thread_id": "t", **given})
        assert await rt.runs() == []
        assert (await rt.tick()).claimed == 0
        run = await rt.start("g", said("a"), thread_id="t")  # and it goes on as before
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", "1 before")


async def test_the_runs_of_a_thread_go_one_at_a_time_in_order(url: str) -> None:
    active, most = 0, 0

    async def step(state: Log) -> Any:
        nonlocal active, most
        active += 1
        most = max(most, active)
        for _ in range(5):
            await asyncio.sleep(0)
        active -= 1
        return {"log": ["step"]}

    async with opened(url) as rt, opened(url) as another:
        for one in (rt, another):
            one.register(chain(step), name="g")
        started = [await rt.start("g", said(str(n)), thread_id="t") for n in range(8)]
        await asyncio.gather(rt.tick(), another.tick())
        await rt.tick()
        assert most == 1
        outputs = [(await rt.get(run.id)).output["log"] for run in started]
        assert outputs[-1] == [text for n in range(8) for text in (str(n), "step")]
        assert [len(output) for output in outputs] == list(range(2, 18, 2))


@pytest.mark.parametrize("as_datetime", [False, True])
async def test_a_run_that_is_to_start_later_is_not_driven_earlier(
    url: str, as_datetime: bool
) -> None:
    clock = Clock(datetime(2030, 1, 1, tzinfo=UTC))
    async with opened(url, clock) as rt:
        rt.register(chain(echo), name="g")
        after: Any = datetime(2030, 1, 1, 3, tzinfo=UTC) if as_datetime else 3 * HOUR
        run = await rt.start("g", said("a"), after=after)
        assert run.due_at == datetime(2030, 1, 1, 3, tzinfo=UTC)
        clock.advance(3 * HOUR - timedelta(milliseconds=1))
        assert (await rt.tick()).claimed == 0
        clock.advance(timedelta(milliseconds=1))
        assert (await rt.tick()).done == 1


async def test_events_are_paged_and_numbered_without_a_gap(url: str) -> None:
    clock = Clock()
    async with opened(url, clock) as rt:
        rt.register(chain(echo, nap, ("last", echo)), name="g")
        run = await rt.start("g", said("a"))
        await rt.tick()
        clock.advance(HOUR)
        await rt.tick()
        kinds = await history(rt, run)
        assert kinds == [
            *("started", "claimed", "step", "step", "step", "wait", "waiting"),
            *("claimed", "woke", "step", "step", "done"),
        ]
        everything = await rt.events(run.id)
        assert [event.at for event in everything] == sorted(event.at for event in everything)
        assert everything[-1].at == clock.time
        paged: list[Event] = []
        while page := await rt.events(run.id, after=paged[-1].n if paged else 0, limit=5):
            assert len(page) <= 5
            paged += page
        assert paged == everything
        assert await rt.events(run.id, after=len(kinds)) == []


def test_two_callers_at_once_take_turns_and_both_inputs_are_there(url: str) -> None:
    with runtime(url) as rt:
        gate = Gate("done")
        graph = rt.register(sequence(gate=gate), name="agent")
        ends = two_calls(graph, gate, lambda: until(lambda: len(rt.blocking.runs()) == 2))
        assert ends[0] == {"log": ["first", "done"]}
        assert ends[1] == {"log": ["first", "done", "second", "done"]}
        assert graph.get_state(T).values == ends[1]
        assert states(rt) == ["done", "done"]
