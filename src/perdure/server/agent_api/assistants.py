"""`/assistants`: a graph with the config, context and metadata that its runs start with.

Each registered graph has a default assistant, with a well-known id. A request may use the name of a
graph wherever it takes an assistant id; that means the graph's default assistant.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_type_hints, is_typeddict

from fastapi import APIRouter
from langgraph.pregel import Pregel
from pydantic import BaseModel, TypeAdapter, create_model

from perdure.commands import assistants, threads
from perdure.commands.assistants import Assistant, AssistantContent
from perdure.commands.threads import ThreadFilter
from perdure.errors import NotFound
from perdure.server.agent_api.resources import (
    Page,
    find_assistant,
    find_thread,
    has_metadata,
    page_of,
    passes,
)
from perdure.server.agent_api.run_bodies import CheckedConfig
from perdure.server.agent_api.threads import erase_thread
from perdure.server.authorization import Filters
from perdure.server.errors import ApiError
from perdure.server.routes import READ, START, Api, ApiDep
from perdure.verbs import new_id

router = APIRouter(tags=["assistants"])

Json = dict[str, Any]
Sort = Literal["assistant_id", "graph_id", "name", "created_at", "updated_at"]
FIELDS = (
    *("assistant_id", "graph_id", "name", "description", "config", "context", "metadata"),
    *("version", "created_at", "updated_at"),
)


class AssistantBody(BaseModel):
    """The fields of an assistant that callers can set."""

    config: CheckedConfig | None = None
    context: Any = None
    metadata: Json | None = None
    name: str | None = None
    description: str | None = None


class NewAssistant(AssistantBody):
    """A new assistant."""

    graph_id: str
    assistant_id: uuid.UUID | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None


class AssistantPatch(AssistantBody):
    """Changes of an assistant."""

    graph_id: str | None = None


class AssistantFilter(BaseModel):
    """Conditions that assistants must meet."""

    graph_id: str | None = None
    name: str | None = None
    metadata: Json | None = None


class AssistantSearch(Page, AssistantFilter):
    """A page of assistants."""

    sort_by: Sort | None = None


class VersionSearch(Page):
    """A page of an assistant's versions."""

    metadata: Json | None = None


class ChosenVersion(BaseModel):
    """The version of an assistant that its runs should use."""

    version: int


def wire(assistant: Assistant) -> dict[str, Any]:
    """An assistant as clients get it."""
    return {name: getattr(assistant, name) for name in FIELDS}


def compiled(api: Api, assistant: Assistant) -> Any:
    """The graph of an assistant."""
    graph = api.runtime.compiled(assistant.graph_id)
    if graph is None:
        raise ApiError(
            404, f"The assistant's graph {assistant.graph_id!r} is not registered on this server."
        )
    return graph


@router.post("/assistants", dependencies=[START])
async def create(body: NewAssistant, api: ApiDep) -> Json:
    """Create an assistant."""
    id = str(body.assistant_id or new_id())
    value: dict[str, Any] = {
        **body.model_dump(),
        "assistant_id": uuid.UUID(id),
        "metadata": body.metadata or {},
    }
    filters = await api.authorize("assistants", "create", value)
    api.engine.resolve_graph(body.graph_id, None)  # raises for an unknown one
    content = AssistantContent(
        graph_id=body.graph_id,
        name=body.name or "Untitled",
        description=body.description,
        metadata=value.get("metadata") or {},
        **mirrored(value.get("config"), value.get("context")),
    )
    created = await api.journal.arun(
        assistants.create(api.engine, id, content, accept_existing=body.if_exists == "do_nothing")
    )
    if not passes(filters, created.metadata):
        raise ApiError(409, f"Assistant {id!r} already exists. Choose another id.")
    return wire(created)


@router.post("/assistants/search", dependencies=[READ])
async def search(body: AssistantSearch, api: ApiDep) -> Any:
    """List assistants."""
    assistants = await _matching(api, body, {"limit": body.limit, "offset": body.offset})
    sort, order = body.sort_by or "created_at", body.sort_order or "desc"
    assistants.sort(key=lambda one: (getattr(one, sort), one.assistant_id), reverse=order == "desc")
    return page_of(assistants, body, wire)


@router.post("/assistants/count", dependencies=[READ])
async def count(body: AssistantFilter, api: ApiDep) -> int:
    """Count assistants."""
    return len(await _matching(api, body, {}))


async def _matching(api: Api, body: AssistantFilter, page: Mapping[str, int]) -> list[Assistant]:
    value = {"graph_id": body.graph_id, "metadata": body.metadata or {}, **page}
    filters = await api.authorize("assistants", "search", value)
    every = await api.journal.arun(assistants.every(api.engine))
    return [one for one in every if _matches(one, body, value.get("metadata"), filters)]


def _matches(one: Assistant, body: AssistantFilter, wanted: Any, filters: Filters | None) -> bool:
    return (
        (body.graph_id is None or one.graph_id == body.graph_id)
        and (body.name is None or body.name.casefold() in one.name.casefold())
        and has_metadata(one.metadata, wanted)
        and passes(filters, one.metadata)
    )


@router.get("/assistants/{assistant_id}", dependencies=[READ])
async def get(assistant_id: str, api: ApiDep) -> Json:
    """Get an assistant."""
    return wire(await find_assistant(api, assistant_id))


@router.patch("/assistants/{assistant_id}", dependencies=[START])
async def update(assistant_id: str, body: AssistantPatch, api: ApiDep) -> Json:
    """Change an assistant. Metadata is merged."""
    value: dict[str, Any] = {**body.model_dump(), "metadata": body.metadata or {}}
    assistant = await find_assistant(api, assistant_id, "update", value)
    changes = {name: one for name, one in value.items() if one is not None}
    if "graph_id" in changes:
        api.engine.resolve_graph(changes["graph_id"], None)
    if "config" in changes or "context" in changes:
        changes |= mirrored(changes.get("config"), changes.get("context"))
    return wire(
        await api.journal.arun(assistants.change(api.engine, assistant.assistant_id, changes))
    )


@router.delete("/assistants/{assistant_id}", status_code=204, dependencies=[START])
async def delete(assistant_id: str, api: ApiDep, delete_threads: bool = False) -> None:
    """Delete an assistant, and with `delete_threads` the threads that were started with it and that
    the caller may delete."""
    assistant = await find_assistant(api, assistant_id, "delete")
    if assistant.assistant_id in assistants.by_default_id(api.engine):
        raise ApiError(
            409,
            f"Assistant {assistant.assistant_id} cannot be deleted: it is the default assistant of "
            f"the registered graph {assistant.graph_id!r}.",
        )
    chosen, kept = ThreadFilter(assistant=assistant.assistant_id), 0
    while delete_threads:
        page = threads.page(api.engine, chosen, kept, 100)
        found_threads, delete_threads = await api.journal.arun(page)
        for thread in found_threads:
            try:
                await erase_thread(api, await find_thread(api, thread.thread_id, "delete"))
            except ApiError as error:
                if error.status_code not in (404, 422):
                    raise
                kept += 1
    await api.journal.arun(assistants.delete(api.engine, assistant.assistant_id))


@router.get("/assistants/{assistant_id}/graph", dependencies=[READ])
async def get_graph(assistant_id: str, api: ApiDep, xray: bool | int = False) -> Json:
    """Get the nodes and edges of an assistant's graph."""
    graph = compiled(api, await find_assistant(api, assistant_id))
    return drawing(graph, xray)


@router.get("/assistants/{assistant_id}/schemas", dependencies=[READ])
async def get_schemas(assistant_id: str, api: ApiDep) -> Json:
    """Get the JSON schemas of an assistant's graph."""
    assistant = await find_assistant(api, assistant_id)
    return schemas(compiled(api, assistant), assistant.graph_id)


@router.get("/assistants/{assistant_id}/subgraphs", dependencies=[READ])
@router.get("/assistants/{assistant_id}/subgraphs/{namespace}", dependencies=[READ])
async def get_subgraphs(
    assistant_id: str, api: ApiDep, namespace: str | None = None, recurse: bool = False
) -> Json:
    """Get the JSON schemas of the subgraphs of an assistant's graph, or of those in a namespace."""
    assistant = await find_assistant(api, assistant_id)
    subgraphs = compiled(api, assistant).get_subgraphs(namespace=namespace, recurse=recurse)
    return {
        name: schemas(inner, assistant.graph_id)
        for name, inner in subgraphs
        if isinstance(inner, Pregel)
    }


@router.post("/assistants/{assistant_id}/versions", dependencies=[READ])
async def get_versions(assistant_id: str, body: VersionSearch, api: ApiDep) -> Any:
    """List the versions of an assistant. Only the newest is kept."""
    assistant = await find_assistant(api, assistant_id)
    return page_of(
        [assistant] if has_metadata(assistant.metadata, body.metadata) else [], body, wire
    )


@router.post("/assistants/{assistant_id}/latest", dependencies=[START])
async def set_latest(assistant_id: str, body: ChosenVersion, api: ApiDep) -> Json:
    """Set the version that an assistant's runs use. 404 for all but the newest, which they use
    already."""
    assistant = await find_assistant(api, assistant_id, "update", {"version": body.version})
    if body.version != assistant.version:
        raise NotFound("assistant", f"{assistant.assistant_id} version {body.version}")
    return wire(assistant)


def mirrored(config: Json | None, context: Any) -> dict[str, Any]:
    """A config and a context, where a value that only one of them has is copied to the other."""
    config = dict(config or {})
    if not context:
        context = config.get("configurable") or {}
    elif isinstance(context, Mapping) and not config.get("configurable"):
        config["configurable"] = dict(context)
    return {"config": config, "context": context}


Graph = Pregel[Any, Any, Any, Any]
SCHEMAS = ("input_schema", "output_schema", "state_schema", "config_schema", "context_schema")


def drawing(graph: Graph, xray: bool | int) -> dict[str, Any]:
    """The nodes and edges of a graph; with `xray` also those of its subgraphs, down to that many
    levels."""
    drawn = graph.get_graph(xray=xray).to_json()
    nodes = []
    for node in drawn["nodes"]:
        item: dict[str, Any] = {key: one for key, one in node.items() if key != "data"}
        if isinstance(data := node.get("data"), dict):
            item["data"] = {"name": data.get("name", node["id"])}
        nodes.append(item)
    return {"nodes": nodes, "edges": drawn["edges"]}


def schemas(graph: Graph, graph_id: str) -> dict[str, Any]:
    """The JSON schemas of a graph. A schema that cannot be derived is None."""
    makers: tuple[Callable[[Graph], Any], ...] = (
        lambda one: one.get_input_jsonschema(),
        lambda one: one.get_output_jsonschema(),
        _state_schema,
        _config_schema,
        lambda one: _schema_of(one.context_schema),
    )
    by_name: dict[str, Any] = {"graph_id": graph_id}
    for name, make in zip(SCHEMAS, makers, strict=True):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                by_name[name] = make(graph)
        except Exception:  # raised by pydantic, or by a user's type
            by_name[name] = None
    return by_name


def _state_schema(graph: Graph) -> Any:
    channels: Any = graph.channels
    fields: Any = {name: (channels[name].ValueType, None) for name in graph.stream_channels_list}
    return create_model(graph.get_name("State"), **fields).model_json_schema()


def _config_schema(graph: Graph) -> Any:
    """The schema of `config["configurable"]`, which mirrors the context."""
    schema = _schema_of(graph.context_schema)
    return {} if schema is None else {**schema, "title": "Configurable"}


def _schema_of(kind: Any) -> Any:
    if kind is None:
        return None
    if is_typeddict(kind):  # pydantic accepts `typing.TypedDict` only on Python 3.12 and later
        hints = get_type_hints(kind)
        required: frozenset[str] = getattr(kind, "__required_keys__", frozenset())
        fields: Any = {name: (hints[name], ... if name in required else None) for name in hints}
        return create_model(kind.__name__, **fields).model_json_schema()
    return TypeAdapter(kind).json_schema()
