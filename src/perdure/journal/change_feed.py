"""Wake those who wait for a run, in whichever process it changes.

Callers of `join` watch the id of a run, readers of its stream watch `stream_of` that id, readers of
all runs of a thread watch the id of the thread, for its next run. A run that produces something
wakes the readers of its stream; one that changes wakes its callers of `join` too. Three sources:

    a commit of this process       at once; what was streamed is handed over in memory
    a hint of the database         PostgreSQL's NOTIFY, a write to SQLite's WAL
    a look at the watched runs     one read for all of them, after a hint that does not say which
                                   run changed, and every `poll` seconds: hints may be lost

The thread that waits for hints lives while something is watched.
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
from typing import Any, Protocol

from perdure.journal.operation import Row, Statement

CHANGES = frozenset({"let_go", "stop_run"})
"""Statements after which those who watch the run `:id` may have something to do."""
NEW_CHUNKS = "insert_stream"
"""The statement that stores what the run `:id` produced."""
NEW_RUN = "insert_run"
"""The statement that gives the thread `:thread_id` a further run."""
KEPT = 1 << 20
"""Bytes of what a watched run streamed that are kept in memory."""
GATHER = 0.01
"""Seconds between two looks."""
HINTED = 5.0
"""How many times longer the pauses are between two looks if the database gives hints."""
LINGER = 5.0
"""Seconds without a watched run after which the thread ends."""
LOOKED_FOR = 1000
"""Runs that one statement looks for."""

Read = Callable[[Sequence[Statement]], list[list[Row]]]


class Hints(Protocol):
    """How a database says that something was committed."""

    def wait(self, seconds: float) -> Collection[str] | None:
        """Wait for a commit of another process: ids of the runs that changed; None: any may have;
        empty: nothing was heard. Raises anything if it cannot listen any more."""

    def close(self) -> None: ...


class Item(Protocol):
    """What was streamed, numbered from `n` to `last`."""

    n: int
    last: int
    body: bytes


class Watch:
    """What is watched under one name by at least one caller in this process."""

    def __init__(self) -> None:
        self.count = 0
        """How often it has changed since it is watched."""
        self.watchers = 0
        self._version: Any = None
        self._streamed = 0
        self._items: deque[Any] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def changed(self, item: Any = None) -> None:
        """Wake those who wait. `item` is what was streamed, if this process stored it."""
        with self._lock:
            self.count += 1
            if item is not None:
                self._streamed = item.n
                self._items.append(item)
                self._bytes += len(item.body)
                while self._bytes > KEPT and len(self._items) > 1:
                    self._bytes -= len(self._items.popleft().body)
            for event, loop in self._waiting.items():
                with contextlib.suppress(RuntimeError):  # that loop is closed
                    loop.call_soon_threadsafe(event.set)

    def looked(self, version: Any, streamed: int) -> None:
        """Wake those who wait if it is not as it was at the last look, or if more was streamed than
        they were given. At the first look too: they may have read before it."""
        if version != self._version or streamed > self._streamed:
            self._version, self._streamed = version, max(streamed, self._streamed)
            self.changed()

    def items_after(self, number: int) -> list[Any]:
        """What was streamed after a number, if it is in memory without a gap."""
        with self._lock:
            found = [item for item in self._items if item.last > number]
        return found if found and found[0].n <= number + 1 else []

    async def wait(self, seen: int, seconds: float | None = None) -> None:
        """Wait until it has changed more often than `seen` times, or so long."""
        event = asyncio.Event()
        with self._lock:
            if self.count != seen:
                return
            self._waiting[event] = asyncio.get_running_loop()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        finally:
            with self._lock:
                del self._waiting[event]


class ChangeFeed:
    """The watched runs of one process."""

    def __init__(self, read: Read, hints: Callable[[], Hints | None], poll: float) -> None:
        self._read, self._open_hints, self._poll = read, hints, poll
        self._watches: dict[str, Watch] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        self._closed = False

    @property
    def is_watched(self) -> bool:
        return bool(self._watches)

    @contextlib.contextmanager
    def watch(self, name: str) -> Iterator[Watch]:
        """Watch a run, a stream or a thread. Whatever changes from now on wakes the caller, or is
        seen by its next read."""
        with self._lock:
            watch = self._watches.setdefault(name, Watch())
            watch.watchers += 1
            self._start_thread()
        try:
            yield watch
        finally:
            with self._lock:
                watch.watchers -= 1
                if not watch.watchers:
                    self._watches.pop(name, None)

    def _start_thread(self) -> None:
        """Have a thread wait for hints, if something is watched. Only with the lock."""
        if self._thread is None and self._watches and not self._closed:
            self._thread = threading.Thread(target=self._run, name="perdure-changes", daemon=True)
            self._thread.start()

    def note(self, names: Collection[str]) -> None:
        """These have changed."""
        for name in names:
            for one in (name, stream_of(name)):
                if (watch := self._watches.get(one)) is not None:
                    watch.changed()

    def publish(self, run_id: str, item: Any) -> None:
        """Hand over what a run streamed. It is on disk."""
        if (watch := self._watches.get(stream_of(run_id))) is not None:
            watch.changed(item)

    def close(self) -> None:
        """Wake all, so that they see that the journal is closed."""
        self._closed = True
        self._woken.set()
        self.note(list(self._watches))

    def _run(self) -> None:
        hints, idle_since = None, time.monotonic()
        try:
            hints = self._hints()
            while not self._closed:
                if self._watches:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > LINGER:
                    break
                hints = self._turn(hints)
        finally:
            if hints is not None:
                hints.close()
            with self._lock:
                self._thread = None
                self._start_thread()  # for a caller that came while it ended

    def _turn(self, hints: Hints | None) -> Hints | None:
        """Wait for a hint, and wake whom it concerns. Gives the source of the next one."""
        heard: Collection[str] | None = ()
        if hints is None:
            self._woken.wait(self._poll)
        else:
            try:
                heard = hints.wait(self._poll * HINTED)
            except Exception:
                logging.getLogger("perdure").debug("listening for changes failed", exc_info=True)
                with contextlib.suppress(Exception):
                    hints.close()
                self._woken.wait(self._poll)
                return self._hints()
        if heard:
            self.note(heard)
        else:
            self._look()
            self._woken.wait(GATHER)
        return hints

    def _hints(self) -> Hints | None:
        try:
            return self._open_hints()
        except Exception:  # without hints it is seen at the next look
            return None

    def _look(self) -> None:
        """Wake those whose runs are not as they were at the last look."""
        ids = sorted({name.removeprefix(_STREAM) for name in list(self._watches)})
        pieces = [ids[at : at + LOOKED_FOR] for at in range(0, len(ids), LOOKED_FOR)]
        names = [Statement("versions_of_runs", {"names": json.dumps(some)}) for some in pieces]
        if not names:
            return
        try:
            found = self._read(names)
        except Exception:  # the callers meet it themselves, when they read
            return
        for rows in found:
            for name, version, streamed in rows:
                if (watch := self._watches.get(name)) is not None:
                    watch.looked(version, 0)
                if (watch := self._watches.get(stream_of(name))) is not None:
                    watch.looked(version, streamed)


_STREAM = "stream:"


def stream_of(run_id: str) -> str:
    """The name by which what a run produces is watched."""
    return _STREAM + run_id


def changed_names(statements: Sequence[Statement]) -> set[str]:
    """What is to be noted when these statements are committed: runs that change, and threads that
    have a further run."""
    changed = {params["id"] for name, params in statements if name in CHANGES}
    return changed | {params["thread_id"] for name, params in statements if name == NEW_RUN}


def streamed_names(statements: Sequence[Statement]) -> set[str]:
    """What other processes have to note besides. This one is handed the chunks themselves."""
    return {stream_of(params["id"]) for name, params in statements if name == NEW_CHUNKS}
