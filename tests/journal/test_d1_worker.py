"""The shipped Worker, `cloudflare/worker.js`, in workerd: who may use it, frames, kinds of errors,
and its cron."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import httpx
import pytest

from perdure.testing.d1 import Workerd


class Answer(NamedTuple):
    status: int
    head: Any
    blobs: bytes


class Worker:
    """Speaks to the Worker of one database."""

    def __init__(self, server: Workerd, url: str) -> None:
        self._server = server
        self.number = int(url.rstrip("/").rsplit("/", 1)[1])
        self.address = f"http://127.0.0.1:{server.port}/{self.number}"

    def post(self, body: bytes, secret: str = "", error: str = "", env: Any = None) -> Answer:
        """Send a body; D1 fails with `error`, and the Worker's secrets are those of `env`."""
        headers = {"Authorization": f"Bearer {secret or self._server.secret}"}
        headers |= {"X-D1-Error": error} if error else {}
        headers |= {"X-Env": json.dumps(env)} if env else {}
        reply = httpx.post(f"{self.address}/v1/batch", content=body, headers=headers, verify=False)
        assert reply.headers["X-Perdure"] == "1"
        [length] = struct.unpack_from(">I", reply.content)
        head, blobs = reply.content[4 : 4 + length], reply.content[4 + length :]
        return Answer(reply.status_code, json.loads(head), blobs)

    def batch(self, *calls: tuple[str, list[Any]], blobs: bytes = b"", error: str = "") -> Answer:
        head = {
            "sql": [sql for sql, _ in calls],
            "calls": [[n, params] for n, (_, params) in enumerate(calls)],
        }
        return self.post(frame(head, blobs), error=error)

    def status(self, **headers: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._server.secret}"} | headers
        return httpx.get(f"{self.address}/v1/status", headers=headers, verify=False)

    def cron(self, tick_url: str) -> str | None:
        return self._server.trigger_cron(self.number, tick_url=tick_url, tick_secret="s" * 32)


def frame(head: Any, blobs: bytes = b"") -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack(">I", len(text)) + text + blobs


@pytest.fixture
def worker(d1_server: Workerd, empty_d1_url: str) -> Worker:
    return Worker(d1_server, empty_d1_url)


# -- who may use it


def test_a_wrong_secret_and_none_are_refused_before_anything_else(
    worker: Worker, d1_server: Workerd
) -> None:
    right = d1_server.secret
    for secret in ("x", "x" * 48, "x" * 500, right[:-1], right + "0", right.upper()):
        answer = worker.post(b"no frame", secret)
        assert (answer.status, answer.head["kind"]) == (401, "unauthorized")
    bare = httpx.post(f"{worker.address}/v1/batch", content=frame({"sql": [], "calls": []}))
    assert bare.status_code == 401
    assert httpx.get(f"{worker.address}/v1/status").status_code == 401


@pytest.mark.parametrize("secret", ["", "x" * 31, None])
def test_a_worker_without_a_secret_of_32_characters_refuses_everybody(
    worker: Worker, secret: str | None
) -> None:
    env = {"PERDURE_SECRET": secret}
    answer = worker.post(frame({"sql": [], "calls": []}), secret or "x", env=env)
    assert (answer.status, answer.head["kind"]) == (401, "unauthorized")
    assert "32" in answer.head["message"]


# -- frames


@pytest.mark.parametrize(
    "body",
    [
        b"",
        struct.pack(">I", 100) + b"{}",
        frame(b"not JSON"),
        frame(b"null"),
        frame({"sql": ["SELECT 1"]}),
        frame({"sql": "SELECT 1", "calls": []}),
        frame({"sql": ["SELECT 1"], "calls": [[1, []]]}),
        frame({"sql": [1], "calls": [[0, []]]}),
        frame({"sql": ["SELECT 1"], "calls": [0]}),
        frame({"sql": ["SELECT ?"], "calls": [[0, [True]]]}),
        frame({"sql": ["SELECT ?"], "calls": [[0, [{}]]]}),
        frame({"sql": ["SELECT ?"], "calls": [[0, [{"b": -1}]]]}, b"x"),
        frame({"sql": ["SELECT ?"], "calls": [[0, [{"b": 3}]]]}, b"ab"),
        frame({"sql": ["SELECT ?"], "calls": [[0, [{"b": 1}]]]}, b"ab"),
        frame({"sql": ["SELECT 1"], "calls": []}, b"left"),
    ],
)
def test_what_is_not_a_frame_is_a_bad_request(worker: Worker, body: bytes) -> None:
    answer = worker.post(body)
    assert (answer.status, answer.head["kind"]) == (400, "bad_request")
    assert answer.head["message"]


def test_another_path_or_method_is_a_bad_request(worker: Worker, d1_server: Workerd) -> None:
    headers = {"Authorization": f"Bearer {d1_server.secret}"}
    assert httpx.get(f"{worker.address}/v1/batch", headers=headers).status_code == 400
    assert httpx.post(f"{worker.address}/v2/batch", headers=headers).status_code == 400


def test_values_come_back_in_the_order_of_their_columns(worker: Worker) -> None:
    answer = worker.batch(
        ("SELECT ?1 AS z, ?2 AS a, ?3 AS m, unhex(?4) AS b", [None, 1.5, "it's é ☃", {"b": 3}]),
        ("SELECT 1 AS n WHERE 0", []),
        ("SELECT unhex(?) AS b, 7 AS n", [{"b": 2}]),
        blobs=b"\0\1\xffhi",
    )
    assert answer.status == 200
    assert answer.head["rows"] == [
        [[None, 1.5, "it's é ☃", {"b": 3}]],
        [],
        [[{"b": 2}, 7]],
    ]
    assert answer.blobs == b"\0\1\xffhi"


def test_a_quoted_blob_becomes_bytes_in_a_column_of_the_journal_only(worker: Worker) -> None:
    sql = "SELECT quote(x'00FF') AS c0, quote(9007199254740993) AS c1, quote('X''') AS c2, ? AS t"
    answer = worker.batch((sql, ["X'00'"]))
    assert answer.head["rows"] == [[[{"b": 2}, "9007199254740993", "'X'''", "X'00'"]]]
    assert answer.blobs == b"\x00\xff"


def test_a_text_that_begins_as_a_quoted_blob_does_is_answered_as_it_is(worker: Worker) -> None:
    answer = worker.batch(("SELECT ? AS c0", ["X'rated"]))
    assert (answer.status, answer.head["rows"]) == (200, [[["X'rated"]]])


def test_an_empty_blob_comes_back_as_a_blob(worker: Worker) -> None:
    answer = worker.batch(("SELECT quote(unhex(?)) AS c0, unhex('') AS b", [{"b": 0}]))
    assert answer.head["rows"] == [[[{"b": 0}, {"b": 0}]]]


def test_a_batch_without_calls_is_answered_without_asking_d1(worker: Worker) -> None:
    answer = worker.batch(error="D1 was asked")
    assert (answer.status, answer.head["rows"]) == (200, [])


def test_rows_read_and_written_are_counted(worker: Worker) -> None:
    worker.batch(("CREATE TABLE t (n INTEGER PRIMARY KEY)", []))
    written = worker.batch(("INSERT INTO t VALUES (1), (2)", []), ("INSERT INTO t VALUES (3)", []))
    assert written.head["written"] == 3
    read = worker.batch(("SELECT n FROM t", []))
    assert (read.head["read"], read.head["written"]) == (3, 0)
    assert read.head["size"] > 0


def test_a_batch_is_one_transaction(worker: Worker) -> None:
    worker.batch(("CREATE TABLE t (n INTEGER PRIMARY KEY)", []))
    insert: tuple[str, list[Any]] = ("INSERT INTO t VALUES (1)", [])
    assert worker.batch(insert, insert).head["kind"] == "statement"
    assert worker.batch(("SELECT count(*) AS n FROM t", [])).head["rows"] == [[[0]]]


# -- errors


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("INSERT INTO perdure_t VALUES (NULL, 1)", "refused"),
        ("INSERT INTO mine VALUES (NULL)", "statement"),
        ("INSERT INTO perdure_t VALUES (1, 1), (2, 1)", "statement"),
        ("SELECT * FROM nowhere", "statement"),
        ("SELEKT 1", "statement"),
        ("SELECT ?", "statement"),
        ("SELECT length(zeroblob(2147483648))", "statement"),
        (f"SELECT {'?1 + ' * 10}?101", "statement"),
        ("PRAGMA journal_mode = DELETE", "statement"),
        ("BEGIN", "statement"),
        ("-- nothing", "statement"),
    ],
)
def test_an_error_of_sqlite_has_its_kind_and_nothing_is_written(
    worker: Worker, sql: str, kind: str
) -> None:
    worker.batch(
        ("CREATE TABLE perdure_t (n NOT NULL, u UNIQUE)", []),
        ("CREATE TABLE mine (n NOT NULL)", []),
    )
    answer = worker.batch(("INSERT INTO mine VALUES (1)", []), (sql, []))
    assert (answer.head["ok"], answer.head["kind"]) == (False, kind), answer
    assert answer.status == {"refused": 409, "statement": 422}[kind]
    assert worker.batch(("SELECT count(*) AS n FROM mine", [])).head["rows"] == [[[0]]]


@pytest.mark.parametrize(
    ("message", "kind", "status"),
    [
        ("D1_ERROR: D1 DB is overloaded. Requests queued for too long.", "busy", 503),
        ("D1_ERROR: database is locked: SQLITE_BUSY", "busy", 503),
        ("D1_ERROR: Exceeded maximum DB size.", "full", 507),
        ("D1_ERROR: database or disk is full: SQLITE_FULL", "full", 507),
        ("D1_ERROR: string or blob too big: SQLITE_TOOBIG", "statement", 422),
        ("D1_ERROR: too many SQL variables at offset 7: SQLITE_ERROR", "statement", 422),
        ("D1_TYPE_ERROR: Type 'bigint' not supported for value '1'", "statement", 422),
        ("D1_ERROR: UNIQUE constraint failed: overloaded.id: SQLITE_CONSTRAINT", "statement", 422),
        ("D1_ERROR: Network connection lost.", "unknown", 500),
        ("D1_ERROR: internal error; reference = 429", "unknown", 500),
        ("D1_ERROR: disk I/O error: SQLITE_IOERR", "unknown", 500),
        ("something new", "unknown", 500),
    ],
)
def test_an_error_of_d1_has_its_kind(worker: Worker, message: str, kind: str, status: int) -> None:
    answer = worker.batch(("SELECT 1", []), error=message)
    assert (answer.status, answer.head) == (status, {"ok": False, "kind": kind, "message": message})


# -- the cron


class Host:
    """A Python host whose next answers are told beforehand; then it answers 200."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str]] = []
        self.seen: list[tuple[str, str | None]] = []
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                host.seen.append((self.path, self.headers["Authorization"]))
                status, text = host.answers.pop(0) if host.answers else (200, '{"claimed": 0}')
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/cron/tick"
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


def test_the_status_says_that_no_cron_has_run_or_that_the_database_is_down(worker: Worker) -> None:
    assert worker.status().json() == {"worker": "perdure", "protocol": 1, "cron": None}
    reply = worker.status(**{"X-D1-Error": "D1_ERROR: Network connection lost."})
    assert (reply.status_code, reply.headers["X-Perdure"]) == (500, "1")


def test_a_tick_is_posted_with_its_secret_and_its_result_is_shown(
    worker: Worker, host: Host
) -> None:
    assert worker.cron(host.url) is None
    assert host.seen == [("/cron/tick", f"Bearer {'s' * 32}")]
    shown = worker.status().json()["cron"]
    assert shown.pop("time")
    assert shown == {"tries": 1, "status": 200, "body": '{"claimed": 0}', "error": None}


def test_a_busy_host_is_asked_again(worker: Worker, host: Host) -> None:
    host.answers = [(503, "starting"), (429, "slowly")]
    assert worker.cron(host.url) is None
    shown = worker.status().json()["cron"]
    assert (len(host.seen), shown["tries"], shown["status"]) == (3, 3, 200)


def test_a_host_that_fails_three_times_fails_the_event_and_is_shown(
    worker: Worker, host: Host
) -> None:
    host.answers = [(500, "x" * 1000)] * 3
    failed = worker.cron(host.url) or ""
    assert "at attempt 3" in failed
    shown = worker.status().json()["cron"]
    assert (len(host.seen), shown["tries"], shown["status"]) == (3, 3, 500)
    assert shown["body"] == "x" * 500
    assert "500" in shown["error"]
    assert worker.cron(host.url) is None
    assert worker.status().json()["cron"]["error"] is None


def test_a_host_that_is_down_is_tried_three_times_and_fails_the_event(
    worker: Worker, host: Host
) -> None:
    host.close()
    failed = worker.cron(host.url) or ""
    assert "cannot be reached" in failed
    shown = worker.status().json()["cron"]
    assert (shown["tries"], shown["status"]) == (3, None)


@pytest.mark.parametrize("status", [301, 401, 404])
def test_a_wrong_address_or_secret_is_not_tried_again(
    worker: Worker, host: Host, status: int
) -> None:
    host.answers = [(status, "no")]
    failed = worker.cron(host.url) or ""
    assert str(status) in failed
    assert len(host.seen) == 1, "a redirect would get the secret"


def test_without_an_address_the_cron_does_nothing(worker: Worker) -> None:
    assert worker.cron("") is None
    assert worker.status().json()["cron"] is None
