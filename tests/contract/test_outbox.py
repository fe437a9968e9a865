"""An outbox message is delivered if its commit happened, always with the same id."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.errors import BadArgument, NotInRun
from perdure.testing import Clock
from perdure.types import Message, Retry, State
from tests.support.agents import NOON, Log, chain, driving, opened
from tests.support.effects import AT_ONCE, Boom, Times, started
from tests.support.polling import auntil
from tests.support.raw import execute

HOUR = timedelta(hours=1)


class Post:
    """A handler that keeps what it is given, and fails as often as it is told to."""

    def __init__(self, fails: int = 0) -> None:
        self.got: list[Message] = []
        self.fails = Times(fails)

    def plain(self, message: Message) -> None:
        self.got.append(message)
        self.fails("the post office is closed")

    async def coroutine(self, message: Message) -> None:
        self.plain(message)

    @property
    def payloads(self) -> list[Any]:
        return [message.payload for message in self.got]


def puts(*payloads: Any, then: Any = None) -> Any:
    def node(state: Log) -> Log:
        told = [perdure.outbox("mail", payload) for payload in payloads]
        if then is not None:
            then()
        return {"log": told}

    return chain(node)


async def test_nothing_is_delivered_that_was_not_committed(url: str) -> None:
    post = Post()
    fails = Times(1)

    @perdure.effect(transactional=True, retry=Retry(attempts=2, first=timedelta(0)))
    def book(what: str) -> list[str]:
        ids = [perdure.outbox("mail", f"{what} {fails.n}"), perdure.outbox("mail", "second")]
        assert execute(url, "SELECT 1 FROM perdure_outbox") == []
        fails()
        return ids

    def node(state: Log) -> Log:
        return {"log": book("room")}

    async with opened(url) as rt:
        rt.deliver("mail", post.plain)
        run = await started(rt, chain(node))
        assert sorted(post.payloads) == ["room 0", "second"]
        assert sorted(message.id for message in post.got) == sorted(run.output["log"])


async def test_a_handler_that_raises_gets_it_again_later_with_the_same_id(url: str) -> None:
    post = Post(fails=2)
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        rt.deliver("mail", post.plain)
        run = await started(rt, puts("hello"))
        assert run.state is State.DONE
        assert len(post.got) == 1
        [message] = await rt.messages()
        assert message.payload == "hello"
        assert message.attempts == 1
        await rt.tick()
        assert len(post.got) == 1  # not before its time
        clock.advance(HOUR)
        counts = await rt.tick()
        assert (len(post.got), counts.delivered) == (2, 0)
    async with opened(url, clock) as rt:  # another process
        rt.deliver("mail", post.coroutine)
        clock.advance(HOUR)
        assert (await rt.tick()).delivered == 1
        assert len({message.id for message in post.got}) == 1
        assert [message.attempts for message in post.got] == [1, 2, 3]
        assert await rt.messages() == []


@pytest.mark.smoke
async def test_a_worker_that_dies_with_a_message_leaves_it_to_another(url: str) -> None:
    clock = Clock(NOON)
    stands = asyncio.Event()
    got: list[Message] = []

    async def dies(message: Message) -> None:
        got.append(message)
        stands.set()
        await asyncio.sleep(600)

    async with opened(url, clock) as rt:
        rt.deliver("mail", dies)
        rt.register(puts("hello"), name="agent")
        await rt.start("agent", {"log": []})
        async with driving(rt, grace=timedelta(0)):
            await stands.wait()
            await auntil(lambda: _ended(rt))
    post = Post()
    async with opened(url, clock) as rt:
        rt.deliver("mail", post.plain)
        await rt.tick()
        assert post.got == []  # whoever has it may still be at it
        clock.advance(HOUR)
        await rt.tick()
        assert [message.id for message in post.got] == [message.id for message in got]
        assert await rt.messages() == []


async def _ended(rt: Any) -> bool:
    return all(run.ended for run in await rt.runs())


@pytest.mark.parametrize("way", ["runtime", "runtime-async"])
async def test_a_node_that_runs_again_puts_nothing_twice(url: str, way: str) -> None:
    post = Post()
    fails = Times(2)

    def node(state: Log) -> Log:
        told = [perdure.outbox("mail", 1), perdure.outbox("mail", 1), perdure.outbox("mail", 2)]
        fails()
        return {"log": told}

    async def coroutine(state: Log) -> Log:
        return node(state)

    async with opened(url) as rt:
        rt.deliver("mail", post.plain)
        run = await started(rt, chain(coroutine if way.endswith("async") else node), retry=AT_ONCE)
        assert sorted(post.payloads) == [1, 1, 2]
        assert len(set(run.output["log"])) == 3


async def test_a_topic_nobody_knows_stays(url: str) -> None:
    post = Post()
    async with opened(url) as rt:
        rt.deliver("invoices", post.plain)
        await started(rt, puts("hello"))
        assert post.got == []
        [message] = await rt.messages()
        assert (message.topic, message.payload) == ("mail", "hello")
        rt.deliver("mail", post.plain)
        assert (await rt.tick()).delivered == 1
        assert post.payloads == ["hello"]


async def test_what_the_saver_alone_puts_there_a_runtime_delivers(url: str) -> None:
    def node(state: Log) -> Log:
        return {"log": [perdure.outbox("mail", "hello")]}

    with perdure.Saver(url) as saver:
        graph = chain(node).compile(checkpointer=saver)
        output = graph.invoke({"log": []}, {"configurable": {"thread_id": "t"}})
    post = Post()
    async with opened(url, Clock()) as rt:
        rt.clock.advance(HOUR)
        rt.deliver("mail", post.plain)
        assert (await rt.tick()).delivered == 1
        assert [message.id for message in post.got] == output["log"]


async def test_inside_of_a_plain_effect_it_is_put_there_at_once(url: str) -> None:
    post = Post()
    fails = Times(1)

    @perdure.effect
    def send(to: str) -> str:
        return perdure.outbox("mail", to)

    def node(state: Log) -> Log:
        told = send("ana")
        fails()
        return {"log": [told]}

    async with opened(url) as rt:
        rt.deliver("mail", post.plain)
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert post.payloads == ["ana"]
        assert [message.id for message in post.got] == run.output["log"]


async def test_bad_use_is_told(url: str) -> None:
    with pytest.raises(NotInRun):
        perdure.outbox("mail", "hello")
    async with opened(url) as rt:
        with pytest.raises(BadArgument):
            rt.deliver("mail", "no function")  # type: ignore[arg-type]
        run = await started(rt, puts(object()), retry=Retry(attempts=1))
        assert run.state is State.FAILED
        assert run.error is not None
        assert "'mail'" in run.error.message or "'payload'" in run.error.message
        assert await rt.messages() == []


async def test_a_message_that_is_put_and_lost_with_a_failed_run_is_still_delivered(
    url: str,
) -> None:
    """It is committed: what becomes of its run changes nothing."""
    post = Post()

    def breaks() -> None:
        raise Boom("for good")

    async with opened(url) as rt:
        rt.deliver("mail", post.plain)
        run = await started(rt, puts("hello", then=breaks), retry=Retry(attempts=1))
        assert run.state is State.FAILED
        assert post.payloads == ["hello"]
