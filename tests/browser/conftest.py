"""One Chromium for each xdist worker, in one event loop; people of their own for each test.

Every test here runs in that loop: its module has `pytest.mark.asyncio(loop_scope="session")`.
"""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser

from tests.browser.chromium import People, chromium_started


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    async with chromium_started() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def people(chromium: Browser) -> AsyncIterator[People]:
    found = People(chromium)
    yield found
    await found.close()
