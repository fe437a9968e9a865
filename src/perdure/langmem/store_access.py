"""Call a LangGraph store from a worker thread, blocking or async stores alike."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from langgraph.store.base import BaseStore, Op, Result
from langgraph.store.base.embed import EmbeddingsLambda

T = TypeVar("T")


def event_loop_of(store: BaseStore | None) -> asyncio.AbstractEventLoop | None:
    """Return the event loop that an async store was created in, or None for a blocking store.

    LangGraph's async stores keep it in `_loop`: their blocking methods hand the work to that loop.
    """
    loop = getattr(store, "_loop", None)
    return loop if isinstance(loop, asyncio.AbstractEventLoop) else None


def check_loop(store: BaseStore) -> None:
    """Raise if the event loop of an async store has stopped: a call would never return."""
    loop = event_loop_of(store)
    if loop is not None and not loop.is_running():
        raise RuntimeError(
            f"{type(store).__name__} belongs to an event loop that has stopped. Create the store "
            "in a loop that runs as long as the executor does, or use the blocking store."
        )


def run_batch(store: BaseStore, ops: Iterable[Op]) -> list[Result]:
    """Run a batch on a store, from a thread that is not its event loop's."""
    check_loop(store)
    embeddings = getattr(store, "embeddings", None)
    only_async = isinstance(embeddings, EmbeddingsLambda) and not hasattr(embeddings, "func")
    if only_async and event_loop_of(store) is None:
        return asyncio.run(store.abatch(ops))
    return store.batch(ops)


def run_on_loop(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], timeout: float | None = None
) -> T:
    """Run a coroutine on a store's event loop and wait for its result."""
    return asyncio.run_coroutine_threadsafe(work, loop).result(timeout)
