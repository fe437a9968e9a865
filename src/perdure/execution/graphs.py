"""The graphs that a runtime drives: bound to its saver, and registered by name and version.

The topology of a graph is what a run needs to go on: its nodes, what triggers each, and the
topologies of its subgraphs. Its fingerprint is a hash of that. A run stores the fingerprint it was
last driven with. If the graph has another one now, `lost_nodes` finds the nodes where the run would
go on and cannot; LangGraph itself would return as if the run were finished, or run a node again
and not find its answers and effects. `old_names` gives the names that a run knows of renamed nodes.

With redaction, the nodes of a graph return what will be stored: the next node sees the same with a
crash or without.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast

from langgraph.channels import UntrackedValue
from langgraph.channels.base import BaseChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.pregel.protocol import PregelProtocol
from langgraph.store.base import BaseStore
from langgraph.types import Command

from perdure.errors import BadArgument, Error, NotDurable, UnknownGraph, forgot_await
from perdure.journal.names import check_text
from perdure.langgraph_port import checkpoint_names, compiled_graphs, ecosystem
from perdure.langgraph_port.compiled_graphs import OldJoin, OldNode
from perdure.saver import Saver
from perdure.serde.allowlist import check_storable
from perdure.serde.serializer import Serializer
from perdure.types import Retry

Topology = dict[str, Any]


def topology_of(graph: PregelProtocol[Any, Any, Any, Any]) -> Topology:
    """The nodes of a graph, what triggers each, and their subgraphs."""
    topology: Topology = {}
    if isinstance(graph, Pregel):
        inner = dict(graph.get_subgraphs())
        for name, node in graph.nodes.items():
            entry: Topology = {"triggers": sorted(node.triggers)}
            if name in inner:
                entry["graph"] = topology_of(inner[name])
            topology[name] = entry
    return topology


def lost_nodes(old: Topology, new: Topology, at: CheckpointTuple) -> list[str]:
    """The nodes where the old graph would go on from a checkpoint and the new one would not."""
    lost = pending_nodes(old, at, partly=True) - pending_nodes(new, at, partly=True)
    heard = {channel for entry in new.values() for channel in entry["triggers"]}
    for _, channel, value in at.pending_writes or ():  # of tasks that ended beside one that waits
        if checkpoint_names.is_send(channel) and value.node in old and value.node not in new:
            lost.add(value.node)
        elif channel not in heard:
            lost |= {node for node, entry in old.items() if channel in entry["triggers"]}
    return sorted(lost | _rewired(old, new, at))


def _rewired(old: Topology, new: Topology, at: CheckpointTuple) -> set[str]:
    """The nodes that are reached in both, but as another task, for which nothing is recorded."""
    both = _triggered(old, at) & _triggered(new, at)
    return {node for node in both if old[node]["triggers"] != new[node]["triggers"]}


def is_kept(old: Topology, new: Topology) -> bool:
    """Whether a run can go on from anywhere in the old graph, wherever it is."""
    return all(
        node in new
        and entry["triggers"] == new[node]["triggers"]
        and ("graph" not in entry or is_kept(entry["graph"], new[node].get("graph", {})))
        for node, entry in old.items()
    )


def old_names(
    renamed: Mapping[str, str], graph: Pregel[Any, Any, Any, Any], old: Topology
) -> tuple[dict[str, OldNode], dict[str, OldJoin]]:
    """The nodes and joins of a graph that a run of topology `old` knows by other names."""
    known: dict[str, list[str]] = {}
    for name in old.keys() & renamed.keys():
        known.setdefault(resolve(renamed, name), []).append(name)
    nodes = {
        name: OldNode(now, old[name]["triggers"]) for now, names in known.items() for name in names
    }
    heard = {(end, channel) for end, entry in old.items() for channel in entry["triggers"]}
    joins: dict[str, OldJoin] = {}
    for channel, (starts, end) in compiled_graphs.joins_of(graph).items():
        for names in itertools.product(*([one, *known.get(one, ())] for one in (*starts, end))):
            before = checkpoint_names.join_channel(names[:-1], names[-1])
            if before != channel and (names[-1], before) in heard:
                joins[channel] = OldJoin(before, names[-1], dict(zip(starts, names, strict=False)))
    return nodes, joins


def with_aliases(
    renamed: Mapping[str, str], graph: Pregel[Any, Any, Any, Any]
) -> Pregel[Any, Any, Any, Any]:
    """A graph that has its renamed nodes under their old names too, so that `get_state` finds what
    waits there. What a run needs beyond that depends on the run: `old_names`."""
    nodes = {
        old: OldNode(resolve(renamed, old), [checkpoint_names.edge_channel(old)]) for old in renamed
    }
    return compiled_graphs.with_old_names(graph, nodes, {}) if nodes else graph


def resolve(renamed: Mapping[str, str], name: str) -> str:
    """The name that a node has now."""
    while name in renamed:
        name = renamed[name]
    return name


def check_renames(renamed: Mapping[str, str], graph: Pregel[Any, Any, Any, Any], name: str) -> None:
    """Refuse renames that a graph cannot have: they would lose runs, or run them twice."""
    if not renamed:
        return
    if not compiled_graphs.is_state_graph(graph):
        raise BadArgument(
            f"renamed= of {name!r}: only the nodes of a StateGraph can be renamed. Keep the name "
            "of the function, or register the graph under another version."
        )
    targets = list(renamed.values())
    for old, new in renamed.items():
        rename = f"renamed={{{old!r}: {new!r}}} of {name!r}"
        if old in graph.nodes:
            raise BadArgument(f"{rename}: the graph still has a node {old!r}. Leave it out.")
        if targets.count(new) > 1:
            raise BadArgument(
                f"{rename}: another node is renamed to {new!r} as well. Two nodes cannot become "
                "one: keep one of them under its old name."
            )
        seen = {old}
        while new in renamed and new not in seen:
            seen.add(new)
            new = renamed[new]
        if new in seen:
            raise BadArgument(f"{rename}: the renames form a cycle.")
        if new not in graph.nodes or not checkpoint_names.is_node(new):
            nodes = ", ".join(filter(checkpoint_names.is_node, graph.nodes))
            raise BadArgument(f"{rename}: the graph has no node {new!r}; it has {nodes}.")


def subgraph(topology: Topology, ns: str) -> Topology | None:
    """The topology of the subgraph of a namespace, if it is still there."""
    for node, _ in checkpoint_names.namespace_nodes(ns):
        entry = topology.get(node, {})
        if "graph" not in entry:
            return None
        topology = entry["graph"]
    return topology


def pending_nodes(topology: Topology, at: CheckpointTuple, partly: bool = False) -> set[str]:
    """The nodes where a graph goes on from a checkpoint."""
    found = _triggered(topology, at, partly)
    for send in checkpoint_names.pending_sends(at.checkpoint["channel_values"]):
        if send.node in topology:
            found.add(send.node)
        elif topology:
            found.discard(send.node)
    return found


def _triggered(topology: Topology, at: CheckpointTuple, partly: bool = False) -> set[str]:
    checkpoint = at.checkpoint
    versions, values = checkpoint["channel_versions"], checkpoint["channel_values"]
    found = set()
    for node, entry in topology.items():
        seen = checkpoint["versions_seen"].get(node, {})
        for channel in entry["triggers"]:
            if channel not in values or not is_newer(versions.get(channel), seen.get(channel)):
                continue
            if checkpoint_names.has_joined(channel, node, values[channel], partly):
                found.add(node)
    return found


def is_newer(version: Any, seen: Any) -> bool:
    """Whether a version of a channel has not been seen."""
    return version is not None and (seen is None or version > seen)


def explain(name: str, ns: str, lost: list[str], old: Topology, new: Topology) -> dict[str, Any]:
    """The data of the event that holds a run because of a change: its reason, and what changed."""
    where = f" in its subgraph {ns.partition(':')[0]!r}" if ns else ""
    removed, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    reason = (
        f"the graph {name!r} changed{where}: the run would go on at {', '.join(map(repr, lost))}, "
        f"which it can no longer reach (nodes removed: {', '.join(removed) or 'none'}; added: "
        f"{', '.join(added) or 'none'}). {_advice(ns, lost, removed, added)}"
    )
    return {"reason": reason, "lost": lost, "removed": removed, "added": added}


def _advice(ns: str, lost: list[str], removed: list[str], added: list[str]) -> str:
    fork = "Or fork it with as_node (--as-node), the node after which it goes on"
    gone = [node for node in lost if node in removed]
    if not gone:
        return f"Restore the edges that lead to it and retry the run. {fork}"
    one = len(gone) == 1
    if not added or ns:
        return f"Bring the node{'' if one else 's'} back and retry the run. {fork}"
    names = {node: added[0] if one and len(added) == 1 else "..." for node in gone}
    was, back = ("it was", "it") if one else ("they were", "them")
    return (
        f"Pass register(renamed={names}) if {was} renamed, or bring {back} back, and retry the "
        f"run. {fork}"
    )


Paths = frozenset[tuple[str, ...]]


@dataclass(frozen=True)
class Graph:
    """A registered graph."""

    name: str
    version: str
    pregel: Pregel[Any, Any, Any, Any]
    timeout: timedelta
    retry: Retry
    deaths: int
    hold: bool
    """Whether a run that failed for good is held, for a person to retry."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Names that nodes had before, and the next name of each."""
    _with_old_names: dict[str, Graph] = field(default_factory=dict, compare=False, repr=False)

    @property
    def key(self) -> str:
        return f"{self.name}@{self.version}"

    @functools.cached_property
    def topology(self) -> str:
        """What a run needs of the graph to go on, as JSON."""
        return json.dumps(topology_of(self.pregel), sort_keys=True)

    @functools.cached_property
    def fingerprint(self) -> str:
        """The hash of its topology."""
        return fingerprint_of(self.topology)

    @property
    def node_names(self) -> list[str]:
        """Its nodes, without LangGraph's own."""
        return list(filter(checkpoint_names.is_node, self.pregel.nodes))

    def with_old_names(self, fingerprint: str, old: Topology) -> Graph:
        """This graph for a run that was driven with another: its renamed nodes also have
        the names that the run knows. Returns itself if there are none."""
        if not self.renamed:
            return self
        found = self._with_old_names.get(fingerprint)
        if found is None:
            nodes, joins = old_names(self.renamed, self.pregel, old)
            found = self
            if nodes or joins:
                pregel = compiled_graphs.with_old_names(self.pregel, nodes, joins)
                found = replace(self, pregel=pregel, _with_old_names={})
            self._with_old_names[fingerprint] = found
        return found

    def with_store(self, store: BaseStore) -> Graph:
        """This graph with another store."""
        pregel = copy.copy(self.pregel)
        pregel.store = store
        return replace(self, pregel=pregel, _with_old_names={})

    def current_names(self, nodes: Any) -> Any:
        """Breakpoints of a run, with the names that their nodes have now."""
        if not self.renamed or isinstance(nodes, str):  # "*": all of them
            return nodes
        return [*nodes, *(resolve(self.renamed, one) for one in nodes if one in self.renamed)]

    @functools.cached_property
    def has_breakpoints(self) -> bool:
        """Whether it, or a graph inside it, was compiled with breakpoints."""
        inner = [graph for _, graph in self.pregel.get_subgraphs(recurse=True)]
        return any(
            graph.interrupt_before_nodes or graph.interrupt_after_nodes
            for graph in (self.pregel, *inner)
            if isinstance(graph, Pregel)
        )

    @functools.cached_property
    def durability(self) -> str:
        """The durability with which LangGraph hands over checkpoints one by one.

        With `sync` it cannot run a subgraph that was compiled with checkpointer=False.
        """
        return "async" if self.unstored else "sync"

    @functools.cached_property
    def unstored(self) -> Paths:
        """The nodes that contain a graph whose checkpoints are not stored."""
        return _unstored(self.pregel, ())

    def output(self, at: CheckpointTuple) -> Any:
        """What the graph returns at this checkpoint."""
        return compiled_graphs.output_at(self.pregel, at, cast(Saver, self.pregel.checkpointer))


def _unstored(graph: Pregel[Any, Any, Any, Any], path: tuple[str, ...]) -> Paths:
    """The nodes that hold a graph compiled with checkpointer=False, by their names from the top."""
    found: set[tuple[str, ...]] = set()
    for name, node in graph.nodes.items():
        place = (*path, name)
        for inner in compiled_graphs.graphs_in(node.bound):
            found |= {place} if inner.checkpointer is False else _unstored(inner, place)
    return frozenset(found)


def _check_types(graph: Pregel[Any, Any, Any, Any], saver: Saver, name: str) -> None:
    """Refuse types that could not be stored now, not after a model or a person has answered.

    The type of an agent's structured response is allowed, like those of its state.
    """
    for channel, kept in graph.channels.items():
        is_own = channel.startswith("__")  # LangGraph's: the input, of channels that are here too
        if isinstance(kept, BaseChannel) and not (is_own or isinstance(kept, UntrackedValue)):
            check_storable(kept.ValueType, f"{channel!r} in the state of graph {name!r}")
    for kind in ecosystem.response_types(graph):
        check_storable(kind, f"The response_format of graph {name!r}")
        if not isinstance(kind, dict):
            saver.with_allowlist(compiled_graphs.types_in([kind]))


def bind(
    graph: Any, saver: Saver, name: str | None, store: BaseStore | None = None
) -> tuple[str, Pregel[Any, Any, Any, Any]]:
    """A copy of `graph` on the runtime's saver, and its name. The argument is not changed. It gets
    the store if it has none."""
    if isinstance(graph, StateGraph):
        pregel: Pregel[Any, Any, Any, Any] = graph.compile(checkpointer=saver, name=name)
        name = name or pregel.name
    elif isinstance(graph, Pregel):
        # With a single node, such as an entrypoint, the name is that of the function.
        name = name or (next(iter(graph.nodes)) if len(graph.nodes) == 1 else graph.name)
        check_saver(graph.checkpointer, saver, name)
        pregel = copy.copy(graph)
        pregel.checkpointer = saver
        saver.with_allowlist(compiled_graphs.types_of(pregel))
    else:
        raise BadArgument(
            f"register() takes a StateGraph, a compiled graph or an @entrypoint, not {graph!r}."
            f"{forgot_await(graph)}"
        )
    if pregel.store is None:
        pregel.store = store
    if not name or name == "LangGraph":
        raise BadArgument("register() needs a name for this graph: register(graph, name='...').")
    if isinstance(context := pregel.context_schema, type):
        saver.with_allowlist([(context.__module__, context.__qualname__)])
    _check_types(pregel, saver, name)
    if "@" in check_text("name", name):
        raise BadArgument(f"The name of a graph must not contain '@': {name!r}.")
    return name, pregel


def check_saver(checkpointer: Any, ours: Saver, name: str) -> None:
    """Raise `NotDurable` unless a graph can be driven on our saver."""
    if checkpointer is None or checkpointer is ours:
        return
    if isinstance(checkpointer, Saver) and checkpointer.journal is ours.journal:
        return
    if isinstance(checkpointer, InMemorySaver):
        what = "an in-memory saver, which loses its state when the process ends"
    elif isinstance(checkpointer, bool):
        what = f"checkpointer={checkpointer}, which is for subgraphs"
    elif isinstance(checkpointer, BaseCheckpointSaver):
        kind = type(checkpointer).__name__
        what = f"another saver ({kind}), whose checkpoints are not in this runtime's journal"
    else:
        what = f"a checkpointer of an unknown kind: {checkpointer!r}"
    raise NotDurable(
        f"The graph {name!r} was compiled with {what}. Compile it without a checkpointer; the "
        "runtime brings its own."
    )


class GraphRegistry:
    """The graphs of a runtime, by name and version."""

    def __init__(self) -> None:
        self._by_key: dict[str, Graph] = {}
        self.newest: dict[str, Graph] = {}
        """By name, the version that was registered last."""

    def add(self, graph: Graph) -> None:
        if graph.key in self._by_key:
            raise BadArgument(
                f"A graph {graph.name!r} is registered already; give this one another name or a "
                "version."
            )
        self._by_key[graph.key] = self.newest[graph.name] = graph

    def give_store(self, store: BaseStore) -> None:
        """Give a store to the graphs that have none."""
        for graphs in (self._by_key, self.newest):
            for key, graph in graphs.items():
                if graph.pregel.store is None:
                    graphs[key] = graph.with_store(store)

    def remove(self, name: str, version: str | None = None) -> None:
        """Remove a version of a graph, or all."""
        for key, graph in list(self._by_key.items()):
            if graph.name == name and version in (None, graph.version):
                del self._by_key[key]
        self.newest.pop(name, None)
        for graph in self._by_key.values():
            if graph.name == name:
                self.newest[name] = graph  # the one that was registered last

    @property
    def names(self) -> list[str]:
        return sorted(self.newest)

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def find(self, name: str, version: str) -> Graph | None:
        return self._by_key.get(f"{name}@{version}")

    def chosen(self, names: Collection[str] | None = None) -> Mapping[str, Graph]:
        """Every version of these graphs by key. Without `names` all of them, as a live mapping."""
        if names is None:
            return self._by_key
        return {key: graph for key, graph in self._by_key.items() if graph.name in names}

    def resolve(self, name: str, version: str | None) -> tuple[str, str]:
        """The name and version of the graph that a caller means."""
        if version is not None and self.find(name, version) is not None:
            return name, version
        if version is None and name in self.newest:
            return name, self.newest[name].version
        known = [key.removesuffix("@") for key in self._by_key]
        raise UnknownGraph(name if version is None else f"{name}@{version}", sorted(known))


def fingerprint_of(topology: str) -> str:
    """The hash of a topology."""
    return hashlib.blake2b(topology.encode(), digest_size=16).hexdigest()


def with_redacted_outputs(
    graph: Pregel[Any, Any, Any, Any], serializer: Serializer
) -> Pregel[Any, Any, Any, Any]:
    """A graph whose nodes return what will be stored; the same graph without a policy."""
    if not serializer.redacts:
        return graph
    return compiled_graphs.with_outputs(graph, lambda value: redacted_output(serializer, value))


def redacted_output(serializer: Serializer, value: Any) -> Any:
    """A state, an update or a command, as it is stored. A value that cannot be stored stays as it
    is: its channel is not stored, or storing it raises."""
    if not serializer.redacts or value is None:
        return value
    if isinstance(value, Command):
        update = redacted_output(serializer, value.update)
        resume = _redacted(serializer, value.resume)
        if update is value.update and resume is value.resume:
            return value
        return replace(value, update=update, resume=resume)
    if type(value) is dict:
        fields = {name: _redacted(serializer, {name: item}, name) for name, item in value.items()}
        return value if all(fields[name] is value[name] for name in value) else fields
    if type(value) is list:
        items = [redacted_output(serializer, one) for one in value]
        changed = any(one is not other for one, other in zip(items, value, strict=True))
        return items if changed else value
    return _redacted(serializer, value)


def _redacted(serializer: Serializer, value: Any, name: Any = None) -> Any:
    """A value, or with `name` the only value of a dict, redacted."""
    try:
        found = serializer.redacted(value)
    except Error:
        found = value
    return found if name is None else next(iter(found.values()))
