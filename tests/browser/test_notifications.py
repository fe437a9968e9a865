"""Notifications of a real browser: each new question once, whatever the number of open tabs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, expect

import perdure
from perdure.server.ui.site import sign_in_path
from tests.browser.chromium import People
from tests.support.agent_server import served
from tests.support.polling import auntil
from tests.support.reviewed_agents import asking

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

RECORD = """
const Shown = Notification.permission === "granted" ? Notification : class {
  static permission = "granted";
  static async requestPermission() { return "granted"; }
  close() {}
};
window.Notification = class extends Shown {
  constructor(title, options) {
    super(title, options);
    window.noted(title, options.body);
    window.newest = this;
  }
};
"""
"""Reports each notification to the test, and shows it. npm's headless Chromium denies notifications
even when they are granted: there a class stands in for the browser's."""


class Desk:
    """A person with tabs, and what the browser notified them of."""

    def __init__(self, context: BrowserContext, address: str, runtime: perdure.Runtime) -> None:
        self.context, self.address, self.runtime = context, address, runtime
        self.noted: list[tuple[str, str]] = []

    async def tab(self, path: str = "/ui/inbox") -> Page:
        page = await self.context.new_page()
        await page.goto(f"{self.address}{path}")
        return page

    def ask(self) -> None:
        """Have an agent ask its next question."""
        self.runtime.blocking.start("mailer", {})

    async def hears(self, *words: str) -> None:
        await auntil(lambda: [body for _, body in self.noted] == [*words], str(self.noted))

    async def listens(self, *tabs: Page) -> Page:
        """The one of these tabs that listens."""
        for _ in range(200):
            for tab in tabs:
                if await tab.evaluate("document.body.dataset.notifies") == "yes":
                    return tab
            await tabs[0].wait_for_timeout(50)
        raise AssertionError("no tab listens")


@asynccontextmanager
async def desk(people: People, url: str, **options: Any) -> AsyncIterator[Desk]:
    runtime = perdure.Runtime(url)
    words = iter(["May I send it?", "And this?", "One", "Two", "Three", "Four", "Five"])
    runtime.register(asking(lambda: perdure.ask(next(words))), name="mailer")
    path = runtime.blocking.run(sign_in_path(runtime))
    with runtime, served(runtime, ui=True) as server:
        people.may_ask(server.url)
        context = await people.person(**{"permissions": ["notifications"], **options})
        found = Desk(context, server.url, runtime)
        await context.expose_function("noted", lambda *said: found.noted.append(said))
        if options.get("permissions") != []:
            await context.add_init_script(RECORD)
        page = await found.tab(path)
        await page.close()
        yield found
        await context.close()


async def test_a_new_question_is_notified_once_in_a_browser_with_several_tabs(
    people: People, sqlite_url: str
) -> None:
    async with desk(people, sqlite_url) as ana:
        tabs = [await ana.tab() for _ in range(3)]
        await tabs[1].get_by_role("button", name="Notify me").click()
        for tab in tabs:
            await expect(tab.get_by_role("button", name="Stop notifying me")).to_be_visible()
        await ana.listens(*tabs)
        ana.ask()
        await ana.hears("May I send it?")
        ana.ask()
        await ana.hears("May I send it?", "And this?")
        assert {title for title, _ in ana.noted} == {"mailer asks"}


async def test_a_click_on_a_notification_opens_its_question(
    people: People, sqlite_url: str
) -> None:
    async with desk(people, sqlite_url) as ana:
        tab = await ana.tab()
        await tab.get_by_role("button", name="Notify me").click()
        await ana.listens(tab)
        ana.ask()
        await ana.hears("May I send it?")
        await tab.evaluate("newest.onclick()")
        await tab.wait_for_url("**/ui/questions/*")
        await expect(tab.get_by_role("heading", level=1)).to_contain_text("May I send it?")


async def test_another_tab_takes_over_when_the_listening_one_is_closed(
    people: People, sqlite_url: str
) -> None:
    async with desk(people, sqlite_url) as ana:
        tabs = [await ana.tab() for _ in range(2)]
        await tabs[0].get_by_role("button", name="Notify me").click()
        first = await ana.listens(*tabs)
        ana.ask()
        await ana.hears("May I send it?")
        [other] = [one for one in tabs if one is not first]
        await first.close()
        await ana.listens(other)
        ana.ask()
        await ana.hears("May I send it?", "And this?")


async def test_a_question_that_came_while_no_tab_was_open_is_notified_by_the_next_one(
    people: People, sqlite_url: str
) -> None:
    async with desk(people, sqlite_url) as ana:
        tab = await ana.tab()
        await tab.get_by_role("button", name="Notify me").click()
        await ana.listens(tab)
        ana.ask()
        await ana.hears("May I send it?")
        await tab.goto("about:blank")
        ana.ask()
        await auntil(lambda: len(ana.runtime.blocking.waits()) == 2)
        await ana.tab()
        await ana.hears("May I send it?", "And this?")


async def test_many_questions_at_once_are_one_notification(people: People, sqlite_url: str) -> None:
    async with desk(people, sqlite_url) as ana:
        tab = await ana.tab()
        await tab.get_by_role("button", name="Notify me").click()
        await ana.listens(tab)
        await tab.goto("about:blank")
        for _ in range(5):
            ana.ask()
        await auntil(lambda: len(ana.runtime.blocking.waits()) == 5)
        await ana.tab()
        await ana.hears("5 new questions")


async def test_turning_notifications_off_stops_them(people: People, sqlite_url: str) -> None:
    async with desk(people, sqlite_url) as ana:
        tabs = [await ana.tab() for _ in range(2)]
        await tabs[0].get_by_role("button", name="Notify me").click()
        await ana.listens(*tabs)
        await tabs[1].get_by_role("button", name="Stop notifying me").click()
        for tab in tabs:
            await expect(tab.get_by_role("button", name="Notify me")).to_be_visible()
            await expect(tab.locator("body[data-notifies]")).to_have_count(0)
        ana.ask()
        await auntil(lambda: len(ana.runtime.blocking.waits()) == 1)
        later = await ana.tab()
        await expect(later.locator("#question-count")).to_have_text("1")
        assert ana.noted == []


async def test_a_browser_that_blocks_notifications_says_so(people: People, sqlite_url: str) -> None:
    async with desk(people, sqlite_url, permissions=[]) as ana:
        tab = await ana.tab()
        blocked = tab.get_by_role("button", name="Notifications are blocked")
        ask = tab.get_by_role("button", name="Notify me")
        if await ask.count():
            await ask.click()
        await expect(blocked).to_be_disabled()


async def test_without_scripts_there_is_no_button_that_does_nothing(
    people: People, sqlite_url: str
) -> None:
    async with desk(people, sqlite_url, javascript=False) as ana:
        tab = await ana.tab()
        await expect(tab.locator("[data-notify]")).to_be_hidden()
