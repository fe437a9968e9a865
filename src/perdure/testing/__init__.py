"""For tests of agents: a clock that can be moved, a runtime on a temporary journal, crashes.

with perdure.testing.runtime() as rt:       # also `async with`
    rt.register(builder, name="campaign")
    rt.blocking.start("campaign", {"contact": 7})
    rt.blocking.tick()                      # drives it up to its sleep of four days
    rt.clock.advance(timedelta(days=4))     # which pass in no time
    rt.blocking.tick()
"""

from __future__ import annotations

from perdure.testing.clock import Clock
from perdure.testing.crashes import crash_at, points
from perdure.testing.runtimes import TemporaryRuntime, runtime

__all__ = ["Clock", "TemporaryRuntime", "crash_at", "points", "runtime"]
