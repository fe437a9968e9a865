"""The time. Every process of a journal takes it from the journal's own database.

A process's wall clock may be wrong, or be set while it runs. So the database is asked once in a
while how far it is from our monotonic clock. On SQLite the database's clock is this host's.
"""

from __future__ import annotations

import time
from typing import Protocol

from perdure.journal import Journal, Op, Statement

STALE = 60.0
"""Seconds after which the database is asked again."""


class Clock(Protocol):
    """The source of time; tests can move `perdure.testing.Clock`."""

    def now(self) -> int:
        """Milliseconds since 1970."""


def journal_time() -> Op[int]:
    return Op("journal_time", [Statement("journal_time", {})], lambda rows: int(rows[0][0][0]))


class JournalClock:
    """The clock of a journal's database."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._offset = 0.0
        self._asked: float | None = None

    def now(self) -> int:
        if self._asked is None:
            self._journal.open()
            if self._journal.opened_at is not None:
                self._set(*self._journal.opened_at)
        elif (here := time.monotonic()) - self._asked > STALE:
            self._asked = here
            self._journal.read_soon(journal_time(), self._set)  # until then what we know must do
        return int((time.monotonic() + self._offset) * 1000)

    def agree(self) -> None:
        """Ask the database for the time."""
        self._set(self._journal.read_committed(journal_time()))

    def _set(self, there: int, here: float | None = None) -> None:
        # However long the answer took: late is right, early is not.
        self._asked = time.monotonic() if here is None else here
        self._offset = there / 1000 - self._asked
