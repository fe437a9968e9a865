"""A client whose server is killed again and again misses nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.fork_server import ForkServer
from tests.support.polling import until

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
        self.child = self._forks.start("streaming_child:serve", **order)
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
