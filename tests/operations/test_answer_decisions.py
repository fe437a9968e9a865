"""What a person decided is read from an answer, and never guessed."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from perdure.operations.answer_decisions import Decision, Verdict, decisions_in, edit_distance
from perdure.views.page import text_diff

APPROVED, EDITED = Verdict.APPROVED, Verdict.EDITED
REJECTED, RESPONDED = Verdict.REJECTED, Verdict.RESPONDED


def review(*names: str) -> dict[str, Any]:
    return {
        "action_requests": [{"name": name, "args": {"body": "Dear Bo"}} for name in names],
        "review_configs": [{"action_name": name} for name in names],
    }


def inbox(action: str) -> dict[str, Any]:
    config = {"allow_accept": True, "allow_edit": True, "allow_respond": True, "allow_ignore": True}
    return {"action_request": {"action": action, "args": {"body": "Dear Bo"}}, "config": config}


def edit(body: str) -> dict[str, Any]:
    return {"type": "edit", "edited_action": {"name": "send", "args": {"body": body}}}


DRAFT = {"draft": "Dear Bo"}
CALL = {"type": "tool_approval", "tool_call_id": "c-1", "name": "send", "args": {"body": "Dear Bo"}}
CAMPAIGN = {"to": "bo@example.com", "touch": 1, "subject": "Hello", "body": "Dear Bo"}

CLEAR: list[tuple[Any, Any, list[Decision]]] = [
    # HumanInTheLoopMiddleware, for all calls at once and for each
    (review("send"), {"decisions": [{"type": "approve"}]}, [Decision(APPROVED, None, "send")]),
    (
        review("send", "pay", "look"),
        {
            "decisions": [
                edit("Dear Bo"),
                {"type": "reject", "message": "too much"},
                {"type": "respond", "message": "it is red"},
            ]
        },
        [
            Decision(EDITED, 0.0, "send"),
            Decision(REJECTED, None, "pay", None, "too much"),
            Decision(RESPONDED, None, "look", None, "it is red"),
        ],
    ),
    (review("send"), {"decisions": [edit("xyz")]}, [Decision(EDITED, 1.0, "send")]),
    (CALL, {"type": "approve"}, [Decision(APPROVED, None, "send", "c-1")]),
    (CALL, edit("Dear Ada"), [Decision(EDITED, 0.3333, "send", "c-1")]),
    # the Agent Inbox
    (inbox("mail"), {"type": "accept", "args": None}, [Decision(APPROVED, None, "mail")]),
    ([inbox("mail")], [{"type": "ignore", "args": None}], [Decision(REJECTED, None, "mail")]),
    (
        inbox("mail"),
        [{"type": "edit", "args": {"action": "mail", "args": {"body": "Dear Bo!"}}}],
        [Decision(EDITED, 0.0667, "mail")],
    ),
    (
        inbox("mail"),
        {"type": "response", "args": "shorter"},
        [Decision(RESPONDED, None, "mail", None, "shorter")],
    ),
    # forms
    ("Send it?", "approve", [Decision(APPROVED)]),
    ("Send it?", "Rejected", [Decision(REJECTED)]),
    (DRAFT, {"ok": True}, [Decision(APPROVED)]),
    (DRAFT, {"approved": False, "comment": "rude"}, [Decision(REJECTED, comment="rude")]),
    (DRAFT, {"ok": True, "body": "Dear Bo"}, [Decision(APPROVED)]),
    (DRAFT, {"ok": True, "body": "Dear Bo!"}, [Decision(EDITED, 0.0667)]),
    (
        {"draft": {"subject": "Hello", "body": "Dear Bo"}},
        {"approved": True, "subject": "Hello", "body": "Dear Bo!"},
        [Decision(EDITED, 0.04)],
    ),
    (CAMPAIGN, {"action": "approve"}, [Decision(APPROVED)]),
    (CAMPAIGN, {"action": "approve", "body": "", "comment": ""}, [Decision(APPROVED)]),
    (CAMPAIGN, {"action": "edit", "body": "Dear Bo!"}, [Decision(EDITED, 0.0667)]),
    (CAMPAIGN, {"action": "edit"}, [Decision(EDITED)]),
    (
        CAMPAIGN,
        {"action": "reject", "comment": "too long"},
        [Decision(REJECTED, comment="too long")],
    ),
]


@pytest.mark.parametrize(("value", "answer", "expected"), CLEAR)
def test_an_answer_that_says_what_it_decides_is_a_decision(
    value: Any, answer: Any, expected: list[Decision]
) -> None:
    assert decisions_in(value, answer) == expected


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("Is Bo under 18?", False),
        (DRAFT, True),
        (DRAFT, "Dear Bo, how are you?"),
        ("Where to?", "Paris"),
        ("Which?", {"action": "archive"}),
        (CAMPAIGN, {"action": "skip"}),
        (DRAFT, {"verdict": "send"}),
        (DRAFT, {"ok": True, "action": "reject"}),
        (DRAFT, {"ok": "yes"}),
        (DRAFT, "edit"),
        (review("send", "pay"), {"decisions": [{"type": "approve"}]}),
        (review("send"), {"decisions": 7}),
        (DRAFT, None),
        (None, [1, 2]),
    ],
)
def test_an_answer_whose_meaning_is_not_clear_decides_nothing(value: Any, answer: Any) -> None:
    assert decisions_in(value, answer) == []


def test_the_distance_is_0_for_no_change_and_1_for_another_text_and_grows_between() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 40
    assert edit_distance(text, text) == 0
    assert edit_distance("", "") == 0
    assert edit_distance("abc", "") == edit_distance("abc", "xyz") == 1
    little, more = text.replace("quick", "slow", 1), text.replace("quick", "slow")
    assert 0 < edit_distance(text, little) < edit_distance(text, more) < 0.5
    assert edit_distance(text, more) == pytest.approx(edit_distance(more, text), abs=0.02)


def test_a_long_text_does_not_keep_the_caller_waiting() -> None:
    begun = time.process_time()
    assert 0 < edit_distance("a b " * 20_000, "b a c " * 15_000) <= 1
    assert edit_distance("line one\n" * 30_000, "line two\n" * 30_000) <= 1
    some = random.Random(1)
    parts = [
        " ".join(f"{n} {''.join(some.choices('ab', k=900))}" for n in range(100)) for _ in range(2)
    ]
    assert 0.9 < edit_distance(*parts) <= 1
    assert time.process_time() - begun < 5


@pytest.mark.timeout(20)
def test_texts_of_very_many_lines_are_compared_in_a_moment() -> None:
    """An edit is compared while others wait for their pages."""
    chance = random.Random(7)
    one, other = ("\n".join(f"{chance.randrange(120)}" for _ in range(400_000)) for _ in range(2))
    assert edit_distance(f"a{one}", f"a{other}") > 0.9
    shown = text_diff(f"same {one}", f"same {other}")
    assert (shown.count("<del>"), shown.count("<ins>")) == (1, 1)
