"""`perdure dev` as a process of its own: it shows what happens, and whatever becomes of it, or of
the code, the runs go on."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import perdure
from perdure.cli.dev import snapshot
from perdure.types import Run, State
from tests.contract.test_stopping import calls
from tests.support.cli_process import CliProcess
from tests.support.commands import spawn
from tests.support.fork_server import ForkServer
from tests.support.polling import until

Dev = Callable[..., CliProcess]

AGENT = """
import asyncio, operator, os, time
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypedDict

import perdure
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

asyncio.run(asyncio.sleep(0))  # a module may run a loop of its own while it is imported

class Log(TypedDict, total=False):
    log: Annotated[list, operator.add]

def note(word):
    with open("calls", "a") as calls:
        calls.write(word + "\\n")
    return {"log": [word]}

def first(state):
    return note("first")

def hold(state):
    note("hold")
    while not Path("go").exists():
        time.sleep(0.01)
    return {"log": ["hold"]}

def nap(state):
    perdure.sleep(timedelta(seconds=0.3))
    return {"log": ["nap"]}

def ask(state):
    return {"log": [interrupt({"draft": "Dear Ana"})]}

def long(state):
    perdure.sleep(timedelta(days=3))

def hear(state):
    return {"log": [perdure.wait_for("reply")]}

def fail(state):
    raise ValueError("no good" + chr(10) + "at all")

def last(state):
    return note("VERSION")

def row(*nodes):
    return StateGraph(Log).add_sequence(nodes).add_edge(START, nodes[0].__name__)

held = row(first, hold, last)
asks = row(first, nap, ask, last)
sleeps = row(long, last)
hears = row(hear)
fails = row(fail)
"""
SAID = {
    "dependencies": ["."],
    "graphs": {name: f"./agent.py:{name}" for name in ("held", "asks", "sleeps", "hears", "fails")},
    "ui": {},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "project"
    found.mkdir()
    (found / "agent.py").write_text(AGENT)
    (found / "langgraph.json").write_text(json.dumps(SAID))
    (found / ".perdure").mkdir()
    return found


@pytest.fixture
def client(folder: Path) -> Iterator[perdure.Client]:
    with perdure.Client(f"sqlite:///{folder}/.perdure/agents.db") as found:
        yield found


@pytest.fixture
def dev(folder: Path, fork_server: ForkServer) -> Iterator[Dev]:
    """Starts `perdure dev`; its worker is a new interpreter always, itself only if `fresh`."""
    begun: list[CliProcess] = []

    def begin(*options: str, cwd: Path = folder, fresh: bool = False) -> CliProcess:
        begun.append(CliProcess(None if fresh else fork_server, cwd, "dev", *options))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


def workers(shown: CliProcess) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid (\d+)", shown.text)]


def reaches(client: perdure.Client, run: Run, state: State) -> Run:
    until(lambda: client.blocking.get(run.id).state is state, f"{state} of {run.graph}")
    return client.blocking.get(run.id)


@pytest.mark.slow
def test_it_shows_what_it_loaded_and_what_happens(
    folder: Path, client: perdure.Client, dev: Dev
) -> None:
    shown = dev()
    shown.says("graphs +held, asks, sleeps, hears, fails\n")
    shown.says(f"journal +sqlite:///{folder}/.perdure/agents.db\n")
    shown.says("note +not used here: ui\n")
    asks = client.blocking.start("asks", {}, thread_id="letter-1")
    assert shown.says(r"asks letter-1 +started +run (\S+)\n") == asks.id
    shown.says(r"letter-1 +step 1  first\n")
    shown.says(r"letter-1 +asleep until \d\d:\d\d:\d\d\n")
    shown.says(r'letter-1 +asks a person\n +{"draft": "Dear Ana"}\n')
    wait = shown.says(r"\n +perdure answer (\S+) JSON\n")
    client.blocking.answer(wait, "yes", by="ana\x1b[31m")
    shown.says(r"letter-1 +answered by ana\\x1b\[31m\n")
    shown.says(r"letter-1 +done +after .*VERSION")
    client.blocking.start("sleeps", {}, thread_id="letter-2")
    shown.says(r"letter-2 +asleep until \w+ \d+ \w+ \d{4}, \d\d:\d\d\n")
    client.blocking.start("hears", {}, thread_id="letter 3")
    shown.says(r"letter 3 +waits for the signal reply.*\n +perdure signal 'letter 3' reply JSON\n")
    fails = client.blocking.start("fails", {}, thread_id="letter-4")
    shown.says(
        r"letter-4 +failed at attempt 1, retries at \S+\n"
        r" +ValueError: no good\n +at all\n +in fail, "
    )
    shown.says(rf"letter-4 +failed at attempt 3 for good\n(?:.*\n)+? +perdure retry {fails.id}\n")
    assert "\x1b" not in shown.text
    assert shown.stop() == 0
    assert len(re.findall(r"letter-1 +started", shown.text)) == 1
    assert "Warning" not in shown.text


def in_the_middle(folder: Path, client: perdure.Client, shown: CliProcess) -> Run:
    """A run that is in its second step, and the first one is on disk."""
    run = client.blocking.start("held", {}, thread_id="t")
    shown.says(r"held t +step 1  first")
    until(lambda: "hold" in calls(folder), "the node")
    return run


@pytest.mark.slow
def test_a_run_goes_on_after_dev_was_killed_and_started_again(
    folder: Path, client: perdure.Client, dev: Dev
) -> None:
    shown = dev()
    run = in_the_middle(folder, client, shown)
    shown.send(signal.SIGKILL)
    os.kill(workers(shown)[0], signal.SIGKILL)
    (folder / "go").touch()
    again = dev()
    assert reaches(client, run, State.DONE).output["log"] == ["first", "hold", "VERSION"]
    assert again.says(r"held t +recovered by .*  run (\S+)\n") == run.id
    assert calls(folder) == ["first", "hold", "hold", "VERSION"]
    assert again.stop(signal.SIGINT) == 0


@pytest.mark.slow
def test_its_worker_does_not_outlive_it(dev: Dev) -> None:
    shown = dev()
    shown.says("worker +pid")
    shown.send(signal.SIGKILL)
    shown.ends()  # nobody has its output open any more


@pytest.mark.slow
def test_an_interrupt_from_the_terminal_lets_the_step_under_way_end(
    folder: Path, client: perdure.Client, dev: Dev
) -> None:
    shown = dev()
    run = in_the_middle(folder, client, shown)
    os.killpg(shown.pid, signal.SIGINT)  # as a terminal does it: to all of them
    shown.says("stopping at the next step")
    (folder / "go").touch()
    assert shown.ends() == 0
    assert client.blocking.get(run.id).state is State.PENDING
    dev()
    reaches(client, run, State.DONE)
    assert calls(folder) == ["first", "hold", "VERSION"]


@pytest.mark.slow
def test_a_second_interrupt_stops_it_at_once(
    folder: Path, client: perdure.Client, dev: Dev
) -> None:
    shown = dev("--grace", "600")
    run = in_the_middle(folder, client, shown)
    os.killpg(shown.pid, signal.SIGINT)
    shown.says("stopping at the next step")
    os.killpg(shown.pid, signal.SIGINT)
    assert shown.ends() == 0
    assert client.blocking.get(run.id).state is State.RUNNING  # whoever comes next takes it over


@pytest.mark.slow
def test_a_killed_worker_is_started_again(folder: Path, client: perdure.Client, dev: Dev) -> None:
    shown = dev()
    run = in_the_middle(folder, client, shown)
    os.kill(workers(shown)[0], signal.SIGKILL)
    shown.says("killed by SIGKILL: restarting")
    (folder / "go").touch()
    reaches(client, run, State.DONE)
    shown.says(r"held t +recovered")
    assert calls(folder) == ["first", "hold", "hold", "VERSION"]
    assert len(workers(shown)) == 2


@pytest.mark.slow
def test_code_that_changes_is_loaded_and_a_sleeping_run_goes_on_with_it(
    folder: Path, client: perdure.Client, dev: Dev
) -> None:
    shown = dev("--grace", "1", fresh=True)
    run = client.blocking.start("asks", {}, thread_id="t")
    wait = shown.says(r"perdure answer (\S+) JSON")
    code = folder / "agent.py"
    code.write_text(AGENT + "\nprint(\n")
    shown.says(r"agent.py changed: restarting\n")
    shown.says(r'graph "held" \(./agent.py:held\): SyntaxError: .* \(agent.py, line \d+\)')
    shown.says("waiting for a change")
    code.write_text(AGENT.replace("VERSION", "second-version"))
    shown.says(r"driving held, asks, sleeps, hears, fails \(pid \d+\)")
    client.blocking.answer(wait, "yes")
    assert reaches(client, run, State.DONE).output["log"] == [
        "first",
        "nap",
        "yes",
        "second-version",
    ]
    assert calls(folder) == ["first", "second-version"]
    assert shown.stop() == 0
    assert "unfinished runs go on" in shown.text


@pytest.mark.slow
def test_from_another_folder_the_commands_name_the_project(
    folder: Path, tmp_path: Path, client: perdure.Client, dev: Dev
) -> None:
    shown = dev("project", "--no-reload", cwd=tmp_path)
    client.blocking.start("asks", {}, thread_id="t")
    shown.says(r"perdure answer \S+ JSON --at project\n")
    assert calls(folder) == ["first"]  # in its own folder


def test_a_folder_without_a_project_is_reported(tmp_path: Path, dev: Dev) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    shown = dev(cwd=elsewhere)
    assert shown.ends() == 2
    shown.says("There is no langgraph.json in .*perdure worker module:name")


@pytest.mark.slow
def test_a_project_is_driven_by_a_cron_too(folder: Path, client: perdure.Client) -> None:
    run = client.blocking.start("asks", {}, thread_id="t")
    done = spawn("tick", str(folder), "--quiet", cwd=folder)
    assert done.json[0]["waiting"] == 1, done.err
    assert client.blocking.get(run.id).state is State.WAITING


def test_a_change_is_one_of_the_code_and_not_of_what_agents_write(tmp_path: Path) -> None:
    (tmp_path / "venv" / "lib").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "src" / "__pycache__").mkdir(parents=True)
    (tmp_path / "p").mkdir()
    file = tmp_path / "p" / "langgraph.json"
    file.write_text('{"graphs": {"a": "./a.py:g"}, "dependencies": ["..", "."]}')
    before = snapshot(file)
    for name in ("venv/lib/x.py", "src/__pycache__/x.py", "p/data.json", "p/.hidden.txt"):
        (tmp_path / name).touch()
    assert snapshot(file) == before
    for name in ("src/x.py", "p/.env", "p/a.py"):
        (tmp_path / name).touch()
        assert snapshot(file) != before
        before = snapshot(file)
    (tmp_path / "src" / "x.py").unlink()
    assert snapshot(file) != before
    before = snapshot(file)
    file.write_text("{")
    assert snapshot(file) != before
