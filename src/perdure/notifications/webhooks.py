"""The receivers of the outbox's webhook topics: what is sent where, and when to retry.

A message names an event of a run. The event gives the run's state at that time, and the last
checkpoint before it the values. So a delivery days later, or a second one, has the same content.

A delivery is repeated for three days, always with the same `webhook-id`. After a 410 Gone, or after
the last failed attempt, the message stays in the outbox as given up.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from typing import Any

from perdure.commands import events, runs
from perdure.commands.connection import PublicUrl
from perdure.commands.runs import RunRow, load_labels, load_setup
from perdure.commands.webhooks import (
    EVENTS,
    LANES,
    QUESTION_WAITING,
    RunWebhooks,
    Webhook,
    lane_topic,
    secrets_of,
    sign,
)
from perdure.errors import Error, needs_extra
from perdure.execution.duties import Receiver, Undelivered
from perdure.execution.engine import Engine
from perdure.langgraph_port.checkpoint_names import is_trigger
from perdure.times import moment
from perdure.types import Event, EventKind, Message
from perdure.views.json_values import dump
from perdure.views.wire_run import RunStatus, wire_run

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


LOOKED_BACK = 200
"""Number of earlier events searched for the last checkpoint."""
_STATUS = {
    EventKind.DONE: RunStatus.SUCCESS,
    EventKind.WAITING: RunStatus.SUCCESS,
    EventKind.FAILED: RunStatus.ERROR,
    EventKind.HELD: RunStatus.ERROR,
}
_TYPES = {state.value: event for event, state in EVENTS.items()}


class ReportedRun:
    """A run, and the event that a message is about."""

    def __init__(
        self, engine: Engine, row: RunRow, history: list[Event], started: datetime
    ) -> None:
        self._engine, self.row, self._history, self._started = engine, row, history, started
        self.event = history[-1]
        self.setup = load_setup(engine.serializer, row)

    @classmethod
    async def read(cls, engine: Engine, message: Message) -> ReportedRun:
        """Read the run and its event. Raises `Undelivered` if either was deleted."""
        row: RunRow | None = await engine.journal.ado(runs.find(message.run_id))
        number = message.id.removeprefix(f"{message.run_id}-").partition("-")[0]
        if row is None or not number.isdigit():
            raise Undelivered(f"run {message.run_id} was deleted", final=True)
        page = partial(events.events_of, engine.serializer, row.thread_id, row.id)
        n, back = int(number), min(int(number), LOOKED_BACK)
        history: list[Event] = await engine.journal.ado(page(n - back, back))
        if not history or history[-1].n != n or history[-1].damaged:
            raise Undelivered(f"run {row.id} has no readable event {n}", final=True)
        first: list[Event] = await engine.journal.ado(page(0, 10))
        claimed = [one.at for one in first if one.kind == EventKind.CLAIMED]
        return cls(engine, row, history, claimed[0] if claimed else moment(row.created_at))

    @property
    def error(self) -> dict[str, str] | None:
        """Why it failed or is held, in the Agent Server's format."""
        data = self.event.data
        if self.event.kind == EventKind.HELD:
            return {"error": "Held", "message": str(data.get("reason", ""))}
        if self.event.kind == EventKind.FAILED:
            return {"error": str(data.get("kind", "")), "message": str(data.get("message", ""))}
        return None

    async def values(self) -> Any:
        """The state values at the event; None if the checkpoint was pruned."""
        steps = [one for one in self._history if "checkpoint" in one.data]
        if not steps:
            return None
        place = {"thread_id": self.row.thread_id, "checkpoint_ns": ""}
        place["checkpoint_id"] = str(steps[-1].data["checkpoint"])
        at = await self._engine.saver.aget_tuple({"configurable": place})
        if at is None:
            return None
        graph = self._engine.graphs.newest.get(self.row.graph)
        if graph is not None:
            return graph.output(at)
        channels = at.checkpoint["channel_values"].items()
        return {name: value for name, value in channels if not is_trigger(name)}

    async def as_wire_run(self) -> dict[str, Any]:
        """The body of a run's own webhook, in the Agent Server's format."""
        status = _STATUS.get(EventKind(self.event.kind), RunStatus.INTERRUPTED)
        body = {
            **wire_run(self._engine.serializer, self.row, status),
            "updated_at": self.event.at,
            "run_started_at": self._started,
            "run_ended_at": self.event.at,
            "webhook_sent_at": datetime.now(UTC),
            "values": await self.values(),
        }
        return body if self.error is None else {**body, "error": self.error}

    def as_event(self) -> dict[str, Any]:
        """The body for an endpoint, about the state of a run."""
        data: dict[str, Any] = {
            "run_id": self.row.id,
            "thread_id": self.row.thread_id,
            "graph": self.row.graph,
            "state": self.event.kind,
            "metadata": {
                **(self.setup.get("metadata") or {}),
                **load_labels(self._engine.serializer, self.row),
            },
            "error": self.error,
        }
        if (public := self._engine.public_url) is not None:
            data["url"] = public.run(self.row.id)
        kind = _TYPES.get(self.event.kind, f"run.{self.event.kind}")
        return {"type": kind, "timestamp": self.event.at, "data": data}


def as_question(message: Message, public: PublicUrl | None) -> dict[str, Any]:
    """The body for an endpoint about a new question. Its page requires signing in."""
    data = dict(message.payload)
    if public is not None:
        data["url"] = public.question(data["wait_id"])
    return {"type": QUESTION_WAITING, "timestamp": message.sent_at, "data": data}


def attach_webhooks(engine: Engine, own: RunWebhooks, webhooks: Sequence[Webhook]) -> None:
    """Let an engine's workers store and deliver webhooks: those of single runs, sent as `own` says,
    and those of endpoints."""
    if webhooks and find_spec("httpx") is None:
        raise Error(needs_extra("Runtime(webhooks=...)", "server"))
    senders: dict[str, RunWebhooks | Webhook] = {lane_topic(n): own for n in range(LANES)}
    senders |= {one.endpoint.topic: one for one in webhooks}
    engine.outbox.own_receivers |= {
        topic: Receiver(partial(_deliver, engine, by), SLOTS, pause)
        for topic, by in senders.items()
    }
    engine.outbox.endpoints += [one.endpoint for one in webhooks]
    engine.outbox.run_webhooks = own


async def _deliver(engine: Engine, by: Webhook | RunWebhooks, message: Message) -> None:
    from perdure.notifications import posting  # slow to import

    content: dict[str, Any]
    if isinstance(by, Webhook) and message.payload is not None:
        url, content = by.url, as_question(message, engine.public_url)
    else:
        reported = await ReportedRun.read(engine, message)
        if isinstance(by, Webhook):
            url, content = by.url, reported.as_event()
        else:
            url, content = str(reported.setup.get("webhook")), await reported.as_wire_run()
    body = dump(content)
    headers = {
        "content-type": "application/json",
        "user-agent": "perdure",
        **sign(secrets_of(by.secret), message.id, int(time.time()), body),
    }
    await posting.post(url, headers, body, allow_private=by.allow_private)
