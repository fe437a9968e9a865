"""The health of a journal: its invariants; and its URL as strangers may see it."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.errors import Loss
from perdure.journal import Plan
from perdure.operations import losses, schedules
from perdure.operations.invariants import INVARIANTS, Violation, examine, remarks, unreplicated
from perdure.serde import redaction
from perdure.serde.redaction import secrets_in

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
    lost: list[Loss] = yield losses.listed()
    replication: str | None = yield unreplicated()
    said = [f"The schedule {name!r} starts no runs: see `perdure schedules`." for name in failing]
    said += [f"The database lost what was acknowledged: {loss}." for loss in lost]
    said += [replication] if replication else []
    return Diagnosis(tuple(findings), len(INVARIANTS), (*remarks(url), *said))


def redact(text: str, url: str) -> str:
    """A text without the password in a URL."""
    return redaction.redact(text, secrets_in(url))
