"""`perdure show`: where a run spent its time, what it did, and what it waits for."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command as Goto
from langgraph.types import Send

import perdure
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import Run
from tests.support.agents import chain
from tests.support.commands import Command, commands_at, in_terminal, python_path


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
    assert set(told) == {"run", "events", "waits", "effects", "scores", "children"}
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


def test_the_cause_at_the_end_of_a_long_traceback_is_seen(
    rt: TemporaryRuntime, command: Command
) -> None:
    def deep(state: Any) -> Any:
        error = ValueError("the first")
        for n in range(30):
            try:
                raise ValueError(f"error {n}") from error
            except ValueError as later:
                error = later
        raise error

    rt.register(chain(deep), name="deep", retry=perdure.Retry(attempts=1))
    run = rt.blocking.start("deep", {"log": []})
    rt.blocking.tick()
    lines = command("show", run.id, "--events").done.out.splitlines()
    [line] = [one for one in lines if one.split()[3] == "failed"]
    assert len(line) < 2100
    assert "ValueError: error 29" in line.partition(" … ")[2][-200:]


def test_a_child_whose_parent_was_cancelled_first_is_not_joined(
    rt: TemporaryRuntime, command: Command
) -> None:
    def joins(state: Any) -> Any:
        child = rt.blocking.start("campaign", {"log": []}, on_parent_cancel="leave")
        return {"log": [str(perdure.join(child))]}

    rt.register(chain(joins), name="parent")
    parent = rt.blocking.start("parent", {"log": []})
    rt.blocking.tick(100)
    assert "campaign@v2  its parent waits for it" in command("show", parent.id).done.out
    rt.blocking.cancel(parent.id)
    shown = command("show", parent.id).done.out.partition("\nChildren\n")[2]
    assert "campaign@v2" in shown
    assert "joined" not in shown


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
    assert f"There is no run {run.id[:2]!r}: give its id, or at least 4" in (
        command("show", run.id[:2]).refused
    )
    assert "There is no run 'nobody'" in command("show", "nobody").refused
    assert "There is no run of the thread 'x'" in command("show", "--thread", "x").refused
    assert "Which run?" in command("show").refused
    assert "Which run?" in command("show", run.id, "--thread", "x").refused


@perdure.effect(unknown="hold", key=lambda what, note: f"order {what}")
def charge(what: str, note: str) -> str:
    raise ConnectionError("no answer")


def pay(state: Any) -> Any:
    return {"log": [charge("it's", "x" * 300)]}


def hear(state: Any) -> Any:
    about = {"kind": "cadence", "because": "the next touch"}
    return {"log": [perdure.wait_for("reply", timeout=timedelta(days=90), value=about)]}


def test_the_command_to_settle_can_be_pasted_and_arguments_stay_within_the_columns(
    rt: TemporaryRuntime, command: Command, url: str
) -> None:
    rt.register(chain(pay), name="pay", retry=perdure.Retry(attempts=1))
    run = rt.blocking.start("pay", {"log": []}, thread_id="t")
    rt.blocking.tick()
    [effect] = rt.blocking.effects(state="unknown")
    assert effect.key == "charge:order it's"
    [line] = [
        one
        for one in command("show", run.id).done.out.splitlines()
        if one.startswith("  perdure settle")
    ]
    words = shlex.split(line.partition("  (or retry, or fail)")[0])
    assert words[:6] == ["perdure", "settle", effect.key, "done", "--result", "JSON"]
    for arguments in (["show", run.id], ["effects"], ["inbox"]):
        shown = in_terminal(*arguments, "--at", url, columns=80, NO_COLOR="1").out
        [line] = [line for line in shown.splitlines() if "xxx" in line]
        assert len(line) <= 80
        assert line.endswith("…")


def test_a_wait_for_a_signal_shows_until_when_and_what_it_is_about(
    rt: TemporaryRuntime, command: Command
) -> None:
    rt.register(chain(hear), name="hear")
    run = rt.blocking.start("hear", {"log": []}, thread_id="t")
    rt.blocking.tick()
    [wait] = rt.blocking.waits(run_id=run.id)
    assert wait.expires_at is not None
    shown = command("show", run.id).done.out
    until = f"until {wait.expires_at:%Y-%m-%d %H:%M:%SZ}"
    about = "    kind: cadence\n    because: the next touch\n"
    signal = "perdure signal t reply JSON"
    assert f"  waits for the signal reply, {until}:\n{about}  {signal}" in shown
    assert f" waiting for a signal or a time so far, {until}\n" in shown


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
    environment = os.environ | {"JOURNAL": sqlite_url, "PYTHONPATH": python_path(root)}
    worker = [sys.executable, "-m", "perdure", "worker", "agents:rt", "--until-idle", "--quiet"]
    codes = [
        subprocess.run(worker, cwd=tmp_path, env=environment, timeout=60).returncode
        for _ in range(2)
    ]
    assert codes == [9, 0]
    shown = commands_at(capsys, sqlite_url)("show", run.id).done.out
    first, second = (line for line in shown.splitlines() if line.startswith("#"))
    assert first.endswith("its worker was lost")
    assert second.endswith("recovered")
    assert f"with {first.split('(')[1].split(')')[0]}, which was lost\n" in shown
    assert "with a worker that was lost" in shown


def test_it_shows_the_parent_and_the_tree_of_children_of_a_run(
    rt: TemporaryRuntime,
    command: Command,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def starts(state: Any) -> Any:
        return {"log": [str(perdure.join(rt.blocking.start("between", {"log": []})))]}

    def between(state: Any) -> Any:
        rt.blocking.start("campaign", {"log": []}, thread_id="the child's")
        rt.clock.advance(timedelta(seconds=1))
        perdure.join(rt.blocking.start("quick", {"log": []}))
        return nap(state)

    rt.register(chain(starts), name="parent")
    rt.register(chain(between), name="between")
    rt.register(chain(check), name="quick")
    parent = rt.blocking.start("parent", {"log": []})
    rt.blocking.tick(100)
    [child] = rt.blocking.runs(parent_id=parent.id)
    quick, asks = rt.blocking.runs(parent_id=child.id)
    shown = command("show", parent.id).done.out
    tree = shown.partition("\nChildren\n")[2].partition("\n\n")[0].splitlines()
    assert [re.split(r"  a worker: due|  the clock,", line)[0] for line in tree] == [
        f"  waiting    └─ {child.id}  between  its parent waits for it",
        f"  waiting       ├─ {asks.id}  campaign@v2",
        f"  done          └─ {quick.id}  quick  joined",
    ]
    assert f"waits for run {child.id}\n" in shown
    assert "waiting for a run" in shown
    assert f"  parent    {parent.id}\n" in command("show", child.id).done.out
    [listed] = command("runs", "--children-of", parent.id, "--json").done.json
    assert (listed["id"], listed["parent_id"]) == (child.id, parent.id)
    [told] = command("show", parent.id, "--json").done.json
    [only] = told["children"]
    assert (only["id"], only["graph"], only["state"]) == (child.id, "between", "waiting")
    assert (only["joined"], only["waited_for"]) == (True, True)
    assert [
        (one["id"], one["thread_id"] == "the child's", one["joined"], one["children"])
        for one in only["children"]
    ] == [(asks.id, True, False, []), (quick.id, False, True, [])]
    narrow = in_terminal("show", parent.id, "--at", url, columns=70, NO_COLOR="1").out
    assert max(map(len, narrow.partition("\nChildren\n")[2].splitlines()[:3])) <= 70
    monkeypatch.setattr("perdure.commands.run_reads.MOST_CHILDREN", 1)
    short = command("show", parent.id).done.out
    assert quick.id not in short
    assert f"{' ' * 16}└─ … 1 more: perdure runs --children-of {child.id}\n" in short
    [told] = command("show", parent.id, "--json").done.json
    assert told["children"][0]["more_children"] == 1
    monkeypatch.setattr("perdure.commands.run_reads.MOST_BELOW", 1)
    cut = command("show", parent.id).done.out
    assert asks.id not in cut
    assert "  Cut at 1 run or 50 levels: perdure show RUN shows what is below one of them\n" in cut
    [told] = command("show", parent.id, "--json").done.json
    assert told["tree_is_cut"] is True


def test_the_steps_of_sent_tasks_are_shown_as_those_of_an_agents_tools(
    rt: TemporaryRuntime, command: Command
) -> None:
    # An agent of create_agent sends each call of a tool to the node `tools`.
    def model(state: Any) -> Any:
        return Goto(goto=[Send("tools", {"log": [], "value": n}) for n in range(2)])

    def tools(state: Any) -> Any:
        return {"log": [f"tool {state['value']}"]}

    builder = chain(("model", model))
    builder.add_node("tools", tools)
    rt.register(builder, name="agent")
    run = rt.blocking.start("agent", {"log": []})
    rt.blocking.tick()
    shown = command("show", run.id).done.out
    assert [line.split("step ")[1] for line in shown.splitlines() if "step " in line] == [
        "1  model",
        "2  tools",
    ]
