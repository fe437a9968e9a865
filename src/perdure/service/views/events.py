"""Events in words: each kind is worded by one function here, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from perdure.operations.run_payload import is_own
from perdure.service.views.wording import utc_time
from perdure.types import EffectState, Event, EventKind, Kind

Data = Mapping[str, Any]
FormatTime = Callable[[datetime], str]

MESSAGE_LINES = 3
"""Lines of an exception's message that are shown."""


class Tone(StrEnum):
    """What an event means to its reader."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"
    WAITS = "waits"
    NOTABLE = "notable"


class Verb(StrEnum):
    """What a person can do next. The values are commands of the command line."""

    ANSWER = "answer"
    SIGNAL = "signal"
    SETTLE = "settle"
    RETRY = "retry"
    RESUME = "resume"


@dataclass(frozen=True)
class Action:
    """A next step, and the ids it takes: a wait, an effect's key, a run, or a thread and a name."""

    verb: Verb
    ids: tuple[str, ...]
    example: str = "JSON"
    """An answer that fits, as JSON text."""


@dataclass(frozen=True)
class EventView:
    """One event as a sentence."""

    text: str
    tone: Tone = Tone.PLAIN
    lines: tuple[str, ...] = ()
    """Details to show below it."""
    action: Action | None = None
    routine: bool = False
    """Bookkeeping that the events around it imply."""


def view_event(
    event: Event, run_id: str = "", thread_id: str = "", *, format_time: FormatTime = utc_time
) -> EventView:
    """An event in words. A kind that this version does not know is shown with its data."""
    try:
        word = WORDING[EventKind(event.kind)]
    except ValueError:
        return EventView(f"{event.kind} {dict(event.data) or ''}".rstrip())
    return word(_Facts(event.data, run_id, thread_id, format_time))


@dataclass(frozen=True)
class _Facts:
    """What the wording of an event may use."""

    data: Data
    run_id: str
    thread_id: str
    format_time: FormatTime

    def time(self, name: str, before: str) -> str:
        """A time of the data after some words, or nothing if there is none."""
        at = self.data.get(name)
        return f"{before}{self.format_time(at)}" if at else ""

    @property
    def by(self) -> str:
        by, reason = self.data.get("by"), self.data.get("reason")
        return (f" by {by}" if by else "") + (f": {reason}" if reason else "")


def _claimed(facts: _Facts) -> EventView:
    return EventView(f"claimed by {worker_name(facts.data)}", routine=True)


def _recovered(facts: _Facts) -> EventView:
    text = f"recovered by {worker_name(facts.data)} after its worker was lost"
    return EventView(text, Tone.NOTABLE)


def _step(facts: _Facts) -> EventView:
    nodes, ns, source = (facts.data.get(name) for name in ("nodes", "ns", "source"))
    inside = f"  in {ns.partition(':')[0]}" if ns else ""
    ran_nothing = not nodes and source in ("input", "loop")  # LangGraph's first two steps
    text = f"step {facts.data.get('step')}  {', '.join(nodes or ()) or source}{inside}"
    return EventView(text, routine=ran_nothing)


def _wait(facts: _Facts) -> EventView:
    data = facts.data
    if data["kind"] == Kind.CLOCK:
        return EventView(facts.time("wake_at", "asleep until "))
    until = facts.time("expires_at", ", until ")
    if data["kind"] == Kind.SIGNAL:
        name = str(data.get("name"))
        action = Action(Verb.SIGNAL, (facts.thread_id, name))
        return EventView(f"waits for the signal {name}{until}", Tone.WAITS, action=action)
    action = Action(Verb.ANSWER, (data["wait"],))
    return EventView(f"asks a person{until}", Tone.WAITS, action=action)


def _answer(facts: _Facts) -> EventView:
    return EventView(f"answered{facts.by}", Tone.GOOD)


def _signal(facts: _Facts) -> EventView:
    return EventView(f"received the signal {facts.data.get('name')}", Tone.GOOD)


def _effect(facts: _Facts) -> EventView:
    data = facts.data
    state, attempt, how = data.get("state"), data.get("attempt") or 1, data.get("how")
    tries = f", attempt {attempt}" if attempt > 1 else ""
    error = f": {data['error']}" if data.get("error") else ""
    later = facts.time("retry_at", ", retries at ")
    text = f"effect {data.get('name')} {state}{tries}{f', {how}' if how else ''}{later}{error}"
    tone = {EffectState.DONE: Tone.NOTABLE, EffectState.OPEN: Tone.PLAIN}
    unknown = state == EffectState.UNKNOWN and "key" in data
    action = Action(Verb.SETTLE, (data["key"],)) if unknown else None
    return EventView(text, tone.get(state, Tone.BAD), action=action)  # type: ignore[arg-type]


def _differs(facts: _Facts) -> EventView:
    text = f"effect {facts.data.get('name')} called with other arguments than recorded"
    return EventView(text, Tone.NOTABLE)


def _settled(facts: _Facts) -> EventView:
    text = f"effect {facts.data.get('name')} settled as {facts.data.get('state')}{facts.by}"
    return EventView(text, Tone.GOOD)


def _postponed(facts: _Facts) -> EventView:
    return EventView(f"waits to retry effect {facts.data.get('effect')}", routine=True)


def _failed(facts: _Facts) -> EventView:
    attempt = f" at attempt {facts.data['attempts']}" if facts.data.get("attempts") else ""
    retries = facts.time("retry_at", ", retries at ")
    action = None if retries else Action(Verb.RETRY, (facts.run_id,))
    text = f"failed{attempt}{retries or ' for good'}"
    return EventView(text, Tone.BAD, _exception(facts.data), action)


def _held(facts: _Facts) -> EventView:
    unsettled = facts.data.get("effects")  # then settling them lets it go on
    action = None if unsettled else Action(Verb.RETRY, (facts.run_id,))
    return EventView(f"held: {facts.data.get('reason', '')}", Tone.BAD, action=action)


def _released(facts: _Facts) -> EventView:
    forced = " in the middle of a step" if facts.data.get("forced") else ""
    return EventView(f"released unfinished{forced}")


def _cancelling(facts: _Facts) -> EventView:
    return EventView(f"asked to cancel{facts.by}", Tone.NOTABLE)


def _pausing(facts: _Facts) -> EventView:
    return EventView(f"asked to pause{facts.by}", Tone.NOTABLE)


def _cancelled(facts: _Facts) -> EventView:
    keys = {name: len(facts.data.get(name) or ()) for name in ("undone", "kept", "unknown")}
    effects = ", ".join(f"{number} {name}" for name, number in keys.items() if number)
    return EventView(f"cancelled{facts.by}{f' (effects: {effects})' if effects else ''}", Tone.BAD)


def _paused(facts: _Facts) -> EventView:
    return EventView(f"paused{facts.by}", Tone.NOTABLE, action=Action(Verb.RESUME, (facts.run_id,)))


WORDING: Mapping[EventKind, Callable[[_Facts], EventView]] = {
    EventKind.STARTED: lambda _: EventView("started"),
    EventKind.CLAIMED: _claimed,
    EventKind.RECOVERED: _recovered,
    EventKind.STEP: _step,
    EventKind.WAIT: _wait,
    EventKind.WAITING: lambda _: EventView("waiting", routine=True),
    EventKind.WOKE: lambda _: EventView("woke up"),
    EventKind.EXPIRED: lambda _: EventView("timed out waiting", Tone.BAD),
    EventKind.ANSWER: _answer,
    EventKind.SIGNAL: _signal,
    EventKind.EFFECT: _effect,
    EventKind.DIFFERS: _differs,
    EventKind.SETTLED: _settled,
    EventKind.POSTPONED: _postponed,
    EventKind.FAILED: _failed,
    EventKind.HELD: _held,
    EventKind.RELEASED: _released,
    EventKind.CANCELLING: _cancelling,
    EventKind.PAUSING: _pausing,
    EventKind.CANCELLED: _cancelled,
    EventKind.PAUSED: _paused,
    EventKind.RESUMED: lambda _: EventView("resumed", Tone.GOOD),
    EventKind.RETRIED: lambda _: EventView("retried", Tone.GOOD),
    EventKind.UPDATED: lambda _: EventView("state changed by update_state"),
    EventKind.DONE: lambda _: EventView("done", Tone.GOOD),
}


def worker_name(data: Data) -> str:
    """The worker of a claim by its host and process."""
    return ":".join(str(data.get("worker", "")).split(":")[:2])


def _exception(data: Data) -> tuple[str, ...]:
    """The first lines of an exception, and the last line of the user's own code on its way."""
    message = [line for line in str(data.get("message") or "").splitlines() if line.strip()]
    shown = [*message[:MESSAGE_LINES], *(["…"] if len(message) > MESSAGE_LINES else [])]
    lines = [f"{data.get('kind')}: {shown[0] if shown else ''}", *shown[1:]]
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', data.get("traceback") or "")
    own = [f"in {name}, {file}:{line}" for file, line, name in frames if is_own(file)]
    return (*lines, *own[-1:])
