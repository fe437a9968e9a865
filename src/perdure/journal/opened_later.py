"""A database that is opened when it is first used, by the thread that uses it.

So making a saver or a client, and asking it for its journal, never blocks an event loop: the first
read opens it in a thread of `reader_threads`, the first write in the one that commits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from perdure.errors import Closed
from perdure.journal.capabilities import Capabilities
from perdure.journal.change_feed import Hints
from perdure.journal.operation import Backend, InteractiveBackend, Row, Statement, Transaction

T = TypeVar("T")


class OpenedLater:
    """A `Backend` that is opened by a function. What that raises is raised by each use."""

    def __init__(self, capabilities: Capabilities, open: Callable[[], Backend]) -> None:
        self.capabilities = capabilities
        self._open = open
        self._opening = threading.Lock()
        self._opened: Backend | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    def open(self) -> Backend:
        if (opened := self._opened) is not None:
            return opened
        with self._opening:
            if self._closed:
                raise Closed("This journal is closed.")
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def commit(self, statements: Sequence[Statement]) -> list[list[Row]]:
        return self.open().commit(statements)

    def transact(self, work: Callable[[Transaction], T]) -> T:
        return cast(InteractiveBackend, self.open()).transact(work)

    def read(self, statements: Sequence[Statement]) -> list[list[Row]]:
        return self.open().read(statements)

    def hints(self) -> Hints | None:
        found: Hints | None = self.open().hints()
        return found

    def reopen(self) -> None:
        self._opening = threading.Lock()  # a thread of the parent may have held it
        if self._closed:
            self._opened, self._closed = None, False
        elif self._opened is not None:
            self._opened.reopen()

    def close(self) -> None:
        with self._opening:
            self._closed = True
            if self._opened is not None:
                self._opened.close()
