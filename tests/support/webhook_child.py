"""A worker whose webhooks are cut off: a child of `tests.support.fork_server`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import perdure
from perdure.testing import crash_at
from tests.support.agents import Log, chain
from tests.support.fork_server import Tell


def step(state: Log) -> Log:
    return {"log": ["step"]}


def make(url: str, webhook: str, **options: Any) -> perdure.Runtime:
    """A runtime with one graph, and an endpoint that is told when a run of it is done."""
    endpoint = perdure.Webhook(webhook, events=["run.done"], name="ops", allow_private=True)
    rt = perdure.Runtime(url, webhooks=[endpoint], **options)
    rt.register(chain(step), name="g")
    return rt


async def work(order: dict[str, Any], tell: Tell) -> None:
    """Drive until killed. With `at_once` it is killed when a message is stored, and not sent."""
    dies = crash_at("take_messages.before") if order["at_once"] else nullcontext()
    own = perdure.RunWebhooks(allow_private=True)
    with dies:
        async with make(order["url"], order["webhook"], run_webhooks=own) as rt:
            await rt.start("g", {"log": []}, thread_id="t", webhook=f"{order['webhook']}/own")
            await rt.work()
