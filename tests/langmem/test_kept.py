"""LangMem's own executor with its queue in a LangGraph store: `persist`, and what
`resume_pending_reflections` takes up after a restart, in the same way or into a journal."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import Runnable
from langgraph.store.base import BaseStore, Op, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from langmem import ReflectionExecutor as StockExecutor
from langmem import reflection as stock

from perdure.errors import BadArgument, Closed, NotFound, ReflectionLeft, Unserializable
from perdure.langmem import Persisted, ReflectionExecutor, persist, resume_pending_reflections
from perdure.langmem.kept import Due, Instead, Ticket
from perdure.langmem.records import Kept, Records
from perdure.langmem.reflection import Request
from perdure.types import State
from tests.support.agents import chain
from tests.support.agents import gate as a_gate
from tests.support.kept_child import NAME, STORY, Nursery, watched, wrapped
from tests.support.memory import manager, opened_store, remembered, talk, who
from tests.support.runtime_child import Ledger, eventually

LATER = 3600.0
KILLS = {"sqlite": range(1, 40, 2), "postgresql": range(2, 40, 2)}
"""After which calls of the store a process is killed; each database has its part. The last is one
that is not reached."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def store(url: str) -> Iterator[BaseStore]:
    with opened_store(url) as opened:
        yield opened


@pytest.fixture
def quick() -> Iterator[BaseStore]:
    """A store for what has nothing to do with databases."""
    with opened_store("sqlite:///:memory:") as opened:
        yield opened


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else claims anything, so there is nobody to agree with."""
    monkeypatch.setattr("perdure.langmem.records.AGREE", 0.0)


class Noting(Runnable[Any, Any]):
    """A reflector that notes what it was given, after `then`."""

    namespace = ("memories", "{user}")

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self.seen: list[Any] = []
        self._then = then

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        self.seen.append(input)
        if self._then is not None:
            self._then()
        return input


@contextmanager
def noting(
    store: BaseStore, then: Callable[[], None] | None = None, name: str = NAME
) -> Iterator[tuple[Persisted, list[Any]]]:
    """An executor, and what its reflector was given."""
    reflector = Noting(then)
    with persist(StockExecutor(reflector, store=store), store, name=name) as executor:
        yield executor, reflector.seen


def left(
    store: BaseStore, what: Any, *, thread: str | None = None, due: float = -1.0, **fields: Any
) -> Kept:
    """A record as a process leaves it behind that was told to stop."""
    request = Request(what, ("memories", "u"), thread, {"user": "u"})
    now = fields.pop("submitted_at", time.time())
    one = Kept(f"id-{what!r}"[:40], request, now + due, now, **fields)
    Records(store, NAME).add(one)
    return one


def records(store: BaseStore) -> list[Kept]:
    return Records(store, NAME).all()


def items(store: BaseStore) -> list[Any]:
    """Everything that is in a store because of reflections."""
    return store.search(("perdure",), limit=1000)


# -- submit


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_a_reflection_is_in_the_store_before_submit_returns_and_gone_when_it_is_done(
    kind: str, request: pytest.FixtureRequest
) -> None:
    url = kind if kind == "memory" else request.getfixturevalue(f"{kind}_url")
    with opened_store(url) as store:
        with persist(StockExecutor(manager(), store=store), store) as executor:
            executor.submit(talk("fact-later"), who("u", "a"), after_seconds=LATER)
            [later] = executor.pending()
            assert (later.namespace, later.thread_id) == (("memories", "u"), "a")
            assert later.state is State.PENDING
            done = executor.submit(talk("fact-now"), who("u", "b")).result(30)
            assert [one["value"]["content"]["content"] for one in done] == ["fact-now"]
            assert [one.id for one in executor.pending()] == [later.id]
            assert remembered(store, "u") == ["fact-now"]
            executor.cancel(later.id)
        assert items(store) == []


def test_only_the_last_of_many_submits_of_a_conversation_is_run(quick: BaseStore) -> None:
    with noting(quick) as (executor, seen):
        futures = [
            executor.submit({"n": n}, who("u", "t"), after_seconds=LATER if n < 4 else 0)
            for n in range(5)
        ]
        assert futures[-1].result(30) == {"n": 4}
        assert [one.cancelled() for one in futures] == [True] * 4 + [False]
        assert executor.pending() == []
    assert seen == [{"n": 4}]
    assert items(quick) == []


def test_submit_in_a_node_of_a_graph_knows_its_user_and_conversation(quick: BaseStore) -> None:
    with noting(quick) as (executor, seen):

        def node(state: Any) -> Any:
            executor.submit({"n": 1}, after_seconds=LATER)
            return {"log": ["submitted"]}

        graph = chain(node).compile(store=quick)
        graph.invoke({"log": []}, {"configurable": {"user": "ana", "thread_id": "t"}})
        [one] = executor.pending()
        assert (one.namespace, one.thread_id) == (("memories", "ana"), "t")
    assert seen == []


def test_conversations_of_two_users_and_those_without_one_do_not_take_each_others_place(
    quick: BaseStore,
) -> None:
    with noting(quick) as (executor, seen):
        for user in ("u", "v"):
            executor.submit({"user": user}, who(user, "t"), after_seconds=LATER)
        for n in range(3):
            executor.submit({"n": n}, who("u"), after_seconds=LATER)
        assert len(executor.pending()) == 5
    assert seen == []


def test_what_is_begun_is_not_replaced_by_a_later_one(quick: BaseStore) -> None:
    with a_gate() as gate, noting(quick, gate.block) as (executor, seen):
        first = executor.submit({"n": 1}, who("u", "t"))
        eventually(lambda: gate.entered, "the first")
        second = executor.submit({"n": 2}, who("u", "t"))
        assert sorted(one.state for one in executor.pending()) == [State.PENDING, State.RUNNING]
        gate.open()
        assert (first.result(30), second.result(30)) == ({"n": 1}, {"n": 2})
    assert seen == [{"n": 1}, {"n": 2}]


def test_a_superseded_record_is_not_run_whatever_the_stock_queue_does(quick: BaseStore) -> None:
    with noting(quick) as (executor, seen):
        executor.submit({"n": 1}, who("u", "t"), after_seconds=LATER)
        [first] = executor.pending()
        executor.submit({"n": 2}, who("u", "t"), after_seconds=LATER)
        assert executor._executor._reflector.invoke(Ticket(first.id)) is None
    assert seen == []


@pytest.mark.usefixtures("alone")
def test_of_two_that_two_processes_accepted_at_once_the_earlier_is_not_run(
    store: BaseStore,
) -> None:
    now = time.time()
    earlier = left(store, "earlier", thread="t", submitted_at=now - 1)
    left(store, "later", thread="t", submitted_at=now, due=LATER)
    Records(store, NAME).put(earlier)  # as if the later one had not seen it
    with noting(store) as (executor, seen):
        assert len(resume_pending_reflections(executor, store)) == 2
        eventually(lambda: len(executor.pending()) == 1, "the end of the earlier")
    assert seen == []
    assert [one.request.payload for one in records(store)] == ["later"]


def test_what_is_due_at_the_same_moment_is_run_each_once(
    quick: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    with noting(quick) as (executor, seen):
        monkeypatch.setattr(time, "time", lambda: now)
        futures = [executor.submit({"n": n}, who("u", "t" + str(n))) for n in range(20)]
        monkeypatch.undo()
        for one in futures:
            one.result(30)
        assert sorted(one["n"] for one in seen) == list(range(20))


def test_what_is_due_now_does_not_wait_for_what_is_due_later(quick: BaseStore) -> None:
    with noting(quick) as (executor, seen):
        executor.submit({"n": 1}, who("u"), after_seconds=LATER)
        assert executor.submit({"n": 2}, who("u")).result(30) == {"n": 2}
        assert executor.submit({"n": 3}, who("u"), after_seconds=0.05).result(30) == {"n": 3}
    assert seen == [{"n": 2}, {"n": 3}]


def test_to_cancel_the_future_deletes_the_record(quick: BaseStore) -> None:
    with noting(quick) as (executor, seen):
        assert executor.submit({"n": 1}, who("u", "t"), after_seconds=LATER).cancel()
        assert executor.pending() == []
    assert seen == []
    assert items(quick) == []


def test_what_is_cancelled_while_it_is_worked_on_writes_nothing(quick: BaseStore) -> None:
    with a_gate() as gate:
        executor = persist(
            StockExecutor(manager(before=lambda _: gate.block()), store=quick), quick
        )
        with executor:
            executor.submit(talk("fact-1"), who("u", "t"))
            eventually(lambda: gate.entered, "the model")
            [one] = executor.pending()
            executor.cancel(one.id)
            gate.open()
    assert remembered(quick, "u") == []
    assert items(quick) == []


def test_records_are_invisible_to_search_and_have_no_vectors() -> None:
    embedded: list[str] = []

    def embed(texts: list[str]) -> list[list[float]]:
        embedded.extend(texts)
        return [[1.0, 0.0] for _ in texts]

    index: Any = {"dims": 2, "embed": embed}
    store = InMemoryStore(index=index)
    with persist(StockExecutor(manager(), store=store), store) as executor:
        executor.submit(talk("fact-later"), who("u", "t"), after_seconds=LATER)
        assert embedded == []
        assert executor.search(namespace=("memories", "u")) == []
        assert executor.search("anything", namespace="memories") == []
        executor.submit(talk("fact-now"), who("u", "now")).result(30)
        [found] = executor.search("fact-now", namespace=("memories", "u"))
        assert found["value"]["content"]["content"] == "fact-now"
    assert not [text for text in embedded if "later" in text]


@pytest.mark.usefixtures("alone")
def test_names_may_have_odd_characters(store: BaseStore) -> None:
    for name in ("a.b", "a/b%2E", "ä ö'\"", "*?[x]", "%_", "x" * 200):
        with noting(store, name=name) as (executor, _):
            executor.submit({"n": 1}, who("u", f"{name} of\nsomebody"), after_seconds=LATER)
        with noting(store, name=name[:-1] + "z") as (other, _):
            assert (other.pending(), other.resume()) == ([], []), name
        with noting(store, name=name) as (executor, _):
            [one] = executor.resume()
            assert one.thread_id == f"{name} of\nsomebody"


def test_a_name_that_begins_like_another_has_its_own_records(quick: BaseStore) -> None:
    with noting(quick, name="chat") as (executor, _), noting(quick, name="chatter") as (other, _):
        other.submit({"n": 1}, who("u"), after_seconds=LATER)
        assert executor.pending() == []


def test_a_payload_that_json_cannot_say_comes_back_as_it_was(store: BaseStore) -> None:
    said: Any = {
        "text": "nul \x00 and \U0001f600",
        "bytes": b"\x00\xff",
        "nan": float("inf"),
        3: (1, 2),
    }
    with noting(store) as (executor, _):
        executor.submit(said, who("u", "t"), after_seconds=LATER)
    [one] = records(store)
    assert one.request.payload == said


def test_a_payload_that_cannot_be_kept_is_refused_and_nothing_is_written(quick: BaseStore) -> None:
    with noting(quick) as (executor, seen):
        with pytest.raises(Unserializable, match="payload"):
            executor.submit({"lambda": lambda: 1}, who("u", "t"))
        assert executor.pending() == []
    assert (seen, items(quick)) == ([], [])


# -- resume


@pytest.mark.usefixtures("alone")
def test_overdue_ones_run_at_once_and_the_others_when_they_are_due(store: BaseStore) -> None:
    first = left(store, {"n": 1}, due=-100)
    second = left(store, {"n": 2}, due=0.3)
    last = left(store, {"n": 3}, due=LATER)
    with noting(store) as (executor, seen):
        resumed = resume_pending_reflections(executor, store)
        assert [one.id for one in resumed] == [first.id, second.id, last.id]
        eventually(lambda: len(executor.pending()) == 1, "the first two")
        assert seen == [{"n": 1}, {"n": 2}]
        assert [one.id for one in executor.pending()] == [last.id]
        assert resume_pending_reflections(executor, store) == []


def test_two_threads_that_resume_at_once_run_nothing_twice(store: BaseStore) -> None:
    for n in range(5):
        left(store, {"n": n})
    with noting(store) as (executor, seen):
        resumed: list[Any] = []
        threads = [
            threading.Thread(target=lambda: resumed.extend(executor.resume())) for _ in range(4)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        eventually(lambda: not executor.pending(), "all of them")
    assert len({one.id for one in resumed}) == len(resumed) == 5
    assert sorted(one["n"] for one in seen) == list(range(5))


@pytest.mark.usefixtures("alone")
def test_what_another_submits_while_an_older_one_is_claimed_is_not_lost(quick: BaseStore) -> None:
    older = left(quick, {"n": 1}, thread="t", due=LATER)
    with noting(quick) as (other, _), noting(quick) as (executor, seen):
        futures: list[Any] = []

        def look(ops: list[Op], real: Callable[[list[Op]], Any]) -> Any:
            is_claim = [op for op in ops if isinstance(op, PutOp) and op.key == older.id]
            if is_claim and not futures:
                futures.append(None)
                futures[0] = other.submit({"n": 2}, who("u", "t"))
            return real(ops)

        watched(quick, look)
        executor.resume()
        assert futures[0].result(30) == {"n": 2}
    assert seen == []


@pytest.mark.usefixtures("alone")
def test_what_a_living_owner_has_is_left_alone(store: BaseStore) -> None:
    with a_gate() as gate, noting(store, gate.block) as (executor, seen):
        executor.submit({"n": 1}, who("u", "now"))
        executor.submit({"n": 2}, who("u", "later"), after_seconds=LATER)
        eventually(lambda: gate.entered, "the first")
        with noting(store) as (other, taken):
            assert other.resume() == []
            assert executor.resume() == []
        gate.open()
    assert (seen, taken) == ([{"n": 1}], [])


@pytest.mark.usefixtures("alone")
def test_the_owner_of_a_record_that_another_took_does_not_begin_it(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_gate() as gate, noting(store, gate.block) as (executor, seen):
        executor.submit({"n": 1}, who("u", "first"))
        executor.submit({"n": 2}, who("u", "second"))
        eventually(lambda: gate.entered, "the first")
        [second] = [one for one in records(store) if not one.begun]
        Records(store, NAME).put(replace(second, until=time.time() - 1))  # it waits for too long
        with noting(store) as (other, taken):
            assert [one.id for one in other.resume()] == [second.id]
            eventually(lambda: taken, "it")
        gate.open()
    assert (seen, taken) == ([{"n": 1}], [{"n": 2}])


@pytest.mark.usefixtures("alone")
def test_who_lost_a_record_while_the_model_was_asked_writes_nothing(
    store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    with a_gate() as gate:
        slow = manager(before=lambda _: gate.block())
        with persist(StockExecutor(slow, store=store), store, name=NAME) as executor:
            lost = executor.submit(talk("fact-1"), who("u", "t"))
            eventually(lambda: gate.entered, "the model")
            [one] = records(store)
            Records(store, NAME).put(replace(one, owner="another:1:host", until=time.time() + 99))
            gate.open()
            assert lost.result(30) is None
    assert "not ours any more" in caplog.text
    assert remembered(store, "u") == []
    assert [one.owner for one in records(store)] == ["another:1:host"]


@pytest.mark.usefixtures("alone")
def test_the_lease_decides_about_an_owner_on_another_host(store: BaseStore) -> None:
    now = time.time()
    left(store, {"n": 1}, owner="elsewhere:1:abc", until=now + 60)
    left(store, {"n": 2}, owner="elsewhere:1:abc", until=now - 60)
    with noting(store) as (executor, seen):
        assert [one.id for one in executor.resume()] == ["id-{'n': 2}"]
        eventually(lambda: len(seen) == 1, "it")


@pytest.mark.usefixtures("alone")
def test_a_record_with_a_draft_is_finished_without_asking_the_model(store: BaseStore) -> None:
    place = ("memories", "u")
    writes = [
        PutOp(place, str(n), {"content": {"content": f"fact-{n}"}})._asdict() | {"before": None}
        for n in range(3)
    ]
    store.put(place, "0", writes[0]["value"])
    left(store, {"n": 1}, begun=True, attempts=1, writes=writes)
    with noting(store) as (executor, seen):
        assert len(executor.resume()) == 1
        eventually(lambda: not executor.pending(), "the rest of it")
    assert (seen, remembered(store, "u")) == ([], ["fact-0", "fact-1", "fact-2"])


@pytest.mark.usefixtures("alone")
def test_more_records_than_fit_on_a_page_are_all_resumed(store: BaseStore) -> None:
    example = left(store, {"n": 0}, due=LATER)
    Records(store, NAME).put(*(replace(example, id=f"id-{n}") for n in range(259)))
    with noting(store) as (executor, _):
        resumed = executor.resume()
        assert len({one.id for one in resumed}) == 260
        assert executor.resume() == []


def test_no_record_is_missed_in_a_store_that_gives_few_at_once_the_last_changed_first() -> None:
    class Meagre(InMemoryStore):
        def search(self, *args: Any, **options: Any) -> Any:
            offset, limit = options["offset"], min(100, options["limit"])
            found = super().search(*args, limit=1000)
            return sorted(found, key=lambda one: one.updated_at, reverse=True)[offset:][:limit]

    store = Meagre()
    for n in range(260):
        left(store, {"n": n}, due=LATER)
    assert len(records(store)) == 260


@pytest.mark.usefixtures("alone")
def test_an_error_is_kept_retried_by_the_next_resume_and_held_after_the_last(
    store: BaseStore,
) -> None:
    broken = True

    def then() -> None:
        if broken:
            raise ValueError("no model today")

    with noting(store, then) as (executor, seen):
        with pytest.raises(ValueError, match="no model today"):
            executor.submit({"n": 1}, who("u", "t")).result(30)
        for attempt in range(1, 6):
            eventually(lambda n=attempt: len(seen) == n, "an attempt")  # type: ignore[misc]
            eventually(lambda: not executor._here, "its end")
            [one] = executor.pending()
            assert one.attempts == attempt
            assert str(one.error) == "ValueError: no model today"
            assert one.state is (State.HELD if attempt == 5 else State.PENDING)
            assert len(executor.resume()) == (0 if attempt == 5 else 1)
        [one] = executor.pending()
        assert one.reason == "ValueError: no model today"
        broken = False
        executor.retry(one.id)
        assert [found.id for found in executor.resume()] == [one.id]
        eventually(lambda: not executor.pending(), "the end of it")
        with pytest.raises(NotFound):
            executor.retry(one.id)


@pytest.mark.usefixtures("alone")
def test_when_memories_cannot_be_written_the_draft_is_kept_and_the_model_not_asked_again(
    store: BaseStore, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    full = True

    def look(ops: list[Op], real: Callable[[list[Op]], Any]) -> Any:
        if full and any(isinstance(op, PutOp) and op.namespace[0] == "memories" for op in ops):
            raise OSError("disk full")
        return real(ops)

    watched(store, look)
    with wrapped(store, ledger) as executor:
        with pytest.raises(OSError, match="disk full"):
            executor.submit(talk("fact-1"), who("u", "t")).result(30)
        full = False
        assert len(executor.resume()) == 1
        eventually(lambda: not executor.pending(), "the second attempt")
    assert remembered(store, "u") == ["fact-1"]
    assert ledger.lines() == ["asked fact-1"]


@pytest.mark.usefixtures("alone")
def test_a_record_that_cannot_be_read_stays_and_does_not_keep_the_others_back(
    store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    one = left(store, {"n": 1}, due=LATER)
    [item] = items(store)
    store.put(item.namespace, "newer", {**item.value, "id": "newer", "of_a_later_version": 1})
    store.put(item.namespace, "broken", {**item.value, "id": "broken", "request": "bm90aGluZw=="})
    with noting(store) as (executor, _):
        assert [found.id for found in executor.resume()] == [one.id]
    assert caplog.text.count("cannot be read") == 2
    assert len(items(store)) == 3


# -- shutdown


@pytest.mark.usefixtures("alone")
def test_shutdown_runs_what_is_due_and_leaves_the_rest_for_the_next_start(
    quick: BaseStore,
) -> None:
    with a_gate() as gate, noting(quick, gate.block) as (executor, seen):
        later = executor.submit({"n": 9}, who("u", "later"), after_seconds=LATER)
        superseded = executor.submit({"n": 0}, who("u", "t0"))
        due = [executor.submit({"n": n}, who("u", f"t{n}")) for n in range(3)]
        eventually(lambda: gate.entered, "the first")
        gate.open()
        executor.shutdown()
        executor.shutdown()
        assert [one.result(0) for one in due[1:]] == [{"n": 1}, {"n": 2}]
        assert superseded.done()
        with pytest.raises(ReflectionLeft):
            later.result(0)
        with pytest.raises(Closed):
            executor.submit({}, who("u"))
        with pytest.raises(Closed):
            executor.resume()
    assert {"n": 9} not in seen
    assert [one.request.payload for one in records(quick)] == [{"n": 9}]
    with noting(quick) as (executor, seen):
        assert len(executor.resume()) == 1


def test_shutdown_without_waiting_returns_while_one_is_worked_on(quick: BaseStore) -> None:
    with a_gate() as gate, noting(quick, gate.block) as (executor, seen):
        working = executor.submit({"n": 1}, who("u", "t1"))
        eventually(lambda: gate.entered, "the first")
        waiting = executor.submit({"n": 2}, who("u", "t2"))
        executor.shutdown(wait=False)
        with pytest.raises(ReflectionLeft):
            waiting.result(0)
        assert not working.done()
        gate.open()
        assert working.result(30) == {"n": 1}
        executor.shutdown()
    assert seen == [{"n": 1}]
    assert [one.owner for one in records(quick)] == [""]


def test_shutdown_that_cancels_deletes_all_that_is_not_begun(quick: BaseStore) -> None:
    with a_gate() as gate, noting(quick, gate.block) as (executor, seen):
        working = executor.submit({"n": 1}, who("u", "t1"))
        eventually(lambda: gate.entered, "the first")
        futures = [
            executor.submit({"n": n}, who("u", f"t{n}"), after_seconds=0 if n < 4 else LATER)
            for n in range(2, 6)
        ]
        stopping = threading.Thread(target=executor.shutdown, kwargs={"cancel_futures": True})
        stopping.start()
        eventually(lambda: all(one.cancelled() for one in futures), "cancelling")
        gate.open()
        stopping.join(30)
        assert working.result(0) == {"n": 1}
    assert (seen, items(quick)) == ([{"n": 1}], [])


def test_shutdown_in_a_callback_of_a_future_does_not_wait_for_itself(quick: BaseStore) -> None:
    over = threading.Event()

    def stop(_: Any) -> None:
        executor.shutdown()
        over.set()

    with a_gate() as gate, noting(quick, gate.block) as (executor, _):
        future = executor.submit({"n": 1}, who("u", "t"))
        future.add_done_callback(stop)
        gate.open()
        assert over.wait(30)


def test_when_langmems_own_executor_was_shut_down_nothing_is_accepted_any_more(
    quick: BaseStore,
) -> None:
    reflector = Noting()
    inner = StockExecutor(reflector, store=quick)
    with persist(inner, quick, name=NAME) as executor:
        executor.submit({"n": 1}, who("u", "t1"), after_seconds=LATER)
        inner.shutdown()
        with pytest.raises(Closed):
            executor.submit({"n": 2}, who("u", "t2"))
    assert reflector.seen == []
    assert [(one.request.payload, one.owner) for one in records(quick)] == [({"n": 1}, "")]


def test_a_process_that_forgot_shutdown_ends_and_leaves_what_is_not_due(
    nursery: Nursery, sqlite_url: str, tmp_path: Path
) -> None:
    assert nursery.order("exit", url=sqlite_url, ledger=str(tmp_path / "ledger")) == [0]
    with opened_store(sqlite_url) as store:
        assert remembered(store, "u") == ["fact-now"]
        with noting(store) as (executor, _):
            [one] = executor.resume()
            assert one.thread_id == "later"


# -- crashes


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_a_process_that_is_killed_anywhere_loses_and_doubles_nothing(
    nursery: Nursery, url: str, tmp_path: Path
) -> None:
    status: list[int | None] = []
    for last in (-1, *KILLS[url.partition(":")[0]]):
        told = f"killed after call {last}"
        ledger = Ledger(tmp_path / f"ledger{last}")
        status = nursery.order("live", url=url, ledger=ledger._path, last=last)
        with opened_store(url) as store:
            with wrapped(store, ledger) as executor:
                resume_pending_reflections(executor, store)
                eventually(lambda e=executor: not [one for one in e.pending() if is_due(one)], told)  # type: ignore[misc]
                waiting = executor.pending()
                assert [one.attempts for one in waiting] == [0] * len(waiting), told
                for one in waiting:
                    executor.cancel(one.id)
            accepted = [one.removeprefix("accepted ") for one in ledger.lines() if one[1] == "c"]
            assert status in ([-9], [0]), told
            assert status == [-9] or len(accepted) == len(STORY), told
            must = {f for facts in accepted for f in facts.split()} - {"fact-old"}
            found = remembered(store, "u")
            assert len(set(found)) == len(found), (told, found)
            assert must <= set(found) <= {"fact-1", "fact-2", "fact-3"}, (told, found)
            assert items(store) == [], told
            if last < 0:
                assert sorted(found) == ["fact-1", "fact-2", "fact-3"]
                assert ledger.count()["asked fact-1 fact-2"] == 1, "a redo asks no model"
            for item in store.search(("memories",), limit=100):
                store.delete(item.namespace, item.key)
    assert status == [0], "there are more calls than those after which it was killed"


def is_due(one: Any) -> bool:
    return bool(one.due_at.timestamp() < time.time() + LATER / 2)


@pytest.mark.slow
def test_two_processes_that_resume_at_the_same_moment_run_nothing_twice(
    nursery: Nursery, url: str, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    rounds = [f"round-{n}" for n in range(20)]
    facts = set()
    with opened_store(url) as store:
        for name in rounds:
            for n in range(3):
                fact = f"fact-{name}-{n}"
                facts.add(fact)
                request = Request(talk(fact), ("memories", fact), str(n), {"user": fact})
                now = time.time()
                Records(store, name).add(Kept(fact, request, now - 1, now))
        assert nursery.order(
            "resume", count=2, url=url, ledger=str(tmp_path / "ledger"), names=rounds
        ) == [0, 0]
        for fact in facts:
            assert remembered(store, fact) == [fact]
        assert items(store) == []
    assert ledger.count() == (
        {f"ready {name}": 2 for name in rounds}
        | {f"resumed {fact}": 1 for fact in facts}
        | {f"asked {fact}": 1 for fact in facts}
    )


# -- into a journal


@contextmanager
def journalled(url: str, store: BaseStore, reflector: Any) -> Iterator[ReflectionExecutor]:
    with ReflectionExecutor(reflector, store=store, journal=url, name=NAME) as executor:
        yield executor


@pytest.mark.usefixtures("alone")
def test_a_durable_executor_takes_the_records_over_into_its_journal(
    url: str, store: BaseStore
) -> None:
    left(store, {"n": 1}, thread="t1")
    left(
        store,
        {"n": 2},
        thread="t2",
        attempts=5,
        error={"kind": "E", "message": "", "traceback": ""},
    )
    left(store, {"n": 3}, thread="t3", due=LATER)
    left(store, {"n": 4}, owner="elsewhere:1:abc", until=time.time() + 60)
    reflector = Noting()
    with journalled(url, store, reflector) as executor:
        resumed = resume_pending_reflections(executor, store)
        assert "t3" in {one.thread_id for one in resumed}
        eventually(lambda: len(executor.pending()) == 1, "what is due")
        assert [one.thread_id for one in resume_pending_reflections(executor, store)] == ["t3"]
    assert sorted(one["n"] for one in reflector.seen) == [1, 2]
    assert [one.request.payload for one in records(store)] == [{"n": 4}]


@pytest.mark.usefixtures("alone")
def test_to_take_the_same_record_over_twice_gives_one_reflection(
    url: str, store: BaseStore
) -> None:
    reflector = Noting()
    with journalled(url, store, reflector) as executor:
        for _ in range(3):
            left(store, {"n": 1}, thread="t", due=LATER)
            assert len(resume_pending_reflections(executor, store)) == 1


@pytest.mark.usefixtures("alone")
def test_a_draft_that_is_taken_over_is_written_without_asking_the_model(
    url: str, store: BaseStore
) -> None:
    op = PutOp(("memories", "u"), "k", {"content": {"content": "x"}})
    writes = [op._asdict() | {"before": None}]
    left(store, {"n": 1}, begun=True, attempts=1, writes=writes)
    reflector = Noting()
    with journalled(url, store, reflector) as executor:
        resume_pending_reflections(executor, store)
        eventually(lambda: not executor.pending(), "the end of it")
    assert (reflector.seen, remembered(store, "u")) == ([], ["x"])


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_a_process_that_dies_between_accepting_and_deleting_a_record_leaves_one_reflection(
    nursery: Nursery, url: str, store: BaseStore, tmp_path: Path
) -> None:
    one = left(store, talk("fact-1"), thread="t", due=LATER)
    assert nursery.order("take_over", url=url, ledger=str(tmp_path / "ledger")) == [-9]
    assert [found.id for found in records(store)] == [one.id]
    with journalled(url, store, manager()) as executor:
        [accepted] = executor.pending()
        assert [found.id for found in resume_pending_reflections(executor, store)] == [accepted.id]
    assert items(store) == []


@pytest.mark.usefixtures("alone")
def test_a_later_one_in_the_journal_is_not_replaced_by_an_older_record(
    url: str, store: BaseStore
) -> None:
    reflector = Noting()
    with journalled(url, store, reflector) as executor:
        later = executor.submit({"n": 2}, who("u", "t"), after_seconds=LATER)
        left(store, {"n": 1}, thread="t", submitted_at=time.time() - 100)
        resumed = resume_pending_reflections(executor, store)
        assert later.id in {one.id for one in resumed}
        assert not later.done()
    assert items(store) == []


# -- stores with coroutines


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_store_with_coroutines_can_be_used_from_threads(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        store: Any
        if kind == "sqlite":
            opened: Any = AsyncSqliteStore.from_conn_string(str(tmp_path / "store.db"))
        else:
            url = request.getfixturevalue("postgres_url")
            opened = AsyncPostgresStore.from_conn_string(url)
        store = await stack.enter_async_context(opened)
        await store.setup()
        executor = persist(StockExecutor(manager(), store=store), store)
        with pytest.raises(BadArgument, match=r"asyncio\.to_thread"):
            executor.submit(talk("fact-1"), who("u", "t"))
        future = await asyncio.to_thread(executor.submit, talk("fact-1"), who("u", "t"))
        await asyncio.to_thread(future.result, 30)
        assert await asyncio.to_thread(resume_pending_reflections, executor, store) == []
        assert await asyncio.to_thread(remembered, store, "u") == ["fact-1"]
        await asyncio.to_thread(executor.shutdown)


def test_a_store_whose_loop_is_over_is_refused(tmp_path: Path) -> None:
    async def opened() -> Any:
        async with AsyncSqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
            return store

    store = asyncio.run(opened())
    with noting(store) as (executor, _), pytest.raises(RuntimeError, match="is over"):
        executor.submit({}, who("u"))


# -- what cannot be meant


def test_what_cannot_be_wrapped_or_resumed_is_refused_with_what_to_do() -> None:
    store = InMemoryStore()
    plain = StockExecutor(Noting(), store=store)
    other: Any = object()
    with pytest.raises(BadArgument, match=r"wrap it with persist\(executor, store\)"):
        resume_pending_reflections(plain, store)
    with pytest.raises(BadArgument, match=r"wrap it with persist\(executor, store\)"):
        resume_pending_reflections(other, store)
    with pytest.raises(BadArgument, match=r"langmem\.ReflectionExecutor"):
        persist(other, store)
    with pytest.raises(BadArgument, match="BaseStore"):
        persist(plain, other)
    with persist(plain, store) as executor:
        with pytest.raises(BadArgument, match="wrapped already"):
            persist(plain, store)
        with pytest.raises(BadArgument, match="another store"):
            resume_pending_reflections(executor, InMemoryStore())
        with pytest.raises(BadArgument, match="after_seconds"):
            executor.submit({}, who("u"), after_seconds=-1)
        with pytest.raises(BadArgument, match="'user'"):
            executor.submit({}, {"configurable": {"name": "u"}})
    over = StockExecutor(Noting(), store=store)
    over.shutdown()
    with pytest.raises(BadArgument, match="shut down"):
        persist(over, store)


def test_an_executor_that_has_something_pending_already_is_refused() -> None:
    store = InMemoryStore()
    executor = StockExecutor(Noting(), store=store)
    future = executor.submit({}, who("u", "t"), after_seconds=30)
    with pytest.raises(BadArgument, match="before the first submit"):
        persist(executor, store)
    future.cancel()
    with pytest.raises(CancelledError):
        future.result(0)
    executor.shutdown(cancel_futures=True, wait=False)


def test_the_memories_are_in_the_store_of_the_executor_and_the_records_in_the_other() -> None:
    memories, pending = InMemoryStore(), InMemoryStore()
    for made in (
        StockExecutor(manager(), store=memories),
        StockExecutor(manager(store=memories), store=None),
    ):
        with persist(made, pending) as executor:
            executor.submit(talk("fact-1"), who("u", "a"), after_seconds=LATER)
            executor.submit(talk("fact-2"), who("u", "b")).result(30)
            [one] = executor.pending()
            executor.cancel(one.id)
        assert (remembered(memories, "u"), remembered(pending, "u")) == (["fact-2"], [])


def test_langmem_is_still_built_the_way_persist_needs() -> None:
    told = "LangMem changed: look at perdure.langmem.kept.Persisted, and what it sets in there."
    executor = StockExecutor(Noting(), store=InMemoryStore())
    try:
        for name in ("_reflector", "_store", "_task_queue", "_pending_tasks", "_worker"):
            assert hasattr(executor, name), f"{told} There is no {name}."
        assert executor._worker_running is True, told
        assert executor._worker.is_alive(), told
    finally:
        executor.shutdown()
    worker = inspect.getsource(stock._process_queue)
    for line in (
        "while self._worker_running:",
        "self._task_queue.get(timeout=1)",
        "if task.future.cancelled():",
        "self._reflector.invoke(task.payload)",
        "while not self._task_queue.empty():",
    ):
        assert line in worker, f"{told} Its thread no longer does {line!r}."
    submit = inspect.getsource(stock.LocalReflectionExecutor.submit)
    assert "self._task_queue.put((time.time() + after_seconds, task))" in submit, told
    assert issubclass(Due, type(executor._task_queue)), told
    assert issubclass(Instead, Runnable), told


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan"), "soon", None])
def test_a_delay_that_is_none_is_refused_and_nothing_is_kept(seconds: Any) -> None:
    store = InMemoryStore()
    with noting(store) as (executor, seen):
        with pytest.raises(BadArgument, match="after_seconds"):
            executor.submit({"n": 1}, who("u"), after_seconds=seconds)
        assert (executor.pending(), seen) == ([], [])
