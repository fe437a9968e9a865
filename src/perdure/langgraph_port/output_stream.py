"""The queue between a running graph and the caller that iterates over its stream.

`Pregel.stream` and `astream` keep what nodes and steps emit in a queue, the local variable `stream`
of the generator. The saver is called while the generator is suspended, so the last chunks of a step
are still in there when its checkpoint is stored.
"""

from __future__ import annotations

import contextlib
import queue
from asyncio import QueueEmpty
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

Item = tuple[tuple[str, ...], str, Any]
"""Namespace, mode and data of a chunk."""


def take_waiting(
    chunks: AsyncGenerator[Any] | Generator[Any, Any, Any], take: Callable[[Item], None]
) -> None:
    """Take what is in the queue of a stream that has begun. Its caller is not given it any more."""
    frame = getattr(chunks, "ag_frame", None) or getattr(chunks, "gi_frame", None)
    waiting = None if frame is None else frame.f_locals.get("stream")
    if waiting is None:
        return
    with contextlib.suppress(QueueEmpty, queue.Empty):
        while True:
            item = waiting.get_nowait() if hasattr(waiting, "get_nowait") else waiting.get(False)
            take(item)


def task_chain(namespace: tuple[str, ...], mode: str, data: Any) -> tuple[str, ...]:
    """The tasks, as `node:task id`, that a chunk comes from, outermost first. Of `messages` the
    last one is the task that called the model; of other modes at most that of its subgraph."""
    if mode == "messages" and isinstance(data, tuple) and isinstance(data[-1], dict):
        ns = data[-1].get("langgraph_checkpoint_ns")
        if isinstance(ns, str) and ns:
            return tuple(ns.split("|"))
    return namespace
