"""The frame of the pages: signing in, forms of ours, errors as pages, assets, live updates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure.commands import tokens
from perdure.commands.question_links import server_secret
from perdure.runtime import Runtime
from perdure.server.ui.identity import Session, Signer
from perdure.server.ui.live import Change, LiveFeed
from tests.support.polling import until
from tests.support.ui import ui_server
from tests.support.wire_agents import Numbers, add


@pytest.fixture
def runtime(sqlite_url: str) -> Runtime:
    found = perdure.Runtime(sqlite_url)
    found.register(StateGraph(Numbers).add_node(add).add_edge(START, "add"), name="add")
    return found


def test_the_printed_address_signs_in_and_leaves_no_key_in_the_address(runtime: Runtime) -> None:
    with ui_server(runtime) as person:
        page = person.get("/inbox")
        assert page.status == 200
        assert "Inbox" in page.text
        assert "key=" not in page.path
        assert person.stranger().get("/inbox").path == "/ui/sign-in?next=/inbox"


def test_an_unknown_address_is_an_html_page(runtime: Runtime) -> None:
    with ui_server(runtime) as person:
        page = person.get("/nothing")
        assert page.status == 404
        assert "There is no page at /ui/nothing." in page.text


def test_a_form_that_is_not_ours_is_refused(runtime: Runtime) -> None:
    with ui_server(runtime) as person:
        assert person.post("/ui/sign-out", [("csrf", "forged")]).status == 403
        assert person.get("/inbox").status == 200
        assert person.get("/inbox").submit("/sign-out").path == "/ui/sign-in"


def test_a_token_signs_in_and_its_revocation_signs_out(runtime: Runtime) -> None:
    token = runtime.blocking.run(
        runtime.journal.arun(tokens.create(runtime.engine, "ana", ["answer"]))
    )
    with ui_server(runtime) as person:
        assert person.get("/inbox").path == "/ui/sign-in?next=/inbox"  # there are accounts now
        ana = person.with_token(token)
        assert "ana" in ana.get("/inbox").text
        runtime.blocking.run(runtime.journal.arun(tokens.revoke(runtime.engine, "ana")))
        until(lambda: ana.get("/inbox").path == "/ui/sign-in?next=/inbox")


def test_assets_are_kept_by_browsers_until_they_change(runtime: Runtime) -> None:
    with ui_server(runtime) as person:
        page = person.get("/inbox").html
        address = page.partition('rel="stylesheet" href="')[2].partition('"')[0]
        found = person.get(address).response
        assert "immutable" in found.headers["cache-control"]
        assert "set-cookie" not in found.headers
        assert person.get("/static/nothing.js").status == 404


async def test_two_processes_share_one_server_secret(url: str) -> None:
    async with perdure.Runtime(url) as one, perdure.Runtime(url) as other:
        plans = [rt.journal.arun(server_secret(rt.engine.serializer)) for rt in (one, other)]
        first, second = await asyncio.gather(*plans)
        assert first == second
        assert len(first) == 32


def test_a_session_of_another_journal_is_not_accepted() -> None:
    mine, other = Signer(b"1" * 32), Signer(b"2" * 32)
    assert mine.read_session(mine.session(Session("hash"))) == Session("hash")
    assert other.read_session(mine.session(Session("hash"))) is None
    assert mine.read_session("x" * 5000) is None


async def test_a_tab_learns_of_new_runs_and_of_changes_of_those_it_follows(url: str) -> None:
    async with perdure.Runtime(url) as rt:
        rt.register(StateGraph(Numbers).add_node(add).add_edge(START, "add"), name="add")
        old = await rt.start("add", {"n": 1}, thread_id="old")
        async with LiveFeed(rt.journal).follow([old.id]) as changes, asyncio.timeout(60):
            assert await anext(changes) == Change(frozenset({old.id}))  # since it was rendered
            while old.id not in (change := await _next(rt, changes)).changed:
                assert not change.changed
            new = await rt.start("add", {"n": 2})
            while new.id not in (await anext(changes)).new_runs:
                pass


async def _next(rt: Runtime, changes: AsyncIterator[Change]) -> Change:
    """The next change after the run that is due was driven, and another was started."""
    await rt.start("add", {"n": 2})
    await rt.tick()
    return await anext(changes)
