"""A runtime on a journal that is gone afterwards."""

from __future__ import annotations

import tempfile
from typing import Any

from perdure.runtime import Runtime
from perdure.testing.clock import Clock


class TemporaryRuntime(Runtime):
    """A `Runtime` for tests: a movable clock and a temporary journal. `runtime` makes it.

    Args:
        url: The journal. By default a new SQLite file in a temporary folder, which `close` removes.
        clock: The clock. By default a new one, at the current time.
        **options: Other arguments of `Runtime`.
    """

    def __init__(self, url: str | None = None, *, clock: Clock | None = None, **options: Any):
        self.clock = clock or Clock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if url is None:
            self._folder = tempfile.TemporaryDirectory(prefix="perdure-")
            url = f"sqlite:///{self._folder.name}/journal.db"
        super().__init__(url, clock=self.clock, **options)

    def close(self) -> None:
        """Close the runtime, and remove the temporary journal."""
        super().close()
        if self._folder is not None:
            self._folder.cleanup()


def runtime(url: str | None = None, **options: Any) -> TemporaryRuntime:
    """Return a runtime for a test, to use with `with` or `async with`.

        with perdure.testing.runtime() as rt:
            rt.register(builder, name="campaign")
            run = rt.blocking.start("campaign", {})
            rt.blocking.tick()
            rt.clock.advance(timedelta(days=7))
            rt.blocking.tick()

    It is the real runtime on a real journal. `rt.clock` moves its time.

    Args:
        url: The journal. By default a new SQLite file in a temporary folder.
        **options: `clock`, and the other arguments of `Runtime`.
    """
    return TemporaryRuntime(url, **options)
