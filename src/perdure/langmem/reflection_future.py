"""`Reflection`: the future that `submit` returns."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from perdure.errors import Error, ReflectionFailed, ReflectionLeft
from perdure.types import ENDED, Run, State


class Reflection(Future[Any]):
    """The future of a reflection. It follows the reflection in any process.

    A `concurrent.futures.Future`. Its result is what the reflector returned, if that can be stored,
    otherwise `None`. It is cancelled when a later reflection of its conversation replaces it. It
    raises `ReflectionFailed` if the reflection is held, and `ReflectionLeft` if the executor was
    shut down first.
    """

    def __init__(self, id: str, executor: str, cancel_run: Callable[[str], bool]) -> None:
        super().__init__()
        self.id, self._executor, self._cancel_run = id, executor, cancel_run
        # When to read whether the reflection has ended, by the monotonic clock.
        self.check_at = 0.0
        self._lock = threading.RLock()

    def cancel(self) -> bool:
        """Cancel the reflection, unless it is running or has ended.

        Returns:
            Whether it is cancelled.
        """
        if self.done():
            return self.cancelled()
        return self._cancel_run(self.id) and self._set_cancelled()

    def _set_cancelled(self) -> bool:
        """Cancel the future and notify `concurrent.futures.wait`, once."""
        with self._lock:
            if not self.done() and super().cancel():
                self.set_running_or_notify_cancel()
        return self.cancelled()

    def settle(self, run: Run) -> None:
        """Set the outcome of the run, if it has one. Internal."""
        if self.done():
            return
        with contextlib.suppress(Exception):  # the caller cancelled it at the same moment
            if run.state is State.CANCELLED:
                self._set_cancelled()
            elif run.state is State.DONE:
                self.set_result((run.output or {}).get("result"))
            elif run.state is State.HELD or run.state in ENDED:
                self.set_exception(ReflectionFailed(self.id, run.reason or str(run.error)))

    def abandon(self, error: Error | None = None) -> None:
        """Fail the future, by default with `ReflectionLeft`. Internal."""
        if not self.done():
            with contextlib.suppress(Exception):
                self.set_exception(error or ReflectionLeft(self.id, self._executor))
