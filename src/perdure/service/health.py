"""The health of a journal: its invariants; and its URL as strangers may see it."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.journal import Plan
from perdure.operations.invariants import INVARIANTS, Violation, examine, remarks
from perdure.serde import redaction
from perdure.serde.redaction import secrets_in


@dataclass(frozen=True)
class Diagnosis:
    """The result of `Client.doctor`."""

    findings: tuple[Violation, ...]
    """Violated invariants, each with the thread and the row it was found in."""
    checked: int
    """Number of invariants that were checked."""
    remarks: tuple[str, ...]
    """Advice about the database itself."""


def diagnose(url: str) -> Plan[Diagnosis]:
    """Check every invariant of the journal at `url`, from one snapshot."""
    findings: list[Violation] = yield examine()
    return Diagnosis(tuple(findings), len(INVARIANTS), tuple(remarks(url)))


def redact(text: str, url: str) -> str:
    """A text without the password in a URL."""
    return redaction.redact(text, secrets_in(url))
