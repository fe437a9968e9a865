"""What a run is waiting for, in a few words."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from perdure.commands.run_search import RunLine
from perdure.commands.workers import UnknownGraphName
from perdure.types import Control, Kind, Run, RunError, State, Wait
from perdure.views.formatting import calendar_time, shorten
from perdure.views.waiting_for import Awaited, line_note, waiting_for

NOW = datetime(2026, 11, 10, 12, tzinfo=UTC)  # a Tuesday
BERLIN = ZoneInfo("Europe/Berlin")


def run(state: State = State.WAITING, **facts: Any) -> Run:
    made = Run("r", "t", "g", state, None, None, None, {}, (), NOW, NOW, None)
    return replace(made, **facts)


def wait(kind: Kind = Kind.HUMAN, value: Any = None, **facts: Any) -> Wait:
    made = Wait("w", "r", "t", kind, value, None, None, None, NOW)
    return replace(made, **facts)


def note(*waits: Wait, of: Run | None = None, **facts: Any) -> str:
    line = RunLine(of or run(), waits, len(waits))
    return line_note(replace(line, **facts), NOW, zone=BERLIN)


REVIEW = {
    "action_requests": [{"name": "send_email", "args": {}}],
    "review_configs": [{"action_name": "send_email", "allowed_decisions": ["approve"]}],
}
INBOX = {
    "action_request": {"action": "send_email", "args": {}},
    "config": {
        "allow_accept": True,
        "allow_edit": True,
        "allow_respond": True,
        "allow_ignore": True,
    },
}


@pytest.mark.parametrize("value", [REVIEW, INBOX, [INBOX]])
def test_a_review_says_which_call_is_to_be_approved_and_until_when(value: Any) -> None:
    friday = datetime(2026, 11, 13, 13, tzinfo=UTC)
    said = note(wait(value=value, expires_at=friday))
    assert said == "a person, to approve send_email, until Friday 14:00 (3d 1h left)"


def test_an_assigned_question_names_its_assignee() -> None:
    assert note(wait(value=REVIEW, assignee="ana")) == "ana, to approve send_email"


def test_several_calls_to_approve_are_named_and_the_rest_are_counted() -> None:
    names = ["mail", "pay", "mail", "book", "call", "post"]
    review = {
        "action_requests": [{"name": name, "args": {}} for name in names],
        "review_configs": [
            {"action_name": name, "allowed_decisions": ["approve"]} for name in dict.fromkeys(names)
        ],
    }
    assert note(wait(value=review)) == "a person, to approve mail, pay, book and 2 more"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("Send it?", "a person, to answer “Send it?”"),
        ({"question": "Send\n it?", "draft": "x"}, "a person, to answer “Send it?”"),
        ({"draft": "Dear Ana"}, "a person, to answer"),
        ({"question": 7}, "a person, to answer"),
        (None, "a person, to answer"),
        ("x" * 5000, f"a person, to answer “{'x' * 59}…”"),
    ],
)
def test_a_question_is_quoted_if_it_has_a_text(value: Any, said: str) -> None:
    assert note(wait(value=value)) == said


def test_a_question_that_cannot_be_read_says_so() -> None:
    said = note(wait(damaged="Wait w is damaged"))
    assert said == "a person: its question cannot be read: Wait w is damaged"


def test_a_signal_is_named_with_how_long_is_left() -> None:
    named = wait(Kind.SIGNAL, {}, name="reply", expires_at=NOW + timedelta(days=3))
    assert note(named) == "the signal reply, until Friday 13:00 (3d left)"
    assert note(replace(named, expires_at=None)) == "the signal reply"


def test_a_sleep_says_when_it_ends() -> None:
    asleep = wait(Kind.CLOCK, {}, wake_at=NOW + timedelta(days=2))
    assert note(asleep) == "the clock, Thursday 13:00 (in 2d)"
    later = run(State.PENDING, due_at=NOW + timedelta(days=20))
    assert note(of=later) == "the clock, 30 Nov 13:00 (in 20d)"


def test_runs_that_are_joined_are_counted_and_one_is_named() -> None:
    assert note(wait(Kind.RUN, {"join": ["a"]})) == "run a"
    awaited = waiting_for(RunLine(run(), (wait(Kind.RUN, {"join": ["a", "b"]}),), 1), NOW)
    assert awaited is not None
    assert (awaited.text, awaited.runs, awaited.kind) == ("2 runs", ("a", "b"), Awaited.RUNS)


def test_a_run_behind_another_one_waits_for_its_turn() -> None:
    behind = run(State.PENDING)
    assert note(of=behind, ahead="r0") == "its turn: after run r0"
    assert note(of=behind) == "its turn: after the run before it"


def test_a_due_run_waits_for_a_worker_whatever_it_waited_for() -> None:
    due = run(due_at=NOW - timedelta(minutes=3))
    assert note(wait(), of=due) == "a worker: due for 3m"
    unknown = [UnknownGraphName("g", "", 1, " Did you mean 'gg'?")]
    pending = RunLine(replace(due, state=State.PENDING))
    said = line_note(pending, NOW, unknown)
    assert said == "a worker: due for 3m, perhaps no worker has this graph. Did you mean 'gg'?"
    assert line_note(RunLine(due), NOW, unknown) == "a worker: due for 3m"


def test_a_held_or_paused_run_waits_for_a_person() -> None:
    held = run(State.HELD, reason="the graph changed")
    assert note(of=held) == "a person: held, the graph changed"
    said = note(of=held, unknown=("charge", "charge", "mail"))
    assert said == "a person: held, the outcome of charge and mail is unknown"
    assert note(of=run(State.PAUSED)) == "a person: paused"


def test_a_driven_run_waits_for_nothing_unless_it_is_to_stop_or_its_worker_was_lost() -> None:
    driven = run(State.RUNNING, due_at=NOW + timedelta(seconds=9))
    assert note(of=driven) == ""
    assert note(of=driven, control=Control.PAUSE) == "its current step: then it is paused"
    assert note(of=driven, control=Control.CANCEL) == "its current step: then it is cancelled"
    lost = replace(driven, due_at=NOW - timedelta(minutes=4))
    assert note(of=lost, control=Control.PAUSE) == "a worker: its worker was lost 4m ago"


def test_an_ended_run_says_why() -> None:
    assert note(of=run(State.DONE, reason="old")) == ""
    assert note(of=run(State.FAILED, error=RunError("ValueError", "no", ""))) == "ValueError: no"
    assert note(of=run(State.CANCELLED, reason="wrong list")) == "wrong list"


def test_the_first_of_several_waits_is_shown_and_the_others_are_counted() -> None:
    asleep = wait(Kind.CLOCK, {}, wake_at=NOW + timedelta(days=2))
    assert note(wait(value="Go?"), asleep) == "a person, to answer “Go?” and 1 more wait"
    assert note(asleep, open_waits=7) == "the clock, Thursday 13:00 (in 2d) and 6 more waits"


def test_without_its_waits_a_resting_run_says_what_it_may_wait_for() -> None:
    assert note() == "a person, a signal or a run"


def test_what_expires_soon_is_urgent() -> None:
    for hours, urgent in ((23, True), (25, False)):
        line = RunLine(run(), (wait(expires_at=NOW + timedelta(hours=hours)),), 1)
        awaited = waiting_for(line, NOW)
        assert awaited is not None
        assert awaited.is_urgent is urgent
    over = note(wait(value="Go?", expires_at=NOW - timedelta(hours=1)))
    assert over == "a person, to answer “Go?”, until 12:00 (overdue)"


def test_times_are_said_as_people_say_them() -> None:
    said = {
        hours: calendar_time(NOW + timedelta(hours=hours), NOW, BERLIN)
        for hours in (0, 12, -24, 24 * 3, 24 * 7, 24 * 60)
    }
    assert said == {
        0: "13:00",
        12: "tomorrow 01:00",
        -24: "yesterday 13:00",
        72: "Friday 13:00",
        168: "17 Nov 13:00",
        1440: "9 Jan 2027 13:00",
    }
    assert calendar_time(NOW, NOW) == "12:00Z"
    assert shorten("  a\n b ", 5) == "a b"
