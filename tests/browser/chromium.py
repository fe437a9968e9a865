"""A real Chromium for the tests of pages, driven by Playwright; and axe-core, which judges them.

    page = await people.visit(server.url + "/ui", dark=True)
    await page.get_by_role("button", name="Approve").click()

Each visit is a person of their own, with cookies of their own. A test fails for everything that a
page complains about, even when the test did not look: an error on the console, an exception, a
refusal by the content-security policy, a dialog, a request to another origin, an answer of 500. A
test that provokes a refusal says so with `people.expects("403")`.

`python -m tests.browser.chromium` starts the Chromium that is installed, or says that none is.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Page,
    Request,
    Response,
    async_playwright,
)

from tests.clients.js_clients import INSTALLED, node

ARGUMENTS = (
    *("--no-sandbox", "--no-zygote", "--headless=shell", "--disable-dev-shm-usage"),
    *("--disable-gpu", "--font-render-hinting=none", "--hide-scrollbars"),
)
WIDE = (1280, 800)
PHONE = (390, 844)
PATIENCE = 20_000.0
"""Milliseconds that an element may take to appear, on a busy machine."""
GRAVE = ("serious", "critical")
"""Faults of accessibility that fail a test."""
AXE = """async () => (await axe.run(document, {
  resultTypes: ["violations"],
  runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
})).violations.map(({ id, impact, help, nodes }) => ({
  id, impact, help, nodes: nodes.map((node) => node.html.slice(0, 200)),
}))"""


@asynccontextmanager
async def chromium_started(**environment: str) -> AsyncIterator[Browser]:
    """The system's Chromium, or else npm's. Raises if there is none."""
    path: str = node("chromium.mjs")
    given: dict[str, str | float | bool] = {**os.environ, **environment}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=ARGUMENTS, env=given)
        try:
            yield browser
        finally:
            await browser.close()


class People:
    """The people who visit pages in one test."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._origins: set[str] = set()
        self._expected: list[str] = []
        self.complaints: list[str] = []

    async def visit(
        self,
        url: str,
        *,
        dark: bool = False,
        phone: bool = False,
        javascript: bool = True,
        **options: Any,
    ) -> Page:
        """The page that a new person opens. Its origin is where requests may go.

        `options` are those of Playwright's `new_context`, such as `timezone_id`.
        """
        person = await self.person(dark=dark, phone=phone, javascript=javascript, **options)
        page = await person.new_page()
        self.may_ask(url)
        await page.goto(url)
        return page

    async def person(
        self, *, dark: bool = False, phone: bool = False, javascript: bool = True, **options: Any
    ) -> BrowserContext:
        """A person without a page yet."""
        width, height = PHONE if phone else WIDE
        context = await self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            has_touch=phone,
            is_mobile=phone,
            java_script_enabled=javascript,
            reduced_motion="reduce",
            locale="en-GB",
            **options,
        )
        context.set_default_timeout(PATIENCE)
        self._contexts.append(context)
        context.on("page", self._watch)
        context.on("request", self._check_request)
        context.on("response", self._check_response)
        context.on("console", self._check_console)
        context.on("dialog", self._dismiss)
        context.on("weberror", lambda fault: self._complain(f"exception: {fault.error}"))
        return context

    def may_ask(self, url: str) -> None:
        """Allow requests to the origin of an address."""
        self._origins.add(_origin(url))

    @contextmanager
    def expects(self, *patterns: str) -> Iterator[None]:
        """Allow complaints that match one of these patterns, for the rest of the test; at least
        one must have come by the end of the block."""
        self._expected += patterns
        before = len(self.complaints)
        yield
        seen = self.complaints[before:]
        for pattern in patterns:
            assert any(re.search(pattern, one) for one in seen), f"no {pattern!r} in {seen}"

    async def leave(self) -> None:
        """Close every page: before a server ends, whose live connections it would cut."""
        while self._contexts:
            await self._contexts.pop().close()

    async def close(self) -> None:
        """Close every page, and fail for what was complained about."""
        await self.leave()
        assert not self.unexpected(), "\n".join(self.unexpected())

    def unexpected(self) -> list[str]:
        """Complaints that no test expected."""
        return [
            one for one in self.complaints if not any(re.search(p, one) for p in self._expected)
        ]

    def _complain(self, said: str) -> None:
        self.complaints.append(said)

    def _watch(self, page: Page) -> None:
        page.on("websocket", lambda socket: self._complain(f"websocket: {socket.url}"))
        page.on("crash", lambda _: self._complain("the page crashed"))

    def _check_request(self, request: Request) -> None:
        inside = request.url.startswith(("data:", "blob:", "about:"))
        if not inside and _origin(request.url) not in self._origins:
            self._complain(f"outside request: {request.method} {request.url}")

    def _check_response(self, response: Response) -> None:
        if response.status >= 500:
            self._complain(f"status of {response.status}: {response.request.method} {response.url}")

    def _check_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._complain(f"{message.text} ({message.location.get('url', '')})")

    async def _dismiss(self, dialog: Dialog) -> None:
        self._complain(f"dialog: {dialog.message}")
        await dialog.dismiss()


async def axe(page: Page) -> None:
    """Fail for serious and critical faults of accessibility."""
    await page.evaluate(_axe())
    found: list[dict[str, Any]] = await page.evaluate(AXE)
    grave = [one for one in found if one["impact"] in GRAVE]
    said = [f"{one['id']}: {one['help']}\n    " + "\n    ".join(one["nodes"]) for one in grave]
    assert not grave, f"{page.url}:\n" + "\n".join(said)


async def fits(page: Page) -> None:
    """Fail for a page that is wider than the screen: a phone would scroll sideways."""
    root = "document.documentElement"
    wide, screen = await page.evaluate(f"[{root}.scrollWidth, {root}.clientWidth]")
    assert wide <= screen, f"{page.url} is {wide} pixels wide on a screen of {screen}"


@cache
def _axe() -> str:
    return (INSTALLED / "node_modules" / "axe-core" / "axe.min.js").read_text()


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


async def _try() -> None:
    async with chromium_started() as browser:
        print(f"Chromium {browser.version} starts, and axe-core has {len(_axe()):,} bytes.")


if __name__ == "__main__":
    asyncio.run(_try())
