"""The state of a run: at a step and before it, the latest, and the nodes that come next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig

from perdure.errors import UNREADABLE
from perdure.server.agent_api.assistants import drawing
from perdure.server.agent_api.thread_views import place, read_state, stored_state
from perdure.views.graph_layout import GraphShape

if TYPE_CHECKING:
    from perdure.runtime import Runtime
    from perdure.server.ui.site import Site


@dataclass(frozen=True)
class StoredState:
    """The channels of a checkpoint."""

    values: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None
    """None if there is none."""
    parent: str | None = None
    """The checkpoint before it."""
    step: int | None = None
    problem: str = ""
    """Why it cannot be read."""


async def state_at(
    runtime: Runtime, thread_id: str, ns: str = "", checkpoint: str | None = None
) -> StoredState:
    """The state of a thread at a checkpoint, by default the latest."""
    where = place(thread_id, {"checkpoint_ns": ns})
    at = place(thread_id, {"checkpoint_ns": ns, "checkpoint_id": checkpoint})
    try:
        found = await runtime.saver.aget_tuple(at)
    except UNREADABLE as error:
        return StoredState(problem=str(error))
    if found is None:
        return StoredState()
    snapshot = stored_state(found, where)
    return StoredState(
        dict(snapshot.values),
        found.checkpoint["id"],
        _checkpoint_in(found.parent_config),
        (found.metadata or {}).get("step"),
    )


def _checkpoint_in(config: RunnableConfig | None) -> str | None:
    return None if config is None else config["configurable"].get("checkpoint_id")


def graph_of(runtime: Runtime, name: str, version: str) -> Any:
    """The graph of a run, if it is registered here."""
    graphs = runtime.engine.graphs
    return graphs.find(name, version) or graphs.newest.get(name)


async def next_nodes(runtime: Runtime, graph: Any, thread_id: str) -> tuple[str, ...]:
    """The nodes that run next on a thread."""
    try:
        state = await runtime.journal.in_thread(
            lambda: read_state(runtime, graph.pregel, place(thread_id))
        )
    except UNREADABLE:
        return ()
    return tuple(dict.fromkeys(state.next))


class GraphShapes:
    """The nodes and edges of graphs. All requests share one, because LangGraph draws slowly."""

    def __init__(self, site: Site) -> None:
        self._known: dict[str, GraphShape | None] = {}

    def of(self, graph: Any) -> GraphShape | None:
        """The shape of a graph; None if LangGraph cannot draw it."""
        place = graph.fingerprint
        if place not in self._known:
            try:
                self._known[place] = GraphShape.of(drawing(graph.pregel, False))
            except Exception:  # a user's node may have a type that cannot be described
                self._known[place] = None
        return self._known[place]
