"""A Cloudflare D1 database by its URL: which way leads to it, and how long a batch is tried."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

import httpx

from perdure.errors import BadURL, Unavailable
from perdure.journal.d1_binding import Call, Params
from perdure.journal.d1_transports import (
    Answer,
    NotWritten,
    RestTransport,
    Transport,
    Usage,
    WorkerTransport,
)
from perdure.journal.operation import Ambiguous, Row

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
SHORTEST_SECRET = 32
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_REST_PATH = re.compile(r"/accounts/[^/]+/d1/database/[^/]+$")


class D1Client:
    """A D1 database, for any thread and forked process. `repr` shows its address, not its secret.

    url        d1://:SECRET@host/ for perdure's Worker; with the path of an account's database,
               d1://:TOKEN@api.cloudflare.com/client/v4/accounts/A/d1/database/B, the REST API
    deadline   seconds after which a batch is given up that D1 does not take in
    """

    def __init__(self, url: str, *, deadline: float = 30.0) -> None:
        self._url, self._deadline = url, deadline
        self._http, self._pid = _connect(url, deadline), os.getpid()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.place!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def place(self) -> str:
        """The address, without the secret."""
        return self._http.place

    @property
    def by_rest(self) -> bool:
        """Whether it goes through the REST API, and not through a Worker."""
        return isinstance(self._http, RestTransport)

    @property
    def usage(self) -> Usage:
        return self._http.usage

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
        return self._ask(calls, idempotent).rows

    def rows(
        self, calls: Sequence[tuple[str, Params]], *, idempotent: bool = False
    ) -> list[list[dict[str, Any]]]:
        """As `batch`, with the names of the columns."""
        names, rows = self._ask(calls, idempotent, names=True)
        return [
            [dict(zip(columns, row, strict=True)) for row in each]
            for columns, each in zip(names, rows, strict=True)
        ]

    def _ask(
        self, calls: Sequence[tuple[str, Params]], idempotent: bool, *, names: bool = False
    ) -> Answer:
        sent = [Call(*call) for call in calls]
        again = (NotWritten, Ambiguous) if idempotent else (NotWritten,)
        try:
            return self._until_deadline(lambda: self._http.ask(sent, names), *again)
        except Ambiguous as error:
            raise Unavailable(f"{error}. Whether the batch is committed is not known.") from error

    def write(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Commit a batch. One that is not taken in is sent again until the deadline."""
        return self._until_deadline(lambda: self._http.send(calls), NotWritten)

    def read(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Run a batch that may be run twice."""
        return self._until_deadline(lambda: self._http.send(calls), NotWritten, Ambiguous)

    def status(self) -> Mapping[str, Any]:
        """What the Worker says of itself; empty for the REST API."""
        return self._until_deadline(lambda: self._http.status(), NotWritten, Ambiguous)

    def _until_deadline(self, send: Callable[[], T], *again: type[Exception]) -> T:
        if self._pid != os.getpid():
            self.reopen()
        give_up, pause = time.monotonic() + self._deadline, FIRST_PAUSE
        unanswered = False
        while True:
            try:
                return send()
            except again as error:
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

    def reopen(self) -> None:
        """Leave the connections to the process that this one was forked from. On one that both
        use, each may read the answer to the other."""
        _ABANDONED.append(self._http)
        self._http, self._pid = _connect(self._url, self._deadline), os.getpid()

    def close(self) -> None:
        self._http.close()


_ABANDONED: list[Any] = []


def _connect(url: str, deadline: float) -> Transport:
    address, secret = _address(url)
    kind = RestTransport if _REST_PATH.search(address) else WorkerTransport
    return kind(address, secret, deadline)


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
    if len(secret) < (1 if _REST_PATH.search(path) else SHORTEST_SECRET):
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
