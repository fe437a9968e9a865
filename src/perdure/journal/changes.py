"""Wakes callers that wait for something to change: in this process or in any.

A caller of `Journal.pause` waits for the next commit of this process, whatever it changed. The
others wait for one thing, whichever process changes it: callers of `join` watch the id of a run,
readers of its stream watch `stream_of` that id, and readers of all runs of a thread watch the
thread's id, for its next run. New output of a run wakes only the readers of its stream; a change of
its state also wakes callers of `join`. Three sources:

    a commit of this process       at once; stream chunks are handed over in memory
    a hint from the database       PostgreSQL's NOTIFY, a write to SQLite's WAL
    a read of the watched runs     one for all of them, after a hint that does not name the run,
                                   and every `poll` seconds, because hints may be lost

The thread that waits for hints lives while something is watched.

A listener gets the committed events: after the commit, in order, once, in a separate thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from perdure.journal.operation import EventStatement, Read, Row, Rows, Statement

CHANGES = frozenset({"end_segment", "stop_run"})
"""Statements that wake every watcher of the run `:id`."""
NEW_CHUNKS = "insert_stream"
"""The statement that stores stream chunks of the run `:id`."""
NEW_RUN = "insert_run"
"""The statement that adds a run to the thread `:thread_id`."""
KEPT = 1 << 20
"""Bytes of a watched run's stream chunks kept in memory."""
READ_EVERY = 0.01
"""Minimum number of seconds between two reads."""
HINTED = 5.0
"""Factor by which the poll interval is longer if the database sends hints."""
LINGER = 5.0
"""Seconds without a watched run after which the thread ends."""
LOOKED_FOR = 1000
"""Maximum number of runs that one statement reads."""


class Hints(Protocol):
    """Hints from a database that something was committed."""

    def wait(self, seconds: float) -> Collection[str] | None:
        """Wait for a commit of another process. Returns the names of what changed; None if any may
        have; empty if there was no hint. May raise anything if it can no longer listen."""

    def close(self) -> None: ...


class Watch:
    """What at least one caller in this process waits for: a run, stream, thread or commit."""

    def __init__(self) -> None:
        self.count = 0
        """How often it has changed while being watched."""
        self.watchers = 0
        self._version: Any = None
        self._streamed = 0
        self._items: deque[Any] = deque()
        self._bytes = 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._threads = 0
        self._coroutines: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    @property
    def is_waited_for(self) -> bool:
        return bool(self._threads or self._coroutines)

    def changed(self, item: Any = None) -> None:
        """Wake the waiting callers. `item` has the new chunks, if this process stored them: they
        are numbered from `item.n` to `item.last`, and are `item.body`."""
        with self._lock:
            self.count += 1
            if item is not None:
                self._streamed = item.n
                self._items.append(item)
                self._bytes += len(item.body)
                while self._bytes > KEPT and len(self._items) > 1:
                    self._bytes -= len(self._items.popleft().body)
            if self._threads:
                self._changed.notify_all()
            for event, loop in self._coroutines.items():
                with contextlib.suppress(RuntimeError):  # that loop is closed
                    loop.call_soon_threadsafe(event.set)

    def looked(self, version: Any, streamed: int) -> None:
        """Wake the waiting callers if a read found a new version, or more chunks than they have
        got. The first read wakes them too, because they may have read before it."""
        if version != self._version or streamed > self._streamed:
            self._version, self._streamed = version, max(streamed, self._streamed)
            self.changed()

    def items_after(self, number: int) -> list[Any]:
        """The chunks after a number, if they are in memory without a gap."""
        with self._lock:
            items = [item for item in self._items if item.last > number]
        return items if items and items[0].n <= number + 1 else []

    async def wait(self, seen: int, seconds: float | None = None) -> None:
        """Wait until `count` differs from `seen`, or until `seconds` have passed."""
        event = asyncio.Event()
        with self._lock:
            if self.count != seen:
                return
            self._coroutines[event] = asyncio.get_running_loop()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        finally:
            with self._lock:
                del self._coroutines[event]

    def wait_in_thread(self, seen: int, seconds: float) -> None:
        """Like `wait`, blocking the thread."""
        with self._lock:
            self._threads += 1
            try:
                self._changed.wait_for(lambda: self.count != seen, seconds)
            finally:
                self._threads -= 1


class ChangeFeed:
    """The watched runs, streams and threads of one process."""

    def __init__(self, read: Read, hints: Callable[[], Hints | None], poll: float) -> None:
        self._read, self._open_hints, self._poll = read, hints, poll
        self.watches: dict[str, Watch] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        self._closed = False

    @contextlib.contextmanager
    def watch(self, name: str) -> Iterator[Watch]:
        """Watch a run, a stream or a thread. Every change from now on wakes the caller, or is seen
        by its next read."""
        with self._lock:
            watch = self.watches.setdefault(name, Watch())
            watch.watchers += 1
            self._start_thread()
        try:
            yield watch
        finally:
            with self._lock:
                watch.watchers -= 1
                if not watch.watchers:
                    self.watches.pop(name, None)

    def _start_thread(self) -> None:
        """Start the thread that waits for hints, if something is watched. The caller holds the
        lock."""
        if self._thread is None and self.watches and not self._closed:
            self._thread = threading.Thread(target=self._run, name="perdure-changes", daemon=True)
            self._thread.start()

    def note(self, names: Collection[str]) -> None:
        """Wake the watchers of what has changed."""
        for name in names:
            for one in (name, stream_of(name)):
                if (watch := self.watches.get(one)) is not None:
                    watch.changed()

    def publish(self, run_id: str, item: Any) -> None:
        """Hand over chunks of a run, which are on disk."""
        if (watch := self.watches.get(stream_of(run_id))) is not None:
            watch.changed(item)

    def close(self) -> None:
        """Wake every caller, so that it sees that the journal is closed."""
        self._closed = True
        self._woken.set()
        self.note(list(self.watches))

    def _run(self) -> None:
        hints, idle_since = None, time.monotonic()
        try:
            hints = self._hints()
            while not self._closed:
                if self.watches:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > LINGER:
                    break
                hints = self._turn(hints)
        finally:
            if hints is not None:
                hints.close()
            with self._lock:
                self._thread = None
                self._start_thread()  # for a caller that arrived while it ended

    def _turn(self, hints: Hints | None) -> Hints | None:
        """Wait for a hint, and wake the callers it concerns. Returns the source of the next one."""
        names: Collection[str] | None = ()
        if hints is None:
            self._woken.wait(self._poll)
        else:
            try:
                names = hints.wait(self._poll * HINTED)
            except Exception:
                logging.getLogger("perdure").debug("listening for changes failed", exc_info=True)
                with contextlib.suppress(Exception):
                    hints.close()
                self._woken.wait(self._poll)
                return self._hints()
        if names:
            self.note(names)
        else:
            self._look()
            self._woken.wait(READ_EVERY)
        return hints

    def _hints(self) -> Hints | None:
        try:
            return self._open_hints()
        except Exception:  # without hints, the next poll sees the change
            return None

    def _look(self) -> None:
        """Read what is watched, and wake the callers of what has changed."""
        ids = sorted({name.removeprefix(_STREAM) for name in list(self.watches)})
        if not ids:
            return
        pieces = [ids[at : at + LOOKED_FOR] for at in range(0, len(ids), LOOKED_FOR)]
        try:
            results = self._read(
                [Statement("versions_of_runs", {"names": json.dumps(some)}) for some in pieces]
            )
        except Exception:  # callers get the same error when they read
            return
        for name, version, streamed in (row for rows in results for row in rows):
            if (watch := self.watches.get(name)) is not None:
                watch.looked(version, 0)
            if (watch := self.watches.get(stream_of(name))) is not None:
                watch.looked(version, streamed)


_STREAM = "stream:"


def stream_of(run_id: str) -> str:
    """The name under which the stream of a run is watched."""
    return _STREAM + run_id


def changed_names(statements: Sequence[Statement]) -> set[str]:
    """The names to note when these statements are committed: runs that change, and threads that get
    a new run."""
    changed = {params["id"] for name, params in statements if name in CHANGES}
    return changed | {params["thread_id"] for name, params in statements if name == NEW_RUN}


def streamed_names(statements: Sequence[Statement]) -> set[str]:
    """The names that only other processes note. This one gets the chunks themselves."""
    return {stream_of(params["id"]) for name, params in statements if name == NEW_CHUNKS}


# -- listeners

DRAIN = 5.0
"""Seconds that `close` waits for the listener."""
CALL_EVERY = 0.05
"""Seconds between two calls of the listener."""
IDLE = 0.5
"""Seconds after which the thread ends if nothing is committed."""


class Committed(NamedTuple):
    """A committed statement that stores events."""

    statement: EventStatement
    returned: Sequence[Row] | None
    """The events that it stored; None: its reply was lost."""
    rows: Rows
    """The rows of its operation."""


Listener = Callable[[Sequence[Committed], Read], None]
"""Called with the statements of one or more commits, and a function that reads rows."""


class CommitListener:
    """The queue of committed events, and the thread that passes them to the listener.

    Waking the thread at each commit would cost more than its work. So it passes the first events at
    once, later ones every `CALL_EVERY` seconds, and ends when none came for a while.
    """

    def __init__(self, listener: Listener, read: Read) -> None:
        self.listener, self._read = listener, read
        self._committed: deque[Committed] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        self._urgent = threading.Event()
        """Set while a caller waits for the queue to be empty."""

    def note(self, statements: Sequence[Statement], rows: Rows, *, again: bool) -> None:
        """Queue the event statements of a committed operation. `again`: its reply was lost, and its
        rows are those of its key, or of a second copy."""
        for n, one in enumerate(statements):
            if isinstance(one, EventStatement):
                self._committed.append(Committed(one, None if again else rows[n], rows))

    def tell(self) -> None:
        """Wake the thread if something is queued."""
        with self._lock:
            if not self._committed:
                return
            if self._thread is not None:
                self._woken.set()
                return
            thread = threading.Thread(target=self._tell_all, name="perdure-observer", daemon=True)
            try:
                thread.start()
                self._thread = thread
                return
            except RuntimeError:  # no thread can be started, or the interpreter is ending
                pass
        self._tell_queued()

    def drain(self) -> None:
        """Wait until the listener has everything, unless the listener itself calls this."""
        self.tell()
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._urgent.set()
            self._woken.set()
            thread.join(DRAIN)
            self._urgent.clear()

    def _tell_all(self) -> None:
        while True:
            self._woken.clear()
            if self._tell_queued():
                self._urgent.wait(CALL_EVERY)
            elif self._urgent.is_set() or not self._woken.wait(IDLE):
                with self._lock:
                    if not self._committed:
                        self._thread = None
                        return

    def _tell_queued(self) -> bool:
        """Pass what is queued to the listener. False if nothing is."""
        committed = [self._committed.popleft() for _ in range(len(self._committed))]
        if not committed:
            return False
        try:
            self.listener(committed, self._read)
        except BaseException:  # an observer may raise anything; it still gets the next events
            logging.getLogger("perdure").exception("Telling an observer of events failed.")
        return True
