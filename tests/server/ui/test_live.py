"""What open tabs learn: each new run and question once, each change, and what is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from langgraph.types import interrupt

from perdure.commands import streams
from perdure.runtime import Runtime
from perdure.server.ui.live import Change, LiveFeed
from perdure.types import Wait
from tests.support.agents import opened
from tests.support.reviewed_agents import asking


async def ask(rt: Runtime, thread: str) -> Wait:
    await rt.start("plain", {}, thread_id=thread)
    await rt.tick()
    [wait] = await rt.waits(thread_id=thread)
    return wait


async def following(changes: AsyncIterator[Change], question: str) -> list[str]:
    """The questions that a tab learns of, until it learns of this one."""
    found: list[str] = []
    while question not in found:
        found += (await anext(changes)).new_questions
    return found


async def test_an_old_question_is_not_new_because_a_newer_one_was_answered(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "GLANCED", 2)
    async with opened(url) as rt:
        rt.register(asking(lambda: interrupt("Which?")), name="plain")
        waits = []
        for thread in ("a", "b", "c"):
            waits.append(await ask(rt, thread))
            rt.clock.advance(timedelta(seconds=1))
        async with LiveFeed(rt.journal).follow() as changes, asyncio.timeout(60):
            for wait in waits[1:]:
                await rt.answer(wait.id, "red")
            new = await ask(rt, "d")
            assert await following(changes, new.id) == [new.id]


async def test_a_tab_learns_that_a_run_was_deleted(url: str) -> None:
    async with opened(url) as rt:
        rt.register(asking(lambda: interrupt("Which?")), name="plain")
        wait = await ask(rt, "a")
        await rt.cancel(wait.run_id)
        async with LiveFeed(rt.journal).follow([wait.run_id]) as changes, asyncio.timeout(60):
            assert (await anext(changes)).changed == {wait.run_id}
            await rt.erase("a")
            assert (await anext(changes)).changed == {wait.run_id}
