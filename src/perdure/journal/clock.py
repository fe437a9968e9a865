"""The time. Every process of a journal takes it from the journal's own database.

A process's wall clock may be wrong, or be set while it runs. So the database is asked once in a
while how far it is from our monotonic clock. On SQLite the database's clock is this host's.

The database's clock can be set too. Leases of workers on one host are therefore also measured by
the host's monotonic clock, which cannot be set, and which stands still while the host is
suspended. `HostTime` says which clock that is, so that only processes that share it compare it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from perdure.journal import Journal, Op, Row, Statement

T = TypeVar("T")

STALE = 60.0
"""Seconds after which the database is asked again."""
RECENT = 2.0
"""Seconds during which an operation that reads anyway does not ask for the time again."""
UNLIMITED = 2**62
LONGEST_LEASE = 60_000
"""Milliseconds. A lease that ends later than this, and than one of ours would, is of another
clock, such as that of a virtual machine restored from the same snapshot."""


class Clock(Protocol):
    """The source of time; tests can move `perdure.testing.Clock`."""

    def now(self) -> int:
        """Milliseconds since 1970."""


class HostTime(NamedTuple):
    """A reading of a host's monotonic clock, in milliseconds."""

    clock: str = ""
    """Identity of the clock: the host and its boot. Empty if it is not known."""
    tick: int = 0

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the fragment {held} in queries.sql. A lease of any length is believed
        here; those who take runs over limit it (`LeaseTimes.params`)."""
        pattern = f"%:{self.clock}" if self.clock else ""
        return {"clock": pattern, "tick": self.tick, "latest": UNLIMITED}


def host_time(clock: Clock) -> HostTime:
    """The time of the host, if this clock is one of a host: its method `host_time` gives the name
    of the host's clock, None for this one's, and what it shows. A clock that tests move has
    none."""
    read = getattr(clock, "host_time", None)
    if read is None:
        return HostTime()
    name, tick = read()
    return HostTime(host_clock() if name is None else name, tick)


@cache
def host_clock() -> str:
    """The identity of this host's monotonic clock; empty where it cannot be known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return ""
    with contextlib.suppress(OSError):  # containers may have a clock of their own
        boot += os.readlink("/proc/self/ns/time").encode()
    return hashlib.blake2b(boot, digest_size=4).hexdigest()


def journal_time() -> Op[int]:
    return Op("journal_time", [Statement("journal_time", {})], lambda rows: int(rows[0][0][0]))


class JournalClock:
    """The clock of a journal's database."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._offset = 0.0
        self._read_at: float | None = None

    def now(self) -> int:
        if self._read_at is None:
            self._journal.open()
            if self._journal.opened_at is not None:
                self._set(*self._journal.opened_at)
        elif (here := time.monotonic()) - self._read_at > STALE:
            self._read_at = here
            self._journal.read_soon(journal_time(), self._set)  # until then what we know must do
        return int((time.monotonic() + self._offset) * 1000)

    def host_time(self) -> tuple[str | None, int]:
        return None, int(time.monotonic() * 1000)

    @property
    def age(self) -> float:
        """Seconds since the database was asked."""
        return float("inf") if self._read_at is None else time.monotonic() - self._read_at

    def agree(self) -> None:
        """Ask the database for the time."""
        self._set(self._journal.read_committed(journal_time()))

    def agree_by(self, op: Op[T]) -> Op[T]:
        """An operation that also asks the database for the time, unless that was done just now."""
        if self.age < RECENT:
            return op

        def result(rows: Sequence[Sequence[Row]]) -> T:
            self._set(int(rows[-1][0][0]))  # in the thread that read it, so right then
            return op.result(rows[:-1])

        statements = [*op.render(), Statement("journal_time", {})]
        return op._replace(statements=statements, result=result)

    def _set(self, there: int, here: float | None = None) -> None:
        # However long the answer took: late is right, early is not.
        self._read_at = time.monotonic() if here is None else here
        self._offset = there / 1000 - self._read_at
