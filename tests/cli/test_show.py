"""`perdure show`: where a run spent its time, what it did, and what it waits for."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.cli.timeline import (
    ASLEEP,
    DEAD,
    DRIVEN,
    EITHER,
    HELD,
    PAUSED,
    PERSON,
    QUEUED,
    RETRYING,
    SIGNAL,
    Stretch,
    stretches,
    totals,
)
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import Event, Run
from tests.support.agents import chain
from tests.support.commands import Command, commands_at, in_terminal

START = datetime(2030, 1, 1, 12, tzinfo=UTC)


def events(*told: tuple[float, str] | tuple[float, str, dict[str, Any]]) -> list[Event]:
    """Events so many hours after the start."""
    return [
        Event(n, START + timedelta(hours=hour), kind, data[0] if data else {})
        for n, (hour, kind, *data) in enumerate(told, 1)
    ]


def hours(told: list[Stretch], now: float) -> list[tuple[str, float]]:
    """What a timeline says, in hours."""
    at = START + timedelta(hours=now)
    return [(one.kind, one.lasted(at) / timedelta(hours=1)) for one in told]


def read(now: float, *told: Any) -> list[tuple[str, float]]:
    return hours(stretches(events(*told), START + timedelta(hours=now)), now)


def wait(kind: str, id: str = "w", **more: Any) -> dict[str, Any]:
    return {"wait": id, "kind": kind, **more}


# -- the timeline


def test_a_run_nobody_came_for_is_queued() -> None:
    assert read(5, (0, "started")) == [(QUEUED, 5)]


def test_what_is_driven_and_ends_is_over() -> None:
    told = stretches(events((0, "started"), (1, "claimed"), (3, "done")), START)
    assert hours(told, 99) == [(QUEUED, 1), (DRIVEN, 2)]
    assert [one.until is None for one in told] == [False, False]


@pytest.mark.parametrize(
    ("kind", "answer", "rest"),
    [("human", "answer", PERSON), ("signal", "signal", SIGNAL)],
)
def test_a_wait_lasts_until_the_next_claim(kind: str, answer: str, rest: str) -> None:
    asked = ((0, "started"), (0, "claimed"), (1, "wait", wait(kind)), (1, "waiting"))
    assert read(9, *asked) == [(QUEUED, 0), (DRIVEN, 1), (rest, 8)]
    assert read(9, *asked, (5, "claimed"), (6, answer, {"wait": "w"}), (7, "done")) == [
        (QUEUED, 0),
        (DRIVEN, 1),
        (rest, 4),
        (DRIVEN, 2),
    ]


def test_after_the_answer_a_run_is_queued_until_somebody_comes() -> None:
    asked = ((0, "started"), (0, "claimed"), (1, "wait", wait("human")), (1, "waiting"))
    answered = (*asked, (4, "answer", {"wait": "w", "by": "ana"}))
    assert read(9, *answered)[2:] == [(PERSON, 3), (QUEUED, 5)]
    assert read(9, *answered, (6, "claimed"), (7, "done"))[2:] == [
        (PERSON, 3),
        (QUEUED, 2),
        (DRIVEN, 1),
    ]


def test_sleep_ends_at_its_time_and_not_when_somebody_came() -> None:
    clock = wait("clock", wake_at=START + timedelta(hours=4))
    asleep = ((0, "started"), (0, "claimed"), (1, "wait", clock), (1, "waiting"))
    assert read(3, *asleep)[2:] == [(ASLEEP, 2)]
    assert read(9, *asleep)[2:] == [(ASLEEP, 3), (QUEUED, 5)]
    assert read(9, *asleep, (6, "claimed"))[2:] == [(ASLEEP, 3), (QUEUED, 2), (DRIVEN, 3)]


def test_a_person_counts_before_a_signal_and_a_signal_before_the_clock() -> None:
    begin = ((0, "started"), (0, "claimed"))
    clock = (1, "wait", wait("clock", "c", wake_at=START + timedelta(hours=50)))
    signal, human = (1, "wait", wait("signal", "s")), (1, "wait", wait("human", "h"))
    assert read(9, *begin, clock, signal, human, (1, "waiting"))[-1] == (PERSON, 8)
    assert read(9, *begin, clock, signal, (1, "waiting"))[-1] == (SIGNAL, 8)
    answered = (2, "answer", {"wait": "h"})
    later = read(9, *begin, clock, human, (1, "waiting"), answered, (3, "claimed"), (3, "waiting"))
    assert later[-1] == (ASLEEP, 6)  # the person's part is over, the clock's is not


def test_a_signal_that_is_waited_for_until_a_time_is_sleep_that_a_signal_ends() -> None:
    either = wait("signal", name="reply", expires_at=START + timedelta(hours=4))
    asleep = ((0, "started"), (0, "claimed"), (1, "wait", either), (1, "waiting"))
    assert read(3, *asleep)[2:] == [(EITHER, 2)]
    assert read(9, *asleep)[2:] == [(EITHER, 3), (QUEUED, 5)]
    assert read(9, *asleep, (2, "claimed"))[2:] == [(EITHER, 1), (DRIVEN, 7)]


def test_the_time_after_a_worker_died_is_nobodys() -> None:
    told = stretches(
        events((0, "started"), (1, "claimed"), (2, "step"), (5, "recovered"), (6, "done")), START
    )
    assert hours(told, 9) == [(QUEUED, 1), (DRIVEN, 1), (DEAD, 3), (DRIVEN, 1)]
    assert [(one.n, one.died, one.recovered) for one in told if one.kind == DRIVEN] == [
        (1, True, False),
        (2, False, True),
    ]


@pytest.mark.parametrize(
    ("end", "rest"),
    [
        ((1, "failed", {"retry_at": START + timedelta(hours=3)}), RETRYING),
        ((1, "paused"), PAUSED),
        ((1, "held", {"reason": "x"}), HELD),
        ((1, "released"), QUEUED),
    ],
    ids=["failed", "paused", "held", "released"],
)
def test_a_segment_ends_in_a_rest_that_says_why(end: Any, rest: str) -> None:
    assert read(2, (0, "started"), (0, "claimed"), end)[-1] == (rest, 1)


def test_a_failure_that_is_not_tried_again_is_the_end() -> None:
    told = stretches(events((0, "started"), (0, "claimed"), (1, "failed", {"final": True})), START)
    assert hours(told, 99) == [(QUEUED, 0), (DRIVEN, 1)]


def test_totals_add_up_to_all_of_its_time() -> None:
    now = START + timedelta(hours=9)
    told = stretches(
        events((0, "started"), (2, "claimed"), (3, "released"), (4, "claimed"), (5, "done")), now
    )
    assert totals(told, now) == {QUEUED: timedelta(hours=3), DRIVEN: timedelta(hours=2)}


# -- the page


@perdure.effect
def send(to: str, subject: str) -> str:
    return f"receipt for {to}"


def check(state: Any) -> Any:
    return {"log": ["checked"]}


def approve(state: Any) -> Any:
    draft = "Dear Ana,\nhow are you?"
    answer = perdure.ask({"draft": draft, "to": "ana@example.com"}, expires=timedelta(days=90))
    return {"log": [answer]}


def mail(state: Any) -> Any:
    return {"log": [send("ana@example.com", "Hello")]}


def nap(state: Any) -> Any:
    perdure.sleep(timedelta(days=4))
    return {"log": ["slept"]}


@pytest.fixture
def rt(url: str) -> Iterator[TemporaryRuntime]:
    """A runtime whose time began a month ago."""
    with TemporaryRuntime(url, clock=Clock(datetime.now(UTC) - timedelta(days=30))) as made:
        made.register(chain(check, approve, mail, nap), name="campaign", version="v2")
        yield made


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], url: str) -> Command:
    return commands_at(capsys, url)


def asked(rt: TemporaryRuntime) -> Run:
    """A run that waits for a person."""
    run = rt.blocking.start(
        "campaign",
        {"log": []},
        thread_id="campaign-7-12",
        key="once",
        metadata={"campaign_id": 7},
        tags=["mail"],
    )
    rt.blocking.tick()
    return run


def finished(rt: TemporaryRuntime) -> Run:
    """A run that was answered two days after it asked, slept, and is done."""
    run = asked(rt)
    rt.clock.advance(timedelta(days=2))
    [wait] = rt.blocking.waits(run_id=run.id)
    rt.blocking.answer(wait.id, "yes", by="ana")
    rt.blocking.tick()
    rt.clock.advance(timedelta(days=4))
    rt.blocking.tick()
    rt.blocking.score(run.id, "reply", 1.0, about="touch 1", comment="at last")
    return run


def test_it_shows_what_a_run_waits_for_and_the_command_to_go_on(
    rt: TemporaryRuntime, command: Command, url: str
) -> None:
    run = asked(rt)
    [wait] = rt.blocking.waits(run_id=run.id)
    shown = command("show", run.id).done.out
    assert shown.startswith(f"{run.id}  waiting  campaign@v2\n")
    for line in ("thread    campaign-7-12", "key       once", "metadata  campaign_id=7"):
        assert f"  {line}\n" in shown
    assert "tags      mail  runtime:cron" in shown
    assert "step 1  check" in shown
    assert "asks a person" in shown
    assert "      Dear Ana,\n      how are you?\n" in shown
    assert f"perdure answer {wait.id} JSON --at " in shown
    assert command("answer", wait.id, '"yes"').done.out == f"{wait.id} is answered.\n"
    assert "answered" in command("show", run.id).done.out


def test_it_shows_where_a_month_went(rt: TemporaryRuntime, command: Command) -> None:
    run = finished(rt)
    shown = command("show", run.id).done.out
    assert "Where its 6d went" in shown
    spent = [line.split() for line in shown.split("went\n")[1].split("\n\n")[0].splitlines()]
    assert spent[0][:3] == ["asleep", "4d", "67%"]
    assert spent[1][:6] == ["waiting", "for", "a", "person", "2d", "33%"]
    assert spent[0][3].count("█") == 2 * spent[1][6].count("█") + 1  # 27 and 13 of 40
    assert "answered by ana" in shown
    assert "effect send done" in shown
    assert "to='ana@example.com', subject='Hello'" in shown
    assert "reply 1  of touch 1  at last" in shown
    assert [line[:2] for line in shown.splitlines() if line.startswith("#")] == ["#1", "#2", "#3"]
    assert "a tick (" in shown
    assert "Now" not in shown


def test_as_json_it_has_everything_that_there_is_of_a_run(
    rt: TemporaryRuntime, command: Command
) -> None:
    run = finished(rt)
    [told] = command("show", run.id, "--json").done.json
    assert set(told) == {"run", "events", "waits", "effects", "scores"}
    assert told["run"]["output"]["log"][0] == "checked"
    assert [event["n"] for event in told["events"]] == list(range(1, len(told["events"]) + 1))
    assert {one["kind"]: one["answer"] for one in told["waits"]} == {"human": "yes", "clock": None}
    assert told["waits"][0]["answered_by"] == "ana"
    [effect] = told["effects"]
    assert (effect["name"], effect["result"]) == ("send", "receipt for ana@example.com")
    assert [(one["name"], one["value"]) for one in told["scores"]] == [("reply", 1.0)]


def test_every_event_can_be_seen_as_it_is(rt: TemporaryRuntime, command: Command) -> None:
    run = asked(rt)
    kinds = [event.kind for event in rt.blocking.events(run.id)]
    lines = command("show", run.id, "--events").done.out.splitlines()
    assert [line.split()[3] for line in lines] == kinds
    assert [one["kind"] for one in command("show", run.id, "--events", "--json").json] == kinds


def test_a_run_is_found_by_the_beginning_of_its_id_or_by_its_thread(
    rt: TemporaryRuntime, command: Command
) -> None:
    run = asked(rt)
    for arguments in ([run.id[:30]], ["--thread", "campaign-7-12"]):
        assert command("show", *arguments).done.out.startswith(run.id)
    other = rt.blocking.start("campaign", thread_id="campaign-7-12")
    assert command("show", "--thread", "campaign-7-12").done.out.startswith(other.id)
    assert run.id[:6] == other.id[:6]  # both were made within hours
    assert "More than one run begins with" in command("show", run.id[:6]).refused
    assert f"There is no run {run.id[:2]!r}: give its id, or at least 6" in (
        command("show", run.id[:2]).refused
    )
    assert "There is no run 'nobody'" in command("show", "nobody").refused
    assert "There is no run of the thread 'x'" in command("show", "--thread", "x").refused
    assert "Which run?" in command("show").refused
    assert "Which run?" in command("show", run.id, "--thread", "x").refused


def test_in_a_narrow_terminal_it_stays_within_its_columns(rt: TemporaryRuntime, url: str) -> None:
    run = finished(rt)
    shown = in_terminal("show", run.id, "--at", url, columns=80, NO_COLOR="1").out
    assert "Where its 6d went" in shown
    assert max(map(len, shown.splitlines())) <= 80


@perdure.effect(unknown="hold", key=lambda what, note: f"order {what}")
def charge(what: str, note: str) -> str:
    raise ConnectionError("no answer")


def pay(state: Any) -> Any:
    return {"log": [charge("it's", "x" * 300)]}


def hear(state: Any) -> Any:
    return {"log": [perdure.wait_for("reply", timeout=timedelta(days=90))]}


def test_the_command_to_settle_an_effect_can_be_pasted(
    rt: TemporaryRuntime, command: Command
) -> None:
    rt.register(chain(pay), name="pay", retry=perdure.Retry(attempts=1))
    run = rt.blocking.start("pay", {"log": []}, thread_id="t")
    rt.blocking.tick()
    [effect] = rt.blocking.effects(state="unknown")
    assert effect.key == "charge:order it's"
    shown = command("show", run.id).done.out
    [line] = [line for line in shown.splitlines() if line.startswith("  perdure settle")]
    words = shlex.split(line.partition("  (or retry, or fail)")[0])
    assert words[:6] == ["perdure", "settle", effect.key, "done", "--result", "JSON"]


def test_arguments_stay_within_the_columns_of_a_terminal(
    rt: TemporaryRuntime, command: Command, url: str
) -> None:
    rt.register(chain(pay), name="pay", retry=perdure.Retry(attempts=1))
    run = rt.blocking.start("pay", {"log": []}, thread_id="t")
    rt.blocking.tick()
    for arguments in (["show", run.id], ["effects"], ["inbox"]):
        shown = in_terminal(*arguments, "--at", url, columns=80, NO_COLOR="1").out
        [line] = [line for line in shown.splitlines() if "xxx" in line]
        assert len(line) <= 80
        assert line.endswith("…")


def test_a_wait_for_a_signal_tells_until_when(rt: TemporaryRuntime, command: Command) -> None:
    rt.register(chain(hear), name="hear")
    run = rt.blocking.start("hear", {"log": []}, thread_id="t")
    rt.blocking.tick()
    [wait] = rt.blocking.waits(run_id=run.id)
    assert wait.expires_at is not None
    shown = command("show", run.id).done.out
    until = f"until {wait.expires_at:%Y-%m-%d %H:%M:%SZ}"
    assert f"  waits {until}, or for the signal reply: perdure signal t reply JSON" in shown
    assert f" asleep so far, {until}, or until a signal\n" in shown


DYING = """
import os
import perdure
from tests.support.agents import chain

def die(state):
    if not os.path.exists("died"):
        open("died", "w").close()
        os._exit(9)
    return {"log": ["alive"]}

rt = perdure.Runtime(os.environ["JOURNAL"])
rt.register(chain(die), name="dying")
"""


@pytest.mark.slow
def test_a_worker_that_died_is_shown_and_so_is_who_recovered_the_run(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agents.py").write_text(DYING)
    with perdure.Runtime(sqlite_url) as rt:
        run = rt.blocking.start("dying", {"log": []})
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"JOURNAL": sqlite_url, "PYTHONPATH": root}
    worker = [sys.executable, "-m", "perdure", "worker", "agents:rt", "--until-idle", "--quiet"]
    codes = [
        subprocess.run(worker, cwd=tmp_path, env=environment, timeout=60).returncode
        for _ in range(2)
    ]
    assert codes == [9, 0]
    shown = commands_at(capsys, sqlite_url)("show", run.id).done.out
    first, second = (line for line in shown.splitlines() if line.startswith("#"))
    assert first.endswith("the worker died")
    assert second.endswith("recovered")
    assert "nobody, after a worker died" in shown
