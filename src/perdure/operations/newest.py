"""Effects of the newest runs, in pieces of bounded size.

The table has no index by time, which would make every effect more expensive to store. Runs have
one, so a list walks over runs, newest first, and is in their order. A run without effects counts as
one row of a piece, so that a piece never reads more rows than asked for.
"""

from __future__ import annotations

from typing import NamedTuple

from perdure.journal import Op, read_op
from perdure.times import LAST_MS

LAST = "\U0010ffff"


class EffectPosition(NamedTuple):
    """A position in a list of effects: a run, and an effect of it."""

    run_at: int = LAST_MS
    run_id: str = LAST
    at: int = 0
    key: str = ""


class EffectHead(NamedTuple):
    """An effect without its large columns, or a run that has no effect."""

    run_at: int
    run_id: str
    run_thread: str
    graph: str
    at: int | None
    key: str | None
    name: str | None
    state: str | None

    @property
    def position(self) -> EffectPosition:
        return EffectPosition(self.run_at, self.run_id, self.at or 0, self.key or "")


def recent_effects(behind: EffectPosition, count: int) -> Op[list[EffectHead]]:
    """Effects behind a position, newest run first."""
    params = {"before": behind.run_at, "before_id": behind.run_id, "count": count}
    params |= {"at": behind.at, "key": behind.key}
    return read_op("newest_effects", params, lambda rows: [EffectHead(*row) for row in rows[0]])
