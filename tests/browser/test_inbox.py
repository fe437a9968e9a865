"""The inbox in a browser: several at once, live updates, filters, claiming and assigning."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

import perdure
from perdure.types import Retry
from tests.browser.chromium import People, axe
from tests.browser.ui_site import Site, site_of
from tests.support.reviewed_agents import asking, reviewed_agent

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

GO = {"messages": [("human", "Go")]}
MAIL = {"to": "mia@example.com", "body": "Your lamp ships on Monday.", "copies": 1}
agent, SENT = reviewed_agent(MAIL)


@perdure.effect(unknown="hold", retry=Retry(attempts=1))
def transfer(amount: float) -> str:
    raise TimeoutError("the bank did not answer")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Site]:
    path = tmp_path_factory.mktemp("site") / "journal.db"
    shutil.copy(sqlite_template, path)
    graphs = {
        "mail": agent,
        "plain": asking(lambda: perdure.ask("Which warehouse ships it?")),
        "pay": asking(lambda: transfer(960.0)),
    }
    with site_of(f"sqlite:///{path}", graphs).serving() as found:
        yield found


def item(page: Page, thread: str) -> Locator:
    """The item of a thread in the list."""
    return page.locator("article.item", has_text=thread)


async def test_a_question_is_decided_from_the_list_with_one_click(
    site: Site, people: People
) -> None:
    wait = await site.ask("mail", "quick-1", GO)
    before = len(SENT)
    page = await site.visit(people, "ana", "/inbox")
    await expect(item(page, "quick-1")).to_contain_text("Your lamp ships on Monday.")
    await item(page, "quick-1").get_by_role("button", name="Approve").click()
    await expect(page.get_by_role("status").first).to_contain_text("You approved: send_mail.")
    await site.ended(wait.run_id)
    assert SENT[before:] == [("send_mail", MAIL)]
    await expect(item(page, "quick-1")).to_have_count(0)


@pytest.mark.parametrize("javascript", [True, False])
async def test_several_questions_are_rejected_after_a_preview(
    site: Site, people: People, javascript: bool
) -> None:
    threads = [f"several-{javascript}-{n}" for n in range(3)]
    waits = [await site.ask("mail", one, GO) for one in threads]
    before = len(SENT)
    page = await site.visit(people, "ana", "/inbox", javascript=javascript)
    for thread in threads[:2]:
        await item(page, thread).get_by_role("checkbox").check()
    await page.get_by_role("button", name="Reject…").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Reject 2 questions?")
    await page.get_by_label("Reason").fill("Not this week.")
    await page.get_by_role("button", name="Reject 2 questions").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("2 of 2 questions decided")
    for wait in waits[:2]:
        await site.ended(wait.run_id)
    assert SENT[before:] == []
    await site.question(waits[2].run_id)


async def test_new_questions_and_decisions_by_others_appear_live(
    site: Site, people: People
) -> None:
    page = await site.visit(people, "ana", "/inbox")
    wait = await site.ask("plain", "live-1")
    await expect(item(page, "live-1")).to_contain_text("Which warehouse ships it?")
    await site.call("answer", wait.id, "Hamburg", by="ben")
    await expect(page.locator("article.gone")).to_contain_text("ben")
    await expect(item(page, "live-1")).to_have_count(0)


async def test_a_tab_that_connects_again_shows_each_question_once(
    site: Site, people: People
) -> None:
    page = await site.visit(people, "ana", "/inbox")
    await site.ask("plain", "again-1")
    await expect(item(page, "again-1")).to_have_count(1)
    await item(page, "again-1").get_by_role("checkbox").check()
    with people.expects(r"object Event"):  # the extension says that the connection was lost
        await page.evaluate("""() => {
            const element = document.querySelector("[sse-connect]");
            element["htmx-internal-data"].sseEventSource.close();
            element["htmx-internal-data"].sseEventSource.onerror(new Event("error"));
        }""")
    await site.ask("plain", "again-2")
    await expect(item(page, "again-2")).to_have_count(1)
    await expect(item(page, "again-1")).to_have_count(1)
    await expect(item(page, "again-1").get_by_role("checkbox")).to_be_checked()


async def test_a_question_is_claimed_assigned_and_commented_on(site: Site, people: People) -> None:
    wait = await site.ask("plain", "taken-1")
    page = await site.visit(people, "ana", f"/questions/{wait.id}")
    await page.get_by_role("button", name="Claim").click()
    await expect(page.locator("main")).to_contain_text("Assigned to you.")
    await page.get_by_label("Comment").fill("Asked the warehouse.")
    await page.get_by_role("button", name="Comment").click()
    await expect(page.locator("main")).to_contain_text("Asked the warehouse.")
    ben = await site.visit(people, "ben", "/inbox?assignee=unassigned")
    await expect(item(ben, "taken-1")).to_have_count(0)
    await page.get_by_label("Assign to").fill("ben")
    await page.get_by_role("button", name="Assign").click()
    await ben.goto(f"{site.address}/inbox?assignee=me")
    await expect(item(ben, "taken-1")).to_contain_text("assigned to you")
    await axe(ben)


async def test_an_unknown_payment_is_in_the_inbox_and_only_operators_settle_it(
    site: Site, people: People
) -> None:
    run = await site.call("start", "pay", {}, thread_id="pay-1")
    await site.rests(run.id)
    page = await site.visit(people, "ana", "/inbox?kind=effect")
    await expect(item(page, "pay-1")).to_contain_text("An operator decides this.")
    root = await site.visit(people, "root", "/inbox?kind=effect")
    await item(root, "pay-1").get_by_role("link", name="Decide").click()
    await root.get_by_label("It happened.").check()
    await root.get_by_label("Result, if it happened").fill('"paid"')
    await root.get_by_role("textbox", name="Reason").fill("The bank's statement has it.")
    await root.get_by_role("button", name="Settle").click()
    done = await site.ended(run.id)
    assert done.output["answer"] == "paid"
    events = await site.call("events", run.id)
    [settled] = [one.data for one in events if one.kind == "settled"]
    assert (settled["by"], settled["via"]) == ("root", "browser")


async def test_filters_of_the_inbox_are_in_the_address(site: Site, people: People) -> None:
    await site.ask("plain", "filter-1", metadata={"team": "blue"})
    await site.ask("mail", "filter-2", GO)
    page = await site.visit(people, "ana", "/inbox")
    await page.locator("summary", has_text="Filter").click()
    await page.get_by_label("Label").fill("team=blue")
    await page.get_by_role("button", name="Filter").click()
    assert "label=team%3Dblue" in page.url
    await expect(page.locator("article.item")).to_have_count(1)
    await page.get_by_role("link", name="Clear").click()
    await page.get_by_role("link", name="Held runs").click()
    assert page.url.endswith("?kind=held")
    await expect(item(page, "filter-1")).to_have_count(0)
