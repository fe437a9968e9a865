"""On a database with limits, deleting and copying take several transactions. A process that is
killed between two of them leaves what is reachable as it was, and doing it again finishes it.

    delete_thread      the checkpoints go first and at once: then nothing leads to the other rows
    prune              checkpoints with their writes, newest first; then effects; then values
    Client.prune       the state of a thread without other runs at once, then the rows of the run,
                       which is `cancelled` from the first piece on; its own row is the last
    copy_thread        values and writes, which nothing refers to; all checkpoints in the last piece
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

import perdure
from perdure import Saver
from perdure.commands.deleting import DELETING
from perdure.commands.health import examine
from perdure.errors import Error, NotFound, WrongState
from perdure.types import State
from tests.contract import delete_child
from tests.support.agents import chain
from tests.support.entries import Commits
from tests.support.fork_server import ForkServer
from tests.support.raw import config, execute
from tests.support.sweep import sample

TABLES = (
    *("checkpoints", "values", "writes", "effects", "runs", "events", "reads", "waits"),
    *("signals", "joins", "scores"),
)


class Chat(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    count: int


@perdure.effect
def count(n: int) -> int:
    return n + 1


def chat(saver: Saver) -> Any:
    def reply(state: Chat) -> Any:
        n = state.get("count", 0)
        return {"messages": [("ai", f"reply {n} " * 20)], "count": count(n)}

    return StateGraph(Chat).add_node(reply).add_edge(START, "reply").compile(checkpointer=saver)


def converse(saver: Saver, thread: str, turns: int) -> None:
    graph = chat(saver)
    for n in range(turns):
        graph.invoke({"messages": [("human", f"hello {n} " * 20)]}, config(thread))


def states(saver: Saver, thread: str) -> dict[str, Any]:
    """Every checkpoint of a thread, loaded."""
    found = list(saver.list(config(thread)))
    return {one.checkpoint["id"]: (one.checkpoint, one.pending_writes) for one in found}


def rows(url: str, thread: str) -> dict[str, int]:
    """How many rows a thread has in each table."""
    counts = {}
    for table in TABLES:
        column = "scope" if table == "effects" else "thread_id"
        [(n,)] = execute(url, f"SELECT COUNT(*) FROM perdure_{table} WHERE {column} = ?", thread)
        counts[table] = n
    return {table: n for table, n in counts.items() if n}


def kill_everywhere(
    fork_server: ForkServer,
    url: str,
    what: str,
    make: Callable[[str], Any],
    check: Callable[[str, Any], None],
    few: int = 6,
) -> None:
    """Do something on a new thread, killed at each point; check what is left of the thread."""

    def do(thread: str, nth: int) -> Any:
        child = fork_server.start(delete_child.live, url=url, what=what, thread=thread, nth=nth)
        assert child.wait() == (-9 if nth else 0)
        return child

    made = make("whole")
    [[_, points]] = do("whole", 0).facts
    assert points >= 6, "several transactions"
    check("whole", made)
    for nth in sample(range(1, points + 1), few):
        made = make(f"killed at {nth}")
        do(f"killed at {nth}", nth)
        check(f"killed at {nth}", made)


def test_without_limits_a_thread_and_a_run_are_deleted_in_one_transaction(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with perdure.Runtime(url) as rt:
        rt.register(chain(("one", lambda state: {"log": ["x" * 200]})), name="g")
        rt.blocking.start("g", {"log": []}, thread_id="t")
        rt.blocking.tick()
        converse(rt.saver, "alone", 2)
        commits = Commits(monkeypatch)
        assert rt.blocking.prune(older_than=timedelta(0)) == 1
        assert commits.count == 1
        rt.saver.delete_thread("alone")
        assert commits.count == 2
    assert rows(url, "t") == rows(url, "alone") == {}


@pytest.mark.slow
def test_a_thread_whose_deletion_is_killed_is_there_whole_or_not_at_all(
    url: str, fork_server: ForkServer
) -> None:
    def make(thread: str) -> dict[str, Any]:
        with Saver(url) as saver:
            converse(saver, thread, 4)
            return states(saver, thread)

    def check(thread: str, before: dict[str, Any]) -> None:
        with Saver(url) as saver:
            assert states(saver, thread) in (before, {})
            saver.delete_thread(thread)
        assert rows(url, thread) == {}

    kill_everywhere(fork_server, url, "thread", make, check)


@pytest.mark.slow
def test_a_copy_that_is_killed_is_there_whole_or_not_at_all(
    url: str, fork_server: ForkServer
) -> None:
    def make(thread: str) -> dict[str, Any]:
        with Saver(url) as saver:
            converse(saver, thread, 6)
            return states(saver, thread)

    def check(thread: str, before: dict[str, Any]) -> None:
        copy = f"copy of {thread}"
        with Saver(url) as saver:
            if states(saver, copy) == {}:
                saver.copy_thread(thread, copy)
            else:
                with pytest.raises(Error, match="already"):
                    saver.copy_thread(thread, copy)
            assert states(saver, copy) == states(saver, thread) == before

    kill_everywhere(fork_server, url, "copy", make, check)


@pytest.mark.slow
def test_a_run_whose_deletion_is_killed_is_not_retried_and_pruning_again_finishes_it(
    url: str, fork_server: ForkServer
) -> None:
    @perdure.effect
    def send(n: int) -> int:
        return n

    def ask(state: Any) -> Any:
        for n in range(6):
            perdure.now()
            send(n)
        perdure.wait_for("go")
        return {"log": ["x" * 200]}

    def fail(state: Any) -> Any:
        raise ValueError("no luck")

    def make(thread: str) -> str:
        with perdure.Runtime(url) as rt:
            steps = [(f"n{n}", lambda state: {"log": ["x" * 200]}) for n in range(5)]
            graph = chain(*steps, ("ask", ask), ("fail", fail))
            rt.register(graph, name="g", retry=perdure.Retry(attempts=1))
            run = rt.blocking.start("g", {"log": []}, thread_id=thread)
            rt.blocking.tick()
            rt.blocking.signal(thread, "go", 1)
            rt.blocking.tick()
            assert rt.blocking.get(run.id).state == State.FAILED
            for n in range(6):
                rt.blocking.score(run.id, f"score {n}", 1.0)
            return run.id

    def check(thread: str, run_id: str) -> None:
        with perdure.Client(url) as client:
            assert client.journal.do(examine()) == []
            try:
                run = client.blocking.get(run_id)
            except NotFound:
                assert rows(url, thread) == {}
                return
            if run.state == State.FAILED:
                kinds = [one.kind for one in client.blocking.events(run_id)]
                assert kinds[-7:] == ["failed", *["scored"] * 6]
                assert rows(url, thread)["checkpoints"] == 8
            else:
                assert (run.state, run.reason) == (State.CANCELLED, DELETING)
                assert "checkpoints" not in rows(url, thread)
                with pytest.raises(WrongState):
                    client.blocking.retry(run_id)
            found = client.blocking.prune(older_than=timedelta(0), states=["done", "failed"])
            assert found == 1
            with pytest.raises(NotFound):
                client.blocking.get(run_id)
        assert rows(url, thread) == {}

    kill_everywhere(fork_server, url, "runs", make, check)
