"""Cached events are not read again, and are evicted in time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import perdure
from perdure.server.ui.run_states import FORGOTTEN, EventCache
from perdure.testing import runtime
from perdure.types import Event
from tests.support.agents import chain


class Counting:
    """A runtime that counts the events it read."""

    def __init__(self, rt: perdure.Runtime) -> None:
        self.rt, self.read = rt, 0

    async def events(self, run_id: str, *, after: int | Event = 0) -> list[Event]:
        found = await self.rt.events(run_id, after=after)
        self.read += len(found)
        return found


def test_only_new_events_are_read_and_old_runs_are_forgotten() -> None:
    now = 0.0
    with runtime() as rt:
        rt.register(chain(("a", lambda state: {})), name="g")
        runs = [rt.blocking.start("g", {"log": []}) for _ in range(3)]
        counted = Counting(rt)
        site: Any = SimpleNamespace(runtime=counted)
        cache = EventCache(site, most=4, clock=lambda: now)

        def look(number: int) -> int:
            """How many events a look reads."""
            before, id = counted.read, runs[number].id
            assert rt.blocking.run(cache.events(id)) == rt.blocking.events(id)
            return counted.read - before

        assert [look(0), look(0)] == [1, 0]
        rt.blocking.work(until_idle=True)
        more = look(0)
        assert more == len(rt.blocking.events(runs[0].id)) - 1
        assert look(0) == 0
        whole = look(1)  # both are too much: the older one is forgotten
        assert whole == more + 1
        assert [look(0), look(0)] == [whole, 0]
        now += FORGOTTEN
        assert look(0) == whole
