"""A run continues in a renamed node, and repeats nothing."""

from __future__ import annotations

import operator
import signal
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure.testing import set_commit_interval
from perdure.types import EventKind, Retry, Run, State
from tests.support.agents import Log, chain, opened
from tests.support.fork_server import Ended, ForkServer, Tell
from tests.support.runtime_child import NEVER, Ledger, killed_at
from tests.support.sweep import sample

OLD = {"first": "nap", "last": "finish"}
NEW = {"first": "snooze", "last": "finish off"}
RENAMED = {OLD[role]: NEW[role] for role in OLD}


class Notes(TypedDict, total=False):
    ledger: str
    log: Annotated[list[str], operator.add]


@perdure.effect
def send(ledger: str, text: str) -> str:
    """A far side that knows a repeated call by its key."""
    Ledger(ledger).add(f"{text} {perdure.key()}")
    return text


def asking(*questions: str) -> Any:
    def node(state: Notes) -> Notes:
        said = []
        for question in questions:
            said += [send(state["ledger"], question), perdure.ask(question)]
        return {"log": said}

    return node


def work(state: Notes) -> Notes:
    return {"log": [send(state["ledger"], "work")]}


def graph(names: dict[str, str]) -> StateGraph[Any]:
    builder: StateGraph[Any] = StateGraph(Notes)
    builder.add_node(names["first"], asking("one", "two"))
    builder.add_node("work", work)
    builder.add_node(names["last"], asking("three"))
    builder.add_edge(START, names["first"])
    builder.add_edge(START, "work")
    builder.add_edge([names["first"], "work"], names["last"])
    return builder


async def drive_renamed(order: dict[str, Any], tell: Tell) -> None:
    """Start the run with the old names, or answer and drive it to its end with the new ones."""
    begins = order["old"]
    rt = perdure.Runtime(order["url"])
    renamed = None if begins else RENAMED
    rt.register(graph(OLD if begins else NEW), name="g", renamed=renamed)
    async with rt:
        set_commit_interval(rt, NEVER)  # a clock that stands still: the same point is the same
        given = {"ledger": order["ledger"], "log": []}
        run = await rt.start("g", given, thread_id=order["thread"], key="the one")
        if begins:
            await rt.tick()
            return
        with killed_at(order["kill"]) as counts:
            for _ in range(10):
                if run.ended:
                    break
                for wait in await rt.waits(run_id=run.id):
                    await rt.answer(wait.id, "yes")
                await rt.tick()
                run = await rt.get(run.id)
        kinds = Counter(event.kind for event in await rt.events(run.id))
        tell("ended", run.state, run.output and run.output["log"], kinds[EventKind.WAIT])
        tell("points", dict(counts))
        tell("findings", [str(finding) for finding in (await rt.doctor()).findings])


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
            drive_renamed, url=sqlite_url, thread=thread, ledger=ledger, old=old, kill=kill
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
