"""A question is announced in the commit that stores it."""

from __future__ import annotations

from typing import Any

from perdure.types import Message
from tests.support.agents import chain, opened
from tests.support.controls import HOUR, approve, nap, said


async def test_a_question_is_announced_once_with_its_wait(url: str) -> None:
    heard: list[Message] = []
    async with opened(url, on_question=heard.append) as rt:
        rt.register(chain(nap, approve), name="g")
        run = await rt.start("g", said(), thread_id="t")
        await rt.tick()
        assert heard == []  # a sleep is not a question
        rt.clock.advance(HOUR)
        await rt.tick()
        [wait] = await rt.waits()
        [message] = await asked_of(rt, heard)
        assert (message.id, message.topic) == (wait.id, "perdure.question")
        assert message.payload == {
            "wait_id": wait.id,
            "run_id": run.id,
            "thread_id": "t",
            "value": "go on?",
            "response_schema": None,
            "expires_at": None,
        }
        # The node runs again and asks the same: it is announced once.
        await rt.pause(run.id)
        await rt.resume(run.id)
        await rt.tick()
        assert len(await asked_of(rt, heard)) == 1
        await rt.answer(wait.id, "yes")
        await rt.tick()
        assert (await rt.get(run.id)).output == said("nap", "approved yes")


async def asked_of(rt: Any, heard: list[Message]) -> list[Message]:
    """What the handler has heard, after everything was delivered."""
    await rt.tick()
    assert await rt.messages() == []
    return heard
