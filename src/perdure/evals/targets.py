"""The target of an evaluation, as a graph with a name of its own. So its runs are distinct from
real ones, and only a process that evaluates drives them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from langgraph.func import entrypoint
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from perdure.errors import BadArgument, UnknownGraph
from perdure.execution.bound_graph import BoundGraph
from perdure.execution.graphs import Graph, bind
from perdure.journal.names import check_text
from perdure.runtime import Runtime
from perdure.types import Retry

TARGETS = "evals:"
"""The name of a target's graph begins with it."""
DEATHS = 25
"""Workers in a row that may die with a run: more than usual, since a person restarts each."""


def target_name(target: Any) -> str:
    """The name of a target."""
    if isinstance(target, str):
        return check_text("target", target)
    if isinstance(target, StateGraph):
        return "graph"
    if isinstance(target, (Pregel, BoundGraph)):
        return str(target.name)
    name = getattr(target, "__name__", None) or type(target).__name__
    return "function" if name == "<lambda>" else str(name)


def graph_of(target: Any, name: str, evaluation: str, runtime: Runtime) -> Graph:
    """The graph that the runs of the target are runs of: registered under another name, with the
    evaluation as its version."""
    if isinstance(target, BoundGraph) and target.name in runtime.graphs:
        target = target.name
    if isinstance(target, str):
        registered = runtime.engine.graphs.newest.get(target)
        if registered is None:
            raise UnknownGraph(target, runtime.graphs)
        return replace(
            registered,
            name=TARGETS + name,
            version=evaluation,
            deaths=max(DEATHS, registered.deaths),
            hold=False,
            _with_old_names={},
        )
    if isinstance(target, BoundGraph):
        target = target.unbound
    if not isinstance(target, (StateGraph, Pregel)):
        target = as_graph(target)
    name, pregel = bind(target, runtime.saver, TARGETS + name)
    return Graph(name, evaluation, pregel, timedelta(hours=1), Retry(), DEATHS, False)


def as_graph(function: Callable[[Any], Any]) -> Any:
    """A function of the input, as a graph."""
    if not callable(function):
        raise BadArgument(
            f"The target must be the name of a registered graph, a graph, or a function of the "
            f"input, not {function!r}."
        )
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (is it a coroutine function?)
    )
    if is_async:

        async def acall(input: Any) -> Any:
            return await function(input)

        return entrypoint()(acall)

    def call(input: Any) -> Any:
        return function(input)

    return entrypoint()(call)
