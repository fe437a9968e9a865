"""A run continues in a renamed node, and repeats nothing."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.types import Retry, Run, State
from tests.support.agents import Log, chain, opened
from tests.support.fork_server import Ended, ForkServer
from tests.support.runtime_child import Ledger
from tests.support.sweep import sample


@pytest.fixture
def url(sqlite_url: str) -> str:
    """SQLite: nothing here depends on the database."""
    return sqlite_url


class Mailbox(list[str]):
    """The far side: what was sent."""

    def node(self, *questions: str) -> Any:
        """A node that sends one mail before each question, and one in the end."""

        @perdure.effect(name="send")
        def send(text: str) -> str:
            self.append(text)
            return text

        def ask(state: Log) -> Any:
            said = []
            for question in questions:
                said.append(send(f"before {question}"))
                said.append(perdure.ask(question))
            return {"log": [*said, send("end")]}

        return ask


def done(state: Log) -> Any:
    return {"log": ["done"]}


def plain(state: Log) -> Any:
    return {"log": ["plain"]}


async def drive(
    url: str, graph: Any, renamed: dict[str, str] | None = None, run: Run | None = None
) -> Run:
    """Start a run, or answer one with its question, and drive it until it rests."""
    async with opened(url) as rt:
        rt.register(graph, name="g", retry=Retry(attempts=1), renamed=renamed)
        if run is None:
            run = await rt.start("g", {"log": ["a"]}, thread_id="t")
        for wait in await rt.waits(run_id=run.id):
            await rt.answer(wait.id, f"yes to {wait.value}")
        await rt.tick()
        return await rt.get(run.id)


async def test_a_run_goes_on_in_the_renamed_node_and_repeats_nothing(url: str) -> None:
    sent = Mailbox()
    ask = sent.node("one?", "two?")
    run = await drive(url, chain(plain, ("nap", ask), done))
    new, renamed = chain(plain, ("snooze", ask), done), {"nap": "snooze"}
    run = await drive(url, new, renamed, run)
    assert run.state == State.WAITING  # asked "two?", in the node under its old name
    run = await drive(url, new, renamed, run)
    assert run.output == {
        "log": [
            "a", "plain", "before one?", "yes to one?", "before two?", "yes to two?", "end", "done",
        ]
    }  # fmt: skip
    assert sent == ["before one?", "before two?", "end"]


@pytest.mark.slow
def test_a_run_that_is_carried_across_a_rename_is_killed_anywhere_and_repeats_nothing(
    fork_server: ForkServer, sqlite_url: str, tmp_path: Path
) -> None:
    def drive(thread: str, *, old: bool = False, kill: tuple[str, int] | None = None) -> Ended:
        ledger = str(tmp_path / thread)
        return fork_server.run(
            "rename_child:drive", url=sqlite_url, thread=thread, ledger=ledger, old=old, kill=kill
        )

    def check(thread: str, ended: Ended) -> None:
        assert ended.one("ended") == [
            "done",
            ["one", "yes", "two", "yes", "work", "three", "yes"],
            3,
        ]
        assert ended.one("findings") == []
        sent = set(Ledger(tmp_path / thread).lines())
        assert sorted(line.split()[0] for line in sent) == ["one", "three", "two", "work"], sent

    drive("whole", old=True)
    whole = drive("whole")
    check("whole", whole)
    counts = whole.one("points")
    commits = counts["commit.after"]
    points = [("commit.before", n) for n in range(1, commits + 1)]
    points += [("commit.after", commits), ("insert_graph.after", 1), ("progress.after", 1)]
    for number, point in enumerate(sample(points, 8, lambda point: f"{point}")):
        thread = f"killed-{number}"
        drive(thread, old=True)
        assert drive(thread, kill=point).status == -signal.SIGKILL, point
        check(thread, drive(thread))
