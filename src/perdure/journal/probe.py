"""Named points of every statement, for tests that stop a process exactly there.

`hook` is called with "<statement>.before", "<statement>.after", "commit.before" and
"commit.after". It is None outside of tests.
"""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None


def at(point: str) -> None:
    if hook is not None:
        hook(point)
