"""The receivers of the outbox's webhook topics: what is sent where, and when to retry.

A delivery is repeated for three days, always with the same `webhook-id`. After a 410 Gone, or after
the last failed attempt, the message stays in the outbox as given up.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import Any

from perdure.errors import Error, needs_extra
from perdure.execution.engine import Engine
from perdure.execution.outbox import Receiver
from perdure.operations.messages import LANES, lane_topic
from perdure.service.webhooks import RunWebhooks, Webhook, secrets_of
from perdure.types import Message

PAUSES = (
    timedelta(seconds=5),
    timedelta(minutes=5),
    timedelta(minutes=30),
    *(timedelta(hours=hours) for hours in (2, 5, 10, 14, 20, 24)),
)
"""How long to wait after each failed delivery."""
JITTER = 0.1
"""Maximum share of a pause added at random, so that messages that failed together do not retry
together."""
SLOTS = 4
"""Maximum number of simultaneous requests from a worker to one endpoint."""


def pause(attempts: int) -> timedelta | None:
    """How long to wait after this many failed deliveries; None after the last."""
    if attempts > len(PAUSES):
        return None
    return PAUSES[max(0, attempts - 1)] * (1 + JITTER * random.random())  # noqa: S311 (no secret)


class WebhookSender:
    """Sends the webhooks of a runtime."""

    def __init__(self, engine: Engine, own: RunWebhooks, webhooks: Sequence[Webhook]) -> None:
        self._engine, self._own, self._webhooks = engine, own, tuple(webhooks)

    def attach(self) -> None:
        """Let the engine's workers store and deliver webhooks."""
        if self._webhooks and find_spec("starlette") is None:
            raise Error(needs_extra("Runtime(webhooks=...)", "server"))
        lanes = {lane_topic(n): self._to_run for n in range(LANES)}
        topics = {one.endpoint.topic: partial(self._to_endpoint, one) for one in self._webhooks}
        handlers: dict[str, Any] = lanes | topics
        self._engine.own_receivers |= {
            topic: Receiver(handler, SLOTS, pause) for topic, handler in handlers.items()
        }
        self._engine.endpoints = tuple(one.endpoint for one in self._webhooks)
        self._engine.run_webhooks = self._own

    async def _to_run(self, message: Message) -> None:
        from perdure.server.webhooks.contents import ReportedRun

        reported = await ReportedRun.read(self._engine, message)
        url, body = str(reported.setup.get("webhook")), await reported.as_wire_run()
        await self._send(url, message, body, self._own)

    async def _to_endpoint(self, webhook: Webhook, message: Message) -> None:
        from perdure.server.webhooks.contents import ReportedRun, as_question

        if message.payload is None:
            body = (await ReportedRun.read(self._engine, message)).as_event()
        else:
            body = as_question(message, self._engine.public_url)
        await self._send(webhook.url, message, body, webhook)

    async def _send(
        self, url: str, message: Message, content: Any, by: Webhook | RunWebhooks
    ) -> None:
        from perdure.server.json_values import dump  # slow to import
        from perdure.server.webhooks import posting
        from perdure.server.webhooks.signatures import sign

        body = dump(content)
        headers = {
            "content-type": "application/json",
            "user-agent": "perdure",
            **sign(secrets_of(by.secret), message.id, int(time.time()), body),
        }
        await posting.post(url, headers, body, allow_private=by.allow_private)
