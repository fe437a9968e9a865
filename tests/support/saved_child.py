"""An agent with every kind of outcome to replay, and a process that is killed while it drives it.

One node asks a model through `Durable`. The next gets an error that is kept, writes in a
transaction, calls an effect in a subgraph, starts a child, and pays. `pay` is where processes die.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

from langchain.agents import create_agent

import perdure
from perdure import Runtime
from perdure.langchain import Durable
from perdure.testing import crash_at
from perdure.types import Retry
from tests.support.agents import Log, chain
from tests.support.fork_server import Tell
from tests.support.langchain_child import HELLO, Script, says

THREAD = "t"


@perdure.effect
def look(what: str) -> str:
    return what


@perdure.effect(retry=Retry(attempts=1))
def refuse(what: str) -> str:
    raise ValueError(what)


@perdure.effect(transactional=True)
def book(what: str) -> str:
    perdure.transaction().execute("INSERT INTO bookings VALUES (?)", (what,))
    return what


@perdure.effect
def pay(what: str) -> str:
    return perdure.key()


def runtime(url: str, **options: Any) -> Runtime:
    """A runtime that has the agent."""
    rt = Runtime(url, **options)
    model = create_agent(Script(answers=[says("hi")]), middleware=[Durable()])

    def first(state: Log) -> Log:
        return {"log": [look("first")]}

    def inside(state: Log) -> Log:
        return {"log": [look("inside")]}

    def child(state: Log) -> Log:
        return {"log": [look("child")]}

    inner = chain(inside).compile()

    def spend(state: Log) -> Log:
        with contextlib.suppress(ValueError):
            refuse("no")
        book("room")
        inner.invoke({"log": []})
        rt.blocking.start("child", {"log": []}, thread_id="child")
        return {"log": [look("spend"), pay("bill"), look("after")]}

    rt.register(chain(first, ("model", model_node(model)), spend), name="agent")
    rt.register(chain(child), name="child")
    return rt


def model_node(agent: Any) -> Any:
    def ask(state: Log) -> Log:
        answer = agent.invoke(HELLO)
        look("asked")
        pay("model")
        return {"log": [answer["messages"][-1].content]}

    return ask


def drive(order: dict[str, Any], tell: Tell) -> None:
    """Drive the run until it is killed at a point, or to its end."""
    with contextlib.closing(sqlite3.connect(order["url"].removeprefix("sqlite:///"))) as database:
        database.execute("CREATE TABLE IF NOT EXISTS bookings (what TEXT)")
    point = order.get("point")
    with (
        runtime(order["url"]) as rt,
        crash_at(point, order["n"]) if point else contextlib.nullcontext(),
    ):
        rt.blocking.start("agent", {"log": []}, thread_id=THREAD, key="once")
        rt.blocking.work(until_idle=True)
