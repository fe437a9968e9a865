"""A run continues in a renamed node, and repeats nothing."""

from __future__ import annotations

import operator
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send

import perdure
from perdure.errors import BadArgument
from perdure.testing import Clock, set_commit_interval
from perdure.types import EventKind, Retry, Run, State
from tests.support.agents import NOON, Log, chain, opened
from tests.support.fork_server import Ended, ForkServer, Tell
from tests.support.runtime_child import NEVER, Ledger, killed_at
from tests.support.sqlite_only import url as url
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
    for number, point in enumerate(sample(points, 6, lambda point: f"{point}")):
        thread = f"killed-{number}"
        drive(thread, old=True)
        assert drive(thread, kill=point).status == -signal.SIGKILL, point
        check(thread, drive(thread))


HOUR = timedelta(hours=1)


async def test_the_state_of_a_run_at_an_old_name_is_that_of_langgraph(url: str) -> None:
    sent = Mailbox()
    ask = sent.node("one?")
    await drive(url, chain(plain, ("nap", ask), done))
    config: Any = {"configurable": {"thread_id": "t"}}
    async with opened(url) as rt:
        graph = rt.register(chain(plain, ("snooze", ask)), name="g", renamed={"nap": "snooze"})
        state = await graph.aget_state(config)
        assert state.next == ("nap",)
        assert [one.value for one in state.interrupts] == ["one?"]
        await graph.ainvoke(Command(resume="yes"), config)
        assert (await graph.aget_state(config)).next == ()
    assert sent == ["before one?", "end"]


async def test_a_sleeping_run_wakes_in_the_renamed_node(url: str) -> None:
    clock = Clock(NOON)

    def nap(state: Log) -> Any:
        perdure.sleep(HOUR)
        return {"log": ["slept"]}

    async with opened(url, clock) as rt:
        rt.register(chain(nap, done), name="g")
        run = await rt.start("g", {"log": []})
        await rt.tick()
    clock.advance(HOUR)
    async with opened(url, clock) as rt:
        rt.register(chain(("snooze", nap), done), name="g", renamed={"nap": "snooze"})
        assert (await rt.tick()).done == 1
        assert (await rt.get(run.id)).output == {"log": ["slept", "done"]}


async def test_a_node_that_was_renamed_twice_is_found_by_each_of_its_names(url: str) -> None:
    sent = Mailbox()
    ask = sent.node("one?", "two?", "three?")
    run = await drive(url, chain(("nap", ask), done))
    run = await drive(url, chain(("snooze", ask), done), {"nap": "snooze"}, run)
    both = {"nap": "snooze", "snooze": "rest"}
    run = await drive(url, chain(("rest", ask), done), both, run)
    run = await drive(url, chain(("rest", ask), done), both, run)
    assert run.output["log"][-1] == "done"
    assert sent == ["before one?", "before two?", "before three?", "end"]


async def test_without_the_rename_a_carried_run_is_held_until_it_is_back(url: str) -> None:
    sent = Mailbox()
    ask = sent.node("one?", "two?")
    run = await drive(url, chain(("nap", ask), done))
    new = chain(("snooze", ask), done)
    run = await drive(url, new, {"nap": "snooze"}, run)
    run = await drive(url, new, None, run)
    assert run.state == State.HELD
    assert "register(renamed={'nap': 'snooze'})" in (run.reason or "")
    async with opened(url) as rt:
        rt.register(new, name="g", renamed={"nap": "snooze"})
        await rt.retry(run.id)
        await rt.tick()
        assert (await rt.get(run.id)).state == State.DONE
    assert sent == ["before one?", "before two?", "end"]


def spread(ask: Any, name: str) -> StateGraph[Any]:
    def split(state: Log) -> Any:
        return Command(goto=[Send(name, {"log": [], "value": n}) for n in range(2)])

    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("split", split, destinations=(name,))
    builder.add_node(name, ask)
    builder.add_edge(START, "split")
    return builder


async def test_what_was_sent_to_a_renamed_node_arrives(url: str) -> None:
    sent = Mailbox()
    ask = sent.node("one?")
    run = await drive(url, spread(ask, "nap"))
    run = await drive(url, spread(ask, "snooze"), {"nap": "snooze"}, run)
    assert run.output["log"] == ["a", *["before one?", "yes to one?", "end"] * 2]
    assert sent == ["before one?"] * 2 + ["end"] * 2


def joined(ask: Any, nap: str, last: str, last_node: Any = done) -> StateGraph[Any]:
    """`nap` beside `work`, and a node that waits for both."""
    builder: StateGraph[Any] = StateGraph(Log)
    for name, node in ((nap, ask), ("work", plain), (last, last_node), ("end", done)):
        builder.add_node(name, node)
    builder.add_edge(START, nap)
    builder.add_edge(START, "work")
    builder.add_edge([nap, "work"], last)
    builder.add_edge(last, "end")
    return builder


@pytest.mark.parametrize(
    ("nap", "last"), [("snooze", "last"), ("nap", "finish"), ("snooze", "finish")]
)
async def test_a_join_that_is_half_reached_is_reached_under_new_names(
    url: str, nap: str, last: str
) -> None:
    sent = Mailbox()
    ask = sent.node("one?")
    renamed = {"nap": nap, "last": last}
    names = {old: new for old, new in renamed.items() if old != new}
    run = await drive(url, joined(ask, "nap", "last"))
    run = await drive(url, joined(ask, nap, last), names, run)
    assert (run.state, run.output["log"][-2:]) == (State.DONE, ["done", "done"])
    assert sent == ["before one?", "end"]


async def test_a_run_is_held_when_the_edges_to_the_node_it_waits_in_changed(url: str) -> None:
    # LangGraph would make another task of it: the answer would be lost, and the mail sent twice.
    sent = Mailbox()
    ask = sent.node("one?")
    run = await drive(url, joined(plain, "nap", "last", ask))
    run = await drive(url, joined(plain, "snooze", "last", ask), None, run)
    assert run.state == State.HELD
    assert "'last'" in (run.reason or "")
    assert sent == ["before one?"]
    async with opened(url) as rt:
        rt.register(joined(plain, "snooze", "last", ask), name="g", renamed={"nap": "snooze"})
        await rt.retry(run.id)
        await rt.tick()
        assert (await rt.get(run.id)).state == State.DONE
    assert sent == ["before one?", "end"]


async def test_a_run_waits_in_the_subgraph_of_a_renamed_node(url: str) -> None:
    sent = Mailbox()
    inner = chain(("inside", sent.node("one?")), plain).compile()
    run = await drive(url, chain(("nap", inner), done))
    run = await drive(url, chain(("snooze", inner), done), {"nap": "snooze"}, run)
    assert run.state == State.DONE
    assert sent == ["before one?", "end"]


@pytest.mark.parametrize(
    ("renamed", "why"),
    [
        ({"nap": "gone"}, "has no node 'gone'; it has snooze, rest"),
        ({"rest": "snooze"}, "still has a node 'rest'"),
        ({"nap": "snooze", "doze": "snooze"}, "Two nodes cannot become one"),
        ({"nap": "doze", "doze": "nap"}, "form a cycle"),
        ({"nap": "__start__"}, "has no node '__start__'"),
    ],
)
async def test_a_rename_that_would_lose_runs_is_refused(
    url: str, renamed: dict[str, str], why: str
) -> None:
    async with opened(url) as rt:
        with pytest.raises(BadArgument, match=why):
            rt.register(chain(("snooze", done), ("rest", done)), name="g", renamed=renamed)
        assert rt.graphs == []


async def test_the_function_of_an_entrypoint_cannot_be_renamed(url: str) -> None:
    @entrypoint()
    def flow(text: str) -> str:
        return text

    async with opened(url) as rt:
        with pytest.raises(BadArgument, match="only the nodes of a StateGraph"):
            rt.register(flow, renamed={"stream": "flow"})
