"""The size of the database, noted once an hour. Pure, no I/O.

Of several processes that note it in one hour, the first wins (`insert_size`).
"""

from __future__ import annotations

from perdure.journal import Op, read_op, with_params
from perdure.times import moment
from perdure.types import DatabaseSize

HOUR = 3_600_000
KEPT = 2 * 366 * 24 * HOUR
"""Milliseconds for which a size is kept."""


def note(now: int) -> Op[None]:
    """Note the size, unless that was done in this hour or the database cannot tell."""
    params = {"at": now - now % HOUR, "before": now - KEPT}
    statements = with_params(params, "insert_size", "forget_sizes")
    return Op("note_size", statements, lambda rows: None, write=True)


def since(at: int) -> Op[list[DatabaseSize]]:
    """The sizes that were noted since then, oldest first."""
    return read_op(
        "sizes", {"since": at}, lambda rows: [DatabaseSize(moment(a), int(b)) for a, b in rows[0]]
    )
