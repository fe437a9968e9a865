"""What a person decided is read from an answer, and never guessed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from perdure.views.answer_difference import text_diff
from perdure.views.answer_form import Verdict, verdicts_in

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

CLEAR: list[tuple[Any, Any, list[Verdict]]] = [
    # HumanInTheLoopMiddleware, for all calls at once and for each
    (review("send"), {"decisions": [{"type": "approve"}]}, [APPROVED]),
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
            EDITED,
            REJECTED,
            RESPONDED,
        ],
    ),
    (review("send"), {"decisions": [edit("xyz")]}, [EDITED]),
    (CALL, {"type": "approve"}, [APPROVED]),
    (CALL, edit("Dear Ada"), [EDITED]),
    # the Agent Inbox
    (inbox("mail"), {"type": "accept", "args": None}, [APPROVED]),
    ([inbox("mail")], [{"type": "ignore", "args": None}], [REJECTED]),
    (
        inbox("mail"),
        [{"type": "edit", "args": {"action": "mail", "args": {"body": "Dear Bo!"}}}],
        [EDITED],
    ),
    (
        inbox("mail"),
        {"type": "response", "args": "shorter"},
        [RESPONDED],
    ),
    # forms
    ("Send it?", "approve", [APPROVED]),
    ("Send it?", "Rejected", [REJECTED]),
    (DRAFT, {"ok": True}, [APPROVED]),
    (DRAFT, {"approved": False, "comment": "rude"}, [REJECTED]),
    (DRAFT, {"ok": True, "body": "Dear Bo"}, [APPROVED]),
    (DRAFT, {"ok": True, "body": "Dear Bo!"}, [EDITED]),
    (
        {"draft": {"subject": "Hello", "body": "Dear Bo"}},
        {"approved": True, "subject": "Hello", "body": "Dear Bo!"},
        [EDITED],
    ),
    (CAMPAIGN, {"action": "approve"}, [APPROVED]),
    (CAMPAIGN, {"action": "approve", "body": "", "comment": ""}, [APPROVED]),
    (CAMPAIGN, {"action": "edit", "body": "Dear Bo!"}, [EDITED]),
    (CAMPAIGN, {"action": "edit"}, [EDITED]),
    (
        CAMPAIGN,
        {"action": "reject", "comment": "too long"},
        [REJECTED],
    ),
]


@pytest.mark.parametrize(("value", "answer", "expected"), CLEAR)
def test_an_answer_that_says_what_it_decides_is_a_decision(
    value: Any, answer: Any, expected: list[Verdict]
) -> None:
    assert verdicts_in(value, answer) == expected


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
    assert verdicts_in(value, answer) == []


@pytest.mark.timeout(20)
def test_texts_of_very_many_lines_are_compared_in_a_moment() -> None:
    """An edit is compared while others wait for their pages."""
    chance = random.Random(7)
    one, other = ("\n".join(f"{chance.randrange(120)}" for _ in range(400_000)) for _ in range(2))
    shown = text_diff(f"same {one}", f"same {other}")
    assert (shown.count("<del>"), shown.count("<ins>")) == (1, 1)
