"""A database that is opened when it is first used, by the thread that uses it.

So making a saver or a client, and asking it for its journal, never blocks an event loop: the first
read opens it in a thread of `reads`, the first write in the one that commits. A database
that is not available then, such as during a failover, is tried again until the deadline of a call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from perdure.errors import Closed, Unavailable
from perdure.journal.operation import Backend, Capabilities, Row, Statement

PAUSE = 0.2
"""Seconds between two attempts to open."""

log = logging.getLogger("perdure")


class OpenedLater:
    """A `Backend` that is opened by a function. What that raises is raised by each use. Once it is
    open, its methods are the database's own."""

    commit: Callable[[Sequence[Statement]], list[list[Row]]]
    read: Callable[[Sequence[Statement]], list[list[Row]]]
    settle: Callable[[Sequence[Statement]], list[list[Row]]]
    hints: Callable[[], Any]

    def __init__(
        self, capabilities: Capabilities, open: Callable[[], Backend], *, deadline: float
    ) -> None:
        self.capabilities = capabilities
        self._open, self._deadline = open, deadline
        self._opening = threading.Lock()
        self._opened: Backend | None = None
        self._closed = threading.Event()
        self.problem: Unavailable | None = None
        """Why the last attempt to open it failed, if so."""
        self._failed = float("-inf")
        self._delegate()

    def open(self) -> Backend:
        if (opened := self._opened) is not None:
            return opened
        began = time.monotonic()
        with self._opening:
            if self._opened is None:
                if self.problem is not None and self._failed >= began:
                    # Another caller tried until its deadline while this one waited.
                    raise Unavailable(str(self.problem)) from self.problem
                self._opened = self._try_to_open(began + self._deadline)
                self._delegate()
            if self._closed.is_set():
                raise Closed("This journal is closed.")
            return self._opened

    def _try_to_open(self, give_up: float) -> Backend:
        while not self._closed.is_set():
            try:
                opened = self._open()
            except Unavailable as error:
                is_first, self.problem = self.problem is None, error
                self._failed = time.monotonic()
                if self._failed + PAUSE > give_up:
                    raise
                if is_first:
                    log.warning("%s Trying again.", error)
                self._closed.wait(PAUSE)
            else:
                self.problem = None
                return opened
        raise Closed("This journal is closed.")

    def _open_and(self, name: str, *arguments: Any) -> Any:
        return getattr(self.open(), name)(*arguments)

    def _delegate(self) -> None:
        for name in ("commit", "read", "settle", "transact", "hints"):
            call = partial(self._open_and, name)
            setattr(self, name, call if self._opened is None else getattr(self._opened, name, call))

    def reopen(self) -> None:
        self._opening = threading.Lock()  # a thread of the parent may have held it
        was_closed, self._closed = self._closed.is_set(), threading.Event()
        if was_closed:
            self._opened = None
            self._delegate()
        elif self._opened is not None:
            self._opened.reopen()

    def close(self) -> None:
        self._closed.set()  # first: a caller that tries to open it gives up
        with self._opening:
            if self._opened is not None:
                self._opened.close()
