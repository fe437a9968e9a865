"""Breakpoints: a run that stops at one waits for a person to let it go on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from perdure.execution.graph_changes import is_newer, pending_nodes
from perdure.execution.graphs import Graph
from perdure.execution.segment_drive import Drive, latest_checkpoint
from perdure.journal import Plan
from perdure.langgraph_port import checkpoint_names
from perdure.operations.claims import SegmentEnd
from perdure.operations.waits import Question, WaitRow
from perdure.saver import Saver
from perdure.types import EventKind, Kind, State, WaitState


def stop_at_breakpoint(saver: Saver, drive: Drive) -> Plan[SegmentEnd | None]:
    """Store the wait of a run that stopped at a breakpoint. None if it did not."""
    at = yield from latest_checkpoint(saver, drive.row.thread_id)
    nodes = [] if at is None else pending_nodes(json.loads(drive.graph.topology), at)
    if at is None or not nodes:
        return None
    yield drive.segment.questions.ask_for_run(
        Question(Kind.HUMAN), {"breakpoint": nodes}, breakpoint_id(at), at.checkpoint["id"]
    )
    return SegmentEnd(State.WAITING, EventKind.WAITING, {})


def is_at_breakpoint(
    saver: Saver, drive: Drive, found: Sequence[WaitRow], discarded: bool
) -> Plan[bool]:
    """Whether a run is at a breakpoint, and no person has let it go on yet. `discarded`: whether
    its wait may have been deleted, because it could not be read."""
    row = drive.row
    open = [wait.interrupt_id for wait in found if wait.state == WaitState.OPEN]
    if any(id.startswith("breakpoint:") for id in open):
        return True
    unsure = row.was == State.RUNNING or drive.segment.is_fork or discarded
    if not drive.has_breakpoints or not unsure:
        return False
    # Its driver may have died between the checkpoint and the wait; a fork may begin at one.
    at = yield from latest_checkpoint(saver, row.thread_id)
    if at is None or any(wait.interrupt_id == breakpoint_id(at) for wait in found):
        return False
    before: CheckpointTuple | None = None
    if at.parent_config is not None:
        parent = at.parent_config["configurable"]["checkpoint_id"]
        before = yield from latest_checkpoint(saver, row.thread_id, id=parent)
    return _has_stopped(drive.graph, drive.breakpoints, at, before)


def breakpoint_id(at: CheckpointTuple) -> str:
    """The interrupt id of the breakpoint at a checkpoint."""
    return f"breakpoint:{at.checkpoint['id']}"


def _has_stopped(
    graph: Graph, more: Mapping[str, Any], at: CheckpointTuple, before: CheckpointTuple | None
) -> bool:
    """Whether LangGraph stopped at this checkpoint because of a breakpoint, `more` included."""
    seen = checkpoint_names.versions_at_stop(at.checkpoint)
    versions = at.checkpoint["channel_versions"]
    if not any(is_newer(version, seen.get(channel)) for channel, version in versions.items()):
        return False
    stops = [graph.pregel.interrupt_before_nodes, more.get("interrupt_before")]
    if _is_among(pending_nodes(json.loads(graph.topology), at), stops):
        return True
    known = {} if before is None else before.checkpoint["versions_seen"]
    moved = at.checkpoint["versions_seen"].items()
    ran = [n for n, what in moved if what != known.get(n) and checkpoint_names.is_node(n)]
    return _is_among(ran, [graph.pregel.interrupt_after_nodes, more.get("interrupt_after")])


def _is_among(nodes: list[str], stops: list[Any]) -> bool:
    return any(stop == "*" or node in (stop or ()) for node in nodes for stop in stops)
