"""Kill this process at a named point, as `kill -9` would; and tell a crash test what left it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from perdure.errors import BadArgument
from perdure.journal import failpoints
from perdure.journal.sql import templates

report: Callable[[str], None] | None = None
"""Called by `outside`; set in the processes of a crash test."""


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


def points() -> list[str]:
    """List all points at which `crash_at` can kill a process.

    These are `<statement>.before` and `<statement>.after` for each statement of the journal, and
    `commit.before` and `commit.after`.
    """
    names = [*templates(), "commit"]
    return [f"{name}.{side}" for name in names for side in ("before", "after")]


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

    before, failpoints.hook = failpoints.hook, hook
    try:
        yield
    finally:
        failpoints.hook = before
