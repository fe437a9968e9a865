"""One event in full: nothing of its data is hidden, and nothing becomes markup."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.types import EffectRecord, EffectState, Event, EventKind, RunError
from perdure.views.event_details import Context, event_details

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def event(kind: str, /, **data: Any) -> Event:
    return Event(7, NOON, kind, data)


def facts(kind: str, about: Context = Context(), /, **data: Any) -> dict[str, str]:  # noqa: B008
    return dict(event_details(event(kind, **data), about).facts)


def parts(kind: str, about: Context = Context(), /, **data: Any) -> dict[str, Any]:  # noqa: B008
    found = event_details(event(kind, **data), about)
    return {part.title: part.value for part in found.parts}


EFFECT = EffectRecord(
    "key-1",
    "send",
    EffectState.FAILED,
    "run",
    "thread",
    3,
    {"to": "ada"},
    None,
    RunError("ValueError", "no", "Traceback …"),
    NOON,
    NOON,
    None,
)


@pytest.mark.parametrize("kind", [*EventKind, "a kind of a later version"])
def test_nothing_of_an_event_is_hidden(kind: str) -> None:
    data = {"odd": {"deep": [1]}, "plain": "text", "number": 3, "wait": "w", "key": "k"}
    data["kind"] = "human"
    found = event_details(event(kind, **data), Context())
    shown = {**dict(found.facts), **{part.title: part.value for part in found.parts}}
    assert shown["Data"] == {"odd": {"deep": [1]}}
    assert (shown["plain"], shown["number"]) == ("text", "3")


def test_a_damaged_event_or_effect_says_so() -> None:
    broken = Event(1, NOON, "effect", {}, damaged="its checksum does not match")
    assert "checksum" in event_details(broken, Context()).view.text
    effect = EffectRecord(**{**vars(EFFECT), "damaged": "its checksum does not match"})
    found = parts("effect", Context(effect), name="send", key="key-1", state="done")
    assert found == {"Damaged": "its checksum does not match"}
