"""The health of a journal: its invariants; and its URL as strangers may see it."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import NamedTuple

from perdure.commands import events, schedules
from perdure.commands.connection import Connection
from perdure.errors import Loss
from perdure.journal import Op, Plan, Statement, acknowledged, read_op
from perdure.journal.sqlite_file import loses_commits
from perdure.serde import redaction
from perdure.serde.redaction import secrets_in
from perdure.verbs import verb

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


def unreplicated() -> Op[str | None]:
    """Advice if commits do not wait for the standbys that there are."""
    return read_op("standbys", {}, lambda rows: acknowledged.unreplicated(*rows[0][0]))


def remarks(url: str) -> list[str]:
    """Warnings about the database itself."""
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


def diagnose(url: str, now: int) -> Plan[Diagnosis]:
    """Check every invariant of the journal at `url`, from one snapshot."""
    findings: list[Violation] = yield examine()
    failing: list[str] = yield schedules.failing(now, MOST_SCHEDULES)
    lost: list[Loss] = yield events.losses()
    replication: str | None = yield unreplicated()
    said = [f"The schedule {name!r} starts no runs: see `perdure schedules`." for name in failing]
    said += [f"The database lost what was acknowledged: {loss}." for loss in lost]
    said += [replication] if replication else []
    return Diagnosis(tuple(findings), len(INVARIANTS), (*remarks(url), *said))


def redact(text: str, url: str) -> str:
    """A text without the password in a URL."""
    return redaction.redact(text, secrets_in(url))


@verb()
def doctor(on: Connection) -> Plan[Diagnosis]:
    """Check the journal's invariants, from one snapshot. It changes nothing.

        diagnosis = await client.doctor()
        assert not diagnosis.findings

    `perdure doctor` prints the same.
    """
    return (yield from diagnose(on.shown_url, on.clock.now()))
