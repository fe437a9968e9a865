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
from urllib.parse import unquote

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, PendingWrite
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
            id, ns = missing[0]  # of this one a killed import may have stored the writes
            target.journal.do(rows.delete_checkpoints(thread_id, [(ns, id)]))
        try:
            for ns, id in last.items():
                if (id, ns) in wanted:  # else it was made here, after an earlier import
                    theirs = _checkpoint(source, thread_id, (id, ns))
                    ours = target.get_tuple(theirs.config)
                    written = ours.pending_writes if ours is not None else None
                    _put_writes(target, theirs, paths(thread_id, (id, ns)), written or ())
            for place in missing:
                theirs = _checkpoint(source, thread_id, place)
                _put_writes(target, theirs, paths(thread_id, place))
                target.restore(theirs)
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
        target.cache.forget(thread_id)
    waiting = INTERRUPT in [channel for _, channel, _ in newest.pending_writes or ()]
    return ImportedThread(thread_id, len(missing), len(wanted) - len(missing), waiting)


def _put_writes(
    target: Saver,
    theirs: CheckpointTuple,
    paths: Mapping[str, str],
    known: Iterable[PendingWrite] = (),
) -> None:
    """Store what tasks wrote at a checkpoint, of each that wrote more than is `known`."""
    stored = {write[:2] for write in known}
    fresh = {write[0] for write in theirs.pending_writes or () if write[:2] not in stored}
    by_task: dict[str, list[tuple[str, Any]]] = {}
    for task_id, channel, value in theirs.pending_writes or ():
        if task_id in fresh:
            by_task.setdefault(task_id, []).append((channel, value))
    for task_id, writes in by_task.items():
        target.put_writes(theirs.config, writes, task_id, paths.get(task_id, ""))


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

PATHS = (
    "SELECT task_id, coalesce(task_path, '') FROM {} "
    "WHERE thread_id = ? AND checkpoint_id = ? AND checkpoint_ns = ?"
)
Rows = Callable[..., list[tuple[Any, ...]]]
"""Runs a statement in the source, and gives its rows."""


@contextlib.contextmanager
def _opened(source: str | Source, target: Saver) -> Iterator[Opened]:
    if isinstance(source, BaseCheckpointSaver):
        yield source, None, lambda thread_id, place: {}
        return
    scheme = source.partition(":")[0] if ":" in source else ""
    is_file = scheme in ("", "sqlite") or Path(source).exists()
    if not is_file and scheme not in ("postgresql", "postgres"):
        raise BadArgument(
            f"{scheme!r} names no checkpointer that can be imported from. Pass the path of a "
            "SqliteSaver's file, the postgresql:// URL of a PostgresSaver, or an open saver."
        )
    types = target.serializer.allowlist.types
    with contextlib.ExitStack() as stack:
        script_types = stack.enter_context(_script_types(types))
        serde = JsonPlusSerializer(allowed_msgpack_modules=[*types, *script_types])
        opened = (_open_sqlite if is_file else _open_postgres)(source, serde)
        saver, rows = stack.enter_context(opened)
        sql = PATHS.format("writes" if is_file else "checkpoint_writes")
        try:
            listed = rows("SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id")
            if is_file:
                saver.setup()  # type: ignore[attr-defined] # adds columns to an older database
            rows(sql, "", "", "")
        except Exception as error:  # whatever the driver raises
            raise BadArgument(
                f"{hide_in_url(source)} holds no checkpoints of LangGraph's "
                f"{type(saver).__name__}, or its tables are of an older release; call its "
                f"`setup()` once. ({error})"
            ) from error
        threads = [thread for (thread,) in listed]
        yield saver, threads, lambda thread_id, place: dict(rows(sql, thread_id, *place))


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
def _open_sqlite(source: str, serde: JsonPlusSerializer) -> Iterator[tuple[Source, Rows]]:
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver
    except ImportError as error:
        raise _missing("langgraph-checkpoint-sqlite") from error
    path = unquote(source.removeprefix("sqlite:///")) if source.startswith("sqlite:") else source
    if not Path(path).is_file():
        raise BadArgument(f"There is no file {hide_in_url(path)}.")
    with contextlib.closing(sqlite3.connect(path, check_same_thread=False, timeout=30)) as db:
        Wal.keep(db)
        yield SqliteSaver(db, serde=serde), lambda sql, *params: db.execute(sql, params).fetchall()


@contextlib.contextmanager
def _open_postgres(source: str, serde: JsonPlusSerializer) -> Iterator[tuple[Source, Rows]]:
    try:
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.rows import dict_row, tuple_row

        from perdure.journal.postgres import without_password
    except ImportError as error:
        raise _missing("langgraph-checkpoint-postgres 'psycopg[binary]'") from error
    without_password(source)  # refuses a malformed URL, which an exception would quote
    try:
        db = psycopg.connect(source, autocommit=True, prepare_threshold=0, row_factory=dict_row)
    except psycopg.Error as error:
        raise BadArgument(f"The source cannot be opened: {error}") from error

    def rows(sql: str, *params: str) -> list[tuple[Any, ...]]:
        cursor = db.cursor(row_factory=tuple_row)
        return cursor.execute(sql.replace("?", "%s").encode(), params).fetchall()

    with contextlib.closing(db):
        yield PostgresSaver(db, serde=serde), rows


def _missing(package: str) -> BadArgument:
    return BadArgument(f"To read this source, install its checkpointer: pip install {package}")
