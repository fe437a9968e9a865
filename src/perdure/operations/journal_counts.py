"""Counts of what is in a journal, for metrics: pure, no I/O.

`due` reads what is due, `rest` every unfinished run and every open wait. Ended runs are never
counted: there may be millions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.journal import Op, Row, Statement


class GraphDue(NamedTuple):
    """The runs of a graph that are due."""

    graph: str
    runs: int
    late_ms: int
    """How late the first of them is."""


class OpenWaits(NamedTuple):
    """The open waits of a kind."""

    kind: str
    waits: int
    age_ms: int
    """Age of the oldest."""


class Rest(NamedTuple):
    """What is unfinished, open or not delivered."""

    runs: dict[tuple[str, str], int]
    """By graph and state."""
    waits: list[OpenWaits]
    unknown: dict[str, int]
    """Effects with an unknown outcome, by name."""
    messages: int
    message_age_ms: int
    database_bytes: int | None
    """None if the database cannot tell."""

    @property
    def rows(self) -> int:
        """Rows that were read to count them."""
        return sum(self.runs.values()) + sum(one.waits for one in self.waits) + self.messages


def due(now: int) -> Op[list[GraphDue]]:
    """The graphs that have due runs."""
    return Op(
        "count_due",
        [Statement("count_due", {"now": now})],
        lambda rows: [
            GraphDue(str(graph), runs, _since(first, now)) for graph, runs, first in rows[0]
        ],
    )


def rest(now: int) -> Op[Rest]:
    """Unfinished runs, open waits, unknown effects, messages, and the size of the database."""
    names = ("count_runs", "count_waits", "count_unknown", "count_messages", "database_bytes")

    def result(rows: Sequence[Sequence[Row]]) -> Rest:
        runs, waits, unknown, [(messages, oldest)], size = rows
        return Rest(
            {(str(graph), str(state)): count for graph, state, count in runs},
            [OpenWaits(str(kind), count, _since(first, now)) for kind, count, first in waits],
            {str(name): count for name, count in unknown},
            messages,
            _since(oldest, now),
            int(size[0][0]) if size and size[0][0] is not None else None,
        )

    return Op("count_rest", [Statement(name, {}) for name in names], result)


def _since(at: object, now: int) -> int:
    return max(0, now - at) if isinstance(at, int) else 0
