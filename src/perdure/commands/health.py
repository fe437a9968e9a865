"""The health of a journal: its invariants, and counts of what is in it.

`count_due` reads what is due, `count_rest` every unfinished run and every open wait. Ended runs are
never counted: there may be millions. `first_signs` is for people who look: it counts up to `MOST`
of each, so it takes as long on a large journal as on a small one. So do `run_counts` and
`wait_counts`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from perdure.commands import events, messages, schedules
from perdure.commands.connection import Connection
from perdure.errors import Loss
from perdure.journal import Op, Plan, Row, Rows, Statement, all_rows, read_op, with_params
from perdure.journal.clock import UNLIMITED
from perdure.journal.sqlite_file import loses_commits
from perdure.journal.went_back import warn_unreplicated
from perdure.types import Kind, State
from perdure.verbs import check_limit, verb

INVARIANTS = {
    "doctor_two_running": "two runs of one thread are driven at once",
    "doctor_out_of_turn": "a run is due although an earlier one of its thread is not over",
    "doctor_forgotten": "a run is next on its thread, but will never be claimed",
    "doctor_no_wait": "a run waits, but has no open wait",
    "doctor_clock_missed": "a run will be woken later than its clock says, or never",
    "doctor_answer_unused": "an answer was accepted, but its run will not be claimed",
    "doctor_ended_due": "a run ended, but is still due, leased or waiting",
    "doctor_gap": "the events of a run have a gap",
    "doctor_signal_twice": "a signal was taken by a wait that has another answer",
    "doctor_no_outcome": "an effect is settled, but has no outcome",
    "doctor_held_settled": "a run is held for effects that are settled: use perdure retry",
    "doctor_signal_unused": "a signal is stored, but the run that waits for it is not woken",
    "doctor_join_unused": "a run has ended, but the run that waits for it is not woken",
}


class Violation(NamedTuple):
    """A violated invariant."""

    problem: str
    """What is wrong."""
    thread_id: str
    """The thread."""
    id: str
    """The row."""
    detail: str
    """The facts."""


def examine() -> Op[list[Violation]]:
    """Find every violated invariant, on one snapshot of the journal."""
    names = list(INVARIANTS)
    return Op(
        "doctor",
        [Statement(name, {}) for name in names],
        lambda rows: [
            Violation(INVARIANTS[name], str(row[0]), str(row[1]), str(row[2]))
            for name, some in zip(names, rows, strict=True)
            for row in some
        ],
    )


def _about_sqlite(url: str) -> list[str]:
    """Warnings about the SQLite library."""
    if url.startswith("sqlite:") and loses_commits(sqlite3.sqlite_version_info):
        note = (
            f"SQLite {sqlite3.sqlite_version} has the WAL-reset bug: processes that write and "
            "checkpoint one file can lose commits. perdure works around it, so its own processes "
            "are safe. Another program that writes this file is not: give it SQLite 3.51.3, "
            "3.50.7 or 3.44.6, or let its connections run PRAGMA wal_autocheckpoint = 0."
        )
        return [note]
    return []


MOST_SCHEDULES = 100
"""Maximum number of failing schedules that a diagnosis names."""


@dataclass(frozen=True)
class Diagnosis:
    """The result of `Client.doctor`."""

    findings: tuple[Violation, ...]
    """Violated invariants, each with the thread and the row it was found in."""
    checked: int
    """Number of invariants that were checked."""
    remarks: tuple[str, ...]
    """Advice about the database itself, schedules that start no runs, and acknowledged changes that
    the database lost."""


@verb()
def doctor(on: Connection) -> Plan[Diagnosis]:
    """Check the journal's invariants, from one snapshot. It changes nothing.

        diagnosis = await client.doctor()
        assert not diagnosis.findings

    `perdure doctor` prints the same.
    """
    findings: list[Violation] = yield examine()
    failing: list[str] = yield schedules.failing(on.clock.now(), MOST_SCHEDULES)
    lost: list[Loss] = yield events.losses()
    standbys: list[Row] = yield read_op("standbys", {}, all_rows)
    remarks = [
        *_about_sqlite(on.shown_url),
        *(f"The schedule {one!r} starts no runs: see `perdure schedules`." for one in failing),
        *(f"The database lost what was acknowledged: {loss}." for loss in lost),
        warn_unreplicated(*standbys[0]),
    ]
    return Diagnosis(tuple(findings), len(INVARIANTS), tuple(filter(None, remarks)))


MOST = 1000
"""Where `first_signs` stops counting."""

NEWEST = 10
"""Done runs are counted among this many times as many of the newest runs."""


_COUNTS = {
    State.RUNNING: "count_running",
    State.PENDING: "count_pending",
    State.DONE: "count_done",
}
"""The statements that count the runs in these states."""


class GraphDue(NamedTuple):
    """The runs of a graph that are due."""

    graph: str
    runs: int
    late_ms: int
    """Lateness of the first of them."""


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
    """None if the database does not report it."""
    missed: dict[str, int]
    """Slots of schedules that started no run, by graph."""
    failing: dict[str, int]
    """Schedules that start no runs although they should, by graph."""
    losses: int
    """Acknowledged changes that the database lost."""

    @property
    def rows(self) -> int:
        """Rows that were read to count them."""
        return sum(self.runs.values()) + sum(one.waits for one in self.waits) + self.messages


def count_due(now: int) -> Op[list[GraphDue]]:
    """The graphs that have due runs."""
    params = {"now": now, "count": UNLIMITED}
    return read_op("count_due", params, lambda rows: _due(rows[0], now))


def _due(rows: Iterable[Row], now: int) -> list[GraphDue]:
    return [GraphDue(str(graph), runs, _since(first, now)) for graph, runs, first in rows]


def count_rest(now: int) -> Op[Rest]:
    """Unfinished runs, open waits, unknown effects, messages, and the size of the database."""
    params = {"count": UNLIMITED, "late": now - schedules.LATE}
    names = ("count_runs", "count_unknown", "count_messages", "schedule_health")

    def result(rows: Rows) -> Rest:
        runs, unknown, [(messages, oldest, losses, size)], health, *waits = rows
        return Rest(
            {(str(graph), str(state)): count for graph, state, count in runs},
            [
                OpenWaits(kind, count, _since(first, now))
                for [(kind, count, first)] in waits
                if count
            ],
            {str(name): count for name, count, _ in unknown},
            messages,
            _since(oldest, now),
            None if size is None else int(size),
            _by_graph((graph, missed) for _, graph, missed, _ in health),
            _by_graph((graph, fails) for _, graph, _, fails in health),
            losses,
        )

    return Op("count_rest", [*with_params(params, *names), *_count_waits(UNLIMITED)], result)


def _count_waits(most: int) -> list[Statement]:
    return [Statement("count_open_waits", {"kind": kind.value, "most": most}) for kind in Kind]


class Signs(NamedTuple):
    """What needs attention in a journal. Counts stop at `MOST`."""

    due: list[GraphDue]
    """Graphs with due runs, the one that has waited longest first."""
    unknown: int
    """Effects with an unknown outcome."""
    unknown_age_ms: int
    messages: int
    """Messages that are not delivered, and will be tried again."""
    message_late_ms: int
    """Lateness of the first of them."""
    given_up: int
    """Messages that are not tried again."""
    database_bytes: int | None
    """None if the database does not report it."""
    schedules: Sequence[str] = ()
    """Schedules that start no runs although they should."""


def first_signs(now: int) -> Op[Signs]:
    """What needs attention, counted up to `MOST` of each."""
    params = {"now": now, "never": messages.NEVER, "count": MOST, "late": now - schedules.LATE}
    names = ("count_due", "count_unknown", "count_late_messages", "schedule_health")

    def result(rows: Rows) -> Signs:
        due, unknown, [(waiting, late, given_up, size)], failing = rows
        return Signs(
            _due(due, now),
            sum(count for _, count, _ in unknown),
            max((_since(first, now) for _, _, first in unknown), default=0),
            waiting,
            _since(late, now),
            given_up,
            None if size is None else int(size),
            schedules.failing_of(failing)[:MOST],
        )

    return Op("first_signs", with_params(params, *names), result)


def _by_graph(counts: Iterable[tuple[Any, Any]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for graph, count in counts:
        sums[str(graph)] = sums.get(str(graph), 0) + int(count)
    return sums


def _since(at: object, now: int) -> int:
    return max(0, now - at) if isinstance(at, int) else 0


@verb()
def run_counts(on: Connection, limit: int = 1000) -> Plan[dict[State, int]]:
    """Count the runs in each state.

        counts = await client.run_counts()
        print("held:", counts[State.HELD])

    Counting stops early, so that it is fast on a large journal.

    Args:
        limit: Count up to this number in each state. `done` runs are counted among the newest
            10 × `limit` runs, so there may be more.
    """
    params = {"most": check_limit(limit), "looked": limit * NEWEST}
    counted = (
        Statement(_COUNTS.get(state, "count_in_state"), {**params, "state": state.value})
        for state in State
    )
    rows: list[Row] = yield Op("count_states", [*counted], all_rows)
    return {State(state): number for state, number in rows}


@verb()
def wait_counts(on: Connection, limit: int = 1000) -> Plan[dict[Kind, int]]:
    """Count the open waits of each kind.

    Args:
        limit: Count up to this number in each kind.
    """
    rows: list[Row] = yield Op("count_open_waits", _count_waits(check_limit(limit)), all_rows)
    return {Kind(kind): number for kind, number, _ in rows}
