"""Connections to PostgreSQL: at most a few, each made by the caller that needs it, with a deadline.

There is no thread in the background and nothing to reconnect: a connection that failed, or that
the server hung up on while it was idle, is closed, and the next caller makes a new one, trying
again until its own deadline.

A batch goes out in one round trip (`Connection.batch`): psycopg's pipeline without its cursors,
of which one for each statement costs several times what libpq does. The statements are handed to
libpq one after the other, flushed once, and their results fetched in order. psycopg converts the
values, waits and makes the errors, as it does for cursors. A statement that is used again on a
connection is prepared.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import IsolationLevel, abc, errors, pq, sql
from psycopg.adapt import PyFormat, Transformer
from psycopg.conninfo import conninfo_to_dict
from psycopg.generators import fetch_many, send
from psycopg.pq import TransactionStatus

from perdure import failpoints
from perdure.errors import BadURL, Closed, Unavailable
from perdure.journal.operation import Row, Statement
from perdure.journal.postgres_errors import Standby, Unfit, reason
from perdure.journal.postgres_history import PLACE, History, Hosts, Place, hang_up
from perdure.journal.went_back import Acknowledged

T = TypeVar("T")

POLL = 0.25
"""Seconds between two checks of the deadline while waiting for the server."""
PAUSE = 0.1
"""Seconds between two attempts to connect."""
# What a new connection is set to, and asked. A batch whose client is gone must not keep its
# locks, and a server set to acknowledge before it has written is overruled.
_GREETING = f"""
SELECT here.*, pg_is_in_recovery(), current_setting('transaction_read_only'), pg_backend_pid(),
       current_setting('server_encoding'), current_setting('client_encoding'),
       current_setting('search_path'), current_schema(),
       set_config('statement_timeout',
         COALESCE(%(statement_timeout)s, current_setting('statement_timeout')), false),
       set_config('idle_in_transaction_session_timeout',
         COALESCE(%(idle_in_transaction_session_timeout)s,
                  current_setting('idle_in_transaction_session_timeout')), false),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
         WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)
FROM ({PLACE}) AS here
"""  # noqa: S608 (our own text)


# Run as a prepared statement, it finds itself under psycopg's name, unless a pooler that follows
# prepared statements gave it another.
_PROBE = """
SELECT name /* whether a pooler follows prepared statements */ FROM pg_prepared_statements
WHERE statement LIKE '%whether a pooler follows prepared statements%'
"""
_OURS = "_pg3_"
_OPTION = re.compile(r"(?:-c\s*|--)([\w.-]+)=((?:\\.|\S)*)")
OLDEST = 130000


def settings_of(url: str) -> dict[str, str]:
    """The settings that `options` of a URL, or of the environment, asks for."""
    options = conninfo_to_dict(url).get("options") or os.environ.get("PGOPTIONS", "")
    settings = _OPTION.findall(str(options))
    return {name.replace("-", "_"): re.sub(r"\\(.)", r"\1", value) for name, value in settings}


def parameters_of(url: str, *, connect_timeout: int, name: str) -> dict[str, Any]:
    """What a connection is made with beside its URL. Ours are defaults: what the URL, libpq's
    environment or a service file says goes first. Only the encoding is ours."""
    parameters = conninfo_to_dict(url)
    encoding = str(parameters.get("client_encoding") or "UTF8")
    if encoding.lower().replace("-", "") not in ("utf8", "unicode"):
        raise BadURL(
            f"client_encoding={encoding} in the PostgreSQL URL: perdure sends and reads UTF8. "
            "Leave it out."
        )
    ours = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
    if "PGCONNECT_TIMEOUT" not in os.environ:
        ours["connect_timeout"] = connect_timeout
    if "service" in parameters or "PGSERVICE" in os.environ:
        ours = {}
    defaults = {key: value for key, value in ours.items() if key not in parameters}
    return {**defaults, "fallback_application_name": name, "client_encoding": "UTF8"}


class Query(NamedTuple):
    """A statement with `$1`, `$2` ... for its parameters, their values, and the failpoints before
    and after it is sent."""

    sql: bytes
    values: Sequence[Any] = ()
    before: str = ""
    after: str = ""


_BINARY = pq.Format.BINARY
_PREPARED = 500
"""Statements that are prepared on a connection at most."""
_numbers = count()


class Unreplicated(psycopg.OperationalError):
    """A COMMIT whose wait for a synchronous standby was cancelled: its outcome is unknown."""


class Connection(psycopg.Connection[Any]):
    """A connection that waits for the server until `give_up`, and not longer."""

    give_up: float = float("inf")
    prepared: dict[tuple[bytes, tuple[int, ...]], bytes]
    """Statements that were used on it, by their types: the names of those that are prepared."""
    unreplicated: bool = False
    """Whether a COMMIT returned without its wait for a synchronous standby."""
    place: Place
    """Where its server was in the history of the database when it was made."""
    prepares: bool = True
    """Whether a statement that was prepared on it is there later: not behind some poolers."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.prepared = {}
        self.add_notice_handler(self._note_unreplicated)

    def _note_unreplicated(self, notice: errors.Diagnostic) -> None:
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

    def batch(self, queries: Sequence[Query]) -> list[list[Row]]:
        """The rows of each statement. Raises the error of the first that failed."""
        transformer: abc.Transformer = Transformer(self)
        dumped = [_dump(transformer, query.values) for query in queries]
        pgconn = self.pgconn
        pgconn.enter_pipeline_mode()
        is_prepare: list[bool] = []
        for query, values in zip(queries, dumped, strict=True):
            if query.before:
                failpoints.at(query.before)
            is_prepare += _send(self, query.sql, *values)
            if query.after:
                if failpoints.hook is not None:  # so that the server does what was sent so far
                    pgconn.flush()
                failpoints.at(query.after)
        pgconn.pipeline_sync()
        results = self.wait(_exchange(pgconn, len(is_prepare)))
        pgconn.exit_pipeline_mode()
        for result in results:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                self.prepared.clear()  # statements after it were not prepared
                raise errors.error_from_result(result)
        found = zip(results, is_prepare, strict=True)
        return [_rows(transformer, result) for result, prepares in found if not prepares]

    def hung_up(self) -> bool:
        """Whether an idle connection sends something: nothing was asked, so it is the end."""
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return bool(poll.poll(0))


def _dump(
    transformer: abc.Transformer, values: Sequence[Any]
) -> tuple[Sequence[Any], tuple[int, ...], Sequence[pq.Format]]:
    """Values as libpq takes them, their types and formats."""
    if not values:
        return (), (), ()
    dumped = transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
    return dumped, transformer.types or (), transformer.formats or ()


def _send(
    connection: Connection,
    sql: bytes,
    values: Sequence[Any],
    types: tuple[int, ...],
    formats: Sequence[pq.Format],
) -> Sequence[bool]:
    """Send a statement. For each result that it will have: whether it only prepares."""
    pgconn, prepared, key = connection.pgconn, connection.prepared, (sql, types)
    name = prepared.get(key) if connection.prepares else b""
    if name:
        pgconn.send_query_prepared(name, values, formats, _BINARY)
        return (False,)
    if name is None or len(prepared) > _PREPARED or not connection.prepares:
        prepared[key] = b""  # the second use prepares it
        pgconn.send_query_params(sql, values, types, formats, _BINARY)
        return (False,)
    name = prepared[key] = b"perdure_%d" % next(_numbers)
    pgconn.send_prepare(name, sql, types)
    pgconn.send_query_prepared(name, values, formats, _BINARY)
    return (True, False)


def _exchange(pgconn: pq.abc.PGconn, count: int) -> Generator[Any, Any, list[pq.abc.PGresult]]:
    yield from send(pgconn)
    results: list[pq.abc.PGresult] = []
    for _ in range(count):
        [result, *_] = yield from fetch_many(pgconn)
        results.append(result)
    yield from fetch_many(pgconn)  # the end of the pipeline
    return results


def _rows(transformer: abc.Transformer, result: pq.abc.PGresult) -> list[Row]:
    if result.status != pq.ExecStatus.TUPLES_OK or not result.ntuples:
        return []
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)


class Pool:
    """The connections of one process to one database."""

    def __init__(
        self,
        url: str,
        history: History | None = None,
        read: Callable[[Connection, Sequence[Statement]], list[list[Row]]] | None = None,
        *,
        size: int,
        deadline: float,
    ) -> None:
        """`read` is how a new connection is compared with the `history` of the database."""
        self._url, self._size, self._deadline = url, size, deadline
        self.history, self._read = history or History(Acknowledged()), read
        self._hosts = Hosts(url, self.history, self._connect, self._cut)
        timeout = max(2, int(min(deadline, 10)))
        self._parameters = parameters_of(url, connect_timeout=timeout, name="perdure")
        self._settings = settings_of(url)
        self._pid = os.getpid()
        self._closed = False
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()
        self._users: set[object] = set()
        """A token for each caller: nothing is lost if a signal handler raises in between."""
        self._lock = threading.RLock()
        self._freed = threading.Condition(self._lock)

    def _connect(self, **parameters: Any) -> Connection:
        return Connection.connect(
            self._url, autocommit=True, prepare_threshold=2, **{**self._parameters, **parameters}
        )

    def connect(self) -> Connection:
        """A new connection. Raises what psycopg raises, `Standby`, `Outdated`, `Unfit` and
        `WentBack`."""
        give_up, position = time.monotonic() + self._deadline, self.history.position
        try:
            connection = self._connect(**self._hosts.primary())
        except psycopg.Error:
            self._hosts.forget_primary()
            raise
        try:
            connection.give_up = give_up
            # In ms, and shorter than ours: a server that gives up first says so, and all is known.
            patience = str(int(self._deadline * 800))
            timeouts = ("statement_timeout", "idle_in_transaction_session_timeout")
            values = {one: None if one in self._settings else patience for one in timeouts}
            [row] = connection.execute(_GREETING, values).fetchall()
            connection.place = Place(*row[:3])
            is_standby, read_only, pid, server_encoding, encoding, path, schema, *_ = row[3:]
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
            _check_encoding(server_encoding, encoding)
            self._check_schema(path, schema)
            if (version := connection.info.server_version) < OLDEST:
                raise Unfit(f"PostgreSQL {version // 10000} is too old; perdure needs 13 or newer")
            connection.isolation_level = IsolationLevel.READ_COMMITTED  # of a psycopg transaction
            if pid != connection.info.backend_pid and not _follows_prepared(connection):
                connection.prepares, connection.prepare_threshold = False, None
            if (read := self._read) is not None:
                self.history.admit(connection.place, position, lambda some: read(connection, some))
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_schema(self, path: str, schema: str | None) -> None:
        """Raise `Unfit` unless tables are found, and made, in the schema that was asked for."""
        wanted = self._settings.get("search_path")
        if wanted is not None and _schemas(wanted) != _schemas(path):
            raise Unfit(
                f"the URL asks for search_path={wanted}, and the connection has {path}: a pooler "
                "leaves `options` out (PgBouncer's ignore_startup_parameters). Set it on the "
                "server instead, with ALTER ROLE ... IN DATABASE ... SET search_path, and leave it "
                "out of the URL"
            )
        first = _schemas(wanted or "$user")[:1]
        if schema is None or (first not in ([], ["$user"]) and first != [schema]):
            raise Unfit(
                f"search_path is {path or 'empty'}, and its first schema does not exist, or the "
                "role may not use it: CREATE SCHEMA, GRANT USAGE ON SCHEMA, or set another path"
            )

    @contextlib.contextmanager
    def connection(self, give_up: float) -> Iterator[Connection]:
        """A connection for one transaction, alone. Raises `Unavailable` when there is none."""
        user = object()
        try:
            with self._lock:
                while len(self._users) >= self._size:
                    if (left := give_up - time.monotonic()) <= 0:
                        problem = f"All {self._size} connections were in use until the deadline."
                        raise Unavailable(problem)
                    self._freed.wait(min(left, PAUSE))
                self._users.add(user)
            connection = self._idle_one() or self._new_one(give_up)
            try:
                connection.give_up = give_up
                self._hosts.watch()
                self._used.add(connection)
                yield connection
            finally:
                self._used.discard(connection)
                self.give_back(connection)
        finally:
            self._users.discard(user)
            with self._lock:
                self._freed.notify()

    def _idle_one(self) -> Connection | None:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread took the last one
                connection = self._idle.pop()
                if not (connection.hung_up() or self.history.is_outdated(connection.place)):
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

    def _cut(self) -> None:
        """End the connections to old primaries, those in use, too: they may wait for ever there."""
        for connection in [*self._used]:
            if self.history.is_outdated(connection.place):
                hang_up(connection)

    def close(self) -> None:
        """Close every connection, those in use when they come back."""
        self._closed = True
        self._hosts.close()
        if self._pid == os.getpid():  # else they are another process's
            self._close_idle()


def _check_encoding(server: str, client: str) -> None:
    if server != "UTF8":
        raise Unfit(
            f"its encoding is {server}, and a journal needs UTF8. Make a database for it: CREATE "
            "DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )
    if client != "UTF8":
        raise Unfit(
            f"client_encoding is {client} though perdure asks for UTF8: a pooler leaves it out. "
            "Set it there, or with ALTER ROLE ... SET client_encoding"
        )


def _schemas(path: str) -> list[str]:
    """The names of a search_path."""
    names = re.findall(r'"((?:[^"]|"")*)"|([^\s,"]+)', path)
    return [quoted.replace('""', '"') or plain.lower() for quoted, plain in names]


def _follows_prepared(connection: Connection) -> bool:
    """Whether the pooler that this connection goes through gives prepared statements names of its
    own: only then they are there in the next transaction, which may be on another connection."""
    try:
        with connection.transaction():
            names = [row[0] for row in connection.execute(_PROBE, prepare=True).fetchall()]
            ours = [name for name in names if name.startswith(_OURS)]
            for name in ours:  # it would be there for another client of the pooler
                connection.execute(sql.SQL("DEALLOCATE {}").format(sql.Identifier(name)))
    except errors.DuplicatePreparedStatement:
        return False
    return bool(names) and not ours
