"""Which threads a caller may use, by the handlers of `langgraph_sdk.Auth`.

A thread that they hide is reported as missing: 404, or 422 if its id is not a UUID.
"""

from __future__ import annotations

import uuid
from typing import Any

from perdure.commands import threads
from perdure.commands.threads import Thread
from perdure.server.agent_api.search import passes
from perdure.server.authorization import Filters
from perdure.server.errors import ApiError
from perdure.server.routes import Api


def canonical(id: str) -> str | None:
    """A UUID as text, or None for anything else."""
    try:
        return str(uuid.UUID(id))
    except ValueError:
        return None


def as_uuid(thread_id: str) -> uuid.UUID | str:
    """A thread id as authorization handlers get it."""
    id = canonical(thread_id)
    return thread_id if id is None else uuid.UUID(id)


def missing_thread(thread_id: str) -> ApiError:
    """What a request for a thread that does not exist raises."""
    if (id := canonical(thread_id)) is None:
        return ApiError(422, f"The thread id {thread_id[:100]!a} is not a UUID.")
    return ApiError(404, f"There is no thread {id!r}.")


async def known_thread(api: Api, thread_id: str) -> str:
    """A thread's id as it is stored. Raises 422 unless it is a UUID or an existing thread."""
    if (id := canonical(thread_id)) is not None:
        return id
    if await _read(api, thread_id) is None:
        raise missing_thread(thread_id)
    return thread_id


async def _read(api: Api, thread_id: str) -> Thread | None:
    thread = await api.run(threads.find(api.engine, thread_id))
    return thread


async def find_thread(
    api: Api, thread_id: str, action: str = "read", value: dict[str, Any] | None = None
) -> Thread:
    """A thread on which the caller may do `action`. `value` is passed to the authorization
    handlers, which may change it."""
    value = {} if value is None else value
    value["thread_id"] = as_uuid(thread_id)
    filters = await api.authorize("threads", action, value)
    thread = await _read(api, canonical(thread_id) or thread_id)
    if thread is None or not passes(filters, thread.metadata):
        raise missing_thread(thread_id)
    return thread


async def check_filters(
    api: Api,
    thread_id: str,
    filters: Filters | None,
    *,
    may_be_missing: bool = False,
    missing: Exception | None = None,
) -> None:
    """Raise `missing`, by default that there is no such thread, if its metadata does not match."""
    if filters is None:
        return
    thread = await _read(api, thread_id)
    if thread is None and may_be_missing:
        return
    if thread is None or not passes(filters, thread.metadata):
        raise missing or missing_thread(thread_id)
