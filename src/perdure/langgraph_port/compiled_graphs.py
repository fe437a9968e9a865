"""Compiled graphs: what they say of themselves, and copies with old names or changed outputs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.langgraph_port.checkpoint_names import edge_channel, join_channel

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.pregel import Pregel

    Graph = Pregel[Any, Any, Any, Any]


def ask_graphs_for_their_types(*, load: bool) -> None:
    """LangGraph has a switch, read at every compile, that makes it call `with_allowlist` on the
    saver with the types a graph's schemas name. It leaves a saver with LangGraph's own serializer
    as it was.

    Without `load`, does nothing while LangGraph is not imported.
    """
    if load or "langgraph._internal._serde" in sys.modules:
        from langgraph._internal import _serde

        _serde.STRICT_MSGPACK_ENABLED = True  # type: ignore[attr-defined]


def types_of(graph: Graph) -> set[tuple[str, ...]]:
    """What a compile would give to `with_allowlist` can be made for a compiled graph, too."""
    from langgraph._internal._serde import build_serde_allowlist

    schemas = [graph.context_schema] if graph.context_schema else None
    return build_serde_allowlist(schemas=schemas, channels=graph.channels)


def types_in(schemas: Sequence[Any]) -> set[tuple[str, ...]]:
    """The types that schemas name, as a compile would give them to `with_allowlist`."""
    from langgraph._internal._serde import build_serde_allowlist

    return build_serde_allowlist(schemas=list(schemas))


def output_at(graph: Graph, at: CheckpointTuple, saver: BaseCheckpointSaver[Any]) -> Any:
    """A graph's channels, made from a checkpoint, can be read as the graph does for its output."""
    from langgraph.errors import EmptyChannelError
    from langgraph.pregel._checkpoint import channels_from_checkpoint
    from langgraph.pregel._io import read_channels

    channels, _ = channels_from_checkpoint(
        graph.channels, at.checkpoint, saver=saver, config=at.config
    )
    try:
        return read_channels(channels, graph.output_channels)
    except EmptyChannelError:
        return None


def graphs_in(runnable: Any) -> list[Graph]:
    """LangGraph looks for subgraphs in a node's runnable, the steps of a sequence, and what its
    function (`func`, `afunc`) reaches from outside its scope.
    """
    from langgraph.pregel import Pregel
    from langgraph.pregel._utils import get_function_nonlocals

    if isinstance(runnable, Pregel):
        return [runnable]
    parts = list(getattr(runnable, "steps", ()))
    for function in (getattr(runnable, "func", None), getattr(runnable, "afunc", None)):
        if isinstance(function, FunctionType):
            held = get_function_nonlocals(function)
            parts += [getattr(one, "__self__", one) for one in held]
    return [graph for part in parts if part is not runnable for graph in graphs_in(part)]


# -- nodes under old names
#
# Where a checkpoint of a `StateGraph` has the name of a node:
#
#     versions_seen     its keys
#     branch:to:NODE    the channel of every edge, condition or goto that leads to a node
#     join:A+B:NODE     the channel of an edge from several; its value is the set of their names
#     Send.node         in the channel of `is_send`, and in pending writes to it
#     task id           a hash of checkpoint, namespace, step, node and all triggers of the node;
#                       of a `Send` and a `@task`, of its position instead of the triggers
#     namespace         `node:task`, and so the id of an interrupt and the subgraph's checkpoints
#
# Pending writes, answers, interrupts, waits and effects are all found by the task id. So a run goes
# on under the names it began with, in a graph that has them too.


class OldNode(NamedTuple):
    """A node under the name that a run knows it by."""

    now: str
    triggers: Sequence[str]


class OldJoin(NamedTuple):
    """An edge from several nodes under the names that a run knows them by."""

    channel: str
    end: str
    names: Mapping[str, str]
    """The old name of each node that it comes from, by its name now."""


def is_state_graph(graph: Graph) -> bool:
    """Only in a compiled `StateGraph` the triggers of a node are channels of its own."""
    from langgraph.graph.state import CompiledStateGraph

    return isinstance(graph, CompiledStateGraph)


def joins_of(graph: Graph) -> dict[str, tuple[tuple[str, ...], str]]:
    """The builder of a compiled graph keeps the edges from several nodes; gives them by channel."""
    builder: Any = graph.builder  # type: ignore[attr-defined]
    return {join_channel(starts, end): (starts, end) for starts, end in builder.waiting_edges}


def with_old_names(
    graph: Graph, nodes: Mapping[str, OldNode], joins: Mapping[str, OldJoin]
) -> Graph:
    """A copy of a compiled graph that has nodes under old names as well, and joins under old names
    instead. What its nodes write leads to the new ones.

    A graph reads its `nodes`, `channels` and what `validate` derives from them when it is called.
    A node's writers are `ChannelWrite`s; those of a join are plain entries.
    """
    copied = copy.copy(graph)
    copied.channels = {name: one for name, one in graph.channels.items() if name not in joins}
    for name, join in joins.items():
        channel: Any = copy.copy(graph.channels[name])
        channel.names = {join.names.get(one, one) for one in channel.names}
        copied.channels[join.channel] = channel
    copied.nodes = {name: _write_to_joins(node, joins) for name, node in graph.nodes.items()}
    for name, node in copied.nodes.items():
        kept = [one for one in node.triggers if one not in joins]
        node.triggers = kept + [join.channel for join in joins.values() if join.end == name]
    for old, (now, triggers) in nodes.items():
        copied.nodes[old] = copied.nodes[now].copy({"triggers": [*triggers]})
        for trigger in triggers:
            copied.channels.setdefault(trigger, copy.copy(graph.channels[edge_channel(now)]))
    handlers = {old: graph.node_error_handler_map.get(now) for old, (now, _) in nodes.items()}
    copied.node_error_handler_map = {
        **graph.node_error_handler_map,
        **{old: handler for old, handler in handlers.items() if handler is not None},
    }
    copied.interrupt_before_nodes = _and_old(graph.interrupt_before_nodes, nodes)
    copied.interrupt_after_nodes = _and_old(graph.interrupt_after_nodes, nodes)
    return copied.validate()


def _write_to_joins(node: Any, joins: Mapping[str, OldJoin]) -> Any:
    from langgraph.pregel._write import ChannelWrite, ChannelWriteEntry

    def renamed(entry: Any) -> Any:
        join = joins.get(entry.channel) if isinstance(entry, ChannelWriteEntry) else None
        if join is None:
            return entry
        return entry._replace(channel=join.channel, value=join.names.get(entry.value, entry.value))

    writers = [
        ChannelWrite([*map(renamed, one.writes)], tags=one.tags)
        if isinstance(one, ChannelWrite)
        else one
        for one in node.writers
    ]
    return node.copy({"triggers": [*node.triggers], "writers": writers})


def _and_old(names: Any, nodes: Mapping[str, OldNode]) -> Any:
    """Breakpoints, with the old names of their nodes."""
    if isinstance(names, str):  # "*": all of them
        return names
    return [*names, *(old for old, (now, _) in nodes.items() if now in names)]


# -- nodes that return something else than their functions do


def with_outputs(graph: Graph, change: Callable[[Any], Any]) -> Graph:
    """A copy of a compiled graph in which `change` is called on what each node returns. Graphs that
    are nodes are copied too; not those that the function of a node calls.

    A node's `writers` are run on what its `bound` returned, one after the other: each is given what
    the one before it gave, and `ChannelWrite` passes it on. So a callable in front of them changes
    what the node writes; also the input, which the writers of `__start__` write, and what
    `update_state` gives to the writers of a node.
    """
    from langgraph._internal._runnable import RunnableCallable
    from langgraph.pregel import Pregel

    copied = copy.copy(graph)
    copied.nodes = {}
    for name, node in graph.nodes.items():
        update: dict[str, Any] = {}
        if isinstance(node.bound, Pregel):
            inner = with_outputs(node.bound, change)
            update = {"bound": inner, "subgraphs": [inner]}
        if node.writers:
            first = RunnableCallable(change, trace=False, name="redact")
            update["writers"] = [first, *node.writers]
        copied.nodes[name] = node.copy({"triggers": [*node.triggers], **update})
    return copied.validate()
