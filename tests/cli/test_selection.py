"""Which runs, waits and effects a command means: by the beginning of an id, or by options."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.blocking import blocking_method
from perdure.cli import main
from perdure.client import Client
from perdure.commands.runs import find, load_setup
from perdure.types import Run, State
from tests.support.agents import chain
from tests.support.cli_process import CliProcess
from tests.support.commands import Command, Told, commands_at
from tests.support.fork_server import ForkServer


@perdure.effect(unknown="hold")
def charge(amount: int) -> str:
    raise ConnectionError("no answer")


def ask(state: Any) -> Any:
    return {"log": [perdure.ask("May I?")]}


def pay(state: Any) -> Any:
    return {"log": [charge(100)]}


def fail(state: Any) -> Any:
    raise ValueError("it cannot be")


@pytest.fixture
def rt(url: str) -> Iterator[perdure.Runtime]:
    with perdure.Runtime(url) as made:
        once = perdure.Retry(attempts=1)
        made.register(chain(ask), name="ask")
        made.register(chain(pay), name="pay", retry=once)
        made.register(chain(fail), name="fail", retry=once)
        made.register(chain(fail), name="other", retry=once)
        yield made


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], url: str) -> Command:
    return commands_at(capsys, url)


def driven(rt: perdure.Runtime, graph: str, *log: str) -> Run:
    team = "blue" if "blue" in log else "red"
    run = rt.blocking.start(graph, {"log": [*log]}, metadata={"team": team})
    rt.blocking.tick()
    return rt.blocking.get(run.id)


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
            driven(rt, "send", to)
        assert command("settle", "mail:ada", "retry").done.out == "mail:ada is settled: retry.\n"
        assert "More than one effect" in command("settle", "mail", "retry").refused


# -- by options


def test_runs_are_retried_by_options_after_a_preview(rt: perdure.Runtime, command: Command) -> None:
    failed = [driven(rt, "fail") for _ in range(6)]
    other, blue = driven(rt, "other"), driven(rt, "fail", "blue")
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


AGENTS = """
import os
import perdure
from tests.support.agents import chain

def quick(state):
    return {"log": ["quick"]}

rt = perdure.Runtime(os.environ["JOURNAL"])
rt.register(chain(quick), name="quick")
"""


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
