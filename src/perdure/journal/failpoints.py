"""Named points of every statement and effect, for tests that stop a process exactly there.

`hook` is called with "<statement>.before", "<statement>.after", "commit.before", "commit.after",
"effect <name>.before" and "effect <name>.after"; `called` with the name and the key of an effect
right before its function is called, with an empty key outside of a run; `asked` with the key when
the function asks for it; `opening` with the URL of a journal before it is opened. All are None
outside of tests.
"""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None
called: Callable[[str, str], None] | None = None
asked: Callable[[str], None] | None = None
opening: Callable[[str], None] | None = None


def at(point: str) -> None:
    if hook is not None:
        hook(point)
