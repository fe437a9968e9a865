"""The outbox: messages that go out once what made them is committed.

`perdure.outbox(topic, payload)` stores a message: inside a transactional effect with that one's
writes, elsewhere in a run as a transactional effect of its own. A worker that has a handler for
the topic delivers it after that, at least once, with an id that is always the same.
"""

from __future__ import annotations

from typing import Any

from perdure.effects.context import Inside, current
from perdure.effects.decorator import ONCE, Made
from perdure.effects.identity import here
from perdure.errors import NotInRun
from perdure.journal import Statement
from perdure.journal.names import check_text
from perdure.serde.serializer import where_message


def outbox(topic: str, payload: Any = None) -> str:
    """Send a message once this is committed. Gives its id."""
    inside = current()
    if inside is not None and inside.transaction is not None:
        return _put(check_text("topic", topic), payload, inside)
    found = here()
    if found is None:
        raise NotInRun("outbox() is for the nodes of a graph, and for transactional effects.")
    id: str = _PUT.call((check_text("topic", topic), payload), {})
    return id


def _put_alone(topic: str, payload: Any) -> str:
    inside = current()
    if inside is None or inside.transaction is None:
        raise NotInRun("outbox() is for the nodes of a graph, and for transactional effects.")
    return _put(topic, payload, inside)


_PUT = Made.of(_put_alone, name="outbox", transactional=True, retry=ONCE)


def _put(topic: str, payload: Any, inside: Inside) -> str:
    found = here()
    if found is None or inside.owner is None or inside.transaction is None:
        raise NotInRun("outbox() is for the nodes of a graph, and for transactional effects.")
    desk, _ = found
    id = f"{inside.key}-{inside.messages}"
    inside.messages += 1
    params = {
        "thread_id": inside.owner.thread_id,
        "run_id": inside.owner.run_id,
        "id": id,
        "topic": topic,
        "now": inside.now,
        "body": desk.serializer.dumps(payload, where_message(id), f"a message of topic {topic!r}"),
    }
    inside.transaction.run([Statement("insert_message", params)])
    return id
