"""What a client owns: the journal, its clock, the serializer, the observers."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from perdure.commands import events
from perdure.commands.webhooks import EVERYWHERE, Private, check_url, topic_of_host
from perdure.errors import BadArgument, WentBack
from perdure.failures import Failures
from perdure.journal import Journal, Plan
from perdure.journal.clock import Clock, JournalClock
from perdure.journal.names import check_text
from perdure.serde.redaction import hide_in_url
from perdure.serde.serializer import Serializer
from perdure.types import Control

VARIABLE = "PERDURE_PUBLIC_URL"

LONGEST_URL = 1000

MISSING = (
    "perdure does not know where people reach its pages. Pass public_url=, or set "
    f"{VARIABLE}, such as https://agents.example.com."
)


@dataclass(frozen=True)
class PublicUrl:
    """The address of a server with pages, including the prefix its routes are mounted under."""

    base: str

    @classmethod
    def of(cls, given: Any) -> PublicUrl | None:
        """The given address, or that of the environment. Raises `BadArgument`."""
        found = os.environ.get(VARIABLE) if given is None else given
        return cls(check_public_url(found)) if found else None

    def link(self, token: str) -> str:
        """The address of a signed link. The token is in the query, which access logs leave out."""
        return f"{self.base}/ui/link?t={quote(token, safe='')}"

    def question(self, wait_id: str) -> str:
        """The page of a question, for people who can sign in."""
        return f"{self.base}/ui/questions/{quote(wait_id, safe='')}"

    def run(self, run_id: str) -> str:
        """The page of a run, for people who can sign in."""
        return f"{self.base}/ui/runs/{quote(run_id, safe='')}"


def check_public_url(given: Any) -> str:
    """The address without a slash at its end. Raises `BadArgument`."""
    wrong = BadArgument(
        f"public_url must be the address that people reach perdure at, such as "
        f"https://agents.example.com, without a query, not {given!r}."
    )
    if not isinstance(given, str) or len(given) > LONGEST_URL or not given.isascii():
        raise wrong
    if re.search(r"[\x00-\x20\x7f\\\"<>?#]", given):
        raise wrong
    try:
        parts = urlsplit(given)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("https", "http") or not host or parts.username is not None:
        raise wrong
    return given.rstrip("/")


class Connection:
    """A connection to a journal. It opens the journal on first use and drives nothing.

    The engine of a runtime is one that drives runs, so it is told at once what a client changed.
    """

    def __init__(
        self,
        url: str | None,
        serializer: Serializer,
        observers: Any,
    ) -> None:
        self.serializer, self.observers = serializer, observers
        self.url = url
        self._opening = threading.RLock()
        self.failures = Failures()
        """What keeps failing in this process."""
        self._journal: Journal | None = None
        self._closed = False
        self.given_url: str | None = None
        """`public_url=` of the client."""
        self.given_clock: Clock | None = None
        """`clock=` of the client."""
        self._clock: Clock | None = None
        self.seen_assistants: dict[str, Any] = {}
        """Assistants that were read, by the name they were asked for."""
        self.assistants_since: int | None = None
        """When the default assistants of this process's graphs were made."""

    @property
    def shown_url(self) -> str:
        """The URL of the journal, without its password."""
        return hide_in_url(self.url or os.environ.get("PERDURE_URL", ""))

    @property
    def public_url(self) -> PublicUrl | None:
        """Where people reach the pages. Raises `BadArgument` if what was given is not a URL."""
        return PublicUrl.of(self.given_url)

    @property
    def journal(self) -> Journal:
        """The journal. Its first use opens it."""
        with self._opening:
            if self._journal is None:
                journal: Journal = self.observers.connect(self.url)
                limits = journal.capabilities
                self.serializer.keep_to(limits.largest_blob, limits.bytes_per_batch)
                journal.acknowledged.listeners.append(self._note_losses)
                self._journal = journal
            return self._journal

    def _note_losses(self, error: WentBack) -> None:
        """The database went back in time: store what it lacks."""
        for op in events.store_losses(self.serializer, error, round(time.time() * 1000)):
            self.journal.defer(op)

    @property
    def sinks(self) -> list[str]:
        """The receivers of traces that this process has."""
        sinks: list[str] = self.observers.sinks
        return sinks

    @property
    def clock(self) -> Clock:
        """The clock of the journal, which it opens."""
        with self._opening:
            if self._clock is None:
                self._clock = self.given_clock or JournalClock(self.journal)
            return self._clock

    @property
    def is_open(self) -> bool:
        """Whether the journal has been opened."""
        return self._journal is not None and self._journal.is_open

    def resolve_graph(self, name: str, version: str | None) -> tuple[str, str]:
        """The name and version of the graph that a caller means. Raises `UnknownGraph`."""
        return check_text("graph", name), check_text("version", version or "")

    def webhook_topic(self, url: str) -> str:
        """The topic of the messages for a run's own webhook. Raises `BadArgument`."""
        return topic_of_host(check_url(url, allow_private=self.private_webhooks))

    @property
    def private_webhooks(self) -> Private:
        """Which private addresses the own webhooks of runs may have. Workers decide that; a runtime
        knows it now."""
        return EVERYWHERE

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

    async def perform(self, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the plan of a `verbs.Recorded`: in a node, as an effect of its run."""
        raise NotImplementedError

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
        self.observers.call("close")
        if self._journal is not None:
            self._journal.close()
