"""The journal on PostgreSQL: a pool, a deadline on every call, one round trip per batch.

psycopg is used by the threads of the journal, which block; coroutines wait for those. A batch goes
out as one pipeline (`postgres_pool`) with its BEGIN and COMMIT, so a broken connection leaves
the outcome open, and the journal settles it by reading its own key.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from perdure import failpoints
from perdure.errors import BadArgument, BadURL, Unavailable
from perdure.journal.changes import changed_names, streamed_names
from perdure.journal.migrate import migrate, migrations, version
from perdure.journal.operation import (
    ENDED_INSIDE,
    Ambiguous,
    Capabilities,
    Refused,
    Row,
    Statement,
    Transaction,
)
from perdure.journal.postgres_errors import GUARD, Meaning, Unfit, may_pass, meaning, reason
from perdure.journal.postgres_history import History
from perdure.journal.postgres_pool import PAUSE, Connection, Pool, Query, parameters_of
from perdure.journal.sql import render
from perdure.journal.went_back import Acknowledged, warn_unreplicated

A = TypeVar("A")
T = TypeVar("T")

log = logging.getLogger("perdure")

FRAGMENTS = {
    "text": 'TEXT COLLATE "C"',
    "blob": "BYTEA",
    "one_tree": "",
    "utf8_body": "convert_to(body, 'UTF8')",
    "roomy": "ALTER TABLE perdure_runs SET (fillfactor = 70)",
    "events_stay": (
        "CREATE FUNCTION perdure_events_stay() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'perdure: an event is never changed'; END $$;\n"
        "CREATE TRIGGER perdure_events_stay BEFORE UPDATE ON perdure_events "
        "FOR EACH ROW EXECUTE FUNCTION perdure_events_stay()"
    ),
    # A cast that fails when it is evaluated, and not before, as `concat` is not immutable. A NOT
    # NULL column would refuse it too, but quote the whole row in the server's log.
    "refuse": f"CAST(concat('{GUARD}') AS BIGINT)",
    "keep": "FOR KEY SHARE",
    "share": "FOR SHARE",
    "lock": "FOR UPDATE",
    "skip": "FOR UPDATE SKIP LOCKED",
    "identity": (
        "SELECT current_database(), CAST(extract(epoch FROM pg_postmaster_start_time()) AS TEXT)"
        " || CAST(current_schemas(false) AS TEXT)"
    ),
    "standbys": (
        "SELECT current_setting('synchronous_standby_names'), "
        "(SELECT COUNT(*) FROM pg_stat_replication)"
    ),
    "bytes": (
        "CAST(SUM(pg_total_relation_size(c.oid)) AS BIGINT) FROM pg_class AS c "
        "WHERE c.relkind = 'r' AND c.relname LIKE 'perdure%' AND pg_table_is_visible(c.oid)"
    ),
    "names": "SELECT jsonb_array_elements_text(CAST(:names AS JSONB))",
    "clock": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
}
CONNECTIONS = 8
CHANNEL = "perdure"
LONGEST = 7_900
"""Maximum bytes of a notification's payload; PostgreSQL allows fewer than 8,000."""
MIGRATION_LOCK = 0x7065726475726500  # "perdure"
_WRITE = b"BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE"
_NOTIFY = f"pg_notify('{CHANNEL}', $1)"
_READ = b"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"


def schema_version(url: str, deadline: float = 30.0) -> int | None:
    """The version of the schema in a database; None: there is none. Creates nothing."""
    place = without_password(url)
    with _opening(place), Pool(url, size=1, deadline=deadline).connect() as connection:
        return _version(connection)


def _version(connection: Connection) -> int | None:
    """The version of the schema; None: there is none. An error would be in the server's log."""
    [[has_schema]] = connection.execute("SELECT to_regclass('perdure_schema') IS NOT NULL")
    if not has_schema:
        return None
    return version(lambda sql: connection.execute(sql.encode()).fetchall())


@contextlib.contextmanager
def _opening(place: str) -> Iterator[None]:
    """Turn psycopg's errors at opening into ours, with the place of the database."""
    try:
        yield
    except psycopg.Error as error:
        if may_pass(error):
            raise Unavailable(f"{place} cannot be reached: {reason(error)}.") from error
        raise BadURL(f"{place} cannot be used as a journal: {reason(error)}.") from error


class Postgres:
    """A `Backend` on a PostgreSQL server that accepts writes."""

    capabilities = Capabilities()
    version = staticmethod(schema_version)

    def __init__(
        self,
        url: str,
        *,
        deadline: float = 30.0,
        has_listener: bool = False,
        acknowledged: Acknowledged | None = None,
    ) -> None:
        self._url, self._deadline = url, deadline
        self._history = History(acknowledged or Acknowledged())
        self._place = without_password(url)
        self._sender = _sender()
        statements = render(FRAGMENTS, has_listener=has_listener)
        self._sql = {name: _numbered(sql) for name, sql in statements.items()}
        self._pool = self._new_pool()
        try:
            self._prepare()
        except BaseException:
            self._pool.close()
            raise

    def _new_pool(self) -> Pool:
        size, deadline = CONNECTIONS, self._deadline
        return Pool(self._url, self._history, self._read, size=size, deadline=deadline)

    def _prepare(self) -> None:
        with _opening(self._place):
            connection = self._pool.connect()
            try:
                self._migrate(connection)
                [[names, standbys]] = connection.execute(FRAGMENTS["standbys"].encode())
                if warning := warn_unreplicated(names, standbys):
                    log.warning("%s: %s", self._place, warning)
            finally:
                self._pool.give_back(connection)

    def _migrate(self, connection: Connection) -> None:
        def execute(sql: str) -> list[tuple[int]]:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

        if _version(connection) == max(migrations()):  # a role that may not create is enough
            self._check_privileges(connection)
            return
        try:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
                migrate(execute, FRAGMENTS)
        except errors.InsufficientPrivilege as error:
            raise Unfit(
                f"its tables have to be made or changed, and the role may not: {reason(error)}. "
                "Run `perdure migrate` as the role that owns them"
            ) from error

    def _check_privileges(self, connection: Connection) -> None:
        """Raise `Unfit` unless the role may do what the statements do."""
        needed = sorted(_privileges(sql.decode() for sql, _ in self._sql.values()))
        missing = connection.execute(
            "SELECT t, p FROM unnest(%s::text[], %s::text[]) AS n (t, p) "
            "WHERE NOT COALESCE(has_table_privilege(to_regclass(t), p), false) ORDER BY t, p",
            [[table for table, _ in needed], [privilege for _, privilege in needed]],
        ).fetchall()
        if missing:
            what = ", ".join(f"{privilege} on {table}" for table, privilege in missing)
            raise Unfit(f"the role {connection.info.user} lacks {what}. GRANT it")

    def commit(self, statements: Sequence[Statement]) -> list[list[Row]]:
        return self._with_connection(self._write, statements, writes=True)

    def transact(self, work: Callable[[Transaction], T]) -> T:
        return self._with_connection(self._work, work, writes=True, of_function=True)

    def _work(self, connection: Connection, work: Callable[[Transaction], T]) -> T:
        # Autocommit as always: psycopg's own block begins and commits, and forbids others to.
        def run(statements: Sequence[Statement]) -> list[list[Row]]:
            if connection.info.transaction_status == TransactionStatus.IDLE:
                raise BadArgument(ENDED_INSIDE)
            return self._run(connection, statements)

        try:
            with connection.transaction():
                [[position, _]] = connection.execute(connection.place.mark.encode())
                result = work(Transaction(connection, run))
                run([])
                failpoints.at("commit.before")
        except Exception as error:
            if connection.closed and not isinstance(error, psycopg.Error):
                # It was cut inside `work`, whatever that made of it: nothing is committed.
                raise Ambiguous(f"{self._place}: the connection was lost") from error
            raise
        finally:
            connection.row_factory = tuple_row  # the user's code may have set another
        connection.check_replicated()
        failpoints.at("commit.after")
        self._history.acknowledge(connection.place, position)
        return result

    def _run(self, connection: Connection, statements: Sequence[Statement]) -> list[list[Row]]:
        results: list[list[Row]] = []
        with psycopg.RawCursor(connection, row_factory=tuple_row) as cursor:
            for statement in statements:
                query = self._query(*statement)
                failpoints.at(query.before)
                cursor.execute(query.sql, query.values)
                results.append(cursor.fetchall() if cursor.description else [])
                failpoints.at(query.after)
        return results

    def _with_connection(
        self,
        run: Callable[[Connection, A], T],
        argument: A,
        *,
        writes: bool,
        of_function: bool = False,
    ) -> T:
        """Run something until it succeeds, on a new connection if one may help, or the deadline.
        The function of an effect is run again only after a conflict with another transaction."""
        give_up = time.monotonic() + self._deadline
        while True:
            with self._pool.connection(give_up) as connection:
                try:
                    return run(connection, argument)
                except psycopg.Error as error:
                    outcome = meaning(error, of_function=of_function)
                    if outcome is Meaning.MISTAKE:
                        raise
                    if outcome is Meaning.REFUSED:
                        raise Refused(reason(error)) from error
                    if outcome is Meaning.LOST and writes:
                        raise Ambiguous(f"{self._place}: {reason(error)}") from error
                    if outcome in (Meaning.AWAY, Meaning.ELSEWHERE, Meaning.DENIED):
                        connection.close()
                    is_final = (
                        outcome is Meaning.DENIED
                        or isinstance(error, errors.QueryCanceled)  # it took its whole time
                        or (of_function and outcome not in (Meaning.UNDONE, Meaning.ELSEWHERE))
                    )
                    if is_final or time.monotonic() + PAUSE > give_up:
                        what = "refused the batch" if writes else "did not answer"
                        nothing = " Nothing was written." if writes else ""
                        raise Unavailable(
                            f"{self._place} {what}: {reason(error)}.{nothing}"
                        ) from error
            if outcome not in (Meaning.UNDONE, Meaning.ELSEWHERE):
                time.sleep(PAUSE)

    def hints(self) -> NotifyHints:
        return NotifyHints(self._url, self._sender)

    def read(self, statements: Sequence[Statement]) -> list[list[Row]]:
        return self._with_connection(self._read, statements, writes=False)

    def settle(self, statements: Sequence[Statement]) -> list[list[Row]]:
        return self._with_connection(self._write, statements, writes=False)

    def _read(self, connection: Connection, statements: Sequence[Statement]) -> list[list[Row]]:
        queries = [self._query(*statement) for statement in statements]
        if len(queries) == 1:  # a snapshot of its own
            return connection.batch(queries)
        return connection.batch([Query(_READ), *queries, Query(b"COMMIT")])[1:-1]

    def _write(self, connection: Connection, statements: Sequence[Statement]) -> list[list[Row]]:
        queries = [self._query(*statement) for statement in statements]
        names = changed_names(statements) | streamed_names(statements)
        mark = Query(connection.place.mark.encode())
        if names:
            sql = f"{connection.place.mark}, {_NOTIFY}".encode()
            mark = Query(sql, (payload(self._sender, names),))
        commit = Query(b"COMMIT", before="commit.before")
        rows = connection.batch([Query(_WRITE), mark, *queries, commit])
        connection.check_replicated()
        failpoints.at("commit.after")
        self._history.acknowledge(connection.place, rows[1][0][0])
        return rows[2:-1]

    def _query(self, name: str, params: Mapping[str, Any]) -> Query:
        sql, names = self._sql[name]
        return Query(sql, [params[one] for one in names], f"{name}.before", f"{name}.after")

    def reopen(self) -> None:
        # The parent's sockets must neither be used nor closed here.
        _ABANDONED.append(self._pool)
        self._sender = _sender()
        self._history.reopen()
        self._pool = self._new_pool()

    def close(self) -> None:
        self._pool.close()


_ABANDONED: list[Any] = []


def _sender() -> str:
    """Who sends a notification: these connections, in this process."""
    return os.urandom(8).hex()


def _privileges(statements: Iterable[str]) -> set[tuple[str, str]]:
    """The tables of statements, each with a privilege that they need on it."""
    privileges: set[tuple[str, str]] = set()
    for sql in statements:
        for verb, table in re.findall(r"\b(INSERT INTO|UPDATE|DELETE FROM) (perdure_\w+)", sql):
            privileges.add((table, verb.split()[0]))
            if "DO UPDATE" in sql and verb == "INSERT INTO":
                privileges.add((table, "UPDATE"))
        for table in re.findall(r"\b(?<!DELETE )(?:FROM|JOIN) (perdure_\w+)", sql):
            privileges.add((table, "SELECT"))
    return privileges


def _numbered(sql: str) -> tuple[bytes, list[str]]:
    """A statement with `$1`, `$2` ... for its parameters, and their names in that order."""
    names = list(dict.fromkeys(re.findall(r":(\w+)", sql)))
    return re.sub(r":(\w+)", lambda one: f"${names.index(one[1]) + 1}", sql).encode(), names


def without_password(url: str) -> str:
    """The place that a URL names. A malformed one may have its password anywhere: nothing of it is
    shown then, nor is the exception that quotes it."""
    info, reason = None, "its password, or another part, has one of the characters / ? # @ :"
    try:
        info = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        reason = str(error).partition('"')[0].strip(" :") or reason
    place = {name: str((info or {}).get(name, "")) for name in ("host", "port", "dbname")}
    is_odd = "@" in "".join(place.values()) or not re.fullmatch(r"[\d,]*", place["port"])
    if info is None or is_odd:
        raise BadURL(
            f"The PostgreSQL URL is malformed: {reason}. Percent-encode such characters, as in "
            "postgresql://user:p%40ss@host/database."
        )
    return f"postgresql://{place['host']}:{place['port']}/{place['dbname']}"


def payload(sender: str, names: Iterable[str]) -> str:
    """The payload of a notification: its sender, and the names of what changed if they fit."""
    text = " ".join([sender, *sorted(names)])
    return text if len(text) < LONGEST and text.isascii() else sender


class NotifyHints:
    """Hints that something was committed: LISTEN on a separate connection, NOTIFY in the
    transaction that changes. Those of `sender` are skipped: it woke its own readers. One may be
    lost, behind a transaction-mode connection pooler or while this process reconnects: readers see
    the change at the next poll."""

    def __init__(self, url: str, sender: str) -> None:
        self._sender = sender
        self._connection = psycopg.connect(
            url,
            autocommit=True,
            **parameters_of(url, connect_timeout=5, name="perdure changes"),
        )
        try:
            self._connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            self._connection.close()
            raise

    def wait(self, seconds: float) -> Collection[str] | None:
        end, changed = time.monotonic() + seconds, set[str]()
        while not changed and (left := end - time.monotonic()) > 0:
            for notice in self._connection.notifies(timeout=left, stop_after=1):
                sender, *names = notice.payload.split(" ")
                if sender == self._sender:
                    continue
                if not names:
                    return None
                changed.update(names)
        return changed

    def close(self) -> None:
        self._connection.close()
