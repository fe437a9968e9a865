"""What the commands do to a journal, what they refuse, and how a script learns of it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.blocking import blocking_method
from perdure.cli import main
from perdure.client import Client
from perdure.commands import question_links
from perdure.commands.runs import find, load_setup
from perdure.journal import connect, version
from perdure.journal.migrate import migrations
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import Run, State
from tests.support.agents import chain
from tests.support.cli_process import CliProcess
from tests.support.commands import Command, Told, commands_at, python_path, spawn
from tests.support.fork_server import ForkServer


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], url: str) -> Command:
    return commands_at(capsys, url)


@perdure.effect(unknown="hold")
def charge(amount: int) -> str:
    raise ConnectionError("no answer")


def quick(state: Any) -> Any:
    return {"log": ["quick"]}


def ask(state: Any) -> Any:
    return {"log": [perdure.ask({"question": "May I?", "n": 7})]}


DECISION = {
    "type": "object",
    "properties": {"comment": {"type": "string"}, "action": {"enum": ["approve", "reject"]}},
    "required": ["action"],
}


def decide(state: Any) -> Any:
    return {"log": [perdure.ask("May I?", response_schema=DECISION)]}


def hear(state: Any) -> Any:
    return {"log": [perdure.wait_for("reply")]}


def pay(state: Any) -> Any:
    return {"log": [charge(100)]}


def fail(state: Any) -> Any:
    raise ValueError("it cannot be")


@pytest.fixture
def rt(url: str) -> Iterator[TemporaryRuntime]:
    """A runtime on the real clock, as a command has it."""
    with perdure.Runtime(url) as made:
        once = perdure.Retry(attempts=1)
        made.register(chain(quick), name="quick")
        made.register(chain(ask), name="ask")
        made.register(chain(hear), name="hear")
        made.register(chain(pay), name="pay", retry=once)
        made.register(chain(fail), name="fail", retry=once)
        made.register(chain(fail), name="other", retry=once)
        made.register(chain(fail), name="holds", retry=once, hold=True)
        yield made  # type: ignore[misc]


def driven(rt: perdure.Runtime, graph: str, **given: Any) -> Run:
    run = rt.blocking.start(graph, {"log": []}, **given)
    rt.blocking.tick()
    return rt.blocking.get(run.id)


def settle_of(shown: str) -> list[str]:
    """The command to settle an effect, as a shell reads it, up to its --at."""
    [line] = [line for line in shown.splitlines() if "perdure settle" in line]
    command, told, _ = line.partition("  (or retry, or fail)")
    assert told
    words = shlex.split(command, comments=True)
    return words[words.index("perdure") : words.index("--at")]


# -- start


def test_start_prints_the_id_of_a_run_with_all_that_was_given(
    url: str, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "input.json").write_text('{"to": "ana"}')
    told = command(
        *("start", "campaign", f"@{tmp_path}/input.json", "--thread", "t"),
        *("--metadata", "campaign=7", "--metadata", "name=Ana", "--tag", "a", "--tag", "b"),
        *("--version", "v2", "--after", "3d"),
    ).done
    with Client(url) as client:
        [run] = client.blocking.runs()
    assert told.out == f"{run.id}\n"
    assert (run.graph, run.version, run.thread_id) == ("campaign", "v2", "t")
    assert (run.metadata, run.tags) == ({"campaign": 7, "name": "Ana"}, ("a", "b"))
    assert run.due_at is not None
    assert run.due_at - run.created_at == timedelta(days=3)


def test_the_same_key_gives_the_same_run_and_json_the_whole_of_it(command: Command) -> None:
    first = command("start", "g", "--key", "once").done.out.strip()
    [again] = command("start", "g", "--key", "once", "--json").done.json
    assert (again["id"], again["key"], again["state"]) == (first, "once", "pending")


def test_input_may_come_from_stdin(sqlite_url: str) -> None:
    told = spawn("start", "g", "-", "--at", sqlite_url, "--json", stdin='{"n": 1}')
    assert told.done.json[0]["graph"] == "g"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["{n: 1}"], "The input {n: 1} is not JSON"),
        (["@nowhere.json"], "No such file"),
        (["--metadata", "=7"], "--metadata '=7' is not a pair: write key=value."),
        (["--context", "{"], "--context { is not JSON"),
        (["--config", "{"], "--config { is not JSON"),
        (["--after", "tomorrow"], "neither a duration"),
        (["--after", "99999999999d"], "too long a duration"),
    ],
    ids=["JSON", "file", "pair", "context", "config", "time", "long"],
)
def test_nothing_is_started_by_what_cannot_be_meant(
    empty_sqlite_url: str,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    sentence: str,
) -> None:
    command = commands_at(capsys, empty_sqlite_url)
    assert sentence in command("start", "g", *options).refused
    assert version(empty_sqlite_url) is None


AGENTS = """
import os
import perdure
from tests.cli.test_commands import ask, chain, fail, quick

rt = perdure.Runtime(os.environ["JOURNAL"])
once = perdure.Retry(attempts=1)
rt.register(chain(quick), name="quick")
rt.register(chain(fail), name="fail", retry=once)
rt.register(chain(fail), name="holds", retry=once, hold=True)
"""


@pytest.mark.slow
def test_who_waits_learns_by_the_exit_code_how_it_ended(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(AGENTS)
    root = str(Path(__file__).parents[2])
    worker = subprocess.Popen(
        [sys.executable, "-m", "perdure", "worker", "agents:rt", "--quiet"],
        cwd=tmp_path,
        env=os.environ | {"JOURNAL": sqlite_url, "PYTHONPATH": python_path(root)},
        stderr=subprocess.DEVNULL,
    )
    try:
        told = {
            graph: spawn("start", graph, '{"log": []}', "--wait", "--at", sqlite_url)
            for graph in ("quick", "fail", "holds")
        }
        whole = spawn("start", "quick", '{"log": []}', "--wait", "--json", "--at", sqlite_url)
    finally:
        worker.terminate()
        worker.wait(30)
    assert {graph: one.code for graph, one in told.items()} == {"quick": 0, "fail": 1, "holds": 1}
    assert re.search(r"^\d\d:\d\d:\d\dZ step 1  quick$", told["quick"].err, re.MULTILINE)
    assert "step -1" not in told["quick"].err
    assert "step 0" not in told["quick"].err
    assert len(told["quick"].out.split()) == 1
    assert "ValueError: it cannot be" in told["fail"].err
    assert whole.json[0]["output"] == {"log": ["quick"]}


# -- people and messages


def test_the_inbox_shows_what_is_asked_and_the_command_that_answers_it(
    rt: perdure.Runtime, command: Command
) -> None:
    run = driven(rt, "ask", thread_id="campaign-7-12")
    [wait] = rt.blocking.waits(run_id=run.id)
    shown = command("inbox").done.out
    assert "campaign-7-12" in shown
    assert "question: May I?" in shown
    assert f"perdure answer {wait.id} JSON" in shown
    [told] = command("inbox", "--json").done.json
    assert (told["needs"], told["id"], told["value"]["n"]) == ("answer", wait.id, 7)
    assert command("answer", wait.id, '{"ok": true}', "--by", "ana").done
    rt.blocking.tick()
    done = rt.blocking.get(run.id)
    assert done.output == {"log": [{"ok": True}]}
    assert command("inbox").done.out == "Nothing needs a person.\n"
    assert re.search(
        r"ana answered it at \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ\.$",
        command("answer", wait.id, "1").refused.strip(),
    )


def test_the_inbox_tells_what_may_be_answered_and_has_an_answer_to_paste(
    rt: perdure.Runtime, command: Command
) -> None:
    rt.register(chain(decide), name="decide")
    run = driven(rt, "decide")
    [wait] = rt.blocking.waits(run_id=run.id)
    shown = command("inbox").done.out
    assert "    answers: action: approve | reject; comment\n" in shown
    [line] = [line for line in shown.splitlines() if "perdure answer" in line]
    assert shlex.split(line) == shlex.split(
        next(
            line
            for line in command("show", run.id).done.out.splitlines()
            if "perdure answer" in line
        )
    )
    verb, *given = shlex.split(line)[1:]
    assert command(verb, *given).done.out == f"{wait.id} is answered.\n"


def test_an_answer_is_json_and_an_error_has_a_text_as_it_is_written(
    rt: perdure.Runtime, command: Command
) -> None:
    run = driven(rt, "ask")
    [wait] = rt.blocking.waits(run_id=run.id)
    assert "Missing argument" in command("answer", wait.id).refused
    broken = command("answer", wait.id, "{action: approve}").refused
    assert broken.startswith("perdure: The value {action: approve} is not JSON: ")
    assert "for the shell: '{\"contact\": 7}'." in broken
    [text] = shlex.split(command("answer", wait.id, "yes").refused.rpartition(" A text is ")[2])
    missing = command("answer", "x", "1").refused
    assert missing.startswith("perdure: There is no wait 'x'")
    assert missing.endswith(" `perdure inbox` lists what is there.\n")
    assert command("answer", wait.id, text.rstrip(".")).done
    rt.blocking.tick()
    assert rt.blocking.get(run.id).output == {"log": ["yes"]}


def test_a_link_to_a_question_is_printed_for_one_person(
    rt: perdure.Runtime, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = driven(rt, "ask")
    [wait] = rt.blocking.waits(run_id=run.id)
    assert "PERDURE_PUBLIC_URL" in command("link", wait.id, "--to", "ana").refused
    monkeypatch.setenv("PERDURE_PUBLIC_URL", "https://agents.example.com")
    url = command("link", wait.id[:8], "--to", "ana", "--expires", "2d").done.out.strip()
    assert url.startswith("https://agents.example.com/ui/link?t=")
    token = url.partition("=")[2]
    seen = rt.journal.run(question_links.look_at(rt.engine, token))
    assert (seen.link.wait_id, seen.link.to) == (wait.id, "ana")
    assert "--expires" in command("link", wait.id, "--to", "ana", "--expires", "soon").refused
    assert "--to" in command("link", wait.id).refused


def test_the_inbox_has_unknown_effects_and_held_runs_and_each_once(
    rt: perdure.Runtime, command: Command
) -> None:
    unknown, held = driven(rt, "pay"), driven(rt, "holds")
    [effect] = rt.blocking.effects(state="unknown")
    shown = command("inbox").done.out
    assert f"  charge  {unknown.thread_id}  unknown for " in shown
    assert "\n    amount: 100\n" in shown
    assert settle_of(shown) == ["perdure", "settle", effect.key, "done", "--result", "JSON"]
    assert f"perdure retry {held.id}" in shown
    assert unknown.id not in shown
    told = [(one["needs"], one.get("key", "")) for one in command("inbox", "--json").done.json]
    assert told == [("settle", effect.key), ("retry", None)]


def test_a_signal_reaches_its_thread_once_per_key(rt: perdure.Runtime, command: Command) -> None:
    run = driven(rt, "hear", thread_id="t")
    assert command("signal", "t", "reply", '{"text": "yes"}', "--key", "m1").done.out == ("Sent.\n")
    again = command("signal", "t", "reply", '{"text": "no"}', "--key", "m1").done.out
    assert again.startswith("A signal with the key m1 was sent before")
    rt.blocking.tick()
    assert rt.blocking.get(run.id).output == {"log": [{"text": "yes"}]}


# -- control


def test_runs_are_paused_resumed_and_cancelled_several_at_a_time(
    rt: perdure.Runtime, command: Command
) -> None:
    ids = [rt.blocking.start("quick", {"log": []}).id for _ in range(2)]

    def states() -> set[State]:
        return {rt.blocking.get(id).state for id in ids}

    assert command("pause", *ids).done.out == "".join(f"{id} is paused.\n" for id in ids)
    assert states() == {State.PAUSED}
    assert command("resume", *ids).done
    assert states() == {State.PENDING}
    assert command("cancel", *ids, "--reason", "enough", "--by", "ana").done
    assert states() == {State.CANCELLED}
    assert rt.blocking.get(ids[0]).reason == "enough"
    assert rt.blocking.events(ids[0])[-1].data["by"] == "ana"


def test_a_run_that_cannot_be_stopped_says_the_one_reason(
    rt: perdure.Runtime, command: Command
) -> None:
    done, held = driven(rt, "quick"), driven(rt, "holds")
    for verb, end in (("pause", "paused"), ("cancel", "cancelled")):
        over = f"perdure: Run {done.id} is done and cannot be {end}: it has ended.\n"
        assert command(verb, done.id).refused == over
    assert command("pause", held.id).refused.endswith(
        "is held and cannot be paused: it is held already, until it is retried or cancelled.\n"
    )
    assert command("cancel", held.id).done.out == f"{held.id} is cancelled.\n"


def test_every_command_takes_the_beginning_of_an_id(rt: perdure.Runtime, command: Command) -> None:
    run = rt.blocking.start("quick", {"log": []})
    for verb, state in (("pause", "paused"), ("resume", "pending"), ("cancel", "cancelled")):
        assert command(verb, run.id[:30]).done.out == f"{run.id} is {state}.\n"
    failed = driven(rt, "fail")
    assert command("retry", failed.id[:-1]).done.out == f"{failed.id} is pending.\n"
    [told] = command("export", failed.id[:-1]).done.json
    assert told["run"]["id"] == failed.id
    paid = driven(rt, "pay")
    [effect] = command("effects", "--run", paid.id[:-1], "--json").done.json
    assert effect["run_id"] == paid.id
    assert "at least 4 characters" in command("pause", run.id[:3]).refused
    assert "More than one run begins with" in command("pause", run.id[:6]).refused
    assert command("effects", "--run", "nobody").refused == (
        "perdure: There is no run 'nobody' in this journal. It may have been pruned. `perdure "
        "runs` lists what is there.\n"
    )


def test_one_run_that_refuses_keeps_no_other_from_it(rt: perdure.Runtime, command: Command) -> None:
    failed, done = driven(rt, "fail"), driven(rt, "quick")
    told = command("retry", done.id, failed.id, "nobody")
    assert told.code == 2
    assert told.out == f"{failed.id} is pending.\n"
    assert f"Run {done.id} is done and cannot be retried" in told.err
    assert "There is no run 'nobody'" in told.err


@pytest.mark.slow
def test_a_fork_needs_the_graphs_and_goes_on_from_a_checkpoint(
    sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "agents.py").write_text(AGENTS)
    root = str(Path(__file__).parents[2])
    with perdure.Runtime(sqlite_url) as rt:
        rt.register(chain(quick), name="quick")
        run = driven(rt, "quick")
        options = ("--update", '{"log": ["changed"]}', "--as-node", "quick", "--thread", "other")
        told = spawn(
            *("fork", run.id, "--at", "agents:rt", *options),
            cwd=tmp_path, JOURNAL=sqlite_url, PYTHONPATH=python_path(root),
        ).done  # fmt: skip
        forked = rt.blocking.get(told.out.strip())
        assert forked.thread_id == "other"
        rt.blocking.tick()
        assert rt.blocking.get(forked.id).output == {"log": ["quick", "changed"]}
    assert "needs the graphs" in spawn("fork", run.id, "--at", sqlite_url).refused


def test_a_run_is_scored_and_has_a_comment_and_its_question_a_person(
    rt: perdure.Runtime, command: Command
) -> None:
    run = driven(rt, "ask")
    [wait] = rt.blocking.waits(run_id=run.id)
    said = command("assign", wait.id[:8], "ana").done.out
    assert said == f"{wait.id} is assigned to ana.\n"
    assert "is assigned to ana" in command("assign", wait.id, "bo", "--by", "bo").refused
    assert (
        command("assign", wait.id, "--by", "ana").done.out == f"{wait.id} is assigned to no one.\n"
    )
    for value, stored in (("0.5", 0.5), ("true", 1.0)):
        assert command("score", run.id[:8], "tone", value).done
        assert rt.blocking.scores(run.id)[-1].value == stored
    assert command("score", run.id, "kind", "formal", "--about", "the reply").done
    assert rt.blocking.scores(run.id)[-1].label == "formal"
    assert command("comment", run.id, "Asked finance.", "--wait", wait.id, "--by", "ana").done
    event = rt.blocking.events(run.id)[-1]
    assert (event.kind, event.data["text"], event.data["by"]) == (
        "comment",
        "Asked finance.",
        "ana",
    )


# -- effects


def test_an_unknown_effect_is_listed_and_settled(rt: perdure.Runtime, command: Command) -> None:
    run = driven(rt, "pay")
    [effect] = rt.blocking.effects(state="unknown")
    shown = command("effects").done.out
    assert shown.startswith(f"unknown  {effect.key}  charge(amount=100)\n")
    assert settle_of(shown) == ["perdure", "settle", effect.key, "done", "--result", "JSON"]
    assert "done needs --result" in command("settle", effect.key, "done").refused
    assert (
        "A text is '\"paid\"'" in command("settle", effect.key, "done", "--result", "paid").refused
    )
    assert "is not one of 'done', 'retry', 'fail'" in command("settle", effect.key, "lost").refused
    assert command("settle", effect.key, "done", "--result", '"paid"', "--by", "ana").done
    rt.blocking.tick()
    assert rt.blocking.get(run.id).output == {"log": ["paid"]}
    assert command("effects").done.out == "No effect has an unknown outcome.\n"
    [told] = command("effects", "--run", run.id, "--json").done.json
    assert (told["key"], told["state"], told["result"]) == (effect.key, "done", "paid")
    assert (told["run_id"], told["thread_id"]) == (run.id, run.thread_id)
    assert len(command("effects", "--thread", run.thread_id, "--json").json) == 1
    assert command("effects", "--state", "failed").done.out == "No effect matches.\n"


def test_an_effect_may_be_given_up_in_words(rt: perdure.Runtime, command: Command) -> None:
    run = driven(rt, "pay")
    [effect] = rt.blocking.effects(state="unknown")
    assert command("settle", effect.key, "fail", "--reason", "the card was refused").done
    rt.blocking.tick()
    found = rt.blocking.get(run.id)
    assert found.error is not None
    assert "the card was refused" in found.error.message
    assert (
        f"perdure settle {shlex.quote(effect.key)} retry --at" in command("show", run.id).done.out
    )
    settled = command("settle", effect.key, "retry").done.out
    assert settled.startswith(f"{effect.key} is settled: retry.\n")
    assert f"\nperdure retry {run.id} --at" in settled
    assert f"perdure settle {effect.key}" not in command("show", run.id).done.out


def test_effects_that_cannot_be_read_are_listed_with_the_reason(url: str, command: Command) -> None:
    with perdure.Runtime(url, encryption_keys={"k": b"0" * 32}) as rt:
        rt.register(chain(pay), name="pay", retry=perdure.Retry(attempts=1))
        driven(rt, "pay")
    shown = command("effects").done.out
    assert shown.startswith("unknown  ")
    assert "it is encrypted" in shown


# -- schedules


def test_a_schedule_is_added_listed_disabled_and_removed(command: Command, url: str) -> None:
    line = ("--cron", "0 9 * * 1-5", "--timezone", "Europe/Vienna", "--input", '{"n": 1}')
    added = command("schedule", "daily", "digest", *line, "--tag", "a").done.out
    assert added.startswith("daily starts digest next at 2")
    [told] = command("schedules", "--json").done.json
    assert (told["name"], told["graph"], told["cron"]) == ("daily", "digest", "0 9 * * 1-5")
    assert "Europe/Vienna" in command("schedules").done.out
    assert command("enable-schedule", "daily", "--no-enabled").done.out == "daily is disabled.\n"
    assert command("enable-schedule", "daily").done.out == added
    assert command("unschedule", "daily").done.out == "daily is removed.\n"
    assert command("schedules").done.out == "There is no schedule.\n"
    assert "There is no schedule 'daily'" in command("unschedule", "daily").refused
    assert "Missing option '--cron'" in command("schedule", "x", "digest").refused


# -- by the beginning of an id


def test_a_wait_and_an_effect_are_named_by_the_beginning_of_their_ids(
    rt: perdure.Runtime, command: Command
) -> None:
    asked, paid = driven(rt, "ask"), driven(rt, "pay")
    [wait] = rt.blocking.waits(run_id=asked.id)
    assert command("answer", wait.id[:4], "true").done.out == f"{wait.id} is answered.\n"
    [effect] = rt.blocking.effects(paid.id)
    settled = command("settle", effect.key[:4], "done", "--result", "1").done
    assert settled.out == f"{effect.key} is settled: done.\n"
    assert "There is no wait 'zzzz'" in command("answer", "zzzz", "1").refused
    assert "There is no effect 'zzzz'" in command("settle", "zzzz", "retry").refused
    assert "at least 4 characters" in command("answer", wait.id[:3], "true").refused


def test_a_beginning_that_several_have_is_told_with_the_candidates(
    rt: perdure.Runtime, command: Command
) -> None:
    runs = [rt.blocking.start("ask", {"log": []}, thread_id=f"t{n}") for n in range(7)]
    told = command("show", runs[0].id[:4]).refused
    assert f"More than one run begins with {runs[0].id[:4]}; give more of its id: " in told
    assert f"{runs[0].id} (pending run of ask, thread t0); {runs[1].id} (" in told
    assert told.endswith("thread t4); and more.\n")


def test_a_key_that_begins_another_is_meant_by_itself(url: str, command: Command) -> None:
    @perdure.effect(unknown="hold", key=lambda to: to)
    def mail(to: str) -> str:
        raise ConnectionError

    def send(state: Any) -> Any:
        return {"log": [mail(state["log"][0])]}

    with perdure.Runtime(url) as rt:
        rt.register(chain(send), name="send")
        for to in ("ada", "ada@example.com"):
            rt.blocking.start("send", {"log": [to]})
            rt.blocking.tick()
        assert command("settle", "mail:ada", "retry").done.out == "mail:ada is settled: retry.\n"
        assert "More than one effect" in command("settle", "mail", "retry").refused


# -- by options


def test_runs_are_retried_by_options_after_a_preview(rt: perdure.Runtime, command: Command) -> None:
    failed = [driven(rt, "fail", metadata={"team": "red"}) for _ in range(6)]
    other, blue = driven(rt, "other"), driven(rt, "fail", metadata={"team": "blue"})
    told = command("retry", "--graph", "fail", "--metadata", "team=red", "--dry-run").done.out
    assert told.splitlines()[0] == "6 runs to retry, newest first:"
    assert told.splitlines()[1].split()[:3] == [failed[-1].id, "failed", "fail"]
    assert told.splitlines()[-1] == "  … 1 more"
    refused = command("retry", "--graph", "fail", "--metadata", "team=red")
    assert refused.code == 2
    assert "Retry 6 runs? Pass --yes" in refused.err
    assert rt.blocking.get(failed[0].id).state == State.FAILED
    done = command("retry", "--graph", "fail", "--metadata", "team=red", "--yes").done.out
    assert done.splitlines()[-1] == "6 runs retried."
    assert {rt.blocking.get(run.id).state for run in failed} == {State.PENDING}
    assert {rt.blocking.get(run.id).state for run in (other, blue)} == {State.FAILED}
    again = command("retry", "--graph", "fail", "--metadata", "team=red", "--yes").done.out
    assert again == "No run matches.\n"


def test_runs_are_cancelled_by_options_and_ended_ones_are_left(
    rt: perdure.Runtime, command: Command
) -> None:
    asked, failed = driven(rt, "ask"), driven(rt, "fail")
    done = command("cancel", "--since", "1d", "--reason", "a mistake", "--yes").done.out
    assert done.splitlines()[0] == "1 run to cancel, newest first:"
    assert done.splitlines()[-1] == "1 run cancelled."
    cancelled = rt.blocking.get(asked.id)
    assert (cancelled.state, cancelled.reason) == (State.CANCELLED, "a mistake")
    assert rt.blocking.get(failed.id).state == State.FAILED


def test_a_run_that_went_on_meanwhile_is_reported_and_the_others_are_retried(
    rt: perdure.Runtime, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = driven(rt, "fail"), driven(rt, "fail")
    original = Client.retry

    async def slow(client: Client, run_id: str, *, by: str | None = None) -> Run:
        if run_id == second.id:
            await original(client, run_id)  # somebody else was faster
        return await original(client, run_id)

    monkeypatch.setattr("perdure.client.BlockingClient.retry", blocking_method(slow))
    told = command("retry", "--state", "failed", "--yes")
    assert told.code == 2
    assert f"Run {second.id} is pending and cannot be retried" in told.err
    assert told.out.splitlines()[-1] == "1 run retried."
    assert rt.blocking.get(first.id).state == State.PENDING


def test_runs_are_named_or_selected_and_never_all_by_accident(
    rt: perdure.Runtime, command: Command
) -> None:
    run = driven(rt, "fail")
    for verb in ("retry", "cancel"):
        assert "Which runs?" in command(verb).refused
        assert "Which runs?" in command(verb, "--yes").refused
        assert "not both" in command(verb, run.id, "--graph", "fail").refused
    assert command("retry", "--state", "done").refused == (
        "perdure: A done run cannot be retried: --state takes failed, held.\n"
    )
    assert "A failed run cannot be cancelled" in command("cancel", "--state", "failed").refused


# -- which place


def test_a_place_may_be_an_argument_or_an_option_of_every_command_that_has_no_other(
    rt: perdure.Runtime, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    driven(rt, "ask")
    for words in (
        *(["runs"], ["inbox"], ["effects"], ["schedules"], ["reflections"], ["doctor"]),
        ["migrate", "--check"],
    ):
        assert main([*words, url]) == 0
        by_argument = capsys.readouterr().out
        assert main([*words, "--at", url]) == 0
        assert capsys.readouterr().out == by_argument
        assert main([*words, url, "--at", url]) == 2
        assert "Name one place" in capsys.readouterr().err


@pytest.mark.slow
def test_a_worker_takes_its_place_as_every_other_command(
    sqlite_url: str, tmp_path: Path, fork_server: ForkServer
) -> None:
    (tmp_path / "agents.py").write_text(AGENTS)

    def perdure(*arguments: str, **environment: str) -> Told:
        given: dict[str, Any] = {"JOURNAL": sqlite_url, **environment}
        process = CliProcess(fork_server, tmp_path, *arguments, apart=True, **given)
        return Told(process.ends(), process.text, process.err)

    given = ["start", "quick", '{"log": []}', "--at", "agents:rt"]
    for words in (["worker", "agents:rt"], ["worker", "--at", "agents:rt"]):
        run_id = perdure(*given).done.out.strip()
        told = perdure(*words, "--until-idle", "--quiet").done
        assert told.out == ""
        shown = perdure("runs", "agents:rt", "--json").done.json
        assert {run["id"]: run["state"] for run in shown}[run_id] == "done"
    named = perdure("tick", "--quiet", PERDURE_URL="agents:rt").done
    assert '"claimed": 0' in named.out
    assert "needs the graphs, not only their journal" in perdure("worker", sqlite_url).refused


# -- what a run is started with


def test_the_input_is_the_second_argument_and_context_and_config_are_json(
    url: str, command: Command
) -> None:
    run_id = command(
        *("start", "g", '{"to": "ana"}', "--context", '{"user": 7}'),
        *("--config", '{"recursion_limit": 9}'),
    ).done.out.strip()
    with Client(url) as client:
        row = client.journal.do(find(run_id))
        assert row is not None
        setup = load_setup(client.engine.serializer, row)
    assert setup["input"] == {"to": "ana"}
    assert setup["context"] == {"user": 7}
    assert setup["config"]["recursion_limit"] == 9
    assert "The input {a: b} is not JSON" in command("start", "g", "{a: b}").refused
    assert "--context {a: b} is not JSON" in command("start", "g", "--context", "{a: b}").refused


# -- graphs that no worker has


def test_a_misspelt_graph_is_told_at_once_and_wherever_its_run_is_shown(
    rt: perdure.Runtime, command: Command, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.commands.workers.LATE", 0)
    monkeypatch.setattr("perdure.views.waiting_for.LATE", timedelta(0))
    driven(rt, "other")
    started = command("start", "othr")
    assert started.code == 0
    assert started.err == (
        "perdure: note: perhaps no worker has this graph: no run of 'othr' was driven lately. "
        "Did you mean 'other'? If none has, start a worker that registers it, or cancel the run.\n"
    )
    run_id = started.out.strip()
    assert "perhaps no worker has this graph. Did you mean 'other'?" in command("runs").done.out
    assert "perhaps no worker has this graph: no run of 'othr'" in command("show", run_id).done.out
    inbox = command("inbox").done.out
    assert "1 run is due: perhaps no worker has this graph: no run of 'othr'" in inbox
    [needed] = command("inbox", "--json").done.json
    assert (needed["needs"], needed["graph"], needed["runs"]) == ("worker", "othr", 1)
    command("cancel", run_id)
    assert command("inbox").done.out == "Nothing needs a person.\n"
    assert command("start", "other", "{}").done.err == ""


def test_another_version_is_told_as_one(rt: perdure.Runtime, command: Command) -> None:
    driven(rt, "other")
    told = command("start", "other", "--version", "2").err
    assert "no run of 'other@2' was driven lately" in told
    assert "Runs of 'other' were driven in another version: none." in told


def test_a_runtime_suggests_the_graph_that_is_meant(rt: perdure.Runtime) -> None:
    with pytest.raises(perdure.UnknownGraph, match=r"Did you mean 'other'\?"):
        rt.blocking.start("othr")


# -- looking after a journal


def ended(url: str, days: int, count: int) -> list[str]:
    """Runs that were cancelled so many days ago."""
    with Client(url, clock=Clock(datetime.now(UTC) - timedelta(days=days))) as client:
        ids = [client.blocking.start("g").id for _ in range(count)]
        for id in ids:
            client.blocking.cancel(id)
        return ids


def test_old_runs_are_counted_and_deleted_but_not_unasked(url: str, command: Command) -> None:
    ended(url, 40, 3)
    [young] = ended(url, 5, 1)
    assert command("prune", "--older-than", "30d", "--dry-run").done.out == (
        "3 runs would be deleted.\n"
    )
    assert "Delete 3 runs? Pass --yes" in command("prune", "--older-than", "30d").refused
    assert len(command("runs", "--json").json) == 4
    assert command("prune", "--older-than", "30d", "--state", "done", "--yes").done.out == (
        "0 runs deleted.\n"
    )
    assert command("prune", "--older-than", "30d", "--yes", "--limit", "1").done.out == (
        "1 run deleted.\n"
    )
    assert command("prune", "--older-than", "30d", "--yes").done.out == "2 runs deleted.\n"
    assert [told["id"] for told in command("runs", "--json").json] == [young]
    held = command("prune", "--older-than", "1d", "--state", "held").refused
    assert "Only runs that ended can be pruned" in held
    assert "not a duration" in command("prune", "--older-than", "soon").refused
    assert "Missing option '--older-than'" in command("prune").refused


def test_migrate_makes_a_journal_and_check_only_looks(
    empty_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = commands_at(capsys, empty_url)
    newest = max(migrations())
    checked = command("migrate", "--check")
    assert (checked.code, version(empty_url)) == (1, None)
    assert "There is no journal yet" in checked.out
    assert command("migrate").done.out == f"The journal is created, with schema {newest}.\n"
    assert version(empty_url) == newest
    assert command("migrate", "--check").done.out == f"The schema is {newest}, the newest.\n"
    assert "nothing to do" in command("migrate").done.out


def test_a_journal_of_an_older_perdure_is_noticed(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import sqlite3
    from contextlib import closing

    connect(sqlite_url).close()
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file, file:
        file.execute("UPDATE perdure_schema SET version = version - 1")
    told = commands_at(capsys, sqlite_url)("migrate", "--check")
    assert told.code == 1
    assert f"this version of perdure needs {max(migrations())}: run `perdure migrate`" in told.out


LOOKING = (
    ["runs"],
    ["show", "x" * 8],
    ["inbox"],
    ["answer", "w", "1"],
    ["signal", "t", "n"],
    ["pause", "r"],
    ["effects"],
    ["settle", "k", "retry"],
    ["schedules"],
    ["reflections"],
    ["prune", "--older-than", "1d"],
    ["erase", "t", "--yes"],
    ["doctor"],
    ["export"],
)


@pytest.mark.parametrize("arguments", LOOKING, ids=lambda arguments: str(arguments[0]))
def test_looking_at_a_journal_that_is_not_there_makes_none(
    empty_sqlite_url: str, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    command = commands_at(capsys, empty_sqlite_url)
    assert "There is no journal at" in command(*arguments).refused
    assert version(empty_sqlite_url) is None


def test_a_password_is_not_repeated(
    empty_postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = empty_postgres_url.replace("postgres@", "postgres:hush-hush@", 1)
    refused = commands_at(capsys, secret)("runs").refused
    assert "There is no journal at" in refused
    assert "hush" not in refused


def test_what_is_exported_is_every_run_with_all_that_there_is_of_it(
    rt: perdure.Runtime, command: Command, tmp_path: Path
) -> None:
    asks, done = driven(rt, "ask", metadata={"n": 1}), driven(rt, "quick")
    rt.blocking.score(done.id, "reply", 1.0)
    told = {one["run"]["id"]: one for one in command("export").done.json}
    assert set(told) == {asks.id, done.id}
    assert told[done.id]["run"]["output"] == {"log": ["quick"]}
    assert told[done.id]["scores"][0]["name"] == "reply"
    assert [one["kind"] for one in told[asks.id]["waits"]] == ["human"]
    assert told[asks.id]["events"][0]["kind"] == "started"
    assert [one["run"]["id"] for one in command("export", asks.id).json] == [asks.id]
    assert [one["run"]["id"] for one in command("export", "--metadata", "n=1").json] == [asks.id]
    assert [one["run"]["id"] for one in command("export", "--graph", "quick").json] == [done.id]
    assert "not both" in command("export", asks.id, "--graph", "ask").refused
    assert "There is no run 'x'" in command("export", "x").refused
    file = tmp_path / "runs.jsonl"
    assert command("export", "-o", str(file)).done.out == f"2 runs written to {file}.\n"
    assert len(file.read_text().splitlines()) == 2
    assert "No such file" in command("export", "--output", str(tmp_path / "no" / "x")).refused


def test_an_export_of_one_kind_of_record_has_a_line_for_each(
    rt: perdure.Runtime, command: Command, tmp_path: Path
) -> None:
    asks, done = driven(rt, "ask"), driven(rt, "quick", thread_id="t-1")
    rt.blocking.score(done.id, "reply", 1.0)
    assert [one["id"] for one in command("export", "--what", "runs").done.json] == [
        done.id,
        asks.id,
    ]
    events = command("export", "--what", "events", done.id).done.json
    assert [one["n"] for one in events] == [one.n for one in rt.blocking.events(done.id)]
    assert {(one["run_id"], one["thread_id"], one["graph"]) for one in events} == {
        (done.id, "t-1", "quick")
    }
    assert [one["run_id"] for one in command("export", "--what", "waits").done.json] == [asks.id]
    file = str(tmp_path / "scores.jsonl")
    told = command("export", "--what", "scores", "-o", file).done.out
    assert told == f"1 score written to {file}.\n"
    assert command("export", "--what", "effects").done.json == []


# -- the command line itself


def tree() -> dict[str, Any]:
    from perdure.cli import app

    return dict(app.commands)


def test_every_command_says_what_it_does_and_takes_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    for name in tree():
        assert f"\n  {name}  " in listed
        assert main([name, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"Usage: perdure {name} ")
    assert "Exit codes: 0 success; 1 " in listed
    assert main([]) == 0
    assert capsys.readouterr().out == listed
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"perdure {perdure.__version__}\n"


def test_every_option_is_explained() -> None:
    for name, command in tree().items():
        for param in command.params:
            assert param.help, f"{name} {param.name}"


def test_a_mistyped_command_or_option_is_told_with_what_to_type(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments, sentence in (
        (["wroker"], "Did you mean one of: 'wake', 'worker'"),
        (["runs", "--statee", "done"], "No such option '--statee'. (Did you mean"),
        (["worker", "m:rt", "--zzz"], "No such option '--zzz'. See `perdure worker --help`."),
        (["runs", "--nope"], "No such option '--nope'"),
        (["pause"], "Missing argument 'RUN...'"),
    ):
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("perdure: ")
        assert sentence in err
        assert "--help`." in err


QUIET = """
import sys
from perdure.cli import main
for arguments in {given!r}:
    assert main(arguments) == 0, arguments
heavy = ("langgraph", "langchain_core", "pydantic", "rich", "psycopg")
print([name for name in sys.modules if name.partition(".")[0] in heavy])
"""


def test_help_and_listings_load_neither_langgraph_nor_pydantic_nor_rich(
    sqlite_url: str, rt_sqlite: perdure.Runtime
) -> None:
    run = driven(rt_sqlite, "ask", thread_id="t")
    driven(rt_sqlite, "pay")
    big = rt_sqlite.blocking.start("quick", {"log": ["x" * 100_000]})
    rt_sqlite.blocking.tick()
    assert rt_sqlite.blocking.get(big.id).state is State.DONE
    looks = [
        ["runs"],
        ["runs", "--json"],
        ["inbox"],
        ["show", run.id],
        ["show", big.id],
        ["effects"],
        ["schedules"],
        ["reflections"],
        ["doctor"],
        ["migrate", "--check"],
        ["start", "quick"],
        ["signal", "t", "n"],
        ["pause", run.id],
        ["resume", run.id],
        ["prune", "--older-than", "1d"],
    ]
    given = [["--help"], ["runs", "--help"], *([*one, "--at", sqlite_url] for one in looks)]
    told = subprocess.run(
        [sys.executable, "-c", QUIET.format(given=given)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.stderr == ""
    assert told.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def rt_sqlite(sqlite_url: str) -> Iterator[perdure.Runtime]:
    with perdure.Runtime(sqlite_url) as made:
        made.register(chain(quick), name="quick")
        made.register(chain(ask), name="ask")
        made.register(chain(pay), name="pay", retry=perdure.Retry(attempts=1))
        yield made


def test_a_reader_that_has_seen_enough_is_no_error(sqlite_url: str) -> None:
    with Client(sqlite_url) as client:
        for _ in range(300):
            client.blocking.start("g" * 200)
    child = subprocess.Popen(
        [sys.executable, "-m", "perdure", "export", "--at", sqlite_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    json.loads(child.stdout.readline())
    child.stdout.close()
    assert child.wait(60) == 0
    assert child.stderr.read() == ""
    child.stderr.close()


def test_ctrl_c_ends_a_wait_with_130_and_the_run_stays(sqlite_url: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "perdure", "start", "g", "--wait", "--at", sqlite_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    run_id = child.stdout.readline().strip()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in err
    with Client(sqlite_url) as client:
        assert client.blocking.get(run_id).state is State.PENDING


@pytest.mark.slow
def test_the_journal_is_that_of_the_environment_or_of_the_project_around(
    sqlite_url: str, tmp_path: Path
) -> None:
    with Client(sqlite_url) as client:
        run = client.blocking.start("g")
    assert run.id in spawn("runs", PERDURE_URL=sqlite_url).done.out
    project = tmp_path / "project"
    (project / "src" / "deep").mkdir(parents=True)
    (project / "langgraph.json").write_text('{"graphs": {"g": "./g.py:g"}}')
    refused = spawn("runs", cwd=project).refused
    assert "has no journal: `perdure dev` makes it" in refused
    (project / ".perdure").mkdir()
    with Client(f"sqlite:///{project}/.perdure/agents.db") as client:
        own = client.blocking.start("g")
    for told in (
        spawn("runs", cwd=project / "src" / "deep"),
        spawn("runs", "--at", "project", cwd=tmp_path),
        spawn("runs", "--at", "project/langgraph.json", cwd=tmp_path),
    ):
        assert own.id in told.done.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Which journal? Name one with --at"),
        (["--at", "."], "There is no langgraph.json in"),
        (["--at", "here.db"], "name a journal by its URL, sqlite:///here.db"),
        (["--at", "nothing"], "use module:name"),
        (["--at", "no/folder"], "There is no folder no/folder. Name one with --at"),
        (["--at", "nothing:here"], "There is no module 'nothing'"),
        (["--at", "mysql://host/db"], "is not the start of a database URL"),
        (["--at", "sqlite:///here.db"], "There is no journal at sqlite:///here.db"),
    ],
    ids=["none", "folder", "file", "word", "nowhere", "module", "scheme", "other file"],
)
def test_a_place_that_is_none_is_told_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], sentence: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERDURE_URL", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "here.db").touch()
    code = main(["runs", *arguments])
    out, err = capsys.readouterr()
    assert sentence in Told(code, out, err).refused


def test_a_place_may_be_a_client_with_keys_and_then_langgraph_is_not_loaded(
    sqlite_url: str, tmp_path: Path
) -> None:
    keys = "{'k': b'0' * 32}"
    (tmp_path / "journal.py").write_text(
        "from perdure.client import Client\n"
        f"client = Client({sqlite_url!r}, encryption_keys={keys})\n"
    )
    with Client(sqlite_url, encryption_keys={"k": b"0" * 32}) as client:
        client.blocking.start("g", metadata={"secret": "hush"})
    [told] = spawn("runs", "--json", "--at", "journal:client", cwd=tmp_path).done.json
    assert told["metadata"] == {"secret": "hush"}
    [closed] = spawn("runs", "--json", "--at", sqlite_url).done.json
    assert closed["metadata"] == {}
    assert "cannot be opened" in closed["error"]["message"]


def test_completion_offers_commands_and_states() -> None:
    def offered(line: str) -> list[str]:
        told = spawn(
            _PERDURE_COMPLETE="bash_complete",
            COMP_WORDS=line,
            COMP_CWORD=str(len(line.split(" ")) - 1),
        )
        return told.out.split()

    assert offered("perdure runs --state pa") == ["plain,paused"]
    assert offered("perdure mig") == ["plain,migrate"]


DEMO = """
def main(contacts, seed, plain):
    print(contacts, seed, plain)
    return 1 if seed == 13 else 0
"""


def test_the_demo_gets_its_options_and_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in {"some_demo": DEMO, "poor_demo": "import not_installed_here"}.items():
        (tmp_path / name / "demo").mkdir(parents=True)
        (tmp_path / name / "demo" / "play.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for demos, options, code, said in (
        (("no_such_demo", "some_demo"), [], 0, "5 None False"),
        (("some_demo",), ["--contacts", "3", "--seed", "13", "--plain"], 1, "3 13 True"),
        (("some_demo",), ["--contacts", "99"], 2, "perdure: --contacts 99: use 3 to 10."),
        (("poor_demo",), [], 2, "The demo needs more packages: "),
        (("no_such_demo",), [], 2, "This installation has no demo"),
    ):
        monkeypatch.setattr("perdure.cli.testing.DEMOS", demos)
        assert main(["demo", *options]) == code
        assert said in "".join(capsys.readouterr())
