"""Detect that the code of a graph changed under a run in a way that would lose the run's place.

The topology of a graph is what a run needs to go on: its nodes, what triggers each, and the
topologies of its subgraphs. Its fingerprint is a hash of that. A run stores the fingerprint it was
last driven with. If the graph has another one now, `lost_nodes` finds the nodes where the run would
go on and cannot; LangGraph itself would return as if the run were finished.
"""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.pregel import Pregel
from langgraph.pregel.protocol import PregelProtocol

from perdure import langgraph_port

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
        if langgraph_port.is_send(channel) and value.node in old and value.node not in new:
            lost.add(value.node)
        elif channel not in heard:
            lost |= {node for node, entry in old.items() if channel in entry["triggers"]}
    return sorted(lost)


def pending_nodes(topology: Topology, at: CheckpointTuple) -> list[str]:
    """The nodes where a graph goes on from a checkpoint."""
    return sorted(_pending(topology, at))


def subgraph(topology: Topology, ns: str) -> Topology | None:
    """The topology of the subgraph of a namespace, if it is still there."""
    for node, _ in langgraph_port.namespace_nodes(ns):
        entry = topology.get(node, {})
        if "graph" not in entry:
            return None
        topology = entry["graph"]
    return topology


def _pending(topology: Topology, at: CheckpointTuple, partly: bool = False) -> set[str]:
    checkpoint = at.checkpoint
    versions, values = checkpoint["channel_versions"], checkpoint["channel_values"]
    found = set()
    for node, entry in topology.items():
        seen = checkpoint["versions_seen"].get(node, {})
        for channel in entry["triggers"]:
            if channel not in values or not is_newer(versions.get(channel), seen.get(channel)):
                continue
            if langgraph_port.has_joined(channel, node, values[channel], partly):
                found.add(node)
    for send in langgraph_port.pending_sends(values):
        if send.node in topology:
            found.add(send.node)
        elif topology:
            found.discard(send.node)
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
        f"{', '.join(added) or 'none'}). Bring the node back and retry the run, or fork it"
    )
    return {"reason": reason, "lost": lost, "removed": removed, "added": added}
