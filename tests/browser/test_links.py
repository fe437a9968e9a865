"""From a mail to a decision in a real browser: the link of a letter, and a click."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, expect

import perdure
from perdure.commands import tokens
from tests.browser.chromium import People, axe, fits
from tests.support.agent_server import served
from tests.support.mail_server import receiving_mail
from tests.support.polling import auntil, until
from tests.support.reviewed_agents import reviewed_agent

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

ANA = "ana@example.com"


@contextmanager
def mailed(url: str) -> Iterator[tuple[str, Any, Any]]:
    """The address in a letter about a question, its run, and what the agent did."""
    agent, sent = reviewed_agent({"to": "bo", "body": "Hello"}, says="It is only a test.")
    with receiving_mail() as server:
        mail = perdure.Mail(server.url, "agents@example.com", [ANA])
        runtime = perdure.Runtime(url, mail=mail, public_url="https://agents.example.com")
        runtime.register(agent, name="mailer")
        runtime.journal.run(tokens.create(runtime.engine, "op", ["admin"]))
        with runtime, served(runtime, ui=True) as pages:
            run = runtime.blocking.start("mailer", {"messages": [("human", "Go")]})
            until(lambda: server.got, "a letter")
            link = urlsplit(server.got[0].url)
            yield f"{pages.url}{link.path}?{link.query}", run, sent


async def judged(page: Page) -> None:
    await axe(page)
    await fits(page)


@pytest.mark.parametrize("javascript", [True, False])
async def test_a_link_and_a_click_decide(people: People, sqlite_url: str, javascript: bool) -> None:
    with mailed(sqlite_url) as (address, _, sent):
        page = await people.visit(address, phone=True, javascript=javascript)
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Your answer was sent")
        await auntil(lambda: len(sent) == 1, "the approved call")
        await page.reload()
        await expect(page.get_by_role("status")).to_contain_text("You approved: send_mail")


async def test_a_link_and_two_clicks_edit(people: People, sqlite_url: str) -> None:
    with mailed(sqlite_url) as (address, _, sent):
        page, second = await people.visit(address), await people.visit(address)
        await page.get_by_text("Edit…").click()
        await expect(page.get_by_label("body").or_(page.get_by_label("to"))).to_have_count(2)
        approve = page.get_by_role("button", name="Approve", exact=True)
        await expect(approve).to_be_hidden()  # it would drop what is typed
        send = page.get_by_role("button", name="Approve with these changes")
        await page.get_by_label("body").fill("Hi")
        await expect(page.locator(".difference ins")).to_have_text("Hi")
        await page.get_by_label("body").press_sequentially(" Bo")
        await expect(page.locator(".difference ins")).to_have_text("Hi Bo")
        await axe(page)
        await send.click()
        await expect(page.get_by_role("status")).to_contain_text("You edited: send_mail")
        runs = page.get_by_role("region", name="Runs with your changes")
        await expect(runs).to_contain_text("Hi Bo")
        await axe(page)
        with people.expects("409"):
            await second.get_by_role("button", name="Approve", exact=True).click()
            await expect(second.locator("h1")).to_have_text("You answered this question")
        await expect(second.get_by_role("region", name="Runs with")).to_contain_text("Hi Bo")
        await auntil(lambda: [one["body"] for _, one in sent] == ["Hi Bo"])


async def test_opening_a_link_and_leaving_decides_nothing(people: People, sqlite_url: str) -> None:
    with mailed(sqlite_url) as (address, _, sent):
        page = await people.visit(address)
        await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
        await page.close()
        again = await people.visit(address)
        await expect(again.get_by_role("button", name="Approve", exact=True)).to_be_visible()
        assert sent == []


async def test_of_two_browsers_with_one_link_the_first_decides(
    people: People, sqlite_url: str
) -> None:
    with mailed(sqlite_url) as (address, _, sent):
        first, second = await people.visit(address), await people.visit(address)
        await first.get_by_role("button", name="Approve", exact=True).click()
        await expect(first.get_by_role("heading", level=1)).to_have_text("Your answer was sent")
        await second.get_by_text("Reject…").click()
        with people.expects("409"):
            await second.get_by_role("button", name="Reject", exact=True).click()
            await expect(second.get_by_role("alert")).to_contain_text("was not sent")
        await auntil(lambda: len(sent) == 1, "the approved call")


@pytest.mark.parametrize("dark", [True, False])
@pytest.mark.parametrize("phone", [True, False])
async def test_the_pages_of_a_link_are_accessible(
    people: People, sqlite_url: str, dark: bool, phone: bool
) -> None:
    with mailed(sqlite_url) as (address, _, _):
        page = await people.visit(address, dark=dark, phone=phone)
        await judged(page)
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Your answer was sent")
        await judged(page)
        with people.expects("403"):
            await page.goto(f"{address}x")
            await expect(page.get_by_role("heading", level=1)).to_have_text(
                "This link is not valid"
            )
        await judged(page)
