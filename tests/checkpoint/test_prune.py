"""What is deleted leaves nothing behind, and what stays loads as it did before.

`prune`, `delete_for_runs`, `delete_thread` and `copy_thread`, with forks of one chain of values by
two processes, and with LangGraph's DeltaChannel, whose values are spread over their ancestors.
"""

import json
import random
import sqlite3
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from perdure import Saver
from perdure.checkpoint.rows import value_location
from perdure.checkpoint.values import RowKind, ValueRef
from perdure.errors import Error
from perdure.serde.encryption import ChecksumEnvelope
from tests.support.scripts import Graph, plain


def append(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: dict[str, Any]
    count: int


class Delta(TypedDict, total=False):
    often: Annotated[list[Any], DeltaChannel(append, snapshot_frequency=2)]
    seldom: Annotated[list[Any], DeltaChannel(append, snapshot_frequency=5)]
    count: int


def reply(state: Chat) -> Any:
    n = state.get("count", 0)
    notes = {**state.get("notes", {}), str(n): "n" * 100}
    return {"messages": [AIMessage(f"reply {n} " * 20)], "notes": notes, "count": n + 1}


def collect(state: Delta) -> Any:
    n = state.get("count", 0)
    return {"often": [f"often {n}"], "seldom": [f"seldom {n} " * 20], "count": n + 1}


def chat(saver: Saver) -> Graph:
    builder = StateGraph(Chat)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    return builder.compile(checkpointer=saver)


def delta(saver: Saver) -> Graph:
    builder = StateGraph(Delta)
    builder.add_node("collect", collect)
    builder.add_edge(START, "collect")
    return builder.compile(checkpointer=saver)


def on(thread_id: str, **more: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, **more}}


def say(n: int) -> Any:
    return {"messages": [HumanMessage(f"hello {n} " * 20)]}


def snapshots(graph: Graph, thread_id: str) -> dict[str, Any]:
    """Every checkpoint of a thread by id: what it holds, next nodes, and its tasks' results."""
    return {
        one.config["configurable"]["checkpoint_id"]: (
            plain(one.values),
            one.next,
            plain([task.result for task in one.tasks]),
        )
        for one in graph.get_state_history(on(thread_id))
    }


def orphans(url: str) -> set[tuple[str, ValueRef]]:
    """The rows of values that no checkpoint and no write leads to."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        sql = "SELECT thread_id, ns, channel, chain, seq, step, body FROM perdure_values"
        bodies = {(row[0], row[1], ValueRef(*row[2:6])): row[6] for row in connection.execute(sql)}
        tables = ("perdure_checkpoints", "perdure_writes")
        held = [
            (row[0], row[1], json.loads(row[2]))
            for table in tables
            for row in connection.execute(f"SELECT thread_id, ns, refs FROM {table}")
            if row[2]
        ]
    finally:
        connection.close()
    found = set()
    for thread, ns, refs in held:
        for ref in refs:
            if len(ref) < 4:  # a write names the row, whoever's step it is
                found |= {
                    key for key in bodies if key[:2] == (thread, ns) and list(key[2][:3]) == ref
                }
                continue
            at = ValueRef(*ref)
            while (thread, ns, at) not in found:
                found.add((thread, ns, at))
                body = ChecksumEnvelope().unseal(
                    bodies[thread, ns, at], value_location(thread, ns, at)
                )
                if body[0] not in (RowKind.LIST_CHANGE, RowKind.DICT_CHANGE):
                    break
                at = ValueRef(at.channel, at.chain, at.seq - 1, ormsgpack.unpackb(body[1:])[0])
    return {(thread, ref) for thread, ns, ref in bodies.keys() - found}


class Meeting(Saver):
    """Waits after its first load until others have loaded too: they go on from one place."""

    def __init__(self, url: str, others: threading.Barrier) -> None:
        super().__init__(url)
        self.others: threading.Barrier | None = others

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = super().get_tuple(config)
        if self.others is not None:
            others, self.others = self.others, None
            others.wait(10)
        return found


def forked(url: str) -> Saver:
    """A thread with three branches: processes ran it at the same time, on one chain of values."""
    with Saver(url) as saver:
        for n in range(4):
            chat(saver).invoke(say(n), on("a"))
    barrier = threading.Barrier(3)

    def run(n: int) -> None:
        with Meeting(url, barrier) as saver:
            graph = chat(saver)
            graph.invoke(say(n), on("a"))

    threads = [threading.Thread(target=run, args=[n]) for n in (10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Saver(url)


def test_pruning_a_fork_leaves_no_row_of_the_other_branches(sqlite_url: str) -> None:
    with forked(sqlite_url) as saver:
        graph = chat(saver)
        # The branch that goes on longest is the newest: older branches end before it.
        for n in range(5):
            graph.invoke(say(40 + n), on("a"))
        saver.prune(["a"])
        assert orphans(sqlite_url) == set()


def test_pruning_by_age_keeps_what_is_younger_and_what_it_is_made_of(sqlite_url: str) -> None:
    with forked(sqlite_url) as saver:
        graph = chat(saver)
        before = snapshots(graph, "a")
        ids = sorted(before)
        connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
        day = timedelta(days=1) // timedelta(milliseconds=1)
        for age, id in enumerate(reversed(ids)):
            sql = "UPDATE perdure_checkpoints SET created_at = created_at - ? WHERE id = ?"
            connection.execute(sql, [age * day + day // 2, id])
        connection.commit()
        connection.close()
        for kept in (9, 4, 1):
            saver.prune(older_than=timedelta(days=kept))
            assert snapshots(graph, "a") == {id: before[id] for id in ids[-kept:]}
            assert orphans(sqlite_url) == set()
        saver.prune(older_than=timedelta(0))
        assert snapshots(graph, "a") == {ids[-1]: before[ids[-1]]}


def test_pruning_touches_no_other_thread_and_all_of_them_only_by_age(url: str) -> None:
    with Saver(url) as saver:
        graph = chat(saver)
        for thread in ("a", "b"):
            for n in range(3):
                graph.invoke(say(n), on(thread))
        before = snapshots(graph, "b")
        saver.prune(["a", "nobody"])
        assert len(snapshots(graph, "a")) == 1
        assert snapshots(graph, "b") == before
        with pytest.raises(Error, match="older_than"):
            saver.prune()
        saver.prune(older_than=timedelta(0))
        assert len(snapshots(graph, "b")) == 1
        saver.prune(["a", "b"], strategy="delete")
        assert snapshots(graph, "a") == snapshots(graph, "b") == {}


def test_deleting_runs_keeps_what_other_runs_are_made_of(url: str) -> None:
    with Saver(url) as saver:
        graph = chat(saver)
        for n in range(6):
            graph.invoke(say(n), on("a", run_id=f"run {n}"))
        before = snapshots(graph, "a")
        doomed = {
            one.config["configurable"]["checkpoint_id"]
            for one in graph.get_state_history(on("a"))
            if one.metadata and one.metadata.get("run_id") in ("run 0", "run 3")
        }
        assert len(doomed) == 6
        saver.delete_for_runs(["run 0", "run 3", "nobody's"])
        assert snapshots(graph, "a") == {id: before[id] for id in before.keys() - doomed}
        saver.delete_for_runs([f"run {n}" for n in range(6)])
        assert snapshots(graph, "a") == {}
    if url.startswith("sqlite"):
        assert orphans(url) == set()


@pytest.mark.parametrize("keys", [None, {"k": b"k" * 32}], ids=["plain", "encrypted"])
def test_a_copy_is_the_same_and_has_a_life_of_its_own(url: str, keys: Any) -> None:
    with Saver(url, encryption_keys=keys) as saver:
        graph = chat(saver)
        for n in range(3):
            graph.invoke(say(n), on("a"))
        past = list(graph.get_state_history(on("a")))
        graph.invoke(say(9), past[3].config)
        before = snapshots(graph, "a")
        saver.copy_thread("a", "b")
        assert snapshots(graph, "b") == before
        graph.invoke(say(4), on("b"))
        assert snapshots(graph, "a") == before
        saver.delete_thread("a")
        assert snapshots(graph, "a") == {}
        after = snapshots(graph, "b")
        assert len(after) == len(before) + 3
        assert before.items() <= after.items()


# -- DeltaChannel


@pytest.mark.parametrize("turns", range(1, 12))
def test_pruning_keeps_the_ancestors_that_delta_channels_are_made_of(url: str, turns: int) -> None:
    with Saver(url) as saver:
        graph = delta(saver)
        for n in range(turns):
            graph.invoke({"often": [n]}, on("a"))
        before = graph.get_state(on("a"))
        saver.prune(["a"])
        after = graph.get_state(on("a"))
        assert after.values == before.values
        assert after.config == before.config
        graph.invoke({"often": ["more"]}, on("a"))
        now = graph.get_state(on("a")).values
        assert now["seldom"][:-1] == before.values["seldom"]


def test_pruning_keeps_what_any_two_checkpoints_with_delta_channels_are_made_of(
    sqlite_url: str,
) -> None:
    """Of branches that need different ancestors and share some, whichever two are kept."""
    chosen = random.Random(7)
    with Saver(sqlite_url) as saver:
        graph = delta(saver)
        for n in range(8):
            graph.invoke(given(n), on("a"))
        past = list(graph.get_state_history(on("a")))
        for n in (2, 5, 8, 11):
            graph.invoke(given(n), past[n].config)
        before = snapshots(graph, "a")
        ids = sorted(before)
        for n in range(60):
            kept = sorted({*chosen.sample(ids, 2), ids[-1]})
            thread = f"copy {n}"
            saver.copy_thread("a", thread)
            make_old(sqlite_url, thread, set(ids) - set(kept))
            saver.prune([thread], older_than=timedelta(days=1))
            after = snapshots(graph, thread)
            assert len(after) < len(before)
            assert {id: after[id][0] for id in kept} == {id: before[id][0] for id in kept}


def given(n: int) -> Any:
    return {"seldom": [n]} if n % 3 else {"often": [n]}


def make_old(url: str, thread: str, ids: set[str]) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    sql = "UPDATE perdure_checkpoints SET created_at = 0 WHERE thread_id = ? AND id = ?"
    connection.executemany(sql, [(thread, id) for id in ids])
    connection.commit()
    connection.close()
