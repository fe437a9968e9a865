"""Operations on waits, answers and signals. Pure, no I/O.

A wait is stored in the same batch as LangGraph's interrupt write. Its id is a hash of the run, the
place that asks and the value shown. Asking the same question again finds the same wait, and an
answer to a value that is no longer shown finds its wait closed. Which of two callers wins:

    two answers                 answer_wait: only an open wait is answered
    two commands                refuse_unanswered: the run rests, and has the setup that was seen
    an answer and its expiry    answer_wait, answer_by_driver: both read the time in the row
    an answer and the run       record_answer: the run is due, or, while driven, does not rest
    two signals of one key      insert_signal: the key is unique
    one signal, two waits       take_signal: a signal has at most one wait
    withdrawing and the run     withdraw_wait: not while it is driven
    two who claim one question  assign_wait: it is unassigned, or its assignee is the expected one
    a run's end and its joiner  insert_join: the run cannot end until the wait is committed. Its end
                                finds the wait (wake_joiners), or the joiner the end (end_segment)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perdure.commands import messages, runs
from perdure.commands.connection import Connection
from perdure.commands.events import Change, change
from perdure.commands.runs import RunRow, names_in_pieces
from perdure.commands.webhooks import Endpoint
from perdure.errors import UNREADABLE, BadArgument, Damaged
from perdure.journal import (
    Op,
    Plan,
    Row,
    Rows,
    Statement,
    first_as,
    no_result,
    read_op,
    rows_as,
    with_params,
    write_op,
)
from perdure.journal.names import check_id, check_text, maybe_id
from perdure.serde.encryption import Place, is_bound_to_place
from perdure.serde.serializer import Serializer
from perdure.times import FIRST_MS, maybe_moment, moment, position_after
from perdure.types import EventKind, Kind, State, Wait, WaitRecord, WaitState
from perdure.verbs import PAGE, check_limit, check_member, verb

FINISHED = (WaitState.CONSUMED, WaitState.CLOSED)
"""States of a wait that a run is past."""

ANSWERED = (WaitState.ANSWERED, WaitState.APPLIED)
"""States of a wait that has an answer, and that its run is not past."""

TIME_IS_UP = {"__perdure__": "time is up"}
"""Resumes a task whose wait expired."""

TAKEN_BACK = "__perdure_taken_back__"
"""Key of the answer that resumes a task whose question a signal withdrew."""

KINDS = frozenset(Kind)

COUNTED = {"wakes": 0, "touches": 1}
"""What `record_answer` does to a run that is driven, or rests."""

WAKES = {"wakes": 1, "touches": 1}
"""The same for one that is due then, or does not rest."""


class WaitRow(NamedTuple):
    """A wait as it is stored."""

    thread_id: str
    id: str
    run_id: str
    kind: str
    name: str | None = None
    state: str = WaitState.OPEN
    interrupt_id: str = ""
    ns: str = ""
    checkpoint_id: str = ""
    task_id: str = ""
    path: str = ""
    stamp: int = 0
    wake_at: int | None = None
    expires_at: int | None = None
    created_at: int = 0
    answered_at: int | None = None
    answered_by: str | None = None
    body: bytes = b""
    answer: bytes | None = None
    seal: bytes | None = None
    """Authenticates which task asks; stored each time it asks."""
    graph: str | None = None
    assignee: str | None = None

    @property
    def place(self) -> Place:
        """What its body is bound to. Its asker may move."""
        question = (self.kind, self.name, self.interrupt_id, self.wake_at, self.expires_at)
        columns = (self.thread_id, self.run_id, *question, self.created_at)
        return Place(f"body of wait {self.id}", columns)

    @property
    def is_breakpoint(self) -> bool:
        """Whether it only stops the run before or after a node, and asks nothing."""
        return self.interrupt_id.startswith("breakpoint:")

    @property
    def asker(self) -> Place:
        """What its seal is bound to: the task that an answer is handed to."""
        task = (self.ns, self.checkpoint_id, self.task_id, self.path, self.stamp)
        return Place(f"asker of wait {self.id}", (self.thread_id, *task))


def signal_place(thread_id: str, id: str, name: str, key: str | None, sent_at: int) -> Place:
    return Place(f"signal {id}", (thread_id, name, key, sent_at))


class Body(NamedTuple):
    """The serialised part of a wait."""

    value: Any
    schema: dict[str, Any] | None
    before: list[Any]
    """The answers the task has received so far."""


class Question(NamedTuple):
    """What an agent waits for, besides the value of LangGraph's interrupt."""

    kind: Kind
    name: str | None = None
    wake_at: int | None = None
    expires_at: int | None = None
    runs: tuple[str, ...] = ()
    """Of a wait for runs, their ids."""


class Answer(NamedTuple):
    """How a question can be answered anew.

    Attributes:
        can_withdraw: Whether its answer can be withdrawn now.
        checkpoint_id: Where a fork asks it again.
    """

    can_withdraw: bool
    checkpoint_id: str | None


def is_time_up(answer: Any) -> bool:
    """Whether the wait expired."""
    return isinstance(answer, dict) and answer == TIME_IS_UP  # an array compares to an array


def is_taken_back(answer: Any) -> bool:
    """Whether a signal withdrew the question."""
    return isinstance(answer, dict) and [*answer] == [TAKEN_BACK]


def is_reserved(answer: Any) -> bool:
    """Whether a task would mistake this answer for one that only a driver gives."""
    return is_time_up(answer) or is_taken_back(answer)


def load_body(serializer: Serializer, row: WaitRow) -> Body:
    """What a wait shows. Raises `Damaged` too if it is another task's."""
    body = serializer.loads(row.body, row.place, list)
    if len(body) != len(Body._fields):
        raise Damaged(row.place.name, f"it has {len(body)} parts")
    if row.seal is not None or is_bound_to_place(row.body):
        serializer.envelope.unseal(row.seal, row.asker)
    return Body(*body)


def load_answer(serializer: Serializer, row: WaitRow) -> Any:
    """The answer of a person or of the clock. A signal's is in the signal."""
    return serializer.loads(row.answer, answer_place(row, row.answered_by, row.answered_at))


def is_to_be_asked_again(serializer: Serializer, row: WaitRow) -> bool:
    """Whether an open wait is damaged, and can be asked again in safety. Raises one of `UNREADABLE`
    if it cannot: it has another key or class, or its answer was withdrawn. Only the row says that,
    and its task may have the answer."""
    try:
        load_body(serializer, row)
    except Damaged:
        if row.answered_at is not None:
            raise
        return True
    return False


def to_wait(serializer: Serializer, row: WaitRow) -> Wait:
    """A wait as its users see it. One that cannot be read has `damaged`."""
    body, damaged = Body(None, None, []), None
    try:
        body = load_body(serializer, row)
    except UNREADABLE as error:
        damaged = str(error)
    kind = Kind(row.kind) if row.kind in KINDS else Kind.HUMAN  # then its body is damaged
    return Wait(
        id=row.id,
        run_id=row.run_id,
        thread_id=row.thread_id,
        kind=kind,
        value=body.value,
        wake_at=maybe_moment(row.wake_at),
        name=row.name,
        expires_at=maybe_moment(row.expires_at),
        created_at=moment(row.created_at),
        response_schema=body.schema,
        interrupt_id=row.interrupt_id,
        graph=row.graph or "",
        assignee=row.assignee,
        damaged=damaged,
    )


def wait_id(
    serializer: Serializer, run_id: str, question: Question, body: Body, interrupt_id: str
) -> str:
    """The id of a wait: a hash of the run, the place that asks and the value shown."""
    question_shown = serializer.encode([body.value, body.schema], "the value of an interrupt")
    place_of_asker = f"|{run_id}|{interrupt_id}|{question.kind}".encode()
    return hashlib.blake2b(question_shown + place_of_asker, digest_size=16).hexdigest()


def ask(
    serializer: Serializer,
    change: Change,
    token: int,
    question: Question,
    body: Body,
    interrupt_id: str,
    asker: Mapping[str, Any],
    fingerprint: str | None = None,
    *,
    announced: Iterable[Endpoint] = (),
    reopened: Collection[str] = (),
) -> list[Statement]:
    """The statements that store a wait, for the batch of its interrupt write. `asker` is where its
    task is, and `fingerprint` that of the graph, if the run does not have it yet. A new wait is
    also `announced`: a message of the outbox for each of these. Of the waits to be `reopened`
    another task took the answer."""
    id, kind = wait_id(serializer, change.run_id, question, body, interrupt_id), question.kind.value
    row = WaitRow(
        thread_id=change.thread_id,
        id=id,
        run_id=change.run_id,
        kind=kind,
        name=question.name,
        interrupt_id=interrupt_id,
        wake_at=question.wake_at,
        expires_at=question.expires_at,
        created_at=change.now,
        **asker,
    )
    if serializer.redacts:
        redacted = serializer.redacted
        value = body.value if question.runs else redacted(body.value, "the value of an interrupt")
        body = body._replace(value=value, before=redacted(body.before, "an answer"))
    params: dict[str, Any] = {**row._asdict(), **change.params, "wait_id": id, "token": token}
    params |= {"fingerprint": fingerprint, "reopens": int(id in reopened)}
    params["body"] = serializer.dumps(list(body), row.place, "the value of an interrupt", own=True)
    params["seal"] = serializer.envelope.seal(b"", row.asker)
    data = {
        "wait": id,
        "kind": kind,
        "name": question.name,
        "wake_at": maybe_moment(question.wake_at),
        "expires_at": maybe_moment(question.expires_at),
        "runs": list(question.runs) or None,
    }
    return [
        Statement("record_wait", params),
        change.event(serializer, EventKind.WAIT, {k: v for k, v in data.items() if v is not None}),
        *(_announcement(serializer, change, row, body, to) for to in announced),
        *with_params(params, "insert_wait", "close_replaced_wait"),
        *(Statement("insert_join", {**params, "joined": run_id}) for run_id in question.runs),
    ]


def _announcement(
    serializer: Serializer, change: Change, row: WaitRow, body: Body, to: Endpoint
) -> Statement:
    """The message about a new question, with the wait's id as its own; of an endpoint with a name,
    with that name too."""
    message_id = f"{row.id}-{to.name}" if to.name else row.id
    payload = {
        "wait_id": row.id,
        "run_id": row.run_id,
        "thread_id": row.thread_id,
        "value": body.value,
        "response_schema": body.schema,
        "expires_at": maybe_moment(row.expires_at),
    }
    place = messages.place(row.thread_id, message_id, row.run_id, to.topic, change.now)
    message = serializer.dumps(payload, place, "the value of an interrupt", own=True)
    names = {"wait_id": row.id, "message_id": message_id, "topic": to.topic}
    return Statement("insert_message", {**change.params, **names, "body": message})


wait_rows = rows_as(WaitRow)


def find(wait_id: str) -> Op[WaitRow | None]:
    """A wait by its id."""
    params = {"names": json.dumps([wait_id])}
    return read_op("waits_by_ids", params, first_as(WaitRow))


def find_all(wait_ids: Iterable[str]) -> Op[list[WaitRow]]:
    """The waits with these ids."""
    statements = [Statement("waits_by_ids", params) for params in names_in_pieces(wait_ids)]
    return Op("waits_by_ids", statements, wait_rows)


def of_run(run_id: str) -> Op[list[WaitRow]]:
    """Every wait of a run, closed ones included."""
    return read_op("waits_of_run", {"id": run_id}, wait_rows)


def with_run(run_id: str) -> Op[tuple[RunRow | None, list[WaitRow]]]:
    """A run and its waits, in one snapshot."""
    row, own = runs.find(run_id), of_run(run_id)
    return Op(
        "run_and_waits",
        [*row.render(), *own.render()],
        lambda rows: (row.result(rows[:1]), own.result(rows[1:])),
    )


def of_runs(run_ids: Iterable[str], most: int) -> Op[list[tuple[WaitRow, int]]]:
    """The first open waits of each of these runs, at most `most`, each with how many its run has:
    those for people first, then for signals, runs and the clock; what expires first, first."""

    def result(rows: Rows) -> list[tuple[WaitRow, int]]:
        every = [row for some in rows for row in some]
        waits = wait_rows([[row[:-1] for row in every]])
        return [(wait, int(row[-1])) for wait, row in zip(waits, every, strict=True)]

    pieces = [{**names, "most": most} for names in names_in_pieces(run_ids)]
    return Op("waits_of_runs", [Statement("waits_of_runs", piece) for piece in pieces], result)


def answer_options_of(run_id: str) -> Op[dict[str, Answer]]:
    """How each question of a run to a person can be answered anew, by its id."""
    return read_op(
        "answers_of_run",
        {"id": run_id},
        lambda rows: {id: Answer(bool(one), at) for id, one, at in rows[0]},
    )


def page(
    *,
    kind: str | None,
    thread_id: str | None,
    after: tuple[int, str] | None,
    count: int,
    graph: str | None = None,
    assignee: str | None = None,
) -> Op[list[WaitRow]]:
    """Open waits, oldest first. A `graph` or an `assignee` selects questions to people; an empty
    assignee, unassigned ones."""
    at, id = after or (FIRST_MS, "")
    params: dict[str, Any] = {"after": at, "after_id": id, "count": count}
    params |= {"thread_id": thread_id, "graph": graph, "assignee": assignee}
    if thread_id is not None:
        if graph is not None or assignee is not None:
            kind = Kind.HUMAN.value
        return read_op("open_waits_of_thread", {**params, "kind": kind}, wait_rows)
    if assignee:
        return read_op("questions_of_assignee", params, wait_rows)
    if graph is not None:
        return read_op("questions_of_graph", params, wait_rows)
    if assignee is not None:
        return read_op("unassigned_questions", params, wait_rows)
    kinds = [kind] if kind is not None else [*Kind]
    return Op(
        "open_waits",
        [Statement("open_waits", {**params, "kind": one}) for one in kinds],
        lambda rows: _first_of_all(rows, count),
    )


def _first_of_all(rows: Rows, count: int) -> list[WaitRow]:
    """The first of several lists of waits that are in order."""
    every = wait_rows(rows)
    return sorted(every, key=lambda row: (row.created_at, row.id))[:count]


def expiring(after: tuple[int, str] | None, count: int) -> Op[list[WaitRow]]:
    """Open questions to people that expire, the next one first. `after` is a time and an id."""
    at, id = after or (FIRST_MS, "")
    params = {"after": at, "after_id": id, "count": count}
    return read_op("questions_by_expiry", params, wait_rows)


def discard(row: WaitRow, run: RunRow) -> Op[None]:
    """Delete an open wait that cannot be read, under the driver's lease: it is asked again."""
    params = {"thread_id": run.thread_id, "id": run.id, "token": run.token, "wait_id": row.id}
    return write_op(params, "fence", "discard_wait")


def answer_place(row: WaitRow, by: str | None, now: int | None) -> Place:
    return Place(f"answer of wait {row.id}", (row.thread_id, row.run_id, by, now))


def fire(
    serializer: Serializer, row: WaitRow, value: Any, token: int, now: int, by: str = "clock"
) -> Op[None]:
    """Answer a wait whose time has come, under the driver's lease: `by` the clock, or, in an
    evaluation, the example."""
    if by != "clock":
        event = EventKind.ANSWER, {"by": by}
    else:
        event = EventKind.WOKE if row.kind == Kind.CLOCK else EventKind.EXPIRED, {}
    answer = serializer.dumps(value, answer_place(row, by, now), "the answer")
    return _answer_by_driver(serializer, row, answer, by, token, now, event, timed=1)


def _answer_by_driver(
    serializer: Serializer,
    row: WaitRow,
    answer: bytes,
    by: str,
    token: int,
    now: int,
    event: tuple[EventKind, dict[str, Any]],
    *,
    timed: int,
) -> Op[None]:
    """Answer a wait under the driver's lease; with `timed` only if its time has come."""
    made, (kind, data) = change(row.thread_id, row.run_id, now), event
    params = {**made.params, **COUNTED, "wait_id": row.id, "token": token, "by": by}
    params |= {"timed": timed, "answer": answer}
    statements = with_params(params, "fence", "answer_by_driver", "record_answer")
    statements.append(made.event(serializer, kind, {"wait": row.id, **data}))
    return Op(f"{kind} {row.id}", statements, no_result, write=True, key=made.key)


def deliver(serializer: Serializer, row: WaitRow, token: int, now: int) -> Op[None]:
    """Answer a wait with a stored signal of its name, if there is one."""
    made = change(row.thread_id, row.run_id, now)
    params = {**made.params, **COUNTED, "wait_id": row.id, "name": row.name, "token": token}
    return Op(
        f"deliver {row.id}",
        [
            *with_params(params, "fence", "take_signal", "answer_by_signal", "record_answer"),
            made.event(serializer, EventKind.SIGNAL, {"wait": row.id, "name": row.name}),
        ],
        lambda rows: None,
        write=True,
    )


def joined_runs(body: Body) -> list[str]:
    """The ids of the runs that a wait is for."""
    return [str(run_id) for run_id in body.value["join"]]


def join(
    serializer: Serializer, row: WaitRow, ended: Sequence[Mapping[str, Any]], token: int, now: int
) -> Op[None]:
    """Answer a wait for runs with how each has ended."""
    is_done = all(one["state"] == State.DONE for one in ended)
    by = "run" if is_done else "failed run"  # reopen_joins reads it
    place = answer_place(row, by, now)
    # Read from the rows of these runs, so redacted already.
    answer = serializer.dumps(list(ended), place, "the runs' outputs", own=True)
    event = EventKind.JOINED, {"runs": {one["id"]: one["state"] for one in ended}}
    return _answer_by_driver(serializer, row, answer, by, token, now, event, timed=0)


def apply(row: WaitRow, token: int) -> Op[None]:
    """Note that the driver handed an answer to its task. The end of the segment consumes it."""
    params = {"thread_id": row.thread_id, "id": row.run_id, "token": token, "wait_id": row.id}
    return write_op(params, "fence", "apply_wait")


def of_run_with_signals(thread_id: str, run_id: str) -> Op[tuple[list[WaitRow], Sequence[Row]]]:
    """Every wait of a run, and the signals that answered some of them, for `load_signals`."""
    params = {"thread_id": thread_id, "id": run_id}
    return Op(
        "waits_and_signals",
        with_params(params, "waits_of_run", "signals_of_run"),
        lambda rows: (wait_rows(rows[:1]), rows[1]),
    )


def load_signals(
    serializer: Serializer, thread_id: str, rows: Iterable[Row]
) -> dict[tuple[str, str | None], Any]:
    """The values of signals by wait id and name."""
    return {
        (wait_id, name): serializer.loads(body, signal_place(thread_id, id, name, key, sent_at))
        for id, wait_id, name, key, sent_at, body in rows
    }


def to_record(on: Connection, row: WaitRow) -> WaitRecord:
    """A wait as its users see it, with its answer."""
    wait, answer = to_wait(on.serializer, row), None
    if row.answer is not None:
        try:
            answer = load_answer(on.serializer, row)
        except UNREADABLE as error:
            wait = replace(wait, damaged=wait.damaged or str(error))
    return WaitRecord(
        **vars(wait),
        state=row.state,
        answered_at=None if row.state == WaitState.OPEN else maybe_moment(row.answered_at),
        answered_by=row.answered_by,
        answer=answer,
    )


@verb(name="waits")
def open_waits(
    on: Connection,
    *,
    thread_id: str | None = None,
    run_id: str | None = None,
    kind: Kind | str | None = None,
    graph: str | None = None,
    assignee: str | None = None,
    after: Wait | None = None,
    limit: int = PAGE,
) -> Plan[list[Wait]]:
    """List open waits, oldest first.

        inbox = await client.waits(kind="human")
        mine = await client.waits(assignee="ana")

    A wait whose row cannot be read is listed with the reason in `Wait.damaged`.

    Args:
        thread_id: Waits of this thread.
        run_id: Waits of this run.
        kind: What the wait is for: `clock`, `human`, `signal` or `run`.
        graph: Questions to people from runs of this graph.
        assignee: Questions assigned to this person; `""` selects unassigned questions.
        after: The last wait of the previous page.
        limit: Maximum number of waits to return, 100 by default.

    Raises:
        BadArgument: The kind is unknown, or `graph` or `assignee` is passed with a kind other
            than `human`.
    """
    thread_id, run_id = maybe_id("thread", thread_id), maybe_id("run", run_id)
    if kind is not None:
        kind = check_member(Kind, "a kind of wait", kind)
    count = check_limit(limit)
    for name, text in (("graph", graph), ("assignee", assignee)):
        if text is not None:
            check_text(name, text)
    if graph is not None or assignee is not None:
        if kind not in (None, Kind.HUMAN):
            raise BadArgument("graph= and assignee= select questions to people: kind='human'.")
        kind = Kind.HUMAN
    position = None if after is None else (position_after(after.created_at), after.id)
    if run_id is not None:
        waits: list[WaitRow] = yield of_run(run_id)
        rows = [
            row
            for row in waits
            if (row.state == WaitState.OPEN and kind in (None, row.kind))
            and thread_id in (None, row.thread_id)
            and graph in (None, row.graph)
            and assignee in (None, row.assignee or "")
            and (position is None or (row.created_at, row.id) > position)
        ][:count]
    else:
        rows = yield page(
            kind=kind,
            thread_id=thread_id,
            after=position,
            count=count,
            graph=graph,
            assignee=assignee,
        )
    return [to_wait(on.serializer, row) for row in rows]


@verb()
def wait_history(on: Connection, run_id: str) -> Plan[list[WaitRecord]]:
    """List every wait that a run has or had, oldest first, each with its answer.

    Args:
        run_id: The id of the run. An unknown run has no waits.
    """
    waits: list[WaitRow] = yield of_run(check_id("run", run_id))
    return [to_record(on, row) for row in waits]
