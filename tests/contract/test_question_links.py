"""A signed link answers once, and only what it was made for."""

from __future__ import annotations

from typing import Any

import perdure
from perdure import Runtime
from perdure.types import Retry, Wait
from tests.support.agents import Log, chain, opened
from tests.support.http import visiting
from tests.support.ui import Page

BASE = "https://agents.example.com"


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


async def answer(rt: Runtime, link: str, text: str) -> str:
    """Open a link, send the form that is there, and give the text of the page that follows."""
    async with visiting(rt) as visitor:
        address = link.removeprefix(BASE)
        page = Page(None, await visitor.http.get(address))  # type: ignore[arg-type]
        if not page.forms:
            return page.text
        form = page.form("/link", {"how": "text"})
        fields = {**dict(form.fields), "text": text}
        sent = await visitor.http.post(form.action, data=fields, follow_redirects=True)
        return Page(None, sent).text  # type: ignore[arg-type]


async def test_a_link_answers_once(url: str) -> None:
    async with linked(url) as rt:
        wait = await asked(rt)
        ana, bo = [await rt.link(wait.id, to=to) for to in (ANA, "bo@example.com")]
        async with visiting(rt) as visitor:  # who had the page open all the while
            page = Page(None, await visitor.http.get(bo.removeprefix(BASE)))  # type: ignore[arg-type]
            late = page.form("/link", {"how": "text"})
            await answer(rt, ana, "yes")
            sent = await visitor.http.post(late.action, data={**dict(late.fields), "text": "no"})
            assert ANA in sent.text
        for link in (ana, bo):
            assert ANA in await answer(rt, link, "no")
        [event] = [one for one in await rt.events(wait.run_id) if one.kind == "answer"]
        assert event.data["by"] == ANA
        await rt.tick()
        assert (await rt.get(wait.run_id)).output["log"] == ["yes"]


async def test_a_link_does_not_answer_what_changed_since_it_was_made(url: str) -> None:
    async with linked(url) as rt:
        bound = rt.register(chain(approve), name="edited")
        await rt.start("edited", {"log": [], "value": "Dear Bo"}, thread_id="t")
        await rt.tick()
        [wait] = await rt.waits()
        link = await rt.link(wait.id, to=ANA)
        async with visiting(rt) as visitor:
            page = Page(None, await visitor.http.get(link.removeprefix(BASE)))  # type: ignore[arg-type]
            form = page.form("/link", {"how": "text"})
            place: Any = {"configurable": {"thread_id": "t"}}
            await bound.aupdate_state(place, {"value": "Dear Eve"}, as_node="__start__")
            await rt.tick()
            [changed] = await rt.waits()
            assert changed.id != wait.id
            sent = await visitor.http.post(form.action, data={**dict(form.fields), "text": "yes"})
            assert sent.status_code in (200, 303, 409, 410)
        await answer(rt, link, "yes")
        assert await rt.waits() == [changed]
