"""The history of a run as periods: driven by a worker, or resting, and why.

A worker that died leaves no event of its end. From its last event on it worked, or was dead: that
time is shown as the lost worker's, until another one takes the run over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from perdure.types import Event, EventKind, Kind, State
from perdure.views.event_wording import worker_name


class PeriodKind(StrEnum):
    """What a run did in a period. The values are shown to people."""

    DRIVEN = "driven"
    QUEUED = "queued"
    LOST = "with a worker that was lost"
    PERSON = "waiting for a person"
    SIGNAL = "waiting for a signal"
    SIGNAL_OR_TIME = "waiting for a signal or a time"
    RUN = "waiting for a run"
    ASLEEP = "asleep"
    RETRYING = "waiting to retry"
    PAUSED = "paused"
    HELD = "held"
    FAILED = "failed"


RESTS = {
    EventKind.POSTPONED: PeriodKind.RETRYING,
    EventKind.FAILED: PeriodKind.RETRYING,
    EventKind.RELEASED: PeriodKind.QUEUED,
    EventKind.UPDATED: PeriodKind.QUEUED,
    EventKind.PAUSED: PeriodKind.PAUSED,
    EventKind.HELD: PeriodKind.HELD,
}
"""The period that begins with an event; with `waiting` it depends on the open waits."""
MAKES_DUE = {
    EventKind.ANSWER,
    EventKind.WOKE,
    EventKind.RESUMED,
    EventKind.RETRIED,
    EventKind.SETTLED,
}
"""Events that make a resting run due."""
REVIVES = {EventKind.RETRIED, EventKind.WITHDRAWN}
"""Events that make a failed run go on."""
CLOSES_WAIT = {
    EventKind.ANSWER,
    EventKind.WOKE,
    EventKind.EXPIRED,
    EventKind.SIGNAL,
    EventKind.JOINED,
}
DRIVERS = {"cron": "a tick", "call": "its caller"}


@dataclass(frozen=True)
class Period:
    """A time in which a run was driven, or rested."""

    kind: PeriodKind
    since: datetime
    until: datetime | None = None
    """None: it lasts."""
    events: tuple[Event, ...] = ()
    claim: Event | None = None
    """The event that began a driven period; it is not among its events."""
    segment: int = 0
    """The number of a driven period, from 1."""
    driver: str = ""
    """What drove it: a worker, a tick, its caller."""
    worker: str = ""
    """The worker's host and process; of the lost one, after its last sign of life."""
    recovered: bool = False
    """It took over from a worker that was lost."""
    died: bool = False
    """Its worker was lost in it."""
    due: datetime | None = None
    """When a rest was over, and a worker could have claimed the run."""

    def lasted(self, now: datetime) -> timedelta:
        return max(timedelta(0), (self.until or now) - self.since)


def timeline(events: Iterable[Event], now: datetime, *, lost: bool = False) -> list[Period]:
    """The periods of a run from its first event until now, or until its end. `lost`: the worker
    that drives it now let its lease run out."""
    builder = _Builder()
    for event in events:
        builder.add(event)
    return builder.finish(now, lost)


def totals(periods: Iterable[Period], now: datetime) -> dict[PeriodKind, timedelta]:
    """The time spent in each kind of period, longest first."""
    sums: dict[PeriodKind, timedelta] = {}
    for one in periods:
        sums[one.kind] = sums.get(one.kind, timedelta(0)) + one.lasted(now)
    return dict(sorted(sums.items(), key=lambda pair: -pair[1]))


@dataclass
class _Builder:
    """The periods so far. `current` lasts, unless it has its `until`."""

    periods: list[Period] = field(default_factory=list)
    current: Period | None = None
    events: list[Event] = field(default_factory=list)
    """Of the current period."""
    waits: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The open waits by their ids."""
    closed: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Waits that were answered, by their ids: a person may open them again."""
    failed_joins: set[str] = field(default_factory=set)
    """The ids of those that a retry opens again."""
    segments: int = 0

    def add(self, event: Event) -> None:
        if self.current is None:
            self._begin(Period(PeriodKind.QUEUED, event.at))
            self.events.append(event)
            return
        self._track_waits(event)
        if event.kind in (EventKind.CLAIMED, EventKind.RECOVERED):
            self._claim(event)
            return
        if event.kind in REVIVES and self.current.until is not None:
            self._begin(Period(PeriodKind.FAILED, self.current.until))
        self.events.append(event)
        if _is_end(event):
            self._change(until=event.at)
        elif event.kind in RESTS or event.kind == EventKind.WAITING:
            self._rest(event)
        elif self.current.kind is not PeriodKind.DRIVEN and event.kind in MAKES_DUE:
            stays = self.current.kind in (PeriodKind.PAUSED, PeriodKind.HELD)
            if not (stays and event.kind in CLOSES_WAIT):
                self._change(due=event.at)

    def finish(self, now: datetime, lost: bool) -> list[Period]:
        last = self.current
        if last is not None and last.until is None and (lost or last.kind != PeriodKind.DRIVEN):
            self._end_rest(now)
            if self.current is not None and self.current.until == now:
                self._change(until=None)
        self._keep()
        return self.periods

    def _track_waits(self, event: Event) -> None:
        id = event.data.get("wait", "")
        if event.kind == EventKind.WAIT and not event.damaged:
            self.waits[id] = event.data
        elif event.kind in CLOSES_WAIT and id in self.waits:
            self.closed[id] = self.waits.pop(id)
            if any(state != State.DONE for state in (event.data.get("runs") or {}).values()):
                self.failed_joins.add(id)
        elif event.kind == EventKind.WITHDRAWN and id in self.closed:
            self.waits[id] = self.closed.pop(id)
        elif event.kind == EventKind.WAITING:  # it has gone on with what it was told
            self.failed_joins.clear()
        elif event.kind == EventKind.RETRIED:
            self.waits |= {one: self.closed.pop(one) for one in self.failed_joins}
            self.failed_joins.clear()

    def _claim(self, event: Event) -> None:
        self._end_rest(event.at)
        self.segments += 1
        self._begin(
            Period(
                PeriodKind.DRIVEN,
                event.at,
                claim=event,
                segment=self.segments,
                driver=DRIVERS.get(event.data.get("driven", ""), "a worker"),
                worker=worker_name(event.data),
                recovered=event.kind == EventKind.RECOVERED,
            )
        )

    def _rest(self, event: Event) -> None:
        kind = RESTS.get(EventKind(event.kind)) or self._waits_for()
        self._change(until=event.at)
        asleep = kind in (PeriodKind.ASLEEP, PeriodKind.SIGNAL_OR_TIME, PeriodKind.RUN)
        due = self._first_time() if asleep else event.data.get("retry_at")
        self._begin(Period(kind, event.at, due=due))

    def _end_rest(self, at: datetime) -> None:
        """End the current period at a claim; the time after a rest was over was the queue's."""
        last = self.current
        if last is None or last.until is not None:
            return
        if last.kind is PeriodKind.DRIVEN:
            died = self.events[-1].at if self.events else last.since
            self._change(until=died, died=True)
            self._begin(Period(PeriodKind.LOST, died, at, worker=last.worker))
        elif last.due is None or not last.since <= last.due < at or last.kind is PeriodKind.QUEUED:
            self._change(until=at)
        else:
            self._change(until=last.due)
            self._begin(Period(PeriodKind.QUEUED, last.due, at))

    def _waits_for(self) -> PeriodKind:
        asked = [one.data for one in self.events if one.kind == EventKind.WAIT and not one.damaged]
        waits = [one for one in asked if one["wait"] in self.waits] or [*self.waits.values()]
        kinds = {one["kind"] for one in waits}
        if Kind.HUMAN in kinds:
            return PeriodKind.PERSON
        if Kind.SIGNAL not in kinds:
            return PeriodKind.RUN if Kind.RUN in kinds else PeriodKind.ASLEEP
        bounded = all(one.get("expires_at") for one in waits if one["kind"] == Kind.SIGNAL)
        return PeriodKind.SIGNAL_OR_TIME if bounded else PeriodKind.SIGNAL

    def _first_time(self) -> datetime | None:
        times = (one.get("wake_at") or one.get("expires_at") for one in self.waits.values())
        return min(filter(None, times), default=None)

    def _begin(self, period: Period) -> None:
        self._keep()
        self.current, self.events = period, []

    def _keep(self) -> None:
        if self.current is not None:
            self.periods.append(replace(self.current, events=tuple(self.events)))

    def _change(self, **changes: Any) -> None:
        if self.current is not None:
            self.current = replace(self.current, **changes)


def _is_end(event: Event) -> bool:
    if event.kind == EventKind.FAILED:
        return "retry_at" not in event.data
    return event.kind in (EventKind.DONE, EventKind.CANCELLED)
