"""A Cloudflare D1 database by its URL: what perdure's Worker is asked over HTTP, and how long.

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
import random
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

from perdure.errors import BadURL, Unavailable, needs_extra
from perdure.journal.d1_values import Params, bind
from perdure.journal.operation import Ambiguous, Refused, Row

try:
    import httpx
except ImportError as error:
    raise BadURL(needs_extra("Cloudflare D1", "d1")) from error

T = TypeVar("T")
Answer = tuple[list[list[Row]], list[list[str]]]

CONNECTIONS = 8
KEEP_ALIVE = 20.0
"""Seconds that an idle connection is kept. Cloudflare's end closes them too, later."""
CONNECT = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
PROTOCOL = 1
"""The version of what is spoken with the Worker, which its status names."""
SHORTEST_SECRET = 32
ADVICE = (
    "Check the address, and the secret in the URL or in PERDURE_D1_SECRET: it is the Worker's "
    "PERDURE_SECRET (`npx wrangler secret put PERDURE_SECRET`)."
)
"""What to check when access is denied."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class D1Error(Exception):
    """A statement is at fault. Nothing of its batch is written."""


class NotWritten(Exception):
    """The batch was not taken in. It may be sent again."""


class Denied(Unavailable):
    """The secret is wrong, or this is not the address of a D1 database."""


@dataclass
class Usage:
    """What was asked of D1 so far."""

    requests: int = 0
    rows_read: int = 0
    rows_written: int = 0
    database_bytes: int = 0
    """The size of the database, by its last answer."""


TOTAL = Usage()
"""What all clients of this process have asked so far, the journal's own among them."""
_COUNTING = threading.Lock()


def _after_fork() -> None:
    global _COUNTING  # another thread may have had it then
    _COUNTING = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class D1Client:
    """A D1 database, for any thread and forked process. `repr` shows its address, not its secret.

    url        d1://:SECRET@host/, the address of perdure's Worker and its secret
    deadline   seconds after which a batch is given up that D1 does not take in
    """

    def __init__(self, url: str, *, deadline: float = 30.0) -> None:
        self._address, self._secret = _address(url)
        self.place = self._address.replace("http", "d1", 1).replace("d1s:", "d1:")
        """The address, without the secret."""
        self._deadline = deadline
        self._http, self._pid = self._new_http(), os.getpid()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.place!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def batch(
        self, calls: Sequence[tuple[str, Params]], *, idempotent: bool = False
    ) -> list[list[Row]]:
        """Run statements in one transaction; gives the rows of each.

        An `idempotent` batch, such as one that only reads, is sent again when its answer is lost.
        Otherwise `Unavailable` says that it may be committed. D1 gives rows as objects of
        JavaScript: integers over 2^53 are rounded (select `CAST(x AS TEXT)`), 5.0 comes as 5, two
        columns of one name are one, and columns whose name is a number, as in `SELECT 2, 1`, come
        in the order of these: name them.
        """
        return self._asked(calls, idempotent)[0]

    def rows(
        self, calls: Sequence[tuple[str, Params]], *, idempotent: bool = False
    ) -> list[list[dict[str, Any]]]:
        """As `batch`, with the names of the columns."""
        rows, names = self._asked(calls, idempotent, names=True)
        return [
            [dict(zip(columns, row, strict=True)) for row in each]
            for columns, each in zip(names, rows, strict=True)
        ]

    def _asked(
        self, calls: Sequence[tuple[str, Params]], idempotent: bool, *, names: bool = False
    ) -> Answer:
        try:
            return self.ask(calls, idempotent=idempotent, names=names)
        except Ambiguous as error:
            raise Unavailable(f"{error}. Whether the batch is committed is not known.") from error

    def ask(
        self, calls: Sequence[tuple[str, Params]], *, idempotent: bool, names: bool = False
    ) -> Answer:
        """The rows of each call of a batch, which is committed then; and the names of their
        columns, if they are asked for and there are rows."""
        texts: dict[str, int] = {}
        head: list[Any] = []
        blobs: list[bytes] = []
        for sql, params in calls:
            text, values = bind(sql, params)
            head.append([texts.setdefault(text, len(texts)), _without_blobs(values, blobs)])
        asked = {"names": True} if names else {}
        body = _frame({"sql": list(texts), "calls": head, **asked}, blobs)

        def send() -> Answer:
            reply = self._request("POST", "/v1/batch", body)
            with self._reading():
                answer, rows = _opened(reply.content)
                columns = answer.get("names", [])
                if len(rows) != len(calls) or (names and len(columns) != len(calls)):
                    raise ValueError(f"it answers {len(rows)} of {len(calls)} statements")
                read, written, size = answer["read"], answer["written"], answer["size"]
                with _COUNTING:
                    TOTAL.rows_read += read
                    TOTAL.rows_written += written
                    TOTAL.database_bytes = size or TOTAL.database_bytes
                return rows, columns

        return self._until_deadline(send, idempotent)

    def status(self) -> Mapping[str, Any]:
        """What the Worker says of itself."""
        reply = self._until_deadline(lambda: self._request("GET", "/v1/status", b""), True)
        with self._reading():
            status: Mapping[str, Any] = reply.json()
            return status

    def _until_deadline(self, send: Callable[[], T], idempotent: bool) -> T:
        """What is not taken in is sent again; if it is `idempotent`, what is not answered too."""
        if self._pid != os.getpid():
            self.reopen()
        give_up, pause = time.monotonic() + self._deadline, FIRST_PAUSE
        unanswered = False
        while True:
            try:
                return send()
            except (NotWritten, Ambiguous) as error:
                if isinstance(error, Ambiguous) and not idempotent:
                    raise
                unanswered = unanswered or isinstance(error, Ambiguous)
                if time.monotonic() + pause > give_up:
                    what = "answer" if unanswered else "accept"
                    written = "What it writes may be" if unanswered else "Nothing was"
                    raise Unavailable(
                        f"{self.place} did not {what} the request within {self._deadline:g} s: "
                        f"{error}. {written} written."
                    ) from error
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (spreads the attempts)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _request(self, method: str, path: str, body: bytes) -> httpx.Response:
        """A reply of the Worker to which all went well."""
        try:
            headers = {"Content-Type": "application/octet-stream"}
            reply = self._http.request(method, self._address + path, content=body, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            reason = f"no connection ({error}). Check the address and the network"
            raise NotWritten(reason) from error
        except httpx.RequestError as error:  # also a reply that cannot be decompressed
            raise Ambiguous(f"{self.place}: {str(error) or type(error).__name__}") from error
        with _COUNTING:
            TOTAL.requests += 1
        if "X-Perdure" not in reply.headers:
            # A page may show what it was sent: the secret is hidden.
            page = re.sub(r"<[^>]*>|\s+", " ", reply.text.replace(self._secret, "***")).strip()
            kind = {429: "busy", 401: "unauthorized", 403: "unauthorized", 404: "elsewhere"}
            message = f"HTTP status {reply.status_code}: {page[:200] or 'no text'}"
            raise self._error(kind.get(reply.status_code, "unknown"), message)
        if reply.status_code != 200:
            with self._reading():
                answer, _ = _opened(reply.content)
                what, message = answer["kind"], str(answer["message"])
            raise self._error(what, message)
        return reply

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A reply that is not what the Worker sends says nothing about the batch."""
        try:
            yield
        except (struct.error, ValueError, LookupError, TypeError, AttributeError) as error:
            raise Ambiguous(f"{self.place}: the reply cannot be read: {error}") from error

    def _error(self, kind: str, message: str) -> Exception:
        """What an error of the Worker, of D1, or of what is at the address means."""
        message = message.rstrip(".")
        by_kind: dict[str, Exception] = {
            "refused": Refused(message),
            "statement": D1Error(message),
            "busy": NotWritten(message),
            "full": Unavailable(f"{self.place} is full: {message}. Nothing was written."),
            "unauthorized": Denied(f"{self.place} refused the secret: {message}. {ADVICE}"),
            "elsewhere": Denied(
                f"{self.place} is not the address of a D1 journal: {message}. {ADVICE}"
            ),
            "bad_request": D1Error(f"the Worker did not understand the request: {message}"),
        }
        return by_kind.get(kind, Ambiguous(f"{self.place}: {message}"))

    def _new_http(self) -> httpx.Client:
        is_remote = self._address.startswith("https")
        return httpx.Client(
            headers={"Authorization": f"Bearer {self._secret}"},
            timeout=httpx.Timeout(self._deadline, connect=min(CONNECT, self._deadline)),
            limits=httpx.Limits(
                max_connections=CONNECTIONS,
                max_keepalive_connections=CONNECTIONS,
                keepalive_expiry=KEEP_ALIVE,
            ),
            trust_env=is_remote,
            verify=is_remote,  # loads no certificates for a loopback address
        )

    def reopen(self) -> None:
        """Leave the connections to the process that this one was forked from. On one that both
        use, each may read the answer to the other."""
        _ABANDONED.append(self._http)
        self._http, self._pid = self._new_http(), os.getpid()

    def close(self) -> None:
        self._http.close()


_ABANDONED: list[Any] = []


def _address(url: str) -> tuple[str, str]:
    """The HTTP address that a URL names, and the secret. What is malformed is not shown."""
    try:
        parts = urlsplit(url)
        host, port, password = parts.hostname, parts.port, unquote(parts.password or "")
        httpx.URL(host=(host or "").encode("idna").decode())
    except (ValueError, httpx.InvalidURL):
        host, port, password, parts = None, None, "", urlsplit("")
    if not host or parts.username or parts.query or parts.fragment:
        raise BadURL(
            "The D1 URL is malformed. It is d1://:SECRET@host/, with the address of perdure's "
            "Worker; percent-encode the characters / ? # @ : of the secret."
        )
    path = parts.path.rstrip("/")
    secret = password or os.environ.get("PERDURE_D1_SECRET", "")
    if len(secret) < SHORTEST_SECRET:
        raise BadURL(
            f"d1://{host} needs the secret of its Worker, of {SHORTEST_SECRET} characters or more: "
            "d1://:SECRET@host/, or PERDURE_D1_SECRET."
        )
    if not re.fullmatch("[!-~]+", secret):  # an HTTP library would show it in its error
        raise BadURL(
            f"The secret of d1://{host} has a space, a line break or a letter that is not ASCII."
        )
    scheme = "http" if host in _LOOPBACK else "https"  # a secret never leaves this host unencrypted
    name = f"[{host}]" if ":" in host else host
    return f"{scheme}://{name}{'' if port is None else f':{port}'}{path}", secret


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
