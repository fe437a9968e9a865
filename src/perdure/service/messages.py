"""Plans about the outbox: list the messages that are not delivered yet."""

from __future__ import annotations

from perdure.journal import Plan
from perdure.operations import messages
from perdure.serde.serializer import Serializer
from perdure.types import Message


class MessageService:
    """Plans about the outbox of a journal."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer

    def page(self, after: Message | None, limit: int) -> Plan[list[Message]]:
        """Undelivered messages, oldest first."""
        # Read from the start: an outbox is short, and the messages of earlier pages may be gone.
        count = limit
        while True:
            found: list[Message] = yield messages.pending(self._serializer, count)
            later = [
                one
                for one in found
                if after is None or (one.sent_at, one.id) > (after.sent_at, after.id)
            ]
            if len(later) >= limit or len(found) < count:
                return later[:limit]
            count *= 2
