"""Taps what a running graph streams, at the point where it is emitted.

A graph also passes what its steps emit to a stream in its config, where its subgraphs find it too,
and its nodes use the stream writer next to it. Messages do not go that way.

`Pregel.astream` puts what nodes and steps emit into a queue, the generator's local variable
`stream`, and serves its caller from there when it is resumed. The saver is called in between, while
the last chunks of a step are still in the queue. A chunk that a node writes does not say which task
wrote it, but it is put into the queue in the context of that task.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

TAPPED = frozenset({"values", "updates", "tasks", "checkpoints", "debug", "custom"})
"""The modes that `with_tap` can tap."""
Tap = Callable[[tuple[str, ...], str, Any, str], None]
"""Takes the namespace, mode and data of a chunk, and the tasks it comes from (`tasks_of`)."""


def with_tap(config: RunnableConfig, tap: Tap, modes: frozenset[str]) -> RunnableConfig:
    """A config with which a graph passes `tap` what it and its subgraphs emit in these modes, each
    chunk before the next checkpoint is stored. Unlike a stream with `subgraphs=True`, this keeps
    LangGraph's faster way of running a step with a single task."""
    from langgraph._internal._constants import CONFIG_KEY_RUNTIME, CONFIG_KEY_STREAM
    from langgraph.pregel.protocol import StreamProtocol
    from langgraph.runtime import DEFAULT_RUNTIME

    def write(data: Any) -> None:
        tasks = tasks_of((), "custom", data)
        tap(tuple(tasks.split("|")[:-1]), "custom", data, tasks)

    stream: Any = StreamProtocol(lambda item: _tap(tap, item), {*modes})  # type: ignore[arg-type]
    runtime = (
        DEFAULT_RUNTIME.override(stream_writer=write) if "custom" in modes else DEFAULT_RUNTIME
    )
    keys = {CONFIG_KEY_STREAM: stream, CONFIG_KEY_RUNTIME: runtime}
    return {**config, "configurable": {**config.get("configurable", {}), **keys}}


async def tapped(
    chunks: AsyncGenerator[Any], tap: Tap, stream_mode: Any, subgraphs: bool
) -> AsyncIterator[Any]:
    """The stream of a graph that was called with these arguments. `tap` gets each chunk when it is
    emitted, before the next checkpoint is stored."""
    first = asyncio.ensure_future(anext(chunks))
    try:
        await asyncio.sleep(0)  # the queue is made now, and no node has run yet
        if (queue := _queue(chunks)) is not None:
            if first.done() and not first.cancelled() and first.exception() is None:
                _tap(tap, _as_item(first.result(), stream_mode or "updates", subgraphs))
            for item in list(queue._queue):
                _tap(tap, item)
            put = queue._put

            def tap_and_put(item: Any) -> None:
                _tap(tap, item)
                put(item)

            queue._put = tap_and_put
        yield await first
    except StopAsyncIteration:
        return
    finally:
        if not first.done():
            first.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await first
    async for chunk in chunks:
        yield chunk


def _queue(chunks: Any) -> Any:
    return None if chunks.ag_frame is None else chunks.ag_frame.f_locals.get("stream")


def _tap(tap: Tap, item: tuple[tuple[str, ...], str, Any]) -> None:
    tap(*item, tasks_of(*item))


def _as_item(chunk: Any, stream_mode: Any, subgraphs: bool) -> tuple[tuple[str, ...], str, Any]:
    """A chunk from the caller's side of a stream, as it was in the queue."""
    if isinstance(chunk, dict) and chunk.keys() >= {"type", "ns", "data"}:  # version="v2"
        return chunk["ns"], chunk["type"], chunk["data"]
    if isinstance(stream_mode, str):
        namespace, data = chunk if subgraphs else ((), chunk)
        return namespace, stream_mode, data
    return chunk if subgraphs else ((), *chunk)


def is_whole_message(data: Any) -> bool:
    """Whether a chunk of mode `messages` is a message that a node returned, rather than a piece
    that a model streamed. LangGraph emits it unless it streamed its pieces in this process."""
    from langchain_core.messages import BaseMessageChunk

    return not isinstance(data[0], BaseMessageChunk)


def tasks_of(namespace: tuple[str, ...], mode: str, data: Any) -> str:
    """The tasks that a chunk comes from, as a namespace: `outer:task id|inner:task id`, without the
    innermost task where it is not known. Call it where the chunk is emitted."""
    if mode == "messages" and isinstance(data, tuple) and isinstance(data[-1], dict):
        return str(data[-1].get("langgraph_checkpoint_ns") or "")
    if mode == "custom":
        from langchain_core.runnables.config import var_child_runnable_config

        config = var_child_runnable_config.get() or {}
        return str(config.get("configurable", {}).get("checkpoint_ns") or "")
    result = data.get("payload") if mode == "debug" and isinstance(data, dict) else data
    if mode in ("tasks", "debug") and isinstance(result, dict) and "result" in result:
        return "|".join([*namespace, f"{result.get('name')}:{result.get('id')}"])
    return "|".join(namespace)
