"""In an evaluation no effect leaves the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import perdure
from perdure import Runtime
from perdure.evals import Example, Result, evaluate
from perdure.testing import TemporaryRuntime
from perdure.types import Done, State
from tests.support.agents import Log, chain

SENT: list[str] = []
"""What reached the far side."""


@pytest.fixture
async def rt() -> AsyncIterator[TemporaryRuntime]:
    SENT.clear()
    async with TemporaryRuntime() as runtime:
        yield runtime


def far_side(what: str) -> str:
    SENT.append(what)
    return what


@perdure.effect(name="mail")
def mail(to: str) -> str:
    return far_side(f"mail to {to}")


@perdure.effect(name="amail")
async def amail(to: str) -> str:
    return far_side(f"mail to {to}")


@perdure.effect(name="outer")
def outer(to: str) -> str:
    return mail(to)


@perdure.effect(name="stored", transactional=True)
def stored(to: str) -> str:
    perdure.outbox("mail", to)
    return far_side(f"stored {to}")


def was_sent(to: str) -> Done:
    far_side(f"asked about {to}")
    return Done("found")


@perdure.effect(name="guarded_mail", key=lambda to: to, verify=was_sent, unknown="hold")
def guarded_mail(to: str) -> str:
    return far_side(f"guarded_mail {to}")


async def evaluated(rt: Runtime, target: Any, **options: Any) -> Result:
    """The result of a target for one example."""
    example = options.pop("example", Example("ada"))
    name = f"{len(await rt.runs(limit=1000))}"
    found = await evaluate(target, [example], [], name=name, runtime=rt, **options)
    [result] = found.results
    return result


def reply(input: Any) -> Any:
    return mail(input)


async def areply(input: Any) -> Any:
    return await amail(input)


async def in_background(input: Any) -> Any:
    return await asyncio.create_task(amail(input))


def swallows(input: Any) -> Any:
    try:
        return mail(input)
    except BaseException:
        return "fine"


def sends_message(input: Any) -> Any:
    return perdure.outbox("mail", input)


REFUSED = {
    reply: "mail",
    areply: "amail",
    in_background: "amail",
    swallows: "mail",
    sends_message: "outbox",
    outer: "outer",
    stored: "stored",
    guarded_mail: "guarded_mail",
}


async def test_an_effect_is_refused_by_name_however_it_is_called(rt: TemporaryRuntime) -> None:
    for target, name in REFUSED.items():
        result = await evaluated(rt, target)
        assert result.state is State.FAILED, target
        assert f"The effect {name!r} was not called" in str(result.error)
        assert await rt.effects(result.run_id) == []
    assert SENT == []
    assert await rt.messages() == []


async def test_a_plain_worker_a_fork_and_a_retry_obey_the_policy_too(rt: TemporaryRuntime) -> None:
    def node(state: Log) -> Log:
        return {"value": mail(state["value"])}

    graph = chain(lambda state: {}, node)
    rt.register(graph, name="letter", retry=perdure.Retry(1))
    result = await evaluated(rt, "letter", example=Example({"value": "ada"}))
    worker = Runtime(rt.url, clock=rt.clock)
    worker.register(graph, name="evals:letter", version="0", retry=perdure.Retry(1))
    async with worker:
        assert (await worker.get(result.run_id)).version == "0"
        forked = await worker.fork(result.run_id)
        await worker.retry(result.run_id)
        await worker.work(until_idle=True)
        for id in (result.run_id, forked.id):
            assert "'mail' was not called" in str((await worker.get(id)).error)
    assert SENT == []
