"""Plans about waits: list the open ones, answer one that is for a person, send a signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perdure.commands import runs, signals, waits
from perdure.commands.answer_dialects import check_fits
from perdure.commands.events import actor_data, actor_name, change, was_made
from perdure.commands.run_control import release
from perdure.commands.runs import RunRow
from perdure.commands.validation import check_name
from perdure.commands.waits import COUNTED, WAKES, Answer, WaitRow, answer_place
from perdure.errors import (
    UNREADABLE,
    AlreadyAnswered,
    AlreadyAssigned,
    BadAnswer,
    BadArgument,
    LinkSpent,
    NotFound,
    NotWithdrawn,
    ThreadBusy,
    WaitClosed,
    WaitExpired,
    WrongState,
    WrongWait,
)
from perdure.journal import CONFIRM, Op, Plan, Statement, with_params
from perdure.journal.clock import Clock
from perdure.journal.names import check_id, check_text, new_id
from perdure.serde.serializer import Serializer
from perdure.times import maybe_moment, moment, position_after, utc_time
from perdure.types import EventKind, Kind, State, Wait, WaitRecord, WaitState


class WaitService:
    """Plans about the waits of a journal, and about answers and signals."""

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
        graph: str | None = None,
        assignee: str | None = None,
    ) -> Plan[list[Wait]]:
        """Open waits, oldest first. A `graph` or `assignee` selects questions to people."""
        if graph is not None or assignee is not None:
            if kind not in (None, Kind.HUMAN):
                raise BadArgument("graph= and assignee= select questions to people: kind='human'.")
            kind = Kind.HUMAN
        position = None if after is None else (position_after(after.created_at), after.id)
        if run_id is not None:
            found: list[WaitRow] = yield waits.of_run(run_id)
            rows = [
                row
                for row in found
                if (row.state == WaitState.OPEN and kind in (None, row.kind))
                and thread_id in (None, row.thread_id)
                and graph in (None, row.graph)
                and assignee in (None, row.assignee or "")
                and (position is None or (row.created_at, row.id) > position)
            ][:count]
        else:
            rows = yield waits.page(
                kind=kind,
                thread_id=thread_id,
                after=position,
                count=count,
                graph=graph,
                assignee=assignee,
            )
        return [waits.to_wait(self._serializer, row) for row in rows]

    def history(self, run_id: str) -> Plan[list[WaitRecord]]:
        """Every wait a run has or had, with its answer."""
        found: list[WaitRow] = yield waits.of_run(run_id)
        return [self.record(row) for row in found]

    def answers(self, run_id: str) -> Plan[dict[str, Answer]]:
        """How each question of a run to a person can be answered anew, by its id."""
        found: dict[str, Answer] = yield waits.answers_of_run(run_id)
        return found

    def record(self, row: WaitRow) -> WaitRecord:
        """A wait as its users see it, with its answer."""
        wait, answer = waits.to_wait(self._serializer, row), None
        if row.answer is not None:
            try:
                answer = waits.load_answer(self._serializer, row)
            except UNREADABLE as error:
                wait = replace(wait, damaged=wait.damaged or str(error))
        return WaitRecord(
            **vars(wait),
            state=row.state,
            answered_at=None if row.state == WaitState.OPEN else maybe_moment(row.answered_at),
            answered_by=row.answered_by,
            answer=answer,
        )

    def answer(
        self, wait_id: str, value: Any, by: str | None, *, number: int | None = None
    ) -> Plan[None]:
        """Accept an answer, or raise why not. Then it is not stored. The same `number` is accepted
        once, and does nothing after that."""
        asked: WaitRow | None = None if number is None else (yield waits.find(wait_id))
        if asked is not None and (yield from was_made(asked.thread_id, asked.run_id, number)):
            return
        yield from self.answer_all([(wait_id, value)], by, number=number)

    def answer_all(
        self,
        answers: Sequence[tuple[str, Any]],
        by: str | None,
        *,
        number: int | None = None,
        setup: NewSetup | None = None,
        last_answered: int | None = None,
    ) -> Plan[None]:
        """Accept answers to questions of one run, or raise why not. Then none is stored. With a
        `setup` for the run, raises `ThreadBusy` unless the run rests. With `last_answered`, raises
        `LinkSpent` if another answer was given since, and withdrawn."""
        if by is not None:
            check_text("by", by)
        rows = []
        for wait_id, value in answers:
            row = yield from self.find_open(wait_id)
            yield from self._check_answer(row, value)
            rows.append((row, value))
        now = self._clock.now()
        options: Any = {"setup": setup, "last_answered": last_answered}
        if (yield answer(self._serializer, rows, by, now, number, **options)):
            return
        for row, _ in rows:
            found = yield from self.find_open(row.id)
            if last_answered not in (None, found.answered_at or 0):
                raise LinkSpent(row.id)
            if row.expires_at is not None and row.expires_at <= now:
                raise WaitExpired(row.id, expired_at(row.expires_at))
        if setup is not None:
            why = f"does not wait now, or was given another command ({row.run_id})"
            raise ThreadBusy(row.thread_id, why)
        closed = next((row for row, _ in rows if row.name is not None), row)
        raise WaitClosed(closed.id, f"the signal {closed.name!r} withdrew the question.")

    def _check_answer(self, row: WaitRow, value: Any) -> Plan[None]:
        """Raise if a question cannot have this answer. One that is damaged is asked again."""
        if waits.is_to_be_asked_again(self._serializer, row):
            yield ask_again(row, self._clock.now())
            why = "its row is damaged. Its run asks again (retry it if it is held): see waits()."
            raise WaitClosed(row.id, why)
        body = waits.load_body(self._serializer, row)
        check_fits(row.id, body.value, body.schema, value)
        if waits.is_reserved(value):
            raise BadAnswer(
                row.id, "perdure uses this value itself, for waits that expire; pass another."
            )

    def withdraw(
        self, wait_id: str, by: str | None, reason: str | None, *, number: int | None = None
    ) -> Plan[None]:
        """Take back an answer that no task has gone on with. The question is open again, and a run
        that failed or was held goes on to it. The same `number` does so once."""
        row: WaitRow | None = yield waits.find(check_id("wait", wait_id))
        if row is None:
            raise NotFound("wait", wait_id)
        if (yield from was_made(row.thread_id, row.run_id, number)):
            return
        for name, text in (("by", by), ("reason", reason)):
            if text is not None:
                check_text(name, text)
        said = {**actor_data(by), **({"reason": reason} if reason else {})}
        now = self._clock.now()
        if not (yield withdraw(self._serializer, row, said, now, number)):
            row = (yield waits.find(row.id)) or row
            run = yield runs.find(row.run_id)
            answers: dict[str, Answer] = yield waits.answers_of_run(row.run_id)
            place = answers[row.id].checkpoint_id if row.id in answers else None
            raise NotWithdrawn(row.id, _why_not_withdrawn(row, run, place))

    def assign(
        self,
        wait_id: str,
        to: str | None,
        by: str | None,
        expected: str | None,
        *,
        number: int | None = None,
    ) -> Plan[None]:
        """Assign or unassign an open question, or raise why not. The same `number` does so
        once."""
        for name, text in (("to", to), ("by", by), ("expected", expected)):
            if text is not None:
                check_text(name, text)
        asked: WaitRow | None = None if number is None else (yield waits.find(wait_id))
        if asked is not None and (yield from was_made(asked.thread_id, asked.run_id, number)):
            return
        row = yield from self.find_open(wait_id)
        now = self._clock.now()
        while not (yield assign(self._serializer, row, to, by, expected, now, number)):
            row = yield from self.find_open(wait_id)
            if row.expires_at is not None and row.expires_at <= now:
                raise WaitExpired(row.id, expired_at(row.expires_at))
            if row.assignee == actor_name(to):
                return
            if row.assignee not in (None, by, expected):
                raise AlreadyAssigned(row.id, row.assignee)
            # Meanwhile its assignee released it, or assigned it to someone else.

    def wake(self, run_id: str, by: str | None, *, number: int | None = None) -> Plan[None]:
        """End the sleeps of a run now. The same `number` does so once."""
        run: RunRow | None = yield runs.find(check_id("run", run_id))
        if run is None:
            raise NotFound("run", run_id)
        if (yield from was_made(run.thread_id, run.id, number)):
            return
        if by is not None:
            check_text("by", by)
        found: list[WaitRow] = yield waits.of_run(run.id)
        # The pause before an effect is retried is the effect's, not a sleep of a task.
        asleep = [row for row in found if row.kind == Kind.CLOCK and row.task_id]
        asleep = [row for row in asleep if row.state == WaitState.OPEN]
        if not asleep or not (yield wake(self._serializer, asleep, by, self._clock.now(), number)):
            raise WrongState(run.id, run.state, "be woken", "it is not asleep.")

    def find_open(self, wait_id: str) -> Plan[WaitRow]:
        """An open question to a person. Raises `NotFound`, or why it accepts no answer."""
        row: WaitRow | None = yield waits.find(check_id("wait", wait_id))
        if row is None:
            raise NotFound("wait", wait_id)
        if row.kind != Kind.HUMAN:
            how = f"send the signal {row.name!r}" if row.kind == Kind.SIGNAL else "wait"
            raise WrongWait(row.id, f"it is not for a person but for a {row.kind}; {how}.")
        if row.state == WaitState.CLOSED:
            why = "its run ended, or asks something else now; see Runtime.waits()."
            raise WaitClosed(row.id, why)
        if row.state != WaitState.OPEN:
            yield CONFIRM
            if row.expires_at is not None and (row.answered_at or 0) >= row.expires_at:
                raise WaitExpired(row.id, expired_at(row.expires_at))
            when = "" if row.answered_at is None else f" at {utc_time(moment(row.answered_at))}"
            raise AlreadyAnswered(row.id, f"{row.answered_by or 'someone'} answered it{when}.")
        return row

    def signal(
        self, thread_id: str, name: str, value: Any, key: str | None, *, id: str | None = None
    ) -> Plan[bool]:
        """Store a signal and wake the run that waits for it. False if its key was sent before; the
        same `id` is stored once."""
        signals.check_signal_name(name)
        check_name("thread_id", thread_id)
        if key is not None:
            check_name("key", key)
        if waits.is_reserved(value):
            raise BadArgument(
                f"perdure uses this value itself, for waits that expire: pass another one to the "
                f"signal {name!r}."
            )
        now = self._clock.now()
        stored: bool = yield signals.signal(
            self._serializer, thread_id, id or new_id(), name, key, value, now
        )
        return stored


def expired_at(at: int) -> str:
    """Why a question that expired then accepts no answer."""
    return f"it expired at {utc_time(moment(at))}."


def _why_not_withdrawn(row: WaitRow, run: RunRow | None, checkpoint_id: str | None) -> str:
    place = "a checkpoint before" if checkpoint_id is None else f"checkpoint {checkpoint_id}"
    fork = f"fork run {row.run_id} from {place} instead: it asks again."
    if row.kind != Kind.HUMAN:
        return f"it is not for a person but for a {row.kind}."
    if row.state == WaitState.OPEN:
        return "it has no answer."
    if row.state not in waits.ANSWERED:
        return f"the run has gone on with its answer, or asks something else; {fork}"
    if run is not None and run.state == State.RUNNING:
        return "its run is being driven just now; try again when it rests."
    if row.answer is None:
        return "a signal answered it."
    return f"the run has gone on with its answer, or has ended; {fork}"


class NewSetup(NamedTuple):
    """The setup of a run, and what is to take its place."""

    before: bytes
    after: bytes
    answered_at: int
    """The time of the answers it comes with."""
    streams: int | None = None
    """1: what the run produces from now on is kept."""
    webhook: str | None = None
    """Topic of the messages for the run's webhook, if it gets another one."""


def assign(
    serializer: Serializer,
    row: WaitRow,
    to: str | None,
    by: str | None,
    expected: str | None,
    now: int,
    number: int | None = None,
) -> Op[bool]:
    """Assign or unassign an open question. False: it already is, it is assigned to someone else, or
    it is not open."""
    made = change(row.thread_id, row.run_id, now, number)
    params = {**made.params, "wakes": 0, "touches": 0, "wait_id": row.id, "to": actor_name(to)}
    params |= {"by": actor_name(by), "expected": actor_name(expected)}
    data = {"wait": row.id, **({"to": str(to)} if to else {}), **actor_data(by)}
    return Op(
        f"assign {row.id}",
        [
            *with_params(params, "lock_run", "assign_wait", "count_answer"),
            made.event(serializer, EventKind.ASSIGNED, data),
        ],
        lambda rows: bool(rows[1] if len(rows) > 1 else rows[0]),
        write=True,
        key=made.key,
    )


def answer(
    serializer: Serializer,
    answers: Sequence[tuple[WaitRow, Any]],
    by: str | None,
    now: int,
    number: int | None = None,
    *,
    setup: NewSetup | None = None,
    last_answered: int | None = None,
) -> Op[bool]:
    """Accept answers to questions of one run, all or none. With `setup`, only while the run rests.
    With `last_answered` only if the last answer, since withdrawn, was given then (0: never given).
    False: one is too late, or the run does not rest."""
    first, name = answers[0][0], actor_name(by)
    at = answer_time([row for row, _ in answers], now) if setup is None else setup.answered_at
    key = change(first.thread_id, first.run_id, now, number)
    lock = with_params(key.params, "lock_run")
    statements = [*lock]
    for n, (row, value) in enumerate(answers):
        made = key if n == 0 else change(row.thread_id, row.run_id, now)
        blob = serializer.dumps(value, answer_place(row, name, at), "the answer")
        params = {**made.params, **WAKES, "wait_id": row.id, "answer": blob}
        params |= {"answered_at": at, "by": name}
        params["seen"] = None if setup is None else setup.before
        params["last_answered"] = last_answered
        statements += [
            *with_params(params, "answer_wait", "refuse_unanswered", "count_answer"),
            made.event(serializer, EventKind.ANSWER, {"wait": row.id, **actor_data(by)}),
        ]
    if setup is not None:
        new = {"setup": setup.after, "streams": setup.streams, "webhook": setup.webhook}
        statements.append(Statement("set_setup", {**key.params, **new}))
    refused = Op("answer", lock, lambda rows: False, write=True)
    return Op(
        f"answer {first.id}",
        statements,
        lambda rows: True,
        write=True,
        key=key.key,
        otherwise=lambda: refused,
    )


def answer_time(rows: Sequence[WaitRow], now: int) -> int:
    """The time of an answer. It tells the answer from one before it that was withdrawn, so it is
    later, whatever the clock says."""
    return max([now, *(row.answered_at + 1 for row in rows if row.answered_at is not None)])


def withdraw(
    serializer: Serializer, row: WaitRow, said: dict[str, str], now: int, number: int | None = None
) -> Op[bool]:
    """Take an answer back; `said` goes into its event. A run that failed or was
    held is due, if none of its effects is unknown. False: a task has gone on with the answer, or
    may at this moment."""
    made = change(row.thread_id, row.run_id, now, number)
    params = {**made.params, **COUNTED, "wait_id": row.id}
    return Op(
        f"withdraw {row.id}",
        [
            *with_params(params, "lock_thread", "lock_runs", "withdraw_wait", "count_answer"),
            made.event(serializer, EventKind.WITHDRAWN, {"wait": row.id, **said}),
            *release(serializer, made, (State.FAILED, State.HELD), EventKind.RETRIED),
        ],
        lambda rows: bool(rows[2] if len(rows) > 1 else rows[0]),
        write=True,
        key=made.key,
    )


def ask_again(row: WaitRow, now: int) -> Op[None]:
    """Make a run that rests due: one of its waits cannot be read."""
    params = {"thread_id": row.thread_id, "id": row.run_id, "now": now}
    return Op("ask_again", with_params(params, "ask_again"), lambda rows: None, write=True)


def wake(
    serializer: Serializer, rows: Sequence[WaitRow], by: str | None, now: int, number: int | None
) -> Op[bool]:
    """Answer these clock waits of a run before their time. False: none is open any more."""
    first = rows[0]
    key = change(first.thread_id, first.run_id, now, number)
    statements = with_params(key.params, "lock_run")
    name, said = actor_name(by), {"early": True, **actor_data(by)}
    for n, row in enumerate(rows):
        made = key if n == 0 else change(row.thread_id, row.run_id, now)
        answer = serializer.dumps(None, answer_place(row, name, now))
        params = {**made.params, **WAKES, "wait_id": row.id, "by": name, "answer": answer}
        statements += [
            *with_params(params, "wake_wait", "count_answer"),
            made.event(serializer, EventKind.WOKE, {"wait": row.id, **said}),
        ]
    return Op(
        f"wake {first.run_id}",
        statements,
        lambda found: any(found[1::3] if len(found) > 1 else found),
        write=True,
        key=key.key,
    )
