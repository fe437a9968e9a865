"""Plans about waits: list what is open, answer a person's, send a signal."""

from __future__ import annotations

from typing import Any

from perdure.errors import (
    AlreadyAnswered,
    BadAnswer,
    BadArgument,
    NotFound,
    WaitClosed,
    WaitExpired,
    WrongWait,
)
from perdure.journal import Plan
from perdure.journal.clock import Clock
from perdure.journal.ids import new_id
from perdure.journal.names import check_text
from perdure.operations import waits
from perdure.operations.answer_schema import check_answer
from perdure.operations.waits import WaitRow
from perdure.serde.serializer import Serializer, where_wait
from perdure.service.validation import check_name
from perdure.types import Kind, Wait, WaitRecord, maybe_moment, milliseconds


class Inbox:
    """What runs wait for, and what is sent to them."""

    def __init__(self, serializer: Serializer, clock: Clock) -> None:
        self._serializer, self._clock = serializer, clock

    def waits(
        self,
        *,
        thread_id: str | None,
        run_id: str | None,
        kind: str | None,
        after: Wait | None,
        count: int,
    ) -> Plan[list[Wait]]:
        """What is open, oldest first."""
        position = None if after is None else (milliseconds(after.created_at), after.id)
        if run_id is not None:
            found: list[WaitRow] = yield waits.of_run(run_id)
            rows = [
                row
                for row in found
                if (row.state == "open" and kind in (None, row.kind))
                and thread_id in (None, row.thread_id)
                and (position is None or (row.created_at, row.id) > position)
            ][:count]
        else:
            rows = yield waits.page(kind=kind, thread_id=thread_id, after=position, count=count)
        return [waits.to_wait(self._serializer, row) for row in rows]

    def history(self, run_id: str) -> Plan[list[WaitRecord]]:
        """Every wait a run has or had, with its answer."""
        found: list[WaitRow] = yield waits.of_run(run_id)
        return [self._record(row) for row in found]

    def _record(self, row: WaitRow) -> WaitRecord:
        answer = None
        if row.answer is not None:
            answer = self._serializer.loads(row.answer, where_wait("answer", row.id))
        return WaitRecord(
            **vars(waits.to_wait(self._serializer, row)),
            state=row.state,
            answered_at=maybe_moment(row.answered_at),
            answered_by=row.answered_by,
            answer=answer,
        )

    def answer(self, wait_id: str, value: Any, by: str | None) -> Plan[None]:
        """Accept an answer, or raise why not; then nothing is changed."""
        row = yield from self._open(wait_id)
        body = waits.open_body(self._serializer, row)
        if body.schema is not None:
            check_answer(row.id, body.schema, value)
        if by is not None:
            check_text("by", by)
        if waits.is_ours(value):
            raise BadAnswer(
                row.id, "it looks like what perdure itself hands over; say it otherwise."
            )
        now = self._clock.now()
        if not (yield waits.answer(self._serializer, row, value, by, now)):
            yield from self._open(wait_id)
            if row.expires_at is None or row.expires_at > now:
                raise WaitClosed(row.id, f"the signal {row.name!r} took it back.")
            raise WaitExpired(wait_id, f"its time was up at {maybe_moment(row.expires_at)}.")

    def _open(self, wait_id: str) -> Plan[WaitRow]:
        row: WaitRow | None = yield waits.find(str(wait_id))
        if row is None:
            raise NotFound("wait", str(wait_id))
        if row.kind != Kind.HUMAN:
            how = f"send the signal {row.name!r}" if row.kind == Kind.SIGNAL else "wait"
            raise WrongWait(row.id, f"it is not for a person but for a {row.kind}; {how}.")
        if row.state == "closed":
            why = "its run ended, or asks something else by now; see Runtime.waits()."
            raise WaitClosed(row.id, why)
        if row.state != "open":
            when = maybe_moment(row.answered_at)
            if row.expires_at is not None and (row.answered_at or 0) >= row.expires_at:
                raise WaitExpired(row.id, f"its time was up at {maybe_moment(row.expires_at)}.")
            raise AlreadyAnswered(row.id, f"{row.answered_by or 'somebody'} answered it at {when}.")
        return row

    def signal(self, thread_id: str, name: str, value: Any, key: str | None) -> Plan[bool]:
        """Keep a signal, and wake who waits for it."""
        if not name or not isinstance(name, str):
            raise BadArgument(f"A signal has a name, not {name!r}.")
        check_name("thread_id", thread_id)
        check_text("name", name)
        if key is not None:
            check_name("key", key)
        if waits.is_ours(value):
            raise BadArgument(
                f"The value of signal {name!r} looks like what perdure itself hands over; say it "
                "otherwise."
            )
        now = self._clock.now()
        kept: bool = yield waits.signal(
            self._serializer, thread_id, new_id(), name, key, value, now
        )
        return kept
