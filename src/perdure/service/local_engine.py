"""What a client needs of its own process: the journal, and the engine that may run beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from perdure.errors import WentBack
from perdure.journal import Journal, Plan
from perdure.journal.clock import Clock
from perdure.journal.names import check_text
from perdure.observe.observers import Observers
from perdure.operations import losses
from perdure.serde.serializer import Serializer
from perdure.service.failures import Failures
from perdure.service.public_addresses import EVERYWHERE
from perdure.service.public_url import PublicUrl
from perdure.service.webhooks import topic_of_url
from perdure.types import Control


class LocalEngine:
    """The engine of a plain client: it opens the journal and drives nothing.

    The engine of a runtime drives runs, so it is notified at once of what the client changed.
    """

    def __init__(
        self,
        url: str | None,
        serializer: Serializer,
        observers: Observers,
        clock: Callable[[], Clock],
    ) -> None:
        self.serializer, self.observers = serializer, observers
        self._url, self._get_clock = url, clock
        self._opening = threading.RLock()
        self.failures = Failures()
        """What keeps failing in this process."""
        self._journal: Journal | None = None
        self._closed = False
        self.given_url: str | None = None
        """`public_url=` of the client."""

    @property
    def public_url(self) -> PublicUrl | None:
        """Where people reach the pages. Raises `BadArgument` if what was given is not a URL."""
        return PublicUrl.of(self.given_url)

    @property
    def journal(self) -> Journal:
        """The journal. Its first use opens it."""
        with self._opening:
            if self._journal is None:
                self._journal = self.observers.connect(self._url)
                limits = self._journal.capabilities
                self.serializer.keep_to(limits.largest_blob, limits.bytes_per_batch)
                self._journal.on_going_back(self._note_losses)
            return self._journal

    def _note_losses(self, error: WentBack) -> None:
        """The database went back in time: store what it lacks."""
        for op in losses.store(self.serializer, error, round(time.time() * 1000)):
            self.journal.defer(op)

    @property
    def sinks(self) -> list[str]:
        """The receivers of traces that this process has."""
        return self.observers.sinks

    @property
    def clock(self) -> Clock:
        """The clock of the journal, which it opens."""
        return self._get_clock()

    @property
    def is_open(self) -> bool:
        """Whether the journal has been opened."""
        return self._journal is not None and self._journal.is_open

    def resolve_graph(self, name: str, version: str | None) -> tuple[str, str]:
        """The name and version of the graph that a caller means. Raises `UnknownGraph`."""
        return check_text("graph", name), check_text("version", version or "")

    def webhook_topic(self, url: str) -> str:
        """The topic of the messages for a run's own webhook. Raises `BadArgument`. Workers decide
        whether its address is allowed; a runtime knows that now."""
        return topic_of_url(url, allow_private=EVERYWHERE)

    @property
    def graph_names(self) -> list[str]:
        """The names of the graphs that this process has."""
        return []

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

    def is_dead(self, worker: str) -> bool:
        """Whether a worker was on this host and is certainly dead. A plain client does not know."""
        return False

    def drain_ticks(self) -> None:
        """Have the ticks in this process claim nothing more, and stop at their next steps."""

    def setup(self) -> None:
        """Open the journal now, and again if it was closed."""
        with self._opening:
            if self._closed:
                self._closed = False
                self.observers.reopen()
            self._setup_journal()

    def _setup_journal(self) -> None:
        self.journal.setup()

    def close(self) -> None:
        """Stop driving and close the journal. `setup` opens it again."""
        self._closed = True
        self.observers.close()
        if self._journal is not None:
            self._journal.close()
