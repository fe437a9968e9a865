"""What a reply of D1 means. One that makes no sense says nothing: the batch may be committed."""

from __future__ import annotations

import json
import os
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

import pytest

from perdure.errors import Unavailable
from perdure.journal.d1_binding import Call
from perdure.journal.d1_client import D1Client
from perdure.journal.d1_transports import KINDS, D1Error
from perdure.journal.operation import Ambiguous, Refused

SECRET = "a-secret-of-more-than-32-characters"
WORKER = "/"
REST = "/client/v4/accounts/A/d1/database/B"
OURS = {"X-Perdure": "1"}


def frame(head: Any, blobs: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return struct.pack(">I", len(text)) + text + blobs


def counted(rows: Any) -> dict[str, Any]:
    return {"ok": True, "rows": rows, "read": 0, "written": 0, "size": 0}


def rest(**answer: Any) -> bytes:
    return json.dumps({"success": True, "errors": [], "result": [], **answer}).encode()


class Server(ThreadingHTTPServer):
    """Gives one answer to whatever it is asked, and keeps its connections."""

    answer: tuple[int, dict[str, str], bytes]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ports: list[int] = []
        """Of the client, for each request."""

    def url(self, path: str) -> str:
        return f"d1://:{SECRET}@127.0.0.1:{self.server_address[1]}{path}"


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
    ("path", "answer"),
    [
        (WORKER, (200, OURS, frame([]))),
        (WORKER, (200, OURS, frame({"ok": True, "rows": [[]]}))),
        (WORKER, (200, OURS, frame({**counted([[]]), "read": "1"}))),
        (WORKER, (200, OURS, frame(counted([])))),
        (WORKER, (200, OURS, frame(counted([[], []])))),
        (WORKER, (200, OURS, frame(counted([[[{"b": 2}]]]), b"1"))),
        (WORKER, (200, OURS, b"")),
        (WORKER, (500, OURS, frame({"ok": False}))),
        (WORKER, (409, OURS, frame([]))),
        (WORKER, (302, {"Location": "/elsewhere"}, b"")),
        (WORKER, (200, {**OURS, "Content-Encoding": "gzip"}, b"not gzip")),
        (REST, (502, {"Content-Encoding": "gzip"}, b"not gzip")),
        (REST, (200, {}, b"[]")),
        (REST, (200, {}, rest())),
        (REST, (200, {}, rest(result=[{"results": []}, {"results": []}]))),
        (REST, (200, {}, rest(result=[{"success": True}]))),
        (REST, (500, {}, rest(success=False, errors=[{"message": f"Bearer {SECRET}"}]))),
        (REST, (500, {}, rest(success=False, errors=None))),
    ],
)
def test_a_reply_that_makes_no_sense_leaves_open_whether_the_batch_is_committed(
    server: Server, path: str, answer: tuple[int, dict[str, str], bytes]
) -> None:
    server.answer = answer
    with closing(D1Client(server.url(path), deadline=0.1)) as client:
        with pytest.raises(Ambiguous) as error:
            client.write([Call("INSERT INTO t VALUES (1)")])
        assert SECRET not in str(error.value)
        with pytest.raises(Unavailable, match=r"did not answer .* may be written"):
            client.batch([("INSERT INTO t VALUES (1)", ())], idempotent=True)


def test_an_error_means_the_same_by_the_rest_api_as_through_the_worker() -> None:
    script = (files("perdure") / "cloudflare" / "worker.js").read_text()
    [table] = re.findall(r"^const KINDS = \[$(.*?)^\];$", script, re.DOTALL | re.MULTILINE)
    assert tuple(re.findall(r'\["(\w+)", /(.+)/i?\],', table)) == KINDS


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("NOT NULL constraint failed: perdure_entries.name: SQLITE_CONSTRAINT", Refused),
        ("no such table: t: SQLITE_ERROR", D1Error),
        ("D1 DB is overloaded. Too many requests queued.", Unavailable),
        ("Exceeded maximum DB size.", Unavailable),
        ("internal error; reference = 429", Ambiguous),
    ],
)
def test_an_error_of_the_rest_api_is_raised_by_its_kind(
    server: Server, message: str, error: type[Exception]
) -> None:
    server.answer = (400, {}, rest(success=False, errors=[{"message": message}]))
    with closing(D1Client(server.url(REST), deadline=0.1)) as client:
        with pytest.raises(error, match=re.escape(message.rstrip("."))) as raised:
            client.write([Call("INSERT INTO t VALUES (1)")])
        assert (error is Unavailable) == ("Nothing was written" in str(raised.value))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_does_not_read_the_answers_of_its_parent(server: Server) -> None:
    server.answer = (200, OURS, frame(counted([[]])))
    with closing(D1Client(server.url(WORKER), deadline=10.0)) as client:
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
