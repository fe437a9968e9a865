"""What a run is waiting for, in a few words, for a line of a list.

    ana, to approve send_email, until Friday 14:00 (2d 3h left)
    the signal reply, until 12 Nov 09:00 (12d left)
    the clock, tomorrow 09:00 (in 18h 20m)
    its turn: after run 01a1e0e9-17b9-7a71-a92c-88b86dbc9293
    a worker: due for 3m
    a person: held, the outcome of charge is unknown

`attention.blockers` explains one run in whole sentences, with what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from perdure.types import Control, Kind, Run, State, Wait
from perdure.views.event_wording import MOST_RUNS

if TYPE_CHECKING:
    from perdure.commands.unknown_graphs import UnknownGraphName
from perdure.commands.inbox import SOON
from perdure.commands.run_search import RunLine
from perdure.commands.unknown_graphs import UnknownGraphName
from perdure.views.formatting import age, calendar_time, count, duration, shorten
from perdure.views.question import question_of

QUOTED = 60
"""Maximum number of characters of a question in a line."""

ASKED_AS = ("prompt", "message", "title", "text")
"""Fields that hold the question, in values without words to the person."""


class Awaited(StrEnum):
    """Who or what a run is waiting for."""

    PERSON = "person"
    SIGNAL = "signal"
    RUNS = "runs"
    CLOCK = "clock"
    TURN = "turn"
    """The run before it on its thread."""
    WORKER = "worker"
    STEP = "step"
    """The current step, after which the run was asked to stop."""


@dataclass(frozen=True)
class WaitingFor:
    """What a run is waiting for."""

    kind: Awaited
    what: str
    """Who or what: `a person, to approve send_email`."""
    detail: str = ""
    """When, or why: `until Friday 14:00 (in 2d)`, `due for 3m`."""
    at: datetime | None = None
    """When the wait ends by itself."""
    more: int = 0
    """How many other waits the run has."""
    wait_id: str | None = None
    signal: str = ""
    """The name of the signal that it waits for."""
    runs: tuple[str, ...] = ()
    """The runs that it waits for."""
    is_urgent: bool = False
    """Whether it expires soon, or has a problem."""

    @property
    def text(self) -> str:
        """All of it in one line."""
        timed = self.kind in (Awaited.PERSON, Awaited.SIGNAL, Awaited.RUNS, Awaited.CLOCK)
        joint = ", " if timed and self.at is not None else ": "
        more = f" and {count(self.more, 'more wait')}" if self.more else ""
        return f"{self.what}{joint}{self.detail}{more}" if self.detail else f"{self.what}{more}"


def line_note(
    line: RunLine,
    now: datetime,
    unknown_graphs: Iterable[UnknownGraphName] = (),
    zone: tzinfo = UTC,
) -> str:
    """What a run is waiting for, or why it ended, in a few words. Empty if it is driven or done.

    Without its waits it is less exact.
    """
    if (awaited := waiting_for(line, now, unknown_graphs, zone)) is not None:
        return awaited.text
    return ended_note(line.run)


def ended_note(run: Run) -> str:
    """Why a run failed or was cancelled."""
    return str(run.reason or run.error or "") if run.ended and run.state is not State.DONE else ""


def waiting_for(
    line: RunLine,
    now: datetime,
    unknown_graphs: Iterable[UnknownGraphName] = (),
    zone: tzinfo = UTC,
) -> WaitingFor | None:
    """What a run is waiting for. None if a worker drives it, or it has ended."""
    run = line.run
    match run.state:
        case State.RUNNING:
            return _driven(line, now)
        case State.HELD | State.PAUSED:
            return _stopped(line)
        case State.PENDING | State.WAITING:
            return _resting(line, now, unknown_graphs, zone)
    return None


def is_lost(run: Run, now: datetime) -> bool:
    """Whether the lease of a run's worker has expired: the worker died, or is silent."""
    return run.state is State.RUNNING and run.due_at is not None and run.due_at <= now


def no_graph(graph: UnknownGraphName) -> str:
    """Why runs of a graph may wait, in a few words."""
    return f"perhaps no worker has this graph.{graph.suggestion}"


def _driven(line: RunLine, now: datetime) -> WaitingFor | None:
    run = line.run
    if is_lost(run, now) and run.due_at is not None:
        detail = f"its worker was lost {age(run.due_at, now)} ago"
        return WaitingFor(Awaited.WORKER, "a worker", detail, is_urgent=True)
    if line.control is None:
        return None
    done = "cancelled" if line.control is Control.CANCEL else "paused"
    return WaitingFor(Awaited.STEP, "its current step", f"then it is {done}")


def _stopped(line: RunLine) -> WaitingFor:
    """A run that continues only when a person acts."""
    run, why = line.run, str(line.run.reason or line.run.error or "")
    if line.unknown:
        names = _named(line.unknown)
        why = f"the outcome of {names} is unknown"
    detail = f"{run.state.value}{f', {why}' if why else ''}"
    return WaitingFor(Awaited.PERSON, "a person", detail, is_urgent=run.state is State.HELD)


def _resting(
    line: RunLine, now: datetime, unknown_graphs: Iterable[UnknownGraphName], zone: tzinfo
) -> WaitingFor:
    run = line.run
    if run.due_at is not None and run.due_at <= now:
        return _due(run, age(run.due_at, now), unknown_graphs)
    if run.state is State.WAITING and line.waits:
        return _wait(line.waits[0], max(line.open_waits, len(line.waits)) - 1, now, zone)
    if run.due_at is not None:
        return _clock(run.due_at, now, zone)
    if run.state is State.PENDING:
        runs = () if line.ahead is None else (line.ahead,)
        detail = f"after run {line.ahead}" if line.ahead else "after the run before it"
        return WaitingFor(Awaited.TURN, "its turn", detail, runs=runs)
    return WaitingFor(Awaited.PERSON, "a person, a signal or a run")


def _due(run: Run, late: str, unknown_graphs: Iterable[UnknownGraphName]) -> WaitingFor:
    for one in unknown_graphs:
        if run.state is State.PENDING and (one.graph, one.version) == (run.graph, run.version):
            detail = f"due for {late}, {no_graph(one)}"
            return WaitingFor(Awaited.WORKER, "a worker", detail, is_urgent=True)
    return WaitingFor(Awaited.WORKER, "a worker", f"due for {late}")


def _clock(at: datetime, now: datetime, zone: tzinfo, more: int = 0) -> WaitingFor:
    detail = f"{calendar_time(at, now, zone)} ({age(at, now)})"
    return WaitingFor(Awaited.CLOCK, "the clock", detail, at, more)


def _wait(wait: Wait, more: int, now: datetime, zone: tzinfo) -> WaitingFor:
    if wait.kind is Kind.CLOCK and wait.wake_at is not None:
        return _clock(wait.wake_at, now, zone, more)
    until, at = "", wait.expires_at
    if at is not None:
        until = f"until {calendar_time(at, now, zone)} ({_left(at, now)})"
    soon = at is not None and at - now < SOON
    if wait.damaged:
        detail = f"its question cannot be read: {wait.damaged}"
        return WaitingFor(Awaited.PERSON, "a person", detail, None, more, wait.id, is_urgent=True)
    if wait.kind is Kind.SIGNAL:
        name = wait.name or ""
        what = f"the signal {name}"
        return WaitingFor(Awaited.SIGNAL, what, until, at, more, wait.id, name, is_urgent=soon)
    if wait.kind is Kind.RUN:
        runs = joined_runs(wait)
        what = f"run {runs[0]}" if len(runs) == 1 else count(len(runs), "run")
        return WaitingFor(Awaited.RUNS, what, until, at, more, wait.id, runs=runs, is_urgent=soon)
    what = f"{wait.assignee or 'a person'}, {what_is_asked(wait)}"
    return WaitingFor(Awaited.PERSON, what, until, at, more, wait.id, is_urgent=soon)


def _left(at: datetime, now: datetime) -> str:
    return f"{duration(at - now)} left" if at > now else "overdue"


def joined_runs(wait: Wait) -> tuple[str, ...]:
    """The ids of the runs that a wait is for."""
    found = wait.value.get("join") if isinstance(wait.value, Mapping) else None
    return tuple(map(str, found)) if isinstance(found, Sequence) else ()


def what_is_asked(wait: Wait) -> str:
    """What a person should do about a question: `to approve send_email`."""
    question = question_of(wait)
    if question.actions:
        return f"to approve {_named([one.tool for one in question.actions])}"
    asked = question.words or _question_in(question.shown)
    return f"to answer “{shorten(asked, QUOTED)}”" if asked.strip() else "to answer"


def _question_in(value: Any) -> str:
    """The text of a question, if its value has one."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        found = (value.get(name) for name in ASKED_AS)
        return next((one for one in found if isinstance(one, str) and one.strip()), "")
    return ""


def _named(names: Sequence[str]) -> str:
    """A few names, each once: `charge, mail and 2 more`."""
    every = [*dict.fromkeys(shorten(name, QUOTED) for name in names)]
    if len(every) > MOST_RUNS:
        return f"{', '.join(every[:MOST_RUNS])} and {len(every) - MOST_RUNS} more"
    *first, last = every or ["it"]
    return f"{', '.join(first)} and {last}" if first else last
