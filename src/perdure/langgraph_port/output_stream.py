"""The queue between a running graph and the caller that iterates over its stream.

`Pregel.stream` and `astream` keep what nodes and steps emit in a queue, the local variable `stream`
of the generator. The saver is called while the generator is suspended, so the last chunks of a step
are still in there when its checkpoint is stored. What a node writes is put there in the context of
the node, and without saying which task wrote it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, NamedTuple

Item = tuple[tuple[str, ...], str, Any]
"""Namespace, mode and data of a chunk."""


class FromTask(NamedTuple):
    """What a node wrote, and the namespace of its task: `node:task id`, in a subgraph behind that
    of the subgraph's."""

    data: Any
    ns: str


async def with_tasks(chunks: AsyncGenerator[Any]) -> AsyncIterator[Any]:
    """The stream of a graph. The data of its `custom` chunks is a `FromTask`."""
    first = asyncio.ensure_future(anext(chunks))
    try:
        await asyncio.sleep(0)  # the queue is made now, and no node has run yet
        if (waiting := _queue(chunks)) is not None:
            put = waiting._put
            waiting._put = lambda item: put(_with_task(item))
        yield await first
    except StopAsyncIteration:
        return
    finally:
        if not first.done():
            first.cancel()
            with contextlib.suppress(BaseException):
                await first
    async for chunk in chunks:
        yield chunk


def _with_task(item: Item) -> Item:
    from langchain_core.runnables.config import var_child_runnable_config

    namespace, mode, data = item
    if mode != "custom" or isinstance(data, FromTask):
        return item
    config = var_child_runnable_config.get() or {}
    return namespace, mode, FromTask(data, config.get("configurable", {}).get("checkpoint_ns", ""))


def take_waiting(chunks: Any, take: Callable[[Item], None]) -> None:
    """Take what is in the queue of a stream that has begun. Its caller is not given it any more."""
    waiting = _queue(chunks)
    if waiting is not None:
        get = getattr(waiting, "get_nowait", None) or waiting.get
        with contextlib.suppress(asyncio.QueueEmpty, queue.Empty):
            while True:
                take(get())


def _queue(chunks: Any) -> Any:
    frame = getattr(chunks, "ag_frame", None) or getattr(chunks, "gi_frame", None)
    return None if frame is None else frame.f_locals.get("stream")


def is_whole_message(mode: str, data: Any) -> bool:
    """Whether a chunk is a message that a node returned, not a piece of one that a model streams.
    LangGraph gives it unless it has streamed its pieces in this process."""
    from langchain_core.messages import BaseMessageChunk

    return mode == "messages" and not isinstance(data[0], BaseMessageChunk)


def tasks_of(namespace: tuple[str, ...], mode: str, data: Any) -> str:
    """The tasks that a chunk comes from, as a namespace: `outer:task id|inner:task id`. Without the
    innermost one if the chunk does not say which it is."""
    if isinstance(data, FromTask):
        return data.ns
    if mode == "messages" and isinstance(data, tuple) and isinstance(data[-1], dict):
        return str(data[-1].get("langgraph_checkpoint_ns") or "")
    result = data.get("payload") if mode == "debug" and isinstance(data, dict) else data
    if mode in ("tasks", "debug") and isinstance(result, dict) and "result" in result:
        return "|".join([*namespace, f"{result.get('name')}:{result.get('id')}"])
    return "|".join(namespace)
