"""For tests of agents: a movable clock, a runtime on a temporary journal, crashes.

with perdure.testing.runtime() as rt:       # also `async with`
    rt.register(builder, name="campaign")
    rt.blocking.start("campaign", {"contact": 7})
    rt.blocking.tick()                      # drives it up to its sleep of four days
    rt.clock.advance(timedelta(days=4))     # which pass in no time
    rt.blocking.tick()
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from perdure import failpoints
from perdure.errors import BadArgument
from perdure.failpoints import points
from perdure.testing.crashtest import crashtest

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.saver import Saver
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


# Called by `outside`; set in the processes of a crash test.
report: Callable[[str], None] | None = None


def outside(what: str) -> None:
    """Report to a crash test that something happened outside the process.

    For actions that Python's audit events do not show, such as those of a C library. If the same
    text is reported more often than in a run without a kill, it counts as a duplicate; less often,
    as a loss. The call returns once the judge, which is another process, has received it. Outside a
    crash test it does nothing.

        perdure.testing.outside("mail to ana")

    Args:
        what: A description of the action, the same each time.
    """
    if report is not None:
        report(str(what))


def watch_points(hook: Callable[[str], None] | None) -> Callable[[str], None] | None:
    """Call a function with the name of each point that this process reaches, in the thread that
    reaches it. What it raises is raised there.

        reached = []
        watch_points(reached.append)
        runtime.blocking.tick()
        watch_points(None)

    Args:
        hook: The function, or `None` to call none.

    Returns:
        The function that was called before, if any.
    """
    before, failpoints.hook = failpoints.hook, hook
    return before


def set_commit_interval(owner: Client | Saver, seconds: float) -> None:
    """Set how long a change that no caller waits for may stay uncommitted. After a long interval
    the same work reaches the same points in the same order.

    Args:
        owner: A runtime, client or saver. Its journal is opened.
        seconds: How long.
    """
    owner.journal.set_interval(seconds)


@contextlib.contextmanager
def crash_at(point: str, n: int = 1) -> Iterator[None]:
    """Kill this process with SIGKILL at a named point, inside a `with` block.

    Use it in a separate process: nothing is cleaned up, as in a real crash. Then look at the
    journal from another process.

        with crash_at("insert_wait.after"):
            runtime.blocking.tick()

    Args:
        point: One of `points()`, or `effect NAME.before` and `effect NAME.after`, around the call
            of an effect's function.
        n: Die the n-th time this process reaches the point.

    Raises:
        BadArgument: There is no such point.
    """
    if point not in points() and not point.startswith("effect "):
        raise BadArgument(f"There is no point {point!r}; see perdure.testing.points().")
    left = n

    def hook(reached: str) -> None:
        nonlocal left
        if reached == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    before = watch_points(hook)
    try:
        yield
    finally:
        watch_points(before)
