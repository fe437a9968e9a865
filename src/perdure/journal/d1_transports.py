"""The two ways to Cloudflare D1 over HTTP: through perdure's Worker, or the account's REST API.

A batch is one transaction. What comes of it is one of these:

    rows         it is committed
    D1Error      a statement is at fault; nothing is written
    Refused      a guard of the journal refused; nothing is written
    NotWritten   it was not taken in, and may be sent again
    Ambiguous    no answer, or not the Worker's: it may be committed
    Denied       the secret or the address is wrong; nothing is written
"""

from __future__ import annotations

import json
import os
import re
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import httpx

from perdure.errors import Unavailable
from perdure.journal.d1_binding import Call, bind
from perdure.journal.operation import Ambiguous, Refused, Row

CONNECTIONS = 8
KEEP_ALIVE = 20.0
"""Seconds that an idle connection is kept. Cloudflare's end closes them too, later."""
CONNECT = 5.0
PROTOCOL = 1
"""The version of what is spoken with the Worker, which its status names."""


class D1Error(Exception):
    """A statement is at fault. Nothing of its batch is written."""


class NotWritten(Exception):
    """The batch was not taken in. It may be sent again."""


class Denied(Unavailable):
    """The secret is wrong, or this is not the address of a D1 database."""


class Answer(NamedTuple):
    """What comes back for each call of a batch."""

    names: list[list[str]]
    """Of its columns, if they are asked for and there are rows."""
    rows: list[list[Row]]


@dataclass
class Usage:
    """What was asked of D1 so far."""

    requests: int = 0
    rows_read: int = 0
    rows_written: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    database_bytes: int = 0
    """The size of the database, by its last answer."""


TOTAL = Usage()
"""What all clients of this process have asked so far, the journal's own among them."""
_COUNTING = threading.Lock()


def _after_fork() -> None:
    global _COUNTING  # another thread may have had it then
    _COUNTING = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Transport:
    """One of the two ways to D1, over kept connections."""

    advice: str
    """What to check when access is denied."""

    def __init__(self, address: str, secret: str, deadline: float) -> None:
        self.address, self.place = address, address.replace("http", "d1", 1).replace("d1s:", "d1:")
        self.usage = Usage()
        self._secret = secret
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {secret}"},
            timeout=httpx.Timeout(deadline, connect=min(CONNECT, deadline)),
            limits=httpx.Limits(
                max_connections=CONNECTIONS,
                max_keepalive_connections=CONNECTIONS,
                keepalive_expiry=KEEP_ALIVE,
            ),
            trust_env=address.startswith("https"),
            verify=address.startswith("https"),  # loads no certificates for a loopback address
        )

    def send(self, calls: Sequence[Call]) -> list[list[Row]]:
        return self.ask(calls).rows

    def ask(self, calls: Sequence[Call], names: bool = False) -> Answer:
        raise NotImplementedError

    def status(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        self._client.close()

    def _request(self, method: str, path: str, body: bytes | None, kind: str) -> httpx.Response:
        try:
            reply = self._client.request(
                method, self.address + path, content=body, headers={"Content-Type": kind}
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            reason = f"no connection ({error}). Check the address and the network"
            raise NotWritten(reason) from error
        except httpx.RequestError as error:  # also a reply that cannot be decompressed
            raise Ambiguous(f"{self.place}: {str(error) or type(error).__name__}") from error
        with _COUNTING:
            for usage in (self.usage, TOTAL):
                usage.requests += 1
                usage.bytes_sent += len(body or b"")
                usage.bytes_received += len(reply.content)
        return reply

    def _count(self, read: int, written: int, size: int) -> None:
        with _COUNTING:
            for usage in (self.usage, TOTAL):
                usage.rows_read += read
                usage.rows_written += written
                usage.database_bytes = size or usage.database_bytes

    def _text(self, reply: httpx.Response) -> str:
        """The beginning of a page. A page may show what it was sent: the secret is hidden."""
        text = reply.text.replace(self._secret, "***")
        return re.sub(r"<[^>]*>|\s+", " ", text).strip()[:200] or "no text"

    def _raise_for_status(self, status: int, message: str) -> NoReturn:
        """Raise for a reply that is not about the statements."""
        if status == 429:
            raise NotWritten(f"too many requests: {message}")
        if status in (401, 403):
            raise self._denied("refused the secret", message)
        if status == 404:
            raise self._denied("is not the address of a D1 journal", message)
        raise Ambiguous(f"{self.place} answered with HTTP status {status}: {message}")

    def _raise(self, kind: str, message: str) -> NoReturn:
        """Raise for an error of the Worker or of D1."""
        message = message.rstrip(".")
        if kind == "refused":
            raise Refused(message)
        if kind == "statement":
            raise D1Error(message)
        if kind == "busy":
            raise NotWritten(message)
        if kind == "full":
            raise Unavailable(f"{self.place} is full: {message}. Nothing was written.")
        if kind == "unauthorized":
            raise self._denied("refused the secret", message)
        if kind == "bad_request":
            raise D1Error(f"the Worker did not understand the request: {message}")
        raise Ambiguous(f"{self.place}: {message}")

    def _denied(self, what: str, message: str) -> Denied:
        return Denied(f"{self.place} {what}: {message.rstrip('.')}. {self.advice}")


class WorkerTransport(Transport):
    """Through perdure's own Worker (`cloudflare/worker.js`)."""

    advice = (
        "Check the address, and the secret in the URL or in PERDURE_D1_SECRET: it is the Worker's "
        "PERDURE_SECRET (`npx wrangler secret put PERDURE_SECRET`)."
    )

    def ask(self, calls: Sequence[Call], names: bool = False) -> Answer:
        texts: dict[str, int] = {}
        head: list[Any] = []
        blobs: list[bytes] = []
        for sql, params in calls:
            text, values = bind(sql, params)
            head.append([texts.setdefault(text, len(texts)), _without_blobs(values, blobs)])
        asked = {"names": True} if names else {}
        body = _frame({"sql": list(texts), "calls": head, **asked}, blobs)
        reply = self._request("POST", "/v1/batch", body, "application/octet-stream")
        self._check(reply)
        with self._reading():
            answer, found = _opened(reply.content)
            columns = answer.get("names", [])
            if len(found) != len(calls) or (names and len(columns) != len(calls)):
                raise ValueError(f"it answers {len(found)} of {len(calls)} statements")
            self._count(answer["read"], answer["written"], answer["size"])
            return Answer(columns, found)

    def status(self) -> Mapping[str, Any]:
        reply = self._request("GET", "/v1/status", None, "application/json")
        self._check(reply)
        with self._reading():
            found: Mapping[str, Any] = reply.json()
            return found

    def _check(self, reply: httpx.Response) -> None:
        """Raise unless the Worker answered, and all went well."""
        if "X-Perdure" not in reply.headers:
            self._raise_for_status(reply.status_code, self._text(reply))
        if reply.status_code != 200:
            with self._reading():
                answer, _ = _opened(reply.content)
                kind, message = answer["kind"], str(answer["message"])
            self._raise(kind, message)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A reply that is not what the Worker sends says nothing about the batch."""
        try:
            yield
        except (struct.error, ValueError, LookupError, TypeError, AttributeError) as error:
            raise Ambiguous(f"{self.place}: the reply cannot be read: {error}") from error


class RestTransport(Transport):
    """Through the REST API of a Cloudflare account, which takes 1,200 requests in five minutes."""

    advice = (
        "Check the account and the database in the URL, and the token there or in "
        "PERDURE_D1_SECRET, which needs the permission to edit D1."
    )

    def ask(self, calls: Sequence[Call], names: bool = False) -> Answer:
        if not calls:
            return Answer([], [])
        batch = []
        for sql, params in calls:
            text, values = bind(sql, params, as_text=True)
            hexed = [one.hex().upper() if isinstance(one, bytes) else one for one in values]
            batch.append({"sql": text, "params": hexed})
        body = json.dumps({"batch": batch}).encode()
        reply = self._request("POST", "/query", body, "application/json")
        try:
            answer = reply.json()
            errors = "; ".join(one["message"] for one in answer["errors"])
            errors = errors.replace(self._secret, "***")
            if answer["success"]:
                return self._read(answer["result"], len(calls))
        except (ValueError, LookupError, TypeError, AttributeError):
            self._raise_for_status(reply.status_code, self._text(reply))
        if reply.status_code in (401, 403, 404, 429):
            self._raise_for_status(reply.status_code, errors)
        self._raise(_kind_of(errors), errors)

    def _read(self, results: Sequence[Any], count: int) -> Answer:
        """What D1 answers to so many calls."""
        if len(results) != count:
            raise ValueError(f"{len(results)} of {count} statements are answered")
        metas = [one.get("meta") or {} for one in results]
        self._count(
            sum(meta.get("rows_read", 0) for meta in metas),
            sum(meta.get("rows_written", 0) for meta in metas),
            metas[-1].get("size_after", 0),
        )
        found = [one["results"] for one in results]
        return Answer(
            [list(rows[0]) if rows else [] for rows in found],
            [[tuple(map(_from_rest, row.values())) for row in rows] for rows in found],
        )


KINDS = (  # as in worker.js, which says why; a test compares them
    ("refused", r"NOT NULL constraint failed: perdure_\w+\.\w+: SQLITE_CONSTRAINT"),
    ("full", r": SQLITE_FULL|exceeded maximum DB size"),
    ("busy", r": SQLITE_(BUSY|LOCKED)"),
    ("statement", r": SQLITE_(CONSTRAINT|ERROR|TOOBIG|MISMATCH|RANGE|AUTH)|^D1_TYPE"),
    ("statement", r"Wrong number of parameter bindings|too many SQL variables"),
    (
        "statement",
        r"^(D1_ERROR: )?(To execute a transaction|No SQL statements|SQL code did not contain)",
    ),
    ("busy", r"overloaded|too many requests"),
)


def _kind_of(message: str) -> str:
    """What an error of D1 means. The Worker says it; the REST API only passes the text on."""
    kinds = (kind for kind, pattern in KINDS if re.search(pattern, message, re.IGNORECASE))
    return next(kinds, "unknown")


def _opened(content: bytes) -> tuple[Any, list[list[Row]]]:
    """The head of a reply's frame, and the rows of each call, with their blobs."""
    [length] = struct.unpack_from(">I", content)
    head = json.loads(content[4 : 4 + length])
    place = 4 + length

    def cell(value: Any) -> Any:
        nonlocal place
        if not isinstance(value, dict):
            return value
        start, place = place, place + value["b"]
        return content[start:place]

    rows = [[tuple(map(cell, row)) for row in each] for each in head.get("rows", ())]
    if place != len(content):
        raise ValueError(f"it has {len(content)} bytes, not {place}")
    return head, rows


def _from_rest(cell: Any) -> Any:
    return bytes(cell) if isinstance(cell, list) else cell


def _frame(head: Any, blobs: Sequence[bytes]) -> bytes:
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    return b"".join([struct.pack(">I", len(text)), text, *blobs])


def _without_blobs(values: Sequence[Any], blobs: list[bytes]) -> list[Any]:
    """The values for the head of a frame. Blobs are appended to `blobs`."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, bytes):
            blobs.append(value)
            value = {"b": len(value)}
        found.append(value)
    return found
