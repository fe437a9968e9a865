"""Recorded reads: a value read by a task is the same when the task runs again."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar
from weakref import WeakMethod

from perdure.journal import Journal, Statement, read_op
from perdure.segments.lease import Lease
from perdure.segments.progress import Progress
from perdure.serde import places
from perdure.serde.places import Place

T = TypeVar("T")


class RecordedReads:
    """The recorded reads of one segment."""

    def __init__(
        self, journal: Journal, lease: Lease, progress: Progress, refuse: Callable[[], NoReturn]
    ) -> None:
        """`refuse`, a method of the segment, is called if the journal refuses to store a read."""
        self._journal, self._lease, self._progress = journal, lease, progress
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
        task = hashlib.blake2b(place.encode(), digest_size=16).hexdigest()
        with self._lock:
            known = self._by_task.get(task)
        if known is None:
            # Not under the lock: the journal may be in a transaction that asks for it.
            is_first = self._progress.is_new(checkpoint_id)
            loaded = {} if is_first else self._load(task)
            with self._lock:
                known = self._by_task.setdefault(task, loaded)
        if n not in known:
            known[n] = make()
            body = self._serializer.dumps(known[n], self._place(task, n))
            params = {**self._lease.params, "task": task, "n": n, "body": body}
            store = self._lease.fenced([Statement("insert_read", params)])
            self._journal.defer(store._replace(otherwise=self._refuse()))
        value: T = known[n]
        return value

    def _load(self, task: str) -> dict[int, Any]:
        params = {**self._lease.params, "task": task}
        rows = self._journal.do(read_op("reads_of_task", params, lambda rows: rows[0]))
        loads = self._serializer.loads
        return {n: loads(body, self._place(task, n)) for n, body in rows}

    def _place(self, task: str, n: int) -> Place:
        return places.of_read(self._lease.thread_id, self._lease.run_id, task, n)
