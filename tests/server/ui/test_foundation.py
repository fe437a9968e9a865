"""The frame of the pages: signing in, forms of ours, errors as pages, assets, live updates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure.runtime import Runtime
from perdure.server.ui.live import Change, LiveFeed
from tests.support.ui import ui_server
from tests.support.wire_agents import Numbers, add


@pytest.fixture
def runtime(sqlite_url: str) -> Runtime:
    found = perdure.Runtime(sqlite_url)
    found.register(StateGraph(Numbers).add_node(add).add_edge(START, "add"), name="add")
    return found


def test_assets_are_kept_by_browsers_until_they_change(runtime: Runtime) -> None:
    with ui_server(runtime) as person:
        page = person.get("/inbox").html
        address = page.partition('rel="stylesheet" href="')[2].partition('"')[0]
        found = person.get(address).response
        assert "immutable" in found.headers["cache-control"]
        assert "set-cookie" not in found.headers
        assert person.get("/static/nothing.js").status == 404


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
