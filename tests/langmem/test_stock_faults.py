"""What LangMem's own executor does wrong, each beside the same story with ours.

The tests of LangMem's show the fault in the version that is installed. When one of them fails,
LangMem has corrected it: then what we say of it in docs/memory.md is no longer true.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import json
import logging
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Event
from types import SimpleNamespace
from typing import Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.config import get_config
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore, Op, PutOp, Result
from langgraph.store.memory import InMemoryStore
from langmem import create_memory_store_manager
from langmem.reflection import PendingTask

from perdure.errors import Closed, ReflectionFailed, ReflectionLeft
from perdure.langmem import ReflectionExecutor
from perdure.runtime import Runtime
from perdure.testing import Clock
from perdure.types import Retry, State
from tests.support.agents import Gate, gate
from tests.support.memory import NAMESPACE, Scripted, manager, opened_store, remembered, talk, who
from tests.support.runtime_child import Child, eventually
from tests.support.stock_child import FACTS, HOUR, Model, Nursery, made, stop_while_busy

SOON = Retry(attempts=3, first=timedelta(milliseconds=1))
ONCE = Retry(attempts=1)


def corrected(what: str) -> str:
    return f"LangMem has corrected this: {what}. Change docs/memory.md, and take this test away."


def raised_by(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


# -- the executors


@contextmanager
def langmems(reflector: Any, store: BaseStore | None) -> Iterator[Any]:
    """LangMem's. In the end its thread is stopped and its queue thrown away, as its own `shutdown`
    is one of the faults."""
    executor = made("langmem", reflector, store, "")
    try:
        yield executor
    finally:
        executor._reflector = RunnableLambda(lambda _: None)
        executor._worker_running = False
        with executor._task_queue.mutex:
            executor._task_queue.queue.clear()
        executor._task_queue.put((0.0, PendingTask(None, {}, 0, 0.0, Future(), Event(), None)))
        executor._task_queue.put = lambda item: None  # what its thread has in hand
        executor._worker.join(30)
        assert not executor._worker.is_alive()


@contextmanager
def ours(
    journal: str | Runtime, reflector: Any, store: BaseStore | None, **options: Any
) -> Iterator[ReflectionExecutor]:
    executor = made("ours", reflector, store, journal, **options)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False)


@contextmanager
def later(url: str, reflector: Any, store: BaseStore) -> Iterator[ReflectionExecutor]:
    """Ours after a restart, two hours from now."""
    clock = Clock(datetime.now(UTC) + timedelta(hours=2))
    with (
        contextlib.closing(Runtime(url, clock=clock)) as rt,
        ours(rt, reflector, store) as executor,
    ):
        yield executor


@pytest.fixture
def store() -> InMemoryStore:
    return InMemoryStore()


@pytest.fixture
def kept(sqlite_url: str) -> Iterator[BaseStore]:
    """LangGraph's store in the journal's database."""
    with opened_store(sqlite_url) as store:
        yield store


@pytest.fixture
def busy() -> Iterator[Gate]:
    """Where the model stands still when it hears of `fact-busy`."""
    with gate() as made:
        yield made


Playing = Callable[[str, str, str], contextlib.AbstractContextManager[tuple[Child, Any]]]


@pytest.fixture(scope="module")
def playing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playing]:
    """A process that plays a story, and what it told; it is killed in the end."""
    nursery = Nursery()
    folder = tmp_path_factory.mktemp("told")
    stories = itertools.count()

    @contextmanager
    def play(story: str, whose: str, url: str) -> Iterator[tuple[Child, Any]]:
        told = folder / str(next(stories))
        order = nursery.order(role=story, whose=whose, url=url, told=str(told))
        child = Child(nursery, order["pid"])
        try:
            eventually(lambda: told.exists() or child.is_over(), f"{story} of {whose}", 60)
            yield child, json.loads(told.read_text())
        finally:
            child.kill()

    yield play
    nursery.close()


def is_hit(number: signal.Signals, playing: contextlib.AbstractContextManager[Any]) -> None:
    """A process with five pending is ended by a signal."""
    with playing as (child, told):
        assert told == "ready"
        child.send(number)
        assert child.wait() == -number


# -- a process that is killed

SIGNALS = pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)


@pytest.mark.slow
@SIGNALS
def test_a_signal_loses_what_is_pending_with_langmems_executor(
    number: signal.Signals, sqlite_url: str, playing: Playing
) -> None:
    is_hit(number, playing("pends", "langmem", sqlite_url))
    with opened_store(sqlite_url) as store:
        after = made("langmem", manager(), store, sqlite_url)
        after.shutdown()  # does all that it has, whenever it is due
        assert remembered(store, "ana") == [], corrected(f"{number.name} loses reflections")


@pytest.mark.slow
@SIGNALS
def test_a_signal_loses_nothing_with_ours(
    number: signal.Signals, url: str, playing: Playing
) -> None:
    is_hit(number, playing("pends", "ours", url))
    with opened_store(url) as store, later(url, manager(), store):
        eventually(lambda: remembered(store, "ana") == FACTS, "all five being remembered")


# -- debouncing


def submit_thrice(executor: Any, busy: Gate) -> Future[Any]:
    """Three of one conversation, the second before the first was looked at, the third after. The
    future of the second."""
    executor.submit(talk("fact-busy"), who("ana", "busy"))
    eventually(lambda: busy.entered, "the executor being busy")
    executor.submit(talk("fact-1"), who("ana", "t"))
    second: Future[Any] = executor.submit(talk("fact-2"), who("ana", "t"), after_seconds=HOUR)
    behind = executor.submit(talk("fact-behind"), who("ana", "behind"))
    busy.open()
    behind.result(30)
    executor.submit(talk("fact-3"), who("ana", "t"), after_seconds=HOUR)
    return second


def test_a_third_submit_does_not_replace_the_second_with_langmems_executor(
    store: BaseStore, busy: Gate
) -> None:
    with langmems(manager(before=Model(busy=busy)), store) as executor:
        second = submit_thrice(executor, busy)
        assert not second.cancelled(), corrected("the third of a conversation replaces no second")


def test_a_third_submit_replaces_the_second_with_ours(
    sqlite_url: str, kept: BaseStore, busy: Gate
) -> None:
    with ours(sqlite_url, manager(before=Model(busy=busy)), kept) as executor:
        second = submit_thrice(executor, busy)
        eventually(second.cancelled, "the second being cancelled")
        [pending] = executor.pending()
        assert pending.thread_id == "t"
        assert pending.id != getattr(second, "id", None)
        assert remembered(kept, "ana") == ["fact-behind", "fact-busy"]


USERS = pytest.mark.parametrize(
    "thread", [None, "main"], ids=["without-thread-id", "same-thread-id"]
)


def submit_for_two(executor: Any, thread: str | None) -> Future[Any]:
    """The future of the first."""
    first: Future[Any] = executor.submit(talk("fact-1"), who("ana", thread), after_seconds=HOUR)
    executor.submit(talk("fact-2"), who("bo", thread), after_seconds=HOUR)
    return first


@USERS
def test_a_user_cancels_what_another_one_submitted_with_langmems_executor(
    store: BaseStore, thread: str | None
) -> None:
    with langmems(manager(), store) as executor:
        first = submit_for_two(executor, thread)
        assert first.cancelled(), corrected("users cancel each other")


@USERS
def test_no_user_cancels_what_another_one_submitted_with_ours(
    sqlite_url: str, kept: BaseStore, thread: str | None
) -> None:
    with ours(sqlite_url, manager(), kept) as executor:
        submit_for_two(executor, thread)
        namespaces = [one.namespace for one in executor.pending()]
        assert namespaces == [("memories", "ana"), ("memories", "bo")]


def test_what_is_worked_on_is_called_cancelled_when_the_next_comes_with_langmems_executor(
    store: BaseStore, busy: Gate
) -> None:
    with langmems(manager(before=Model(busy=busy)), store) as executor:
        first = executor.submit(talk("fact-busy"), who("ana", "t"))
        eventually(lambda: busy.entered, "the first being worked on")
        second = executor.submit(talk("fact-2"), who("ana", "t"))
        busy.open()
        second.result(30)
        assert "fact-busy" in remembered(store, "ana")
        assert first.cancelled(), corrected("what is worked on is called cancelled")


def test_what_is_worked_on_is_told_of_when_the_next_comes_with_ours(
    sqlite_url: str, kept: BaseStore, busy: Gate
) -> None:
    with ours(sqlite_url, manager(before=Model(busy=busy)), kept) as executor:
        first = executor.submit(talk("fact-busy"), who("ana", "t"))
        eventually(lambda: busy.entered, "the first being worked on")
        second = executor.submit(talk("fact-2"), who("ana", "t"))
        busy.open()
        second.result(30)
        assert [one["value"]["content"] for one in first.result(30)] == [{"content": "fact-busy"}]
        assert remembered(kept, "ana") == ["fact-2", "fact-busy"]


def test_a_future_is_cancelled_while_its_reflection_goes_on_with_langmems_executor(
    store: BaseStore, busy: Gate
) -> None:
    with langmems(manager(before=Model(busy=busy)), store) as executor:
        future = executor.submit(talk("fact-busy"), who("ana", "t"))
        eventually(lambda: busy.entered, "it being worked on")
        said = future.cancel()
        busy.open()
        executor.submit(talk("fact-behind"), who("ana", "behind")).result(30)
        assert (said, remembered(store, "ana")) == (True, ["fact-behind", "fact-busy"]), corrected(
            "cancel() says that it cancelled what goes on"
        )


def test_a_future_is_not_cancelled_while_its_reflection_goes_on_with_ours(
    sqlite_url: str, kept: BaseStore, busy: Gate
) -> None:
    with ours(sqlite_url, manager(before=Model(busy=busy)), kept) as executor:
        future = executor.submit(talk("fact-busy"), who("ana", "t"))
        eventually(lambda: busy.entered, "it being worked on")
        assert not future.cancel()
        busy.open()
        assert future.result(30)


# -- shutdown


@pytest.fixture(scope="module")
def stopped(playing: Playing, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What became of LangMem's executor that was shut down while it was busy."""
    path = tmp_path_factory.mktemp("stopped") / "store.db"
    with playing("stops", "langmem", f"sqlite:///{path}") as (_, told):
        return told


class Stopped(TypedDict):
    asked: list[str]
    remembered: list[str]
    done: list[bool]


@pytest.fixture
def stopped_ours(sqlite_url: str, kept: BaseStore, busy: Gate) -> Stopped:
    """What became of ours, which must have come to its end."""
    model = Model(busy=busy)
    with ours(sqlite_url, manager(before=model), kept) as executor:
        stopping, futures = stop_while_busy(executor, busy)
        eventually(lambda: executor._closed, "it being told to stop")
        busy.open()
        stopping.join(30)
        assert not stopping.is_alive()
        return {
            "asked": model.asked,
            "remembered": remembered(kept, "ana"),
            "done": [future.done() for future in futures],
        }


@pytest.mark.slow
def test_shutdown_while_busy_hangs_with_langmems_executor(stopped: Any) -> None:
    assert (stopped["works"], stopped["hangs"]) == (False, True), corrected("shutdown() hangs")


def test_shutdown_while_busy_ends_with_ours(stopped_ours: Stopped) -> None:
    assert stopped_ours["done"] == [True, True, True]


@pytest.mark.slow
def test_shutdown_does_what_was_superseded_with_langmems_executor(stopped: Any) -> None:
    assert "fact-old" in stopped["asked"], corrected("shutdown() does what was superseded")
    assert "fact-old" in stopped["remembered"]


def test_shutdown_does_nothing_that_was_superseded_with_ours(stopped_ours: Stopped) -> None:
    assert "fact-old" not in stopped_ours["asked"]


@pytest.mark.slow
def test_shutdown_drops_what_is_due_with_langmems_executor(stopped: Any) -> None:
    lost = {"fact-new", "fact-last"} - set(stopped["remembered"])
    assert lost == {"fact-new", "fact-last"}, corrected("shutdown() drops what is due")


def test_shutdown_does_what_is_due_with_ours(stopped_ours: Stopped) -> None:
    assert stopped_ours["remembered"] == ["fact-busy", "fact-last", "fact-new"]


def test_shutdown_does_early_what_is_not_due_with_langmems_executor(store: BaseStore) -> None:
    with langmems(manager(), store) as executor:
        executor.submit(talk("fact-1"), who("ana", "t"), after_seconds=HOUR)
        executor.shutdown()
        assert remembered(store, "ana") == ["fact-1"], corrected("shutdown() does it all at once")


def test_shutdown_leaves_what_is_not_due_to_the_next_start_with_ours(
    sqlite_url: str, kept: BaseStore
) -> None:
    with ours(sqlite_url, manager(), kept) as executor:
        future = executor.submit(talk("fact-1"), who("ana", "t"), after_seconds=HOUR)
        executor.shutdown()
        assert remembered(kept, "ana") == []
        assert isinstance(future.exception(0), ReflectionLeft)
    with later(sqlite_url, manager(), kept):
        eventually(lambda: remembered(kept, "ana") == ["fact-1"], "it being remembered")


def cancel_all(executor: Any, busy: Gate) -> None:
    """Shut down with `cancel_futures` while one is worked on and another one is due."""
    executor.submit(talk("fact-busy"), who("ana", "busy"))
    eventually(lambda: busy.entered, "the first being worked on")
    future = executor.submit(talk("fact-cancelled"), who("ana", "t"))
    executor.shutdown(wait=False, cancel_futures=True)
    assert future.cancelled()
    busy.open()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_shutdown_does_what_it_cancelled_with_langmems_executor(
    store: BaseStore, busy: Gate
) -> None:
    model = Model(busy=busy)
    with langmems(manager(before=model), store) as executor:
        cancel_all(executor, busy)
        executor._worker.join(30)
        assert "fact-cancelled" in remembered(store, "ana"), corrected(
            "shutdown(cancel_futures=True) does what it cancelled"
        )


def test_shutdown_does_nothing_that_it_cancelled_with_ours(
    sqlite_url: str, kept: BaseStore, busy: Gate
) -> None:
    model = Model(busy=busy)
    with ours(sqlite_url, manager(before=model), kept) as executor:
        cancel_all(executor, busy)
    with later(sqlite_url, manager(before=model), kept):
        eventually(lambda: remembered(kept, "ana") == ["fact-busy"], "the first being done")
    assert "fact-cancelled" not in model.asked


def test_shutdown_in_the_midst_leaves_no_task_behind_with_ours(
    sqlite_url: str, kept: BaseStore, busy: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with ours(sqlite_url, manager(before=Model(busy=busy)), kept) as executor:
        executor.submit(talk("fact-busy"), who("ana", "t"))
        eventually(lambda: busy.entered, "it being worked on")
        executor.shutdown(wait=False)
        busy.open()
    gc.collect()  # a task that was not over would complain now
    assert [one.message for one in caplog.records if one.name == "asyncio"] == []


def stop_while_it_fails(executor: Any, busy: Gate) -> Exception | None:
    """Shut down while one is worked on that then raises. What `shutdown()` raised."""
    found: list[Exception | None] = []

    def stop() -> None:
        found.append(raised_by(executor.shutdown))

    executor.submit(talk("fact-busy"), who("ana", "t"))
    eventually(lambda: busy.entered, "it being worked on")
    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    told = vars(executor)
    eventually(
        lambda: told.get("_closed") or not told.get("_worker_running", True),
        "it being told to stop",
    )
    busy.open()
    stopping.join(30)
    [raised] = found
    return raised


def failing(busy: Gate) -> Callable[[list[str]], None]:
    def before(facts: list[str]) -> None:
        busy.block()
        raise ValueError("no model today")

    return before


def test_shutdown_raises_what_a_reflection_raised_with_langmems_executor(
    store: BaseStore, busy: Gate
) -> None:
    with langmems(manager(before=failing(busy)), store) as executor:
        raised = stop_while_it_fails(executor, busy)
        assert isinstance(raised, ValueError), corrected("shutdown() raises a reflection's error")


def test_shutdown_raises_nothing_that_a_reflection_raised_with_ours(
    sqlite_url: str, kept: BaseStore, busy: Gate
) -> None:
    with ours(sqlite_url, manager(before=failing(busy)), kept, retry=ONCE) as executor:
        assert stop_while_it_fails(executor, busy) is None


def test_submit_after_shutdown_is_accepted_and_forgotten_with_langmems_executor(
    store: BaseStore,
) -> None:
    with langmems(manager(), store) as executor:
        executor.shutdown()
        future = executor.submit(talk("fact-1"), who("ana", "t"))
        alive = executor._worker.is_alive()
        assert (alive, future.done()) == (False, False), corrected("submit() after shutdown()")


def test_submit_after_shutdown_is_refused_with_ours(sqlite_url: str, kept: BaseStore) -> None:
    with ours(sqlite_url, manager(), kept) as executor:
        executor.shutdown()
        with pytest.raises(Closed, match="was shut down"):
            executor.submit(talk("fact-1"), who("ana", "t"))


@pytest.mark.slow
def test_a_process_does_not_end_without_shutdown_with_langmems_executor(
    sqlite_url: str, playing: Playing
) -> None:
    with playing("ends", "langmem", sqlite_url) as (child, told):
        assert told == "over"
        ended = any(child.is_over() for _ in range(100))  # two seconds
        assert not ended, corrected("a process does not end without shutdown()")


@pytest.mark.slow
def test_a_process_ends_without_shutdown_with_ours(url: str, playing: Playing) -> None:
    with playing("ends", "ours", url) as (child, told):
        assert told == "over"
        assert child.wait() == 0
    with opened_store(url) as store, later(url, manager(), store):
        both = ["fact-done", "fact-later"]
        eventually(lambda: remembered(store, "ana") == both, "what it left being done")


# -- errors


class Refuses:
    """A model that is out of order the first time it is asked for a fact."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, facts: list[str]) -> None:
        if "fact-1" in facts:
            self.times += 1
            if self.times == 1:
                raise ValueError("no model today")


def test_an_error_is_seen_by_nobody_and_not_tried_again_with_langmems_executor(
    store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    model = Refuses()
    with langmems(manager(before=model), store) as executor, caplog.at_level(logging.DEBUG):
        executor.submit(talk("fact-1"), who("ana", "t"))
        executor.submit(talk("fact-2"), who("ana", "u")).result(30)
        assert remembered(store, "ana") == ["fact-2"], corrected("a reflection that raised is lost")
        assert model.times == 1
        assert "no model today" not in caplog.text, corrected("errors are only in the future")


def test_an_error_is_tried_again_with_ours(sqlite_url: str, kept: BaseStore) -> None:
    model = Refuses()
    with ours(sqlite_url, manager(before=model), kept, retry=SOON) as executor:
        executor.submit(talk("fact-1"), who("ana", "t"))
        eventually(lambda: remembered(kept, "ana") == ["fact-1"], "it being tried again")
        assert model.times == 2


def test_an_error_is_seen_by_the_next_process_and_can_be_retried_with_ours(
    sqlite_url: str, kept: BaseStore
) -> None:
    model = Refuses()
    with ours(sqlite_url, manager(before=model), kept, retry=ONCE) as executor:
        future = executor.submit(talk("fact-1"), who("ana", "t"))
        assert isinstance(future.exception(30), ReflectionFailed)
    with ours(sqlite_url, manager(before=model), kept) as executor:
        [held] = executor.pending()
        assert held.state is State.HELD
        assert held.error is not None
        assert held.error.message == "no model today"
        executor.retry(held.id)
        eventually(lambda: remembered(kept, "ana") == ["fact-1"], "it being retried")


# -- the store


class Chat(TypedDict, total=False):
    text: str


def chat(node: Callable[[], Any], store: BaseStore) -> None:
    """A graph with a store, one node of which is this."""
    builder = StateGraph(Chat)

    def talks(state: Chat) -> Chat:
        node()
        return {}

    builder.add_node("talks", talks)
    builder.add_edge(START, "talks")
    config: Any = who("ana", "t")
    builder.compile(store=store).invoke({"text": "hello"}, config)


def submit_in_graph(executor: Any, store: BaseStore) -> Future[Any]:
    futures: list[Future[Any]] = []
    chat(lambda: futures.append(executor.submit(talk("fact-1"))), store)
    return futures[0]


def test_without_a_store_of_its_own_nothing_is_stored_with_langmems_executor(
    store: BaseStore,
) -> None:
    with langmems(manager(), None) as executor:
        raised = submit_in_graph(executor, store).exception(30)
        what = "an executor without store= stores nothing"
        assert isinstance(raised, AttributeError), corrected(what)
        assert remembered(store, "ana") == [], corrected(what)


def test_without_a_store_of_its_own_the_graphs_is_used_with_ours(
    sqlite_url: str, kept: BaseStore
) -> None:
    with ours(sqlite_url, manager(), None) as executor:
        submit_in_graph(executor, kept).result(30)
        assert remembered(kept, "ana") == ["fact-1"]


def test_without_a_store_of_its_own_nothing_can_be_searched_with_langmems_executor(
    store: BaseStore,
) -> None:
    with langmems(manager(), None) as executor:
        submit_in_graph(executor, store).exception(30)
        raised = raised_by(lambda: executor.search(namespace=("memories", "ana")))
        what = "an executor without store= cannot search"
        assert isinstance(raised, AttributeError), corrected(what)


def test_without_a_store_of_its_own_the_graphs_is_searched_with_ours(
    sqlite_url: str, kept: BaseStore
) -> None:
    with ours(sqlite_url, manager(), None) as executor:
        submit_in_graph(executor, kept).result(30)
        [found] = executor.search(namespace=("memories", "ana"))
        assert found["value"]["content"] == {"content": "fact-1"}


def test_a_manager_writes_into_the_first_store_it_saw_with_langmems_executor() -> None:
    shared, first, second = manager(), InMemoryStore(), InMemoryStore()
    for store, fact in ((first, "fact-1"), (second, "fact-2")):
        with langmems(shared, store) as executor:
            executor.submit(talk(fact), who("ana", "t")).result(30)
    found = remembered(first, "ana"), remembered(second, "ana")
    assert found == (["fact-1", "fact-2"], []), corrected("a manager keeps the first store")


def test_a_manager_writes_into_the_store_of_its_executor_with_ours(sqlite_url: str) -> None:
    shared, first, second = manager(), InMemoryStore(), InMemoryStore()
    for store, fact in ((first, "fact-1"), (second, "fact-2")):
        with ours(sqlite_url, shared, store, name=fact) as executor:
            executor.submit(talk(fact), who("ana", "t")).result(30)
    assert (remembered(first, "ana"), remembered(second, "ana")) == (["fact-1"], ["fact-2"])


class Breaks(InMemoryStore):
    """A store whose connection breaks at the first write: before it, or behind it, when it is there
    but nobody was told."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self._before, self.broken = before, False

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        ops = list(ops)
        breaks = not self.broken and any(isinstance(op, PutOp) for op in ops)
        self.broken = self.broken or breaks
        done = [] if breaks and self._before else super().batch(ops)
        if breaks:
            raise ConnectionError("the connection broke")
        return done


def test_a_write_that_failed_is_called_done_with_langmems_executor() -> None:
    store = Breaks(before=True)
    with langmems(manager(), store) as executor:
        said = executor.submit(talk("fact-1"), who("ana", "t")).result(30)
    assert store.broken
    assert ([one["value"]["content"] for one in said], remembered(store, "ana")) == (
        [{"content": "fact-1"}],
        [],
    ), corrected("a memory that was not written is called written")


def test_a_write_that_failed_is_tried_again_with_ours(sqlite_url: str) -> None:
    store = Breaks(before=True)
    with ours(sqlite_url, manager(), store, retry=SOON) as executor:
        executor.submit(talk("fact-1"), who("ana", "t")).result(30)
    assert store.broken
    assert remembered(store, "ana") == ["fact-1"]


def unaware() -> Any:
    """A manager that does not show its model what is known, as when there is more than it looks
    at."""
    return create_memory_store_manager(Scripted(), namespace=NAMESPACE, query_limit=1)


def test_a_reflection_that_is_done_twice_makes_two_memories_with_langmems_executor() -> None:
    store = Breaks(before=False)
    with langmems(unaware(), store) as executor:
        for _ in range(2):  # as nobody was told that the first was written
            executor.submit(talk("fact-1"), who("ana", "t")).result(30)
    found = remembered(store, "ana")
    assert found == ["fact-1", "fact-1"], corrected("doing one twice makes two memories")


def test_a_reflection_that_is_done_twice_makes_one_memory_with_ours(url: str) -> None:
    store = Breaks(before=False)
    with ours(url, unaware(), store, retry=SOON) as executor:
        executor.submit(talk("fact-1"), who("ana", "t")).result(30)
    assert store.broken
    assert remembered(store, "ana") == ["fact-1"]


# -- what is queued


def test_two_that_are_due_at_once_raise_with_langmems_executor(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing = SimpleNamespace(time=lambda: 1_700_000_000.0, sleep=time.sleep)
    monkeypatch.setattr("langmem.reflection.time", standing)
    with langmems(manager(), store) as executor:
        submit = functools.partial(executor.submit, after_seconds=HOUR, thread_id=None)
        raised = [  # one of three may be in the hands of its thread
            raised_by(functools.partial(submit, talk(fact), who("ana"))) for fact in FACTS[:3]
        ]
        what = "two that are due at once raise TypeError"
        assert any(isinstance(one, TypeError) for one in raised), corrected(what)


def test_any_number_can_be_due_at_once_with_ours(sqlite_url: str, kept: BaseStore) -> None:
    with (
        contextlib.closing(Runtime(sqlite_url, clock=Clock())) as rt,
        ours(rt, manager(), kept) as executor,
    ):
        for fact in FACTS:
            executor.submit(talk(fact), who("ana"), after_seconds=HOUR, thread_id=None)
        assert len({one.due_at for one in executor.pending()}) == 1
    with later(sqlite_url, manager(), kept):
        eventually(lambda: remembered(kept, "ana") == FACTS, "all being done")


def test_what_waits_cannot_be_written_down_with_langmems_executor(store: BaseStore) -> None:
    with langmems(manager(), store) as executor:
        waiting: list[Any] = []

        def node() -> None:
            executor.submit(talk("fact-1"), after_seconds=HOUR)
            waiting.append(executor._pending_tasks["t"].config)

        chat(node, store)
        for write in (json.dumps, pickle.dumps):
            raised = raised_by(functools.partial(write, waiting[0]))
            assert raised is not None, corrected("what waits cannot be written down")


def test_what_waits_is_written_down_with_ours(sqlite_url: str, kept: BaseStore) -> None:
    with ours(sqlite_url, manager(), kept) as executor:

        def node() -> None:
            executor.submit(talk("fact-1"), get_config(), after_seconds=HOUR)

        chat(node, kept)
    with later(sqlite_url, manager(), kept):
        eventually(lambda: remembered(kept, "ana") == ["fact-1"], "it being remembered")


def submit_and_change(executor: Any, busy: Gate) -> dict[str, Any]:
    """Submit what is changed before it is its turn. The config that was passed."""
    executor.submit(talk("fact-busy"), who("ana", "busy"))
    eventually(lambda: busy.entered, "the executor being busy")
    said, config = talk("fact-1"), who("ana", "t")
    future = executor.submit(said, config)
    said["messages"].append(HumanMessage("And fact-2, much later."))
    config["configurable"]["user"] = "bo"
    busy.open()
    future.result(30)
    return config


def test_what_was_submitted_changes_with_the_callers_objects_with_langmems_executor(
    store: BaseStore, busy: Gate
) -> None:
    with langmems(manager(before=Model(busy=busy)), store) as executor:
        submit_and_change(executor, busy)
    found = remembered(store, "bo")
    assert found == ["fact-1", "fact-2"], corrected("a later change is seen by what waits")


def test_what_was_submitted_is_as_it_was_then_with_ours(
    sqlite_url: str, kept: BaseStore, busy: Gate
) -> None:
    with ours(sqlite_url, manager(before=Model(busy=busy)), kept) as executor:
        submit_and_change(executor, busy)
    assert remembered(kept, "bo") == []
    assert remembered(kept, "ana") == ["fact-1", "fact-busy"]


def test_the_callers_config_is_changed_with_langmems_executor(store: BaseStore, busy: Gate) -> None:
    with langmems(manager(before=Model(busy=busy)), store) as executor:
        config = submit_and_change(executor, busy)
    added = config["configurable"].keys() - {"user", "thread_id"}
    assert added, corrected("the config of who submits is changed")


def test_the_callers_config_is_not_changed_with_ours(
    sqlite_url: str, kept: BaseStore, busy: Gate
) -> None:
    with ours(sqlite_url, manager(before=Model(busy=busy)), kept) as executor:
        config = submit_and_change(executor, busy)
    assert config == {"configurable": {"user": "bo", "thread_id": "t"}}
