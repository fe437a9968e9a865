"""Graphs that a runtime drives: bound to its saver, and known by their shape.

The shape of a graph is what a run needs to go on: its nodes, what triggers each, and the shapes of
its subgraphs. A run remembers the shape it was last driven with. When the graph has another one,
`lost_nodes` tells whether the run can go on; LangGraph itself would return as if it were finished.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.pregel.protocol import PregelProtocol

from perdure import langgraph_port
from perdure.errors import BadArgument, NotDurable
from perdure.saver import Saver
from perdure.types import Retry

Shape = dict[str, Any]


Paths = frozenset[tuple[str, ...]]


@dataclass(frozen=True)
class Graph:
    """A graph as it is registered."""

    name: str
    version: str
    pregel: Pregel[Any, Any, Any, Any]
    timeout: timedelta
    retry: Retry
    deaths: int
    hold: bool
    """Whether a run that failed for good is held, for a person to retry."""
    shape: str = field(repr=False)
    fingerprint: str

    @property
    def key(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def title(self) -> str:
        """Its name, and its version if it has one."""
        return self.key if self.version else self.name

    @functools.cached_property
    def stops(self) -> bool:
        """Whether it, or a graph inside it, was compiled with breakpoints."""
        inner = [graph for _, graph in self.pregel.get_subgraphs(recurse=True)]
        return any(
            graph.interrupt_before_nodes or graph.interrupt_after_nodes
            for graph in (self.pregel, *inner)
            if isinstance(graph, Pregel)
        )

    @functools.cached_property
    def durability(self) -> str:
        """What LangGraph is told, so that it hands over checkpoints one by one.

        With `sync` it cannot run a subgraph that was compiled with checkpointer=False.
        """
        return "async" if self.unstored else "sync"

    @functools.cached_property
    def unstored(self) -> Paths:
        """The nodes in which a graph runs whose checkpoints are not stored."""
        return _unstored(self.pregel, ())

    def output(self, at: CheckpointTuple) -> Any:
        """What the graph returns at this checkpoint."""
        return langgraph_port.output_at(self.pregel, at, cast(Saver, self.pregel.checkpointer))


def _unstored(graph: Pregel[Any, Any, Any, Any], path: tuple[str, ...]) -> Paths:
    """The nodes that hold a graph compiled with checkpointer=False, by their names from the top."""
    found: set[tuple[str, ...]] = set()
    for name, node in graph.nodes.items():
        place = (*path, name)
        for inner in langgraph_port.graphs_in(node.bound):
            found |= {place} if inner.checkpointer is False else _unstored(inner, place)
    return frozenset(found)


def bind(
    graph: Any,
    saver: Saver,
    *,
    name: str | None,
    version: str,
    timeout: timedelta,
    retry: Retry,
    deaths: int,
    hold: bool,
) -> Graph:
    """A copy of `graph` on the runtime's saver. What was given is not changed."""
    if isinstance(graph, StateGraph):
        pregel: Pregel[Any, Any, Any, Any] = graph.compile(checkpointer=saver, name=name)
        name = name or pregel.name
    elif isinstance(graph, Pregel):
        name = name or _name_of(graph)
        _check_saver(graph.checkpointer, saver, name)
        pregel = copy.copy(graph)
        pregel.checkpointer = saver
        saver.with_allowlist(langgraph_port.types_of(pregel))
    else:
        raise BadArgument(
            f"register() takes a StateGraph, a compiled graph or an @entrypoint, not {graph!r}."
        )
    if not name or name == "LangGraph":
        raise BadArgument("register() needs a name for this graph: register(graph, name='...').")
    if isinstance(context := pregel.context_schema, type):
        saver.with_allowlist([(context.__module__, context.__qualname__)])
    shape = json.dumps(shape_of(pregel), sort_keys=True)
    return Graph(
        name=name,
        version=version,
        pregel=pregel,
        timeout=timeout,
        retry=retry,
        deaths=deaths,
        hold=hold,
        shape=shape,
        fingerprint=hashlib.blake2b(shape.encode(), digest_size=16).hexdigest(),
    )


def _name_of(graph: Pregel[Any, Any, Any, Any]) -> str:
    """A graph's name, or, if it has none of its own, that of its one function."""
    return next(iter(graph.nodes)) if len(graph.nodes) == 1 else graph.name


def _check_saver(given: Any, ours: Saver, name: str) -> None:
    if given is None or given is ours:
        return
    if isinstance(given, InMemorySaver):
        raise NotDurable(
            f"The graph {name!r} was compiled with an in-memory saver: what it holds dies with "
            "this process. Compile it without a checkpointer; the runtime brings its own."
        )
    if isinstance(given, bool):
        raise NotDurable(
            f"The graph {name!r} was compiled with checkpointer={given}, which is for subgraphs. "
            "Compile it without a checkpointer; the runtime brings its own."
        )
    if isinstance(given, Saver) and given.journal is ours.journal:
        return
    if isinstance(given, BaseCheckpointSaver):
        raise NotDurable(
            f"The graph {name!r} was compiled with another saver ({type(given).__name__}), whose "
            "checkpoints are not in this runtime's journal. Compile it without a checkpointer."
        )
    raise NotDurable(f"The graph {name!r} has a checkpointer of an unknown kind: {given!r}.")


def shape_of(graph: PregelProtocol[Any, Any, Any, Any]) -> Shape:
    """The nodes of a graph, what triggers each, and their subgraphs."""
    shape: Shape = {}
    if isinstance(graph, Pregel):
        inner = dict(graph.get_subgraphs())
        for name, node in graph.nodes.items():
            entry: Shape = {"triggers": sorted(node.triggers)}
            if name in inner:
                entry["graph"] = shape_of(inner[name])
            shape[name] = entry
    return shape


def lost_nodes(old: Shape, new: Shape, at: CheckpointTuple) -> list[str]:
    """The nodes at which the old graph would go on here, and the new one would not."""
    lost = _pending(old, at, partly=True) - _pending(new, at, partly=True)
    heard = {channel for entry in new.values() for channel in entry["triggers"]}
    for _, channel, value in at.pending_writes or ():  # of tasks that ended, beside one that rests
        if langgraph_port.is_send(channel) and value.node in old and value.node not in new:
            lost.add(value.node)
        elif channel not in heard:
            lost |= {node for node, entry in old.items() if channel in entry["triggers"]}
    return sorted(lost)


def pending_nodes(shape: Shape, at: CheckpointTuple) -> list[str]:
    """The nodes at which a graph goes on from a checkpoint."""
    return sorted(_pending(shape, at))


def stands_at_breakpoint(
    graph: Graph,
    more: Mapping[str, Any],
    at: CheckpointTuple,
    before: CheckpointTuple | None,
) -> bool:
    """Whether LangGraph stopped at this checkpoint because it was told to, `more` included."""
    seen = langgraph_port.versions_at_stop(at.checkpoint)
    versions = at.checkpoint["channel_versions"]
    if not any(_is_newer(version, seen.get(channel)) for channel, version in versions.items()):
        return False
    stops = [graph.pregel.interrupt_before_nodes, more.get("interrupt_before")]
    if _is_among(pending_nodes(json.loads(graph.shape), at), stops):
        return True
    known = {} if before is None else before.checkpoint["versions_seen"]
    moved = at.checkpoint["versions_seen"].items()
    ran = [n for n, what in moved if what != known.get(n) and langgraph_port.is_node(n)]
    return _is_among(ran, [graph.pregel.interrupt_after_nodes, more.get("interrupt_after")])


def _is_among(nodes: list[str], stops: list[Any]) -> bool:
    return any(stop == "*" or node in (stop or ()) for node in nodes for stop in stops)


def inside(shape: Shape, ns: str) -> Shape | None:
    """The shape of the subgraph of a namespace, if it is still there."""
    for node, _ in langgraph_port.namespace_nodes(ns):
        entry = shape.get(node, {})
        if "graph" not in entry:
            return None
        shape = entry["graph"]
    return shape


def _pending(shape: Shape, at: CheckpointTuple, partly: bool = False) -> set[str]:
    checkpoint = at.checkpoint
    versions, values = checkpoint["channel_versions"], checkpoint["channel_values"]
    found = set()
    for node, entry in shape.items():
        seen = checkpoint["versions_seen"].get(node, {})
        for channel in entry["triggers"]:
            if channel not in values or not _is_newer(versions.get(channel), seen.get(channel)):
                continue
            if langgraph_port.has_joined(channel, node, values[channel], partly):
                found.add(node)
    for send in langgraph_port.pending_sends(values):
        if send.node in shape:
            found.add(send.node)
        elif shape:
            found.discard(send.node)
    return found


def _is_newer(version: Any, seen: Any) -> bool:
    return version is not None and (seen is None or version > seen)
