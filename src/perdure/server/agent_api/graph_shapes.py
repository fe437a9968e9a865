"""The nodes, edges and JSON schemas of a graph, in the Agent Server API."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, get_type_hints, is_typeddict

from langgraph.pregel import Pregel
from pydantic import TypeAdapter, create_model

Graph = Pregel[Any, Any, Any, Any]
SCHEMAS = ("input_schema", "output_schema", "state_schema", "config_schema", "context_schema")


def drawing(graph: Graph, xray: bool | int) -> dict[str, Any]:
    """The nodes and edges of a graph; with `xray` also those of its subgraphs, down to that many
    levels."""
    found = graph.get_graph(xray=xray).to_json()
    nodes = []
    for node in found["nodes"]:
        item: dict[str, Any] = {key: one for key, one in node.items() if key != "data"}
        if isinstance(data := node.get("data"), dict):
            item["data"] = {"name": data.get("name", node["id"])}
        nodes.append(item)
    return {"nodes": nodes, "edges": found["edges"]}


def schemas(graph: Graph, graph_id: str) -> dict[str, Any]:
    """The JSON schemas of a graph. A schema that cannot be derived is None."""
    makers: tuple[Callable[[Graph], Any], ...] = (
        lambda one: one.get_input_jsonschema(),
        lambda one: one.get_output_jsonschema(),
        _state_schema,
        _config_schema,
        lambda one: _schema_of(one.context_schema),
    )
    found: dict[str, Any] = {"graph_id": graph_id}
    for name, make in zip(SCHEMAS, makers, strict=True):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name] = make(graph)
        except Exception:  # raised by pydantic, or by a user's type
            found[name] = None
    return found


def subgraph_schemas(
    graph: Graph, graph_id: str, namespace: str | None, *, recurse: bool
) -> dict[str, Any]:
    """The JSON schemas of the subgraphs of a graph, by namespace."""
    found = graph.get_subgraphs(namespace=namespace, recurse=recurse)
    return {name: schemas(inner, graph_id) for name, inner in found if isinstance(inner, Pregel)}


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
