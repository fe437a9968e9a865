"""The journal: one ordered log of small atomic batches, on SQLite, PostgreSQL or D1.

An operation (`Op`) is a batch of named statements and a pure function from their rows to a
result; it has no colour. The journal takes operations in order and commits them in groups.

    do(op)      run it; if it writes, wait until it is durable; `ado` is the same for coroutines
    defer(op)   queue it; a later waiter, or the timer, commits it
    flush()     wait until everything queued so far is durable

The order of the queue is the order on disk: when an operation is durable, so is every one
queued before it.

    operation           what passes between the journal and a database: Op, Statement, Backend, and
                        what a database can do: Capabilities
    journal             what can be asked of a journal; where coroutines read, several in one visit
                        to the database
    group_commit        the ordered queue whose first waiter commits for all
    committer           one batch, and whether it was committed
    went_back           what this process knows to be committed: did the database go back in time?
    collected_transaction
                        a transaction that is one batch, where none stays open
    changes             wakes those who wait for a run, in any process, or for a commit of this one;
                        passes events to a listener
    sqlite, sqlite_file the journal on SQLite; its file and its WAL
    postgres            the journal on PostgreSQL; postgres_pool: its connections and their
                        batches; postgres_errors: what an error means; postgres_history: which
                        server has the newest history
    d1                  Cloudflare D1; d1_client and d1_values
    sql, queries.sql    every statement, by name, rendered for a dialect
    migrate             schema.sql for a new journal, numbered migrations for an older one
    clock, names        the time; ids, and texts that the database can hold

Here a journal is opened by its URL: now (`connect`), or by the thread that uses it first
(`connect_later`). So making a saver or a client, and asking it for its journal, never blocks an
event loop: the first read opens it in a thread of `Reads`, the first write in the one that commits.
A database that is not available then, such as during a failover, is tried again until the deadline
of a call.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs, unquote

from perdure import failpoints
from perdure.errors import BadURL, Closed, Unavailable, needs_extra
from perdure.journal.journal import Journal
from perdure.journal.operation import (
    CONFIRM,
    NO_PROOF,
    Action,
    Backend,
    Blocking,
    Capabilities,
    EventStatement,
    Op,
    Plan,
    Poll,
    Read,
    Refused,
    Row,
    Rows,
    Statement,
    all_rows,
    as_time,
    changed,
    first_as,
    in_pieces,
    is_left,
    no_result,
    read_op,
    read_together,
    row_as,
    rows_as,
    with_params,
    write_op,
)
from perdure.journal.went_back import Acknowledged
from perdure.serde.redaction import hide_in_url

__all__ = [
    "CONFIRM",
    "NO_PROOF",
    "Action",
    "Blocking",
    "Capabilities",
    "EventStatement",
    "Journal",
    "Op",
    "Plan",
    "Poll",
    "Read",
    "Refused",
    "Row",
    "Rows",
    "Statement",
    "all_rows",
    "as_time",
    "changed",
    "connect",
    "connect_later",
    "first_as",
    "in_pieces",
    "is_left",
    "no_result",
    "read_op",
    "read_together",
    "row_as",
    "rows_as",
    "scrub",
    "version",
    "with_params",
    "write_op",
]


PAUSE = 0.2
"""Seconds between two attempts to open."""

log = logging.getLogger("perdure")


def connect(url: str | None = None, *, deadline: float = 30.0) -> Journal:
    """Open a journal and bring its schema up to date.

    Use it to share one journal between savers, or to set another deadline:
    `Saver(journal=connect(url, deadline=5))`. What would make the database unusable later is
    refused now, by name: a missing folder, a file that is not writable or not a database, a network
    file system, SQLite older than 3.39, a wrong password or secret, a newer schema. What may pass
    by itself is tried again until the deadline.

        journal = connect("postgresql://localhost/agents", deadline=5)

    `journal.capabilities` has the limits of the database. Close the journal with `close()`.

    Args:
        url: The journal: `sqlite:///agents.db`, `postgresql://…` or `d1://…`. By default the value
            of `PERDURE_URL`.
        deadline: Seconds that each call to the database may take.

    Raises:
        BadURL: The URL is not valid, or the database cannot be used.
        SchemaTooNew: A newer perdure has upgraded the journal.
        Unavailable: The database does not answer within the deadline, or is a standby.
    """
    journal = connect_later(url, deadline=deadline)
    journal.open()
    return journal


def connect_later(
    url: str | None = None, *, deadline: float = 30.0, has_listener: bool = False
) -> Journal:
    """The journal at `url`, opened by its first use; a malformed URL is refused now. With
    `has_listener` the database returns the events that it stores, for `Journal.listen`."""
    url = url or os.environ.get("PERDURE_URL")
    if not url:
        raise BadURL(
            "No database given: pass a URL such as sqlite:///agents.db, or set PERDURE_URL."
        )
    if not isinstance(url, str):
        raise BadURL(
            "A database is named by a URL such as sqlite:///agents.db, not by a "
            f"{type(url).__name__}."
        )
    backend, place, options = _backend(url)
    acknowledged = Acknowledged()

    def open() -> Backend:
        if failpoints.opening is not None:
            failpoints.opening(url)
        opened: Backend = backend(
            place,
            deadline=deadline,
            has_listener=has_listener,
            acknowledged=acknowledged,
            **options,
        )
        return opened

    return Journal(OpenedLater(backend.capabilities, open, deadline=deadline), acknowledged)


def _backend(url: str) -> tuple[Any, str, dict[str, str]]:
    """The `Backend` of a URL, what it opens, and with which options."""
    scheme = _scheme(url)
    if scheme == "sqlite":
        from perdure.journal.sqlite import SQLite

        return SQLite, *_sqlite_path(url)
    if scheme in ("postgresql", "postgres"):
        try:
            from perdure.journal.postgres import Postgres
        except ImportError as error:
            raise BadURL(needs_extra("PostgreSQL", "postgres")) from error
        return Postgres, url, {}
    if scheme == "d1":
        from perdure.journal.d1 import D1

        return D1, url, {}
    # What is given for a URL may be anything, a password among it: only its scheme is shown.
    of_worker = " The Worker at https://host/ is d1://host/." if scheme == "https" else ""
    raise BadURL(
        f"{scheme or 'What was given'} is not the start of a database URL perdure knows. Use "
        "sqlite:///agents.db, sqlite:////absolute/path.db, sqlite:///:memory:, "
        f"postgresql://user@host/database or d1://:SECRET@host/, without a +driver.{of_worker}"
    )


def version(url: str) -> int | None:
    """The version of the schema at `url`; None: there is no journal. Changes nothing."""
    backend, place, _ = _backend(url)
    found: int | None = backend.version(place)
    return found


def scrub(url: str, *, deadline: float = 30.0) -> bool:
    """Remove deleted bytes from the files of the journal at `url`. False: its database does that by
    itself, in its own time."""
    if _scheme(url) != "sqlite":
        return False
    from perdure.journal.sqlite_file import scrub as scrub_file

    scrub_file(_sqlite_path(url)[0], deadline)
    return True


def _scheme(url: str) -> str:
    """What is before the first colon, without looking at the rest, which may be malformed."""
    return url.partition(":")[0].lower() if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", url) else ""


def _sqlite_path(url: str) -> tuple[str, dict[str, str]]:
    rest = url.removeprefix("sqlite:")
    if not rest.startswith("///") or rest == "///":
        raise BadURL(
            f"{hide_in_url(url)!r} names no file. A relative path has three slashes "
            "(sqlite:///agents.db), an absolute one four (sqlite:////var/lib/agents.db)."
        )
    path, _, query = rest.removeprefix("///").partition("?")
    options = {key: values[-1] for key, values in parse_qs(query).items()}
    if unknown := options.keys() - {"synchronous"}:
        raise BadURL(
            f"{hide_in_url(url)!r}: unknown option {sorted(unknown)[0]!r}; there is 'synchronous'."
        )
    if options.get("synchronous", "full").lower() not in ("full", "normal", "extra"):
        raise BadURL(f"{hide_in_url(url)!r}: synchronous is full (the default), extra or normal.")
    return unquote(path), options


class OpenedLater:
    """A `Backend` that is opened by a function. What that raises is raised by each use. Once it is
    open, its methods are the database's own."""

    commit: Read
    read: Read
    settle: Read
    hints: Callable[[], Any]

    def __init__(
        self, capabilities: Capabilities, open: Callable[[], Backend], *, deadline: float
    ) -> None:
        self.capabilities = capabilities
        self._open, self._deadline = open, deadline
        self._opening = threading.Lock()
        self._opened: Backend | None = None
        self._closed = threading.Event()
        self.problem: Unavailable | None = None
        """Why the last attempt to open it failed, if so."""
        self._failed = float("-inf")
        self._delegate()

    def open(self) -> Backend:
        if (opened := self._opened) is not None:
            return opened
        began = time.monotonic()
        with self._opening:
            if self._opened is None:
                if self.problem is not None and self._failed >= began:
                    # Another caller tried until its deadline while this one waited.
                    raise Unavailable(str(self.problem)) from self.problem
                self._opened = self._try_to_open(began + self._deadline)
                self._delegate()
            if self._closed.is_set():
                raise Closed("This journal is closed.")
            return self._opened

    def _try_to_open(self, give_up: float) -> Backend:
        while not self._closed.is_set():
            try:
                opened = self._open()
            except Unavailable as error:
                is_first, self.problem = self.problem is None, error
                self._failed = time.monotonic()
                if self._failed + PAUSE > give_up:
                    raise
                if is_first:
                    log.warning("%s Trying again.", error)
                self._closed.wait(PAUSE)
            else:
                self.problem = None
                return opened
        raise Closed("This journal is closed.")

    def _open_and(self, name: str, *arguments: Any) -> Any:
        return getattr(self.open(), name)(*arguments)

    def _delegate(self) -> None:
        for name in ("commit", "read", "settle", "transact", "hints"):
            call = partial(self._open_and, name)
            setattr(self, name, call if self._opened is None else getattr(self._opened, name, call))

    def reopen(self) -> None:
        self._opening = threading.Lock()  # a thread of the parent may have held it
        was_closed, self._closed = self._closed.is_set(), threading.Event()
        if was_closed:
            self._opened = None
            self._delegate()
        elif self._opened is not None:
            self._opened.reopen()

    def close(self) -> None:
        self._closed.set()  # first: a caller that tries to open it gives up
        with self._opening:
            if self._opened is not None:
                self._opened.close()
