"""For tests of agents: a movable clock, a runtime on a temporary journal, crashes.

with perdure.testing.runtime() as rt:       # also `async with`
    rt.register(builder, name="campaign")
    rt.blocking.start("campaign", {"contact": 7})
    rt.blocking.tick()                      # drives it up to its sleep of four days
    rt.clock.advance(timedelta(days=4))     # which pass in no time
    rt.blocking.tick()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.failpoints import points
from perdure.testing.crashes import crash_at, outside, set_commit_interval, watch_points
from perdure.testing.crashtest import crashtest

if TYPE_CHECKING:
    from perdure.testing.runtimes import Clock, HostClock, TemporaryRuntime, runtime

__all__ = [
    "Clock",
    "HostClock",
    "TemporaryRuntime",
    "crash_at",
    "crashtest",
    "outside",
    "points",
    "runtime",
    "set_commit_interval",
    "watch_points",
]


def __getattr__(name: str) -> Any:
    # The runtime brings LangGraph, which takes seconds: agents call `outside` without it.
    if name in ("Clock", "HostClock", "TemporaryRuntime", "runtime"):
        from perdure.testing import runtimes

        return getattr(runtimes, name)
    raise AttributeError(f"module 'perdure.testing' has no attribute {name!r}")
