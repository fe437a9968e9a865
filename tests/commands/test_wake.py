"""A sleeper is woken before its time; a new question is announced to a handler."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.errors import NotFound, WrongState
from perdure.types import Message, State
from tests.contract.test_announcements import asked_of
from tests.support.agents import Log, chain, driven, history, opened
from tests.support.commands import main
from tests.support.controls import HOUR, approve, echo, nap, said


@pytest.mark.parametrize("through", ["python", "cli"])
async def test_a_sleeper_is_woken_now(url: str, through: str) -> None:
    async with opened(url) as rt:
        run = await driven(rt, chain(nap, echo), said("a"), thread_id="t")
        if through == "python":
            woken = await rt.wake(run.id, by="ana")
            assert woken.due_at == rt.clock.time
        else:
            arguments = ["wake", run.id, "--by", "ana", "--at", url]
            assert await asyncio.to_thread(main, arguments) == 0
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", "nap", "echo")
        [event] = [one for one in await rt.events(run.id) if one.kind == "woke"]
        assert (event.data["by"], event.data["early"]) == ("ana", True)
        assert (await history(rt, run)).count("woke") == 1
        with pytest.raises(WrongState, match="not asleep"):
            await rt.wake(run.id)
        with pytest.raises(NotFound):
            await rt.wake("nothing")


async def test_every_sleep_of_a_run_ends_and_nothing_else(url: str) -> None:
    def longer(state: Log) -> Any:
        perdure.sleep(2 * HOUR)
        return said("longer")

    builder = chain(nap)
    for node in (longer, approve):
        builder.add_node(node.__name__, node)
        builder.add_edge("__start__", node.__name__)
    async with opened(url) as rt:
        run = await driven(rt, builder, said(), thread_id="t")
        await rt.wake(run.id)
        await rt.tick()
        [wait] = await rt.waits()
        assert wait.value == "go on?"
        with pytest.raises(WrongState):
            await rt.wake(run.id)
        await rt.answer(wait.id, "yes")
        await rt.tick()
        assert sorted((await rt.get(run.id)).output["log"]) == ["approved yes", "longer", "nap"]


async def test_the_pause_before_an_effect_is_retried_is_not_a_sleep(sqlite_url: str) -> None:
    @perdure.effect(retry=perdure.Retry(attempts=3, first=HOUR))
    async def send() -> None:
        raise ConnectionError("not yet")

    async def node(state: Log) -> Any:
        await send()

    async with opened(sqlite_url) as rt:
        run = await driven(rt, chain(node), said(), thread_id="t")
        assert (await rt.get(run.id)).state is State.WAITING
        with pytest.raises(WrongState, match="not asleep"):
            await rt.wake(run.id)


# -- a new question is announced


async def test_a_handler_that_fails_hears_of_the_question_again(sqlite_url: str) -> None:
    heard: list[str] = []

    async def hear(message: Message) -> None:
        heard.append(message.id)
        if len(heard) == 1:
            raise ConnectionError("the chat is away")

    async with opened(sqlite_url, on_question=hear) as rt:
        rt.register(chain(approve), name="g")
        await rt.start("g", said(), thread_id="t")
        await rt.tick()
        await rt.tick()
        rt.clock.advance(timedelta(minutes=5))
        await rt.tick()
        [wait] = await rt.waits()
        assert heard == [wait.id, wait.id]


async def test_a_breakpoint_is_announced_too(sqlite_url: str) -> None:
    heard: list[Message] = []
    async with opened(sqlite_url) as rt:
        rt.deliver("perdure.question", heard.append)
        rt.register(chain(echo).compile(interrupt_before=["echo"]), name="g")
        await rt.start("g", said(), thread_id="t")
        await rt.tick()
        [message] = await asked_of(rt, heard)
        assert message.payload["value"] == {"breakpoint": ["echo"]}


async def test_without_a_handler_nothing_is_kept(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(approve), name="g")
        await rt.start("g", said(), thread_id="t")
        await rt.tick()
        assert len(await rt.waits()) == 1
        assert await rt.messages() == []
