"""What LangChain's agents, LangSmith's client and LangGraph's stores hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from perdure.langgraph_port.compiled_graphs import graphs_in
from perdure.langgraph_port.configs import closed_over

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore, PutOp
    from langgraph.types import Command
    from langsmith import Client

    from perdure.langgraph_port.compiled_graphs import Graph


# -- LangChain's agents, middleware and models


def middleware_commands(handler: Callable[..., Any]) -> list[Command[Any]] | None:
    """The handler that middleware gets closes over a list, in which LangChain collects the state
    updates of middleware between it and the model. None if there is no such middleware.
    """
    commands: list[Command[Any]] | None = closed_over(handler, "accumulated_commands")
    return commands


def model_parameters(model: Any) -> Any:
    """A model of LangChain gives in `_identifying_params` what tells its answers apart."""
    return getattr(model, "_identifying_params", None)


def response_types(graph: Graph) -> list[Any]:
    """An agent of LangChain closes over its `response_format`, whose `schema` is the type of the
    structured response. It is in no state schema. Gives those of graphs inside it, too.
    """
    found: list[Any] = []
    for node in graph.nodes.values():
        formats = closed_over(getattr(node.bound, "func", None), "initial_response_format")
        if (schema := getattr(formats, "schema", None)) is not None:
            found.append(schema)
        for inner in graphs_in(node.bound):
            found += response_types(inner)
    return found


# -- LangSmith's client

Content = Mapping[str, Any]


def is_sampled(client: Client, trace_id: Any) -> bool:
    """A client with a sampling rate sends a share of the traces, chosen by their ids."""
    return client._should_sample(trace_id)


def hidden_content(
    client: Client, inputs: Content, outputs: Content, metadata: Content
) -> tuple[Content, Content, Content]:
    """What the client would send of a run: it hides inputs, outputs or metadata, or anonymizes
    them. Raises what its anonymizer raises."""
    return (
        client._hide_run_inputs(dict(inputs)),
        client._hide_run_outputs(dict(outputs)),
        client._hide_run_metadata(dict(metadata)),
    )


def can_queue(client: Client) -> bool:
    """Whether the client sends in the background."""
    return client.tracing_queue is not None


# -- LangGraph's stores


def store_loop(store: BaseStore | None) -> Any:
    """A store that is only awaited keeps the event loop it was made in."""
    return getattr(store, "_loop", None)


def can_write_queries(store: Any) -> bool:
    """The stores on SQLite and PostgreSQL make the statements of a batch before they run them."""
    return hasattr(store, "_prepare_batch_PUT_queries")


def put_queries(store: Any, ops: list[PutOp]) -> tuple[list[Any], Any]:
    """They give the statements of `put`s, and the statement and texts of what is to be embedded."""
    queries, embed = store._prepare_batch_PUT_queries(list(enumerate(ops)))
    return list(queries), embed


def store_cursor(store: Any) -> Any:
    """They give a cursor as a context manager; one that is only awaited, as an async one."""
    return store._cursor()
