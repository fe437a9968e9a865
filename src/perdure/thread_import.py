"""Copy threads from another LangGraph checkpointer, so that they go on with perdure.

A thread is copied checkpoint by checkpoint, oldest first, each behind its pending writes. What
each crash leaves behind:

    before a checkpoint      the ones before it; the next import goes on there
    its writes, not itself   writes that no checkpoint has; the next import deletes them first
    after the last one       the whole thread, perhaps without its record; the next import makes it

Only types that the target's saver allows are loaded from the source: nothing else in it is run.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.event_hooks import register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT

from perdure.checkpoint import rows
from perdure.checkpoint.rows import configurable
from perdure.commands import threads as thread_records
from perdure.errors import BadArgument, Error, TypeNotAllowed
from perdure.journal.clock import JournalClock
from perdure.journal.names import random_number
from perdure.journal.sqlite_file import Wal
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
        source: An open checkpointer; or the path or `sqlite:///` URL of a `SqliteSaver`'s file, or
            the `postgresql://` URL of a `PostgresSaver`.
        target: The saver to copy to. Only types that it allows are loaded from the source.
        threads: The ids of the threads. By default all.
        progress: Called after each thread with its result, its number, and the total number.

    Returns:
        What was imported, thread by thread.

    Raises:
        BadArgument: The source cannot be opened, or its checkpointer package is not installed.
    """
    report = ThreadImport()
    with _opened(source, target) as (saver, every, paths):
        if threads is not None:
            wanted = [str(one) for one in threads]
        else:
            wanted = every or sorted({_thread(one) for one in saver.list(None)})
        for n, thread_id in enumerate(wanted, 1):
            report.threads.append(_import_thread(saver, paths, target, thread_id))
            if progress is not None:
                progress(report.threads[-1], n, len(wanted))
    return report


Source = BaseCheckpointSaver[Any]
Paths = Callable[[str, Place], dict[str, str]]
"""The paths of the tasks that wrote at a checkpoint of a thread, which order their writes."""
Opened = tuple[Source, list[str] | None, Paths]
"""A checkpointer to import from, and its threads if they could be read at once."""


def _import_thread(source: Source, paths: Paths, target: Saver, thread_id: str) -> ImportedThread:
    try:
        found = source.list({"configurable": {"thread_id": thread_id}})
        wanted = sorted(_place(one) for one in found)
        known = target.journal.do(rows.checkpoints_of(thread_id))
        stored = {(row.id, row.ns) for row in known}
        missing = [place for place in wanted if place not in stored]
        if not wanted:
            raise Error(f"The source has no thread {thread_id!r}.")
        if missing and not stored <= {*wanted}:
            raise Error(
                f"Thread {thread_id!r} has checkpoints of its own in the journal. Delete it there "
                "first, or leave it."
            )
        root = [place for place in wanted if place[1] == ""]
        newest = _checkpoint(source, thread_id, (root or wanted)[-1])
        last = {ns: id for id, ns in sorted(stored)}  # of each namespace
        if missing:
            # Most likely what the others have too. Nothing is stored yet.
            target.check_storable(newest)
            id, ns = missing[0]  # of this one a killed import may have stored the writes
            target.journal.do(rows.delete_checkpoints(thread_id, [(ns, id)]))
        try:
            for ns, id in last.items():
                if (id, ns) in wanted:  # else it was made here, after an earlier import
                    theirs = _checkpoint(source, thread_id, (id, ns))
                    _add_writes(target, theirs, paths(thread_id, (id, ns)))
            for place in missing:
                theirs = _checkpoint(source, thread_id, place)
                target.restore(theirs, paths(thread_id, place))
            target.flush()
        except Error:
            if not stored:
                with contextlib.suppress(Error):
                    target.flush()
                target.delete_thread(thread_id)
            raise
        # The record of the thread, so that lists of threads have it before its first run.
        now, content = JournalClock(target.journal).now(), thread_records.ThreadContent()
        target.journal.do(
            thread_records.create_row(target.serializer, thread_id, content, random_number(), now)
        )
    except Error as error:
        return ImportedThread(thread_id, refused=str(error))
    finally:
        target.pruner.forget(thread_id)
    waiting = INTERRUPT in [channel for _, channel, _ in newest.pending_writes or ()]
    return ImportedThread(thread_id, len(missing), len(wanted) - len(missing), waiting)


def _add_writes(target: Saver, theirs: CheckpointTuple, paths: Mapping[str, str]) -> None:
    """Store what was written at a checkpoint since it was imported."""
    ours = target.get_tuple(theirs.config)
    known = {write[:2] for write in (ours.pending_writes or ())} if ours is not None else set()
    fresh = {write[0] for write in theirs.pending_writes or () if write[:2] not in known}
    writes = [write for write in theirs.pending_writes or () if write[0] in fresh]
    target.restore_writes(theirs.config, writes, paths)


def _checkpoint(source: Source, thread_id: str, place: Place) -> CheckpointTuple:
    """A checkpoint of the source. Raises `TypeNotAllowed` for a type that it did not load."""
    name = f"checkpoint {place[0]!r} of thread {thread_id!r}"
    blocked: list[tuple[str, str]] = []

    def note(event: Any) -> None:
        if event["kind"] in ("msgpack_blocked", "msgpack_method_blocked"):
            blocked.append((event["module"], event["name"]))

    stop = register_serde_event_listener(note)
    try:
        found = source.get_tuple(configurable(thread_id, place[1], place[0]))
    except Error:
        raise
    except Exception as error:  # whatever a database or a serializer raises
        raise Error(f"{name} cannot be read: {type(error).__name__}: {error}.") from error
    finally:
        stop()
    if blocked:
        raise TypeNotAllowed(*blocked[0], name)
    if found is None:
        raise Error(f"{name} is no longer in the source.")
    return found


def _thread(found: CheckpointTuple) -> str:
    return str(found.config["configurable"]["thread_id"])


def _place(found: CheckpointTuple) -> Place:
    config = found.config["configurable"]
    return config["checkpoint_id"], config.get("checkpoint_ns", "")


# -- opening the source

THREADS = "SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id"
PATHS = (
    "SELECT task_id, coalesce(task_path, '') AS task_path FROM {} "
    "WHERE thread_id = ? AND checkpoint_id = ? AND checkpoint_ns = ?"
)


@contextlib.contextmanager
def _opened(source: str | Source, target: Saver) -> Iterator[Opened]:
    if isinstance(source, BaseCheckpointSaver):
        yield source, None, lambda thread_id, place: {}
        return
    types = target.serializer.allowlist.types
    scheme = source.partition(":")[0] if ":" in source else ""
    with _script_types(types) as also:
        serde = JsonPlusSerializer(allowed_msgpack_modules=[*types, *also])
        if scheme in ("postgresql", "postgres"):
            opened = _open_postgres(source, serde)
        elif scheme in ("", "sqlite") or Path(source).exists():
            opened = _open_sqlite(source, serde)
        else:
            raise BadArgument(
                f"{scheme!r} names no checkpointer that can be imported from. Pass the path of a "
                "SqliteSaver's file, the postgresql:// URL of a PostgresSaver, or an open saver."
            )
        with opened as found:
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
def _open_sqlite(source: str, serde: JsonPlusSerializer) -> Iterator[Opened]:
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
            threads = [thread for (thread,) in connection.execute(THREADS)]
            saver.setup()
        except sqlite3.DatabaseError as error:
            raise BadArgument(
                f"{path} holds no checkpoints of LangGraph's SqliteSaver ({error})."
            ) from error

        def paths(thread_id: str, place: Place) -> dict[str, str]:
            return dict(connection.execute(PATHS.format("writes"), (thread_id, *place)))

        yield saver, threads, paths


@contextlib.contextmanager
def _open_postgres(source: str, serde: JsonPlusSerializer) -> Iterator[Opened]:
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
        try:
            connection.execute("SELECT task_path FROM checkpoint_writes LIMIT 0")
            threads = [row["thread_id"] for row in connection.execute(THREADS)]
        except psycopg.Error as error:
            raise BadArgument(
                "The source holds no checkpoints of LangGraph's PostgresSaver, or its tables are "
                f"of an older release; call `PostgresSaver.setup()` on it once. ({error})"
            ) from error
        sql = PATHS.format("checkpoint_writes").replace("?", "%s")

        def paths(thread_id: str, place: Place) -> dict[str, str]:
            rows = connection.execute(sql.encode(), (thread_id, *place))
            return {row["task_id"]: row["task_path"] for row in rows}

        yield PostgresSaver(connection, serde=serde), threads, paths


def _missing(package: str) -> BadArgument:
    return BadArgument(f"To read this source, install its checkpointer: pip install {package}")
