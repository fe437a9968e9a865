"""Who is admitted: tokens and their scopes, callers on other machines, host names and origins."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette

import perdure
from perdure.commands import tokens
from perdure.server import authentication
from perdure.server.authorization import Scope
from perdure.server.options import ServerOptions, ServerSettings
from perdure.server.origins import is_allowed, is_loopback
from perdure.server.routes import ApiDep
from tests.support.agents import opened
from tests.support.http import app_with, client_of

declared = APIRouter()


@declared.get("/private")
async def private(api: ApiDep) -> dict[str, Any]:
    return {"who": api.caller.identity, "configurable": api.caller.configurable}


@declared.get("/actor")
async def actor(api: ApiDep, by: str | None = None) -> dict[str, str | None]:
    found = api.actor(by)
    return {"by": str(found), "via": found.via}


@declared.post("/scoped/{scope}")
async def scoped(scope: Scope, api: ApiDep) -> None:
    api.require(scope)


async def create(rt: perdure.Runtime, *scopes: str, **options: Any) -> str:
    name = options.pop("name", "ada")
    return await rt.journal.arun(tokens.create(rt.engine, name, scopes, **options))


# -- open, to this machine only


async def test_without_tokens_this_machine_needs_none(url: str) -> None:
    async with opened(url) as rt, client_of(app_with(rt, declared)) as http:
        answer = await http.get("/private")
    assert (answer.status_code, answer.json()["who"]) == (200, None)


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Real-IP", "Forwarded", "Via"])
async def test_a_caller_behind_a_proxy_on_this_machine_needs_a_token(
    sqlite_url: str, header: str
) -> None:
    async with opened(sqlite_url) as rt, client_of(app_with(rt, declared)) as http:
        answer = await http.get("/private", headers={header: "127.0.0.1"})
    assert answer.status_code == 401


async def test_insecure_opens_it_to_every_address(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        app = app_with(rt, declared, insecure=True)
        async with client_of(app, address="10.0.0.7", base_url="http://10.0.0.1:2024") as http:
            assert (await http.get("/private")).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:2024", 200),
        ("127.0.0.1", 200),
        ("[::1]:2024", 200),
        ("agents.localhost", 200),
        ("LOCALHOST.", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
        ("[", 403),
    ],
)
async def test_an_open_server_refuses_foreign_host_names(
    sqlite_url: str, host: str, status: int
) -> None:
    async with opened(sqlite_url) as rt, client_of(app_with(rt, declared)) as http:
        answer = await http.get("/private", headers={"Host": host})
        assert answer.status_code == status
        if status == 403:
            assert "--allow-host" in answer.json()["detail"]
        health = await http.get("/ok", headers={"Host": host})
        assert health.status_code == 200


def test_an_allowed_host_may_be_a_wildcard() -> None:
    assert is_allowed("a.example.com", ("*.example.com",))
    assert not is_allowed("example.com", ("*.example.com",))
    assert not is_allowed("badexample.com", ("*.example.com",))
    assert is_allowed("whatever", ("*",))
    assert is_allowed("192.168.0.4:2024", ())
    assert is_loopback("127.0.0.53")
    assert not is_loopback("0.0.0.0")


# -- CORS


def embedded(rt: perdure.Runtime, how: str, **settings: Any) -> Any:
    router = rt.router(**settings)
    router.add_api_route("/private", private)
    if how == "fastapi":
        app = FastAPI()
        app.include_router(router)
        return app
    if how == "starlette":
        return Starlette(routes=router.routes, lifespan=router.lifespan_context)
    return app_with(rt, declared, **settings)


@pytest.mark.parametrize("how", ["asgi", "fastapi", "starlette"])
async def test_pages_of_allowed_origins_may_call_and_read_the_headers(
    sqlite_url: str, how: str
) -> None:
    async with opened(sqlite_url) as rt:
        app = embedded(rt, how, cors=["https://ui.example", "http://localhost:*"])
        async with client_of(app) as http:
            asked = {
                "Access-Control-Request-Method": "GET",
                "Access-Control-Request-Headers": "x-api-key",
            }
            for origin, allowed in {
                "https://ui.example": True,
                "http://localhost:3000": True,
                "https://ui.example.evil": False,
                "http://localhost:3000/x": False,
            }.items():
                before = await http.options("/private", headers={**asked, "Origin": origin})
                assert before.status_code == (200 if allowed else 400)
                answer = await http.get("/private", headers={"Origin": origin})
                assert answer.status_code == (200 if allowed else 403)
                found = answer.headers.get("access-control-allow-origin")
                assert found == (origin if allowed else None)
                if allowed:
                    assert "x-api-key" in before.headers["access-control-allow-headers"]
                    exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
                    assert {"content-location", "location", "x-pagination-total"} <= {*exposed}


async def test_every_origin_may_be_allowed(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, client_of(app_with(rt, declared, cors=["*"])) as http:
        answer = await http.get("/private", headers={"Origin": "https://anywhere.example"})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers


async def test_without_origins_a_preflight_request_is_refused(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, client_of(app_with(rt, declared)) as http:
        asked = {"Access-Control-Request-Method": "GET", "Origin": "https://ui.example"}
        answer = await http.options("/private", headers=asked)
    assert answer.status_code == 405
    assert "access-control-allow-origin" not in answer.headers


# -- tokens


async def test_a_token_that_acts_for_somebody_is_recorded_with_the_name_it_gives(
    sqlite_url: str,
) -> None:
    async with opened(sqlite_url) as rt, client_of(app_with(rt, declared)) as http:
        token = {"x-api-key": await create(rt, "answer", name="backend")}
        for by, via in [("", "api"), ("?by=backend", "api"), ("?by=ada", "api, token backend")]:
            found = (await http.get(f"/actor{by}", headers=token)).json()
            assert found == {"by": by.removeprefix("?by=") or "backend", "via": via}


WRONG = {"x-api-key": "perdure_wrong"}


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
async def test_once_a_token_was_created_one_is_required(url: str, header: str) -> None:
    async with opened(url) as rt:
        token = await create(rt, "read", name="reader")
        async with client_of(app_with(rt, declared)) as http:
            for wrong in ({}, {header: "perdure_wrong"}, {header: "Bearer "}, {header: token[:-1]}):
                answer = await http.get("/private", headers=wrong)
                assert answer.status_code == 401
                assert token[:-1] not in answer.text
            sent = f"Bearer {token}" if header == "authorization" else token
            answer = await http.get("/private", headers={header: sent, "Host": "any.example"})
            assert (answer.status_code, answer.json()["who"]) == (200, "reader")


@pytest.mark.parametrize(
    ("sent", "said"),
    [({}, "Send a token"), ({"x-api-key": "lsv2_1"}, "perdure_"), (WRONG, "have expired")],
)
async def test_a_refused_caller_is_told_what_is_wrong_with_the_token(
    sqlite_url: str, sent: dict[str, str], said: str
) -> None:
    async with opened(sqlite_url) as rt:
        await create(rt, "read")
        async with client_of(app_with(rt, declared)) as http:
            assert said in (await http.get("/private", headers=sent)).json()["detail"]


async def test_status_routes_need_no_token(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        await create(rt, "admin")
        app = rt.asgi()
        async with client_of(app, address="10.0.0.7") as http:
            for path in ("/ok", "/info", "/openapi.json"):
                assert (await http.get(path)).status_code == 200, path
            assert "Metrics" in (await http.get("/metrics")).json()["detail"]


async def test_an_expired_or_revoked_token_is_refused_and_the_server_stays_closed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "READ_EVERY", 0.0)
    async with opened(url) as rt:
        short = await create(rt, "read", name="short", expires=timedelta(days=90))
        revoked = await create(rt, "read", name="revoked")
        async with client_of(app_with(rt, declared)) as http:

            async def statuses() -> list[int]:
                sent: list[dict[str, str]] = [{"x-api-key": short}, {"x-api-key": revoked}, {}]
                return [(await http.get("/private", headers=one)).status_code for one in sent]

            assert await statuses() == [200, 200, 401]
            await rt.journal.arun(tokens.revoke(rt.engine, "revoked"))
            assert await statuses() == [200, 401, 401]
            rt.engine.given_clock.advance(timedelta(days=91))  # type: ignore[union-attr]
            assert await statuses() == [401, 401, 401]


async def test_a_request_costs_no_query_and_the_use_of_its_token_is_noted_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "READ_EVERY", 3600.0)
    async with opened(url) as rt:
        token = await create(rt, "read")
        reads = 0
        rows = tokens.read_rows

        def count(on: Any) -> Any:
            nonlocal reads
            reads += 1
            return rows(on)

        monkeypatch.setattr(tokens, "read_rows", count)
        async with client_of(app_with(rt, declared), headers={"x-api-key": token}) as http:
            answers = await asyncio.gather(*(http.get("/private") for _ in range(20)))
            assert {one.status_code for one in answers} == {200}
            assert reads == 1
            await asyncio.sleep(0.2)
        [found] = await rt.journal.arun(tokens.list_tokens(rt.engine))
        assert found.used_at == found.created_at  # the clock stands still


async def test_while_the_journal_is_down_nobody_is_admitted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.journal.PAUSE", 60.0)  # it is not tried again
    rt = perdure.Runtime("postgresql://127.0.0.1:1/agents")
    async with client_of(app_with(rt, declared)) as http:
        answer = await http.get("/private")
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"
    assert "127.0.0.1" not in answer.text  # nor the database, its role or its path
    assert "127.0.0.1" in caplog.text


# -- headers for runs


async def test_configured_headers_are_passed_to_runs_but_not_credentials(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        patterns = ["x-my-*", "x-*", "!x-my-secret"]
        app = app_with(rt, declared, configurable_headers=patterns)
        async with client_of(app) as http:
            sent = {"X-My-Tenant": "acme", "x-my-secret": "s", "x-api-key": "lsv2_key", "y": "n"}
            answer = await http.get("/private", headers=sent)
    assert answer.json()["configurable"] == {"x-my-tenant": "acme"}


async def test_a_credential_is_passed_on_if_its_full_name_is_configured(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        app = app_with(rt, declared, configurable_headers=["x-api-key"])
        async with client_of(app) as http:
            answer = await http.get("/private", headers={"x-api-key": "lsv2_key"})
    assert answer.json()["configurable"] == {"x-api-key": "lsv2_key"}


# -- settings


def test_every_setting_has_a_type_for_callers() -> None:
    assert ServerSettings.__annotations__.keys() == ServerOptions.__annotations__.keys()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"host": ["a"]}, "Did you mean 'hosts'"),
        ({"hosts": "a.example"}, "list"),
        ({"hosts": ["https://a.example"]}, "not a host name"),
        ({"cors": ["a.example"]}, "not an origin, such as https://"),
        ({"cors": ["https://a.example/app"]}, "not an origin"),
        ({"max_body": 0}, "max_body"),
        ({"auth": object()}, "langgraph_sdk.Auth"),
    ],
)
def test_an_invalid_setting_is_refused(sqlite_url: str, settings: Any, said: str) -> None:
    with pytest.raises(perdure.errors.BadArgument, match=said):
        perdure.Runtime(sqlite_url).asgi(**settings)


async def test_responses_do_not_go_through_fastapis_encoder(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, client_of(app_with(rt, declared)) as http:
        answer: httpx.Response = await http.get("/private/")
    assert answer.headers["content-type"] == "application/json"
    assert answer.content == b'{"who":null,"configurable":{}}'
