"""Queues the output of a segment as chunks in the journal's ordered queue. Nothing waits for it.

A row is queued with its first chunk and takes more until its transaction is formed, at most 20 ms
later, so many tokens share a row and a step needs no extra commit. A checkpoint is queued after the
rows of all chunks that precede it, and `mark` returns how many those are. So once a checkpoint is
on disk, everything its nodes streamed is too, and any chunk on disk with a higher number comes from
a node that the next segment runs again.

On a database with limited batches, a row is formed when it is queued: after enough bytes or time,
at a checkpoint, and at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from perdure.commands import streams
from perdure.commands.effects import Owner
from perdure.commands.streams import SEGMENT, Entry, StreamRow
from perdure.errors import Error
from perdure.journal import Journal
from perdure.journal.clock import Clock
from perdure.serde.serializer import Serializer
from perdure.types import Chunk

log = logging.getLogger("perdure")

LARGEST = 64 * 1024
"""Bytes after which a row takes no more chunks."""
LONGEST = 0.25
"""Seconds after which a row is queued on a database with limited batches."""


class _Row:
    """Chunks that are not on disk yet."""

    def __init__(self, n: int, replaces: int | None = None) -> None:
        self.n, self.replaces = n, replaces
        self.begun = time.monotonic()
        self.entries: list[Entry] = []
        self.extras: list[bytes] = []
        self.extra_at: dict[int, tuple[Any, int]] = {}
        self.size = 0
        self.formed: StreamRow | None = None
        """The row as it is stored. Once its transaction is formed it takes no more chunks."""


class StreamRecorder:
    """Records the chunks of one segment, in the `modes` that its run keeps."""

    def __init__(
        self,
        owner: Owner,
        journal: Journal,
        serializer: Serializer,
        clock: Clock,
        modes: frozenset[str],
        last: int,
        *,
        subgraphs: bool = True,
        marks: Mapping[str, int] | None = None,
    ) -> None:
        """`last` is the number of the last chunk on disk; `marks` are the counts stored with the
        run's checkpoints."""
        self._owner, self._journal, self._serializer = owner, journal, serializer
        self._clock, self.modes, self.subgraphs, self._count = clock, modes, subgraphs, last
        self._bounded = journal.capabilities.bounded
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop that runs the graph. Nodes may write from other threads."""
        self.messages: set[str | None] = set()
        """Ids of messages from an earlier segment that are still valid."""
        self.resumed: set[str] = set()
        """Namespaces that resume from a checkpoint and have not emitted that state yet."""
        self.after_wait = False
        """Whether the segment resumes after a wait, rather than after a crash or a failure."""
        redactor = serializer.redactor
        self.hides_pieces = redactor is not None and bool(redactor.policy.patterns)
        """Whether to leave out pieces of messages: a redaction pattern cannot match a secret that
        is split over several."""
        self._lock = threading.Lock()
        self._row: _Row | None = None
        self._marks: dict[str, int] = dict(marks or {})
        self._warned: set[str] = set()

    def begin(self, replaces_from: int, again: Iterable[tuple[Chunk, str]]) -> None:
        """Declare the chunks from this number on void, and queue the ones in `again` once more: in
        one row, so that another crash leaves all of them or none."""
        with self._lock:
            self._count += 1
            row = _Row(self._count, replaces_from)
            row.entries.append(Entry(SEGMENT, (), self._encode(SEGMENT, None)))
            for chunk, tasks in again:
                if chunk.mode == "messages" and isinstance(chunk.data, tuple):
                    self.messages.add(getattr(chunk.data[0], "id", None))
                self._append(row, chunk.namespace, chunk.mode, chunk.data, tasks)
            self._marks = {ns: self._count if ns else n for ns, n in self._marks.items()}
            self._form(row)
            self._queue(row)

    def add(self, namespace: tuple[str, ...], mode: str, data: Any, tasks: str = "") -> None:
        """Queue a chunk if its mode is kept. `tasks` are the tasks it comes from."""
        if mode not in self.modes:
            return
        with self._lock:
            row = self._open_row()
            self._append(row, namespace, mode, data, tasks)
            if self._bounded and self._is_ripe(row):
                self._end_row()

    def _append(
        self, row: _Row, namespace: tuple[str, ...], mode: str, data: Any, tasks: str
    ) -> None:
        at = None
        if mode == "messages" and isinstance(data, tuple) and len(data) == 2:
            data, extra = data
            at = self._position(row, extra)
        blob = self._encode(mode, data)
        row.entries.append(Entry(mode, namespace, blob, at, tasks))
        row.size += len(blob)
        self._count += 1

    def mark(self, ns: str) -> str:
        """Called before a checkpoint of this namespace. Returns how many chunks precede it, and
        precede the subgraphs' checkpoints since the last one at the top level."""
        with self._lock:
            if self._bounded:
                self._end_row()
            self._marks = {**({} if not ns else self._marks), ns: self._count}
            return json.dumps(self._marks)

    def close(self) -> None:
        """Queue what is left when the segment ends."""
        with self._lock:
            self._end_row()

    def _end_row(self) -> None:
        row, self._row = self._row, None
        if row is None or row.formed is not None:
            return
        if self._bounded:
            self._queue(row)
        else:
            self._form(row)

    def _open_row(self) -> _Row:
        row = self._row
        if row is None or row.formed is not None or row.size > LARGEST:
            row = self._row = _Row(self._count + 1)
            if not self._bounded:
                self._queue(row)
            else:
                self._end_later(row)
        return row

    def _end_later(self, row: _Row) -> None:
        loop = self.loop
        with contextlib.suppress(RuntimeError):  # the loop is closed: `close` has queued the rest
            if loop is not None:
                loop.call_soon_threadsafe(loop.call_later, LONGEST, self._end_if_open, row)

    def _end_if_open(self, row: _Row) -> None:
        with self._lock, contextlib.suppress(Error):  # the journal may be closed by now
            if self._row is row:
                self._end_row()

    def _is_ripe(self, row: _Row) -> bool:
        return row.size > LARGEST or time.monotonic() - row.begun > LONGEST

    def _queue(self, row: _Row) -> None:
        """Queue a row. Unless it is formed already, it takes chunks until its transaction is."""
        run, feed = self._owner, self._journal.feed
        if self._bounded:
            self._form(row)

        def make() -> StreamRow:
            formed = row.formed
            if formed is not None:  # the caller that queues a formed row holds the lock
                return formed
            with self._lock:
                return self._form(row) if row.formed is None else row.formed

        stored = partial(feed.publish, run.run_id)
        op = streams.insert(run.thread_id, run.run_id, run.token, row.n, make, stored)
        self._journal.defer(op)

    def _form(self, row: _Row) -> StreamRow:
        last = row.n + len(row.entries) - 1
        bare = StreamRow(row.n, last, self._owner.token, self._clock.now(), row.replaces, b"")
        place = (self._owner.thread_id, self._owner.run_id)
        row.formed = streams.dump(self._serializer, *place, bare, row.entries, row.extras)
        return row.formed

    def _position(self, row: _Row, extra: Any) -> int:
        """The position of a message's metadata in its row; all chunks of a message share it."""
        found = row.extra_at.get(id(extra))
        if found is None:
            blob = self._encode("messages", extra)
            row.extras.append(blob)
            row.size += len(blob)
            found = row.extra_at[id(extra)] = (extra, len(row.extras) - 1)
        return found[1]

    def _encode(self, mode: str, value: Any) -> bytes:
        encode = self._serializer.encode
        try:
            return encode(value, mode)
        except Error as error:
            if mode not in self._warned:
                self._warned.add(mode)
                log.warning(
                    "run %s streams a value that cannot be stored, in mode %s: %s. Readers get the "
                    "name of its type.",
                    self._owner.run_id,
                    mode,
                    error,
                    extra={"run_id": self._owner.run_id},
                )
            return encode(self._simplified(value), mode)

    def _simplified(self, value: Any, depth: int = 20) -> Any:
        """The value, with each part that cannot be stored replaced by the name of its type."""
        if depth and isinstance(value, dict):
            return {str(k): self._simplified(v, depth - 1) for k, v in value.items()}
        if depth and isinstance(value, (list, tuple)):
            return [self._simplified(one, depth - 1) for one in value]
        try:
            self._serializer.encode(value, "")
        except Error:
            return f"<{type(value).__name__}>"
        return value
