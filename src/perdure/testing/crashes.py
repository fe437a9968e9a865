"""Kill this process at a named point, as `kill -9` would."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from perdure.errors import BadArgument
from perdure.journal import failpoints
from perdure.journal.sql import templates


def points() -> list[str]:
    """Every point there is: before and after each statement, and around the commit."""
    names = [*templates(), "commit"]
    return [f"{name}.{side}" for name in names for side in ("before", "after")]


@contextlib.contextmanager
def crash_at(point: str, n: int = 1) -> Iterator[None]:
    """Inside, the n-th time this process comes to `point`, it dies by SIGKILL.

    Use it in a process of its own: nothing is cleaned up, which is the purpose. `points()` lists
    what there is, such as `let_go.before` or `commit.after`; `effect send.before` and
    `effect send.after` are around the call of an effect's function.
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
