"""Named points of every statement and effect, for tests that stop a process exactly there.

`hook` is called with the name of each point that this process reaches (`points`), in the thread
that reaches it; `called` with the name and the key of an effect right before its function is
called, with an empty key outside of a run; `asked` with the key when the function asks for it;
`opening` with the URL of a journal before it is opened. All are None outside of tests.
`current_effect` gives the key of the effect whose function, or whose question to the far side, is
being called; `perdure.effects` sets it.
"""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None
called: Callable[[str, str], None] | None = None
asked: Callable[[str], None] | None = None
opening: Callable[[str], None] | None = None
current_effect: Callable[[], str | None] = lambda: None  # noqa: E731 - replaced, not redefined


def at(point: str) -> None:
    if hook is not None:
        hook(point)


def points(*, writes_only: bool = False) -> list[str]:
    """List all points at which `perdure.testing.crash_at` can kill a process.

    These are `<statement>.before` and `<statement>.after` for each statement of the journal,
    `migrate.before` and `migrate.after` for each statement of a migration, and `commit.before` and
    `commit.after`. Besides them, `effect NAME.before` and `effect NAME.after` are around the call
    of an effect's function.

    Args:
        writes_only: Leave out the statements that only read.
    """
    from perdure.journal.sql import templates

    texts = templates()
    kept = [name for name in texts if not (writes_only and texts[name].startswith("SELECT"))]
    names = [*kept, "migrate", "commit"]
    return [f"{name}.{side}" for name in names for side in ("before", "after")]
