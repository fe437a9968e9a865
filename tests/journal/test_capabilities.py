"""What a database can do is a value, and the layers above keep to it: a real SQLite that claims to
take only small batches, small values and no open transactions is a full journal all the same."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

import perdure
from perdure.checkpoint import writer
from perdure.errors import TooLarge, Unsupported
from perdure.journal import Capabilities, Journal, Row, Statement, postgres, sqlite
from perdure.journal.sql import positional, render
from perdure.saver import Saver
from tests.support.entries import BatchSQLite, add, entries

LIMIT = 8
D1 = Capabilities(
    interactive=False,
    statements_per_batch=LIMIT,
    parameters_per_statement=100,
    bytes_per_batch=25_000,
    largest_text=5_000,
    largest_blob=10_000,
    blob_piece=4_000,
    rows_per_delete=5,
)


class Narrow(BatchSQLite):
    """A SQLite with the limits of a smaller database. Notes the size of each batch."""

    capabilities = replace(D1)

    def __init__(self, url: str) -> None:
        super().__init__(url.removeprefix("sqlite:///"))
        self.sizes: list[int] = []

    def commit(self, statements: Sequence[Statement]) -> list[list[Row]]:
        self.sizes.append(len(statements))
        assert self.capabilities.holds(self.capabilities.size(statements))
        return super().commit(statements)


@pytest.fixture
def backend(sqlite_url: str) -> Narrow:
    return Narrow(sqlite_url)


@pytest.fixture
def journal(backend: Narrow) -> Iterator[Journal]:
    journal = Journal(backend)
    yield journal
    journal.close()


def test_the_queue_is_committed_in_batches_that_hold_whole_operations(
    journal: Journal, backend: Narrow
) -> None:
    queued = [journal.defer(add(n), hold=True) for n in range(10)]  # two statements each
    assert journal.do(entries()) == list(range(10))
    assert backend.sizes == [8, 8, 4]
    assert [journal.wait(one) for one in queued] == [list(range(n + 1)) for n in range(10)]


def large(n: int, size: int, refs: str | None = None) -> Any:
    """The operation `add`, with a blob of that size."""
    insert, read = add(n).render()
    params = {**insert.params, "body": b"x" * size, "refs": refs}
    return add(n)._replace(statements=[Statement(insert.name, params), read])


def test_a_batch_holds_no_more_bytes_than_the_database_takes(
    journal: Journal, backend: Narrow
) -> None:
    for n, size in enumerate([3_900, 3_900, 3_900, 10, 9_000, 9_000, 9_000]):
        journal.defer(large(n, size), hold=True)
    assert journal.do(entries()) == list(range(7))
    # The first four have 8 statements. A blob of 9,000 bytes is sent in three pieces, which makes
    # four statements of the operation: two of them fill a batch.
    assert backend.sizes == [8, 4, 2]
    for n in range(10, 15):
        journal.defer(large(n, 3_900, "x" * 4_500), hold=True)  # 8,400 bytes each
    journal.flush()
    assert backend.sizes[3:] == [4, 4, 2]


def test_a_parameter_that_a_statement_does_not_use_is_not_counted() -> None:
    params: dict[str, Any] = {"thread_id": "t", "signal_id": "s", "name": "n", "key": None}
    params |= {"now": 1, "body": b"x" * 1_000}
    names = ("insert_signal", "lock_runs", "wake_thread", "find_signal")
    size = D1.size([Statement(name, params) for name in names])
    assert size.statements == 4
    assert 1_000 < size.bytes < 1_020


def test_an_operation_that_is_larger_than_a_batch_is_refused_by_name(
    journal: Journal, backend: Narrow
) -> None:
    many = add(1)._replace(statements=[*add(1).render()] * 5)
    refused = r"add 1 needs 10 statements in one transaction.*at most 8.*Nothing was written"
    with pytest.raises(Unsupported, match=refused) as caught:
        journal.defer(many)
    assert (caught.value.operation, caught.value.limit) == ("add 1", LIMIT)
    with pytest.raises(Unsupported, match=refused):
        journal.do(many)
    instead = add(2, thread=None, otherwise=many)
    with pytest.raises(Unsupported, match=refused):
        journal.do(instead)
    assert journal.do(add(3)) == [3]


@pytest.mark.parametrize(
    ("size", "refs", "reason"),
    [
        (10_001, None, r"10,001 bytes for insert_writes \(body\)"),
        (10, "é" * 2_501, r"5,002 bytes for insert_writes \(refs\)"),
    ],
)
def test_what_is_larger_than_a_text_or_blob_may_be_is_refused_by_name(
    journal: Journal, size: int, refs: str | None, reason: str
) -> None:
    with pytest.raises(Unsupported, match=f"add 1 needs {reason}"):
        journal.do(large(1, size, refs))
    assert journal.do(entries()) == []


def test_an_operation_with_more_bytes_than_a_batch_holds_is_refused_by_its_largest_value(
    journal: Journal,
) -> None:
    statements = [large(n, size).render()[0] for n, size in enumerate([8_000, 9_000, 8_001])]
    op = add(1)._replace(statements=statements)
    reason = r"25,\d+ bytes in one transaction, 9,000 of them for insert_writes \(body\)"
    with pytest.raises(Unsupported, match=f"add 1 needs {reason}.* at most 25,000"):
        journal.do(op)
    assert journal.do(entries()) == []


def test_every_statement_takes_fewer_parameters_than_the_smallest_database_allows() -> None:
    for fragments in (sqlite.FRAGMENTS, postgres.FRAGMENTS):
        for name, sql in render(fragments).items():
            assert len(positional(sql)[1]) < (D1.parameters_per_statement or 0), name


# -- the saver on it


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    count: int


def reply(state: Chat) -> Any:
    n = state.get("count", 0)
    return {"messages": [AIMessage(f"reply {n} " * 20)], "count": n + 1}


def chat(saver: Saver, node: Any = reply) -> Any:
    builder = StateGraph(Chat)
    builder.add_node("reply", node)
    builder.add_edge(START, "reply")
    return builder.compile(checkpointer=saver)


def on(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


def say(saver: Saver, thread_id: str, turns: int) -> Any:
    graph = chat(saver)
    for n in range(turns):
        graph.invoke({"messages": [HumanMessage(f"hello {n} " * 20)]}, on(thread_id))
    return graph.get_state(on(thread_id)).values


@pytest.fixture
def saver(journal: Journal) -> Iterator[Saver]:
    with Saver(journal=journal) as saver:
        yield saver


def test_a_thread_is_stored_pruned_and_deleted_in_small_batches(
    saver: Saver, backend: Narrow
) -> None:
    values = say(saver, "t", 10)
    assert len(values["messages"]) == 20
    assert len(list(saver.list(on("t")))) == 30
    before = len(backend.sizes)
    saver.prune(["t"])
    assert len(backend.sizes) - before >= 10, "29 checkpoints, three in a batch"
    assert len(list(saver.list(on("t")))) == 1
    assert chat(saver).get_state(on("t")).values == values
    saver.copy_thread("t", "copy")
    assert chat(saver).get_state(on("copy")).values == values
    saver.delete_thread("t")
    assert saver.get_tuple(on("t")) is None
    assert max(backend.sizes) <= LIMIT


def test_a_thread_with_large_rows_is_copied_in_batches_that_hold_their_bytes(
    saver: Saver, backend: Narrow
) -> None:
    def long(state: Chat) -> Any:
        return {"messages": [AIMessage(f"{len(state['messages'])} " * 1_500)]}

    graph = chat(saver, long)
    graph.invoke({"messages": [HumanMessage("hello " * 600)]}, on("t"))
    graph.invoke({"messages": []}, on("t"))
    saver.flush()
    before = len(backend.sizes)
    backend.capabilities = replace(D1, statements_per_batch=100, bytes_per_batch=8_000)
    saver.copy_thread("t", "copy")
    assert len(backend.sizes) - before > 1, "one would hold the statements, but not the bytes"
    assert list(map(_plain, saver.list(on("copy")))) == list(map(_plain, saver.list(on("t"))))


def _plain(found: Any) -> Any:
    return found.checkpoint, found.metadata, found.pending_writes


def test_a_thread_whose_checkpoints_need_more_than_a_batch_is_not_copied(saver: Saver) -> None:
    say(saver, "t", 3)
    refused = r"copy_thread 't' needs 9 statements in one transaction.*at most 8"
    with pytest.raises(Unsupported, match=refused):
        saver.copy_thread("t", "copy")
    assert saver.get_tuple(on("copy")) is None


def test_a_state_that_is_too_large_fails_its_own_call_at_once_and_no_other(
    saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "ARRIVAL", 60.0)

    def large(state: Chat) -> Any:
        return {"count": 1, "messages": [AIMessage("x" * 20_000)]}

    begun = time.monotonic()
    with pytest.raises(
        TooLarge, match=r"channel 'messages'.*20,\d+ bytes|20,\d+ of them for chann"
    ):
        chat(saver, large).invoke({"messages": [HumanMessage("hello")]}, on("t"))
    assert time.monotonic() - begun < 30, "the checkpoint does not wait for writes that are refused"
    found = chat(saver).get_state(on("t"))
    assert len(found.values["messages"]) == 1
    assert found.next == ("reply",)
    assert len(say(saver, "other", 1)["messages"]) == 2
    assert len(say(saver, "t", 1)["messages"]) == 3


def test_writes_of_a_task_that_are_too_large_together_are_refused_by_the_largest_channel(
    saver: Saver,
) -> None:
    say(saver, "t", 1)
    found = saver.get_tuple(on("t"))
    assert found is not None
    writes = [("a", "x" * 4_000), ("b", ["x" * 3_000, "x" * 3_000]), ("c", "x" * 10)]
    refused = r"write \d+ of task 'one' at .* 10,\d+ bytes \(6,006 of them for channel 'b'\)"
    with pytest.raises(TooLarge, match=refused):
        saver.put_writes(found.config, writes, "one")
    saver.put_writes(found.config, writes[:1], "two")
    found = saver.get_tuple(on("t"))
    assert found is not None
    assert found.pending_writes == [("two", "a", "x" * 4_000)]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("x",)] * 10, "9 statements in one transaction"),
        ([["x"] * 101], "101 parameters in one statement"),
        ([("x" * 10_001,)], r"10,001 bytes for a statement of its function"),
    ],
)
def test_a_transactional_effect_with_more_than_a_batch_holds_fails_inside_its_function(
    saver: Saver, backend: Narrow, rows: Any, reason: str
) -> None:
    raised = []

    @perdure.effect(transactional=True, retry=None)
    def book() -> None:
        try:
            perdure.transaction().executemany("INSERT INTO booked VALUES (?)", rows)
        except Unsupported as error:
            raised.append(error)
            raise

    def node(state: Chat) -> Any:
        book()

    with pytest.raises(Unsupported, match=f"the transactional effect 'book' needs {reason}"):
        chat(saver, node).invoke({"messages": [HumanMessage("hello")]}, on("t"))
    assert len(raised) == 1
    assert max(backend.sizes) <= LIMIT
