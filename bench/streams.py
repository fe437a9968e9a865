"""Streams in this process: `rt.stream` beside `graph.astream`, and steps that stream or do not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, NamedTuple

import perdure
from bench.databases import Kind
from bench.engines import LABEL
from bench.report import Series
from bench.rounds import Bench, say
from bench.server_graphs import GRAPHS

STREAMED = ("values", "updates", "messages")


class Stream(NamedTuple):
    first: float
    """Seconds until the first token."""
    rate: float
    """Tokens per second, from the request to the last one: tokens may come several at once."""


def in_process(bench: Bench, kinds: list[Kind], tokens: int) -> list[tuple[str, Stream]]:
    found = [("graph.astream", asyncio.run(_astream(tokens)))]
    for kind in kinds:
        with bench.databases.fresh(kind) as url:
            stream = asyncio.run(_rt_stream(url, tokens))
        found.append((f"rt.stream in process, {LABEL[kind]}", stream))
    return found


def _said(tokens: int) -> dict[str, Any]:
    return {"messages": [{"type": "human", "content": str(tokens)}]}


async def _astream(tokens: int) -> Stream:
    chat = GRAPHS["chat"]
    async for _ in chat.astream(_said(5), stream_mode="messages"):
        pass
    start, seen, first, last = perf_counter(), 0, 0.0, 0.0
    async for message, _ in chat.astream(_said(tokens), stream_mode="messages"):
        if message.content:
            last = perf_counter()
            first = first or last
            seen += 1
    assert seen == tokens
    return Stream(first - start, tokens / (last - start))


async def _rt_stream(url: str, tokens: int) -> Stream:
    async with _working(url) as rt:
        await _one_stream(rt, 5)
        return await _one_stream(rt, tokens)


async def _one_stream(rt: perdure.Runtime, tokens: int) -> Stream:
    start, seen, first, last = perf_counter(), 0, 0.0, 0.0
    run = await rt.start("chat", _said(tokens), stream="messages")
    async for chunk in rt.stream(run.id):
        if chunk.mode == "messages" and chunk.data[0].content:
            last = perf_counter()
            first = first or last
            seen += 1
    assert seen == tokens, f"{seen} tokens of {tokens}"
    return Stream(first - start, tokens / (last - start))


def streaming_steps(bench: Bench, kinds: list[Kind], steps: int, rounds: int) -> Series:
    """Seconds per step, by database and by what is streamed."""
    series = Series()
    for kind in kinds:
        with bench.databases.fresh(kind) as url:
            for name, took in asyncio.run(_loops(url, steps, rounds)):
                series.add(f"{LABEL[kind]} {name}", took)
        say(f"server  streaming on and off, {LABEL[kind]}")
    return series


async def _loops(url: str, steps: int, rounds: int) -> list[tuple[str, float]]:
    found = []
    modes = ("off", *STREAMED)
    async with _working(url) as rt:
        for n in range(-1, rounds):
            for mode in modes[n % len(modes) :] + modes[: n % len(modes)]:
                start = perf_counter()
                kept = () if mode == "off" else mode
                config = {"recursion_limit": steps + 10}
                run = await rt.start("loop", {"n": steps}, stream=kept, config=config)
                await rt.join(run.id)
                if n >= 0:  # the first round fills caches
                    found.append((mode, (perf_counter() - start) / steps))
    return found


@asynccontextmanager
async def _working(url: str) -> AsyncIterator[perdure.Runtime]:
    """A runtime with these graphs, and a worker in this event loop."""
    async with perdure.Runtime(url) as runtime:
        for name, graph in GRAPHS.items():
            runtime.register(graph, name=name)
        work = asyncio.create_task(runtime.work())
        try:
            yield runtime
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
