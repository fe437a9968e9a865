"""Deliver the messages of the outbox to the handlers of this process."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

from perdure.engine.driver import Driver
from perdure.operations import messages
from perdure.operations.messages import MessageRow
from perdure.serde.redaction import redact
from perdure.types import Message

log = logging.getLogger("perdure")

HANDLER_TIME = 60_000
"""Milliseconds a handler may take before another worker may deliver the same message."""
PAGE = 20


class OutboxDelivery:
    """Handlers by topic, and the deliveries to them."""

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[[Message], Any]] = {}

    async def deliver(self, driver: Driver) -> int:
        """Deliver the due messages concurrently. Returns how many were delivered."""
        now = driver.clock.now()
        change, op = messages.take(self.handlers, now, now + HANDLER_TIME, PAGE)
        taken = await driver.journal.ado(op)
        return sum(await asyncio.gather(*(self._one(driver, change, row) for row in taken)))

    async def _one(self, driver: Driver, change: int, row: MessageRow) -> bool:
        handler = self.handlers[row.topic]
        try:
            message = messages.to_message(driver.serializer, row)
            if inspect.iscoroutinefunction(handler):
                await handler(message)
            else:
                returned = await asyncio.to_thread(handler, message)
                if inspect.isawaitable(returned):  # an object, or a lambda around a coroutine
                    await returned
        except Exception as error:
            kind = type(error).__name__  # its message may contain the payload
            text = redact(driver.serializer.redacted_text(f"{kind}: {error}"))
            told = {"without_content": f"message {row.id} was not delivered: {kind}"}
            said = "message %s of topic %r was not delivered: %s"
            log.warning(said, row.id, row.topic, text, extra=told)
            pause = round(messages.REDELIVERY.pause(row.attempts).total_seconds() * 1000)
            until = driver.clock.now() + pause
            await driver.journal.ado(messages.delay(row, change, until, kind))
            return False
        await driver.journal.ado(messages.delete(row))
        return True
