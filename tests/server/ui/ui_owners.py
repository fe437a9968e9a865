"""Threads that belong to people, by the handlers of a `langgraph_sdk.Auth`."""

from __future__ import annotations

import time
from typing import Any

from langgraph_sdk import Auth

from perdure import Runtime
from perdure.commands import threads
from perdure.commands.threads import ThreadContent
from tests.support.polling import until
from tests.support.ui import Person


def by_header() -> Auth:
    """People who see only the threads whose metadata names them."""
    auth = Auth()

    @auth.authenticate
    async def who(headers: dict[bytes, bytes]) -> Any:
        name = headers.get(b"x-user", b"").decode()
        if not name:
            raise Auth.exceptions.HTTPException(status_code=401)
        return {"identity": name, "permissions": ["perdure:admin"]}

    @auth.on.threads
    async def own(ctx: Any, value: Any) -> Any:
        return {"owner": ctx.user.identity}

    return auth


def owned(runtime: Runtime, thread_id: str, owner: str) -> None:
    """A thread that is alone in its millisecond: a search skips what it cannot read of one."""
    plan = threads.create(runtime.engine, thread_id, ThreadContent({"owner": owner}))
    runtime.journal.run(plan)
    made = time.time_ns() // 1_000_000
    until(lambda: time.time_ns() // 1_000_000 > made, "the next millisecond")


def person_named(person: Person, name: str) -> Person:
    """Somebody who is signed in with a name."""
    http = person.server.http(follow_redirects=True, headers={"x-user": name})
    return Person(http, person.server)
