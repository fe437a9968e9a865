"""A client whose server is killed again and again misses nothing."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
import uvicorn
from langgraph_sdk import get_client

from tests.support.fork_server import ForkServer, Tell
from tests.support.polling import until
from tests.support.streaming_agents import Gate, streaming_runtime


def serve(order: dict[str, Any], tell: Tell) -> None:
    """Serve the journal `url` at `port` of loopback until a signal comes."""
    app = streaming_runtime(order["url"], Gate()).asgi()
    uvicorn.run(app, host="127.0.0.1", port=order["port"], log_level="warning")


pytestmark = pytest.mark.slow


HI: Any = {"messages": [{"role": "user", "content": "hi", "id": "h"}]}


SECONDS = 30.0


class ServerProcess:
    """A server that can be killed and started again at the same address."""

    def __init__(self, url: str, forks: ForkServer) -> None:
        self._journal, self._forks = url, forks
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        order: Any = {"url": self._journal, "port": self.port}
        self.child = self._forks.start(serve, **order)
        with self.http() as http:
            until(lambda: self._answers(http))

    def _answers(self, http: httpx.Client) -> bool:
        try:
            return http.get("/ok").is_success
        except httpx.HTTPError:
            return False

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=SECONDS, verify=False)


@pytest.fixture
def server(url: str, fork_server: ForkServer) -> Iterator[ServerProcess]:
    running = ServerProcess(url, fork_server)
    yield running
    running.child.kill()


class V1:
    """A client of v1 streams that follows what their ids promise."""

    def __init__(self, server: ServerProcess, mode: str) -> None:
        self._server, self._thread = server, str(uuid4())
        self._body = {"assistant_id": "ponder", "input": HI, "stream_mode": [mode, "values"]}
        self._location: str | None = None
        self.last: str | None = None
        self.seen: list[str] = []
        self.held: list[tuple[int, str, Any]] = []
        self.is_over = False

    def read(self, count: int) -> None:
        """Read so many events, or to the end."""
        with self._server.http() as http, self.opened(http) as reply:
            assert reply.status_code == 200, reply.read()
            self._location = reply.headers["location"]
            fields: dict[str, str] = {}
            for line in reply.iter_lines():
                if line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                    continue
                if "event" in fields:
                    self._take(fields)
                    count -= 1
                fields = {}
                if not count or self.is_over:
                    return

    def opened(self, http: httpx.Client) -> Any:
        if self._location is None:
            body = {**self._body, "if_not_exists": "create"}
            return http.stream("POST", f"/threads/{self._thread}/runs/stream", json=body)
        headers = {"Last-Event-ID": self.last or ""}
        return http.stream("GET", self._location, headers=headers)

    def _take(self, fields: dict[str, str]) -> None:
        name, data = fields["event"], json.loads(fields["data"])
        if name == "end":
            self.is_over = True
            return
        assert name != "error", data
        self.last = fields["id"]
        self.seen.append(self.last)
        if name == "metadata":
            first = data.get("replaces_from", 10**9)
            self.held = [one for one in self.held if one[0] < first]
            return
        self.held.append((int(self.last.partition("-")[0]), name, data))

    def text(self) -> str:
        """What the messages said, in their order."""
        partial: dict[str, str] = {}
        for _, name, data in self.held:
            if name == "messages":
                partial[data[0]["id"]] = partial.get(data[0]["id"], "") + data[0]["content"]
            elif name == "messages/partial":
                partial[data[0]["id"]] = data[0]["content"]
        return "|".join(partial.values())

    def final(self) -> list[str]:
        values = [data for _, name, data in self.held if name == "values"]
        return [one["content"] for one in values[-1]["messages"]]


SAYS = ["hi", *(" ".join(f"{number}.{n}" for n in range(40)) for number in (1, 2, 3))]


@pytest.mark.parametrize("mode", ["messages-tuple", "messages"])
def test_a_client_whose_server_is_killed_again_and_again_misses_nothing(
    server: ServerProcess, mode: str
) -> None:
    client = V1(server, mode)
    for step in (10, 35, 1, 20, 60):
        client.read(step)
        server.child.kill()
        server.start()
    client.read(10_000)
    assert client.is_over
    assert client.text() == "|".join(SAYS[1:])
    assert client.final() == SAYS
    assert len({*client.seen}) == len(client.seen)  # no event twice


async def test_langgraphs_client_reconnects_by_itself(server: ServerProcess) -> None:
    async with get_client(url=server.url, api_key=None) as client:
        stream = client.runs.stream(
            str(uuid4()),
            "ponder",
            input=HI,
            stream_mode=["messages-tuple", "values"],
            if_not_exists="create",
        )
        held: list[tuple[int, Any]] = []
        count, final = 0, {}
        async for part in stream:
            count += 1
            if count == 15:
                server.child.kill()
                server.start()
            if part.event == "metadata":
                first = part.data.get("replaces_from", 10**9)
                held = [one for one in held if one[0] < first]
            elif part.event == "messages":
                held.append((int(part.id or ""), part.data[0]["content"]))
            elif part.event == "values":
                final = part.data
        assert "".join(text for _, text in held) == "".join(SAYS[1:])
        assert [one["content"] for one in final["messages"]] == SAYS


def test_frames_of_a_thread_go_on_with_the_same_numbers(server: ServerProcess) -> None:
    thread, since = str(uuid4()), 0
    frames: list[dict[str, Any]] = []

    def read(count: int) -> None:
        nonlocal since
        path, channels = f"/threads/{thread}/stream/events", ["messages", "lifecycle", "values"]
        body = {"since": since, "channels": channels}
        with server.http() as http, http.stream("POST", path, json=body) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    frames.append(json.loads(line[6:]))
                    since = frames[-1]["seq"]
                    count -= 1
                    if not count or frames[-1]["params"]["data"].get("event") == "completed":
                        return

    command = {"id": 1, "method": "run.start", "params": {"assistant_id": "ponder", "input": HI}}
    with server.http() as http:
        http.post(f"/threads/{thread}/commands", json=command).raise_for_status()
    for step in (10, 45, 60):
        read(step)
        server.child.kill()
        server.start()
    read(10_000)
    numbers = [one["seq"] for one in frames]
    assert numbers == sorted({*numbers})
    messages: dict[str, str] = {}
    for one in frames:
        data = one["params"]["data"]
        if data.get("event") == "content-block-delta":
            id = data["message_id"]
            messages[id] = messages.get(id, "") + data["delta"]["text"]
        elif data.get("event") == "error":
            del messages[data["message_id"]]
    assert list(messages.values()) == SAYS[1:]


def test_a_server_that_is_asked_to_stop_cuts_its_streams_and_stops(server: ServerProcess) -> None:
    client = V1(server, "messages-tuple")
    with server.http() as http, client.opened(http) as reply:
        lines = reply.iter_lines()
        next(lines)
        began = time.monotonic()
        server.child.send(signal.SIGTERM)
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
    server.child.wait()
    assert time.monotonic() - began < 10
