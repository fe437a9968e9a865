"""The target of an evaluation, as a graph with a name of its own. So its runs are distinct from
real ones, and only a process that evaluates drives them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from langgraph.func import entrypoint
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from perdure.errors import BadArgument, UnknownGraph
from perdure.runtime import Runtime

TARGETS = "evals:"
"""The name of a target's graph begins with it."""
DEATHS = 25
"""Workers in a row that may die with a run: more than usual, since a person restarts each."""


def target_name(target: Any) -> str:
    """The name of a target."""
    if isinstance(target, str):
        return target
    if isinstance(target, StateGraph):
        return "graph"
    if isinstance(target, Pregel) or hasattr(target, "unbound"):
        return str(target.name)
    name = getattr(target, "__name__", None) or type(target).__name__
    return "function" if name == "<lambda>" else str(name)


@contextlib.contextmanager
def registered(
    target: Any, name: str, evaluation: str, runtime: Runtime
) -> Iterator[tuple[str, str]]:
    """Register the graph that the runs of the target are runs of, under another name and with the
    evaluation as its version. Gives both."""
    graphs = runtime.engine.graphs
    if hasattr(target, "unbound") and target.name in runtime.graphs:
        target = target.name
    if isinstance(target, str):
        if target not in graphs.newest:
            raise UnknownGraph(target, runtime.graphs)
        original = graphs.newest[target]
        graph = replace(
            original,
            name=TARGETS + name,
            version=evaluation,
            deaths=max(DEATHS, original.deaths),
            hold=False,
            _with_old_names={},
        )
        graphs.add(graph)
    else:
        if not isinstance(target, (StateGraph, Pregel)) and not hasattr(target, "unbound"):
            target = as_graph(target)
        runtime.register(target, name=TARGETS + name, version=evaluation, deaths=DEATHS)
        graph = graphs.newest[TARGETS + name]
    try:
        yield graph.name, graph.version
    finally:
        graphs.discard(graph)


def as_graph(function: Callable[[Any], Any]) -> Any:
    """A function of the input, as a graph."""
    if not callable(function):
        raise BadArgument(
            f"The target must be the name of a registered graph, a graph, or a function of the "
            f"input, not {function!r}."
        )
    if is_coroutine_function(function):

        async def acall(input: Any) -> Any:
            return await function(input)

        return entrypoint()(acall)

    def call(input: Any) -> Any:
        return function(input)

    return entrypoint()(call)


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine: it may also be an object with `async def __call__`."""
    call = getattr(function, "__call__", None)  # noqa: B004 (is it a coroutine function?)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
