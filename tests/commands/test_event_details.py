"""One event in full: nothing of its data is hidden, and nothing becomes markup."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.types import EffectRecord, EffectState, Event, EventKind, Kind, RunError, WaitRecord
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


def test_an_effect_has_arguments_attempts_error_and_traceback() -> None:
    data = {
        "name": "send",
        "key": "key-1",
        "state": "failed",
        "attempt": 3,
        "error": "ValueError: no",
    }
    data |= {"begun_at": NOON - timedelta(seconds=2), "usage": {"model": "m", "input_tokens": 9}}
    shown = facts("effect", Context(EFFECT), **data)
    assert shown["key"] == "key-1"
    assert (shown["attempt"], shown["total attempts"], shown["took"]) == ("3", "3", "2.0s")
    assert (shown["model"], shown["tokens"]) == ("m", "9 in, 0 out")
    assert parts("effect", Context(EFFECT), **data) == {
        "Arguments": {"to": "ada"},
        "Error": "ValueError: no",
        "Traceback": "Traceback …",
    }


def test_an_answer_says_who_gave_it_through_what_and_from_where() -> None:
    wait = WaitRecord(
        *("w", "run", "thread", Kind.HUMAN, {"question": "?"}, None, None, None, NOON),
        state="applied",
        answered_at=NOON,
        answered_by="ana",
        answer={"ok": True},
    )
    data = {"wait": "w", "by": "ana", "via": "browser", "from": "10.0.0.7"}
    shown = facts("answer", Context(wait=wait), **data)
    assert (shown["by"], shown["through"], shown["from"]) == ("ana", "browser", "10.0.0.7")
    assert shown["waits for"] == "a person"
    found = parts("answer", Context(wait=wait), **data)
    assert found == {"What was shown": {"question": "?"}, "Answer": {"ok": True}}


def test_a_failure_has_its_traceback() -> None:
    data = {"kind": "ValueError", "message": "no", "traceback": "Traceback …", "attempts": 2}
    assert parts("failed", **data) == {"Error": "ValueError: no", "Traceback": "Traceback …"}
    assert facts("failed", **data) == {"attempts": "2"}


def test_a_step_has_its_checkpoint_and_its_subgraph() -> None:
    found = event_details(
        event("step", step=3, nodes=["a", "b"], checkpoint="c1", ns="sub:1"), Context()
    )
    assert found.checkpoint == ("sub:1", "c1")
    assert dict(found.facts)["nodes"] == "a, b"


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
