"""Connections to PostgreSQL: at most a few, each made by the caller that needs it, with a deadline.

There is no thread in the background and nothing to reconnect: a connection that failed, or that
the server hung up on while it was idle, is closed, and the next caller makes a new one, trying
again until its own deadline.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from perdure.errors import Closed, Unavailable
from perdure.journal.postgres_errors import Standby, Unfit, reason

T = TypeVar("T")

POLL = 0.25
"""Seconds between two checks of the deadline while waiting for the server."""
PAUSE = 0.1
"""Seconds between two attempts to connect."""
# What a new connection is set to, and asked. A batch whose client is gone must not keep its
# locks, and a server set to acknowledge before it has written is overruled.
_GREETING = """
SELECT pg_is_in_recovery(), current_setting('transaction_read_only'),
       set_config('statement_timeout', %(patience)s, false),
       set_config('idle_in_transaction_session_timeout', %(patience)s, false),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
         WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)
"""


class Unreplicated(psycopg.OperationalError):
    """A COMMIT whose wait for a synchronous standby was cancelled: its outcome is unknown."""


class Connection(psycopg.Connection[Any]):
    """A connection that waits for the server until `give_up`, and not longer."""

    give_up: float = float("inf")
    prepared: dict[tuple[bytes, tuple[int, ...]], bytes]
    """Statements that were used on it, by their types: the names of those that are prepared."""
    unreplicated: bool = False
    """Whether a COMMIT returned without its wait for a synchronous standby."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.prepared = {}
        self.add_notice_handler(self._note_unreplicated)

    def _note_unreplicated(self, notice: psycopg.errors.Diagnostic) -> None:
        # By the name of the function: messages may be in any language.
        if notice.source_function == "SyncRepWaitForLSN":
            self.unreplicated = True

    def check_replicated(self) -> None:
        """After a COMMIT. An administrator may have ended its wait; then it returns all the same,
        with a warning."""
        if self.unreplicated:
            self.close()
            raise Unreplicated("the wait for the synchronous standby was cancelled")

    def wait(
        self, gen: Generator[Any, Any, T], interval: float = POLL, timeout: float | None = None
    ) -> T:
        left = max(0.0, self.give_up - time.monotonic())
        return super().wait(gen, interval, left if timeout is None else min(left, timeout))

    def hung_up(self) -> bool:
        """Whether an idle connection sends something: nothing was asked, so it is the end."""
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return bool(poll.poll(0))


class Pool:
    """The connections of one process to one database."""

    def __init__(self, url: str, *, size: int, deadline: float) -> None:
        self._url, self._size, self._deadline = url, size, deadline
        self._pid = os.getpid()
        self._closed = False
        self._free = threading.BoundedSemaphore(size)
        self._idle: list[Connection] = []

    def connect(self) -> Connection:
        """A new connection. Raises what psycopg raises, `Standby` and `Unfit`."""
        give_up = time.monotonic() + self._deadline
        connection = Connection.connect(
            self._url,
            autocommit=True,
            prepare_threshold=2,
            connect_timeout=max(2, int(min(self._deadline, 10))),
            application_name="perdure",
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
        )
        try:
            connection.give_up = give_up
            # In ms, and shorter than ours: a server that gives up first says so, and all is known.
            patience = {"patience": str(int(self._deadline * 800))}
            [(is_standby, read_only, *_)] = connection.execute(_GREETING, patience).fetchall()
            if is_standby:
                raise Standby(
                    "the server is a standby (a read replica) and accepts no writes until it is "
                    "promoted; a journal needs the primary's address"
                )
            if read_only == "on":
                raise Unfit(
                    "it is read-only: default_transaction_read_only is on. Set it to off for the "
                    "role, or use the primary's address"
                )
        except BaseException:
            connection.close()
            raise
        return connection

    @contextlib.contextmanager
    def connection(self, give_up: float) -> Iterator[Connection]:
        """A connection for one transaction, alone. Raises `Unavailable` when there is none."""
        if not self._free.acquire(timeout=max(0.0, give_up - time.monotonic())):
            raise Unavailable(f"All {self._size} connections were in use until the deadline.")
        try:
            connection = self._idle_one() or self._new_one(give_up)
            connection.give_up = give_up
            try:
                yield connection
            finally:
                self.give_back(connection)
        finally:
            self._free.release()

    def _idle_one(self) -> Connection | None:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread took the last one
                connection = self._idle.pop()
                if not connection.hung_up():
                    return connection
                connection.close()
        return None

    def _new_one(self, give_up: float) -> Connection:
        while not self._closed:
            try:
                return self.connect()
            except psycopg.Error as error:
                if time.monotonic() + PAUSE > give_up:
                    raise Unavailable(f"No connection: {reason(error)}") from error
            time.sleep(PAUSE)  # a server that restarts is back in a moment
        raise Closed("This journal is closed; open it again with perdure.connect(url).")

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next caller, if it is as good as new."""
        status = connection.pgconn.transaction_status
        if status == TransactionStatus.IDLE and not self._closed:
            self._idle.append(connection)
            return
        # After an error inside a pipeline psycopg no longer knows which statements the server
        # has prepared, so a connection whose batch failed is not used again.
        connection.close()
        if status in (TransactionStatus.ACTIVE, TransactionStatus.UNKNOWN):
            self._close_idle()  # what broke this one broke the others most likely

    def _close_idle(self) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().close()

    def close(self) -> None:
        """Close every connection, those in use when they come back."""
        self._closed = True
        if self._pid == os.getpid():  # else they are another process's
            self._close_idle()
