"""People decide in a browser: approve, edit, reject; twice, too late, at once, by keyboard."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

import perdure
from perdure.types import EventKind, Wait
from tests.browser.chromium import People, axe, fits
from tests.browser.ui_site import Site, site_of
from tests.support.reviewed_agents import asking, reviewed_agent

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

GO = {"messages": [("human", "Go")]}
MAIL = {"to": "mia@example.com", "body": "Dear Mia,\n\nyour lamp ships on Monday.", "copies": 1}
FORM = {
    "type": "object",
    "title": "How to pay",
    "properties": {
        "pay": {"enum": ["in full", "in part"], "title": "Pay"},
        "amount": {"type": "number", "minimum": 0, "title": "Amount"},
        "urgent": {"type": "boolean", "title": "Pay today"},
    },
    "required": ["pay", "amount"],
}
agent, SENT = reviewed_agent(MAIL)
pair, PAIR = reviewed_agent(MAIL, {**MAIL, "to": "noor@example.com"})


def draft(n: int) -> dict[str, str]:
    return {"draft": f"Version {n} of the letter"}


def drafts() -> Any:
    """A draft that a signal replaces by another one."""
    first = perdure.ask(draft(1), unless="rewritten", default=None)
    return first or perdure.ask(draft(2))


def short() -> Any:
    return perdure.ask("Quick, yes or no?", expires=timedelta(seconds=2), default="too late")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Site]:
    path = tmp_path_factory.mktemp("site") / "journal.db"
    shutil.copy(sqlite_template, path)
    graphs = {
        "mail": agent,
        "mails": pair,
        "drafts": asking(drafts),
        "short": asking(short),
        "pay": asking(lambda: perdure.ask({"invoice": "INV-7"}, response_schema=FORM)),
        "plain": asking(lambda: perdure.ask("Which warehouse ships it?")),
    }
    with site_of(f"sqlite:///{path}", graphs).serving() as found:
        yield found


async def opened(site: Site, people: People, wait: Wait, who: str = "ana", **look: Any) -> Page:
    return await site.visit(people, who, f"/questions/{wait.id}", **look)


async def answers(site: Site, wait: Wait) -> list[dict[str, Any]]:
    events = await site.call("events", wait.run_id)
    return [dict(one.data) for one in events if one.kind == EventKind.ANSWER]


async def test_an_approved_call_runs_once_and_the_approver_is_recorded(
    site: Site, people: People
) -> None:
    wait = await site.ask("mail", "approve", GO)
    before = len(SENT)
    page = await opened(site, people, wait)
    await expect(page.get_by_role("heading", level=1)).to_have_text("Approve send_mail?")
    await expect(page.locator("main")).to_contain_text("your lamp ships on Monday.")
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_role("status")).to_contain_text("You approved: send_mail.")
    await site.ended(wait.run_id)
    assert SENT[before:] == [("send_mail", MAIL)]
    [event] = await answers(site, wait)
    assert (event["by"], event["via"], event["from"]) == ("ana", "browser", "127.0.0.1")


async def test_an_edit_is_shown_as_a_difference_before_it_is_sent(
    site: Site, people: People
) -> None:
    wait = await site.ask("mail", "edit", GO)
    before = len(SENT)
    page = await opened(site, people, wait)
    await page.get_by_text("Edit…").click()
    await page.get_by_label("body").fill("Dear Mia,\n\nyour lamp ships on Tuesday.")
    await expect(page.locator(".difference ins").first).to_contain_text("Tuesday")
    await page.get_by_role("button", name="Preview changes").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Check your changes")
    await expect(page.locator("ins").first).to_contain_text("Tuesday")
    await expect(page.locator("del").first).to_contain_text("Monday")
    await axe(page)
    assert await answers(site, wait) == []
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("status")).to_contain_text("You edited")
    await site.ended(wait.run_id)
    [(_, sent)] = SENT[before:]
    assert sent == {**MAIL, "body": "Dear Mia,\n\nyour lamp ships on Tuesday."}


async def test_a_rejection_has_a_reason_and_nothing_runs(site: Site, people: People) -> None:
    wait = await site.ask("mail", "reject", GO)
    before = len(SENT)
    page = await opened(site, people, wait)
    await page.get_by_text("Reject…").click()
    await page.get_by_label("Reason").fill("She cancelled the order.")
    await page.get_by_role("button", name="Reject", exact=True).click()
    await expect(page.get_by_role("status")).to_contain_text("You rejected")
    run = await site.ended(wait.run_id)
    assert SENT[before:] == []
    assert any("She cancelled the order." in str(one.content) for one in run.output["messages"])


async def test_each_of_several_calls_is_decided_separately(site: Site, people: People) -> None:
    wait = await site.ask("mails", "several", GO)
    page = await opened(site, people, wait)
    first = page.get_by_role("group", name="1. send_mail")
    second = page.get_by_role("group", name="2. send_mail")
    await first.get_by_role("radio", name="Approve").check()
    await second.get_by_role("radio", name="Reject").check()
    await second.get_by_role("textbox", name="Reason").fill("Not to her.")
    await page.get_by_role("button", name="Send decisions").click()
    await expect(page.get_by_role("status")).to_contain_text("You answered")
    await site.ended(wait.run_id)
    assert [sent["to"] for _, sent in PAIR] == ["mia@example.com"]


async def test_a_form_is_made_from_the_schema_and_says_what_does_not_fit(
    site: Site, people: People
) -> None:
    wait = await site.ask("pay", "form")
    page = await opened(site, people, wait)
    await page.get_by_role("radio", name="in part").check()
    await page.get_by_label("Amount").fill("-3")
    with people.expects("422"):
        await page.get_by_role("button", name="Send answer").click()
        await expect(page.locator("main")).to_contain_text("This must be at least 0.")
    await axe(page)
    await expect(page.get_by_role("radio", name="in part")).to_be_checked()  # nothing is lost
    await page.get_by_label("Amount").fill("40.5")
    await page.get_by_role("button", name="Send answer").click()
    await expect(page.get_by_role("status")).to_contain_text("You answered")
    run = await site.ended(wait.run_id)
    answer = run.output["answer"]
    assert (answer["pay"], answer["amount"]) == ("in part", 40.5)


async def test_a_double_click_answers_once(site: Site, people: People) -> None:
    wait = await site.ask("mail", "double", GO)
    before = len(SENT)
    page = await opened(site, people, wait)
    await page.get_by_role("button", name="Approve").dblclick()
    await expect(page.get_by_role("status")).to_contain_text("You approved")
    await site.ended(wait.run_id)
    assert len(SENT) == before + 1
    assert len(await answers(site, wait)) == 1


async def test_when_two_people_decide_at_once_the_second_sees_who_was_first(
    site: Site, people: People
) -> None:
    wait = await site.ask("plain", "two")
    ana, ben = await opened(site, people, wait), await opened(site, people, wait, "ben")
    await ana.get_by_label("Your answer").fill("Hamburg")
    await ben.get_by_label("Your answer").fill("Porto")
    await ana.get_by_role("button", name="Send answer").click()
    await expect(ana.get_by_role("status")).to_contain_text("You answered")
    with people.expects("409"):
        await ben.get_by_role("button", name="Send answer").click()
        await expect(ben.locator("main")).to_contain_text("ana")
    await expect(ben.locator("main")).to_contain_text("Hamburg")
    await axe(ben)
    run = await site.ended(wait.run_id)
    assert run.output["answer"] == "Hamburg"


async def test_an_answer_after_the_deadline_is_refused_with_a_page(
    site: Site, people: People
) -> None:
    wait = await site.ask("short", "expired")
    page = await opened(site, people, wait)
    await page.get_by_label("Your answer").fill("yes")
    await site.ended(wait.run_id)
    with people.expects("409"):
        await page.get_by_role("button", name="Send answer").click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("expired")
    await axe(page)


async def test_a_changed_question_takes_no_answer_and_links_to_the_new_one(
    site: Site, people: People
) -> None:
    wait = await site.ask("drafts", "changed")
    page = await opened(site, people, wait)
    await expect(page.locator("main")).to_contain_text("Version 1 of the letter")
    await site.call("signal", "changed", "rewritten")
    newer = await site.question(wait.run_id, but=wait.id)
    await page.get_by_label("Your answer").fill("Send it")
    with people.expects("409"):
        await page.get_by_role("button", name="Send answer").click()
        await expect(page.locator("main")).not_to_contain_text("Your answer, as text")
    await axe(page)
    assert await answers(site, newer) == []
    await page.locator(f"a[href*='{newer.id}']").first.click()
    await expect(page.locator("main")).to_contain_text("Version 2 of the letter")


async def test_without_scripts_people_approve_edit_and_reject(site: Site, people: People) -> None:
    before = len(SENT)
    for thread, how in (("plain-1", "approve"), ("plain-2", "edit"), ("plain-3", "reject")):
        wait = await site.ask("mail", thread, GO)
        page = await opened(site, people, wait, javascript=False)
        if how == "approve":
            await page.get_by_role("button", name="Approve").click()
        elif how == "edit":
            await page.get_by_text("Edit…").click()
            await page.get_by_label("body").fill("Edited")
            await page.get_by_role("button", name="Preview changes").click()
            await expect(page.locator("ins").first).to_contain_text("Edited")
            await page.get_by_role("button", name="Send").click()
        else:
            await page.get_by_text("Reject…").click()
            await page.get_by_role("button", name="Reject", exact=True).click()
        await expect(page.get_by_role("status")).to_contain_text("You ")
        await site.ended(wait.run_id)
    assert [sent["body"] for _, sent in SENT[before:]] == [MAIL["body"], "Edited"]


async def test_the_keyboard_suffices(site: Site, people: People) -> None:
    wait = await site.ask("mail", "keyboard", GO)
    page = await opened(site, people, wait)
    await page.keyboard.press("r")  # opens the rejection, and sends nothing
    await page.keyboard.type("By keyboard")
    assert await page.get_by_label("Reason").input_value() == "By keyboard"
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("You rejected")
    await site.ended(wait.run_id)


async def test_a_letter_leads_to_a_decision_and_only_enter_makes_it(
    site: Site, people: People
) -> None:
    wait = await site.ask("mail", "a letter", GO)
    page = await opened(site, people, wait)
    await page.keyboard.press("?")
    shortcuts = page.get_by_role("dialog", name="Keyboard shortcuts")
    await expect(shortcuts).to_be_visible()
    await axe(page)
    await page.keyboard.press("Escape")
    await expect(shortcuts).to_be_hidden()
    await page.keyboard.press("a")
    await expect(page.get_by_role("button", name="Approve")).to_be_focused()
    assert await site.call("waits", run_id=wait.run_id, kind="human")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("You approved")
    await site.ended(wait.run_id)


@pytest.mark.parametrize("dark", [False, True])
async def test_questions_are_accessible_and_fit_a_phone(
    site: Site, people: People, dark: bool
) -> None:
    for graph, input in (("mail", GO), ("mails", GO), ("pay", {}), ("plain", {})):
        wait = await site.ask(graph, f"{graph}-{dark}", input)
        page = await opened(site, people, wait, dark=dark, phone=True)
        for one in await page.locator("main details").all():
            await one.evaluate("one => one.open = true")
        await axe(page)
        await fits(page)
        reader = await opened(site, people, wait, "ron", dark=dark)
        await expect(reader.locator("main")).to_contain_text("You can read this question.")
        await axe(reader)
