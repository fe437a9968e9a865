"""Lets an agent report to a crash test what it does outside of the process."""

from __future__ import annotations

from collections.abc import Callable

report: Callable[[str], None] | None = None
"""Set in the processes of a crash test."""


def outside(what: str) -> None:
    """Report to the crash test that something happened outside: "mail to ana", "row 7 written".

    It does nothing without a crash test. In one, the same text more often than in a run without a
    kill is a duplicate, and less often is a loss. It returns when the judge, another process, has
    it.
    """
    if report is not None:
        report(str(what))
