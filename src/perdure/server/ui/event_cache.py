"""An in-memory cache of the events of viewed runs. Events never change, so a live update reads only
new ones, not the whole history.

A run is evicted some minutes after its last view, so that erased or pruned events do not stay here.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from perdure.types import Event

if TYPE_CHECKING:
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
