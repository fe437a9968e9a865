"""Which fields of an event may leave the journal without its content.

Logs and flat tables show these, and nothing else of an event. A field is here because of what it
can hold: ids, times, counts, states, and names that are in the code. What a person or a model wrote
is content: messages of errors, tracebacks, labels, answers, reasons, who did it. A new kind of
event must be entered in `FIELDS`: a test asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from perdure.types import EventKind

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
