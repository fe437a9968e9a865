"""What other sites cannot make a browser do, and what an account may not do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

import perdure
from perdure.server.ui.page_route import POLICY, browser_cookie, session_cookie
from tests.contract.test_page_scopes import posts
from tests.server.ui.html_judge import faults
from tests.support.agents import opened
from tests.support.http import account, csrf, filled, pages_of, signer_of, visiting

FORGED = "not sent by one of our pages"
HOME = "/ui/inbox"


# -- what every response says


async def test_every_response_has_the_same_strict_headers(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        await visitor.sign_in(await account(rt, "admin"))
        for route in pages_of(rt):
            if "/static/" in route.path or "GET" not in (route.methods or ()):
                continue
            if route.path.endswith(("/live", "/stream", "/events")):
                continue
            answer = await visitor.get(filled(route.path))
            headers = answer.headers
            assert answer.status_code < 500, (route.path, answer.text)
            assert headers["content-security-policy"] == POLICY, route.path
            assert headers["x-frame-options"] == "DENY"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "same-origin"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert headers["cache-control"] == "no-store", route.path
            assert "access-control-allow-origin" not in headers
            if headers.get("content-type", "").startswith("text/html"):
                assert headers["content-type"] == "text/html; charset=utf-8"
                assert faults(answer.text) == [], route.path


def test_the_policy_allows_nothing_but_our_own_files() -> None:
    assert POLICY == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; form-action 'self'; frame-ancestors 'none'; "
        "base-uri 'none'"
    )


async def test_pages_are_not_readable_by_other_origins_that_the_api_allows(sqlite_url: str) -> None:
    """`cors` lets pages of others use the API with a key, not these pages with cookies."""
    async with opened(sqlite_url) as rt:
        token = await account(rt, "admin")
        async with visiting(rt, cors=["https://ui.example"]) as visitor:
            await visitor.sign_in(token)
            answer = await visitor.get(headers={"Origin": "https://ui.example"})
            assert "access-control-allow-origin" not in answer.headers
            asked = {"Origin": "https://ui.example", "Access-Control-Request-Method": "POST"}
            before = await visitor.http.options(HOME, headers=asked)
            assert "access-control-allow-origin" not in before.headers


async def test_a_session_of_the_pages_does_not_open_the_api(sqlite_url: str) -> None:
    """The API checks no forms, so a cookie must not be enough for it."""
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        await visitor.sign_in(await account(rt, "admin"))
        name = session_cookie(await signer_of(rt))
        headers = {"cookie": f"{name}={visitor.http.cookies[name]}"}
        answer = await visitor.http.post("/threads", json={}, headers=headers)
        assert answer.status_code == 401


async def test_errors_are_pages_that_say_nothing_of_the_server(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        await visitor.sign_in(await account(rt, "admin"))
        for path in ("/nothing", "/<script>alert(1)</script>", "/runs/%00", "/%2e%2e/%2e%2e/etc"):
            answer = await visitor.get(path)
            assert answer.status_code in (404, 422), path
            assert faults(answer.text) == []
            for secret in ("Traceback", "sqlite", "site-packages", rt.url):
                assert secret not in answer.text


async def test_an_address_with_a_nul_is_refused_on_every_page(url: str) -> None:
    """PostgreSQL takes no such text, not even to look for it."""
    async with opened(url) as rt, visiting(rt) as visitor:
        await visitor.sign_in(await account(rt, "admin"))
        await visitor.get()
        signer = await signer_of(rt)
        browser = visitor.http.cookies[browser_cookie(signer)]
        for route in pages_of(rt):
            if (route.openapi_extra or {}).get("security") == []:  # it looks for nothing by name
                continue
            names = [one.alias for one in route.dependant.query_params]
            paths = [f"{filled(route.path)}?{name}=a%00b" for name in (*names, "item", "graph")]
            if "{" in route.path:
                paths.append(re.sub(r"\{[^}]*\}", "a%00b", route.path).removeprefix("/ui"))
            for path in paths:
                if "GET" in (route.methods or ()):
                    answer = await visitor.get(path)
                else:
                    answer = await visitor.post(path, {"csrf": signer.form_token(browser, "ana")})
                assert answer.status_code in (404, 422), (path, answer.text)
                assert faults(answer.text) == []


HALF = r"\ud83d"
"""Half of a character, as JSON writes it. No database stores it."""
POSITIONS = {
    "/effects": ("behind", f'[1,"{HALF}",1,"{HALF}"]'),
    "/effects?state=unknown": ("behind", f'[1,"{HALF}"]'),
    "/inbox": ("after", f'[1,"{HALF}"]'),
    "/outbox": ("behind", f'[1,"{HALF}"]'),
    "/reflections": ("behind", f'["{HALF}",1]'),
    "/runs": ("before", f'[1,"{HALF}"]'),
    "/run-list/live": ("top", f'[1,"{HALF}"]'),
    "/threads": ("before", f'[1,"{HALF}"]'),
}


@pytest.mark.parametrize("path", POSITIONS)
async def test_a_forged_position_in_a_list_is_refused(sqlite_url: str, path: str) -> None:
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        await visitor.sign_in(await account(rt, "admin"))
        name, position = POSITIONS[path]
        good = position.replace(HALF, "x")
        forged = [position, position.replace(HALF, r"\u0000"), good.replace("1", str(2**63), 1)]
        for one in (*forged, "[" * 1500, "[NaN]", '{"a":1,"a":2}'):
            answer = await visitor.get(path, params={name: one, **dict(httpx.URL(path).params)})
            assert answer.status_code == 422, (one, answer.text)
            assert faults(answer.text) == []


# -- forged forms


FORGERIES: tuple[tuple[str, dict[str, str | None], dict[str, str]], ...] = (
    ("no token", {"csrf": None}, {}),
    ("a wrong token", {"csrf": "0" * 64}, {}),
    ("a token with other characters", {"csrf": "é"}, {}),
    ("another origin", {}, {"Origin": "https://evil.example"}),
    ("a page without an origin", {}, {"Origin": "null"}),
    ("another port", {}, {"Origin": "http://localhost:3000"}),
    ("another site", {}, {"Sec-Fetch-Site": "cross-site"}),
    ("another subdomain", {}, {"Sec-Fetch-Site": "same-site"}),
)


async def test_a_form_from_another_site_is_refused(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        await visitor.sign_in(await account(rt, "admin"))
        good = csrf(await visitor.get())
        for why, change, headers in FORGERIES:
            changed = {"csrf": good, **change}
            fields = {name: one for name, one in changed.items() if one is not None}
            answer = await visitor.post("/sign-out", fields, **headers)
            assert answer.status_code == 403, why
            assert FORGED in answer.text
            assert await visitor.is_signed_in()
        ours = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
        assert (await visitor.post("/sign-out", {"csrf": good}, **ours)).status_code == 303


async def test_the_token_of_another_persons_form_is_refused(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        tokens = [await account(rt, "admin", name=name) for name in ("ana", "eve")]
        signer = await signer_of(rt)
        app = rt.asgi(ui=True, worker=False)
        async with visiting(rt, app) as ana, visiting(rt, app) as eve:
            await ana.sign_in(tokens[0])
            await eve.sign_in(tokens[1])
            for path in posts(rt):
                theirs = signer.form_token(eve.http.cookies[browser_cookie(signer)], "eve")
                answer = await ana.post(filled(path), {"csrf": theirs})
                assert answer.status_code == 403, path
                assert FORGED in answer.text


async def test_a_browser_without_its_cookie_has_no_valid_token(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        await account(rt, "admin")
        signer = await signer_of(rt)
        answer = await visitor.post("/sign-in", {"csrf": signer.form_token("", ""), "token": "x"})
        assert answer.status_code == 403


async def test_a_method_cannot_be_overridden(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        await visitor.sign_in(await account(rt, "admin"))
        good = csrf(await visitor.get())
        for params in ({"_method": "POST"}, {"csrf": good, "_method": "post"}):
            headers = {"X-HTTP-Method-Override": "POST", "X-Method-Override": "POST"}
            answer = await visitor.get("/sign-out", params=params, headers=headers)
            assert answer.status_code in (404, 405)
        for method in ("PUT", "PATCH", "DELETE"):
            answer = await visitor.http.request(method, "/ui/sign-out", data={"csrf": good})
            assert answer.status_code in (404, 405), method
        assert await visitor.is_signed_in()


# -- who may do what


async def test_pages_of_an_account_show_only_what_it_may_do(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        await visitor.sign_in(await account(rt, "answer"))
        page = await visitor.get()
        assert "/ui/outbox" not in page.text
        assert "/ui/runs" in page.text


async def test_a_host_name_that_is_not_allowed_gets_no_page(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        token = await account(rt, "read")
        async with visiting(rt, hosts=["agents.example"]) as visitor:
            await visitor.sign_in(token)
            for host, status in (("agents.example", 200), ("evil.example", 403)):
                page = await visitor.get("/sign-in", headers={"Host": host})
                assert page.status_code == status
                assert faults(page.text) == []
        async with visiting(rt, insecure=True) as visitor:
            page = await visitor.get(headers={"Host": "evil.example"})
            assert page.status_code == 403


# -- wherever they are mounted


def included(rt: perdure.Runtime, prefix: str = "") -> FastAPI:
    app = FastAPI()
    app.include_router(rt.router(ui=True, worker=False), prefix=prefix)
    return app


def in_starlette(rt: perdure.Runtime, prefix: str = "") -> Starlette:
    routes = rt.router(ui=True, worker=False).routes
    return Starlette(routes=[Mount(prefix, routes=routes)] if prefix else routes)


def mounted(rt: perdure.Runtime) -> FastAPI:
    app = FastAPI()
    app.mount("/app", rt.asgi(ui=True, worker=False))
    return app


def removing(prefix: str, app: Any) -> Any:
    """A proxy that removes a prefix, and a server that was told so (`--root-path`)."""

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        inner = scope["path"].removeprefix(prefix)
        await app({**scope, "path": inner, "raw_path": inner, "root_path": prefix}, receive, send)

    return proxy


PLACES: dict[str, tuple[str, Callable[[perdure.Runtime], Any]]] = {
    "included": ("/ui", included),
    "included under a prefix": ("/agents/ui", lambda rt: included(rt, "/agents")),
    "in starlette": ("/ui", in_starlette),
    "under a mount of starlette": ("/a/b/ui", lambda rt: in_starlette(rt, "/a/b")),
    "a mounted application": ("/app/ui", mounted),
    "behind a proxy that removes a prefix": (
        "/outside/ui",
        lambda rt: removing("/outside", included(rt)),
    ),
}


@pytest.mark.parametrize("how", PLACES)
async def test_the_protections_hold_wherever_the_pages_are(sqlite_url: str, how: str) -> None:
    async with opened(sqlite_url) as rt:
        token = await account(rt, "answer")
        base, make = PLACES[how]
        app = make(rt)
        async with visiting(rt, app, base=base) as visitor:
            first = await visitor.get("/inbox?graph=x")
            assert first.headers["location"] == f"{base}/sign-in?next=/inbox%3Fgraph%3Dx"
            page = await visitor.get("/sign-in")
            assert f"path={base};" in page.headers["set-cookie"].lower() + ";"
            assert page.headers["content-security-policy"] == POLICY
            answer = await visitor.sign_in(token, next="/inbox?graph=x")
            assert answer.headers["location"] == f"{base}/inbox?graph=x"
            page = await visitor.get()
            assert page.status_code == 200
            for link in re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text):
                assert link.startswith(f"{base}/"), link
            styles = re.findall(r'rel="stylesheet" href="([^"]*)"', page.text)
            for one in styles:
                assert (await visitor.http.get(one)).status_code == 200
            assert (await visitor.get("/nothing")).status_code == 404
            refused = await visitor.post("/sign-out", {"csrf": "forged"})
            assert refused.status_code == 403
            answer = await visitor.post("/sign-out", {"csrf": csrf(page)})
            assert answer.headers["location"] == f"{base}/sign-in"
            assert not await visitor.is_signed_in()
