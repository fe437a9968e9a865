"""Where a `langgraph_sdk.Auth` keeps its handlers."""

from __future__ import annotations

from typing import Any

from langgraph_sdk import Auth

from perdure.langgraph_port.sdk_auth import authenticate_handler, is_auth, on_handler


def test_an_auth_without_handlers_has_none() -> None:
    auth = Auth()
    assert is_auth(auth)
    assert not is_auth(object())
    assert authenticate_handler(auth) is None
    assert on_handler(auth, "threads", "create") is None


def test_the_most_specific_handler_is_the_one_that_counts() -> None:
    auth = Auth()

    @auth.authenticate
    async def who(authorization: str) -> str:
        return authorization

    @auth.on
    async def any_of_all(ctx: Any, value: Any) -> bool:
        return False

    @auth.on(actions="search")
    async def any_search(ctx: Any, value: Any) -> bool:
        return True

    @auth.on.threads
    async def any_thread(ctx: Any, value: Any) -> bool:
        return True

    @auth.on.threads.create
    async def new_thread(ctx: Any, value: Any) -> bool:
        return True

    @auth.on.store.put
    async def put(ctx: Any, value: Any) -> bool:
        return True

    assert authenticate_handler(auth) is who
    assert on_handler(auth, "threads", "create") is new_thread
    assert on_handler(auth, "threads", "create_run") is any_thread
    assert on_handler(auth, "threads", "search") is any_thread
    assert on_handler(auth, "crons", "search") is any_search
    assert on_handler(auth, "store", "put") is put
    assert on_handler(auth, "assistants", "read") is any_of_all
