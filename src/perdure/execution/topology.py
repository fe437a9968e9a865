"""Detect that the code of a graph changed under a run in a way that would lose the run's place.

The topology of a graph is what a run needs to go on: its nodes, what triggers each, and the
topologies of its subgraphs. Its fingerprint is a hash of that. A run stores the fingerprint it was
last driven with. If the graph has another one now, `lost_nodes` finds the nodes where the run would
go on and cannot; LangGraph itself would return as if the run were finished, or run a node again
and not find its answers and effects. `old_names` gives the names that a run knows of renamed nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.pregel import Pregel
from langgraph.pregel.protocol import PregelProtocol

from perdure.errors import BadArgument
from perdure.langgraph_port import checkpoint_names, compiled_graphs
from perdure.langgraph_port.compiled_graphs import OldJoin, OldNode

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
    lost = _pending(old, at, partly=True) - _pending(new, at, partly=True)
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


def pending_nodes(topology: Topology, at: CheckpointTuple) -> list[str]:
    """The nodes where a graph goes on from a checkpoint."""
    return sorted(_pending(topology, at))


def subgraph(topology: Topology, ns: str) -> Topology | None:
    """The topology of the subgraph of a namespace, if it is still there."""
    for node, _ in checkpoint_names.namespace_nodes(ns):
        entry = topology.get(node, {})
        if "graph" not in entry:
            return None
        topology = entry["graph"]
    return topology


def _pending(topology: Topology, at: CheckpointTuple, partly: bool = False) -> set[str]:
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
