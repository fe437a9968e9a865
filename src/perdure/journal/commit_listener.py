"""Pass committed events to a listener: after the commit, in order, once, in a separate thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from perdure.journal.operation import EventStatement, Row, Statement

DRAIN = 5.0
"""Seconds that `close` waits for the listener."""
GATHER = 0.05
"""Seconds between two calls of the listener."""
IDLE = 0.5
"""Seconds after which the thread ends if nothing is committed."""

Rows = Sequence[Sequence[Row]]
Read = Callable[[Sequence[Statement]], list[list[Row]]]


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
    once, later ones every `GATHER` seconds, and ends when none came for a while.
    """

    def __init__(self, listener: Listener, read: Read) -> None:
        self._listener, self._read = listener, read
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
                self._urgent.wait(GATHER)
            elif self._urgent.is_set() or not self._woken.wait(IDLE):
                with self._lock:
                    if not self._committed:
                        self._thread = None
                        return

    def _tell_queued(self) -> bool:
        """Pass what is queued to the listener. False if nothing is."""
        found = [self._committed.popleft() for _ in range(len(self._committed))]
        if not found:
            return False
        try:
            self._listener(found, self._read)
        except BaseException:  # an observer may raise anything; it still gets the next events
            logging.getLogger("perdure").exception("Telling an observer of events failed.")
        return True
