"""The checks in every browser test: anything that a page does wrong fails the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.async_api import Browser

from tests.browser.chromium import People, axe, fits
from tests.support.polling import auntil

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

FRAME = """<!doctype html><html lang="en"><title>t</title>
<meta name="viewport" content="width=device-width"><main><h1>h</h1>{}</main></html>"""
PAGES = {
    "/good": "<p>Nothing to complain about.</p>",
    "/exception": "<script>null.x</script>",
    "/console": "<script>console.error('broken')</script>",
    "/dialog": "<script>alert(1)</script>",
    "/outside": '<img src="http://localhost:9/x.png" alt="">',
    "/failing": '<img src="/500" alt="">',
    "/unnamed": '<input type="text">',
    "/wide": "<pre>" + "x" * 2000 + "</pre>",
}
SAID = {
    "/exception": "exception: .*null",
    "/console": "broken",
    "/dialog": "dialog: 1",
    "/outside": "outside request: GET http://localhost:9/x.png",
    "/failing": "status of 500: GET",
    "/policy": "Content Security Policy",
}


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_strict = self.path == "/policy"
        body = PAGES.get(self.path, PAGES["/exception"] if is_strict else "").encode()
        self.send_response(200 if body else 500 if self.path == "/500" else 204)
        self.send_header("Content-Type", "text/html")
        if is_strict:
            self.send_header("Content-Security-Policy", "script-src 'self'")
        self.end_headers()
        self.wfile.write(FRAME.format(body.decode()).encode() if body else b"")

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("path", SAID)
async def test_what_a_page_does_wrong_is_noticed(chromium: Browser, site: str, path: str) -> None:
    people = People(chromium)
    with people.expects(SAID[path]):
        await people.visit(site + path)
        await auntil(lambda: people.complaints)
    people._expected.clear()
    with pytest.raises(AssertionError):
        await people.close()


async def test_a_good_page_passes_and_each_person_has_what_was_asked_for(
    people: People, site: str
) -> None:
    page = await people.visit(f"{site}/good", dark=True, phone=True)
    assert await page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert await page.evaluate("innerWidth") == 390
    await axe(page)
    silent = await people.visit(f"{site}/exception", javascript=False)
    assert await silent.title() == "t"


async def test_faults_of_accessibility_and_width_are_noticed(people: People, site: str) -> None:
    page = await people.visit(f"{site}/unnamed")
    with pytest.raises(AssertionError, match="label: Form elements must have labels"):
        await axe(page)
    page = await people.visit(f"{site}/wide", phone=True)
    with pytest.raises(AssertionError, match="pixels wide"):
        await fits(page)
