"""A worker whose mail is cut off: a child of `tests.support.fork_server`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import perdure
from perdure.testing import crash_at
from tests.support.agents import Log, chain
from tests.support.fork_server import Tell

TO = ("ana@example.com", "bo@example.com")


def approve(state: Log) -> Log:
    return {"log": [perdure.ask({"draft": "Dear Ada"})]}


def make(url: str, smtp: str, **options: Any) -> perdure.Runtime:
    """A runtime with one graph that asks, and mail to two people."""
    mail = perdure.Mail(smtp, "agents@example.com", TO)
    rt = perdure.Runtime(url, mail=mail, public_url="https://agents.example.com", **options)
    rt.register(chain(approve), name="g")
    return rt


async def work(order: dict[str, Any], tell: Tell) -> None:
    """Drive until killed: when a message is stored and not sent (`stored`), while it is sent
    (`taken`, by the test), or when it was sent and that is not noted (`sent`)."""
    point = {"stored": "take_messages.before", "sent": "delete_message.before"}.get(order["at"])
    with crash_at(point) if point else nullcontext():
        async with make(order["url"], order["smtp"]) as rt:
            await rt.start("g", {"log": []}, thread_id="t")
            await rt.work()
