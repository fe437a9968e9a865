"""Messages of the outbox go out once what made them is committed, at least once, with one id."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.errors import BadArgument, NotInRun
from perdure.testing import Clock
from perdure.types import Message, Retry, State
from tests.support.agents import Log, chain, history, opened
from tests.support.batches import url as url
from tests.support.effects import AT_ONCE, Boom, Times, started

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


@pytest.mark.parametrize("colour", ["plain", "coroutine"])
async def test_a_tick_delivers_what_its_runs_put_there(url: str, colour: str) -> None:
    post = Post()
    async with opened(url) as rt:
        rt.deliver("mail", getattr(post, colour))
        rt.register(puts({"to": "ana"}, {"to": "ben"}), name="agent")
        run = await rt.start("agent", {"log": []}, thread_id="t")
        counts = await rt.tick()
        assert counts.delivered == 2
        assert sorted(one["to"] for one in post.payloads) == ["ana", "ben"]
        run = await rt.get(run.id)
        assert sorted(message.id for message in post.got) == sorted(run.output["log"])
        assert {(m.topic, m.run_id, m.thread_id, m.attempts) for m in post.got} == {
            ("mail", run.id, "t", 1)
        }
        assert await rt.messages() == []
        await history(rt, run)


async def test_work_until_idle_delivers_before_it_returns(url: str) -> None:
    post = Post()
    async with opened(url) as rt:
        rt.deliver("mail", post.coroutine)
        rt.register(puts(*range(50)), name="agent")
        await rt.start("agent", {"log": []})
        counts = await rt.work(until_idle=True)
        assert counts.delivered == 50
        assert sorted(post.payloads) == list(range(50))


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


async def test_it_can_be_called_in_a_coroutine_with_the_saver_alone(sqlite_url: str) -> None:
    async def think(state: Log) -> Log:
        return {"log": []}

    async def node(state: Log) -> Log:
        return {"log": [perdure.outbox("mail", "hello")]}

    with perdure.Saver(sqlite_url) as saver:
        graph = chain(think, node).compile(checkpointer=saver)
        output = await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "t"}})
    assert len(output["log"]) == 1


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
