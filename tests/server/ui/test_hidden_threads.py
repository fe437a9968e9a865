"""Who may see the pages that sum up all threads."""

from __future__ import annotations

from typing import Any

from langgraph_sdk import Auth

import perdure
from tests.support.agent_server import served
from tests.support.agents import Log, chain
from tests.support.ui import Person


def echo(state: Log) -> Any:
    return {}


def owners(*permissions: str) -> Auth:
    """Everyone may read, and sees only the threads of their own."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes]) -> Any:
        return {"identity": "ada", "permissions": ["perdure:read", *permissions]}

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        return {"owner": ctx.user.identity}

    return auth


EVERYTHING = ("/health", "/schedules", "/code-changes")


def test_where_threads_are_hidden_what_sums_up_all_of_them_is_for_operators(
    sqlite_url: str,
) -> None:
    with perdure.Runtime(sqlite_url) as rt:
        rt.register(chain(echo), name="g")
        rt.blocking.start("g", {"log": []})
        for permissions, status in (((), 403), (("perdure:admin",), 200)):
            with served(rt, ui=True, worker=False, auth=owners(*permissions)) as server:
                ada = Person(server.http(follow_redirects=True), server)
                statuses = {path: ada.get(path).status for path in EVERYTHING}
                assert statuses == dict.fromkeys(EVERYTHING, status)
                assert ada.get("/effects").status == 200
