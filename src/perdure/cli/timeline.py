"""The history of a run as stretches of time: driven by a worker, or resting, and why.

Pure: it reads events, and knows neither a journal nor a terminal. A worker that died left no word
of its end; what it did last is the last sign of its life, and from then on nobody drove the run
until it was recovered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from perdure.cli.tell import printable, shown, stamp
from perdure.types import Event

DRIVEN, QUEUED, DEAD = "driven", "queued", "nobody, after a worker died"
PERSON, SIGNAL, ASLEEP = "waiting for a person", "waiting for a signal", "asleep"
EITHER = "asleep, or until a signal"
RETRYING, PAUSED, HELD = "until the next attempt", "paused", "held"
RESTS = {
    "postponed": RETRYING,
    "failed": RETRYING,
    "released": QUEUED,
    "paused": PAUSED,
    "held": HELD,
    "cancelling": QUEUED,
}
GOES_ON = frozenset({"answer", "resumed", "retried", "settled"})
"""What makes a run due that rests."""
STYLES = {
    DRIVEN: "green",
    QUEUED: "blue",
    DEAD: "red",
    PERSON: "yellow",
    SIGNAL: "yellow",
    ASLEEP: "dim",
    EITHER: "dim",
    RETRYING: "magenta",
    PAUSED: "magenta",
    HELD: "red",
}


@dataclass
class Stretch:
    """A time in which a run was driven, or rested."""

    kind: str
    since: datetime
    until: datetime | None = None
    """None: it lasts."""
    n: int = 0
    """The number of a segment."""
    worker: str = ""
    driver: str = ""
    recovered: bool = False
    """It took over from a worker that died."""
    died: bool = False
    due: datetime | None = None
    """When a rest was over, and somebody could have come."""
    events: list[Event] = field(default_factory=list)

    def lasted(self, now: datetime) -> timedelta:
        return max(timedelta(0), (self.until or now) - self.since)


def stretches(events: Iterable[Event], now: datetime) -> list[Stretch]:
    """What a run did with its time, from its first event until now, or its end."""
    told: list[Stretch] = []
    asked: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if not told:
            told.append(Stretch(QUEUED, event.at, events=[event]))
            continue
        last = told[-1]
        _note(asked, event)
        if event.kind in ("claimed", "recovered"):
            _close(told, event.at)
            segments = sum(one.kind == DRIVEN for one in told)
            told.append(
                Stretch(
                    DRIVEN,
                    event.at,
                    n=segments + 1,
                    worker=str(event.data.get("worker", "")),
                    driver=str(event.data.get("driven", "")),
                    recovered=event.kind == "recovered",
                    events=[event],
                )
            )
            continue
        last.events.append(event)
        if is_end(event):
            last.until = event.at
        elif event.kind == "waiting" or (event.kind in RESTS and event.kind != "cancelling"):
            last.until = event.at
            kind = _waits_for(asked, last) if event.kind == "waiting" else RESTS[event.kind]
            due = _first_clock(asked) if kind in (ASLEEP, EITHER) else event.data.get("retry_at")
            told.append(Stretch(kind, event.at, due=due))
        elif last.kind != DRIVEN and event.kind in GOES_ON:
            last.due = event.at
    if told and told[-1].kind != DRIVEN:
        _close(told, now)
        told[-1].until = None if told[-1].until == now else told[-1].until
    return told


def is_end(event: Event) -> bool:
    """Whether a run ended with this event."""
    if event.kind == "failed":
        return "retry_at" not in event.data
    return event.kind in ("done", "cancelled")


def _note(asked: dict[str, Mapping[str, Any]], event: Event) -> None:
    """Keep what is asked and not answered yet."""
    if event.kind == "wait":
        asked[event.data["wait"]] = event.data
    elif event.kind in ("answer", "woke", "expired", "signal"):
        asked.pop(event.data.get("wait", ""), None)


def _waits_for(asked: Mapping[str, Mapping[str, Any]], segment: Stretch) -> str:
    own = [one.data for one in segment.events if one.kind == "wait"]
    waits = [one for one in own if one["wait"] in asked] or list(asked.values())
    kinds = {one["kind"] for one in waits}
    if "human" in kinds:
        return PERSON
    if "signal" not in kinds:
        return ASLEEP
    end = all(one.get("expires_at") for one in waits if one["kind"] == "signal")
    return EITHER if end else SIGNAL


def _first_clock(asked: Mapping[str, Mapping[str, Any]]) -> datetime | None:
    ends = (one.get("wake_at") or one.get("expires_at") for one in asked.values())
    return min(filter(None, ends), default=None)


def _close(told: list[Stretch], at: datetime) -> None:
    """End what was before a claim, and tell a rest from the time it took until somebody came."""
    last = told[-1]
    if last.until is not None:
        return
    if last.kind == DRIVEN:
        last.until, last.died = last.events[-1].at, True
        told.append(Stretch(DEAD, last.until, at))
        return
    last.until = at
    if last.due is not None and last.since <= last.due < at and last.kind != QUEUED:
        last.until = last.due
        told.append(Stretch(QUEUED, last.due, at))


def totals(told: Iterable[Stretch], now: datetime) -> dict[str, timedelta]:
    """How long of each kind, longest first."""
    sums: dict[str, timedelta] = {}
    for one in told:
        sums[one.kind] = sums.get(one.kind, timedelta(0)) + one.lasted(now)
    return dict(sorted(sums.items(), key=lambda pair: -pair[1]))


def is_news(event: Event) -> bool:
    """Whether a reader of a timeline misses it. LangGraph's first two steps ran no node."""
    ran_nothing = event.kind == "step" and not event.data.get("nodes")
    return not ran_nothing or event.data.get("source") not in ("input", "loop")


def tell_event(event: Event) -> tuple[str, str | None]:
    """An event in a line, and its colour."""
    data = dict(event.data)
    match event.kind:
        case "step":
            nodes = ", ".join(map(printable, data.get("nodes") or ())) or str(data.get("source"))
            inside = f"  in {printable(data['ns'].split(':')[0])}" if data.get("ns") else ""
            return f"step {data.get('step')}  {nodes}{inside}", None
        case "wait":
            return _question(data), "yellow"
        case "answer":
            by = f" by {printable(data['by'])}" if data.get("by") else ""
            return f"answered{by}", "green"
        case "signal":
            return f"signal {printable(str(data.get('name')))} came", "green"
        case "effect":
            return _effect(data)
        case "settled":
            by = f" by {printable(data['by'])}" if data.get("by") else ""
            return f"effect {data['name']} settled as {data['state']}{by}", "green"
        case "failed":
            again = f", again at {stamp(data['retry_at'])}" if data.get("retry_at") else ""
            return (
                f"raised {data.get('kind')}: {shown(data.get('message') or '', 300)}{again}",
                "red",
            )
        case "held":
            return f"held: {shown(data.get('reason') or '', 300)}", "red"
        case "claimed" | "recovered":
            by = f" as {data['driven']}" if data.get("driven") else ""
            took = " after a worker that died" if event.kind == "recovered" else ""
            return f"{event.kind} by {who(str(data.get('worker', '')))}{by}{took}", None
    style = {"done": "green", "cancelled": "red"}.get(event.kind)
    rest = {name: value for name, value in data.items() if name != "wait"}
    return f"{event.kind}  {shown(rest, 200)}" if rest else event.kind, style


def _question(data: Mapping[str, Any]) -> str:
    if data["kind"] == "clock":
        return f"sleeps until {stamp(data['wake_at'])}"
    ends = f" until {stamp(data['expires_at'])}" if data.get("expires_at") else ""
    if data["kind"] == "signal":
        name = printable(str(data.get("name")))
        return f"waits{ends}, or for the signal {name}" if ends else f"waits for the signal {name}"
    return f"asks a person{ends}"


def _effect(data: Mapping[str, Any]) -> tuple[str, str | None]:
    attempt = data.get("attempt") or 1
    tries = f", attempt {attempt}" if attempt > 1 else ""
    how = f", {data['how']}" if data.get("how") else ""
    error = f": {shown(data['error'], 200)}" if data.get("error") else ""
    style = {"done": "cyan", "unknown": "red", "failed": "red"}.get(str(data.get("state")))
    return f"effect {data.get('name')} {data.get('state')}{tries}{how}{error}", style


def who(worker: str) -> str:
    """A worker by its host and process."""
    return printable(":".join(worker.split(":")[:2]))
