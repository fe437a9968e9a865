"""What an agent does to the world, in its own words, for the judge of a crash test."""

from __future__ import annotations

from collections.abc import Callable

tell: Callable[[str], None] | None = None
"""Set in the processes of a crash test."""


def outside(what: str) -> None:
    """Tell the crash test that something happened outside: "mail to ana", "row 7 written".

    Outside of a crash test it does nothing. In one, the same words more often than in a run that
    nobody killed are a duplicate, and fewer are a loss. It returns when the judge, which is
    another process, has noted it.
    """
    if tell is not None:
        tell(str(what))
