"""What a web page can make a browser do to a server: under which names it answers, which pages may
call it, and what a browser may do with its answers."""

from __future__ import annotations

import asyncio
import contextlib
import io
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import perdure
from tests.support.agents import Log, chain, opened
from tests.support.commands import main
from tests.support.http import client_of

PUBLIC = ["/ok", "/info", "/metrics", "/openapi.json"]
THREAD, NOTHING = "0b9a9a2e-6d0f-4f6e-9a0e-000000000001", "0b9a9a2e-6d0f-4f6e-9a0e-000000000002"
CROSS_SITE = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
FRAME = {**LINK, "sec-fetch-dest": "iframe"}


def work(state: Log) -> Log:
    return {"log": ["worked"]}


async def new_token(rt: perdure.Runtime) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        command = ["tokens", "create", "ci", "--scope", "read", "--at", rt.url]
        assert await asyncio.to_thread(main, command) == 0
    return said.getvalue().strip()


# -- names


@pytest.mark.parametrize("path", [*PUBLIC, "/ui/sign-in", "/ui/static/icon.svg", "/ui/link"])
async def test_an_allowed_host_covers_every_public_route(sqlite_url: str, path: str) -> None:
    async with opened(sqlite_url, observe=perdure.observe.Metrics()) as rt:
        await new_token(rt)
        async with client_of(rt.asgi(hosts=["agents.example.com"], ui=True, worker=False)) as http:
            for method in ("GET", "HEAD") if path in ("/ok", "/metrics") else ("GET",):
                answer = await http.request(method, path, headers={"host": "evil.example"})
                assert answer.status_code == 403, path
                for name in ("agents.example.com", "localhost:8000", "10.1.2.3:8000", "[::1]"):
                    answer = await http.request(method, path, headers={"host": name})
                    assert answer.status_code in (200, 403 if path == "/ui/link" else 200), name


@pytest.mark.parametrize("path", [*PUBLIC, f"/threads/{THREAD}", "/ui/sign-in"])
async def test_a_name_that_a_page_made_resolve_to_an_open_server_is_refused(
    sqlite_url: str, path: str
) -> None:
    async with opened(sqlite_url) as rt:
        app = rt.asgi(worker=False, insecure=True, ui=True)
        async with client_of(app, address="10.0.0.7") as http:
            answer = await http.get(path, headers={"host": "evil.example:8000"})
            assert answer.status_code == 403
            assert "--allow-host evil.example" in answer.text


# -- answers


async def test_a_browser_neither_keeps_nor_guesses_what_an_answer_is(sqlite_url: str) -> None:
    async with opened(sqlite_url, observe=perdure.observe.Metrics()) as rt:
        rt.register(chain(work), name="agent")
        run = await rt.start("agent", {"log": []}, thread_id=THREAD)
        await rt.tick()
        app = rt.asgi(worker=False, ui=True)
        async with client_of(app, lifespan=True) as http:
            asked: list[tuple[str, str, Any, int]] = [
                *(("GET", path, None, 200) for path in PUBLIC),
                ("GET", f"/threads/{THREAD}/state", None, 200),
                ("GET", f"/threads/{THREAD}/runs/{run.id}/stream", None, 200),
                ("GET", f"/threads/{NOTHING}", None, 404),
                ("GET", "/nothing/at/all", None, 404),
                ("DELETE", "/info", None, 405),
                ("POST", "/threads/search", b"{", 422),
                ("POST", "/threads/search", b"x" * 9_000_000, 413),
                ("DELETE", f"/threads/{THREAD}", None, 204),
                ("POST", "/cron/tick", None, 404),
                ("GET", "/ui/sign-in", None, 200),
                ("GET", "/ui/nothing", None, 303),
            ]
            for method, path, body, status in asked:
                content = {"content": body} if isinstance(body, bytes) else {"json": body}
                headers = {"content-type": "application/json"} if body else {}
                given: Any = {**content, "headers": headers} if body is not None else {}
                answer = await http.request(method, path, **given)
                assert answer.status_code == status, (path, answer.text)
                assert answer.headers["x-content-type-options"] == "nosniff", path
                assert answer.headers["cache-control"] == "no-store", path
            kept = await http.get("/ui/static/icon.svg")
            assert kept.headers["cache-control"] == "no-cache"


async def test_the_answers_of_an_application_around_it_are_its_own(sqlite_url: str) -> None:
    async def own(request: Request) -> PlainTextResponse:
        return PlainTextResponse("mine", headers={"Cache-Control": "public"})

    async with opened(sqlite_url) as rt:
        routes = [Route("/mine", own), *rt.router(worker=False).routes]
        async with client_of(Starlette(routes=routes)) as http:
            answer = await http.get("/mine")
            assert answer.headers["cache-control"] == "public"
            assert "x-content-type-options" not in answer.headers
            assert (await http.get("/info")).headers["cache-control"] == "no-store"


# -- other sites


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("how", [CROSS_SITE, LINK, FRAME], ids=["script", "link", "frame"])
async def test_a_page_of_another_site_cannot_use_the_api(
    sqlite_url: str, how: dict[str, str], method: str
) -> None:
    path = f"/threads/{THREAD}" if method == "GET" else "/threads/search"
    async with opened(sqlite_url) as rt, client_of(rt.asgi(worker=False)) as http:
        answer = await http.request(method, path, headers=how)
        assert answer.status_code == 403
        assert "--cors" in answer.json()["detail"]
        for site in ("same-origin", "none", "same-site"):
            answer = await http.request(method, path, headers={"sec-fetch-site": site})
            assert answer.status_code in (200, 404, 422)


async def test_a_page_of_another_site_cannot_use_the_cookies_of_an_application(
    sqlite_url: str,
) -> None:
    from langgraph_sdk import Auth

    auth = Auth()

    @auth.authenticate
    async def signed_in(headers: dict[bytes, bytes]) -> str:
        assert b"session" in headers.get(b"cookie", b"")
        return "ada"

    async with opened(sqlite_url) as rt:
        token = await new_token(rt)
        app = rt.asgi(worker=False, auth=auth, cors=["https://app.example"])
        async with client_of(app, cookies={"session": "1"}) as http:
            assert (await http.post("/threads/search", json={})).status_code == 200
            for how in (CROSS_SITE, LINK, FRAME, {**CROSS_SITE, "origin": "https://evil.example"}):
                answer = await http.post("/threads/search", json={}, headers=how)
                assert answer.status_code == 403
            allowed = {**CROSS_SITE, "origin": "https://app.example"}
            answer = await http.post("/threads/search", json={}, headers=allowed)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
            # No browser adds a token by itself: what has one was meant.
            for meant in ({"x-api-key": token}, {"authorization": "Bearer of-the-application"}):
                headers = {**CROSS_SITE, **meant}
                answer = await http.post("/threads/search", json={}, headers=headers)
                assert answer.status_code == 200


@pytest.mark.parametrize("path", [*PUBLIC, "/ui/sign-in", "/ui/", "/ui/static/icon.svg"])
async def test_a_link_to_a_page_may_be_followed_from_anywhere_but_nothing_else(
    sqlite_url: str, path: str
) -> None:
    async with opened(sqlite_url, observe=perdure.observe.Metrics()) as rt:
        await new_token(rt)
        async with client_of(rt.asgi(worker=False, ui=True)) as http:
            assert (await http.get(path, headers=LINK)).status_code in (200, 303)
            for how in (CROSS_SITE, FRAME, {**LINK, "sec-fetch-mode": "cors"}):
                assert (await http.get(path, headers=how)).status_code == 403


async def test_a_signed_link_opens_from_a_mail_and_its_form_only_from_its_page(
    sqlite_url: str,
) -> None:
    def approve(state: Log) -> Log:
        return {"log": [str(perdure.ask({"draft": "x" * 30_000}))]}

    async with opened(sqlite_url, public_url="http://localhost") as rt:
        rt.register(chain(approve), name="agent")
        await rt.start("agent", {"log": []}, thread_id="t")
        await rt.tick()
        [wait] = await rt.waits()
        link = await rt.link(wait.id, to="ana@example.com")
        async with client_of(rt.asgi(worker=False, ui=True)) as http:
            assert (await http.get(link, headers=LINK)).status_code == 200
            for how in (CROSS_SITE, LINK):
                assert (await http.post(link, headers=how)).status_code == 403
        assert len(await rt.waits()) == 1  # nothing was answered


# -- http and https


class Proxied:
    """A proxy before the application, which terminates TLS and says what of it is known."""

    def __init__(self, app: Any, **headers: str) -> None:
        self.app = app
        self.headers = [
            (name.replace("_", "-").encode(), v.encode()) for name, v in headers.items()
        ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if "headers" in scope:
            scope = {**scope, "headers": [*scope["headers"], *self.headers]}
        await self.app(scope, receive, send)


@pytest.mark.parametrize(
    ("headers", "base", "origin", "passes"),
    [
        ({}, "http://localhost:8000", "http://localhost:8000", True),
        ({}, "http://localhost:8000", "https://localhost:8000", False),
        ({}, "http://localhost:8000", "http://localhost:9000", False),
        ({}, "http://localhost", "http://localhost:80", True),
        ({}, "https://localhost", "https://localhost", True),
        ({}, "https://localhost", "http://localhost", False),
        ({}, "https://localhost", "https://localhost:443", True),
        ({}, "http://localhost", "null", False),
        ({}, "http://localhost", "http://", False),
        ({}, "http://localhost", "http://localhost:x", False),
        ({"x_forwarded_proto": "https"}, "http://localhost", "https://localhost", True),
        ({"x_forwarded_proto": "https"}, "http://localhost", "http://localhost", False),
        ({"x_forwarded_proto": "https, http"}, "http://localhost", "http://localhost", False),
        ({"x_forwarded_proto": "http"}, "http://localhost", "https://localhost", False),
        ({"x_forwarded_for": "1.2.3.4"}, "http://localhost", "https://localhost", True),
        ({"x_forwarded_for": "1.2.3.4"}, "http://localhost", "https://evil.example", False),
    ],
)
async def test_http_and_https_are_different_origins(
    sqlite_url: str, headers: dict[str, str], base: str, origin: str, passes: bool
) -> None:
    async with opened(sqlite_url) as rt:
        token = await new_token(rt)
        app = Proxied(rt.asgi(worker=False, ui=True), **headers)
        async with client_of(app, base_url=base) as http:
            page = (await http.get("/ui/sign-in")).text
            csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
            assert csrf
            cookie = "; ".join(f"{one.name}={one.value}" for one in http.cookies.jar)
            answer = await http.post(
                "/ui/sign-in",
                data={"csrf": csrf, "token": token},
                headers={"origin": origin, "cookie": cookie},
            )
            assert answer.status_code == (303 if passes else 403), answer.text


async def test_an_open_server_takes_no_call_from_the_other_scheme(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, client_of(rt.asgi(worker=False)) as http:
        for origin, status in {"http://localhost": 200, "https://localhost": 403}.items():
            headers = {"origin": origin}
            answer = await http.post("/threads/search", json={}, headers=headers)
            assert answer.status_code == status
