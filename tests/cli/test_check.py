"""`perdure check`, and `Runtime.check`: which runs the current graphs would hold."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.journal import connect, version
from perdure.journal.migrate import migrations
from tests.contract.test_code_changes import begin
from tests.support.agents import Log, chain, opened
from tests.support.commands import Told, main


def ask(state: Log) -> Any:
    return {"log": [perdure.ask("?")]}


def last(state: Log) -> Any:
    return {"log": ["last"]}


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that modules are imported from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def deploy(agents: Path, url: str, name: str, node: str, more: str = "") -> str:
    """A module that was not imported before, with a runtime: its place."""
    (agents / f"{name}.py").write_text(
        f"""
import perdure
from tests.cli.test_check import ask, last
from tests.support.agents import chain

rt = perdure.Runtime({url!r})
rt.register(chain(("{node}", ask), last), name="letter"{more})
rt.register(chain(ask), name="other")
"""
    )
    return f"{name}:rt"


def check(capsys: pytest.CaptureFixture[str], *words: str) -> Told:
    capsys.readouterr()
    code = main(["check", *words])
    return Told(code, *capsys.readouterr())


async def test_it_lists_the_runs_that_would_be_held_and_what_to_do(
    url: str, agents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [run_id] = await begin(url)
    same = check(capsys, deploy(agents, url, "same", "nap"))
    assert same.done.out == "2 unfinished runs: none would be held.\n"
    told = check(capsys, deploy(agents, url, "changed", "snooze"))
    assert (told.code, told.err) == (1, "")
    assert told.out.startswith("letter: 1 run would be held\n")
    assert "would go on at 'nap', which it can no longer reach" in told.out
    assert "register(renamed={'nap': 'snooze'})" in told.out
    assert f"  {run_id}  waiting    0\n" in told.out
    assert told.out.endswith("2 unfinished runs: 1 would be held.\n")
    [found] = check(capsys, "--json", "--at", deploy(agents, url, "again", "snooze")).json
    assert (found["run_id"], found["graph"], found["lost"]) == (run_id, "letter", ["nap"])
    renamed = deploy(agents, url, "renamed", "snooze", ", renamed={'nap': 'snooze'}")
    assert check(capsys, renamed).code == 0


async def test_runs_of_a_graph_that_is_not_registered_are_a_failure_unless_it_is_elsewhere(
    url: str, agents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fewer(name: str) -> str:
        (agents / f"{name}.py").write_text(
            f"import perdure\nfrom tests.cli.test_check import ask\n"
            f"from tests.support.agents import chain\nrt = perdure.Runtime({url!r})\n"
            f"rt.register(chain(ask), name='lettr')\n"
            f"rt.register(chain(ask), name='other', version='2')"
        )
        return f"{name}:rt"

    await begin(url)
    told = check(capsys, fewer("one"))
    assert (told.code, told.err) == (1, "")
    letter, other, sums = told.out.split("\n\n")
    assert letter == (
        "letter: 1 run would not be driven\n"
        "  The graph is not registered here. Did you mean 'lettr'? Keep it registered until its "
        "runs have ended. If another process registers it, pass --elsewhere letter. To give up on "
        "its runs: perdure cancel --graph letter"
    )
    assert other == (
        "other: 1 run would not be driven\n"
        "  The graph is not registered here. Another version is, but a run keeps the version it "
        "was started with. Keep it registered until its runs have ended. If another process "
        "registers it, pass --elsewhere other. To give up on its runs: perdure cancel RUN"
    )
    assert sums == "2 unfinished runs: none would be held, 2 would not be driven.\n"
    told = check(capsys, fewer("two"), "--json", "--elsewhere", "other")
    assert (told.code, told.json) == (1, [{"graph": "letter", "version": "", "runs": 1}])
    told = check(capsys, fewer("three"), "--elsewhere", "oth*", "--elsewhere", "letter")
    assert told.done.out == (
        "2 unfinished runs: none would be held, 2 of other processes not checked.\n"
    )


async def test_many_runs_of_one_shape_are_decided_without_reading_them(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(url, number=12)

    def read(*_: Any) -> Any:
        raise AssertionError("a checkpoint was read")

    async with opened(url) as rt:  # a graph that has all that the old one had
        rt.register(chain(("nap", ask), last, ("more", last)), name="letter")
        with monkeypatch.context() as patch:
            patch.setattr("perdure.execution.code_changes.latest_checkpoint", read)
            assert (await rt.check()).lost == ()
    monkeypatch.setattr("perdure.execution.code_changes.PAGE", 5)
    async with opened(url) as rt:
        rt.register(chain(("snooze", ask), last), name="letter")
        result = await rt.check()
        assert sorted(run.thread_id for run in result.lost) == sorted(map(str, range(12)))
        assert result.checked == 13


async def test_a_journal_that_is_older_or_not_there_is_not_changed(
    empty_sqlite_url: str, agents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = empty_sqlite_url
    place = deploy(agents, url, "early", "nap")
    assert "There is no journal at" in check(capsys, place).refused
    connect(url).close()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
        file.execute("UPDATE perdure_schema SET version = version - 1")
    assert "run `perdure migrate` first" in check(capsys, place).refused
    assert version(url) == max(migrations()) - 1
