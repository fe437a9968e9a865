"""The health of a journal at a glance: the verdict and its signs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.commands.health import GraphDue, Signs
from perdure.types import Retention, State
from perdure.views.health_report import HealthFacts, Sign, WorkerCount, health_report

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
QUIET = Signs([], 0, 0, 0, 0, 0, 4_200_000)
FACTS = HealthFacts(NOW, QUIET, runs={State.HELD: 0}, workers=WorkerCount(2))


def sign(facts: HealthFacts, name: str) -> Sign:
    return next(one for one in health_report(facts).signs if one.name == name)


def due(runs: int, late_ms: int) -> dict[str, Any]:
    return {"signs": QUIET._replace(due=[GraphDue("a", runs, late_ms)])}


def signs(**changed: Any) -> dict[str, Any]:
    return {"signs": QUIET._replace(**changed)}


def asked(count: int, ago: timedelta) -> dict[str, Any]:
    return {"questions": count, "oldest_question": NOW - ago}


@pytest.mark.parametrize(
    ("changed", "name", "figure", "tone"),
    [
        ({"workers": WorkerCount(0, 1)}, "Workers", "0", "bad"),
        ({"workers": WorkerCount(2, 1)}, "Workers", "2", "warn"),
        (due(3, 4_000), "Due runs", "on time", "good"),
        (due(3, 40_000), "Due runs", "40s", "warn"),
        (due(1000, 7_200_000), "Due runs", "2h", "bad"),
        (asked(3, timedelta(hours=2)), "Questions", "3", "plain"),
        (asked(1000, timedelta(days=2)), "Questions", "1,000+", "warn"),
        ({"runs": {State.HELD: 4}}, "Held runs", "4", "warn"),
        (signs(unknown=2, unknown_age_ms=60_000), "Unknown effects", "2", "bad"),
        (signs(messages=9), "Outbox", "9", "plain"),
        (signs(messages=9, message_late_ms=90_000), "Outbox", "9", "warn"),
        (signs(messages=9, given_up=1), "Outbox", "1", "bad"),
    ],
)
def test_what_needs_a_person_stands_out(
    changed: dict[str, Any], name: str, figure: str, tone: str
) -> None:
    facts = replace(FACTS, **changed)
    found = sign(facts, name)
    assert (found.figure, found.tone) == (figure, tone)
    report = health_report(facts)
    assert (name.lower() in report.verdict.lower()) == (tone in ("warn", "bad"))


def test_it_says_how_long_ended_runs_are_kept() -> None:
    kept = Retention(done=timedelta(days=30), failed=timedelta(days=90))
    assert sign(replace(FACTS, retention=kept), "Retention").figure == "30d"
    assert sign(FACTS, "Retention").figure == "forever"
