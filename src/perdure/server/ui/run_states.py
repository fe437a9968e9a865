"""The state of a run at a step and before it, the latest, and the nodes that come next; and a cache
of the events of viewed runs.

Events never change, so a live update reads only new ones. A run is evicted some minutes after its
last view, so that erased or pruned events do not stay here.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.runnables import RunnableConfig

from perdure.errors import UNREADABLE
from perdure.server.agent_api.assistants import drawing
from perdure.server.agent_api.thread_state import place, read_state, stored_state
from perdure.types import Event
from perdure.views.graph_picture import GraphShape

if TYPE_CHECKING:
    from perdure.runtime import Runtime
    from perdure.server.ui.site import Site


MOST_EVENTS = 50_000
"""Maximum number of cached events, of all runs together."""
FORGOTTEN = 600.0
"""Seconds after the last view until a run is evicted."""


class _Kept(NamedTuple):
    events: list[Event]
    seen_at: float


class EventCache:
    """The events of recently viewed runs. All requests share one: `Site.part`."""

    def __init__(
        self, site: Site, most: int = MOST_EVENTS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runtime, self._most, self._clock = site.runtime, most, clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def events(self, run_id: str) -> list[Event]:
        """The whole history of a run. The caller checks that the viewer may see it. Raises
        `NotFound`."""
        self._forget()
        known = self._kept[run_id].events if run_id in self._kept else []
        found = await self._runtime.events(run_id, after=known[-1] if known else 0)
        whole = [*known, *found] if found else known
        self._kept[run_id] = _Kept(whole, self._clock())
        self._kept.move_to_end(run_id)
        self._forget()
        return whole

    def _forget(self) -> None:
        """Evict runs that were not viewed for long, and the oldest beyond the limit."""
        old = self._clock() - FORGOTTEN
        while self._kept:
            oldest = next(iter(self._kept.values()))
            total = sum(len(one.events) for one in self._kept.values())
            if oldest.seen_at > old and (total <= self._most or len(self._kept) == 1):
                return
            self._kept.popitem(last=False)


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
