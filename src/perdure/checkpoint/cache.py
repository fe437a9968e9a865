"""What a process remembers of each (thread, namespace) it works on.

Only ever a saving: a lane that was dropped, or never was, makes the next checkpoint store its
values whole and the next load read them from the journal.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from perdure.checkpoint.value_diff import Cell, Ref

NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""LangGraph's id for writes that no task made."""


@dataclass(slots=True)
class Tip:
    """The checkpoint a lane last stored or loaded."""

    id: str
    step: int
    cells: dict[str, Cell]
    seen: dict[str, Any]
    """`versions_seen`, to know which tasks the next checkpoint must have the writes of."""
    sends: int
    """Tasks this checkpoint starts by Send."""

    size: int
    """Bytes of all its values."""
    lent: bool = False
    """Somebody outside of a run has the very objects of its cells."""


class Part:
    """One element of a task's write: its bytes, or where a later checkpoint keeps them."""

    __slots__ = ("data", "home", "key", "obj")

    def __init__(self, obj: Any, data: bytes) -> None:
        self.obj = obj  # held, so that its id stays its own
        self.key = id(obj)
        self.data = data
        self.home: tuple[Ref, int] | None = None


class Writes:
    """One call of put_writes, on its way to disk."""

    __slots__ = ("entries", "finished", "parts", "task_id")

    def __init__(
        self,
        task_id: str,
        entries: list[tuple[int, str, Part | list[Part]]],
        *,
        refused: bool = False,
    ) -> None:
        self.task_id = task_id
        self.entries = entries
        # Not an interrupt or an error alone: the task will not run again.
        ordinary = refused or any(n >= 0 for n, _, _ in entries)
        self.finished = task_id != NULL_TASK and ordinary
        self.parts: list[tuple[str, Part]] = []
        for _, channel, parts in entries:
            if isinstance(parts, list):
                self.parts += [(channel, part) for part in parts]
            else:
                self.parts.append((channel, parts))


@dataclass(slots=True)
class Lane:
    """Guarded by its own condition; `tip` is None when nothing is known.

    `putting` is held while a checkpoint is taken apart, so that arriving writes need not wait.
    """

    putting: threading.Lock = field(default_factory=threading.Lock)
    changed: threading.Condition = field(default_factory=threading.Condition)
    tip: Tip | None = None
    writes: dict[str, list[Writes]] = field(default_factory=dict)
    """By checkpoint id: what came in for it and may still be shared with its child."""
    tasks: dict[str, set[str]] = field(default_factory=dict)
    """By checkpoint id: the tasks whose writes are stored or queued."""
    left: set[str] = field(default_factory=set)
    """Checkpoints at which a task asked a question or failed: the run will hand back there."""
    weight: int = 0
    """Bytes of the tip, as last told to the lanes."""
    kept: bool = True
    """Still among the lanes."""

    def arrive(self, checkpoint_id: str, writes: Writes, *, leaves: bool = False) -> None:
        if leaves:
            self.left.add(checkpoint_id)
        self.writes.setdefault(checkpoint_id, []).append(writes)
        if writes.finished:
            self.tasks.setdefault(checkpoint_id, set()).add(writes.task_id)
        self.changed.notify_all()

    def move(self, tip: Tip | None) -> None:
        """Continue from `tip`; what belongs to older checkpoints is forgotten."""
        self.tip = tip
        if tip is not None:
            for id in [id for id in self.writes if id < tip.id]:
                del self.writes[id]
            for id in [id for id in self.tasks if id < tip.id]:
                del self.tasks[id]
            self.left = {id for id in self.left if id >= tip.id}


class Lanes:
    """The most recently used lanes, up to a number of them and of bytes."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._lanes: OrderedDict[tuple[str, str], Lane] = OrderedDict()
        self._total = 0
        self._stamp = 0

    def stamp(self) -> int:
        """A number for a call of put_writes: later calls have larger ones."""
        with self._lock:
            self._stamp = max(self._stamp + 1, time.time_ns())
            return self._stamp

    def saw_stamp(self, stamp: int) -> None:
        """Another process, whose clock may be ahead, gave this number."""
        with self._lock:
            self._stamp = max(self._stamp, stamp)

    def get(self, thread_id: str, ns: str) -> Lane:
        key = (thread_id, ns)
        lane = self._lanes.get(key)
        if lane is None:
            with self._lock:
                lane = self._lanes.setdefault(key, Lane())
                self._shrink()
        return lane

    def touch(self, thread_id: str, ns: str) -> Lane:
        """The lane, as the one most recently used."""
        lane = self.get(thread_id, ns)
        with self._lock:
            if (thread_id, ns) in self._lanes:
                self._lanes.move_to_end((thread_id, ns))
        return lane

    def weigh(self, lane: Lane, size: int) -> None:
        """Note how much a lane holds, and let the oldest go when it is too much."""
        if abs(size - lane.weight) < 65_536:
            return
        with self._lock:
            if lane.kept:
                self._total += size - lane.weight
                lane.weight = size
                self._shrink()

    def forget(self, thread_id: str) -> None:
        with self._lock:
            for key in [key for key in self._lanes if key[0] == thread_id]:
                self._drop(self._lanes.pop(key))

    def _shrink(self) -> None:
        while self._lanes and (len(self._lanes) > self._most or self._total > self._most_bytes):
            self._drop(self._lanes.popitem(last=False)[1])

    def _drop(self, lane: Lane) -> None:
        lane.kept = False
        self._total -= lane.weight
