"""A runtime whose requests to its database are counted: each read or commit of a backend is one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar, cast

import pytest

import perdure.runtime
from perdure.journal import Journal, Row, Statement, connect_later
from perdure.journal.operation import Backend, InteractiveBackend, Transaction
from perdure.observe.observers import Observers

T = TypeVar("T")


class Request(NamedTuple):
    writes: bool
    statements: tuple[str, ...]


class Counting:
    """A real backend that notes what it is asked. `poll` replaces its own."""

    def __init__(self, backend: Backend, poll: float | None = None) -> None:
        self._backend = backend
        own = backend.capabilities
        self.capabilities = own if poll is None else replace(own, poll=poll)
        self.requests: list[Request] = []
        self._lock = threading.Lock()

    def _note(self, writes: bool, statements: Sequence[Statement]) -> None:
        with self._lock:
            self.requests.append(Request(writes, tuple(one.name for one in statements)))

    def take(self) -> list[Request]:
        """The requests since the last time."""
        with self._lock:
            found, self.requests = self.requests, []
        return found

    def commit(self, statements: Sequence[Statement]) -> list[list[Row]]:
        self._note(True, statements)
        return self._backend.commit(statements)

    def transact(self, work: Callable[[Transaction], T]) -> T:
        self._note(True, [])
        return cast(InteractiveBackend, self._backend).transact(work)

    def read(self, statements: Sequence[Statement]) -> list[list[Row]]:
        self._note(False, statements)
        return self._backend.read(statements)

    def settle(self, statements: Sequence[Statement]) -> list[list[Row]]:
        self._note(False, statements)
        return self._backend.settle(statements)

    def hints(self) -> object:
        return self._backend.hints()

    def reopen(self) -> None:
        self._backend.reopen()

    def close(self) -> None:
        self._backend.close()


def count_requests(
    url: str, monkeypatch: pytest.MonkeyPatch, poll: float | None = None
) -> Counting:
    """Have the next runtimes made by this test use one journal, whose requests are counted."""
    counting = Counting(connect_later(url)._backend, poll)

    class Counted(Observers):
        def connect(self, url: str | None) -> Journal:
            return Journal(counting)

    monkeypatch.setattr(perdure.runtime, "Observers", Counted)
    return counting
