"""Abusive callers: half-sent requests, huge bodies, thousands of streams. Others are still served.

The server is a separate process, as in production, and every attack goes to loopback. `make test`
opens some of the connections; `PERDURE_EVERY_POINT=1` as many as the limit of open files allows.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import httpx
import pytest

from perdure.testing.local_server import free_port
from tests.support.databases import DATABASES
from tests.support.polling import until

pytestmark = pytest.mark.slow

FULL = bool(os.environ.get("PERDURE_EVERY_POINT"))
FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
STREAMS = 300
"""Streams that the server of these tests allows at once."""

SERVER = """
import sys, uvicorn, perdure
from tests.clients.graphs import GRAPHS
url, port, streams = sys.argv[1:]
runtime = perdure.Runtime(url, store=True)
for name, graph in GRAPHS.items():
    runtime.register(graph, name=name)
app = runtime.asgi(max_streams=int(streams), body_timeout=3.0)
uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error")
"""


@pytest.fixture(scope="module", params=DATABASES[:2])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server, which must still run when all these tests have ended."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('abuse')}/journal.db"
    else:
        url = request.getfixturevalue("postgres_server").database()
    found, streams = free_port(), 10_000 if FULL else STREAMS
    command = [sys.executable, "-c", SERVER, url, str(found), str(streams)]
    server = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        until(lambda: _is_up(found), "a server", seconds=60)
        yield found
        assert server.poll() is None, "the server ended"
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


def _is_up(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ok").status_code == 200
    except httpx.TransportError:
        return False


async def serves(port: int, within: float = 10.0) -> None:
    """/ok answers and a run is driven, in a time that people would wait."""
    start = monotonic()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=within) as http:
        assert (await http.get("/ok")).status_code == 200
        thread = (await http.post("/threads", json={})).json()["thread_id"]
        body = {"assistant_id": "numbers", "input": {"n": 1}}
        values = (await http.post(f"/threads/{thread}/runs/wait", json=body)).json()
        assert values["n"] == 4, values
    took = monotonic() - start
    assert took < within, f"a person waited {took:.1f} s"


@asynccontextmanager
async def connections(
    port: int, count: int, first: bytes
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Connections that each sent these bytes."""
    opened = []
    try:
        for n in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(first)
            opened.append((reader, writer))
            if n % 100 == 0:
                await asyncio.sleep(0)
        yield opened
    finally:
        for _, writer in opened:
            writer.close()
        closing = (writer.wait_closed() for _, writer in opened)
        await asyncio.gather(*closing, return_exceptions=True)


def request(method: str, path: str, *, length: int, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode() + body


async def status(reader: asyncio.StreamReader) -> int:
    """Code of an answer; 0 if the server hung up."""
    try:
        line = await reader.readline()
    except ConnectionError:  # while a byte was on its way
        line = b""
    return int(line.split()[1]) if line else 0


async def test_requests_that_never_end_are_closed_and_others_are_served(port: int) -> None:
    """Slowloris: a body is announced, and sent byte by byte or not at all."""
    count = 2000 if FULL else 300
    first = request("POST", "/threads", length=1000, body=b'{"metadata": {')
    async with connections(port, count, first) as opened:
        await serves(port)
        for _ in range(3):
            for _, writer in opened:
                writer.write(b" ")
            await asyncio.sleep(0.5)
        await serves(port)
        codes = await asyncio.wait_for(
            asyncio.gather(*(status(reader) for reader, _ in opened)), timeout=30
        )
    assert set(codes) <= {408, 0}


async def test_requests_whose_headers_never_end_do_not_block_others(
    port: int,
) -> None:
    count = 2000 if FULL else 300
    first = b"POST /threads HTTP/1.1\r\nHost: localhost\r\nX-A: "
    async with connections(port, count, first) as opened:
        for _ in range(3):
            for _, writer in opened:
                writer.write(b"a")
            await serves(port)


async def test_a_body_of_100_mb_is_refused_before_it_is_sent(port: int) -> None:
    first = request("POST", "/threads", length=100 * 1024 * 1024, body=b"{")
    async with connections(port, 20, first) as opened:
        codes = await asyncio.wait_for(
            asyncio.gather(*(status(reader) for reader, _ in opened)), timeout=10
        )
        assert set(codes) == {413}
        await serves(port)


async def test_a_body_of_unknown_length_is_cut_off_at_the_limit(port: int) -> None:
    """100 MB in chunks; the server must not keep more than it allows."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'{"metadata": {"a": "'
        for _ in range(100):
            sent += 1
            yield b"x" * 1024 * 1024

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        headers = {"content-type": "application/json"}
        try:
            answer = await http.post("/threads", content=endless(), headers=headers)
            assert answer.status_code == 413
            assert isinstance(answer.json()["detail"], str)
        except httpx.TransportError:
            pass  # the server hung up while we were sending
    assert sent < 100, "the server read it all"
    await serves(port)


async def test_json_that_is_deep_or_long_is_refused_and_costs_little(port: int) -> None:
    bodies = {
        "deep": b"[" * 100_000 + b"]" * 100_000,
        "number": b'{"metadata": {"n": ' + b"9" * 1_000_000 + b"}}",
        "keys": json.dumps({"metadata": {str(n): n for n in range(200_000)}}).encode(),
        "not JSON": b"{" * 1000,
        "not text": b"\xff\xfe" * 1000,
    }
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        for name, body in bodies.items():
            start = monotonic()
            headers = {"content-type": "application/json"}
            answer = await http.post("/threads", content=body, headers=headers)
            allowed = (200,) if name == "keys" else (400, 413, 422)
            assert answer.status_code in allowed, f"{name}: {answer.status_code}"
            assert monotonic() - start < 10, name
    await serves(port)


async def test_streams_over_the_limit_are_refused_and_others_are_served(port: int) -> None:
    """10,000 with PERDURE_EVERY_POINT, as far as the limit on open files goes; else 300."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        thread = (await http.post("/threads", json={})).json()["thread_id"]
    wanted = 10_000 if FULL else STREAMS
    most = min(wanted, FILES - 1000)
    first = request("GET", f"/threads/{thread}/stream", length=0)
    async with connections(port, most, first) as opened:
        codes = await asyncio.wait_for(
            asyncio.gather(*(status(reader) for reader, _ in opened)), timeout=120
        )
        assert codes.count(200) == most
        await serves(port, within=30)
        async with connections(port, 5, first) as late:
            refused = await asyncio.gather(*(status(reader) for reader, _ in late))
        assert set(refused) == ({503} if most == wanted else {200})
        await serves(port, within=30)
    assert await _is_let_in(port, first), "no room was made when the others had gone"


async def _is_let_in(port: int, first: bytes) -> bool:
    """Whether a stream is opened within some seconds."""
    end = monotonic() + 20
    while monotonic() < end:
        async with connections(port, 1, first) as opened:
            if await status(opened[0][0]) == 200:
                return True
        await asyncio.sleep(0.2)
    return False
