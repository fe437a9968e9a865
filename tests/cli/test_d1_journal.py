"""Every command on a D1 journal, once; and its secret in nothing that is shown."""

from __future__ import annotations

import json
import logging
import os
import random
import sqlite3
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

import perdure
from perdure import cli
from perdure.journal.d1_client import D1Client
from tests.cli.test_evaluate import EXAMPLES, MODULE
from tests.support.agents import Log, chain
from tests.support.commands import Command, every_command

pytestmark = [pytest.mark.slow, pytest.mark.d1, pytest.mark.d1_sample]

AGENTS = """
from datetime import timedelta

import perdure
from tests.support.agents import chain


@perdure.effect(unknown="hold")
def charge(amount):
    raise ConnectionError("no answer")


def ask(state):
    return {"log": [perdure.ask("May I?")]}


def hear(state):
    return {"log": [perdure.wait_for("reply")]}


def nap(state):
    perdure.sleep(timedelta(days=7))
    return {"log": ["awake"]}


def pay(state):
    return {"log": [charge(100)]}


runtime = perdure.Runtime()
for node in (ask, hear, nap, pay):
    runtime.register(chain(node), name=node.__name__, retry=perdure.Retry(attempts=1))
"""
ELSEWHERE = {
    "demo": "its journals are its own",
    "dev": "drives as `worker` does, with the journal of the project",
    "serve": "the tests of the server call the same methods of the journal",
    "crashtest": "makes databases, which it cannot on D1",
    "d1 init": "has no journal",
}


@pytest.fixture
def url(d1_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A journal on D1 by its URL without a secret, and a module that has it as its journal."""
    secret = d1_url.partition("d1://:")[2].partition("@")[0]
    url = d1_url.replace(f":{secret}@", "")
    (tmp_path / "d1_agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_URL", url)
    monkeypatch.setenv("PERDURE_D1_SECRET", secret)
    monkeypatch.setenv("PERDURE_PUBLIC_URL", "https://agents.example.com")
    return url


@pytest.fixture
def used(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The commands that a test used; a runtime of its own for each."""
    names: set[str] = set()
    main = cli.main

    def counting(argv: list[str]) -> int:
        names.add(" ".join(argv[:2]) if argv[0] in ("d1", "evals", "tokens") else argv[0])
        sys.modules.pop("d1_agents", None)
        return main(argv)

    monkeypatch.setattr("tests.cli.conftest.main", counting)
    yield names
    sys.modules.pop("d1_agents", None)


def test_every_command_works_on_a_journal_on_d1(
    url: str, used: set[str], command: Command, tmp_path: Path
) -> None:
    def start(graph: str) -> str:
        return command("start", graph, '{"log": []}', "--thread", graph).done.out.strip()

    def tick() -> dict[str, int]:
        [counts] = command("tick", "d1_agents:runtime", "--quiet").done.json
        return counts

    runs = {graph: start(graph) for graph in ("ask", "hear", "nap", "pay")}
    assert (tick()["claimed"], len(command("runs").done.out.splitlines())) == (4, 5)
    assert "May I?" in command("inbox").done.out

    [question] = [one for one in command("inbox", "--json").json if one["needs"] == "answer"]
    assert "to ana" in command("assign", question["id"], "ana").done.out
    assert "https://" in command("link", question["id"], "--to", "ana").done.out
    command("answer", question["id"], '"yes"', "--by", "ana").done  # noqa: B018
    assert "is open again" in command("withdraw", question["id"]).done.out
    command("answer", question["id"], '"yes"').done  # noqa: B018
    command("signal", "hear", "reply", '"hello"').done  # noqa: B018
    command("wake", runs["nap"]).done  # noqa: B018
    [effect] = command("effects", "--json").done.json
    command("settle", effect["key"], "done", "--result", '"paid"').done  # noqa: B018
    command("worker", "d1_agents:runtime", "--until-idle", "--quiet").done  # noqa: B018
    told = {one["run"]["graph"]: one["run"] for one in command("export").done.json}
    logs = {graph: run["output"] and run["output"]["log"] for graph, run in told.items()}
    assert logs == {"ask": ["yes"], "hear": ["hello"], "nap": ["awake"], "pay": ["paid"]}
    assert "step 1  nap" in command("show", runs["nap"]).done.out
    forked = command("fork", runs["ask"], "--at", "d1_agents:runtime").done.out.strip()

    later = command("start", "hear", "--thread", "later").done.out.strip()
    for verb in ("pause", "resume", "cancel"):
        assert later in command(verb, later).done.out
    assert command("retry", later).code == 2  # cancelled: refused, and by name
    line = ("ask", "--cron", "0 9 * * *")
    command("schedule", "daily", *line).done  # noqa: B018
    assert "daily" in command("schedules").done.out
    assert "is disabled" in command("enable-schedule", "daily", "--no-enabled").done.out
    assert "removed" in command("unschedule", "daily").done.out
    assert "Commented" in command("comment", forked, "as it was").done.out
    assert "Scored" in command("score", forked, "tone", "0.5").done.out
    assert command("redeliver", "nothing").code == 2  # no such message
    assert command("reflections").done.err == ""
    assert command("check", "d1_agents:runtime").done.out
    assert forked in command("runs", "--json").done.out

    assert command("tokens", "create", "ci", "--scope", "admin").done.out.startswith("perdure_")
    assert "ci" in command("tokens", "list").done.out
    command("tokens", "revoke", "ci").done  # noqa: B018
    assert "No worker" in command("workers").done.out
    assert command("drain", "nobody:1").code == 2  # no such worker
    evaluate(command, tmp_path)

    make_threads(tmp_path / "old.db")
    assert command("import", "old.db").done.out.startswith("1 thread imported, 2 new checkpoints")
    assert "the newest" in command("migrate", "--check").done.out
    assert "invariants hold" in command("doctor").done.out
    assert (
        "1 run would be deleted"
        in command("prune", "--older-than", "0s", "--state", "cancelled", "--dry-run").done.out
    )
    deleted = command("prune", "--older-than", "0s", "--yes").done.out
    assert deleted == "8 runs deleted.\n"  # 3 of them evaluated
    command("signal", "later", "reply", '"hello"').done  # noqa: B018
    assert "1  signals\n" in command("erase", "later", "--yes").done.out
    assert command("d1", "doctor").code == 0

    assert used == every_command().keys() - ELSEWHERE.keys()


def evaluate(command: Command, folder: Path) -> None:
    (folder / "d1_evals.py").write_text(MODULE)
    lines = (json.dumps({"input": name, "expected": text}) for name, text in EXAMPLES)
    (folder / "letters.jsonl").write_text("\n".join(lines))
    judge = ("letters.jsonl", "--evaluator", "d1_evals:same")
    assert "33 %" in command("evaluate", "d1_evals:dear", *judge).done.out


def make_threads(path: Path) -> None:
    """A thread that waits, in a file of LangGraph's own saver."""
    builder = StateGraph(Log).add_node("ask", lambda state: {"log": [interrupt("May I?")]})
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        graph = builder.add_edge(START, "ask").compile(checkpointer=SqliteSaver(connection))
        graph.invoke({"log": []}, {"configurable": {"thread_id": "old"}})


@pytest.mark.parametrize("given", ["in the URL", "in the environment", "as its user"])
def test_the_secret_is_in_no_repr_no_log_and_no_error(
    d1_url: str,
    given: str,
    command: Command,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = d1_url.partition("d1://:")[2].partition("@")[0]
    url = d1_url
    if given == "in the environment":
        monkeypatch.setenv("PERDURE_D1_SECRET", secret)
        url = d1_url.replace(f":{secret}@", "")
    elif given == "as its user":  # by mistake
        url = d1_url.replace(":", "", 1).replace("d1", "d1:", 1).replace("//:", "//")
        assert f"//{secret}@" in url
    shown: list[str] = []
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore"):
        caplog.set_level(logging.DEBUG, name)
    for address in (url, url.replace(secret, "x" * 40)):
        rt, saver, client = (
            perdure.Runtime(address),
            perdure.Saver(address),
            perdure.Client(address),
        )
        shown += map(repr, [rt, saver, client, rt.journal, rt.saver, rt.journal.__dict__])
        try:
            with rt, saver, client:
                shown.append(repr(client.blocking.get(rt.blocking.start("g", {"n": 1}).id)))
                shown += map(repr, [rt, saver, client, rt.journal, saver.journal])
            with closing(D1Client(address)) as database:
                shown += map(repr, [database, database.place])
        except perdure.Error as error:
            shown += [*traceback.format_exception(error), repr(error)]
    for arguments in (["d1", "doctor"], ["runs"], ["show", "nothing"], ["inbox"], ["doctor"]):
        told = command(*arguments, "--at", url)
        shown += [told.out, told.err]
    log = caplog.text
    assert ("HTTP Request: POST http://127.0.0.1" in log) == (given != "as its user")
    assert secret not in log
    assert secret not in "\n".join(shown)


def test_a_command_to_paste_has_no_secret(d1_url: str, command: Command) -> None:
    secret = d1_url.partition("d1://:")[2].partition("@")[0]
    with perdure.Runtime(d1_url) as rt:
        rt.register(chain(ask), name="ask")
        run = rt.blocking.start("ask", {"log": []})
        rt.blocking.tick()
    for arguments in (["inbox"], ["show", run.id]):
        told = command(*arguments, "--at", d1_url).done
        assert "perdure answer" in told.out
        assert f"--at '{d1_url.replace(secret, '***')}'" in told.out


def ask(state: Any) -> Any:
    return {"log": [perdure.ask("May I?")]}


def test_a_project_may_have_the_secret_in_its_env(
    url: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = os.environ["PERDURE_D1_SECRET"]
    for name in ("PERDURE_URL", "PERDURE_D1_SECRET"):
        monkeypatch.delenv(name)
    project = {"graphs": {"ask": "./graphs.py:ask"}, "env": ".env"}
    (tmp_path / "langgraph.json").write_text(json.dumps(project))
    (tmp_path / ".env").write_text(f"PERDURE_URL={url}\nPERDURE_D1_SECRET={secret}\n")
    assert command("start", "ask").done.out
    assert " ask " in command("runs").done.out


def test_crashtest_refuses_d1_by_name(d1_url: str, command: Command) -> None:
    refused = command("crashtest", "tests.support.crashtest_agents:tidy", "--url", d1_url).refused
    assert "On D1 it cannot" in refused
    assert d1_url.partition("@")[0] not in refused, "the URL has a secret"


# -- into D1, and out of it


def export(url: str, path: Path) -> None:
    """A D1 database as a SQLite file, as `wrangler d1 export` and `sqlite3` make one: tables, rows,
    then indexes and triggers. An integer over 2^53 is rounded, here as there."""
    schema = "SELECT type, name, sql FROM sqlite_master WHERE sql <> '' ORDER BY type <> 'table'"
    with closing(D1Client(url)) as client, closing(sqlite3.connect(path)) as made:
        for kind, name, sql in client.batch([(schema, ())])[0]:
            if name.startswith("_cf"):
                continue
            made.execute(sql)
            for row in client.batch([(f"SELECT * FROM {name}", ())])[0] if kind == "table" else ():
                made.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)
        made.commit()


class Picture(TypedDict, total=False):
    picture: bytes
    note: str
    answer: str


def test_an_exported_journal_goes_on_as_a_sqlite_file(
    d1_url: str, tmp_path: Path, command: Command
) -> None:
    picture = random.Random(7).randbytes(2_000_000)  # in chunks on D1
    builder = StateGraph(Picture).add_node("draw", lambda state: {"picture": picture})
    builder.add_node("decide", lambda state: {"answer": perdure.ask("May I?")})
    builder.add_edge(START, "draw").add_edge(START, "decide")
    with perdure.Runtime(d1_url) as rt:
        rt.register(builder, name="draw")
        run = rt.blocking.start("draw", {"note": "x"}, thread_id="t")
        rt.blocking.tick()
    export(d1_url, tmp_path / "journal.db")
    url = f"sqlite:///{tmp_path}/journal.db"
    with closing(sqlite3.connect(tmp_path / "journal.db")) as made:
        assert made.execute("SELECT count(*) FROM perdure_chunks").fetchone()[0] > 2

    with perdure.Runtime(url) as rt:
        rt.register(builder, name="draw")
        [question] = rt.blocking.waits(run_id=run.id)
        rt.blocking.answer(question.id, "yes")
        rt.blocking.tick()
        found = rt.blocking.get(run.id)
        assert found.output == {"note": "x", "picture": picture, "answer": "yes"}, found
    assert "invariants hold" in command("doctor", url).done.out
    with closing(sqlite3.connect(tmp_path / "journal.db")) as made:
        names = {name for [name] in made.execute("SELECT name FROM sqlite_master")}
    assert not [name for name in names if "chunk" in name or name.endswith("_inserted")]
