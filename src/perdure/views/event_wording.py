"""Events in words: each kind is worded by one function here, and nowhere else; and which fields of
an event may leave the journal without its content.

Logs show these fields, and nothing else of an event. A field is among them because of what it can
hold: ids, times, counts, states, and names that are in the code. What a person or a model wrote is
content: messages of errors, tracebacks, labels, answers, reasons, who did it. A new kind of event
must be entered in `FIELDS`: a test asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from perdure.text import is_user_code
from perdure.times import utc_time
from perdure.types import EffectState, Event, EventKind, Kind, State

LONGEST = 200
"""Characters of a text that are kept."""


class FieldType(StrEnum):
    """What a field holds."""

    TEXT = "text"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    TIME = "time"
    NUMBER = "number"
    TEXTS = "texts"
    """A list of texts."""


TYPES: Mapping[str, FieldType] = {
    **dict.fromkeys(
        (
            *("graph", "version", "parent", "worker", "driven", "source", "checkpoint", "ns"),
            *("wait", "wait_kind", "name", "caught_in", "key", "state", "how", "effect"),
            *("error_kind", "model", "about", "action"),
        ),
        FieldType.TEXT,
    ),
    **dict.fromkeys(
        (
            *("segment", "step", "runs", "attempt", "attempts", "input_tokens", "output_tokens"),
            *("saved_effects", "saved_model_calls", "saved_tokens", "effects"),
            *("undone", "kept", "unknown"),
        ),
        FieldType.INTEGER,
    ),
    "value": FieldType.NUMBER,
    **dict.fromkeys(("early", "transactional", "final", "forced"), FieldType.BOOLEAN),
    **dict.fromkeys(("wake_at", "expires_at", "begun_at", "retry_at"), FieldType.TIME),
    **dict.fromkeys(("nodes", "lost", "removed", "added", "silent"), FieldType.TEXTS),
}
"""Every field, and what it holds. A list of ids is shown as its length."""

SAVED = ("saved_effects", "saved_model_calls", "saved_tokens")
FIELDS: Mapping[EventKind, tuple[str, ...]] = {
    EventKind.STARTED: ("graph", "version", "parent"),
    EventKind.CLAIMED: ("graph", "segment", "worker", "driven"),
    EventKind.RECOVERED: ("graph", "segment", "worker", "driven", "silent"),
    EventKind.STEP: ("step", "source", "checkpoint", "nodes", "ns", *SAVED),
    EventKind.WAIT: ("wait", "wait_kind", "name", "wake_at", "expires_at", "runs"),
    EventKind.WAITING: ("caught_in", *SAVED),
    EventKind.WOKE: ("wait", "early"),
    EventKind.EXPIRED: ("wait",),
    EventKind.ANSWER: ("wait",),
    EventKind.WITHDRAWN: ("wait",),
    EventKind.SIGNAL: ("wait", "name"),
    EventKind.JOINED: ("wait", "runs"),
    EventKind.EFFECT: (
        *("name", "key", "state", "attempt", "begun_at", "retry_at", "transactional", "how"),
        *("model", "input_tokens", "output_tokens", "error_kind", *SAVED),
    ),
    EventKind.DIFFERS: ("name", "key"),
    EventKind.SETTLED: ("name", "key", "state"),
    EventKind.POSTPONED: ("effect", "key", "attempt", *SAVED),
    EventKind.FAILED: ("error_kind", "attempts", "retry_at", "final", *SAVED),
    EventKind.HELD: ("effects", "lost", "removed", "added", *SAVED),
    EventKind.RELEASED: ("forced", "effect", "key", *SAVED),
    EventKind.CANCELLING: (),
    EventKind.PAUSING: (),
    EventKind.CANCELLED: ("forced", "undone", "kept", "unknown", *SAVED),
    EventKind.PAUSED: ("forced", *SAVED),
    EventKind.RESUMED: (),
    EventKind.RETRIED: (),
    EventKind.UPDATED: (),
    EventKind.DONE: ("source", *SAVED),
    EventKind.ASSIGNED: ("wait",),
    EventKind.REWOUND: (),
    EventKind.COMMENT: ("wait",),
    EventKind.SCORED: ("name", "value", "about", "checkpoint", "effect", "wait", "action"),
}
"""The fields of each kind of event."""


def safe_fields(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an event that are not content, each of its type. A kind that this version does
    not know has none."""
    try:
        names = FIELDS[EventKind(kind)]
    except (KeyError, ValueError):
        return {}
    found = {name: _typed(TYPES[name], _value(kind, name, data)) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _value(kind: str, name: str, data: Mapping[str, Any]) -> Any:
    """The value of a field; some have another name in the event."""
    if name == "wait_kind":
        return data.get("kind")
    if name == "error_kind":  # an effect has "ValueError: its message"
        text = data.get("kind") if kind == EventKind.FAILED else data.get("error")
        name = text.partition(":")[0] if isinstance(text, str) else ""
        return name if name.replace(".", "_").isidentifier() else None
    if name in ("model", "input_tokens", "output_tokens"):
        return (data.get("usage") or {}).get(name)
    if name == "checkpoint" and kind == EventKind.SCORED:
        return data.get("step")
    if name.startswith("saved_"):
        return (data.get("saved") or {}).get(name.removeprefix("saved_"))
    return data.get(name)


def _typed(of: FieldType, value: Any) -> Any:
    """The value, or None if it has another type."""
    if of is FieldType.TEXT:
        return value[:LONGEST] if isinstance(value, str) and value else None
    if of is FieldType.INTEGER:
        if isinstance(value, (list, tuple, dict)):
            return len(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if of is FieldType.NUMBER:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(value) if is_number else None
    if of is FieldType.BOOLEAN:
        return value if isinstance(value, bool) else None
    if of is FieldType.TIME:
        return value if isinstance(value, datetime) else None
    if isinstance(value, (list, tuple)):
        return [str(one)[:LONGEST] for one in value]
    return None


Data = Mapping[str, Any]
FormatTime = Callable[[datetime], str]

MESSAGE_LINES = 3
"""Lines of an exception's message that are shown."""
MOST_RUNS = 3
"""How many of the runs that are waited for are named."""


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
    WITHDRAW = "withdraw"
    FORK = "fork"
    WAKE = "wake"


@dataclass(frozen=True)
class NextStep:
    """A next step, and the ids it takes: a wait, an effect's key, a run, a thread and a name, or
    a run and a checkpoint."""

    verb: Verb
    ids: tuple[str, ...]
    example: str = "JSON"
    """An answer that fits, as JSON text; or how to settle an effect."""


@dataclass(frozen=True)
class EventView:
    """One event as a sentence."""

    text: str
    tone: Tone = Tone.PLAIN
    lines: tuple[str, ...] = ()
    """Details to show below it."""
    action: NextStep | None = None
    routine: bool = False
    """Bookkeeping that the events around it imply."""


def view_event(
    event: Event, run_id: str = "", thread_id: str = "", *, format_time: FormatTime = utc_time
) -> EventView:
    """An event in words. A kind that this version does not know is shown with its data."""
    if event.damaged:
        return EventView(f"{event.kind}: {event.damaged}", Tone.BAD)
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
    def name(self) -> str:
        return str(self.data.get("name"))

    @property
    def state(self) -> str:
        return str(self.data.get("state"))

    @property
    def worker(self) -> str:
        return worker_name(self.data)

    @property
    def lost(self) -> str:
        """How the worker before was lost, as far as the one that recovered the run knows."""
        names = ", ".join(worker_name({"worker": one}) for one in self.data.get("silent") or ())
        stopped = "suspended, starved of CPU, or cut off from the database"
        return f" ({names} lives, but let leases run out: {stopped})" if names else ""

    @property
    def retry(self) -> NextStep:
        return NextStep(Verb.RETRY, (self.run_id,))

    @property
    def woke(self) -> str:
        return f"woken{self.by or ' early'}" if self.data.get("early") else "woke up"

    @property
    def by(self) -> str:
        reason = self.data.get("reason")
        return by_words(self.data) + (f": {reason}" if reason else "")


Wording = Callable[[_Facts], EventView]


def _step(facts: _Facts) -> EventView:
    nodes, ns, source = (facts.data.get(name) for name in ("nodes", "ns", "source"))
    inside = f"  in {ns.partition(':')[0]}" if ns else ""
    step = facts.data.get("step")
    text = f"step {step}  {', '.join(nodes or ()) or source}{inside}"
    ran_nothing = not nodes and source in ("input", "loop") and (step or 0) < 1  # before any node
    return EventView(text, routine=ran_nothing)


def _wait(facts: _Facts) -> EventView:
    data = facts.data
    if data["kind"] == Kind.CLOCK:
        return EventView(facts.time("wake_at", "asleep until "))
    until = facts.time("expires_at", ", until ")
    if data["kind"] == Kind.SIGNAL:
        action = NextStep(Verb.SIGNAL, (facts.thread_id, facts.name))
        return EventView(f"waits for the signal {facts.name}{until}", Tone.WAITS, action=action)
    if data["kind"] == Kind.RUN:
        return EventView(f"waits for {name_runs(data.get('runs') or ())}{until}", Tone.WAITS)
    action = NextStep(Verb.ANSWER, (data["wait"],))
    return EventView(f"asks a person{until}", Tone.WAITS, action=action)


def _waiting(facts: _Facts) -> EventView:
    node = facts.data.get("caught_in")
    if node is None:
        return EventView("waiting", routine=True)
    return EventView(f"waiting, although the node {node} caught the wait and went on", Tone.BAD)


def name_runs(ids: Iterable[str]) -> str:
    """Runs by their ids, a few of them."""
    named = [*ids]
    more = f" and {len(named) - MOST_RUNS} more" if len(named) > MOST_RUNS else ""
    return f"run{'s' * (len(named) != 1)} {', '.join(named[:MOST_RUNS])}{more}"


def _joined(facts: _Facts) -> EventView:
    ends: Mapping[str, str] = facts.data.get("runs") or {}
    bad = [f"{id}: {state or 'not found'}" for id, state in ends.items() if state != State.DONE]
    text = f"joined {name_runs(ends)}"
    return EventView(text, Tone.BAD if bad else Tone.GOOD, tuple(bad[:MOST_RUNS]))


def _started(facts: _Facts) -> EventView:
    parent = facts.data.get("parent")
    return EventView(f"started by run {parent}" if parent else "started")


def _effect(facts: _Facts) -> EventView:
    data = facts.data
    attempt = data.get("attempt") or 1
    tries = f", attempt {attempt}" if attempt > 1 else ""
    how = f", {data['how']}" if data.get("how") else ""
    error = f": {data['error']}" if data.get("error") else ""
    later = facts.time("retry_at", ", retries at ")
    text = f"effect {facts.name} {facts.state}{tries}{how}{later}{error}"
    unknown = facts.state == EffectState.UNKNOWN and "key" in data
    action = NextStep(Verb.SETTLE, (data["key"],)) if unknown else None
    tones: Mapping[str, Tone] = {EffectState.DONE: Tone.NOTABLE, EffectState.OPEN: Tone.PLAIN}
    return EventView(text, tones.get(facts.state, Tone.BAD), action=action)


def _failed(facts: _Facts) -> EventView:
    attempt = f" at attempt {facts.data['attempts']}" if facts.data.get("attempts") else ""
    retries = facts.time("retry_at", ", retries at ")
    text = f"failed{attempt}{retries or ' for good'}"
    return EventView(text, Tone.BAD, _exception(facts.data), None if retries else facts.retry)


def _held(facts: _Facts) -> EventView:
    unsettled = facts.data.get("effects")  # settling them lets the run go on
    text = f"held: {facts.data.get('reason', '')}"
    return EventView(text, Tone.BAD, action=None if unsettled else facts.retry)


def _cancelled(facts: _Facts) -> EventView:
    keys = {name: len(facts.data.get(name) or ()) for name in ("undone", "kept", "unknown")}
    effects = ", ".join(f"{number} {name}" for name, number in keys.items() if number)
    return EventView(f"cancelled{facts.by}{f' (effects: {effects})' if effects else ''}", Tone.BAD)


def _scored(facts: _Facts) -> EventView:
    data = facts.data
    value = data.get("label") if "label" in data else data.get("value")
    shown = "" if value is None else f" {value:g}" if isinstance(value, float) else f" {value}"
    parts = [data.get("about")]
    parts += [f"{name} {data[name]}" for name in ("step", "effect") if data.get(name)]
    about = next((f" of {part}" for part in parts if part), "")
    return EventView(f"scored {facts.name}{shown}{about}{facts.by}", Tone.NOTABLE)


def _assigned(facts: _Facts) -> EventView:
    to = facts.data.get("to")
    return EventView(f"assigned to {to}{facts.by}" if to else f"released{facts.by}")


def _comment(facts: _Facts) -> EventView:
    first, *rest = str(facts.data.get("text") or "").splitlines() or [""]
    return EventView(f"comment{facts.by}: {first}", lines=tuple(rest))


def _text(wording: str, tone: Tone = Tone.PLAIN, *, routine: bool = False) -> Wording:
    """A wording that is only a text, with the facts formatted into it."""
    return lambda facts: EventView(wording.format(facts), tone, routine=routine)


WORDING: Mapping[EventKind, Wording] = {
    EventKind.STARTED: _started,
    EventKind.CLAIMED: _text("claimed by {0.worker}", routine=True),
    EventKind.RECOVERED: _text(
        "recovered by {0.worker} after its worker was lost{0.lost}", Tone.NOTABLE
    ),
    EventKind.STEP: _step,
    EventKind.WAIT: _wait,
    EventKind.WAITING: _waiting,
    EventKind.WOKE: _text("{0.woke}"),
    EventKind.EXPIRED: _text("timed out waiting", Tone.BAD),
    EventKind.ANSWER: _text("answered{0.by}", Tone.GOOD),
    EventKind.WITHDRAWN: _text("answer withdrawn{0.by}", Tone.NOTABLE),
    EventKind.SIGNAL: _text("received the signal {0.name}", Tone.GOOD),
    EventKind.JOINED: _joined,
    EventKind.EFFECT: _effect,
    EventKind.DIFFERS: _text("effect {0.name} called with other arguments than recorded"),
    EventKind.SETTLED: _text("effect {0.name} settled as {0.state}{0.by}", Tone.GOOD),
    EventKind.POSTPONED: _text("waits to retry an effect", routine=True),
    EventKind.FAILED: _failed,
    EventKind.HELD: _held,
    EventKind.RELEASED: _text("released unfinished{0.by}"),
    EventKind.CANCELLING: _text("asked to cancel{0.by}", Tone.NOTABLE),
    EventKind.PAUSING: _text("asked to pause{0.by}", Tone.NOTABLE),
    EventKind.CANCELLED: _cancelled,
    EventKind.PAUSED: _text("paused{0.by}", Tone.NOTABLE),
    EventKind.RESUMED: _text("resumed{0.by}", Tone.GOOD),
    EventKind.RETRIED: _text("retried{0.by}", Tone.GOOD),
    EventKind.UPDATED: _text("state changed by update_state"),
    EventKind.SCORED: _scored,
    EventKind.ASSIGNED: _assigned,
    EventKind.REWOUND: lambda facts: EventView(
        f"acknowledged changes are gone: {facts.data.get('reason', 'no reason')}", Tone.BAD
    ),
    EventKind.COMMENT: _comment,
    EventKind.DONE: _text("done", Tone.GOOD),
}


def by_words(data: Data) -> str:
    """Who decided something, in words that follow it: ` by ana (browser, 10.0.0.7)`."""
    way = ", ".join(str(data[name]) for name in ("via", "from") if data.get(name))
    return (f" by {data['by']}" if data.get("by") else "") + (f" ({way})" if way else "")


def worker_name(data: Data) -> str:
    """The worker of a claim by its host and process."""
    return ":".join(str(data.get("worker", "")).split(":")[:2])


def _exception(data: Data) -> tuple[str, ...]:
    """The first lines of an exception, and the last line of the user's own code on its way."""
    message = [line for line in str(data.get("message") or "").splitlines() if line.strip()]
    shown = [*message[:MESSAGE_LINES], *(["…"] if len(message) > MESSAGE_LINES else [])]
    lines = [f"{data.get('kind')}: {shown[0] if shown else ''}", *shown[1:]]
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', data.get("traceback") or "")
    own = [f"in {name}, {file}:{line}" for file, line, name in frames if is_user_code(file)]
    return (*lines, *own[-1:])
