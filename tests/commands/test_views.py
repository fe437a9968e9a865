"""What people see: every event in words, timelines, the inbox, what a run is waiting for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import perdure
from perdure.text import describe_error
from perdure.types import (
    EffectRecord,
    EffectState,
    Event,
    EventKind,
    Kind,
    Run,
    RunError,
    State,
    WaitRecord,
)
from perdure.views.event_wording import WORDING, NextStep, Tone, Verb, view_event
from perdure.views.formatting import age, call_arguments, count, duration
from perdure.views.timeline import Period, PeriodKind, timeline, totals
from perdure.views.waiting_for import blockers

START = datetime(2030, 1, 1, 12, tzinfo=UTC)


def events(*told: tuple[float, str] | tuple[float, str, dict[str, Any]]) -> list[Event]:
    """Events so many hours after the start."""
    return [
        Event(n, START + timedelta(hours=hour), kind, data[0] if data else {})
        for n, (hour, kind, *data) in enumerate(told, 1)
    ]


def hours(told: list[Period], now: float) -> list[tuple[str, float]]:
    """What a timeline says, in hours."""
    at = START + timedelta(hours=now)
    return [(one.kind, one.lasted(at) / timedelta(hours=1)) for one in told]


def read(now: float, *told: Any) -> list[tuple[str, float]]:
    return hours(timeline(events(*told), START + timedelta(hours=now)), now)


def wait(kind: str, id: str = "w", **more: Any) -> dict[str, Any]:
    return {"wait": id, "kind": kind, **more}


# -- timelines


def test_the_time_until_a_failed_run_is_retried_is_told_apart() -> None:
    told = ((0, "started"), (0, "claimed"), (1, "failed"), (3, "withdrawn"), (3, "retried"))
    rests = [(PeriodKind.QUEUED, 0), (PeriodKind.DRIVEN, 1), (PeriodKind.FAILED, 2)]
    assert read(4, *told) == [*rests, (PeriodKind.QUEUED, 1)]
    again = [*rests, (PeriodKind.QUEUED, 1), (PeriodKind.DRIVEN, 1)]
    assert read(5, *told, (4, "claimed"), (5, "done")) == again


def test_what_is_asked_again_is_shown_as_what_it_was() -> None:
    for kind, told, reopened, period in (
        ("human", (1, "answer", wait("human")), (3, "withdrawn", {"wait": "w"}), PeriodKind.PERSON),
        ("run", (1, "joined", wait("run", runs={"r": "failed"})), None, PeriodKind.RUN),
    ):
        first = ((0, "started"), (0, "claimed"), (0, "wait", wait(kind)), (0, "waiting"))
        failed = (told, (1, "claimed"), (2, "failed"), *([reopened] if reopened else []))
        again = ((3, "retried"), (3, "claimed"), (4, "waiting"))  # no event tells of it
        assert read(7, *first, *failed, *again)[-1] == (period, 3)


def test_a_sleeper_that_was_woken_is_queued() -> None:
    asleep = wait("clock", wake_at=START + timedelta(hours=9))
    told = ((0, "started"), (0, "claimed"), (0, "wait", asleep), (0, "waiting"))
    woken = (2, "woke", {"wait": "w", "early": True, "by": "ana"})
    rests = [(PeriodKind.QUEUED, 0), (PeriodKind.DRIVEN, 0), (PeriodKind.ASLEEP, 2)]
    assert read(3, *told, woken) == [*rests, (PeriodKind.QUEUED, 1)]
    assert view_event(events(woken)[0]).text == "woken by ana"


def test_a_paused_run_that_is_woken_or_answered_stays_paused() -> None:
    told = ((0, "started"), (1, "paused"), (2, "woke", {"wait": "w"}), (3, "answer", {"wait": "v"}))
    paused = [(PeriodKind.QUEUED, 1), (PeriodKind.PAUSED, 4)]
    assert read(5, *told) == paused
    assert read(6, *told, (5, "resumed")) == [*paused, (PeriodKind.QUEUED, 1)]


def test_the_last_rest_of_a_run_that_ended_does_not_last() -> None:
    [queued] = timeline(events((0, "started"), (2, "cancelled")), START + timedelta(hours=2))
    assert queued.until == START + timedelta(hours=2)


def test_a_run_nobody_came_for_is_queued() -> None:
    assert read(5, (0, "started")) == [(PeriodKind.QUEUED, 5)]


def test_what_is_driven_and_ends_is_over() -> None:
    told = timeline(events((0, "started"), (1, "claimed"), (3, "done")), START)
    assert hours(told, 99) == [(PeriodKind.QUEUED, 1), (PeriodKind.DRIVEN, 2)]
    assert [one.until is None for one in told] == [False, False]


@pytest.mark.parametrize(
    ("kind", "answer", "rest"),
    [
        ("human", "answer", PeriodKind.PERSON),
        ("signal", "signal", PeriodKind.SIGNAL),
        ("run", "joined", PeriodKind.RUN),
    ],
)
def test_a_wait_lasts_until_the_next_claim(kind: str, answer: str, rest: str) -> None:
    asked = ((0, "started"), (0, "claimed"), (1, "wait", wait(kind)), (1, "waiting"))
    assert read(9, *asked) == [(PeriodKind.QUEUED, 0), (PeriodKind.DRIVEN, 1), (rest, 8)]
    assert read(9, *asked, (5, "claimed"), (6, answer, {"wait": "w"}), (7, "done")) == [
        (PeriodKind.QUEUED, 0),
        (PeriodKind.DRIVEN, 1),
        (rest, 4),
        (PeriodKind.DRIVEN, 2),
    ]


def test_after_the_answer_a_run_is_queued_until_somebody_comes() -> None:
    asked = ((0, "started"), (0, "claimed"), (1, "wait", wait("human")), (1, "waiting"))
    answered = (*asked, (4, "answer", {"wait": "w", "by": "ana"}))
    assert read(9, *answered)[2:] == [(PeriodKind.PERSON, 3), (PeriodKind.QUEUED, 5)]
    assert read(9, *answered, (6, "claimed"), (7, "done"))[2:] == [
        (PeriodKind.PERSON, 3),
        (PeriodKind.QUEUED, 2),
        (PeriodKind.DRIVEN, 1),
    ]


def test_sleep_ends_at_its_time_and_not_when_somebody_came() -> None:
    clock = wait("clock", wake_at=START + timedelta(hours=4))
    asleep = ((0, "started"), (0, "claimed"), (1, "wait", clock), (1, "waiting"))
    assert read(3, *asleep)[2:] == [(PeriodKind.ASLEEP, 2)]
    assert read(9, *asleep)[2:] == [(PeriodKind.ASLEEP, 3), (PeriodKind.QUEUED, 5)]
    assert read(9, *asleep, (6, "claimed"))[2:] == [
        (PeriodKind.ASLEEP, 3),
        (PeriodKind.QUEUED, 2),
        (PeriodKind.DRIVEN, 3),
    ]


def test_a_person_counts_before_a_signal_and_a_signal_before_the_clock() -> None:
    begin = ((0, "started"), (0, "claimed"))
    clock = (1, "wait", wait("clock", "c", wake_at=START + timedelta(hours=50)))
    signal, human = (1, "wait", wait("signal", "s")), (1, "wait", wait("human", "h"))
    assert read(9, *begin, clock, signal, human, (1, "waiting"))[-1] == (PeriodKind.PERSON, 8)
    assert read(9, *begin, clock, signal, (1, "waiting"))[-1] == (PeriodKind.SIGNAL, 8)
    answered = (2, "answer", {"wait": "h"})
    later = read(9, *begin, clock, human, (1, "waiting"), answered, (3, "claimed"), (3, "waiting"))
    assert later[-1] == (PeriodKind.ASLEEP, 6)  # the person's part is over, the clock's is not


def test_a_signal_that_is_waited_for_until_a_time_is_sleep_that_a_signal_ends() -> None:
    either = wait("signal", name="reply", expires_at=START + timedelta(hours=4))
    asleep = ((0, "started"), (0, "claimed"), (1, "wait", either), (1, "waiting"))
    assert read(3, *asleep)[2:] == [(PeriodKind.SIGNAL_OR_TIME, 2)]
    assert read(9, *asleep)[2:] == [(PeriodKind.SIGNAL_OR_TIME, 3), (PeriodKind.QUEUED, 5)]
    assert read(9, *asleep, (2, "claimed"))[2:] == [
        (PeriodKind.SIGNAL_OR_TIME, 1),
        (PeriodKind.DRIVEN, 7),
    ]


def test_the_time_after_the_last_sign_of_a_lost_worker_is_that_workers() -> None:
    claimed = (1, "claimed", {"worker": "web1:7:x"})
    told = timeline(
        events((0, "started"), claimed, (2, "step"), (5, "recovered"), (6, "done")), START
    )
    [lost] = [one for one in told if one.kind is PeriodKind.LOST]
    assert lost.worker == "web1:7"
    assert hours(told, 9) == [
        (PeriodKind.QUEUED, 1),
        (PeriodKind.DRIVEN, 1),
        (PeriodKind.LOST, 3),
        (PeriodKind.DRIVEN, 1),
    ]
    assert [
        (one.segment, one.died, one.recovered) for one in told if one.kind == PeriodKind.DRIVEN
    ] == [
        (1, True, False),
        (2, False, True),
    ]


def test_a_worker_whose_lease_ran_out_no_longer_drives() -> None:
    told = events((0, "started"), (1, "claimed", {"worker": "web1:7:x"}), (2, "step"))
    now = START + timedelta(hours=9)
    assert hours(timeline(told, now), 9)[1:] == [(PeriodKind.DRIVEN, 8)]
    *_, driven, lost = timeline(told, now, lost=True)
    assert driven.died
    assert (lost.kind, lost.worker, lost.until) == (PeriodKind.LOST, "web1:7", None)


@pytest.mark.parametrize(
    ("end", "rest"),
    [
        ((1, "failed", {"retry_at": START + timedelta(hours=3)}), PeriodKind.RETRYING),
        ((1, "paused"), PeriodKind.PAUSED),
        ((1, "held", {"reason": "x"}), PeriodKind.HELD),
        ((1, "released"), PeriodKind.QUEUED),
    ],
    ids=["failed", "paused", "held", "released"],
)
def test_a_segment_ends_in_a_rest_that_says_why(end: Any, rest: str) -> None:
    assert read(2, (0, "started"), (0, "claimed"), end)[-1] == (rest, 1)


def test_a_failure_that_is_not_tried_again_is_the_end() -> None:
    told = timeline(events((0, "started"), (0, "claimed"), (1, "failed", {"final": True})), START)
    assert hours(told, 99) == [(PeriodKind.QUEUED, 0), (PeriodKind.DRIVEN, 1)]


def test_totals_add_up_to_all_of_its_time() -> None:
    now = START + timedelta(hours=9)
    told = timeline(
        events((0, "started"), (2, "claimed"), (3, "released"), (4, "claimed"), (5, "done")), now
    )
    assert totals(told, now) == {
        PeriodKind.QUEUED: timedelta(hours=3),
        PeriodKind.DRIVEN: timedelta(hours=2),
    }


# -- events


SAMPLES: dict[EventKind, dict[str, Any]] = {
    EventKind.CLAIMED: {"worker": "web1:17:abc", "driven": "worker"},
    EventKind.RECOVERED: {"worker": "web1:17:abc", "driven": "worker"},
    EventKind.STEP: {"step": 1, "source": "loop", "nodes": ["check"]},
    EventKind.WAIT: wait("human"),
    EventKind.SIGNAL: {"wait": "w", "name": "reply"},
    EventKind.JOINED: {"wait": "w", "runs": {"r1": "done"}},
    EventKind.EFFECT: {"name": "send", "key": "k", "state": "done"},
    EventKind.DIFFERS: {"name": "send", "key": "k"},
    EventKind.SETTLED: {"name": "send", "key": "k", "state": "done", "by": "ana"},
    EventKind.SCORED: {"name": "decision", "label": "edited", "wait": "w", "by": "ana"},
    EventKind.FAILED: {"kind": "ValueError", "message": "no", "attempts": 3, "final": True},
    EventKind.HELD: {"reason": "nothing works"},
}


def said(kind: str, /, **data: Any) -> str:
    return view_event(Event(1, START, kind, data), "r", "t").text


@pytest.mark.parametrize("kind", EventKind)
def test_every_kind_of_event_has_words_of_its_own(kind: EventKind) -> None:
    assert kind in WORDING, "a new kind of event: add its wording"
    view = view_event(Event(1, START, kind, SAMPLES.get(kind, {})), "r", "t")
    assert view.text
    assert "None" not in view.text


def test_no_two_kinds_of_events_read_the_same() -> None:
    texts = [view_event(Event(1, START, kind, SAMPLES.get(kind, {}))).text for kind in EventKind]
    assert len(set(texts)) == len(texts)


def test_a_kind_of_a_newer_perdure_is_shown_with_its_data() -> None:
    assert said("teleported", to="mars") == "teleported {'to': 'mars'}"


def test_an_event_says_who_and_why() -> None:
    assert said("cancelled", by="ana", reason="enough") == "cancelled by ana: enough"
    assert said("cancelled", undone=["a", "b"]) == "cancelled (effects: 2 undone)"
    assert said("answer", wait="w", by="ana") == "answered by ana"
    assert said("step", step=2, nodes=["a", "b"], ns="sub:1") == "step 2  a, b  in sub"


def test_a_wait_says_for_what_and_until_when() -> None:
    at = START + timedelta(days=1)
    assert said("wait", **wait("clock", wake_at=at)) == "asleep until 2030-01-02 12:00:00Z"
    assert (
        said("wait", **wait("human", expires_at=at)) == "asks a person, until 2030-01-02 12:00:00Z"
    )
    assert said("wait", **wait("signal", name="reply")) == "waits for the signal reply"
    assert said("wait", **wait("run", runs=["r1"])) == "waits for run r1"
    many = "waits for runs r0, r1, r2 and 2 more"
    assert said("wait", **wait("run", runs=[f"r{n}" for n in range(5)])) == many
    assert said("joined", wait="w", runs={"r1": "done"}) == "joined run r1"
    assert said("started", parent="r0") == "started by run r0"


def test_the_reader_of_an_event_chooses_how_times_look() -> None:
    event = Event(1, START, "wait", wait("clock", wake_at=START))
    assert view_event(event, format_time=lambda at: f"{at:%H}h").text == "asleep until 12h"


def test_bookkeeping_is_marked_as_routine() -> None:
    routine = {
        kind
        for kind in EventKind
        if view_event(Event(1, START, kind, SAMPLES.get(kind, {}))).routine
    }
    assert routine == {EventKind.CLAIMED, EventKind.WAITING, EventKind.POSTPONED}
    assert view_event(Event(1, START, "step", {"step": -1, "source": "input"})).routine


def test_an_exception_is_shown_with_the_last_line_of_the_users_own_code() -> None:
    with pytest.raises(perdure.errors.BadArgument) as raised:
        perdure.sleep(25)  # type: ignore[arg-type]
    first, place = view_event(Event(1, START, "failed", describe_error(raised.value))).lines
    assert "timedelta(seconds=25)" in first
    assert place.startswith("in test_an_exception_is_shown_with_the_last_line")
    assert __file__ in place


# -- the inbox, and what a run is waiting for


def run(state: State = State.WAITING, **facts: Any) -> Run:
    made = Run("r", "t", "g", state, None, None, None, {}, (), START, START, None)
    return replace(made, **facts)


def question(kind: Kind = Kind.HUMAN, **facts: Any) -> WaitRecord:
    made = WaitRecord("w", "r", "t", kind, {"draft": "Dear Ana"}, None, None, None, START)
    return replace(made, **facts)


def effect(state: EffectState = EffectState.UNKNOWN) -> EffectRecord:
    return EffectRecord(
        "k", "send", state, "r", "t", 1, {"to": "ana"}, None, None, START, START, None
    )


NOW = START + timedelta(hours=2)


def test_a_run_that_needs_a_person_says_why_and_how_it_goes_on() -> None:
    error = RunError("ValueError", "no", "")
    failed = blockers(run(State.FAILED, error=error), [], [], NOW)
    assert [one.text for one in failed] == ["ValueError: no", "it stays failed until it is retried"]
    assert failed[0].tone is Tone.BAD
    held = blockers(run(State.HELD, reason="it is unknown"), [], [effect()], NOW)
    assert [one.action for one in held] == [NextStep(Verb.SETTLE, ("k",))]
    [paused] = blockers(run(State.PAUSED), [], [], NOW)
    assert paused.action == NextStep(Verb.RESUME, ("r",))


def test_a_cancelled_run_says_that_its_reason_is_why_it_was_cancelled() -> None:
    [why] = blockers(run(State.CANCELLED, reason="wrong list"), [], [], NOW)
    assert why.text == "cancelled: wrong list"


def test_a_run_that_a_node_starts_is_shown_by_what_it_was_given() -> None:
    setup = {"metadata": {}, "tags": [], "config": {}, "input": {"topic": "tea"}}
    call = {"graph": "research", "version": "", "thread_id": None, "setup": setup, "key": None}
    assert call_arguments("perdure.start", call) == "graph='research', input={'topic': 'tea'}"
    assert call_arguments("send", {"key": None}) == "key=None"


def test_a_due_run_without_a_worker_says_so() -> None:
    [late] = blockers(run(State.PENDING, due_at=START), [], [], NOW)
    assert late.text.startswith("due for 2h, and no worker has claimed it")
    [behind] = blockers(run(State.PENDING), [], [], NOW)
    assert behind.text == "starts after the run before it on its thread"


def test_no_clock_wakes_a_run_that_is_held_or_paused() -> None:
    asleep = question(Kind.CLOCK, wake_at=NOW + timedelta(days=1))
    for state in (State.HELD, State.PAUSED):
        told = [one.text for one in blockers(run(state, reason="why"), [asleep], [], NOW)]
        assert told[0] == "why"
        assert not any("asleep" in text for text in told)
    over = question(Kind.CLOCK, wake_at=START)
    [late] = blockers(run(due_at=START), [over], [], NOW)
    assert late.text.startswith("due for 2h")


def test_a_run_whose_worker_was_lost_says_so() -> None:
    lost = run(State.RUNNING, due_at=START)
    [found] = blockers(lost, [], [], NOW)
    assert found.text.startswith("its worker was lost, and no other one has taken it over")
    assert blockers(run(State.RUNNING, due_at=NOW + timedelta(seconds=3)), [], [], NOW) == []


# -- wording


def test_a_duration_has_two_units_and_an_age_one() -> None:
    lasted = {0.123: "0.12s", 4.5: "4.5s", 75: "1m 15s", 3600: "1h", 93_784: "1d 2h", 86_401: "1d"}
    assert {seconds: duration(timedelta(seconds=seconds)) for seconds in lasted} == lasted
    assert age(START, NOW) == "2h"
    assert age(NOW + timedelta(hours=3), NOW) == "in 3h"
    assert (count(1, "run"), count(1200, "run")) == ("1 run", "1,200 runs")
