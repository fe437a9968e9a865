"""The words of the runtime as values: a run, a wait, an event."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

from perdure.errors import BadArgument

Durability = Literal["auto", "sync", "async", "exit"]
Strategy = Literal["enqueue", "reject", "interrupt", "rollback"]


class State(StrEnum):
    """What a run is doing."""

    PENDING = "pending"
    """Due now, at its time, or after the run before it on its thread."""
    RUNNING = "running"
    """Leased: a worker drives it."""
    WAITING = "waiting"
    """For the clock, a person or a signal."""
    PAUSED = "paused"
    """Until `resume`."""
    HELD = "held"
    """Needs a person: `reason` says why. `retry` goes on."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({State.DONE, State.FAILED, State.CANCELLED})


class EffectState(StrEnum):
    """How far an effect is."""

    OPEN = "open"
    """About to be called, or called."""
    DONE = "done"
    FAILED = "failed"
    """It raised, for good."""
    UNKNOWN = "unknown"
    """A person has to say what became of it."""
    AGAIN = "again"
    """Known not to have happened: called when its task comes to it."""


class Kind(StrEnum):
    """What a wait is for."""

    CLOCK = "clock"
    HUMAN = "human"
    SIGNAL = "signal"


class EventKind(StrEnum):
    """What happened to a run. The values are stored in its history."""

    STARTED = "started"
    CLAIMED = "claimed"
    RECOVERED = "recovered"
    STEP = "step"
    WAIT = "wait"
    WAITING = "waiting"
    WOKE = "woke"
    EXPIRED = "expired"
    ANSWER = "answer"
    SIGNAL = "signal"
    EFFECT = "effect"
    DIFFERS = "differs"
    SETTLED = "settled"
    POSTPONED = "postponed"
    FAILED = "failed"
    HELD = "held"
    RELEASED = "released"
    CANCELLING = "cancelling"
    PAUSING = "pausing"
    CANCELLED = "cancelled"
    PAUSED = "paused"
    RESUMED = "resumed"
    RETRIED = "retried"
    UPDATED = "updated"
    DONE = "done"


@dataclass(frozen=True)
class RunError:
    """The exception a run, or its last segment, ended with."""

    kind: str
    message: str
    traceback: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True)
class Run:
    """One accepted input on a thread, as it was when it was read."""

    id: str
    thread_id: str
    graph: str
    state: State
    output: Any
    error: RunError | None
    reason: str | None
    metadata: Mapping[str, Any]
    tags: tuple[str, ...]
    created_at: datetime
    updated_at: datetime
    due_at: datetime | None
    key: str | None = None
    version: str = ""
    attempts: int = 0
    saved: Mapping[str, int] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True)
class Wait:
    """Why a run is not running."""

    id: str
    run_id: str
    thread_id: str
    kind: Kind
    value: Any
    wake_at: datetime | None
    name: str | None
    expires_at: datetime | None
    created_at: datetime
    response_schema: Mapping[str, Any] | None = None
    interrupt_id: str = ""


@dataclass(frozen=True)
class WaitRecord(Wait):
    """A wait that a run has or had, with its answer if one was accepted."""

    state: str = "open"
    answered_at: datetime | None = None
    answered_by: str | None = None
    answer: Any = None


@dataclass(frozen=True)
class Score:
    """How well a run did, told by whoever learned it."""

    run_id: str
    name: str
    value: float
    about: str
    """The part of the run that earned it; empty: all of it."""
    at: datetime
    comment: str | None = None
    by: str | None = None


@dataclass(frozen=True)
class Event:
    """One line of a run's history. `n` counts from 1 without a gap."""

    n: int
    at: datetime
    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class EffectRecord:
    """A call that left the process, or was about to, as it was when it was read."""

    key: str
    """What the far side was given; what `settle` takes."""
    name: str
    state: EffectState
    run_id: str
    thread_id: str
    attempts: int
    arguments: Mapping[str, Any]
    result: Any
    error: RunError | None
    created_at: datetime
    updated_at: datetime
    due_at: datetime | None
    undone: bool = False
    """Whether its compensation was made."""


@dataclass(frozen=True)
class Done:
    """What `verify` gives for an effect that happened, with what it would have returned."""

    result: Any = None


@dataclass(frozen=True)
class Record:
    """What is kept of an effect's arguments and result.

    `arguments` names those to keep, all by default; `without` those to leave out. What is left out
    is taken from the present call when an effect is tried again. Arguments with the name of a
    secret, and Pydantic's secrets, are always left out. `result` makes of a result what is kept of
    it, and what the caller gets, the first time too.
    """

    arguments: Collection[str] | None = None
    without: Collection[str] = ()
    result: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Message:
    """What was put into the outbox. `id` is the same however often it is delivered."""

    id: str
    topic: str
    payload: Any
    thread_id: str
    run_id: str
    attempts: int
    sent_at: datetime
    due_at: datetime | None = None
    error: str | None = None
    """Why it was not delivered the last time."""


@dataclass(frozen=True)
class Schedule:
    """What starts runs on a cron line."""

    name: str
    graph: str
    cron: str
    timezone: str
    next_at: datetime


@dataclass(frozen=True)
class Counts:
    """What a `tick`, or `work`, did."""

    claimed: int = 0
    done: int = 0
    waiting: int = 0
    failed: int = 0
    held: int = 0
    cancelled: int = 0
    paused: int = 0
    released: int = 0
    """Given back unfinished: to be retried later, or because the time was up."""
    lost: int = 0
    """Taken over by another worker meanwhile."""
    scheduled: int = 0
    """Runs started by schedules."""
    delivered: int = 0
    """Messages of the outbox."""


@dataclass(frozen=True)
class Retry:
    """What becomes of a segment, or an effect, that raised: how often it is tried, and how long
    between. Exceptions of the types in `final` are not tried again."""

    attempts: int = 3
    first: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    longest: timedelta = timedelta(minutes=5)
    final: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.factor < 1 or min(self.first, self.longest) < timedelta(0):
            raise BadArgument(
                f"{self}: attempts and factor are at least 1, and no time is negative."
            )

    def is_over(self, attempts: int, error: BaseException) -> bool:
        """Whether it is not to be tried again."""
        return attempts >= self.attempts or isinstance(error, self.final)

    def pause(self, attempts: int) -> timedelta:
        """How long to wait after that many attempts."""
        return min(self.longest, self.first * self.factor ** min(attempts - 1, 64))


def moment(ms: int) -> datetime:
    """A time of the journal as an aware datetime."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def maybe_moment(ms: int | None) -> datetime | None:
    return None if ms is None else moment(ms)


def milliseconds(at: datetime) -> int:
    """An aware datetime as a time of the journal."""
    return round(at.timestamp() * 1000)
