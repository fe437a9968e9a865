"""What a journal costs, and who can read its file."""

from __future__ import annotations

import operator
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

import perdure
from perdure import Saver
from perdure.testing import watch_points
from tests.support.scripts import Graph, Savers

A: RunnableConfig = {"configurable": {"thread_id": "a"}}


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[Any], operator.add]
    items: list[Any]
    notes: dict[str, Any]
    text: str
    count: int


class Stored(NamedTuple):
    rows: int
    bytes: int


def stored(url: str, table: str = "", where: str = "1") -> Stored:
    """Rows and bytes in one of the tables, or in all of them."""
    columns = {
        "perdure_checkpoints": "LENGTH(state) + LENGTH(refs)",
        "perdure_values": "LENGTH(body)",
        "perdure_writes": "LENGTH(body) + COALESCE(LENGTH(refs), 0)",
    }
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        found = [
            connection.execute(
                f"SELECT COUNT(*), COALESCE(SUM({size}), 0) FROM {name} WHERE {where}"
            )
            for name, size in columns.items()
            if table in ("", name)
        ]
        rows = [one.fetchone() for one in found]
        return Stored(sum(row[0] for row in rows), sum(row[1] for row in rows))
    finally:
        connection.close()


def graph(saver: BaseCheckpointSaver[Any], *nodes: Callable[[Any], Any]) -> Graph:
    builder = StateGraph(State)
    sequence: Any = [(node.__name__, node) for node in nodes]
    builder.add_sequence(sequence)
    builder.add_edge(START, nodes[0].__name__)
    return builder.compile(checkpointer=saver)


def kilobyte() -> str:
    """Text that cannot be compressed away."""
    return os.urandom(512).hex()


def reply(state: State) -> Any:
    return {"messages": [AIMessage(kilobyte())], "count": state.get("count", 0) + 1}


def grow(state: State) -> Any:
    return {"log": [{"text": kilobyte()}]}


def size_after(
    url: str, turns: list[int], *nodes: Callable[[Any], Any], table: str = ""
) -> list[int]:
    """The bytes stored after so many turns in all, each with a message of one kilobyte."""
    sizes, done = [], 0
    with Saver(url) as saver:
        chat = graph(saver, *nodes)
        for goal in turns:
            for _ in range(goal - done):
                chat.invoke({"messages": [HumanMessage(kilobyte())]}, A)
            done = goal
            saver.flush()
            sizes.append(stored(url, table).bytes)
    return sizes


@pytest.mark.slow
def test_twice_the_turns_take_twice_the_bytes(sqlite_url: str) -> None:
    half, whole = size_after(sqlite_url, [100, 200], reply)
    assert 1.8 < whole / half < 2.3
    assert whole < 4 * 200 * 2 * 1024


class Counted(list[str]):
    """The statements run while it is `failpoints.hook`."""

    def __call__(self, point: str) -> None:
        if point.endswith(".before") and not point.startswith("commit"):
            self.append(point.removesuffix(".before"))


def statements(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> list[str]:
    counted = Counted()
    watch_points(counted)
    work()
    watch_points(None)
    return list(counted)


@pytest.mark.parametrize("memory", ["warm", "cold"])
def test_loading_the_latest_state_takes_as_many_queries_however_long_the_history(
    url: str, monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    needed = []
    with Savers(lambda: Saver(url), memory == "cold") as savers:
        for turns in (3, 60):
            chat = graph(savers.next(), reply, grow)
            for _ in range(turns):
                chat.invoke({"messages": [HumanMessage(kilobyte())]}, A)
            saver = savers.next()
            saver.get_tuple({"configurable": {"thread_id": "another"}})  # open, nothing queued
            found = statements(monkeypatch, partial(saver.get_tuple, A))
            needed.append([one for one in found if one != "journal_time"])  # another clock's
    assert 0 < len(needed[0]) <= 4
    assert len(needed[1]) == len(needed[0])


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


def test_the_files_of_a_new_journal_are_for_their_owner_alone(tmp_path: Path, umask: int) -> None:
    journal = perdure.connect(f"sqlite:///{tmp_path}/journal.db")
    try:
        assert _modes(tmp_path) == dict.fromkeys(
            ("journal.db", "journal.db-wal", "journal.db-shm"), 0o600
        )
        assert os.umask(umask) == umask, "the process has its own umask still"
    finally:
        journal.close()


def trim(state: State) -> Any:
    return {"messages": [RemoveMessage(id=str(m.id)) for m in state["messages"][:-20]]}


def slide(state: State) -> Any:
    return {"items": [*state.get("items", []), {"text": kilobyte()}][-20:]}


def edit(state: State) -> Any:
    items = state.get("items") or [{"text": kilobyte()} for _ in range(20)]
    items[7]["text"] = kilobyte()
    return {"items": items}


def note(state: State) -> Any:
    notes = state.get("notes") or {f"key {n}": kilobyte() for n in range(20)}
    notes["key 7"] = kilobyte()
    return {"notes": notes}


def replace_middle(state: State) -> Any:
    middle = state["messages"][len(state["messages"]) // 2]
    return {"messages": [AIMessage(kilobyte(), id=middle.id)]}


def nothing(state: State) -> Any:
    return None


@pytest.mark.parametrize(
    ("nodes", "payload"),
    [((reply,), 2), ((reply, trim), 2), ((reply, grow), 3), ((reply, replace_middle), 3)],
    ids=["grows", "is trimmed", "two lists", "a message is replaced"],
)
def test_a_chat_takes_bytes_for_what_is_new_not_for_all_of_it(
    sqlite_url: str, nodes: Any, payload: int
) -> None:
    start, half, whole = size_after(sqlite_url, [20, 60, 100], *nodes)
    assert whole - half < 1.5 * (half - start)
    assert (whole - half) / 40 < 4 * 1024 * payload


@pytest.mark.parametrize("node", [slide, edit, note], ids=["window", "edit", "dict"])
def test_a_value_returned_whole_stores_only_what_changed_in_it(sqlite_url: str, node: Any) -> None:
    start, half, whole = size_after(sqlite_url, [20, 60, 100], node, table="perdure_values")
    assert whole - half < 1.5 * (half - start)
    # A message, its copy in the input, and the one element; then now and then a new chain.
    assert (whole - half) / 40 < 6 * 1024


def test_an_unchanged_channel_stores_no_row(sqlite_url: str) -> None:
    with Saver(sqlite_url) as saver:
        chat = graph(saver, reply)
        chat.invoke({"text": kilobyte(), "items": [kilobyte()], "notes": {"a": kilobyte()}}, A)
        for _ in range(5):
            chat.invoke({"messages": [HumanMessage(kilobyte())]}, A)
    for channel in ("text", "items", "notes"):
        assert stored(sqlite_url, "perdure_values", f"channel = '{channel}'").rows == 1


def test_a_step_that_changes_nothing_stores_no_value(sqlite_url: str) -> None:
    def same(state: State) -> Any:
        return {"text": state["text"], "items": list(state["items"]), "notes": dict(state["notes"])}

    with Saver(sqlite_url) as saver:
        chat = graph(saver, nothing, same)
        chat.invoke(
            {"text": kilobyte(), "items": [{"a": kilobyte()}], "notes": {"a": kilobyte()}}, A
        )
        saver.flush()
        before = stored(sqlite_url, "perdure_values")
        assert before.rows == 4  # the input, and its three channels
        for _ in range(3):
            chat.invoke(None, A)
            chat.update_state(A, None, "nothing")
            chat.invoke(None, A)
    assert stored(sqlite_url, "perdure_values") == before


def test_an_element_replaced_in_the_middle_stores_one_element(sqlite_url: str) -> None:
    messages = [HumanMessage(kilobyte(), id=str(n)) for n in range(50)]
    with Saver(sqlite_url) as saver:
        chat = graph(saver, nothing)
        chat.invoke({"messages": messages}, A)
        saver.flush()
        before = stored(sqlite_url, "perdure_values").bytes
        for n in range(10):
            chat.update_state(A, {"messages": [HumanMessage(kilobyte(), id=str(20 + n))]})
    assert stored(sqlite_url, "perdure_values").bytes - before < 10 * 1024 * 1.3


def test_a_dict_stores_only_the_keys_that_changed(sqlite_url: str) -> None:
    with Saver(sqlite_url) as saver:
        chat = graph(saver, nothing)
        notes = {f"key {n}": kilobyte() for n in range(50)}
        chat.invoke({"notes": notes}, A)
        saver.flush()
        before = stored(sqlite_url, "perdure_values").bytes
        for n in range(10):
            notes = {**notes, f"key {n * 3}": kilobyte(), f"new {n}": kilobyte()}
            chat.update_state(A, {"notes": notes})
    assert stored(sqlite_url, "perdure_values").bytes - before < 20 * 1024 * 1.3


def test_what_a_task_returned_and_a_checkpoint_holds_is_stored_once(sqlite_url: str) -> None:
    def big(state: State) -> Any:
        return {"messages": [AIMessage(kilobyte() * 100, id="big")]}

    with Saver(sqlite_url) as saver:
        graph(saver, big, nothing).invoke({"text": "go"}, A)
    assert stored(sqlite_url).bytes < 100 * 1024 * 1.2
