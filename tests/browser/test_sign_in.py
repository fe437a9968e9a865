"""Signing in and out in a real browser: by the printed address, by a token, and without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.async_api import Page, expect

import perdure
from perdure.commands import tokens
from perdure.server.ui.site import sign_in_path
from tests.browser.chromium import People, axe, fits
from tests.support.agent_server import served

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


@contextmanager
def pages(url: str, *scopes: str, **options: Any) -> Iterator[tuple[str, str]]:
    """The address of the pages, and the token of an account with these scopes."""
    runtime = perdure.Runtime(url)
    token = ""
    if scopes:
        create = tokens.create(runtime.engine, "ana", scopes)
        token = runtime.journal.run(create)
    with runtime, served(runtime, ui=True, **options) as server:
        yield f"{server.url}/ui", token


async def signed_in(page: Page) -> None:
    await expect(page.get_by_role("heading", level=1)).to_have_text("Inbox")


@pytest.mark.parametrize("javascript", [True, False])
async def test_a_token_signs_in_and_out(people: People, sqlite_url: str, javascript: bool) -> None:
    with pages(sqlite_url, "answer") as (address, token):
        page = await people.visit(f"{address}/inbox?graph=x", javascript=javascript)
        assert page.url.endswith("/sign-in?next=/inbox%3Fgraph%3Dx")
        with people.expects("401"):
            await page.get_by_label("Token").fill("perdure_wrong")
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("alert")).to_contain_text("not valid")
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Sign in").click()
        await signed_in(page)
        assert page.url.endswith("/inbox?graph=x")
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("status")).to_have_text("You are signed out.")
        await page.go_back()
        await page.reload()
        assert "/sign-in" in page.url


async def test_the_printed_address_signs_in_and_its_key_is_gone_from_the_history(
    people: People, sqlite_url: str
) -> None:
    runtime = perdure.Runtime(sqlite_url)
    path = runtime.blocking.run(sign_in_path(runtime))
    with runtime, served(runtime, ui=True) as server:
        page = await people.visit(f"{server.url}{path}")
        await signed_in(page)
        assert "key" not in page.url
        await page.reload()
        await signed_in(page)
        await page.go_back()
        assert "key" not in page.url


@pytest.mark.parametrize("dark", [True, False])
async def test_the_sign_in_page_is_accessible(people: People, sqlite_url: str, dark: bool) -> None:
    with pages(sqlite_url, "answer") as (address, _):
        page = await people.visit(address, dark=dark, phone=True)
        await axe(page)
        await fits(page)
