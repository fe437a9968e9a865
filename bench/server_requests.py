"""What one server is asked over HTTP: streams, waits, answers, and many requests at once.

By a lean HTTP/1.1 client, which costs less than the servers it measures.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from bench.report import Series
from bench.rounds import Bench
from bench.servers import Server

CLIENTS = (1, 50)


class Stream(NamedTuple):
    first: float
    """Seconds until the first token."""
    rate: float
    """Tokens per second, from the request to the last one: tokens may come several at once."""


class Found:
    """Everything that is measured, a series each."""

    def __init__(self) -> None:
        self.first, self.rate, self.wait, self.answer = Series(), Series(), Series(), Series()
        self.create = {clients: Series() for clients in CLIENTS}
        self.drive = {clients: Series() for clients in CLIENTS}
        self.read = {clients: Series() for clients in CLIENTS}


class Connection:
    """One connection that is kept alive; requests go one after another."""

    def __init__(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._port, self._reader, self._writer = port, reader, writer

    def send(self, method: str, path: str, body: Any = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self._writer.write(head.encode() + data)

    async def head(self) -> dict[str, str]:
        """Header fields of the answer. Raises RuntimeError unless it is a success."""
        text = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = text.rstrip().split("\r\n")
        fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        if status.split()[1][0] != "2":
            said = await self._reader.readexactly(int(fields.get("content-length", 0)))
            raise RuntimeError(f"{status}: {said.decode()[:500]}")
        return fields

    async def parts(self, fields: dict[str, str]) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        if "content-length" in fields:
            yield await self._reader.readexactly(int(fields["content-length"]))
            return
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of one request, as JSON."""
        self.send(method, path, body)
        said = b"".join([part async for part in self.parts(await self.head())])
        return json.loads(said) if said.strip() else None


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        yield Connection(port, reader, writer)
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def measure(bench: Bench, who: Server, port: int, tokens: int, found: Found) -> float:
    """All figures of one server. Creating runs comes last: it leaves a backlog."""
    start = perf_counter()
    async with connected(port) as http:
        await _wait(http, await _thread(http))  # imports, first connections, plans of statements
        await _streamed(http, 10)
        streams = [await _streamed(http, tokens) for _ in range(bench.pick(5, 2))]
        found.first.add(who.name, median(one.first for one in streams))
        found.rate.add(who.name, median(one.rate for one in streams))
        few = 3 if who.slow else bench.pick(30, 10)
        thread = await _thread(http)
        found.wait.add(who.name, median([await _wait(http, thread) for _ in range(few)]))
        found.answer.add(who.name, median([await _answer(http) for _ in range(few)]))
        seconds = bench.pick(3, 1)
        for clients in CLIENTS:
            found.read[clients].add(who.name, await _rate(port, clients, seconds, _read))
        for clients in CLIENTS:
            found.create[clients].add(who.name, await _rate(port, clients, seconds, _create))
        for clients in CLIENTS:
            found.drive[clients].add(who.name, await _rate(port, clients, seconds, _start))
    return perf_counter() - start


async def _thread(http: Connection) -> str:
    made = await http.ask("POST", "/threads", {})
    return str(made["thread_id"])


async def _streamed(http: Connection, tokens: int) -> Stream:
    thread = await _thread(http)
    body = {
        "assistant_id": "chat",
        "input": {"messages": [{"type": "human", "content": str(tokens)}]},
        "stream_mode": ["messages-tuple"],
    }
    start = perf_counter()
    http.send("POST", f"/threads/{thread}/runs/stream", body)
    first = last = 0.0
    said = bytearray()
    async for part in http.parts(await http.head()):
        if b'"word' in part:
            last = perf_counter()
            first = first or last
        said += part
    seen = said.count(b'"word')
    assert seen == tokens, f"{seen} tokens of {tokens}"
    return Stream(first - start, tokens / (last - start))


async def _wait(http: Connection, thread: str) -> float:
    start = perf_counter()
    body = {"assistant_id": "one", "input": {"n": 1}}
    values = await http.ask("POST", f"/threads/{thread}/runs/wait", body)
    assert values["n"] == 2, values
    return perf_counter() - start


async def _answer(http: Connection) -> float:
    """Seconds from an answer to the node that it lets go on, by the clock of this machine."""
    thread = await _thread(http)
    path = f"/threads/{thread}/runs/wait"
    asked = await http.ask("POST", path, {"assistant_id": "gate", "input": {"n": 1}})
    assert asked["__interrupt__"], asked
    start = time.time()
    body = {"assistant_id": "gate", "command": {"resume": "yes"}}
    values = await http.ask("POST", path, body)
    return float(values["at"]) - start


async def _read(http: Connection, thread: str) -> None:
    state = await http.ask("GET", f"/threads/{thread}/state")
    assert state["values"] == {"n": 2}, state


async def _create(http: Connection, thread: str) -> None:
    """A run that is accepted, and begins in an hour."""
    body = {"assistant_id": "one", "input": {"n": 1}, "after_seconds": 3600}
    assert (await http.ask("POST", f"/threads/{thread}/runs", body))["run_id"]


async def _start(http: Connection, thread: str) -> None:
    """A run that begins at once, while others are created."""
    body = {"assistant_id": "one", "input": {"n": 1}}
    assert (await http.ask("POST", f"/threads/{thread}/runs", body))["run_id"]


async def _rate(
    port: int, clients: int, seconds: float, ask: Callable[[Connection, str], Awaitable[None]]
) -> float:
    """Requests per second of so many clients at once."""

    async def client(thread: str) -> int:
        count = 0
        async with connected(port) as http:
            await ready.wait()
            while perf_counter() < end:
                await ask(http, thread)
                count += 1
        return count

    async with connected(port) as http:
        if ask is _read:  # a finished thread, which all of them read
            thread = await _thread(http)
            await _wait(http, thread)
            threads = [thread] * clients
        else:
            threads = [await _thread(http) for _ in range(clients)]
    ready, end = asyncio.Event(), 0.0
    work = [asyncio.create_task(client(thread)) for thread in threads]
    await asyncio.sleep(0.1)
    start = perf_counter()
    end = start + seconds
    ready.set()
    counts = await asyncio.gather(*work)
    return sum(counts) / (perf_counter() - start)
