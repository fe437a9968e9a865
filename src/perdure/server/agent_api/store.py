"""`/store`: items of LangGraph's store, by namespace and key.

The store is that of the runtime (`Runtime(store=...)`), or the one that its graphs were compiled
with. Authorization handlers cannot filter items; they rewrite `value["namespace"]` instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter
from langgraph.store.base import BaseStore, InvalidNamespaceError, Item
from pydantic import AfterValidator, BaseModel, Field

from perdure.server.agent_api.resources import Limit, Offset
from perdure.server.errors import ApiError
from perdure.server.routes import READ, START, Api, ApiDep
from perdure.views.json_values import dump

router = APIRouter(tags=["store"])

T = TypeVar("T")
Json = dict[str, Any]


def _storable(value: Any) -> Any:
    if "\0" in value if isinstance(value, str) else b"\\u0000" in dump(value):
        raise ValueError("it contains a character U+0000, which cannot be stored")
    return value


Text = Annotated[str, AfterValidator(_storable)]
StoredJson = Annotated[Json, AfterValidator(_storable)]
Labels = list[Text]
Minutes = Annotated[float, Field(gt=0, le=5_000_000)]


class NewItem(BaseModel):
    """An item to store."""

    namespace: Labels
    key: Text
    value: StoredJson
    index: Literal[False] | list[str] | None = None
    ttl: Minutes | None = None


class ItemKey(BaseModel):
    """An item to delete."""

    namespace: Labels = Field(default_factory=list)
    key: Text


class ItemSearch(BaseModel):
    """A search for items below a namespace."""

    namespace_prefix: Labels = Field(default_factory=list)
    filter: StoredJson | None = None
    limit: Limit = 10
    offset: Offset = 0
    query: Text | None = None
    refresh_ttl: bool | None = None


class NamespaceSearch(BaseModel):
    """A search for namespaces."""

    prefix: Labels | None = None
    suffix: Labels | None = None
    max_depth: Annotated[int, Field(ge=1, le=100)] | None = None
    limit: Limit = 100
    offset: Offset = 0


@router.put("/store/items", status_code=204, dependencies=[START])
async def put_item(body: NewItem, api: ApiDep) -> None:
    """Store an item, or replace the one with this key."""
    value: Json = {"key": body.key, "value": body.value, "index": body.index}
    at = await _prefix(api, "put", body.namespace, value)
    options: dict[str, Any] = {"index": body.index, "ttl": body.ttl}
    options = {name: one for name, one in options.items() if one is not None}
    await _ask(api, lambda store: store.aput(at, value["key"], value["value"], **options))


@router.get("/store/items", dependencies=[READ])
async def get_item(
    key: Text, api: ApiDep, namespace: Text = "", refresh_ttl: bool | None = None
) -> Json | None:
    """Get an item, or null. The namespace is its labels, joined by dots."""
    value = {"key": key}
    at = await _prefix(api, "get", namespace.split(".") if namespace else [], value)
    item = await _ask(api, lambda store: store.aget(at, value["key"], refresh_ttl=refresh_ttl))
    return None if item is None else _wire(item)


@router.delete("/store/items", status_code=204, dependencies=[START])
async def delete_item(body: ItemKey, api: ApiDep) -> None:
    """Delete an item, if it exists."""
    value = {"key": body.key}
    at = await _prefix(api, "delete", body.namespace, value)
    await _ask(api, lambda store: store.adelete(at, value["key"]))


@router.post("/store/items/search", dependencies=[READ])
async def search_items(body: ItemSearch, api: ApiDep) -> Json:
    """Search items below a namespace, by their values or, if the store has an index, by meaning."""
    page = {"limit": body.limit, "offset": body.offset}
    value = {"filter": body.filter, "query": body.query, **page}
    prefix = await _prefix(api, "search", body.namespace_prefix, value)
    options: Any = {"filter": value["filter"], "query": value["query"], **page}
    items = await _ask(
        api, lambda store: store.asearch(prefix, refresh_ttl=body.refresh_ttl, **options)
    )
    return {"items": [{**_wire(one), "score": one.score} for one in items]}


@router.post("/store/namespaces", dependencies=[READ])
async def list_namespaces(body: NamespaceSearch, api: ApiDep) -> Json:
    """List the namespaces that have items."""
    page = {"max_depth": body.max_depth, "limit": body.limit, "offset": body.offset}
    value: Json = {"suffix": _labels(body.suffix or []), **page}
    prefix = await _prefix(api, "list_namespaces", body.prefix or [], value)
    suffix, options = tuple(value["suffix"] or ()), dict[str, Any](page)
    namespaces = await _ask(
        api,
        lambda store: store.alist_namespaces(
            prefix=prefix or None, suffix=suffix or None, **options
        ),
    )
    return {"namespaces": [list(one) for one in namespaces]}


async def _prefix(api: Api, action: str, labels: list[str], value: Json) -> tuple[str, ...]:
    """The namespace of a request as the authorization handlers leave it; they may change the rest
    of `value` too. That of an item must not be empty. Raises 400."""
    if not labels and "key" in value:
        raise ApiError(400, "The namespace must not be empty.")
    value["namespace"] = _labels(labels)
    await api.authorize("store", action, value)
    return tuple(value["namespace"] or ())


def _labels(labels: list[str]) -> tuple[str, ...]:
    for label in labels:
        if not label or "." in label:
            raise ApiError(
                400, f"A namespace label must not be empty or contain a dot: {label[:100]!a}."
            )
    return tuple(labels)


async def _ask(api: Api, ask: Callable[[BaseStore], Awaitable[T]]) -> T:
    """Call the store, in its own event loop if it is bound to one."""
    store, loop = api.runtime.engine.find_store()
    if store is None:
        raise ApiError(
            501, "This server has no store. Pass Runtime(store=True), or your own store."
        )

    async def there() -> T:
        return await ask(store)

    try:
        if loop is None or loop is asyncio.get_running_loop():
            return await there()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), loop))
    except (InvalidNamespaceError, ValueError) as error:
        raise ApiError(400, f"The store refused this: {error!s:.300}") from error
    except NotImplementedError as error:
        raise ApiError(501, f"The store does not support this: {error!s:.300}") from error


def _wire(item: Item) -> Json:
    return {
        "namespace": list(item.namespace),
        "key": item.key,
        "value": item.value,
        "created_at": _time(item.created_at),
        "updated_at": _time(item.updated_at),
    }


def _time(at: datetime) -> str:
    """A time as clients get it. The SQLite store returns UTC without a time zone."""
    known = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return known.isoformat(timespec="microseconds")
