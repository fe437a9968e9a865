"""What strangers can make a server keep: bodies that never end, and connections without number. The
server is a process of its own, and its memory is measured while it is attacked."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import re
import select
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from tests.support.agents import Log, chain, opened
from tests.support.cli_process import CliProcess
from tests.support.commands import main
from tests.support.fork_server import ForkServer
from tests.support.http import client_of
from tests.support.polling import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1024 * 1024
CONNECTIONS = 60
LARGEST, SENT = 8 * MIB, 3 * MIB
SECRET = "whsec_" + "c2VjcmV0IG9mIGEgd2ViaG9vaywgbG9uZyBlbm91Z2g="
AGENTS = "import perdure\nrt = perdure.Runtime()\n"
PUBLIC = [
    "/ui/sign-in",
    "/ui/link",
    "/ui/link/difference",
    "/ui/",
    "/perdure/hooks/t/paid",
    "/cron/tick",
    "/ok",
]
REFUSED = ["/threads", "/runs/stream", "/store/items", "/ui/runs/bulk"]


class Server:
    """A server on a command line, with a token and secrets that an attacker does not know."""

    def __init__(self, running: CliProcess) -> None:
        self.running = running
        self.port = int(running.says(r"serving .* at http://127\.0\.0\.1:(\d+)"))

    def memory(self) -> int:
        """The bytes of memory that the process has in use."""
        pages = Path(f"/proc/{self.running.pid}/statm").read_text().split()[1]
        return int(pages) * 4096

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def get(self, path: str) -> int:
        """The status of an answer on a connection of its own."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, 20)) as there:
            there.request("GET", path)
            return there.getresponse().status


@contextlib.contextmanager
def serving(fork_server: ForkServer, folder: Path, url: str, *options: str) -> Iterator[Server]:
    (folder / "agents.py").write_text(AGENTS)
    arguments = ("serve", "agents:rt", "--port", "0", "--no-worker", *options)
    environment = {
        "PERDURE_URL": url,
        "PERDURE_CRON_SECRET": "x" * 40,
        "PERDURE_HOOK_SECRETS": json.dumps({"paid": SECRET}),
    }
    running = CliProcess(fork_server, folder, *arguments, apart=False, **environment)
    try:
        yield Server(running)
    finally:
        running.close()


def make_token(url: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["tokens", "create", "ci", "--scope", "read", "--at", url]) == 0


def head(path: str, length: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\nwebhook-id: 1\r\n"
        "webhook-timestamp: 1\r\nwebhook-signature: v1,x\r\n\r\n"
    ).encode()


def chunked(path: str) -> bytes:
    begin = head(path, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    return begin.replace(b"timestamp: 1\r", f"timestamp: {int(time.time())}\r".encode())


def attack(server: Server, path: str) -> list[socket.socket]:
    """Connections that each send the first 3 MiB of the largest body, as far as the server
    takes them."""
    begin = head(path, LARGEST).replace(
        b"timestamp: 1\r", f"timestamp: {int(time.time())}\r".encode()
    )
    part = b"x" * 65536
    sending: dict[socket.socket, tuple[bytes, int]] = {}
    made = []
    for number in range(CONNECTIONS):
        connection = server.connect()
        is_chunked = number % 2 == 1
        connection.sendall(chunked(path) if is_chunked else begin)
        connection.setblocking(False)
        sending[connection] = (b"10000\r\n" + part + b"\r\n" if is_chunked else part), SENT
        made.append(connection)
    while sending:
        _, ready, _ = select.select([], list(sending), [], 0)
        if not ready:
            server.get("/ok")  # by then it has read what it takes
            _, ready, _ = select.select([], list(sending), [], 0.1)
        if not ready:
            break
        for connection in ready:
            data, left = sending.pop(connection)
            with contextlib.suppress(OSError):  # it was refused
                left -= connection.send(data[:left])
                if left > 0:
                    sending[connection] = data, left
    return made


@pytest.mark.slow
def test_bodies_of_strangers_that_never_end_take_little_memory(
    fork_server: ForkServer, tmp_path: Path, sqlite_url: str
) -> None:
    make_token(sqlite_url)
    with serving(fork_server, tmp_path, sqlite_url) as server:
        for path in ("/ok", "/ui/sign-in", "/info"):
            assert server.get(path) == 200
        before = server.memory()
        grown = {}
        for path in [*PUBLIC, *REFUSED]:
            connections = attack(server, path)
            grown[path] = (server.memory() - before) // MIB
            assert server.get("/ok") == 200
            for connection in connections:
                connection.close()
        assert max(grown.values()) < 64, grown


def answer(server: Server, sent: bytes) -> int:
    with contextlib.closing(server.connect()) as connection:
        connection.sendall(sent)
        return int(connection.recv(1000).split()[1])


@pytest.mark.slow
def test_a_caller_is_refused_before_the_body_is_read_and_one_connection_too_many_as_well(
    fork_server: ForkServer, tmp_path: Path, sqlite_url: str
) -> None:
    make_token(sqlite_url)
    with serving(fork_server, tmp_path, sqlite_url, "--max-connections", "12") as server:
        statuses = {path: answer(server, head(path, LARGEST)) for path in [*PUBLIC, *REFUSED]}
        assert statuses == {
            "/ui/sign-in": 413,
            "/ui/link": 413,
            "/ui/link/difference": 413,
            "/ui/": 303,
            "/perdure/hooks/t/paid": 401,
            "/cron/tick": 401,
            "/ok": 405,
            "/threads": 401,
            "/runs/stream": 401,
            "/store/items": 405,
            "/ui/runs/bulk": 303,
        }
        idle = [server.connect() for _ in range(12)]
        until(lambda: is_full(server), "the limit")
        idle[0].close()
        until(lambda: not is_full(server), "a free connection")
        for connection in idle:
            connection.close()


def is_full(server: Server) -> bool:
    try:
        return server.get("/ok") == 503
    except (ConnectionError, http.client.HTTPException):  # closed before it was read
        return True


async def test_a_person_with_a_link_may_send_a_long_answer(sqlite_url: str) -> None:
    def approve(state: Log) -> Log:
        return {"log": [str(perdure.ask({"draft": "short"}))]}

    async with opened(sqlite_url, public_url="http://localhost") as rt:
        rt.register(chain(approve), name="agent")
        await rt.start("agent", {"log": []}, thread_id="t")
        await rt.tick()
        [wait] = await rt.waits()
        link = await rt.link(wait.id, to="ana@example.com")
        async with client_of(rt.asgi(worker=False, ui=True)) as there:
            page = await there.get(link)
            [csrf] = set(re.findall(r'name="csrf" value="([^"]+)"', page.text))
            form = {"csrf": csrf, "how": "text", "text": "x" * 50_000, "step": "send"}
            sent = await there.post(link, data=form)
            assert sent.status_code == 303, sent.text
            forged = await there.post(f"{link}x", data=form)
            assert forged.status_code == 413
