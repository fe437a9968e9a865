"""The page of a running run: its worker is killed, another takes over, and people act."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

import perdure
from perdure.types import State
from tests.browser.chromium import People, axe, fits
from tests.browser.ui_site import site_of
from tests.support.fork_server import ForkServer
from tests.support.polling import auntil
from tests.support.reviewed_agents import asking
from tests.support.ui_worker_child import NAME, graph

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def test_the_timeline_shows_a_sigkill_and_the_takeover_without_a_reload(
    people: People, sqlite_url: str, fork_server: ForkServer, tmp_path: Path
) -> None:
    first = fork_server.start("ui_worker_child:work", url=sqlite_url)
    with site_of(sqlite_url, {NAME: graph()}, worker=False).serving() as site:
        run = await site.call("start", NAME, {"folder": str(tmp_path)}, thread_id="p-1")
        page = await site.visit(people, "root", f"/runs/{run.id}")
        await page.evaluate("window.same = true")  # gone after a reload
        await auntil((tmp_path / "loading").exists, "the middle of a step")
        await expect(page.locator("h1 .badge")).to_have_text("running")
        picture = page.locator("figure.timeline")
        await expect(picture).to_contain_text(f":{first.pid}")
        first.kill()
        (tmp_path / "loading").unlink()
        with fork_server.child("ui_worker_child:work", url=sqlite_url) as second:
            await auntil((tmp_path / "loading").exists, "the takeover")
            await expect(picture).to_contain_text(f":{second.pid}")
            await expect(picture).to_contain_text("recovered")
            await axe(page)
            (tmp_path / "go").touch()
            await expect(page.locator("h1 .badge")).to_have_text("done")
            await expect(page.locator("#now")).to_contain_text("Done.")
        assert await page.evaluate("window.same")
        await people.leave()


async def test_typed_text_survives_live_updates(people: People, sqlite_url: str) -> None:
    graphs = {"parcels": asking(lambda: perdure.wait_for("scanned"))}
    with site_of(sqlite_url, graphs).serving() as site:
        run = await site.call("start", "parcels", {}, thread_id="p-2")
        await site.rests(run.id)
        page = await site.visit(people, "root", f"/runs/{run.id}")
        await page.locator("summary", has_text="Cancel").click()
        await page.get_by_label("Reason").fill("The customer")
        await site.call("comment", run.id, "Looking into it.", by="ana")
        await expect(page.locator("main")).to_contain_text("Looking into it.")
        await site.call("pause", run.id, by="ana")
        await expect(page.locator("h1 .badge")).to_have_text("paused")
        await expect(page.get_by_label("Reason")).to_have_value("The customer")
        await page.get_by_label("Reason").press_sequentially(" moved.")
        await page.get_by_role("button", name="Cancel run").click()
        await expect(page.locator("h1 .badge")).to_have_text("cancelled")
        done = await site.call("get", run.id)
        assert (done.state, done.reason) == (State.CANCELLED, "The customer moved.")
        await people.leave()


async def test_each_part_of_the_picture_opens_its_details(people: People, sqlite_url: str) -> None:
    graphs = {"letters": asking(lambda: perdure.ask({"draft": "Dear Mia"}))}
    with site_of(sqlite_url, graphs).serving() as site:
        wait = await site.ask("letters", "d-1")
        page = await site.visit(people, "ron", f"/runs/{wait.run_id}")
        await page.locator("figure.timeline svg a[href*='open=']").last.click()
        await expect(page.locator("#detail")).not_to_be_empty()
        await page.get_by_role("link", name="Waits").click()
        assert "tab=waits" in page.url
        await expect(page.locator("main")).to_contain_text("Dear Mia")
        phone = await site.visit(people, "ron", f"/runs/{wait.run_id}", phone=True, dark=True)
        await fits(phone)
        await axe(phone)
        silent = await site.visit(people, "ron", f"/runs/{wait.run_id}", javascript=False)
        await silent.locator("figure.timeline svg a[href*='open=']").last.click()
        await expect(silent.locator("#detail")).not_to_be_empty()
        await people.leave()
