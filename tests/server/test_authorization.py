"""The handlers of a `langgraph_sdk.Auth`, as the Agent Server calls them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi import APIRouter
from langgraph_sdk import Auth

from perdure.commands import tokens
from perdure.errors import BadArgument, Error
from perdure.server.authorization import AuthHandlers, Filters, Scope
from perdure.server.routes import ApiDep
from tests.support.agents import opened
from tests.support.http import app_with, client_of

declared = APIRouter()


@declared.post("/me/{n}")
async def me(n: int, api: ApiDep) -> dict[str, Any]:
    return {
        "identity": api.caller.identity,
        "scopes": sorted(api.caller.scopes),
        "configurable": api.caller.configurable,
    }


@declared.post("/ask/{resource}/{action}")
async def ask(resource: str, action: str, value: dict[str, Any], api: ApiDep) -> dict[str, Any]:
    filters = await api.authorize(resource, action, value)
    return {"filters": filters and filters.conditions, "value": value}


async def call(url: str, auth: Auth, path: str, **request: Any) -> Any:
    async with (
        opened(url) as rt,
        client_of(app_with(rt, declared, auth=auth)) as http,
    ):
        return await http.post(path, **{"json": {}, **request})


def named(found: Any) -> Auth:
    """An Auth whose every caller is this."""
    auth = Auth()

    @auth.authenticate
    async def authenticate() -> Any:
        return found

    return auth


# -- who it is


async def test_the_handler_gets_the_parameters_it_names(sqlite_url: str) -> None:
    auth, got = Auth(), {}

    @auth.authenticate
    async def authenticate(
        request: Any,
        body: Any,
        path: str,
        method: str,
        path_params: Any,
        query_params: Any,
        headers: dict[bytes, bytes],
        authorization: str | None,
    ) -> str:
        got.update(locals())
        return "ada"

    sent = {"json": {"a": 1}, "headers": {"Authorization": "Bearer x", "X-One": "1"}}
    answer = await call(sqlite_url, auth, "/me/7?q=2", **sent)
    assert answer.json()["identity"] == "ada"
    assert got["body"] == {"a": 1}
    assert (got["path"], got["method"], got["query_params"]) == ("/me/7", "POST", {"q": "2"})
    assert (got["headers"][b"x-one"], got["authorization"]) == (b"1", "Bearer x")
    assert got["path_params"] == {"n": "7"}
    assert got["request"].headers["x-one"] == "1"


@dataclass
class Person:
    identity: str
    permissions: list[str] = field(default_factory=list)
    _private: str = "p"

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def display_name(self) -> str:
        return "Ada"


@pytest.mark.parametrize(
    ("found", "fields"),
    [
        ("ada", {"permissions": []}),
        ({"identity": "ada", "permissions": ["p"], "team": 7}, {"permissions": ["p"], "team": 7}),
        (Person("ada", ["p"]), {"permissions": ["p"], "display_name": "Ada"}),
    ],
    ids=["text", "mapping", "object"],
)
async def test_the_user_is_in_the_configurable_of_runs(
    sqlite_url: str, found: Any, fields: dict[str, Any]
) -> None:
    answer = await call(sqlite_url, named(found), "/me/1")
    configurable = answer.json()["configurable"]
    user = configurable.pop("langgraph_auth_user")
    assert configurable == {
        "langgraph_auth_user_id": "ada",
        "langgraph_auth_permissions": fields["permissions"],
        "user_id": "ada",
    }
    expected = {"identity": "ada", "is_authenticated": True, "display_name": "ada", **fields}
    assert user == expected


@pytest.mark.parametrize("found", [None, "", {}, {"identity": ""}, 7])
async def test_a_caller_without_an_identity_is_refused(sqlite_url: str, found: Any) -> None:
    answer = await call(sqlite_url, named(found), "/me/1")
    assert answer.status_code == 401


async def test_a_handler_chooses_the_status_of_its_refusal(sqlite_url: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> str:
        headers = {"WWW-Authenticate": "Basic"}
        raise Auth.exceptions.HTTPException(status_code=401, detail="Who?", headers=headers)

    answer = await call(sqlite_url, auth, "/me/1")
    assert (answer.status_code, answer.json()) == (401, {"detail": "Who?"})
    assert answer.headers["WWW-Authenticate"] == "Basic"


async def test_a_failing_handler_admits_nobody_and_its_error_is_not_shown(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> str:
        raise KeyError(f"no user for {authorization}")

    answer = await call(sqlite_url, auth, "/me/1", headers={"Authorization": "Bearer hunter2"})
    assert (answer.status_code, answer.json()["detail"]) == (
        500,
        "The server failed; its log says why.",
    )
    assert "KeyError" in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_user_is_an_admin_only_with_the_permission(sqlite_url: str) -> None:
    plain = await call(sqlite_url, named("ada"), "/me/1")
    admin = await call(
        sqlite_url, named({"identity": "bo", "permissions": ["perdure:admin"]}), "/me/1"
    )
    assert plain.json()["scopes"] == ["answer", "read", "start"]
    assert admin.json()["scopes"] == ["admin", "answer", "read", "start"]


async def test_a_user_is_told_which_permission_is_missing(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt, client_of(rt.asgi(auth=named("ada"))) as http:
        answer = await http.get("/perdure/doctor")
    assert answer.status_code == 403
    assert answer.json() == {"detail": "This needs the permission 'perdure:admin'."}


async def test_a_perdure_token_is_accepted_beside_the_handlers(sqlite_url: str) -> None:
    auth = named(None)

    @auth.on
    async def deny(ctx: Any, value: Any) -> bool:
        return False

    async with opened(sqlite_url) as rt:
        token = await rt.journal.arun(tokens.create(rt.engine, "ops", [Scope.READ]))
        headers = {"x-api-key": token}
        assert (await call(sqlite_url, auth, "/me/1", headers=headers)).json()["identity"] == "ops"
        answer = await call(sqlite_url, auth, "/ask/threads/read", headers=headers)
        assert answer.json()["filters"] is None


def test_an_unknown_handler_parameter_is_refused_when_the_application_is_made(
    sqlite_url: str,
) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(token: str) -> str:
        return token

    with pytest.raises(BadArgument, match=r"'token'.*authorization"):
        AuthHandlers(auth)


# -- what they may


async def test_only_the_most_specific_handler_is_called(sqlite_url: str) -> None:
    auth = named({"identity": "ada", "permissions": ["p"], "team": 7})
    asked: list[Any] = []

    @auth.on
    async def everything(ctx: Any, value: Any) -> Any:
        asked.append(("all", ctx.resource, ctx.action))

    @auth.on.threads
    async def threads(ctx: Any, value: Any) -> Any:
        asked.append(("threads", ctx.user.identity, ctx.user["team"], ctx.permissions))

    @auth.on.threads.create_run
    async def create_run(ctx: Any, value: Any) -> Any:
        asked.append(("create_run", "team" in ctx.user, list(ctx.user)[:1]))

    for path in ("/ask/threads/create_run", "/ask/threads/read", "/ask/crons/search"):
        assert (await call(sqlite_url, auth, path)).status_code == 200
    assert asked == [
        ("create_run", True, ["is_authenticated"]),
        ("threads", "ada", 7, ["p"]),
        ("all", "crons", "search"),
    ]


@pytest.mark.parametrize(
    ("said", "status", "filters"),
    [
        (None, 200, None),
        (True, 200, None),
        (False, 403, None),
        ({}, 200, None),
        ({"owner": "ada"}, 200, {"owner": "ada"}),
        (7, 500, None),
    ],
)
async def test_the_return_value_of_a_handler_decides(
    sqlite_url: str, said: Any, status: int, filters: Any
) -> None:
    auth = named("ada")

    @auth.on.threads
    async def threads(ctx: Any, value: Any) -> Any:
        return said

    answer = await call(sqlite_url, auth, "/ask/threads/read")
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["filters"] == filters


async def test_a_handler_may_change_the_value(sqlite_url: str) -> None:
    auth = named("ada")

    @auth.on.threads.create
    async def own(ctx: Any, value: Any) -> Any:
        value.setdefault("metadata", {})["owner"] = ctx.user.identity

    @auth.on.store
    async def inside(ctx: Any, value: Any) -> Any:
        value["namespace"] = (ctx.user.identity, *value["namespace"])

    thread = await call(sqlite_url, auth, "/ask/threads/create")
    item = await call(sqlite_url, auth, "/ask/store/put", json={"namespace": ["a"]})
    assert thread.json()["value"] == {"metadata": {"owner": "ada"}}
    assert item.json()["value"] == {"namespace": ["ada", "a"]}


async def test_a_handler_may_raise_an_http_error_for_the_caller(sqlite_url: str) -> None:
    auth = named("ada")

    @auth.on
    async def deny(ctx: Any, value: Any) -> Any:
        raise Auth.exceptions.HTTPException(status_code=402, detail="Pay first")

    answer = await call(sqlite_url, auth, "/ask/threads/read")
    assert (answer.status_code, answer.json()) == (402, {"detail": "Pay first"})


async def test_without_an_authenticate_handler_the_others_get_an_anonymous_user(
    sqlite_url: str,
) -> None:
    auth = Auth()

    @auth.on.threads
    async def threads(ctx: Any, value: Any) -> Any:
        return {"owner": ctx.user.identity, "known": ctx.user.is_authenticated}

    answer = await call(sqlite_url, auth, "/ask/threads/read")
    assert answer.json()["filters"] == {"owner": "", "known": False}


# -- filters

ADA = {"owner": "ada", "team": ["ada", "bo"], "n": 1}


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        ({"owner": "ada"}, True),
        ({"owner": "bo"}, False),
        ({"owner": "ada", "n": 2}, False),
        ({"missing": None}, True),
        ({"missing": "x"}, False),
        ({"owner": {"$eq": "ada"}}, True),
        ({"owner": {"$eq": "bo"}}, False),
        ({"team": {"$contains": "bo"}}, True),
        ({"team": {"$contains": "eve"}}, False),
        ({"team": {"$contains": ["bo", "ada"]}}, True),
        ({"team": {"$contains": ["bo", "eve"]}}, False),
        ({"owner": {"$contains": "a"}}, False),
        ({"missing": {"$contains": "a"}}, False),
        ({"$or": [{"owner": "bo"}, {"n": 1}]}, True),
        ({"$or": [{"owner": "bo"}, {"n": 2}]}, False),
        ({"owner": "ada", "$or": [{"n": 2}]}, False),
        ({"$and": [{"owner": "ada"}, {"$or": [{"n": 1}]}]}, True),
    ],
    ids=str,
)
def test_a_filter_holds_or_not(conditions: Any, holds: bool) -> None:
    assert Filters(conditions).match(ADA) is holds


@pytest.mark.parametrize("conditions", [{"a": {"$gt": 1}}, {"$or": []}, {"$or": ["a"]}, {"$or": 1}])
def test_an_unknown_filter_allows_nothing(conditions: Any) -> None:
    with pytest.raises(Error, match="filter"):
        Filters(conditions).match({})
