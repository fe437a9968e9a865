"""Plans about waits: list the open ones, answer one that is for a person, send a signal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from perdure.commands import runs, waits
from perdure.commands.answer_dialects import check_fits
from perdure.commands.connection import Connection
from perdure.commands.events import actor_data, actor_name, change, release, was_made
from perdure.commands.runs import RunRow
from perdure.commands.waits import COUNTED, WAKES, Answer, WaitRow, answer_place
from perdure.errors import (
    AlreadyAnswered,
    AlreadyAssigned,
    BadAnswer,
    LinkSpent,
    NotFound,
    NotWithdrawn,
    ThreadBusy,
    WaitClosed,
    WaitExpired,
    WrongWait,
)
from perdure.journal import CONFIRM, Op, Plan, Statement, with_params, write_op
from perdure.journal.names import check_id, check_text
from perdure.serde.serializer import Serializer
from perdure.times import moment, utc_time
from perdure.types import EventKind, Kind, State, WaitState
from perdure.verbs import call_number, verb


def answer_all(
    on: Connection,
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
        row = yield from find_open(on, wait_id)
        yield from _check_answer(on, row, value)
        rows.append((row, value))
    now = on.clock.now()
    options: Any = {"setup": setup, "last_answered": last_answered}
    if (yield store_answers(on.serializer, rows, by, now, number, **options)):
        return
    for row, _ in rows:
        current = yield from find_open(on, row.id)
        if last_answered not in (None, current.answered_at or 0):
            raise LinkSpent(row.id)
        if row.expires_at is not None and row.expires_at <= now:
            raise WaitExpired(row.id, expired_at(row.expires_at))
    if setup is not None:
        why = f"does not wait now, or was given another command ({row.run_id})"
        raise ThreadBusy(row.thread_id, why)
    closed = next((row for row, _ in rows if row.name is not None), row)
    raise WaitClosed(closed.id, f"the signal {closed.name!r} withdrew the question.")


def _check_answer(on: Connection, row: WaitRow, value: Any) -> Plan[None]:
    """Raise if a question cannot have this answer. One that is damaged is asked again."""
    if waits.is_to_be_asked_again(on.serializer, row):
        params = {"thread_id": row.thread_id, "id": row.run_id, "now": on.clock.now()}
        yield write_op(params, "ask_again")
        why = "its row is damaged. Its run asks again (retry it if it is held): see waits()."
        raise WaitClosed(row.id, why)
    body = waits.load_body(on.serializer, row)
    check_fits(row.id, body.value, body.schema, value)
    if waits.is_reserved(value):
        raise BadAnswer(
            row.id, "perdure uses this value itself, for waits that expire; pass another."
        )


def find_open(on: Connection, wait_id: str) -> Plan[WaitRow]:
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
    """The setup of a run, and what is to take its place.

    Attributes:
        answered_at: The time of the answers it comes with.
        streams: 1: what the run produces from now on is kept.
        webhook: Topic of the messages for the run's webhook, if it gets another one.
    """

    before: bytes
    after: bytes
    answered_at: int
    streams: int | None = None
    webhook: str | None = None


def store_answers(
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
            *with_params(params, "answer_wait", "refuse_unanswered", "record_answer"),
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


def end_sleeps(
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
            *with_params(params, "wake_wait", "record_answer"),
            made.event(serializer, EventKind.WOKE, {"wait": row.id, **said}),
        ]
    return Op(
        f"wake {first.run_id}",
        statements,
        lambda found: any(found[1::3] if len(found) > 1 else found),
        write=True,
        key=key.key,
    )


def _was_made(wait_id: str, number: int | None) -> Plan[bool]:
    """Whether the change of this number was made, which was about a wait."""
    row: WaitRow | None = None if number is None else (yield waits.find(wait_id))
    return row is not None and (yield from was_made(row.thread_id, row.run_id, number))


@verb(effect=True)
def answer(on: Connection, wait_id: str, value: Any, *, by: str | None = None) -> Plan[None]:
    """Answer a question that was asked of a person, and make its run due.

    An answer is accepted once: if two people answer at the same time, the second is refused. It
    is checked against the question's `response_schema`, or against what the asking middleware
    accepts, before it is stored.

        await client.answer(wait.id, {"approved": True}, by="ada")

    This process needs no graph and no worker. perdure does not check whether the person may
    answer: do that in your application.

    Args:
        wait_id: The id of the wait.
        value: The answer, which `ask` returns. It must fit the `response_schema`, if there is
            one.
        by: Who answers, stored with the time. An `Actor` also records how and from which
            address.

    Raises:
        AlreadyAnswered: The question was answered before; the message says by whom and when.
        WaitExpired: The question has expired.
        WaitClosed: The run has ended, asks something else now, or a signal withdrew the
            question.
        WrongWait: The wait is for the clock, a signal or another run.
        BadAnswer: The answer does not fit the question; the message says what is wrong.
        NotFound: The journal has no wait with this id.
    """
    wait_id, number = check_id("wait", wait_id), call_number()
    if not (yield from _was_made(wait_id, number)):
        yield from answer_all(on, [(wait_id, value)], by, number=number)
    on.wake()


@verb(effect=True)
def assign(
    on: Connection,
    wait_id: str,
    to: str | None,
    *,
    by: str | None = None,
    expected: str | None = None,
) -> Plan[None]:
    """Assign an open question to a person, or unassign it. Anyone may still answer it.

    The change is recorded as an `assigned` event of the run.

        await client.assign(wait.id, "ana", by="ana")
        await client.assign(wait.id, "bo", by="bo", expected="ana")

    Args:
        wait_id: The id of the wait.
        to: Who is responsible for the question. Without a name, it is unassigned.
        by: Who assigns it.
        expected: Who you believe is assigned now. Needed to take over someone else's question.

    Raises:
        AlreadyAssigned: The question is assigned to someone other than `by` and `expected`.
            Nothing was changed.
        AnswerRefused: The question was answered, expired or closed, or is not for a person.
        NotFound: The journal has no wait with this id.
    """
    wait_id, number = check_id("wait", wait_id), call_number()
    names = {"to": to, "by": by, "expected": expected}
    for name, text in names.items():
        if text is not None:
            check_text(name, text)
    if (yield from _was_made(wait_id, number)):
        return
    row, now = (yield from find_open(on, wait_id)), on.clock.now()
    data = {"wait": row.id, **({"to": str(to)} if to else {}), **actor_data(by)}
    while True:
        made = change(row.thread_id, row.run_id, now, number)
        params = {**made.params, "wakes": 0, "touches": 0, "wait_id": row.id}
        params |= {name: actor_name(one) for name, one in names.items()}
        statements = with_params(params, "lock_run", "assign_wait", "record_answer")
        statements.append(made.event(on.serializer, EventKind.ASSIGNED, data))
        if (yield made.op(f"assign {row.id}", statements, 1)):
            return
        row = yield from find_open(on, wait_id)
        if row.expires_at is not None and row.expires_at <= now:
            raise WaitExpired(row.id, expired_at(row.expires_at))
        if row.assignee == actor_name(to):
            return
        if row.assignee not in (None, by, expected):
            raise AlreadyAssigned(row.id, row.assignee)
        # Meanwhile its assignee released it, or assigned it to someone else.


@verb(effect=True)
def withdraw(
    on: Connection, wait_id: str, *, by: str | None = None, reason: str | None = None
) -> Plan[None]:
    """Take back an answer that made its run fail, and open the question again.

    A failed or held run continues from its last step, and asks again. Effects that are
    done stay done: an effect that the node called with the old answer returns its recorded
    outcome. An `update` or `goto` that came with the answer is not taken back if the run has
    begun to apply it.

        await client.withdraw(wait.id, by="ada", reason="a slip")

    It is one commit, with a `withdrawn` event.

    Args:
        wait_id: The id of the wait.
        by: Who withdraws the answer.
        reason: Why.

    Raises:
        NotWithdrawn: A worker is driving the run, or the run has already used the answer; then
            the message names the checkpoint to fork from. Nothing was changed.
        NotFound: The journal has no wait with this id.
    """
    number = call_number()
    row: WaitRow | None = yield waits.find(check_id("wait", wait_id))
    if row is None:
        raise NotFound("wait", wait_id)
    if not (yield from was_made(row.thread_id, row.run_id, number)):
        for name, text in (("by", by), ("reason", reason)):
            if text is not None:
                check_text(name, text)
        said = {**actor_data(by), **({"reason": reason} if reason else {})}
        made = change(row.thread_id, row.run_id, on.clock.now(), number)
        params = {**made.params, **COUNTED, "wait_id": row.id}
        statements = [
            *with_params(params, "lock_thread", "lock_runs", "withdraw_wait", "record_answer"),
            made.event(on.serializer, EventKind.WITHDRAWN, {"wait": row.id, **said}),
            *release(on.serializer, made, (State.FAILED, State.HELD), EventKind.RETRIED),
        ]
        if not (yield made.op(f"withdraw {row.id}", statements, 2)):
            row = (yield waits.find(row.id)) or row
            run = yield runs.find(row.run_id)
            answers: dict[str, Answer] = yield waits.answer_options_of(row.run_id)
            place = answers[row.id].checkpoint_id if row.id in answers else None
            raise NotWithdrawn(row.id, _why_not_withdrawn(row, run, place))
    on.wake()
