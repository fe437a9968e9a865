"""Recorded reads: a value read by a task is the same when the task runs again."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar
from weakref import WeakMethod

from perdure.commands.effects import Owner
from perdure.execution.progress import Progress
from perdure.journal import Journal, Statement, read_op
from perdure.serde.encryption import Place

T = TypeVar("T")


def _task_id(place: str) -> str:
    return hashlib.blake2b(place.encode(), digest_size=16).hexdigest()


class RecordedReads:
    """The recorded reads of one segment."""

    def __init__(
        self,
        journal: Journal,
        owner: Owner,
        progress: Progress,
        refuse: Callable[[], NoReturn],
        origin: Mapping[str, Any],
    ) -> None:
        """`refuse`, a method of the segment, is called if the journal refuses to store a read.
        `origin` is the run that this one is a fork of, and the ids its tasks had there."""
        self._origin = origin
        self._journal, self._owner, self._progress = journal, owner, progress
        self._serializer, self._refuse = progress.serializer, WeakMethod(refuse)
        self._by_task: dict[str, dict[int, Any]] = {}
        self._ordinals: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def read_next(
        self, task: str, attempt: int, checkpoint_id: str | None, make: Callable[[], T]
    ) -> T:
        """The next read of a task. Each attempt at the task counts from 0."""
        with self._lock:
            n = self._ordinals.get((task, attempt), 0)
            self._ordinals[task, attempt] = n + 1
        return self.read(task, checkpoint_id, n, make)

    def read(self, place: str, checkpoint_id: str | None, n: int, make: Callable[[], T]) -> T:
        """The n-th read of a task: the recorded value, or `make()`, which is then recorded.

        It is queued before anything that the task does with it, so it is in the journal wherever
        its consequences are.
        """
        task = _task_id(place)
        with self._lock:
            known = self._by_task.get(task)
        if known is None:
            # Not under the lock: the journal may be in a transaction that asks for it.
            is_first = self._progress.is_new(checkpoint_id)
            loaded = {} if is_first else self._load(self._owner.params, task)
            if not loaded and not is_first and self._origin:
                loaded = self._inherit(place, task)
            with self._lock:
                known = self._by_task.setdefault(task, loaded)
        if n not in known:
            known[n] = make()
            self._store(task, n, known[n])
        value: T = known[n]
        return value

    def texts(self, place: str) -> list[str]:
        """The results of the reads at a place so far, as text."""
        with self._lock:
            known = self._by_task.get(_task_id(place), {})
            return [str(value) for value in known.values()]

    def _store(self, task: str, n: int, value: Any) -> None:
        run = self._owner.params
        body = self._serializer.dumps(value, _place(run, task, n), own=True)
        params = {**run, "task": task, "n": n, "body": body}
        store = self._owner.fenced(Statement("insert_read", params))
        self._journal.defer(store._replace(otherwise=self._refuse()))

    def _load(self, run: Mapping[str, Any], task: str) -> dict[int, Any]:
        params = {"thread_id": run["thread_id"], "id": run["id"], "task": task}
        rows = self._journal.do(read_op("reads_of_task", params, lambda rows: rows[0]))
        loads = self._serializer.loads
        return {n: loads(body, _place(run, task, n)) for n, body in rows}

    def _inherit(self, place: str, task: str) -> dict[int, Any]:
        """The times that the task read in the run that this one is a fork of, now recorded here: a
        sleep goes on, and is not begun again. Random values are drawn again."""
        first, bar, rest = place.partition("|")
        node, _, id = first.rpartition(":")
        there = f"{node}:{self._origin['tasks'].get(id, id)}{bar}{rest}"
        found = self._load(self._origin, _task_id(there))
        times = {n: value for n, value in found.items() if type(value) is int}
        for n, value in times.items():
            self._store(task, n, value)
        return times


def _place(run: Mapping[str, Any], task: str, n: int) -> Place:
    return Place(f"read {n} of task {task!r} of run {run['id']}", (run["thread_id"],))
