"""Streams are resumed by number, and are never slower for a slow reader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from langgraph.config import get_stream_writer

import perdure
from tests.support.agents import Gate, Log, chain, opened
from tests.support.streaming_agents import StreamingServer, streaming_server


async def test_a_reader_in_another_process_sees_chunks_while_the_node_still_runs(url: str) -> None:
    """The reader has a journal of its own, as in another process."""
    gate = Gate()

    def halting(state: Log) -> Log:
        get_stream_writer()("first")
        gate.block()
        get_stream_writer()("second")
        return {}

    async with opened(url) as rt, perdure.Client(url) as reader:
        rt.register(chain(halting), name="agent")
        working = asyncio.create_task(rt.work(handle_signals=False))
        run = await reader.start("agent", {"log": []}, stream="custom")
        chunks = reader.stream(run.id)
        async with asyncio.timeout(30):
            assert (await anext(chunks)).data == "first"
            gate.open()
            assert (await anext(chunks)).data == "second"
            with pytest.raises(StopAsyncIteration):
                await anext(chunks)
            assert (await reader.join(run.id)).state == "done"
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_a_slow_reader_gets_everything_from_the_journal(sqlite_url: str) -> None:
    def talks(state: Log) -> Log:
        for n in range(300):
            get_stream_writer()({"n": n, "text": "x" * 10_000})
        return {}

    async with opened(sqlite_url) as rt:
        rt.register(chain(talks), name="agent")
        run = await rt.start("agent", {"log": []}, stream="custom")
        working = asyncio.create_task(rt.work(until_idle=True))
        chunks = rt.stream(run.id)
        first = await anext(chunks)
        await working  # the run did not wait for the reader
        rest = [one async for one in chunks]
        assert [one.data["n"] for one in [first, *rest]] == [*range(300)]


HI: Any = {"messages": [{"role": "user", "content": "hi", "id": "h"}]}


@pytest.fixture
def server(url: str) -> Iterator[StreamingServer]:
    with streaming_server(url) as running:
        yield running


class Sse(NamedTuple):
    """One event as it is on the wire."""

    event: str
    data: Any
    id: str | None


def parse(text: str) -> list[Sse]:
    found = []
    for block in text.split("\r\n\r\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\r\n") if line[:1] not in ":")
        if fields:
            found.append(Sse(fields["event"], json.loads(fields["data"]), fields.get("id")))
    return found


@pytest.mark.parametrize("modes", [["messages"], ["messages-tuple", "values"], ["updates"]])
def test_a_stream_resumes_after_any_of_its_ids(server: StreamingServer, modes: list[str]) -> None:
    http = server.http.http()
    body = {"assistant_id": "outer", "input": HI, "stream_mode": modes, "stream_subgraphs": True}
    first = http.post("/runs/stream", json=body)
    events, location = parse(first.text), first.headers["location"]
    for at, event in enumerate(events[:-1], 1):
        assert event.id is not None
        behind = http.get(location, headers={"Last-Event-ID": event.id})
        assert events[:at] + parse(behind.text) == events
