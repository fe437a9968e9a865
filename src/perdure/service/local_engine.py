"""What a client needs of its own process: the journal, and the engine that may run beside it.

A runtime's engine drives runs, so it is told at once what the client changed. A plain client has
`NoEngine`, which opens the journal and does nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from perdure.journal import Journal, Plan, connect
from perdure.journal.names import check_text
from perdure.operations.event_observer import observe
from perdure.serde.serializer import Serializer
from perdure.types import Control, Observer


class LocalEngine(Protocol):
    """The journal of a client, and what drives runs in its process."""

    @property
    def journal(self) -> Journal:
        """The journal, opened on first use."""

    @property
    def serializer(self) -> Serializer: ...

    @property
    def is_open(self) -> bool:
        """Whether the journal has been opened."""

    def resolve_graph(self, name: str, version: str | None) -> tuple[str, str]:
        """The name and version of the graph that a caller means. Raises `UnknownGraph`."""

    def wake(self, *, stopped: bool = False) -> None:
        """Look for due runs now, and with `stopped` for runs to be stopped."""

    def stop(self, run_id: str, control: Control) -> None:
        """Stop a run before its next step, if this process drives it."""

    def forget(self, thread_id: str) -> None:
        """Drop what is cached of a thread."""

    def state_at(self, thread_id: str, checkpoint_id: str) -> Plan[Mapping[str, Any] | None]:
        """The state of a thread at a checkpoint."""

    def close(self) -> None:
        """Stop driving and close the journal."""


class NoEngine:
    """Of a client that drives nothing."""

    def __init__(
        self, url: str | None, serializer: Serializer, observer: Observer | None = None
    ) -> None:
        self._url, self.serializer, self._observer = url, serializer, observer
        self._opening = threading.Lock()
        self._journal: Journal | None = None

    @property
    def journal(self) -> Journal:
        with self._opening:
            if self._journal is None:
                self._journal = observe(connect(self._url), self._observer)
            return self._journal

    @property
    def is_open(self) -> bool:
        return self._journal is not None

    def resolve_graph(self, name: str, version: str | None) -> tuple[str, str]:
        return check_text("graph", name), check_text("version", version or "")

    def wake(self, *, stopped: bool = False) -> None:
        pass

    def stop(self, run_id: str, control: Control) -> None:
        pass

    def forget(self, thread_id: str) -> None:
        pass

    def state_at(self, thread_id: str, checkpoint_id: str) -> Plan[Mapping[str, Any] | None]:
        from perdure.checkpoint.cache import CheckpointCache  # LangGraph takes seconds to import
        from perdure.checkpoint.reader import Reader
        from perdure.checkpoint.row_format import RowFormat

        rows = RowFormat(self.serializer)
        return state_at(Reader(rows, CheckpointCache(1, 0)), thread_id, checkpoint_id)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()


def state_at(reader: Any, thread_id: str, checkpoint_id: str) -> Plan[Mapping[str, Any] | None]:
    """The state of a thread at a checkpoint, by a checkpoint reader."""
    from perdure.checkpoint.operations import CheckpointKey

    found = yield from reader.get_tuple(CheckpointKey(thread_id, "", checkpoint_id), False)
    return None if found is None else found.checkpoint["channel_values"]
