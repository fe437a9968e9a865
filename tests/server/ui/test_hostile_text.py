"""Hostile text from people and models stays text, on every page and in every field.

`tests/browser/test_hostile_text.py` opens some of these pages in a browser.
"""

from __future__ import annotations

import asyncio
import html
import re

import httpx
import pytest

import perdure
from perdure.commands import tokens
from perdure.server.ui.identity import Session
from perdure.server.ui.page_route import browser_cookie, session_cookie
from perdure.types import Wait
from tests.contract.test_serving import hostile as hostile
from tests.server.ui.html_judge import faults
from tests.support.agent_server import served
from tests.support.hostile_journal import fill
from tests.support.http import Visitor, account, pages_of, signer_of
from tests.support.sweep import examples, sample
from tests.support.ui_addresses import FOUND, NO_PAGE, STREAMS, addresses
from tests.support.xss import LONG, PAYLOADS

OPERATOR = "<b>root</b>"
SEEDS = examples(len(PAYLOADS), 12)


async def test_every_page_is_visited_here(sqlite_url: str) -> None:
    async with perdure.Runtime(sqlite_url) as rt:
        routes = {one.path for one in pages_of(rt) if "GET" in (one.methods or ())}
    assert routes - FOUND.keys() - STREAMS.keys() - {*NO_PAGE} == set()
    assert (FOUND.keys() | STREAMS.keys()) - routes == set()


def edits(asked: Wait) -> list[dict[str, str]]:
    """Forms that are not sent yet: what they would change is shown first."""
    return [
        {"how": "decisions", "decision.0": "edit", "edit.0": LONG},
        {"how": "decisions", **{f"decision.{n}": "reject" for n in range(2)}},
        {"how": "json", "json": '{"type": "<img src=x>"}'},
        {"how": "form", "choice": "<script>", asked.thread_id: asked.thread_id},
        {"how": asked.thread_id, "step": asked.thread_id},
    ]


@pytest.mark.slow
async def test_no_text_becomes_markup_in_what_a_form_shows(
    hostile: tuple[perdure.Runtime, Visitor],
) -> None:
    rt, visitor = hostile
    signer = await signer_of(rt)
    browser = visitor.http.cookies[browser_cookie(signer)]
    token = {"csrf": signer.form_token(browser, OPERATOR)}
    runs = await rt.runs(limit=1000, output=False)
    pages = []
    for action in ("pause", "cancel", "retry"):
        chosen = {**token, "action": action, "id": [run.id for run in runs[:90]]}
        pages.append(await visitor.post("/runs/bulk", chosen))
    waits = [one.id for one in await rt.waits(kind="human", limit=90)]
    for decision in ("approve", "reject"):
        several = {**token, "decision": decision, "id": waits, "reason": LONG}
        pages.append(await visitor.post("/inbox/several", several))
    for wait in sample(await rt.waits(kind="human", limit=1000), 12):
        for fields in edits(wait):
            for end in ("answer", "difference"):
                path = f"/questions/{wait.id}/{end}"
                pages.append(await visitor.post(path, {**token, **fields}))
    for page in pages:
        assert page.status_code in (200, 303, 409, 422), page.text
        assert faults(page.text) == [], page.url
    assert sum(page.status_code == 200 for page in pages) > len(pages) / 4


@pytest.mark.slow
async def test_no_text_becomes_markup_in_what_comes_live(sqlite_url: str) -> None:
    async with perdure.Runtime(sqlite_url) as rt:
        seeds = await fill(rt, range(SEEDS))
        streams = [path for find in STREAMS.values() for path in list(await find(rt))[:2]]
        token = await account(rt, "admin", name=OPERATOR)
        [row] = [
            row
            for row in await rt.journal.arun(tokens.read_rows(rt.engine))
            if row.name == OPERATOR
        ]
        signer = await signer_of(rt)
        cookies = {session_cookie(signer): signer.session(Session(row.hash))}
        assert token
        with served(perdure.Runtime(sqlite_url), ui=True, worker=False) as server:
            reading = [
                asyncio.create_task(live_events(f"{server.url}{path}", cookies)) for path in streams
            ]
            while not all(task.done() for task in reading):
                for seed in seeds:
                    await seed.change(rt)
                await asyncio.sleep(0.2)
    for path, task in zip(streams, reading, strict=True):
        assert [fault for one in task.result() for fault in faults(one)] == [], path


async def live_events(url: str, cookies: dict[str, str], most: int = 6) -> list[str]:
    """The HTML of the first events of a stream."""
    found: list[str] = []
    lines: list[str] = []
    async with (
        asyncio.timeout(30),
        httpx.AsyncClient(cookies=cookies, timeout=30) as http,
        http.stream("GET", url) as response,
    ):
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                lines.append(line.removeprefix("data: "))
            elif not line and lines:
                found.append("\n".join(lines))
                lines.clear()
            if len(found) >= most:
                break
    return found


@pytest.mark.slow
async def test_every_link_leads_to_a_page(hostile: tuple[perdure.Runtime, Visitor]) -> None:
    rt, visitor = hostile
    links: dict[str, str] = {}
    for paths in (await addresses(rt)).values():
        for path in sample(paths, 2):
            page = await visitor.http.get(path)
            for found in re.findall(r'(?:href|hx-get)="([^"]+)"', page.text):
                link = html.unescape(found).partition("#")[0]
                if link.startswith("/ui/") and not link.startswith("/ui/static/"):
                    links.setdefault(link, path)
    broken = []
    for link, path in sample(sorted(links.items()), 400):
        page = await visitor.http.get(link)
        if page.status_code not in (200, 303):
            broken.append(f"{page.status_code} {link} on {path}")
    assert broken == []
