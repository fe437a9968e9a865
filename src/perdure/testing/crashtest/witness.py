"""Lets an agent report to a crash test what it does outside of the process."""

from __future__ import annotations

from collections.abc import Callable

report: Callable[[str], None] | None = None
"""Set in the processes of a crash test."""


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
