"""The health of a journal at a glance: a verdict, and a sign for each aspect.

Each sign has a figure, a note that explains it, and a tone: good, warn (look at it today), bad
(look at it now), or plain (a fact). The worst sign decides the verdict. Counts stop at a thousand
and then have a plus.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from perdure.commands.health import MOST, Signs
from perdure.types import Retention, State
from perdure.views.formatting import age, data_size, duration

Tone = Literal["plain", "good", "warn", "bad"]

LATE = timedelta(seconds=5)
"""A due run that waits longer than this is a warning."""
VERY_LATE = timedelta(minutes=1)
OLD_QUESTION = timedelta(days=1)
"""A question that is open longer than this is a warning."""
STUCK_MESSAGE = timedelta(minutes=1)


@dataclass(frozen=True)
class WorkerCount:
    """The number of workers."""

    alive: int
    silent: int = 0
    """Workers that missed their heartbeats and did not say that they stop."""
    draining: int = 0


@dataclass(frozen=True)
class HealthFacts:
    """The data of the report. None: unknown."""

    now: datetime
    signs: Signs
    questions: int = 0
    """Open questions, counted up to `MOST`."""
    oldest_question: datetime | None = None
    runs: Mapping[State, int] = field(default_factory=dict)
    """Runs by state, counted up to `MOST`."""
    workers: WorkerCount | None = None
    retention: Retention | None = None
    failing: Mapping[str, int] = field(default_factory=dict)
    """What the worker in this process fails at, and at how many items."""


@dataclass(frozen=True)
class Sign:
    """One aspect of the journal's health."""

    name: str
    figure: str
    note: str
    tone: Tone = "plain"
    path: str = ""
    """The page with details."""
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HealthReport:
    """The verdict and the signs."""

    verdict: str
    tone: Tone
    signs: tuple[Sign, ...]


def health_report(facts: HealthFacts) -> HealthReport:
    """The report of these facts."""
    signs = tuple(
        sign
        for sign in (
            _workers(facts),
            _failing(facts),
            _due(facts),
            _schedules(facts),
            _questions(facts),
            _held(facts),
            _unknown(facts),
            _outbox(facts),
            _database(facts),
            _retention(facts),
        )
        if sign is not None
    )
    worst = {sign.tone for sign in signs}
    needed = [sign.name.lower() for sign in signs if sign.tone in ("warn", "bad")]
    if not needed:
        return HealthReport("All is well.", "good", signs)
    things = f"{', '.join(needed[:-1])} and {needed[-1]}" if needed[1:] else needed[0]
    verb = "need" if needed[1:] else "needs"
    tone: Tone = "bad" if "bad" in worst else "warn"
    return HealthReport(f"{things[:1].upper()}{things[1:]} {verb} attention.", tone, signs)


def _workers(facts: HealthFacts) -> Sign | None:
    workers = facts.workers
    if workers is None:
        return None
    more = [f"{workers.silent} silent"] if workers.silent else []
    more += [f"{workers.draining} draining"] if workers.draining else []
    tone: Tone = "good"
    note = ", ".join(more) or "alive"
    if workers.silent:
        tone = "warn"
    if not workers.alive:
        tone, note = "bad", "no worker is alive: runs continue when one starts, or with ticks"
    return Sign("Workers", str(workers.alive), note, tone, "/workers")


def _failing(facts: HealthFacts) -> Sign | None:
    """The worker in this process; None if it works."""
    if not facts.failing:
        return None
    note = f"failed in this process, and tried again: {', '.join(facts.failing).lower()}"
    return Sign("Worker loop", counted(sum(facts.failing.values())), note, "bad", "/workers")


def _schedules(facts: HealthFacts) -> Sign | None:
    """Schedules that start no runs; None if all do."""
    names = facts.signs.schedules
    if not names:
        return None
    more = f" and {counted(len(names) - 3)} more" if len(names) > 3 else ""
    note = f"started no run when last due: {', '.join(names[:3])}{more}"
    return Sign("Schedules", counted(len(names)), note, "warn", "/schedules")


def _due(facts: HealthFacts) -> Sign:
    due = facts.signs.due
    late = timedelta(milliseconds=max((one.late_ms for one in due), default=0))
    if not due or late < LATE:
        return Sign("Due runs", "on time", "no run is waiting for a worker", "good", "/runs")
    runs = sum(one.runs for one in due)
    names = ", ".join(one.graph for one in due[:3])
    more = f" and {len(due) - 3} more" if len(due) > 3 else ""
    note = f"late: {counted(runs)} {'run' if runs == 1 else 'runs'} of {names}{more}"
    return Sign("Due runs", duration(late), note, "bad" if late >= VERY_LATE else "warn", "/runs")


def _questions(facts: HealthFacts) -> Sign:
    oldest = facts.oldest_question
    if oldest is None:
        return Sign("Questions", "none", "no question is open", "good", "/inbox")
    tone: Tone = "warn" if facts.now - oldest >= OLD_QUESTION else "plain"
    note = f"open; the oldest was asked {age(oldest, facts.now)} ago"
    return Sign("Questions", counted(facts.questions), note, tone, "/inbox")


def _held(facts: HealthFacts) -> Sign | None:
    held = facts.runs.get(State.HELD)
    if held is None:
        return None
    if not held:
        return Sign("Held runs", "none", "no run needs a retry", "good", "/runs")
    note = "until a person retries or cancels" + (" them" if held > 1 else " it")
    return Sign("Held runs", counted(held), note, "warn", "/runs", {"state": "held"})


def _unknown(facts: HealthFacts) -> Sign:
    unknown = facts.signs.unknown
    if not unknown:
        return Sign("Unknown effects", "none", "every call has an outcome", "good", "/effects")
    since = duration(timedelta(milliseconds=facts.signs.unknown_age_ms))
    note = f"to be settled by a person; the oldest is {since} old"
    query = {"state": "unknown"}
    return Sign("Unknown effects", counted(unknown), note, "bad", "/effects", query)


def _outbox(facts: HealthFacts) -> Sign:
    signs = facts.signs
    late = timedelta(milliseconds=signs.message_late_ms)
    if signs.given_up:
        note = "given up: no more automatic attempts"
        query = {"show": "given-up"}
        return Sign("Outbox", counted(signs.given_up), note, "bad", "/outbox", query)
    if not signs.messages:
        return Sign("Outbox", "empty", "every message has been delivered", "good", "/outbox")
    if late < STUCK_MESSAGE:
        return Sign("Outbox", counted(signs.messages), "waiting for delivery", "plain", "/outbox")
    note = f"not delivered; the first is {duration(late)} late"
    return Sign("Outbox", counted(signs.messages), note, "warn", "/outbox")


def _database(facts: HealthFacts) -> Sign | None:
    size = facts.signs.database_bytes
    if size is None:
        return None
    return Sign("Database", data_size(size), "in the database")


def _retention(facts: HealthFacts) -> Sign:
    if facts.retention is None:
        return Sign(
            "Retention", "forever", "ended runs are kept; Runtime(retention=…) deletes them"
        )
    ages = facts.retention.ages
    kept = ", ".join(f"{state.value} {duration(age)}" for state, age in ages.items())
    shortest = min(ages.values())
    return Sign("Retention", duration(shortest), f"ended runs are kept for: {kept}")


def counted(number: int) -> str:
    """A count that may have stopped at its limit: 12, or 1,000+."""
    return f"{number:,}+" if number >= MOST else f"{number:,}"
