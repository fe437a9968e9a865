"""Who is signed in to the pages, by what, and for how long; and where signing in leads."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlencode

import httpx
import pytest
from fastapi import Request
from langgraph_sdk import Auth

from perdure.commands import tokens
from perdure.server import authentication
from perdure.server.http_server import HttpServer, address, listen
from perdure.server.origins import client_address
from perdure.server.ui import identity
from perdure.server.ui.identity import Session, Signer, TrustedProxy, UiUser
from perdure.server.ui.page_route import browser_cookie, session_cookie
from perdure.server.ui.site import sign_in_path
from tests.server.ui.html_judge import faults
from tests.support.agents import opened
from tests.support.http import account, signer_of, visiting

HOME = "/ui/inbox"


# -- signing in


async def test_the_printed_address_is_exchanged_for_a_cookie(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        assert not await visitor.is_signed_in()
        path = await sign_in_path(rt)
        answer = await visitor.http.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, HOME)
        assert await visitor.is_signed_in()
        key = path.rpartition("=")[2]
        assert len(key) >= 32
        assert key not in str(answer.headers.multi_items())


async def test_a_wrong_key_does_not_sign_in(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        for key in ("", "wrong", "é", "0" * 40, "x" * 10_000):
            answer = await visitor.get("/", params={"key": key})
            assert answer.status_code in (303, 401)
            assert not await visitor.is_signed_in()


@pytest.mark.parametrize(
    ("why", "settings", "headers", "address"),
    [
        ("another machine", {}, {}, "10.0.0.7"),
        ("a proxy on this machine", {}, {"X-Forwarded-For": "10.0.0.7"}, "127.0.0.1"),
        ("a name that resolves to this machine", {}, {"Host": "evil.example"}, "127.0.0.1"),
        ("the application's own users", {"ui_user": lambda request: None}, {}, "127.0.0.1"),
        ("a proxy", {"ui_proxy": TrustedProxy(["10.0.0.1"], "x-user")}, {}, "127.0.0.1"),
    ],
)
async def test_the_printed_address_works_only_here_and_while_nothing_else_signs_in(
    sqlite_url: str, why: str, settings: Any, headers: dict[str, str], address: str
) -> None:
    async with opened(sqlite_url) as rt, visiting(rt, address=address, **settings) as visitor:
        answer = await visitor.http.get(await sign_in_path(rt), headers=headers)
        assert answer.status_code == 401, why
        assert (await visitor.get(headers=headers)).status_code == 303


async def test_once_there_are_accounts_the_printed_address_and_its_sessions_end(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "READ_EVERY", 0.0)
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        path = await sign_in_path(rt)
        await visitor.http.get(path)
        assert await visitor.is_signed_in()
        await account(rt, "read")
        assert not await visitor.is_signed_in()
        assert (await visitor.http.get(path)).status_code == 401


async def test_a_wrong_token_does_not_sign_in(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        await account(rt, "admin")
        for token in ("", "perdure_", "perdure_wrong", "ana", "perdure_\0", "x" * 9999):
            answer = await visitor.sign_in(token)
            assert answer.status_code in (401, 422)
            assert session_cookie(await signer_of(rt)) not in visitor.http.cookies
            assert not await visitor.is_signed_in()


async def test_a_session_ends_with_its_token_and_after_a_week(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "READ_EVERY", 0.0)
    async with opened(sqlite_url) as rt:
        short = await account(rt, "read", name="short", expires=timedelta(hours=1))
        revoked = await account(rt, "read", name="revoked")
        kept = await account(rt, "read", name="kept")
        app = rt.asgi(ui=True, worker=False)
        async with (
            visiting(rt, app) as first,
            visiting(rt, app) as second,
            visiting(rt, app) as third,
        ):
            for visitor, token in ((first, short), (second, revoked), (third, kept)):
                assert (await visitor.sign_in(token)).status_code == 303
                assert await visitor.is_signed_in()
            rt.clock.advance(timedelta(hours=2))
            await rt.journal.arun(tokens.revoke(rt.engine, "revoked"))
            assert [await one.is_signed_in() for one in (first, second, third)] == [0, 0, 1]
            monkeypatch.setattr(identity, "SESSION_SECONDS", -1)
            assert not await third.is_signed_in()


async def test_a_forged_session_is_not_accepted(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        token = await account(rt, "admin")
        await visitor.sign_in(token)
        signer = await signer_of(rt)
        name = session_cookie(signer)
        good = visitor.http.cookies[name]
        [row] = await rt.journal.arun(tokens.read_rows(rt.engine))
        forged = {
            "empty": "",
            "other journal": Signer(b"x" * 32).session(Session(row.hash)),
            "changed": good[:-2] + ("AA" if good[-2:] != "AA" else "BB"),
            "plain hash": row.hash,
            "huge": good + "A" * 50_000,
        }
        visitor.http.cookies.clear()
        for how, cookie in forged.items():
            headers = {"cookie": f"{name}={cookie}"}
            assert (await visitor.get(headers=headers)).status_code == 303, how
        assert (await visitor.get(headers={"cookie": f"{name}={good}"})).status_code == 200


async def test_signing_in_replaces_a_planted_session(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        mine = await account(rt, "answer", name="mine")
        theirs = await account(rt, "read", name="theirs")
        async with visiting(rt) as attacker, visiting(rt) as victim:
            await attacker.sign_in(theirs)
            victim.http.cookies.update(attacker.http.cookies)
            await victim.sign_in(mine)
            assert "mine" in (await victim.get()).text
            assert "theirs" in (await attacker.get()).text
            # The planted browser cookie gives the attacker no token for the victim's forms.
            signer = await signer_of(rt)
            known = attacker.http.cookies[browser_cookie(signer)]
            assert signer.form_token(known, "theirs") != signer.form_token(known, "mine")


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_cookies_are_kept_from_scripts_and_from_other_sites(
    sqlite_url: str, scheme: str
) -> None:
    async with opened(sqlite_url) as rt:
        token = await account(rt, "read")
        async with visiting(rt, base_url=f"{scheme}://localhost") as visitor:
            page = await visitor.get("/sign-in")
            answer = await visitor.sign_in(token)
            cookies = [*page.headers.get_list("set-cookie"), *answer.headers.get_list("set-cookie")]
            assert len(cookies) >= 2
            for cookie in cookies:
                parts = {part.strip().lower() for part in cookie.split(";")[1:]}
                assert {"httponly", "path=/ui", "samesite=lax"} <= parts, cookie
                assert ("secure" in parts) is (scheme == "https")
                assert not any(part.startswith("domain") for part in parts)


async def test_behind_a_proxy_with_tls_cookies_are_secure(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        await account(rt, "read")
        async with visiting(rt) as visitor:
            page = await visitor.get("/sign-in", headers={"X-Forwarded-Proto": "https"})
            assert "secure" in page.headers["set-cookie"].lower()


# -- redirects

ELSEWHERE = (
    *("//evil.example", "https://evil.example", "https:evil.example", "/\\evil.example"),
    *("\\\\evil.example", "/\t/evil.example", "/\n/evil.example", "%2f%2fevil.example"),
    *("javascript:alert(1)", "/%0d%0aLocation:%20//evil.example", "@evil.example", ".evil.example"),
    *(" //evil.example", "///evil.example", "/..//evil.example", "http:///evil.example"),
    *("/../logout", "/inbox/../../logout", "/%2e%2e/logout", "/.%2E/logout?x=1#y"),
)


async def test_signing_in_redirects_only_to_our_own_pages(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        token = await account(rt, "read")
        for there in ELSEWHERE:
            page = await visitor.get("/sign-in", params={"next": there})
            assert faults(page.text) == []
            answer = await visitor.sign_in(token, next=there)
            assert answer.status_code == 303
            location = answer.headers["location"]
            assert location.startswith("/ui/"), location
            page_at = httpx.URL("http://localhost/ui/").join(location)
            assert page_at.host == "localhost"
            assert unquote(page_at.path).startswith("/ui/")
            assert "/." not in unquote(page_at.path), location
            assert not set(location) & {"\\", "\r", "\n", "\t"}


async def test_a_page_that_was_asked_for_is_opened_after_signing_in(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, visiting(rt) as visitor:
        token = await account(rt, "read")
        asked = await visitor.get("/inbox?graph=a%26b&age=old")
        page = await visitor.http.get(asked.headers["location"])
        next = re.search(r'name="next" value="([^"]*)"', page.text)
        assert next
        answer = await visitor.sign_in(token, next=next[1].replace("&amp;", "&"))
        assert answer.headers["location"] == "/ui/inbox?graph=a%26b&age=old"
        asked = await visitor.sign_in(token, next="/threads/é\u2603?text=\u2603")
        assert asked.status_code == 303
        assert unquote(asked.headers["location"]) == "/ui/threads/é\u2603?text=\u2603"


# -- who else names them


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_applications_own_user_is_asked(sqlite_url: str, is_async: bool) -> None:
    def find(request: Request) -> Any:
        who = request.headers.get("x-session")
        known = {"bea": UiUser("bea", ["admin"]), "cyd": "cyd", "dan": {"name": "dan"}}
        return known.get(who or "")

    async def find_later(request: Request) -> Any:
        return find(request)

    settings: Any = {"ui_user": find_later if is_async else find}
    async with opened(sqlite_url) as rt, visiting(rt, **settings) as visitor:
        assert not await visitor.is_signed_in()
        assert 'type="password"' not in (await visitor.get("/sign-in")).text
        for name, is_admin in (("bea", True), ("cyd", False), ("dan", False)):
            page = await visitor.get(headers={"x-session": name})
            assert page.status_code == 200
            assert name in page.text
            assert ("/ui/outbox" in page.text) is is_admin
            assert "Sign out" not in page.text  # the application would sign them in again
        token, signer = await account(rt, "admin"), await signer_of(rt)
        browser = visitor.http.cookies[browser_cookie(signer)]
        await visitor.post("/sign-in", {"csrf": signer.form_token(browser, ""), "token": token})
        assert not await visitor.is_signed_in()


NOBODY: tuple[Any, ...] = (
    None,
    "",
    " ",
    False,
    {},
    {"name": ""},
    UiUser(""),
    UiUser(" ", ["admin"]),
)


@pytest.mark.parametrize("nobody", NOBODY, ids=repr)
async def test_an_application_that_names_nobody_signs_nobody_in(
    sqlite_url: str, nobody: Any
) -> None:
    """`header and UiUser(header)` is an empty text for an empty header."""
    async with (
        opened(sqlite_url) as rt,
        visiting(rt, ui_user=lambda request: nobody) as visitor,
    ):
        assert not await visitor.is_signed_in()


async def test_an_identity_header_counts_only_from_the_proxy_that_is_named(sqlite_url: str) -> None:
    proxy = TrustedProxy(["10.0.0.1"], "X-User", admins=["root"])
    async with opened(sqlite_url) as rt:
        app = rt.asgi(ui=True, worker=False, ui_proxy=proxy)
        for address, status in (("10.0.0.1", 200), ("10.0.0.2", 303), ("127.0.0.1", 303)):
            for name in ("ana", "root"):
                async with visiting(rt, app, address=address) as visitor:
                    page = await visitor.get(headers={"X-User": name})
                    assert page.status_code == status, address
                    if status == 200:
                        assert name in page.text
                        assert ("/ui/outbox" in page.text) is (name == "root")
        async with visiting(rt, app, address="10.0.0.1") as visitor:
            assert not await visitor.is_signed_in()
            twice = [("X-User", "root"), ("X-User", "ana")]
            assert (await visitor.get(headers=twice)).status_code == 303


async def test_a_proxy_on_this_machine_names_who_and_from_where(sqlite_url: str) -> None:
    """`perdure serve` sees the proxy's address, not the one that its header claims."""
    proxy = TrustedProxy(["127.0.0.1"], "X-User")
    async with opened(sqlite_url) as rt:
        app = rt.asgi(ui=True, worker=False, ui_proxy=proxy)

        @app.get("/seen")
        async def seen(request: Request) -> str | None:
            return client_address(request)

        listening = listen("127.0.0.1", 0)
        server = HttpServer(app, grace=1, handle_signals=False)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        async with httpx.AsyncClient(base_url=address(listening)) as http:
            headers = {"X-User": "ana", "X-Forwarded-For": "evil, 10.0.0.7"}
            page = await http.get("/ui/inbox", headers=headers)
            assert (page.status_code, "ana" in page.text) == (200, True)
            assert (await http.get("/seen", headers=headers)).json() == "10.0.0.7"
            assert (await http.get("/seen")).json() == "127.0.0.1"
        server.stop()
        await serving


@pytest.mark.parametrize("wanted", ["body", "request"])
async def test_a_handler_of_the_application_may_read_the_form_before_we_do(
    sqlite_url: str, wanted: str
) -> None:
    auth, seen = Auth(), list[Any]()

    async def by_body(body: Any) -> str:
        seen.append(body)
        return "ana"

    async def by_request(request: Request) -> str:
        seen.append(await request.body())
        return "ana"

    auth.authenticate(by_body if wanted == "body" else by_request)
    async with (
        opened(sqlite_url) as rt,
        visiting(rt, auth=auth, body_timeout=1) as visitor,
    ):
        assert await visitor.is_signed_in()
        signer = await signer_of(rt)
        form = {"csrf": signer.form_token(visitor.http.cookies[browser_cookie(signer)], "ana")}
        assert (await visitor.post("/questions/gone/comment", form)).status_code == 404
        assert seen[-1] == (None if wanted == "body" else urlencode(form).encode())
