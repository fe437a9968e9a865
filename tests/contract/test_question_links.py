"""A signed link answers once, and only what it was made for."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import perdure
from perdure import Runtime
from perdure.errors import AlreadyAnswered, WaitClosed
from perdure.types import Retry, Wait
from tests.support.agents import Log, chain, opened

BASE = "https://agents.example.com/perdure"


ANA = "ana@example.com"


def approve(state: Log) -> Log:
    return {"log": [perdure.ask({"draft": state["value"]})]}


def linked(url: str, **options: Any) -> Any:
    return opened(url, public_url=BASE, **options)


async def asked(rt: Runtime, graph: Any = approve) -> Wait:
    rt.register(chain(graph), name="g", retry=Retry(attempts=1))
    await rt.start("g", {"log": [], "value": "Dear Bo"}, thread_id="t")
    await rt.tick()
    [wait] = await rt.waits()
    return wait


def token_of(url: str) -> str:
    [token] = parse_qs(urlsplit(url).query)["t"]
    return token


async def look(rt: Runtime, token: str) -> Any:
    return await rt.journal.arun(rt.services.links.look(token))


async def answer(rt: Runtime, token: str, value: Any, address: str | None = None) -> Any:
    return await rt.journal.arun(rt.services.links.answer(token, value, address))


async def test_a_link_answers_once(url: str) -> None:
    async with linked(url) as rt:
        wait = await asked(rt)
        ana, bo = [token_of(await rt.link(wait.id, to=to)) for to in (ANA, "bo@example.com")]
        await answer(rt, ana, "yes")
        for token in (ana, bo):
            with pytest.raises(AlreadyAnswered, match=ANA):
                await answer(rt, token, "no")
        assert (await look(rt, bo)).wait.answered_by == ANA


async def test_a_link_does_not_answer_what_changed_since_it_was_made(url: str) -> None:
    async with linked(url) as rt:
        bound = rt.register(chain(approve), name="edited")
        await rt.start("edited", {"log": [], "value": "Dear Bo"}, thread_id="t")
        await rt.tick()
        [wait] = await rt.waits()
        token = token_of(await rt.link(wait.id, to=ANA))
        place: Any = {"configurable": {"thread_id": "t"}}
        await bound.aupdate_state(place, {"value": "Dear Eve"}, as_node="__start__")
        await rt.tick()
        [changed] = await rt.waits()
        assert changed.id != wait.id
        with pytest.raises(WaitClosed):
            await answer(rt, token, "yes")
        assert await rt.waits() == [changed]
