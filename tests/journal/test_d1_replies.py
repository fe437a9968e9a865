"""What a reply of D1 means. One that makes no sense says nothing: the batch may be committed."""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from perdure.errors import Unavailable
from perdure.journal.d1_client import D1Client
from perdure.journal.d1_values import Call
from perdure.journal.operation import Ambiguous

SECRET = "a-secret-of-more-than-32-characters"
OURS = {"X-Perdure": "1"}


def frame(head: Any, blobs: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return struct.pack(">I", len(text)) + text + blobs


def counted(rows: Any) -> dict[str, Any]:
    return {"ok": True, "rows": rows, "read": 0, "written": 0, "size": 0}


class Server(ThreadingHTTPServer):
    """Gives one answer to whatever it is asked, and keeps its connections."""

    answer: tuple[int, dict[str, str], bytes]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ports: list[int] = []
        """Of the client, for each request."""

    def url(self) -> str:
        return f"d1://:{SECRET}@127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.server.ports.append(self.client_address[1])
        self.rfile.read(int(self.headers["Content-Length"]))
        status, headers, body = self.server.answer
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        serving = threading.Thread(target=server.serve_forever, args=[0.02])
        serving.start()
        yield server
        server.shutdown()
        serving.join()


@pytest.mark.parametrize(
    "answer",
    [
        (200, OURS, frame([])),
        (200, OURS, frame({"ok": True, "rows": [[]]})),
        (200, OURS, frame({**counted([[]]), "read": "1"})),
        (200, OURS, frame(counted([]))),
        (200, OURS, frame(counted([[], []]))),
        (200, OURS, frame(counted([[[{"b": 2}]]]), b"1")),
        (200, OURS, b""),
        (500, OURS, frame({"ok": False})),
        (409, OURS, frame([])),
        (302, {"Location": "/elsewhere"}, b""),
        (200, {**OURS, "Content-Encoding": "gzip"}, b"not gzip"),
    ],
)
def test_a_reply_that_makes_no_sense_leaves_open_whether_the_batch_is_committed(
    server: Server, answer: tuple[int, dict[str, str], bytes]
) -> None:
    server.answer = answer
    with closing(D1Client(server.url(), deadline=0.1)) as client:
        with pytest.raises(Ambiguous) as error:
            client.ask([Call("INSERT INTO t VALUES (1)")], idempotent=False)
        assert SECRET not in str(error.value)
        with pytest.raises(Unavailable, match=r"did not answer .* may be written"):
            client.batch([("INSERT INTO t VALUES (1)", ())], idempotent=True)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_does_not_read_the_answers_of_its_parent(server: Server) -> None:
    server.answer = (200, OURS, frame(counted([[]])))
    with closing(D1Client(server.url(), deadline=10.0)) as client:
        client.batch([("SELECT 1 WHERE 0", ())])
        if (pid := os.fork()) == 0:
            try:
                client.batch([("SELECT 1 WHERE 0", ())])
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        client.batch([("SELECT 1 WHERE 0", ())])
    parents, childs, again = server.ports
    assert parents == again != childs
