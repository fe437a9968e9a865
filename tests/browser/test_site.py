"""The documentation as a site: it builds without a warning, loads nothing from outside, and its
search finds things.

MkDocs warns of links and anchors that lead nowhere, of pages that the navigation lacks, and of
parameters that a docstring and its signature disagree about.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlencode

import pytest

from tests.browser.chromium import People, fits

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in built.stderr.splitlines() if not line.startswith("INFO")]
    assert built.returncode == 0, "\n".join(said)
    assert not [line for line in said if line.startswith(("WARNING", "ERROR"))], "\n".join(said)
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


LOOKED_FOR = {
    "approve": "approvals|inbox|langchain-agents",
    "idempotency": "effects|reference/effect|guarantees",
    "resume": "saver|concepts|reference|migrating|command-line",
    "human in the loop": "langchain-agents|approvals",
    "cron": "schedules|deploying",
    "kill -9": "getting-started|guarantees|index",
    "LeaseLost": "errors|troubleshooting|concepts",
}


async def test_the_search_finds_what_people_look_for(address: str, people: People) -> None:
    page = await people.visit(f"{address}/index.html")
    for words, expected in LOOKED_FOR.items():
        await page.goto(f"{address}/index.html?{urlencode({'q': words})}")
        results = page.locator(".md-search-result__item > a")
        await results.first.wait_for(state="attached")
        found = [await link.get_attribute("href") or "" for link in (await results.all())[:5]]
        assert any(re.search(expected, href) for href in found), f"{words}: {found}"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_pages_of_the_site_fit_a_phone_and_show_their_pictures(
    address: str, people: People, dark: bool
) -> None:
    for name in ("index", "concepts", "guides/effects", "reference/runtime", "benchmarks/index"):
        page = await people.visit(f"{address}/{name}.html", dark=dark, phone=True)
        await fits(page)
        broken = await page.evaluate(
            "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        )
        assert not broken
