"""Hourly samples of the database size. Pure, no I/O.

Of several processes that sample in the same hour, the first wins (`insert_size`).
"""

from __future__ import annotations

from perdure.journal import Op, read_op, with_params
from perdure.times import moment
from perdure.types import DatabaseSize

HOUR = 3_600_000
KEPT = 2 * 366 * 24 * HOUR
"""Milliseconds for which a size is kept."""


def note(now: int) -> Op[None]:
    """Store a sample, unless this hour has one or the database does not report its size."""
    params = {"at": now - now % HOUR, "before": now - KEPT}
    statements = with_params(params, "insert_size", "forget_sizes")
    return Op("note_size", statements, lambda rows: None, write=True)


def since(at: int) -> Op[list[DatabaseSize]]:
    """The samples since a time, oldest first."""
    return read_op(
        "sizes", {"since": at}, lambda rows: [DatabaseSize(moment(a), int(b)) for a, b in rows[0]]
    )
