"""Call a LangGraph store from a worker thread, blocking or async, and end such calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from langgraph.store.base import BaseStore, Op, Result
from langgraph.store.base.embed import EmbeddingsLambda

from perdure.errors import Unavailable
from perdure.langgraph_port import loop_of

T = TypeVar("T")


class StoreCalls:
    """The calls of reflectors to the store: a context manager around each.

    A reflector's thread may outlive its executor. After `close` no call is in progress and none
    begins, so the application can close the store: Python crashes if a SQLite connection is closed
    during a call. `Unavailable` makes the runtime release the run without counting the attempt.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads: list[int] = []
        self._closed = False

    def __enter__(self) -> None:
        with self._changed:
            if self._closed:
                raise Unavailable(
                    "The executor of this reflection was shut down, so its store must not be used. "
                    "The next executor of the same name runs the reflection."
                )
            self._threads.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._threads.remove(threading.get_ident())
            self._changed.notify_all()

    def close(self, timeout: float = 5.0) -> None:
        """Refuse further calls, and wait for those that other threads have in progress."""
        own = {threading.get_ident()}
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: own.issuperset(self._threads), timeout)


def check_loop(store: BaseStore) -> None:
    """Raise if the event loop of an async store has stopped: a call would never return."""
    loop = loop_of(store)
    if isinstance(loop, asyncio.AbstractEventLoop) and not loop.is_running():
        raise RuntimeError(
            f"{type(store).__name__} belongs to an event loop that has stopped. Create the store "
            "in a loop that runs as long as the executor does, or use the blocking store."
        )


def run_batch(store: BaseStore, ops: Iterable[Op]) -> list[Result]:
    """Run a batch on a store, from a thread that is not its event loop's."""
    check_loop(store)
    embeddings = getattr(store, "embeddings", None)
    only_async = isinstance(embeddings, EmbeddingsLambda) and not hasattr(embeddings, "func")
    if only_async and loop_of(store) is None:
        return asyncio.run(store.abatch(ops))
    return store.batch(ops)


def run_on_loop(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], timeout: float | None = None
) -> T:
    """Run a coroutine on a store's event loop and wait for its result."""
    return asyncio.run_coroutine_threadsafe(work, loop).result(timeout)
