"""Deliver the messages of the outbox to the receivers of this process.

Each topic has a number of slots: the maximum number of its messages delivered at once. Messages of
a topic without a free slot are not taken, so a slow receiver holds back only its own messages.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from perdure.engine.driver import Driver
from perdure.operations import messages
from perdure.operations.messages import MessageRow
from perdure.serde.redaction import redact
from perdure.types import Message

log = logging.getLogger("perdure")

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


class Deliveries:
    """The deliveries of one worker. Created in its event loop."""

    def __init__(
        self, driver: Driver, receivers: Mapping[str, Receiver], on_end: Callable[[bool], None]
    ) -> None:
        """`on_end` is called after each delivery, with whether the message arrived."""
        self._driver, self._receivers, self._on_end = driver, receivers, on_end
        self._busy: Counter[str] = Counter()
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
        if self._taking is None:
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
        arrived = False
        if not task.cancelled():
            if (error := task.exception()) is not None:
                log.error("Delivering messages failed", exc_info=error)
            else:
                arrived = task.result() is True
        self._on_end(arrived)

    async def _take_all(self) -> None:
        while free := self.free:
            # At most as many as the fewest free slots, so that no topic can get too many.
            count, now = min(free.values()), self._driver.clock.now()
            change, op = messages.take(free, now, now + HANDLER_TIME, count)
            taken = await self._driver.journal.ado(op)
            for row in taken:
                self._busy[row.topic] += 1
                self._start(self._one(change, row))
            if len(taken) < count:
                return

    async def _one(self, change: int, row: MessageRow) -> bool:
        try:
            return await self._deliver(change, row, self._receivers[row.topic])
        finally:
            self._busy[row.topic] -= 1

    async def _deliver(self, change: int, row: MessageRow, to: Receiver) -> bool:
        driver = self._driver
        try:
            await _hand_over(to.handler, messages.to_message(driver.serializer, row))
        except Exception as error:
            kind = type(error).__name__  # its message may contain the payload
            known = isinstance(error, Undelivered)
            text = redact(driver.serializer.redacted_text(f"{kind}: {error}"))
            told = {"without_content": f"message {row.id} was not delivered: {kind}"}
            said = "message %s of topic %r was not delivered: %s"
            log.warning(said, row.id, row.topic, str(error) if known else text, extra=told)
            stored = str(error) if known else kind
            final = isinstance(error, Undelivered) and error.final
            pause = None if final else to.pause(row.attempts)
            if pause is None:
                log.error("message %s of topic %r is given up", row.id, row.topic)
                await driver.journal.ado(messages.give_up(row, change, stored))
            else:
                until = driver.clock.now() + round(pause.total_seconds() * 1000)
                await driver.journal.ado(messages.delay(row, change, until, stored))
            return False
        await driver.journal.ado(messages.delete(row))
        return True


async def _hand_over(handler: Callable[[Message], Any], message: Message) -> None:
    if inspect.iscoroutinefunction(handler):
        await handler(message)
    else:
        returned = await asyncio.to_thread(handler, message)
        if inspect.isawaitable(returned):  # an object, or a lambda around a coroutine
            await returned
