"""Operations on messages of the outbox. Pure, no I/O, no colour.

taken, not delivered     reserved for one worker for a while, then due again
delivered, not deleted   delivered again, with the same id
given up                 kept with the last error, and never due

The message about the state of a run has no body: it names an event of the run, and its content is
read from the journal at delivery. So the statement that changes a run can store it, before the
outcome of the change is known.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from perdure.commands.events import Change
from perdure.errors import UNREADABLE
from perdure.journal import NO_PROOF, Op, Rows, Statement, as_time, read_op, row_as, write_op
from perdure.journal.names import random_number
from perdure.serde import places
from perdure.serde.serializer import Serializer
from perdure.times import FIRST_MS, LAST_MS, moment
from perdure.types import Message, Retry, State

QUESTION = "perdure.question"
"""Topic of messages about new questions to people."""

WEBHOOK = "perdure.webhook"
"""Prefix of webhook topics."""

MAIL = "perdure.mail"
"""Prefix of mail topics."""

LANES = 8
"""Number of topics that runs' own webhooks are spread over, by host, so that a slow receiver holds
back few others."""

REDELIVERY = Retry(attempts=2**31)
"""How long to wait after a failed delivery."""

NEVER = LAST_MS
"""Due time of a message that was given up."""


class Endpoint(NamedTuple):
    """A topic that gets messages about runs in some states, and about new questions to people."""

    topic: str
    name: str
    states: tuple[State, ...]
    questions: bool


def lane_topic(lane: int) -> str:
    """The topic of a lane: the own webhooks of some runs."""
    return f"{WEBHOOK}.{lane}"


def topic_of_host(host: str) -> str:
    """The topic of runs' own webhooks to this host."""
    return lane_topic(zlib.crc32(host.lower().encode()) % LANES)


def topic_of_endpoint(name: str) -> str:
    """The topic of one of the runtime's endpoints."""
    return f"{WEBHOOK}:{name}"


def topic_of_mail(name: str) -> str:
    """The topic of the mail that a runtime sends under this name, to any recipient."""
    return f"{MAIL}:{name}"


def is_of_runtime(topic: str) -> bool:
    """Whether the messages of a topic are perdure's own: webhooks and mail."""
    return topic.startswith((f"{WEBHOOK}.", f"{WEBHOOK}:", f"{MAIL}:"))


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


def _messages(rows: Rows) -> list[MessageRow]:
    return [row_as(MessageRow, row[:7]) for row in rows[0]]


def next_due(topics: Iterable[str]) -> Op[int | None]:
    """When the next message of these topics is due."""
    params = {"names": json.dumps(sorted(topics))}
    return Op(
        "next_message",
        [Statement("next_message", params)],
        as_time,
    )


def take(
    topics: Iterable[str], now: int, until: int, count: int, only: str | None = None
) -> tuple[int, Op[list[MessageRow]]]:
    """Take messages that are due, or `only` one. The number identifies this taker in `delay`."""
    change = random_number()
    params: dict[str, Any] = {"names": json.dumps(sorted(topics)), "now": now, "until": until}
    params |= {"count": count, "change": change, "only": only}
    key = Statement("taken_messages", params)
    op = Op("take_messages", [Statement("take_messages", params)], _messages, write=True, key=key)
    return change, op


def due(topics: Iterable[str], now: int, count: int) -> Op[list[tuple[str, str]]]:
    """Thread and id of each message that `take` would take."""
    params = {"names": json.dumps(sorted(topics)), "now": now, "count": count}
    return read_op("due_messages", params, lambda rows: [(row[0], row[1]) for row in rows[0]])


def postpone(thread_id: str, message_id: str, until: int, error: str) -> Op[None]:
    """Try a message that cannot be taken again at `until`, and say why."""
    params = {"thread_id": thread_id, "id": message_id, "due_at": until, "error": error}
    statement = Statement("delay_message", {**params, "change": None})
    return Op("postpone_message", [statement], lambda _: None, write=True)


def delete(row: MessageRow) -> Op[None]:
    statement = Statement("delete_message", row._asdict())
    return Op("delete_message", [statement], lambda _: None, write=True)


def delay(row: MessageRow, change: int, due_at: int, error: str) -> Op[None]:
    params = {**row._asdict(), "change": change, "due_at": due_at, "error": error}
    return write_op(params, "delay_message")


def give_up(row: MessageRow, change: int, error: str) -> Op[None]:
    """Keep a message with its last error, and do not deliver it again."""
    return delay(row, change, NEVER, error)


def redeliver(message_id: str, now: int) -> Op[bool]:
    """Make an undelivered message due now, and count its attempts from the start."""
    params = {"id": message_id, "now": now}
    return Op(
        "redeliver_message",
        [Statement("redeliver_message", params)],
        lambda rows: bool(rows[0]),
        write=True,
        key=Statement("find_message", params),
        proof=NO_PROOF,
    )


def pending(serializer: Serializer, count: int) -> Op[list[Message]]:
    """Undelivered messages, oldest first."""
    return Op(
        "messages",
        [Statement("messages", {"count": count})],
        lambda rows: [
            _listed(serializer, row_as(MessageRow, row[:7]), due_at=row[7], error=row[8])
            for row in rows[0]
        ],
    )


def page(
    serializer: Serializer, *, given_up: bool, after: tuple[int, str] | None, count: int
) -> Op[list[Message]]:
    """Undelivered messages by when they are tried next; or those that were given up, by id."""
    first, until = (NEVER, NEVER) if given_up else (FIRST_MS, NEVER - 1)
    at, id = after or (first, "")
    params = {"after": at, "after_id": id, "until": until, "count": count}
    return Op(
        "messages_by_due",
        [Statement("messages_by_due", params)],
        lambda rows: [
            _listed(serializer, row_as(MessageRow, row[:7]), due_at=row[7], error=row[8])
            for row in rows[0]
        ],
    )


def _listed(serializer: Serializer, row: MessageRow, due_at: Any, error: Any) -> Message:
    """An undelivered message. If it cannot be read, it has `damaged`."""
    try:
        message = to_message(serializer, row)
    except UNREADABLE as found:
        message = replace(_to_bare_message(row), damaged=str(found))
    at = moment(due_at) if isinstance(due_at, int) and due_at < NEVER else None
    return replace(message, due_at=at, error=None if error is None else str(error))


def to_message(serializer: Serializer, row: MessageRow) -> Message:
    if is_of_runtime(row.topic) and not row.body:
        return _to_bare_message(row)
    place = places.of_message(row.thread_id, row.id, row.run_id, row.topic, row.sent_at)
    return replace(_to_bare_message(row), payload=serializer.loads(row.body, place))


def _to_bare_message(row: MessageRow) -> Message:
    return Message(
        id=row.id,
        topic=row.topic,
        payload=None,
        thread_id=row.thread_id,
        run_id=row.run_id,
        attempts=row.attempts,
        sent_at=moment(row.sent_at),
    )
