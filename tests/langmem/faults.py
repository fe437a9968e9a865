"""Stories that end badly with LangMem's own executor, and both executors."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore, Op, PutOp, Result
from langgraph.store.memory import InMemoryStore
from langmem import create_memory_store_manager
from langmem.reflection import PendingTask

from perdure import Runtime
from perdure.langmem import ReflectionExecutor
from perdure.testing import Clock
from tests.langmem import stock_child
from tests.langmem.stock_child import HOUR, made
from tests.support.agents import Gate, gate
from tests.support.fork_server import Child, ForkServer
from tests.support.memory import NAMESPACE, Scripted, talk, who
from tests.support.polling import until


def corrected(what: str) -> str:
    return f"LangMem has corrected this: {what}. Change docs/evidence.md, and remove this test."


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
def busy() -> Iterator[Gate]:
    """Where the model stands still when it hears of `fact-busy`."""
    with gate() as made:
        yield made


Playing = Callable[[str, str, str], contextlib.AbstractContextManager[tuple[Child, Any]]]


@pytest.fixture(scope="module")
def playing(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Playing:
    """A process that plays a story, and what it told; it is killed in the end."""
    folder = tmp_path_factory.mktemp("told")
    stories = itertools.count()

    @contextmanager
    def play(story: str, whose: str, url: str) -> Iterator[tuple[Child, Any]]:
        told = folder / str(next(stories))
        order = {"story": story, "whose": whose, "url": url, "told": str(told)}
        with fork_server.child(stock_child.play, exits=True, **order) as child:
            until(lambda: told.exists() or child.is_over(), f"{story} of {whose}")
            yield child, json.loads(told.read_text())

    return play


def is_hit(number: signal.Signals, playing: contextlib.AbstractContextManager[Any]) -> None:
    """A process with five pending is ended by a signal."""
    with playing as (child, told):
        assert told == "ready"
        child.send(number)
        assert child.wait() == -number


# -- a process that is killed

SIGNALS = pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)


# -- debouncing


def submit_thrice(executor: Any, busy: Gate) -> Future[Any]:
    """Three of one conversation, the second before the first was looked at, the third after. The
    future of the second."""
    executor.submit(talk("fact-busy"), who("ana", "busy"))
    until(lambda: busy.entered, "the executor being busy")
    executor.submit(talk("fact-1"), who("ana", "t"))
    second: Future[Any] = executor.submit(talk("fact-2"), who("ana", "t"), after_seconds=HOUR)
    behind = executor.submit(talk("fact-behind"), who("ana", "behind"))
    busy.open()
    behind.result(30)
    executor.submit(talk("fact-3"), who("ana", "t"), after_seconds=HOUR)
    return second


USERS = pytest.mark.parametrize(
    "thread", [None, "main"], ids=["without-thread-id", "same-thread-id"]
)


def submit_for_two(executor: Any, thread: str | None) -> Future[Any]:
    """The future of the first."""
    first: Future[Any] = executor.submit(talk("fact-1"), who("ana", thread), after_seconds=HOUR)
    executor.submit(talk("fact-2"), who("bo", thread), after_seconds=HOUR)
    return first


# -- shutdown


@pytest.fixture(scope="module")
def stopped(playing: Playing, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What became of LangMem's executor that was shut down while it was busy."""
    path = tmp_path_factory.mktemp("stopped") / "store.db"
    with playing("stops", "langmem", f"sqlite:///{path}") as (_, told):
        return told


def cancel_all(executor: Any, busy: Gate) -> None:
    """Shut down with `cancel_futures` while one is worked on and another one is due."""
    executor.submit(talk("fact-busy"), who("ana", "busy"))
    until(lambda: busy.entered, "the first being worked on")
    future = executor.submit(talk("fact-cancelled"), who("ana", "t"))
    executor.shutdown(wait=False, cancel_futures=True)
    assert future.cancelled()
    busy.open()


def stop_while_it_fails(executor: Any, busy: Gate) -> Exception | None:
    """Shut down while one is worked on that then raises. What `shutdown()` raised."""
    found: list[Exception | None] = []

    def stop() -> None:
        found.append(raised_by(executor.shutdown))

    executor.submit(talk("fact-busy"), who("ana", "t"))
    until(lambda: busy.entered, "it being worked on")
    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    told = vars(executor)
    until(
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


def unaware() -> Any:
    """A manager that does not show its model what is known, as when there is more than it looks
    at."""
    return create_memory_store_manager(Scripted(), namespace=NAMESPACE, query_limit=1)


def submit_and_change(executor: Any, busy: Gate) -> dict[str, Any]:
    """Submit what is changed before it is its turn. The config that was passed."""
    executor.submit(talk("fact-busy"), who("ana", "busy"))
    until(lambda: busy.entered, "the executor being busy")
    said, config = talk("fact-1"), who("ana", "t")
    future = executor.submit(said, config)
    said["messages"].append(HumanMessage("And fact-2, much later."))
    config["configurable"]["user"] = "bo"
    busy.open()
    future.result(30)
    return config
