"""Every page in a real browser, full of texts that attack: none is executed, no page asks another
origin, axe-core finds no serious fault in light or dark, and a phone need not scroll sideways.

`tests/server/ui/test_hostile_text.py` judges the HTML of every page for many more of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page

import perdure
from tests.browser.chromium import People, axe, fits
from tests.browser.ui_site import Site, site_of
from tests.support.hostile_journal import fill
from tests.support.sweep import EVERY_POINT, examples
from tests.support.ui_addresses import FRAGMENTS, addresses
from tests.support.xss import PAYLOADS

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(0)]

SEEDS = examples(len(PAYLOADS), 2)
LOOKS = ({"dark": False, "phone": False}, {"dark": True, "phone": True})


async def poke(page: Page) -> None:
    """Do what would set a planted handler off: hover, focus, open what is folded."""
    await page.evaluate(
        """for (const one of document.querySelectorAll("main details")) one.open = true;
           for (const one of document.querySelectorAll("main a, main input, main button")) {
             one.focus(); one.dispatchEvent(new MouseEvent("mouseover", { bubbles: true })); }
           scrollTo(0, 0);"""
    )


Visited = tuple[Site, list[list[str]]]


@pytest_asyncio.fixture(loop_scope="session")
async def visited(sqlite_url: str) -> AsyncIterator[Visited]:
    """A site, and the addresses of each route."""
    async with perdure.Runtime(sqlite_url) as rt:
        await fill(rt, range(SEEDS))
        places = await addresses(rt)
    with site_of(sqlite_url, {}, worker=False).serving() as site:
        yield site, [paths for route, paths in places.items() if route not in FRAGMENTS]


@pytest.mark.parametrize("look", range(len(LOOKS)), ids=["light", "dark phone"])
async def test_every_page_is_safe_and_accessible(
    people: People, visited: Visited, look: int
) -> None:
    site, routes = visited
    some = [[paths[look * (len(paths) - 1)]] for paths in routes]  # another one in each look
    paths = [path for one in (routes if EVERY_POINT else some) for path in one]
    page = await site.visit(people, "root", "/inbox", **LOOKS[look])
    faults: list[str] = []
    for path in paths:
        await page.goto(f"{site.address}{path.removeprefix('/ui')}")
        await poke(page)
        assert await page.evaluate("window.__xss") is None, path
        assert people.unexpected() == [], path
        for check in (axe, fits):
            try:
                await check(page)
            except AssertionError as fault:
                faults.append(str(fault))
    await people.leave()
    assert not faults, "\n\n".join(faults)
