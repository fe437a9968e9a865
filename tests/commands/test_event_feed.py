"""A feed of all runs delivers each event once, however a run changed and however long it rested."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure.commands import streams
from perdure.commands.streams import EventFeed
from perdure.testing import TemporaryRuntime
from tests.support.agents import chain, opened
from tests.support.controls import approve, echo, said


async def look(rt: TemporaryRuntime, feed: EventFeed) -> list[tuple[str, str]]:
    return [(row.thread_id, event.kind) for row, event in await rt.journal.arun(feed.look())]


async def test_each_event_is_delivered_once(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(approve), name="g")
        await rt.start("g", said(), thread_id="before")
        await rt.tick()
        rt.clock.advance(timedelta(seconds=1))
        feed = EventFeed(rt.engine.serializer, rt.clock.time)
        assert await look(rt, feed) == []
        run = await rt.start("g", said(), thread_id="t")
        assert await look(rt, feed) == [("t", "started")]
        await rt.tick()
        told = await look(rt, feed)
        assert [kind for _, kind in told] == [e.kind for e in await rt.events(run.id)][1:]
        [wait] = await rt.waits(run_id=run.id)
        await rt.assign(wait.id, "ana")
        await rt.comment(run.id, "look")
        await rt.score(run.id, "tone", 1)
        assert await look(rt, feed) == [("t", "assigned"), ("t", "comment"), ("t", "scored")]
        assert await look(rt, feed) == []


async def test_a_run_that_rested_behind_newer_ones_is_not_repeated(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "NEWEST", 2)
    async with opened(sqlite_url) as rt:
        rt.register(chain(approve), name="g")
        rt.register(chain(echo), name="echo")
        feed = EventFeed(rt.engine.serializer, rt.clock.time)
        run = await rt.start("g", said(), thread_id="old")
        await rt.tick()
        first = await look(rt, feed)
        rt.clock.advance(timedelta(seconds=1))
        for n in range(3):
            await rt.start("echo", said(), thread_id=f"new {n}")
        await rt.tick()
        await look(rt, feed)
        [wait] = await rt.waits(run_id=run.id)
        await rt.answer(wait.id, "yes")
        assert await look(rt, feed) == []
        monkeypatch.setattr(streams, "NEWEST", 100)
        assert ("old", "started") in first
        assert [one for one in await look(rt, feed) if one[0] == "old"] == [("old", "answer")]
