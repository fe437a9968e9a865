"""Reads of coroutines that share a visit to the database, as commits share a transaction.

While one visit is made, the next reads gather; one thread then makes them all at once, on one
snapshot. Only operations of the same name share one, so that none waits for a long one of another
kind. On PostgreSQL a visit is one round trip, whatever the number of its statements.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from perdure.errors import Closed, Unavailable
from perdure.journal.operation import Backend, Op, Row
from perdure.journal.reader_threads import ReaderThreads

T = TypeVar("T")

MOST = 16
"""Operations that share a visit at most."""


class Read(NamedTuple):
    """An operation, and who waits for its result."""

    op: Op[Any]
    future: asyncio.Future[Any]


Outcome = tuple["asyncio.Future[Any]", Any, BaseException | None]


class GroupRead:
    """The reads of one journal's coroutines."""

    def __init__(self, backend: Backend, threads: ReaderThreads) -> None:
        self._backend, self._threads = backend, threads
        self._most = 1 if backend.capabilities.bounded else MOST
        self._lock = threading.Lock()
        self._gathered: dict[str, list[Read]] = {}

    def read(self, op: Op[T]) -> asyncio.Future[T]:
        """The result of an operation that reads; it is made in a thread, where it may block. The
        future belongs to the running event loop."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            gathered = self._gathered.setdefault(op.name, [])
            gathered.append(Read(op, future))
            is_first = len(gathered) % self._most == 1 or self._most == 1
        if is_first:  # a thread is on its way for the others
            self._threads.start(lambda: self._visit(op.name))
        return future

    def _visit(self, name: str) -> None:
        with self._lock:
            gathered = self._gathered[name]
            batch, rest = gathered[: self._most], gathered[self._most :]
            if rest:
                self._gathered[name] = rest
            else:
                del self._gathered[name]
        outcomes = self._outcomes(batch)
        loops: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
        for one, outcome in zip(batch, outcomes, strict=True):
            loops.setdefault(one.future.get_loop(), []).append((one.future, *outcome))
        for loop, some in loops.items():
            with suppress(RuntimeError):  # the loop is closed, and its coroutines are gone
                loop.call_soon_threadsafe(_resolve, some)

    def _outcomes(self, batch: Sequence[Read]) -> list[tuple[Any, BaseException | None]]:
        """The result or the error of each. If one of them is at fault, each is read alone."""
        try:
            scripts = [one.op.render() for one in batch]
            rows = self._backend.read([statement for script in scripts for statement in script])
        except BaseException as error:
            if len(batch) == 1 or isinstance(error, (Closed, Unavailable)):
                return [(None, error) for _ in batch]
            return [self._outcomes([one])[0] for one in batch]
        outcomes, start = [], 0
        for one, script in zip(batch, scripts, strict=True):
            end = start + len(script)
            outcomes.append(_outcome(one, rows[start:end]))
            start = end
        return outcomes


def _outcome(read: Read, rows: Sequence[Sequence[Row]]) -> tuple[Any, BaseException | None]:
    try:
        return read.op.result(rows), None
    except BaseException as error:
        return None, error


def _resolve(outcomes: Sequence[Outcome]) -> None:
    for future, result, error in outcomes:
        if future.done():  # cancelled meanwhile
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
