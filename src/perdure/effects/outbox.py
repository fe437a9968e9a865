"""The outbox: messages that are sent once the transaction that stored them is committed.

`perdure.outbox(topic, payload)` stores a message: inside a transactional effect with its writes,
elsewhere in a run as a transactional effect of its own. Then a worker with a handler for the topic
delivers it (`execution/outbox.py`), at least once, always with the same id.
"""

from __future__ import annotations

from typing import Any

from perdure.commands import messages
from perdure.effects import simulation
from perdure.effects.context import current
from perdure.effects.decorator import Effect, perform
from perdure.effects.spec import ONCE
from perdure.effects.task import current_task
from perdure.errors import NotInRun
from perdure.journal import Statement
from perdure.journal.names import check_text


def outbox(topic: str, payload: Any = None) -> str:
    """Store a message that workers deliver once it is committed.

    Inside a transactional effect it is committed with the effect's writes. Elsewhere in a node it
    is a separate effect. Workers whose runtime has a handler for the topic (`Runtime.deliver`)
    deliver it at least once, always with the same id, in any order.

    Args:
        topic: Topic of the message.
        payload: Its content: anything that can be stored.

    Returns:
        The id of the message.

    Raises:
        NotInRun: It is called outside of a node.
    """
    topic, context = check_text("topic", topic), current()
    if context is not None and context.transaction is not None:
        simulated = simulation.give("outbox", topic, payload)
        return _store(topic, payload) if simulated is None else str(simulated[0])
    id: str = perform(_OUTBOX, (topic, payload), {})
    return id


def _store(topic: str, payload: Any) -> str:
    found, context = current_task(), current()
    if found is None or context is None or context.owner is None or context.transaction is None:
        raise NotInRun("outbox() is for the nodes of a graph, and for transactional effects.")
    task, _ = found
    id = f"{context.key}-{context.messages}"
    context.messages += 1
    owner, now = context.owner, context.now
    place = messages.place(owner.thread_id, id, owner.run_id, topic, now)
    params = {
        "thread_id": owner.thread_id,
        "id": owner.run_id,
        "message_id": id,
        "wait_id": None,
        "topic": topic,
        "now": now,
        "body": task.serializer.dumps(payload, place, f"a message of topic {topic!r}"),
    }
    context.transaction.run([Statement("insert_message", params)])
    return id


_OUTBOX = Effect.of(_store, name="outbox", transactional=True, retry=ONCE)
