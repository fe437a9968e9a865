"""A webhook is delivered at least once, always with the same id."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import perdure
from perdure import RunWebhooks
from perdure.errors import NotFound
from perdure.testing import Clock, crash_at
from perdure.types import Retry, State
from tests.support.agents import Log, chain, opened
from tests.support.fork_server import ForkServer, Tell
from tests.support.polling import auntil
from tests.support.webhook_receiver import WebhookReceiver, receiving


def step(state: Log) -> Log:
    return {"log": ["step"]}


def make(url: str, webhook: str, **options: Any) -> perdure.Runtime:
    """A runtime with one graph, and an endpoint that is told when a run of it is done."""
    endpoint = perdure.Webhook(webhook, events=["run.done"], name="ops", allow_private=True)
    rt = perdure.Runtime(url, webhooks=[endpoint], **options)
    rt.register(chain(step), name="g")
    return rt


async def work_until_killed(order: dict[str, Any], tell: Tell) -> None:
    """Drive until killed. With `at_once` it is killed when a message is stored, and not sent."""
    own = perdure.RunWebhooks(allow_private=True)
    with crash_at("take_messages.before") if order["at_once"] else contextlib.nullcontext():
        async with make(order["url"], order["webhook"], run_webhooks=own) as rt:
            await rt.start("g", {"log": []}, thread_id="t", webhook=f"{order['webhook']}/own")
            await rt.work()


S, MIN, H = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
PAUSES = (5 * S, 5 * MIN, 30 * MIN, 2 * H, 5 * H, 10 * H, 14 * H, 20 * H, 24 * H)
"""Between one attempt and the next, as the page of guarantees promises."""


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with receiving() as made:
        yield made


def work(state: Log) -> Log:
    return {"log": ["worked"]}


def approve(state: Log) -> Log:
    return {"log": [perdure.ask({"draft": "Dear Ada, a secret offer"})]}


def fail(state: Log) -> Log:
    raise ValueError("no such mailbox")


@asynccontextmanager
async def told(url: str, receiver: WebhookReceiver, **options: Any) -> AsyncIterator[Any]:
    """A runtime whose runs may have webhooks on loopback."""
    own = RunWebhooks(options.pop("secret", ()), allow_private=True)
    async with opened(url, run_webhooks=own, **options) as rt:
        rt.register(chain(work), name="work")
        rt.register(chain(work, approve), name="approve")
        rt.register(chain(fail), name="fail", retry=Retry(attempts=1))
        rt.register(chain(fail), name="hold", retry=Retry(attempts=1), hold=True)
        yield rt


async def test_a_delivery_is_repeated_for_days_with_the_same_id_and_then_given_up(
    url: str, receiver: WebhookReceiver
) -> None:
    async with told(url, receiver, clock=Clock(datetime.now(UTC))) as rt:
        receiver.answers = [503] * (len(PAUSES) + 1)
        run = await rt.start("work", {"log": []}, webhook=receiver.url)
        await rt.tick()
        for n, pause in enumerate(PAUSES, 1):
            assert len(receiver.got) == n
            [message] = await rt.messages()
            left = message.due_at - await rt.now()
            assert pause * 0.99 <= left <= pause * 1.1
            assert (message.attempts, message.error) == (n, "127.0.0.1 answered 503")
            rt.clock.advance(pause * 0.98)
            await rt.tick()
            assert len(receiver.got) == n
            rt.clock.advance(pause * 0.13)
            await rt.tick()
        assert len({one.id for one in receiver.got}) == 1
        [message] = await rt.messages()
        assert (message.due_at, message.run_id) == (None, run.id)
        rt.clock.advance(timedelta(days=365))
        await rt.tick()
        assert len(receiver.got) == len(PAUSES) + 1
        await rt.redeliver(message.id)
        await rt.tick()
        assert await rt.messages() == []
        assert receiver.got[-1].id == message.id
        with pytest.raises(NotFound):
            await rt.redeliver(message.id)


@pytest.mark.parametrize("at_once", [True, False], ids=["stored", "sent"])
async def test_a_worker_killed_before_noting_a_delivery_repeats_it_with_the_same_id(
    url: str, receiver: WebhookReceiver, fork_server: ForkServer, at_once: bool
) -> None:
    receiver.may_answer.clear()
    with fork_server.child(
        work_until_killed, url=url, webhook=receiver.url, at_once=at_once
    ) as one:
        if at_once:
            await asyncio.to_thread(one.wait)
            assert receiver.got == []
        else:
            await auntil(lambda: len(receiver.got) == 2)
    receiver.may_answer.set()
    sent = {one.id for one in receiver.got}
    receiver.got.clear()
    later = Clock(datetime.now(UTC) + timedelta(minutes=2))  # what it took is due again
    own = RunWebhooks(allow_private=True)
    async with make(url, receiver.url, clock=later, run_webhooks=own) as rt:
        assert len(await rt.messages()) == 2
        await rt.tick()
        [run] = await rt.runs()
        assert run.state is State.DONE
        assert {one.path for one in receiver.got} == {"/", "/own"}
        ids = {one.id for one in receiver.got}
        assert len(ids) == 2
        assert sent in (set(), ids)
        assert await rt.messages() == []
