"""Lists of runs and threads as people use them: live rows, ticks that stay, many runs at once, a
conversation that grows, by keyboard and without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from playwright.async_api import expect

from perdure.server.ui import bulk
from perdure.types import State
from tests.browser.chromium import People, axe, fits
from tests.browser.ui_site import Site, site_of
from tests.support.waiters import asking, chain

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


def echoes(state: MessagesState) -> Any:
    return {"messages": [AIMessage(f"You said *{state['messages'][-1].content}*.")]}


@pytest.fixture
def site(sqlite_url: str) -> Iterator[Site]:
    chat = StateGraph(MessagesState).add_node(echoes).add_edge(START, "echoes")
    with site_of(sqlite_url, {"asks": chain(asking("Go?")), "chat": chat}).serving() as found:
        yield found


async def start(site: Site, count: int) -> list[str]:
    waits = [await site.ask("asks", f"t-{number}", {"log": []}) for number in range(count)]
    return [one.run_id for one in waits]


async def test_a_row_changes_in_place_keeps_its_tick_and_new_runs_wait_for_a_click(
    site: Site, people: People
) -> None:
    first, second = await start(site, 2)
    page = await site.visit(people, "root", "/runs")
    await page.locator(f"#pick-{first}").check()
    await site.call("pause", first)
    row = page.locator("tr", has=page.locator(f"#pick-{first}"))
    await expect(row.locator(".state-paused")).to_be_visible()
    await expect(row.locator("input")).to_be_checked()
    await expect(page.locator(f"#pick-{second}")).not_to_be_checked()
    assert await page.locator("tbody tr").count() == 2
    await site.ask("asks", "another", {"log": []})
    await page.get_by_role("link", name="Show 1 new run").click()
    await expect(page.locator("tbody tr")).to_have_count(3)


async def test_many_runs_are_cancelled_piece_by_piece_with_one_click(
    site: Site, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PIECE", 3)
    ids = await start(site, 8)
    page = await site.visit(people, "root", "/runs?state=waiting")
    await page.get_by_label("all on this page").check()
    await page.get_by_role("button", name="Cancel…").click()
    await expect(page.get_by_text("8 runs will be cancelled.")).to_be_visible()
    await axe(page)
    await page.get_by_label("Reason").fill("wrong list")
    await page.get_by_role("button", name="Cancel 8 runs").dblclick()
    await expect(page.get_by_text("Done: 8 runs.")).to_be_visible()
    assert await page.locator(".results li").count() == 8
    for id in ids:
        run = await site.call("get", id)
        assert (run.state, run.reason) == (State.CANCELLED, "wrong list")
        kinds = [event.kind for event in await site.call("events", id)]
        assert kinds.count("cancelled") == 1


async def test_runs_are_paused_without_javascript(site: Site, people: People) -> None:
    [id] = await start(site, 1)
    page = await site.visit(people, "root", "/runs", javascript=False, phone=True)
    await page.locator(f"#pick-{id}").check()
    await page.get_by_role("button", name="Pause…").click()
    await page.get_by_role("button", name="Pause 1 run").click()
    await expect(page.get_by_text("Done: 1 run.")).to_be_visible()
    assert (await site.call("get", id)).state is State.PAUSED


async def test_filters_are_in_the_address(site: Site, people: People) -> None:
    await site.ask("asks", "t-1", {"log": []}, metadata={"team": "blue"})
    await site.ask("asks", "t-2", {"log": []}, metadata={"team": "red"})
    run = await site.call("start", "chat", {"messages": [("human", "hello")]}, thread_id="t-3")
    await site.ended(run.id)
    page = await site.visit(people, "ron", "/runs")
    await page.get_by_role("link", name="done").click()
    assert page.url.endswith("/runs?state=done")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.get_by_role("link", name="Clear").click()
    await page.get_by_role("combobox", name="Graph").fill("asks")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.locator("tbody tr")).to_have_count(2)
    await page.get_by_label("Started").select_option("24h")  # applies at once
    await page.wait_for_url("**graph=asks**since=24h**")
    await page.get_by_role("link", name="team=red").click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.go_back()
    await expect(page.locator("tbody tr")).to_have_count(2)
    assert await page.get_by_role("button", name="Cancel…").count() == 0  # ron may only read
    phone = await site.visit(people, "root", "/runs", phone=True, dark=True)
    await fits(phone)
    await axe(phone)


async def test_runs_are_filtered_and_opened_by_keyboard(site: Site, people: People) -> None:
    ids = await start(site, 3)
    page = await site.visit(people, "ron", "/runs")
    await page.keyboard.press("/")
    await page.keyboard.type("t-1")
    await page.keyboard.press("Enter")
    await expect(page.locator("tbody tr")).to_have_count(1)
    assert re.search(r"text=t-1", page.url)
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/runs/{ids[1]}")
