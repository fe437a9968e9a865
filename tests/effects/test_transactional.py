"""A transactional effect writes in the journal's own transaction: its writes and its outcome are
one commit, so that there is no moment at which one is there and the other is not.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure import failpoints
from perdure.errors import BadArgument, StatementFailed
from perdure.execution.progress import RecordedReads
from perdure.journal import sqlite
from perdure.journal.operation import Ambiguous
from perdure.types import Retry, State
from tests.contract.test_transactional import node_of, write
from tests.contract.test_transactional import table as table
from tests.support.agents import Log, chain, history, opened
from tests.support.effects import AT_ONCE, Boom, Times, settled, started, states
from tests.support.entries import BatchSQLite, faulty, takes_only_batches
from tests.support.entries import batches_url as batches_url
from tests.support.entries import only_batches as only_batches
from tests.support.entries import url as url
from tests.support.polling import until
from tests.support.proxy import Proxy
from tests.support.raw import execute

ONCE = Retry(attempts=1)


def booked(url: str) -> list[str]:
    return [what for (what,) in execute(url, "SELECT what FROM booked ORDER BY what")]


@pytest.mark.parametrize("way", ["runtime", "saver", "saver-async", "coroutine"])
async def test_its_writes_and_its_outcome_are_there_together(table: str, way: str) -> None:
    seen: list[Any] = []
    fails = Times(1)

    @perdure.effect(transactional=True)
    def book(what: str) -> str:
        write(what)
        seen.append((booked(table), states(table)))  # as another connection sees it
        return f"booked {what} {perdure.key()[:0]}"

    def node(state: Log) -> Log:
        told = book("room")
        seen.append((booked(table), states(table)))
        fails()
        return {"log": [told]}

    async def coroutine(state: Log) -> Log:
        return node(state)

    if way in ("runtime", "coroutine"):
        async with opened(table) as rt:
            builder = chain(node if way == "runtime" else coroutine)
            run = await started(rt, builder, retry=AT_ONCE)
            output = run.output
            [event] = await settled(rt, run)
            assert event.data["state"] == "done"
            assert run.saved["effects"] == 1
            await history(rt, run)
    else:
        config: Any = {"configurable": {"thread_id": "t"}}
        with perdure.Saver(table) as saver:
            graph = chain(node).compile(checkpointer=saver)
            with pytest.raises(Boom):
                graph.invoke({"log": []}, config)
            if way == "saver":
                output = graph.invoke(None, config)
            else:
                output = await graph.ainvoke(None, config)
    assert output["log"] == ["booked room "]
    assert seen == [([], []), (["room"], ["done"]), (["room"], ["done"])]


async def test_a_final_exception_is_its_outcome(table: str) -> None:
    calls: list[str] = []
    fails = Times(1)

    @perdure.effect(transactional=True, retry=None)
    def book(what: str) -> str:
        calls.append(what)
        write(what)
        raise ValueError("full")

    def node(state: Log) -> Log:
        with pytest.raises(ValueError, match="full"):
            book("room")
        fails()
        return {"log": ["caught"]}

    async with opened(table) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.output["log"] == ["caught"]
        assert calls == ["room"]
        assert booked(table) == []


async def test_a_result_that_cannot_be_stored_takes_the_writes_back(table: str) -> None:
    @perdure.effect(transactional=True, retry=None)
    def book(what: str) -> Any:
        write(what)
        return object()

    async with opened(table) as rt:
        run = await started(rt, node_of(book, "room"))
        assert run.state is State.FAILED
        assert run.error is not None
        assert "the result of effect" in run.error.message
        assert booked(table) == []


async def test_a_row_of_the_users_that_breaks_its_own_rules_is_the_users_exception(
    table: str,
) -> None:
    errors: list[BaseException] = []

    @perdure.effect(transactional=True, retry=None)
    def book(what: str | None) -> None:
        try:
            write(what)
        except Exception as error:
            errors.append(error)
            raise

    async with opened(table) as rt:
        run = await started(rt, node_of(book, None), retry=ONCE)
        assert run.state is State.FAILED
        assert run.error is not None
        # Without open transactions its statement is sent after it has returned.
        kind = StatementFailed if takes_only_batches(table) else type(errors[0])
        assert run.error.kind == f"{kind.__module__}.{kind.__qualname__}"
        assert "null" in run.error.message.lower()


@pytest.mark.parametrize("how", ["commit", "rollback", "COMMIT", "ROLLBACK"])
async def test_the_transaction_cannot_be_ended_from_inside(table: str, how: str) -> None:
    @perdure.effect(transactional=True, retry=None)
    def book(what: str) -> None:
        connection = perdure.transaction()
        write(what)
        if how.islower():
            getattr(connection, how)()
        else:
            connection.execute(how)

    @perdure.effect(transactional=True)
    def fine(what: str) -> str:
        write(what)
        return what

    def node(state: Log) -> Log:
        with pytest.raises(Exception):  # noqa: B017, PT011 (the database's own, or ours)
            book("wrong")
        return {"log": [fine("right")]}

    async with opened(table) as rt:
        run = await started(rt, chain(node), retry=ONCE)
        assert run.state is State.DONE, run.error
        # What was committed is so; that it is no effect any more is said.
        committed = how == "COMMIT" and not takes_only_batches(table)
        assert booked(table) == (["right", "wrong"] if committed else ["right"])
        assert [one.state for one in await rt.effects(run.id)][-1] == "done"
        assert "done" not in [one.state for one in await rt.effects(run.id) if one.name == "book"]


@pytest.mark.parametrize("what", ["effect", "transactional", "now", "ask"])
async def test_the_journal_cannot_be_used_in_another_way_inside(table: str, what: str) -> None:
    fails = Times(1)

    @perdure.effect
    def other(name: str) -> str:
        return name

    @perdure.effect(transactional=True)
    def another(name: str) -> str:
        return name

    @perdure.effect(name="book", transactional=True, retry=None)
    def book(name: str) -> str:
        write(name)
        if what == "effect":
            other("x")
        elif what == "transactional":
            another("x")
        elif what == "now":
            perdure.now()
        else:
            perdure.ask("may I?")
        return name

    def node(state: Log) -> Log:
        perdure.uuid() if what == "ask" else None
        fails()  # so that what is recorded must be loaded
        try:
            return {"log": [book("room")]}
        except perdure.Error as error:
            return {"log": [type(error).__name__, str(error)]}

    async with opened(table) as rt:
        async with asyncio.timeout(20):
            run = await started(rt, chain(node), retry=AT_ONCE)
        if what == "ask":
            assert run.state is State.WAITING
            assert booked(table) == []
            return
        assert run.state is State.DONE, run.error
        assert run.output["log"][0] == "BadArgument"
        assert "Inside of a transactional effect" in run.output["log"][1]
        assert booked(table) == []


async def test_a_branch_that_reads_meanwhile_and_one_that_reads_inside_do_not_wait_for_each_other(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, inside = threading.Event(), threading.Event()
    first = True
    load = RecordedReads._load

    def slow(self: RecordedReads, run: Mapping[str, Any], task: str) -> Any:
        loading.set()
        return load(self, run, task)

    @perdure.effect(transactional=True, retry=None)
    def book(what: str) -> str:
        inside.set()
        assert loading.wait(20)
        return perdure.now().isoformat()

    def books(state: Log) -> Log:
        if first:
            raise Boom
        with pytest.raises(BadArgument, match="Inside of a transactional effect"):
            book("room")
        return {"log": []}

    def reads(state: Log) -> Log:
        if first:
            raise Boom
        assert inside.wait(20)
        return {"log": [perdure.now().isoformat()]}

    def begin(state: Log) -> Log:
        return {"log": []}

    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("start", begin)
    builder.add_edge(START, "start")
    for node in (books, reads):
        builder.add_node(node)
        builder.add_edge("start", node.__name__)
    monkeypatch.setattr(RecordedReads, "_load", slow)
    async with opened(sqlite_url) as rt:
        run = await rt.start(rt.register(builder, name="agent", retry=AT_ONCE).name, {"log": []})
        await rt.tick(limit=1)
        first = False  # from here on, what is recorded must be loaded
        async with asyncio.timeout(20):
            await rt.tick()
        assert (await rt.get(run.id)).state is State.DONE


def cut(proxy: Proxy, how: str) -> None:
    """Cut the connection of the effect this is called in."""
    connection = perdure.transaction()
    if how == "network":
        proxy._hang_up(*proxy._sockets)
    else:
        with psycopg.connect(proxy.url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
    try:
        connection.execute("SELECT 1")
    except psycopg.Error as error:
        if how == "wrapped":
            raise Boom("the database is away") from error
        raise


@pytest.mark.parametrize("how", ["terminated", "network", "wrapped"])
async def test_a_connection_that_is_cut_inside_is_not_the_functions_failure(
    postgres_url: str, how: str
) -> None:
    """Nothing is committed then, so it is called once more, also if its first failure is final."""
    with perdure.Saver(postgres_url) as saver:
        saver.journal.flush()
    execute(postgres_url, "CREATE TABLE booked (what TEXT NOT NULL)")
    calls: list[int] = []
    proxy = Proxy(postgres_url)

    @perdure.effect(transactional=True, retry=None)
    def book(what: str) -> str:
        calls.append(1)
        write(what)
        if len(calls) == 1:
            cut(proxy, how)
        return what

    async with opened(proxy.url) as rt:
        run = await started(rt, node_of(book, "room"), retry=ONCE)
        assert run.state is State.DONE, run.error
        [effect] = await rt.effects(run.id)
        assert (booked(postgres_url), len(calls), effect.attempts) == (["room"], 2, 1)
    proxy.close()


async def test_a_function_that_always_loses_its_connection_fails(postgres_url: str) -> None:
    with perdure.Saver(postgres_url) as saver:
        saver.journal.flush()
    execute(postgres_url, "CREATE TABLE booked (what TEXT NOT NULL)")
    calls: list[int] = []
    proxy = Proxy(postgres_url)

    @perdure.effect(transactional=True, retry=None)
    def book(what: str) -> None:
        calls.append(1)
        cut(proxy, "terminated")

    async with opened(proxy.url) as rt:
        run = await started(rt, node_of(book, "room"), retry=ONCE)
        assert (run.state, booked(postgres_url)) == (State.FAILED, [])
        assert run.error is not None
        assert run.error.kind.endswith("AdminShutdown")
        assert len(calls) < 10
    proxy.close()


def test_what_a_transactional_effect_cannot_have_is_refused() -> None:
    async def coroutine(what: str) -> str:
        return what

    with pytest.raises(BadArgument, match="coroutine"):
        perdure.effect(transactional=True)(coroutine)
    with pytest.raises(BadArgument, match="timeout"):
        perdure.effect(transactional=True, timeout=5)(write)
    with pytest.raises(BadArgument, match="verify"):
        perdure.effect(transactional=True, verify=write)(write)


# -- lost answers, and other processes, in the middle


def now_and_then(table: str, fails: int = 0) -> tuple[Any, list[int]]:
    """A graph whose transactional effect fails so often first, and the calls of its function."""
    calls: list[int] = []
    times = Times(fails)

    @perdure.effect(name="book", transactional=True, retry=AT_ONCE)
    def book(what: str) -> str:
        calls.append(len(calls))
        write(f"{what} {len(calls)}")
        times()
        return f"{what} {len(calls)}"

    return node_of(book, "room"), calls


@contextmanager
def called(hook: Callable[[str, str], None]) -> Iterator[None]:
    """Have a hook called before each call of an effect."""
    failpoints.called = hook
    try:
        yield
    finally:
        failpoints.called = None


class Seen:
    """An observer that notes the effects it is told of."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def on_event(self, kind: str, run_id: str, thread_id: str, data: Any, at: datetime) -> None:
        if kind == "effect":
            self.states.append(data["state"])


@pytest.mark.parametrize("fails", [0, 1])
@pytest.mark.parametrize("stored", [True, False])
async def test_a_lost_reply_to_its_commit_is_settled_by_its_outcome(
    table: str, fails: int, stored: bool
) -> None:
    """Also after an attempt that failed, whose intent is stored, and no outcome."""
    seen = Seen()
    async with opened(table, observe=seen) as rt:
        graph, calls = now_and_then(table, fails)
        faults, fault = faulty(rt.journal), Ambiguous("no reply")

        def cut(name: str, key: str) -> None:
            if len(calls) == fails:
                (faults.after if stored else faults.undone).append(fault)

        with called(cut):
            run = await started(rt, graph)
        repeats = 0 if stored or takes_only_batches(table) else 1
        assert len(calls) == fails + 1 + repeats
        assert run.output["log"] == booked(table) == [f"room {len(calls)}"]
        assert states(table) == ["done"]
    assert seen.states == ["open"] * fails + ["done"]


async def test_a_commit_that_goes_through_late_is_not_written_twice(postgres_url: str) -> None:
    """The connection is cut while the server commits; the work is done again before it is done."""
    with perdure.Saver(postgres_url) as saver:
        saver.journal.flush()
    for sql in (
        "CREATE TABLE booked (what TEXT NOT NULL)",
        (
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END'"
        ),
        (
            "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON booked DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION wait()"
        ),
    ):
        execute(postgres_url, sql)
    proxy = Proxy(postgres_url)
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = ?"

    def cut_and_release() -> None:
        with psycopg.connect(postgres_url, autocommit=True) as server:
            server.execute("SELECT pg_advisory_lock(42)")
            held.set()
            until(lambda: execute(postgres_url, waiting, "advisory"))  # it is at its COMMIT
            proxy._hang_up(*proxy._sockets)
            until(lambda: execute(postgres_url, waiting, "transactionid"))  # the second one

    held = threading.Event()
    thread = threading.Thread(target=cut_and_release, daemon=True)
    thread.start()
    assert held.wait(20)
    async with opened(proxy.url) as rt:
        graph, calls = now_and_then(proxy.url)
        run = await started(rt, graph)
        thread.join(20)
        assert len(calls) == 1
        assert run.output["log"] == booked(postgres_url) == ["room 1"]
    proxy.close()


async def test_whatever_batch_of_a_run_arrives_late_nothing_is_lost_or_done_twice(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "SQLite", BatchSQLite)
    calls: list[str] = []

    @perdure.effect(unknown="hold")
    def send(what: str) -> str:
        calls.append(what)
        return what

    @perdure.effect(transactional=True)
    def book(what: str) -> str:
        calls.append(what)
        write(what)
        return perdure.outbox("booked", what)

    def first(state: Log) -> Log:
        return {"log": [send("mail")]}

    def second(state: Log) -> Log:
        book("room")
        return {"log": [str(perdure.now().year)]}

    async def run_with(late: int) -> int:
        path = shutil.copy(sqlite_template, tmp_path / f"{late}.db")
        execute(f"sqlite:///{path}", "CREATE TABLE booked (what TEXT NOT NULL)")
        calls.clear()
        async with opened(f"sqlite:///{path}") as rt:
            faults = faulty(rt.journal)
            faults.late_at = late
            rt.register(chain(first, second), name="agent")
            run = await rt.start("agent", {"log": []})
            counts = await rt.tick()
            assert (counts.done, counts.lost, calls) == (1, 0, ["mail", "room"]), late
            assert (await rt.get(run.id)).output["log"] == ["mail", "2030"], late
            assert booked(f"sqlite:///{path}") == ["room"], late
            assert len(await rt.messages()) == 1, late
            return faults.commits

    late = 0
    while late <= await run_with(late):
        late += 1
    assert late > 5


@pytest.mark.parametrize("round", range(3))
def test_two_processes_with_one_key_write_once(only_batches: str, round: int) -> None:
    """The second one does everything while the function of the first runs."""
    execute(only_batches, "CREATE TABLE booked (what TEXT NOT NULL)")
    others: list[Any] = []

    @perdure.effect(name="by key", transactional=True, key=lambda what, who: what)
    def book(what: str, who: str) -> str:
        write(f"{what} for {who}")
        if who == "first":
            thread = threading.Thread(target=lambda: others.append(invoke("second")))
            thread.start()
            thread.join(20)
        return f"{what} for {who}"

    def invoke(who: str) -> Any:
        with perdure.Saver(only_batches) as saver:
            graph = node_of(book, "room", who).compile(checkpointer=saver)
            return graph.invoke({"log": []}, {"configurable": {"thread_id": who}})["log"]

    assert invoke("first") == ["room for second"]
    assert others == [["room for second"]]
    assert booked(only_batches) == ["room for second"]
    assert states(only_batches) == ["done"]


def test_a_call_that_another_process_took_over_writes_nothing(only_batches: str) -> None:
    """Its intent is stored, since an attempt failed; then another process makes the call."""
    execute(only_batches, "CREATE TABLE booked (what TEXT NOT NULL)")
    calls: list[str] = []

    @perdure.effect(transactional=True, retry=AT_ONCE)
    def book(what: str) -> str:
        calls.append(what)
        n = len(calls)
        write(f"{what} {n}")
        if n == 1:
            raise Boom
        if n == 2:
            thread = threading.Thread(target=invoke)
            thread.start()
            thread.join(20)
        return f"{what} {n}"

    def invoke(log: list[str] | None = None) -> Any:
        config: Any = {"configurable": {"thread_id": "t"}}
        with perdure.Saver(only_batches) as saver:
            graph = node_of(book, "room").compile(checkpointer=saver)
            return graph.invoke(None if log is None else {"log": log}, config)["log"]

    assert invoke([]) == ["room 3"]
    assert booked(only_batches) == ["room 3"]


# -- without open transactions


async def test_a_statement_that_fails_when_it_is_sent_is_the_functions_failure(
    only_batches: str,
) -> None:
    calls: list[str] = []

    @perdure.effect(transactional=True, retry=AT_ONCE)
    def book(what: str) -> str:
        calls.append(what)
        if len(calls) == 3:
            perdure.transaction().execute("CREATE TABLE booked (what TEXT NOT NULL)")
        write(what)
        return what

    async with opened(only_batches) as rt:
        run = await started(rt, node_of(book, "room"))
        assert (run.state, len(calls)) == (State.DONE, 3)
        assert booked(only_batches) == ["room"]
        [first, _, _] = await settled(rt, run)
        assert "no such table: booked" in first.data["error"]


async def test_its_final_failure_is_recorded_and_raised_to_the_node(only_batches: str) -> None:
    fails = Times(1)
    calls: list[int] = []

    @perdure.effect(transactional=True, retry=None)
    def book(what: str) -> None:
        calls.append(1)
        write(what)

    def node(state: Log) -> Log:
        with pytest.raises(StatementFailed, match=r"'book' were sent.*no such table: booked"):
            book("room")
        fails()
        return {"log": ["caught"]}

    async with opened(only_batches) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert (run.output["log"], len(calls)) == (["caught"], 1)


async def test_reading_inside_is_refused_once_with_a_sentence(only_batches: str) -> None:
    calls = []

    @perdure.effect(transactional=True, retry=AT_ONCE)
    def book(what: str) -> str:
        calls.append(1)
        return str(perdure.transaction().execute("SELECT 1").fetchone())

    async with opened(only_batches) as rt:
        run = await started(rt, node_of(book, "room"), retry=AT_ONCE)
        assert (run.state, len(calls)) == (State.FAILED, 1)
        assert run.error is not None
        assert run.error.kind.endswith("BadArgument")
        assert "On D1 a transactional effect only writes" in run.error.message


async def test_effects_of_several_runs_are_committed_together(only_batches: str) -> None:
    """No transaction of its own: what is queued at the same time is one batch."""
    execute(only_batches, "CREATE TABLE booked (what TEXT NOT NULL)")
    together = threading.Barrier(5)

    @perdure.effect(transactional=True)
    def book(what: str) -> str:
        together.wait(20)
        write(what)
        return what

    def node(state: Log) -> Log:
        return {"log": [book("room")]}

    async with opened(only_batches) as rt:
        rt.register(chain(node), name="agent")
        for n in range(5):
            await rt.start("agent", {"log": []}, thread_id=str(n))
        counts = await rt.tick()
        assert counts.done == 5
        assert booked(only_batches) == ["room"] * 5
