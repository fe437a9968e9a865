"""What a process remembers of each (thread, namespace) it works on, to find what changed.

Only a saving: without it the next checkpoint stores its values whole, and the next load reads them
from the journal. Any of it may be dropped at any time.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.checkpoint.values import StoredValue
from perdure.errors import WaitCaught

RESIZED = 65_536
"""Bytes by which a thread changes before its size is counted anew."""
NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""LangGraph's id for writes that no task made."""
LAST_STAMP = 2**52
"""In microseconds since 1970: the year 2112."""


@dataclass(slots=True)
class CachedCheckpoint:
    """A checkpoint as this process last stored or loaded it."""

    id: str
    step: int
    values: dict[str, StoredValue]
    seen: dict[str, Any]
    """`versions_seen`, to know which tasks the next checkpoint must have the writes of."""
    sends: Sequence[str]
    """The node of each task that this checkpoint starts by Send."""

    size: int
    """Bytes of all its values."""
    shared: bool = False
    """Code outside of a run has the very objects of its values."""


@dataclass(slots=True, eq=False)
class WriteElement:
    """One element of a task's write: its bytes, or the row of a later checkpoint that has them."""

    obj: Any
    """A reference, so that its id stays its own."""
    data: bytes
    stored_in: tuple[str, int, int, int, int] | None = None
    """A ref, and the index there."""


class TaskWrites:
    """One call of put_writes, on its way to disk."""

    def __init__(
        self, task_id: str, entries: Sequence[tuple[int, str, bool, list[WriteElement]]]
    ) -> None:
        self.task_id = task_id
        self.entries = entries  # each: index, channel, whether it is a list, elements
        self.elements: list[tuple[str, WriteElement]] = []
        self.size, self.finished = 0, False
        for n, channel, _, many in entries:
            # Not an interrupt or an error alone: the task will not run again.
            self.finished = self.finished or (n >= 0 and task_id != NULL_TASK)
            for element in many:
                self.elements.append((channel, element))
                self.size += len(element.data)

    def largest(self) -> tuple[str, int] | None:
        """The channel that most bytes are for, and how many."""
        sizes: Counter[str] = Counter()
        for channel, element in self.elements:
            sizes[channel] += len(element.data)
        return next(((f"channel {one!r}", size) for one, size in sizes.most_common(1)), None)


@dataclass(slots=True)
class Step:
    """What the tasks that began at one checkpoint have handed over so far."""

    writes: list[TaskWrites] = field(default_factory=list)
    """What came in for it and may still be shared with its child."""
    tasks: set[str] = field(default_factory=set)
    """The tasks whose writes are stored or queued."""
    stopped: bool = False
    """Whether a task asked a question or failed: the run will hand back here."""
    caught: dict[str, WaitCaught] = field(default_factory=dict)
    """By task: those that caught their interrupt. Nothing may follow."""
    refused: dict[str, Exception] = field(default_factory=dict)
    """By task: why its writes are not stored. Nothing may follow either."""

    def add(self, writes: TaskWrites) -> None:
        self.writes.append(writes)
        if writes.finished:
            self.tasks.add(writes.task_id)

    def refuse(self, task_id: str, error: Exception) -> None:
        """Note that the writes of a task are not stored: its checkpoint must not wait for them."""
        self.refused[task_id] = error
        if task_id != NULL_TASK:
            self.tasks.add(task_id)

    def check(self) -> None:
        """Raise why the next checkpoint must not be stored: a step is stored whole, or not."""
        for error in (*self.caught.values(), *self.refused.values()):
            raise error


@dataclass(slots=True)
class ThreadCache:
    """One thread and namespace. Guarded by `changed`; `latest` is None when nothing is known.

    `put_lock` is held while a checkpoint is compared, so that arriving writes need not wait.
    """

    put_lock: threading.Lock = field(default_factory=threading.Lock)
    changed: threading.Condition = field(default_factory=threading.Condition)
    latest: CachedCheckpoint | None = None
    steps: dict[str, Step] = field(default_factory=dict)
    """By checkpoint id."""
    size: int = 0
    """Bytes of the latest checkpoint, as the cache last counted them."""
    cached: bool = True
    """Still in the cache."""

    def step(self, checkpoint_id: str) -> Step:
        step = self.steps.get(checkpoint_id)
        if step is None:
            step = self.steps[checkpoint_id] = Step()
        return step

    def advance(self, latest: CachedCheckpoint) -> None:
        """Continue from `latest`; what belongs to older checkpoints is forgotten."""
        self.latest = latest
        for id in [*self.steps]:
            if id < latest.id:
                del self.steps[id]


class CheckpointCache:
    """The most recently used threads, up to a number of them and of bytes."""

    def __init__(self, max_threads: int, max_bytes: int) -> None:
        self._max_threads, self._max_bytes = max_threads, max_bytes
        self._lock = threading.Lock()
        self._threads: OrderedDict[tuple[str, str], ThreadCache] = OrderedDict()
        self._total = 0
        self._stamp = 0

    def next_stamp(self) -> int:
        """A number for a call of put_writes: later calls have larger ones.

        It is below 2^53, which JavaScript holds exactly: what exports a D1 database is written in
        it, and a row is sealed with its stamp.
        """
        with self._lock:
            self._stamp = max(self._stamp + 1, time.time_ns() // 1_000)
            return self._stamp

    def observe_stamp(self, stamp: int) -> None:
        """Continue after a stamp of another process, whose clock may be ahead. One beyond
        `LAST_STAMP` is no clock's: it would leave no stamps to any thread."""
        with self._lock:
            self._stamp = max(self._stamp, stamp if stamp <= LAST_STAMP else 0)

    def get(self, thread_id: str, ns: str) -> ThreadCache:
        """A thread, as the one most recently used."""
        with self._lock:
            key = (thread_id, ns)
            if (thread := self._threads.get(key)) is None:
                thread = self._threads[key] = ThreadCache()
                self._shrink()
            else:
                self._threads.move_to_end(key)
            return thread

    def resize(self, thread: ThreadCache, size: int) -> None:
        """Note how many bytes a thread holds, and drop the oldest ones when it is too much."""
        with self._lock:
            if thread.cached:
                self._total += size - thread.size
                thread.size = size
                self._shrink()

    def forget(self, thread_id: str) -> None:
        with self._lock:
            for key in [key for key in self._threads if key[0] == thread_id]:
                self._drop(self._threads.pop(key))

    def clear(self) -> None:
        with self._lock:
            while self._threads:
                self._drop(self._threads.popitem()[1])

    def _shrink(self) -> None:
        while self._threads and (
            len(self._threads) > self._max_threads or self._total > self._max_bytes
        ):
            self._drop(self._threads.popitem(last=False)[1])

    def _drop(self, thread: ThreadCache) -> None:
        thread.cached = False
        self._total -= thread.size
