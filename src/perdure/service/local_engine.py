"""What a client needs of its own process: the journal, and the engine that may run beside it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from perdure.journal import Journal, Plan, connect_later
from perdure.journal.names import check_text
from perdure.operations.event_observer import observe
from perdure.serde.serializer import Serializer
from perdure.types import Control, Observer


class LocalEngine:
    """The engine of a plain client: it opens the journal and drives nothing.

    The engine of a runtime drives runs, so it is notified at once of what the client changed.
    """

    def __init__(
        self, url: str | None, serializer: Serializer, observer: Observer | None = None
    ) -> None:
        self.serializer = serializer
        self._url, self._observer = url, observer
        self._opening = threading.RLock()
        self._journal: Journal | None = None

    @property
    def journal(self) -> Journal:
        """The journal. Its first use opens it."""
        with self._opening:
            if self._journal is None:
                self._journal = observe(connect_later(self._url), self._observer)
                limits = self._journal.capabilities
                self.serializer.keep_to(limits.largest_blob, limits.bytes_per_batch)
            return self._journal

    @property
    def is_open(self) -> bool:
        """Whether the journal has been opened."""
        return self._journal is not None and self._journal.is_open

    def resolve_graph(self, name: str, version: str | None) -> tuple[str, str]:
        """The name and version of the graph that a caller means. Raises `UnknownGraph`."""
        return check_text("graph", name), check_text("version", version or "")

    def wake(self, *, stopped: bool = False) -> None:
        """Look for due runs now, and with `stopped` for runs to be stopped."""

    def stop(self, run_id: str, control: Control) -> None:
        """Stop a run before its next step, if this process drives it."""

    def forget(self, thread_id: str) -> None:
        """Drop what is cached of a thread."""

    def state_at(self, thread_id: str, checkpoint_id: str) -> Plan[Mapping[str, Any] | None]:
        """The state of a thread at a checkpoint."""
        from perdure.checkpoint.operations import CheckpointKey

        key = CheckpointKey(thread_id, "", checkpoint_id)
        found = yield from self._checkpoint_reader().get_tuple(key, False)
        return None if found is None else found.checkpoint["channel_values"]

    def _checkpoint_reader(self) -> Any:
        from perdure.checkpoint.cache import CheckpointCache  # LangGraph takes seconds to import
        from perdure.checkpoint.reader import Reader
        from perdure.checkpoint.row_format import RowFormat

        return Reader(RowFormat(self.serializer), CheckpointCache(1, 0))

    def close(self) -> None:
        """Stop driving and close the journal."""
        if self._journal is not None:
            self._journal.close()
