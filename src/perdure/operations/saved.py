"""Sums of what runs saved and lost. Pure, no I/O.

Read from a covering index of only the runs that saved something or were recovered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.journal import Op, Row, read_op


class SavedTotal(NamedTuple):
    """What runs saved and lost, summed up."""

    runs: int
    effects: int
    model_calls: int
    tokens: int
    recoveries: int
    lost_ms: int


class DaySaved(NamedTuple):
    """What the runs of a graph that were accepted on one day saved and lost."""

    day: int
    """Days since the first of 1970, in UTC."""
    graph: str
    total: SavedTotal


class RecoveredRun(NamedTuple):
    """A run that lost a worker, without its large columns."""

    thread_id: str
    id: str
    graph: str
    version: str
    state: str
    created_at: int
    effects: int
    model_calls: int
    tokens: int
    recoveries: int
    lost_ms: int


def saved_total(graph: str | None, since: int, until: int) -> Op[SavedTotal]:
    """What the runs accepted from `since` until before `until` saved and lost."""
    params = {"graph": graph, "since": since, "until": until}
    return read_op("saved_total", params, lambda rows: SavedTotal(*map(int, rows[0][0])))


def saved_by_day(since: int, until: int) -> Op[list[DaySaved]]:
    """The same for each day in UTC, counted from the first of 1970, and each graph."""
    params = {"since": since, "until": until}

    def result(rows: Sequence[Sequence[Row]]) -> list[DaySaved]:
        return [
            DaySaved(int(day), str(graph), SavedTotal(*map(int, sums)))
            for day, graph, *sums in rows[0]
        ]

    return read_op("saved_by_day", params, result)


def recovered(before: tuple[int, str], count: int) -> Op[list[RecoveredRun]]:
    """Runs that lost a worker, behind a position, newest first."""
    params = {"before": before[0], "before_id": before[1], "count": count}
    return read_op("recovered_runs", params, lambda rows: [RecoveredRun(*row) for row in rows[0]])
