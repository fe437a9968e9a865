"""What LangChain's agents, middleware and models hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perdure.langgraph_port.closures import closed_over
from perdure.langgraph_port.compiled_graphs import graphs_in

if TYPE_CHECKING:
    from langgraph.types import Command

    from perdure.langgraph_port.compiled_graphs import Graph


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
