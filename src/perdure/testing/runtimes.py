"""A runtime on a journal that is gone afterwards."""

from __future__ import annotations

import tempfile
from typing import Any

from perdure.runtime import Runtime
from perdure.testing.clock import Clock


class TemporaryRuntime(Runtime):
    """A `Runtime` with a movable clock, on SQLite in a temporary folder unless a URL is given."""

    def __init__(self, url: str | None = None, *, clock: Clock | None = None, **options: Any):
        self.clock = clock or Clock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if url is None:
            self._folder = tempfile.TemporaryDirectory(prefix="perdure-")
            url = f"sqlite:///{self._folder.name}/journal.db"
        super().__init__(url, clock=self.clock, **options)

    def close(self) -> None:
        super().close()
        if self._folder is not None:
            self._folder.cleanup()


def runtime(url: str | None = None, **options: Any) -> TemporaryRuntime:
    """A runtime for a test: `with perdure.testing.runtime() as rt:`, or `async with`."""
    return TemporaryRuntime(url, **options)
