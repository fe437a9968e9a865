"""Messages of the outbox: store, take, deliver again, list.

taken, not delivered     reserved for one worker for a while, then due again
delivered, not deleted   delivered again, with the same id
given up                 kept with the last error, and never due

The message about the state of a run has no body: it names an event of the run, and its content is
read from the journal at delivery. So the statement that changes a run can store it, before the
outcome of the change is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from perdure.commands.connection import Connection
from perdure.commands.events import Change
from perdure.commands.webhooks import MAIL, WEBHOOK, Endpoint
from perdure.errors import UNREADABLE, NotFound
from perdure.journal import (
    NO_PROOF,
    Op,
    Plan,
    Rows,
    Statement,
    as_time,
    read_op,
    rows_as,
    with_params,
    write_op,
)
from perdure.journal.names import check_text, random_number
from perdure.serde.encryption import Place
from perdure.serde.serializer import Serializer
from perdure.times import FIRST_MS, LAST_MS, moment, position_after
from perdure.types import Message, Retry
from perdure.verbs import PAGE, check_limit, verb

QUESTION = "perdure.question"
"""Topic of messages about new questions to people."""

REDELIVERY = Retry(attempts=2**31)
"""How long to wait after a failed delivery."""

NEVER = LAST_MS
"""Due time of a message that was given up."""


def announce_ends(made: Change) -> Statement:
    """Store messages for the own webhooks of runs that a change ended, held or left waiting."""
    params = {**made.params, "topic": None, "suffix": "", "names": "[]", "empty": b""}
    return Statement("announce_state", params)


def announce_states(made: Change, endpoints: Iterable[Endpoint]) -> list[Statement]:
    """Store messages for the endpoints that want the state in which a change leaves a run."""
    return [
        Statement(
            "announce_state",
            {
                **made.params,
                "topic": one.topic,
                "suffix": f"-{one.name}",
                "names": json.dumps([state.value for state in one.states]),
                "empty": b"",
            },
        )
        for one in endpoints
        if one.states
    ]


class MessageRow(NamedTuple):
    """A message as it is stored."""

    thread_id: str
    id: str
    run_id: str
    topic: str
    attempts: int
    sent_at: int
    body: bytes
    due_at: int = NEVER
    error: str | None = None


def next_due(topics: Iterable[str]) -> Op[int | None]:
    """When the next message of these topics is due."""
    return read_op("next_message", {"names": json.dumps(sorted(topics))}, as_time)


def take(
    topics: Iterable[str], now: int, until: int, count: int, only: str | None = None
) -> tuple[int, Op[list[MessageRow]]]:
    """Take messages that are due, or `only` one. The number identifies this taker in `delay`."""
    change = random_number()
    params: dict[str, Any] = {"names": json.dumps(sorted(topics)), "now": now, "until": until}
    params |= {"count": count, "change": change, "only": only}
    key, rows = Statement("taken_messages", params), rows_as(MessageRow)
    op = Op("take_messages", [Statement("take_messages", params)], rows, write=True, key=key)
    return change, op


def due(topics: Iterable[str], now: int, count: int) -> Op[list[tuple[str, str]]]:
    """Thread and id of each message that `take` would take."""
    params = {"names": json.dumps(sorted(topics)), "now": now, "count": count}
    return read_op("due_messages", params, lambda rows: [(row[0], row[1]) for row in rows[0]])


def postpone(thread_id: str, message_id: str, until: int, error: str) -> Op[None]:
    """Try a message that cannot be taken again at `until`, and say why."""
    params = {"thread_id": thread_id, "id": message_id, "due_at": until, "error": error}
    return write_op({**params, "change": None}, "delay_message")


def delete(row: MessageRow) -> Op[None]:
    return write_op(row._asdict(), "delete_message")


def delay(row: MessageRow, change: int, due_at: int, error: str) -> Op[None]:
    """Deliver a message that was taken again later, or with `NEVER` keep it with its last error."""
    params = {**row._asdict(), "change": change, "due_at": due_at, "error": error}
    return write_op(params, "delay_message")


def make_due(message_id: str, now: int) -> Op[bool]:
    """Make an undelivered message due now, and count its attempts from the start."""
    params = {"id": message_id, "now": now}
    change, key = with_params(params, "redeliver_message", "find_message")
    return Op(change.name, [change], lambda rows: bool(rows[0]), True, key, NO_PROOF)


def page(
    serializer: Serializer, *, given_up: bool, after: tuple[int, str] | None, count: int
) -> Op[list[Message]]:
    """Undelivered messages by when they are tried next; or those that were given up, by id."""
    first, until = (NEVER, NEVER) if given_up else (FIRST_MS, NEVER - 1)
    at, id = after or (first, "")
    params = {"after": at, "after_id": id, "until": until, "count": count}
    return read_op("messages_by_due", params, partial(_to_messages, serializer))


def _to_messages(serializer: Serializer, rows: Rows) -> list[Message]:
    """Undelivered messages. One that cannot be read has `damaged`."""
    messages = []
    for row in rows_as(MessageRow)(rows):
        try:
            messages.append(to_message(serializer, row))
        except UNREADABLE as error:
            messages.append(_message(row, damaged=str(error)))
    return messages


def place(thread_id: str, id: str, run_id: str, topic: str, sent_at: int) -> Place:
    """Where the payload of a message belongs."""
    return Place(f"message {id}", (thread_id, run_id, topic, sent_at))


def to_message(serializer: Serializer, row: MessageRow) -> Message:
    """A message as its receiver gets it."""
    if not row.body and row.topic.startswith((f"{WEBHOOK}.", f"{WEBHOOK}:", f"{MAIL}:")):
        return _message(row)  # its content is read from the journal
    where = place(row.thread_id, row.id, row.run_id, row.topic, row.sent_at)
    return _message(row, serializer.loads(row.body, where))


def _message(row: MessageRow, payload: Any = None, damaged: str | None = None) -> Message:
    return Message(
        id=row.id,
        topic=row.topic,
        payload=payload,
        thread_id=row.thread_id,
        run_id=row.run_id,
        attempts=row.attempts,
        sent_at=moment(row.sent_at),
        due_at=moment(row.due_at) if row.due_at < NEVER else None,
        error=row.error,
        damaged=damaged,
    )


@verb(name="messages")
def list_messages(
    on: Connection, *, after: Message | None = None, limit: int = PAGE
) -> Plan[list[Message]]:
    """List the undelivered outbox messages, oldest first.

    If a message has no `due_at`, perdure has given up on it: `redeliver` sends it again.
    `error` says why its last delivery failed.

    Args:
        after: The last message of the previous page.
        limit: Maximum number of messages to return, 100 by default.
    """
    at, id = (FIRST_MS, "") if after is None else (position_after(after.sent_at), after.id)
    params = {"after": at, "after_id": id, "count": check_limit(limit)}
    messages: list[Message] = yield read_op(
        "messages", params, partial(_to_messages, on.serializer)
    )
    return messages


@verb()
def redeliver(on: Connection, message_id: str) -> Plan[None]:
    """Deliver an outbox message now: after perdure gave up on it, or before its next retry.

    A worker delivers it, with the same id as before.

    Args:
        message_id: The id of the message.

    Raises:
        NotFound: The outbox has no message with this id.
    """
    if not (yield make_due(check_text("message_id", message_id), on.clock.now())):
        raise NotFound("message", message_id)
    on.wake()
