"""Deliver the messages of the outbox to the receivers of this process.

Each topic has a number of slots: the maximum number of its messages delivered at once. Messages of
a topic without a free slot are not taken, so a slow receiver holds back only its own messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from perdure.commands import messages
from perdure.commands.messages import QUESTION, MessageRow
from perdure.commands.webhooks import Endpoint, RunWebhooks
from perdure.errors import Closed, Unavailable, WriteLost
from perdure.failures import Failures
from perdure.journal import Journal
from perdure.journal.clock import Clock
from perdure.serde.redaction import redact
from perdure.serde.serializer import Serializer
from perdure.types import Message

log = logging.getLogger("perdure")

DUTY = "Delivering messages"
REST = 1.0
"""Seconds until messages are taken again, if all that are due raise."""
HANDLER_TIME = 60_000
"""Milliseconds a handler may take before another worker may deliver the same message."""


class Undelivered(Exception):
    """A delivery that failed. The reason contains nothing of the message, so it can be shown.

    `final`: it is not tried again.
    """

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


@dataclass(frozen=True)
class Receiver:
    """Takes the messages of a topic."""

    handler: Callable[[Message], Any]
    slots: int = 20
    """How many messages of the topic a worker delivers at once."""
    pause: Callable[[int], timedelta | None] = messages.REDELIVERY.pause
    """How long to wait after this many failed deliveries. None: the message is given up."""


class Outbox:
    """Who takes the messages of this process, and who is told of what."""

    def __init__(self) -> None:
        self.receivers: dict[str, Receiver] = {}
        """By topic, those of the application."""
        self.own_receivers: dict[str, Receiver] = {}
        """By topic, those of perdure itself: webhooks and mail."""
        self.run_webhooks = RunWebhooks()
        """How webhooks of individual runs are signed, and which addresses they may have."""
        self.endpoints: list[Endpoint] = []
        """Who is told of new questions, and of the states of runs."""

    def receive(self, topic: str, handler: Callable[[Message], Any]) -> None:
        """Pass the messages of a topic to a handler of the application."""
        if topic == QUESTION and topic not in self.receivers:
            self.endpoints.insert(0, Endpoint(QUESTION, "", (), questions=True))
        self.receivers[topic] = Receiver(handler)

    @property
    def is_used(self) -> bool:
        return bool(self.receivers or self.endpoints)


class Deliveries:
    """The deliveries of one worker. Created in its event loop."""

    def __init__(
        self,
        journal: Journal,
        serializer: Serializer,
        clock: Clock,
        receivers: Mapping[str, Receiver],
        failures: Failures,
        on_end: Callable[[bool], None],
    ) -> None:
        """`on_end` is called after each delivery, with whether the message arrived."""
        self._journal, self._serializer, self._clock = journal, serializer, clock
        self._receivers, self._on_end = receivers, on_end
        self._failures = failures
        self._busy: Counter[str] = Counter()
        self._rests_until = float("-inf")
        self._taking: asyncio.Task[None] | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        """Deliveries under way, and the task that takes more messages."""

    @property
    def free(self) -> dict[str, int]:
        """Topics with free slots, and how many."""
        known = self._receivers.items()
        free = {topic: one.slots - self._busy[topic] for topic, one in known}
        return {topic: slots for topic, slots in free.items() if slots > 0}

    def begin(self) -> None:
        """Take due messages and deliver them in the background."""
        is_resting = self._failures.is_resting(DUTY) or time.monotonic() < self._rests_until
        if self._taking is None and not is_resting:
            self._taking = self._start(self._take_all())

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if task is self._taking:
            self._taking = None
        self._on_end(not (task.cancelled() or task.exception()) and task.result() is True)

    async def _take_all(self) -> None:
        with self._failures.guard(DUTY):
            await self._take()

    async def _take(self) -> None:
        while free := self.free:
            # At most as many as the fewest free slots, so that no topic can get too many.
            count, now = min(free.values()), self._clock.now()
            try:
                taken = await self._take_and_start(free, now, count)
            except (Unavailable, WriteLost, Closed):
                raise
            except Exception:
                taken = await self._take_each(free, now, count)
            if taken < count:
                return

    async def _take_and_start(
        self, topics: Iterable[str], now: int, count: int, only: str | None = None
    ) -> int:
        change, op = messages.take(topics, now, now + HANDLER_TIME, count, only)
        taken = await self._journal.ado(op)
        for row in taken:
            self._busy[row.topic] += 1
            self._start(self._one(change, row))
        return len(taken)

    async def _take_each(self, topics: Iterable[str], now: int, count: int) -> int:
        """Take messages one by one: what one of them raises, it raises alone."""
        journal, taken = self._journal, 0
        for thread_id, id in await journal.ado(messages.due(topics, now, count)):
            if not self._failures.is_resting(DUTY, id):
                try:
                    taken += await self._take_and_start(topics, now, 1, id)
                except (Unavailable, WriteLost, Closed):
                    raise
                except Exception as error:
                    until = now + round(1000 * self._failures.note(error, DUTY, id))
                    said = type(error).__name__
                    with contextlib.suppress(Exception):  # then it is due at once
                        await journal.ado(messages.postpone(thread_id, id, until, said))
        if not taken:  # what is due cannot even be postponed
            self._rests_until = time.monotonic() + REST
        return taken

    async def _one(self, change: int, row: MessageRow) -> bool:
        try:
            return await self._deliver(change, row, self._receivers[row.topic])
        except Exception as error:  # it is delivered again when its reservation is over
            self._failures.note(error, DUTY, row.id)
            return False
        finally:
            self._busy[row.topic] -= 1

    async def _deliver(self, change: int, row: MessageRow, to: Receiver) -> bool:
        try:
            await _hand_over(to.handler, messages.to_message(self._serializer, row))
        except Exception as error:
            kind = type(error).__name__  # its message may contain the payload
            known = isinstance(error, Undelivered)
            text = redact(self._serializer.redacted_text(f"{kind}: {error}"))
            told = {"without_content": f"message {row.id} was not delivered: {kind}"}
            said = "message %s of topic %r was not delivered: %s"
            log.warning(said, row.id, row.topic, str(error) if known else text, extra=told)
            stored = str(error) if known else kind
            final = isinstance(error, Undelivered) and error.final
            pause = None if final else to.pause(row.attempts)
            if pause is None:
                log.error("message %s of topic %r is given up", row.id, row.topic)
                until = messages.NEVER
            else:
                until = self._clock.now() + round(pause.total_seconds() * 1000)
            await self._journal.ado(messages.delay(row, change, until, stored))
            return False
        await self._journal.ado(messages.delete(row))
        return True


async def _hand_over(handler: Callable[[Message], Any], message: Message) -> None:
    if inspect.iscoroutinefunction(handler):
        await handler(message)
    else:
        returned = await asyncio.to_thread(handler, message)
        if inspect.isawaitable(returned):  # an object, or a lambda around a coroutine
            await returned
