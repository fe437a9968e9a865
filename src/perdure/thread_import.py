"""Copy threads from another LangGraph checkpointer, so that they go on with perdure.

A thread is copied checkpoint by checkpoint, oldest first, each behind its pending writes. What
each crash leaves behind:

    before a checkpoint      the ones before it; the next import goes on there
    its writes, not itself   writes that no checkpoint has; the next import deletes them first
    after the last one       the whole thread, perhaps without its record; the next import makes it

Only types that the target's saver allows are loaded from the source: nothing else in it is run.
"""

from __future__ import annotations

import base64
import contextlib
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.event_hooks import register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT

from perdure.checkpoint import operations
from perdure.checkpoint.config import configurable
from perdure.errors import BadArgument, Error, TypeNotAllowed
from perdure.journal.clock import JournalClock
from perdure.journal.ids import random_number
from perdure.journal.sqlite_wal import Wal
from perdure.operations import threads as thread_records
from perdure.saver import Saver
from perdure.serde.redaction import hide_in_url

Place = tuple[str, str]
"""The id and the namespace of a checkpoint: they sort in the order in which they were made."""


@dataclass(frozen=True)
class ImportedThread:
    """The import of one thread."""

    id: str
    """The id of the thread."""
    checkpoints: int = 0
    """Checkpoints stored by this import."""
    known: int = 0
    """Checkpoints that were there already."""
    waiting: bool = False
    """Whether its newest checkpoint has an unanswered question."""
    refused: str | None = None
    """Why the thread could not be imported. This import stored no part of it."""


@dataclass(frozen=True)
class ThreadImport:
    """The result of `import_threads`."""

    threads: list[ImportedThread] = field(default_factory=list)
    """Every thread, in the order in which it was imported."""

    @property
    def checkpoints(self) -> int:
        """How many checkpoints this import stored."""
        return sum(one.checkpoints for one in self.threads)

    @property
    def refused(self) -> list[ImportedThread]:
        """The threads that could not be imported."""
        return [one for one in self.threads if one.refused is not None]

    @property
    def waiting(self) -> list[ImportedThread]:
        """The threads whose newest checkpoint has an unanswered question."""
        return [one for one in self.threads if one.waiting]


def import_threads(
    source: str | BaseCheckpointSaver[Any],
    target: Saver,
    *,
    threads: Iterable[str] | None = None,
    progress: Callable[[ImportedThread, int, int], None] | None = None,
) -> ThreadImport:
    """Copy threads from another LangGraph checkpointer into a journal, to continue them there.

    Every checkpoint of every namespace is copied in order, with its pending writes, metadata and
    open questions. The source is only read, except that LangGraph's own saver may add columns when
    it opens an older database. A type that a script stored as `__main__.Name` is read as the
    allowed type of that name. A thread that cannot be copied is listed with the reason and not
    stored at all; the others are copied. After a crash, or when the source has grown, call it
    again: only what is missing is stored.

        with Saver("sqlite:///agents.db") as saver:
            graph = builder.compile(checkpointer=saver)  # allows its types
            report = import_threads("checkpoints.sqlite", saver)

    Stop the old application first: a thread that continued in both is refused.

    Args:
        source: An open checkpointer; the path or `sqlite:///` URL of a `SqliteSaver`'s file, or of
            an exported D1 database of langgraph-checkpoint-cloudflare-d1; or the `postgresql://`
            URL of a `PostgresSaver`.
        target: The saver to copy to. Only types that it allows are loaded from the source.
        threads: The ids of the threads. By default all.
        progress: Called after each thread with its result, its number, and the total number.

    Returns:
        What was imported, thread by thread.

    Raises:
        BadArgument: The source cannot be opened, or its checkpointer package is not installed.
    """
    report = ThreadImport()
    with _opened(source, target) as found:
        every = found.threads() if threads is None else [str(one) for one in threads]
        for n, thread_id in enumerate(every, 1):
            report.threads.append(_import_thread(found, target, thread_id))
            if progress is not None:
                progress(report.threads[-1], n, len(every))
    return report


def _import_thread(source: _Source, target: Saver, thread_id: str) -> ImportedThread:
    try:
        wanted = source.places(thread_id)
        rows = target.journal.do(operations.checkpoints_of(thread_id))
        there = {(row.id, row.ns) for row in rows}
        missing = [place for place in wanted if place not in there]
        if not wanted:
            raise Error(f"The source has no thread {thread_id!r}.")
        if missing and not there <= {*wanted}:
            raise Error(
                f"Thread {thread_id!r} has checkpoints of its own in the journal. Delete it there "
                "first, or leave it."
            )
        waiting = _carry(source, target, thread_id, missing, sorted(there))
        _add_record(target, thread_id)
    except Error as error:
        return ImportedThread(thread_id, refused=str(error))
    finally:
        target.pruner.forget(thread_id)
    return ImportedThread(thread_id, len(missing), len(wanted) - len(missing), waiting)


def _carry(
    source: _Source,
    target: Saver,
    thread_id: str,
    missing: Sequence[Place],
    there: Sequence[Place],
) -> bool:
    """Store what is missing of a thread. Returns whether it waits for an answer."""
    newest = source.newest(thread_id)
    if missing:
        target.check_storable(newest)  # most likely what the others have too, and nothing is stored
        id, ns = missing[0]  # of this one a killed import may have stored the writes
        target.journal.do(operations.delete_checkpoints(thread_id, [(ns, id)]))
    try:
        for ns, id in {ns: id for id, ns in there}.items():  # the last one of each namespace
            _add_writes(source, target, thread_id, (id, ns))
        for place in missing:
            target.restore(source.checkpoint(thread_id, place), source.paths(thread_id, place))
        target.flush()
    except Error:
        if not there:
            with contextlib.suppress(Error):
                target.flush()
            target.delete_thread(thread_id)
        raise
    answered = [channel for _, channel, _ in newest.pending_writes or ()]
    return INTERRUPT in answered


def _add_record(target: Saver, thread_id: str) -> None:
    """Make the record of a thread, so that lists of threads have it before its first run."""
    now = JournalClock(target.journal).now()
    content = thread_records.ThreadContent()
    target.journal.do(
        thread_records.create(target.serializer, thread_id, content, random_number(), now)
    )


def _add_writes(source: _Source, target: Saver, thread_id: str, place: Place) -> None:
    """Store what was written at a checkpoint since it was imported."""
    if place not in source.places(thread_id):
        return  # the thread went on here
    theirs = source.checkpoint(thread_id, place)
    ours = target.get_tuple(theirs.config)
    known = {write[:2] for write in (ours.pending_writes or ())} if ours is not None else set()
    fresh = {write[0] for write in theirs.pending_writes or () if write[:2] not in known}
    writes = [write for write in theirs.pending_writes or () if write[0] in fresh]
    if writes:
        target.restore_writes(theirs.config, writes, source.paths(thread_id, place))


class _Source:
    """Any checkpointer, by LangGraph's interface."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self._saver = saver

    def threads(self) -> list[str]:
        return sorted({str(_place(one)["thread_id"]) for one in self._saver.list(None)})

    def places(self, thread_id: str) -> list[Place]:
        """The checkpoints of a thread in the order in which they were made."""
        found = self._saver.list({"configurable": {"thread_id": thread_id}})
        places = (_place(one) for one in found)
        return sorted((one["checkpoint_id"], one.get("checkpoint_ns", "")) for one in places)

    def checkpoint(self, thread_id: str, place: Place) -> CheckpointTuple:
        return self._get(configurable(thread_id, place[1], place[0]))

    def newest(self, thread_id: str) -> CheckpointTuple:
        """The newest checkpoint of the graph itself, or of a subgraph if there is no other."""
        places = self.places(thread_id)
        own = [place for place in places if place[1] == ""]
        return self.checkpoint(thread_id, (own or places)[-1])

    def paths(self, thread_id: str, place: Place) -> Mapping[str, str]:
        """The paths of the tasks that wrote at a checkpoint, where the source has them."""
        return {}

    def _get(self, config: RunnableConfig) -> CheckpointTuple:
        blocked: list[tuple[str, str]] = []

        def note(event: Any) -> None:
            if event["kind"] in ("msgpack_blocked", "msgpack_method_blocked"):
                blocked.append((event["module"], event["name"]))

        stop = register_serde_event_listener(note)
        try:
            found = self._saver.get_tuple(config)
        except Error:
            raise
        except Exception as error:  # whatever a database or a serializer raises
            place = f"{_words(config)} cannot be read: {type(error).__name__}: {error}"
            raise Error(f"{place}.") from error
        finally:
            stop()
        if blocked:
            raise TypeNotAllowed(*blocked[0], _words(config))
        if found is None:
            raise Error(f"{_words(config)} is no longer in the source.")
        return found


class _Tables(_Source):
    """A saver of LangGraph with its tables, which list threads without loading them."""

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        query: Callable[..., Iterable[Sequence[Any]]],
        mark: str,
        writes: str,
    ) -> None:
        super().__init__(saver)
        self._query, self._mark, self._writes = query, mark, writes

    def threads(self) -> list[str]:
        sql = "SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id"
        return [row[0] for row in self._query(sql, ())]

    def places(self, thread_id: str) -> list[Place]:
        columns = "SELECT checkpoint_id, checkpoint_ns FROM checkpoints"
        found = self._query(f"{columns} WHERE thread_id = {self._mark}", (thread_id,))
        return sorted((row[0], row[1]) for row in found)

    def paths(self, thread_id: str, place: Place) -> Mapping[str, str]:
        names = ("thread_id", "checkpoint_id", "checkpoint_ns")
        where = " AND ".join(f"{name} = {self._mark}" for name in names)
        sql = f"SELECT task_id, task_path FROM {self._writes} WHERE {where}"  # noqa: S608 (ours)
        return {task: path or "" for task, path in self._query(sql, (thread_id, *place))}


def _place(found: CheckpointTuple) -> dict[str, Any]:
    return dict(found.config["configurable"])


def _words(config: RunnableConfig) -> str:
    place = config["configurable"]
    return f"checkpoint {place['checkpoint_id']!r} of thread {place['thread_id']!r}"


# -- opening the source


@contextlib.contextmanager
def _opened(source: str | BaseCheckpointSaver[Any], target: Saver) -> Iterator[_Source]:
    if isinstance(source, BaseCheckpointSaver):
        yield _Source(source)
        return
    types = target.serializer.codec.allowlist.types
    with _script_types(types) as also:
        serde = JsonPlusSerializer(allowed_msgpack_modules=[*types, *also])
        with _open(source, serde) as found:
            yield found


@contextlib.contextmanager
def _script_types(types: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Let types that a script stored as `__main__.Name` be found: as the allowed types of these
    names, if there is one of each. Yields the names under which they are found."""
    script = sys.modules["__main__"]
    modules: dict[str, list[str]] = {}
    for module, name in types:
        modules.setdefault(name, []).append(module)
    added: list[tuple[str, str]] = []
    for name, (module, *others) in modules.items():
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and not others and not hasattr(script, name):
            setattr(script, name, kind)
            added.append(("__main__", name))
    try:
        yield added
    finally:
        for _, name in added:
            delattr(script, name)


@contextlib.contextmanager
def _open(source: str, serde: JsonPlusSerializer) -> Iterator[_Source]:
    scheme = source.partition(":")[0] if ":" in source else ""
    if scheme in ("postgresql", "postgres"):
        opened = _open_postgres(source, serde)
    elif scheme in ("", "sqlite") or Path(source).exists():
        opened = _open_sqlite(source, serde)
    else:
        raise BadArgument(
            f"{scheme!r} names no checkpointer that can be imported from. Pass the path of a "
            "SqliteSaver's file, or of an exported D1 database (`wrangler d1 export`), or the "
            "postgresql:// URL of a PostgresSaver."
        )
    with opened as found:
        yield found


@contextlib.contextmanager
def _open_sqlite(source: str, serde: JsonPlusSerializer) -> Iterator[_Source]:
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver
    except ImportError as error:
        raise _missing("langgraph-checkpoint-sqlite") from error
    path = unquote(source.removeprefix("sqlite:///")) if source.startswith("sqlite:") else source
    if not Path(path).is_file():
        raise BadArgument(f"There is no file {hide_in_url(path)}.")
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=rw", uri=True, check_same_thread=False, timeout=30
    )
    with contextlib.closing(connection):
        saver = SqliteSaver(connection, serde=serde)
        try:
            Wal.keep(connection)
            tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
            if ("checkpoints",) not in tables:
                raise BadArgument(f"{path} holds no checkpoints of LangGraph's SqliteSaver.")
            saver.setup()
            _read_base64(connection)
        except sqlite3.DatabaseError as error:
            raise BadArgument(
                f"{path} cannot be read: {error}. An export by `wrangler d1 export` is SQL text: "
                f"put it into a database first, `sqlite3 old.db < {path}`."
                if path.endswith(".sql")
                else f"{path} cannot be read: {error}."
            ) from error
        query = lambda sql, params: connection.execute(sql, params).fetchall()  # noqa: E731
        yield _Tables(saver, query, "?", "writes")


def _read_base64(connection: sqlite3.Connection) -> None:
    """Read the tables of langgraph-checkpoint-cloudflare-d1, which are those of LangGraph's
    `SqliteSaver` with base64 for its blobs. Views of this connection decode them."""
    [[is_text]] = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM checkpoints WHERE typeof(checkpoint) = 'text')"
    )
    if not is_text:
        return
    decoded = {"checkpoint", "metadata", "value"}
    connection.create_function("from_base64", 1, _from_base64, deterministic=True)
    for table in ("checkpoints", "writes"):
        names = [row[1] for row in connection.execute(f"PRAGMA main.table_info({table})")]
        columns = ", ".join(
            f"from_base64({name}) AS {name}" if name in decoded else name for name in names
        )
        connection.execute(
            f"CREATE TEMP VIEW {table} AS SELECT {columns} FROM main.{table}"  # noqa: S608 (ours)
        )


def _from_base64(value: Any) -> Any:
    return base64.b64decode(value) if isinstance(value, str) else value


@contextlib.contextmanager
def _open_postgres(source: str, serde: JsonPlusSerializer) -> Iterator[_Source]:
    try:
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.rows import dict_row

        from perdure.journal.postgres import without_password
    except ImportError as error:
        raise _missing("langgraph-checkpoint-postgres 'psycopg[binary]'") from error
    without_password(source)  # refuses a malformed URL, which an exception would quote
    try:
        connection = psycopg.connect(
            source, autocommit=True, prepare_threshold=0, row_factory=dict_row
        )
    except psycopg.Error as error:
        raise BadArgument(f"The source cannot be opened: {error}") from error
    with contextlib.closing(connection):

        def query(sql: str, params: Sequence[Any]) -> list[list[Any]]:
            return [[*row.values()] for row in connection.execute(sql.encode(), params)]

        try:
            query("SELECT task_path FROM checkpoint_writes LIMIT 0", ())
        except psycopg.Error as error:
            raise BadArgument(
                "The source holds no checkpoints of LangGraph's PostgresSaver, or its tables are "
                f"of an older release; call `PostgresSaver.setup()` on it once. ({error})"
            ) from error
        yield _Tables(PostgresSaver(connection, serde=serde), query, "%s", "checkpoint_writes")


def _missing(package: str) -> BadArgument:
    return BadArgument(f"To read this source, install its checkpointer: pip install {package}")
