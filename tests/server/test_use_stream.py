"""`useStream` in a real browser: both of LangGraph's hooks, on pages of our origin and of another.

A person chats, is asked a question, stops an answer, and reloads the page in the middle of one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

import perdure
from tests.clients.graphs import GRAPHS
from tests.clients.js_clients import agent_server, node
from tests.support.agent_server import serving
from tests.support.databases import DATABASES
from tests.support.sweep import EVERY_POINT, sample

pytestmark = pytest.mark.slow

PAGES = ("rest-1.12", "rest-latest", "protocol")
COUNT = "".join(f"{n} " for n in range(1, 61))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the bundled pages."""
    folder = tmp_path_factory.mktemp("pages")
    assert node("bundle.mjs", str(folder)) == list(PAGES)
    return folder


@pytest.fixture(params=DATABASES[:2])
def either_url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@contextmanager
def another_origin(folder: Path) -> Iterator[str]:
    """A plain web server of the pages, which knows nothing of ours."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def check(story: dict[str, Any]) -> None:
    """What a person must have seen."""
    assert story["failed"] == 0, story
    first, second = story["chat"]["first"], story["chat"]["second"]
    assert first["messages"] == [["human", "hello there"], ["ai", "You said: hello there "]]
    assert second["messages"][2:] == [["human", "and again"], ["ai", "You said: and again "]]
    asked = story["question"]
    assert asked["asked"] == "May I?"
    assert asked["messages"][-1] == ["ai", "You said: the answer is yes "]
    assert asked["state"]["next"] == []
    assert story["stop"]["status"] == "interrupted"
    assert story["stop"]["shown"].startswith("1 2 3 4 5 ")  # tokens are shown as they come
    assert "400" not in story["stop"]["shown"]
    reloaded = story["reload"]
    assert reloaded["messages"] == [["human", "count 60"], ["ai", COUNT]]
    assert reloaded["runs"] == 1
    assert len(reloaded["seen"]) > 5, "the page waited for the end instead of reading on"
    for text in reloaded["seen"]:
        assert COUNT.startswith(text), f"a token was lost or repeated: {text!r}"
    assert story["complaints"] == []


@pytest.mark.parametrize("page", sample(PAGES, 2))
def test_a_page_of_an_allowed_origin_uses_the_hook(either_url: str, pages: Path, page: str) -> None:
    with another_origin(pages) as origin, agent_server(either_url, cors=[origin]) as address:
        check(node("use_stream.mjs", f"{origin}/{page}.html", address))


@pytest.mark.parametrize("page", PAGES if EVERY_POINT else PAGES[1:2])
def test_a_page_of_the_embedding_application_uses_the_hook(
    sqlite_url: str, pages: Path, page: str
) -> None:
    runtime = perdure.Runtime(sqlite_url)
    for name, graph in GRAPHS.items():
        runtime.register(graph, name=name)
    app = FastAPI()
    app.include_router(runtime.router())
    app.mount("/pages", StaticFiles(directory=pages))
    with serving(app) as server:
        check(node("use_stream.mjs", f"{server.url}/pages/{page}.html", server.url))


def test_a_page_of_an_origin_that_is_not_allowed_gets_nothing(sqlite_url: str, pages: Path) -> None:
    with another_origin(pages) as origin, agent_server(sqlite_url, cors=[]) as address:
        story = node("use_stream.mjs", f"{origin}/rest-1.12.html", address, "refused")
    assert "ai" not in [kind for kind, _ in story["refused"]["messages"]]
    assert any("CORS" in line for line in story["complaints"])
