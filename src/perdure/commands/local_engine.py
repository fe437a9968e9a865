"""What a client needs of its own process: the journal, and the engine that may run beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from perdure.commands import health
from perdure.commands.question_links import PublicUrl
from perdure.commands.webhooks import EVERYWHERE, topic_of_url
from perdure.errors import WentBack
from perdure.failures import Failures
from perdure.journal import Journal, Plan
from perdure.journal.clock import Clock
from perdure.journal.names import check_text
from perdure.serde.serializer import Serializer
from perdure.types import Control


class LocalEngine:
    """The engine of a plain client: it opens the journal and drives nothing.

    The engine of a runtime drives runs, so it is notified at once of what the client changed.
    """

    def __init__(
        self,
        url: str | None,
        serializer: Serializer,
        observers: Any,
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
                journal: Journal = self.observers.connect(self._url)
                limits = journal.capabilities
                self.serializer.keep_to(limits.largest_blob, limits.bytes_per_batch)
                journal.on_going_back(self._note_losses)
                self._journal = journal
            return self._journal

    def _note_losses(self, error: WentBack) -> None:
        """The database went back in time: store what it lacks."""
        for op in health.store_losses(self.serializer, error, round(time.time() * 1000)):
            self.journal.defer(op)

    @property
    def sinks(self) -> list[str]:
        """The receivers of traces that this process has."""
        sinks: list[str] = self.observers.sinks
        return sinks

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

    def refuse_in_evaluation(self, name: str) -> None:
        """Refuse a change of other runs by a node of a run of an evaluation, or by an evaluator."""

    def state_at(self, thread_id: str, checkpoint_id: str) -> Plan[Mapping[str, Any] | None]:
        """The state of a thread at a checkpoint."""
        raise NotImplementedError

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
