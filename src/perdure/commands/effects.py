"""Effects: their rows, and the operations that store, settle and read them. Pure, no I/O.

What a crash leaves behind is in ARCHITECTURE.md, "The life of an effect". The table has no index by
time, which would make every effect more expensive to store. Runs have one, so a list of all effects
walks over runs, newest first, and is in their order. A run without effects counts as one row of a
piece, so that a piece never reads more rows than asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from perdure.commands.events import change
from perdure.commands.runs import names_in_pieces
from perdure.errors import UNREADABLE, Damaged
from perdure.journal import (
    Op,
    Rows,
    Statement,
    first_as,
    no_result,
    read_op,
    row_as,
    rows_as,
    with_params,
)
from perdure.serde.encryption import Place
from perdure.serde.serializer import Serializer
from perdure.times import FIRST_MS, LAST_MS, maybe_moment, moment
from perdure.types import EffectRecord, EffectState, EventKind, RunError

STATES = frozenset(EffectState)

LISTED = 50
"""How many replayed effects an event lists."""

COMPENSATION = "undo "
"""The prefix of a compensation's task, which belongs to no node."""


class Mark(IntEnum):
    """What `mark` says of an effect.

    Attributes:
        MAY_STAY_OPEN: A run may end without its outcome: it only reads, or a journal has what
            it did.
        FINAL: It failed and is not called again, not even by `retry` of its run.
    """

    NONE = 0
    MAY_STAY_OPEN = 1
    FINAL = 2


class UndoState(IntEnum):
    """What `undo` says of an effect."""

    NONE = 0
    """It has no compensation."""
    POSSIBLE = 1
    DONE = 2


class Unconfirmed(IntEnum):
    """What `unconfirmed` says of an effect.

    Attributes:
        YES: An earlier call of its task matched a record with other arguments. The arguments of
            this one may come from that outcome.
        ASKED: A person was asked which call it stands for.
    """

    NO = 0
    YES = 1
    ASKED = 2


class How(StrEnum):
    """How a call was settled, in its event, if it was not simply called."""

    VERIFIED = "verified"
    CALLED_AGAIN = "called again"
    SIMULATED = "simulated"


class Saved(NamedTuple):
    """Outcomes that came from the record, and what the calls would have cost."""

    effects: int = 0
    model_calls: int = 0
    tokens: int = 0
    replayed: tuple[tuple[str, str], ...] = ()
    """The first of these effects: name and key."""

    def plus(self, name: str, key: str, model_calls: int, tokens: int) -> Saved:
        """With the outcome of one more effect."""
        listed = ((name, key),) if len(self.replayed) < LISTED else ()
        return Saved(
            self.effects + 1,
            self.model_calls + model_calls,
            self.tokens + tokens,
            self.replayed + listed,
        )

    @property
    def data(self) -> dict[str, Any]:
        """What the event says that counts them."""
        said = {name: value for name, value in self._asdict().items() if value}
        return {"saved": said} if said else {}


NOTHING_SAVED = Saved()


class EffectRow(NamedTuple):
    """An effect as it is stored.

    Attributes:
        min_equal: How many arguments of a call must equal the recorded ones to match this
            record.
        provisional_digests: Digests of the calls that matched this record with other arguments.
        unconfirmed: An `Unconfirmed`.
    """

    scope: str
    task: str
    name: str
    n: int
    key: str
    thread_id: str
    run_id: str
    checkpoint_id: str
    state: str
    intent: int
    attempts: int
    digest: str
    undo: int
    mark: int
    settled: int = 0
    due_at: int | None = None
    created_at: int = 0
    updated_at: int = 0
    arguments: bytes = b""
    outcome: bytes | None = None
    min_equal: int = 0
    provisional_digests: str = ""
    unconfirmed: int = 0

    @property
    def place(self) -> dict[str, Any]:
        """What identifies it: `key` is made of this."""
        return {"scope": self.scope, "task": self.task, "name": self.name, "n": self.n}

    @property
    def _guarded(self) -> str:
        """The scope that it was stored in: once undone, one with a business key has another."""
        return self.scope.removesuffix(undone_in(self.run_id)) if not self.task else self.scope

    @property
    def arguments_place(self) -> Place:
        at = (self._guarded, self.task, self.name, self.n, self.checkpoint_id, self.digest)
        return Place(f"arguments of effect {self.key}", (*at, self.undo != UndoState.NONE))

    def outcome_place(self, state: str) -> Place:
        """What the outcome of a call that is left in a state is bound to."""
        settled = state if state in (EffectState.DONE, EffectState.FAILED) else "attempt"
        at = (self._guarded, self.task, self.name, self.n, self.digest)
        columns = (*at, self.thread_id, self.run_id, settled)
        return Place(f"outcome of effect {self.key}", columns)

    def check(self, serializer: Serializer) -> None:
        """Raise an error of `UNREADABLE` unless the row is as it was stored."""
        if self.state not in STATES:
            raise Damaged(f"effect {self.key}", f"its state is {self.state!r}")
        serializer.envelope.unseal(self.arguments, self.arguments_place)
        if self.state in (EffectState.DONE, EffectState.FAILED):
            place = self.outcome_place(self.state)
            serializer.envelope.unseal(self.outcome, place)

    def load_arguments(self, serializer: Serializer) -> dict[str, Any]:
        arguments: dict[str, Any] = serializer.loads(self.arguments, self.arguments_place, dict)
        return arguments

    def load_outcome(self, serializer: Serializer) -> Any:
        """The result, with what it cost and its interrupts; or, of a failed call, the error."""
        place, kind = (
            self.outcome_place(self.state),
            list if self.state == EffectState.DONE else dict,
        )
        try:
            return serializer.loads(self.outcome, place, kind)
        except Damaged:  # `retry` in SQL turns a failed one into one to be called again
            if self.state in (EffectState.DONE, EffectState.FAILED):
                raise
            return serializer.loads(self.outcome, self.outcome_place(EffectState.FAILED), kind)


def undone_in(run_id: str) -> str:
    """What `note_compensated` adds to the scope of a business key."""
    return f" undone in run {run_id}"


class EffectPlace(NamedTuple):
    """Where an effect is stored, and the key made from that."""

    scope: str
    task: str
    name: str
    n: int
    key: str


class Owner(NamedTuple):
    """Who calls an effect: a run with its lease, or, with only the saver, a thread."""

    thread_id: str
    run_id: str = ""
    token: int = 0

    @property
    def params(self) -> dict[str, Any]:
        return {"thread_id": self.thread_id, "id": self.run_id, "token": self.token}

    @property
    def fence(self) -> list[Statement]:
        """Refuses its batch when the lease is lost."""
        return [Statement("fence", self.params)] if self.run_id else []

    def fenced(self, *statements: Statement) -> Op[None]:
        """An operation that is refused when the lease of the run is lost."""
        return Op("fenced", [*self.fence, *statements], no_result, write=True)


_effects = rows_as(EffectRow)

_effect = first_as(EffectRow)


def insert_intent(owner: Owner, row: EffectRow) -> Statement:
    """Stores an intent, unless there is one. Refuses its batch when the lease is lost."""
    return Statement("insert_effect", {**row._asdict(), "token": owner.token})


def store_intent(owner: Owner, row: EffectRow) -> Op[bool]:
    """Store an intent. False: there is one already at this place, or with this business key."""
    insert = insert_intent(owner, row)
    key = Statement("find_intent", {**insert.params, "state": None})
    name = f"the intent of effect {row.name!r}"
    return Op(name, [insert], lambda rows: bool(rows[0]), write=True, key=key)


def claim_intent(owner: Owner, row: EffectRow) -> list[Statement]:
    """Store an intent, unless it is there. Refuse the batch when the lease is lost, when another
    process has its own intent there, or when the call has an outcome."""
    fence = Statement("fence_intent", {**row.place, "intent": row.intent})
    return [insert_intent(owner, row), fence]


def take_over(owner: Owner, row: EffectRow, intent: int, attempts: int, now: int) -> Op[EffectRow]:
    """Replace the intent of `row`. Gives the stored row: it has our intent, unless another process
    replaced it first."""
    params = {**row._asdict(), "seen": row.intent, "intent": intent, "attempts": attempts}
    params |= {"thread_id": owner.thread_id, "run_id": owner.run_id, "now": now}
    at = Statement("effect_at", row.place)
    return Op(
        f"the intent of effect {row.name!r}",
        [*owner.fence, Statement("take_effect", params), at],
        lambda rows: row_as(EffectRow, rows[-1][0]),
        write=True,
        key=at,
        proof=Statement("find_intent", {**params, "state": None}),
    )


def write_state(
    owner: Owner,
    row: EffectRow,
    now: int,
    *,
    event: tuple[Serializer, dict[str, Any]] | None = None,
    saved: Saved = NOTHING_SAVED,
) -> Op[bool]:
    """Store the state of a call, as `row` has it, with an event of its run, which also counts what
    was `saved`. False: another process has taken the call over, which can
    only happen without a lease."""
    made, params = change(owner.thread_id, owner.run_id, now), {**row._asdict(), "now": now}
    written, before, after = Statement("write_effect", params), owner.fence, []
    has_event = event is not None and bool(owner.run_id)
    if event is not None and has_event:
        serializer, said = event
        settled = row.state in (EffectState.DONE, EffectState.FAILED)
        count = {**made.params, "token": owner.token, "progress": int(settled)}
        data = {"name": row.name, "key": row.key, "state": row.state, **said, **saved.data}
        before = [Statement("record_effect", count), *record_saved(owner, saved)]
        after = [made.event(serializer, EventKind.EFFECT, data)]
    at = len(before)
    return Op(
        f"the outcome of effect {row.name!r}",
        [*before, written, *after],
        lambda rows: bool(rows[at] if len(rows) > 1 else rows[0]),
        write=True,
        key=Statement("find_intent", params),
        proof=made.key if has_event else None,
    )


def store_unknown(
    owner: Owner, row: EffectRow, other: EffectRow, now: int, event: tuple[Serializer, Any]
) -> Op[None]:
    """Store a call that is not made: a person says whether `other` stands for it."""
    written = write_state(owner, row, now, event=event)
    asked_about = _match(other, "", Unconfirmed.ASKED.value)
    statements = [insert_intent(owner, row), *written.render(), asked_about]
    return Op(written.name, statements, no_result, True, written.key, written.proof)


def note_provisional_match(owner: Owner, row: EffectRow, digest: str) -> Op[None]:
    """Note that the call with this digest matched a record with other arguments."""
    return owner.fenced(_match(row, f"{digest} ", None))


def _match(row: EffectRow, digest: str, unconfirmed: int | None) -> Statement:
    return Statement("note_match", {**row.place, "digest": digest, "unconfirmed": unconfirmed})


def raise_min_equal(owner: Owner, row: EffectRow, min_equal: int) -> Op[None]:
    """Let only calls with so many equal arguments match the records of this name in this task."""
    return owner.fenced(Statement("raise_min_equal", {**row.place, "min_equal": min_equal}))


def confirm(owner: Owner, row: EffectRow) -> Op[None]:
    """Note that a call was made with the right arguments."""
    return owner.fenced(_match(row, "", Unconfirmed.NO.value))


def abandon(owner: Owner, now: int) -> Op[None]:
    """Mark the open effects of a run that ends as unknown: a person settles them."""
    return owner.fenced(Statement("abandon_effects", {"id": owner.run_id, "now": now}))


def add_event(
    owner: Owner, serializer: Serializer, now: int, kind: EventKind, data: dict[str, Any]
) -> Op[None]:
    """Add an event about an effect. Nothing else changes."""
    made = change(owner.thread_id, owner.run_id, now)
    count = {**made.params, "token": owner.token, "progress": 0}
    statements = [Statement("record_effect", count), made.event(serializer, kind, data)]
    return Op(kind.value, statements, no_result, write=True, key=made.key)


def record_saved(owner: Owner, saved: Saved) -> list[Statement]:
    """Counts outcomes that were returned from their records, for the batch of an event: what the
    run's row counts is the sum of its events, also after a crash or a lost reply."""
    if not saved.effects:
        return []
    counts = {name: getattr(saved, name) for name in ("effects", "model_calls")}
    return [Statement("record_saved", {**owner.params, **counts})]


def of_task(
    thread_id: str, task: str, run_id: str, whole_run: str | None
) -> Op[tuple[list[EffectRow], list[EffectPlace]]]:
    """The effects of a task, and the places of all effects of a run, if one is given."""
    params = {"thread_id": thread_id, "task": task, "id": run_id}
    statements = with_params(params, "effects_of_task")
    if whole_run:
        statements.append(Statement("effect_places", {"id": whole_run}))

    return Op(
        "effects_of_task",
        statements,
        lambda rows: (
            _effects(rows[:1]),
            [EffectPlace(*row) for some in rows[1:] for row in some],
        ),
    )


def at(place: Mapping[str, Any]) -> Op[EffectRow | None]:
    return Op("effect", [Statement("effect_at", place)], _effect)


def guarded(place: Mapping[str, Any], key: str) -> Op[EffectRow | None]:
    """The effect of a business key. Raises `Damaged` if its row has the key, and another place."""

    def result(rows: Rows) -> EffectRow | None:
        row, named = _effect(rows), _effect(rows[1:])
        if row is None and named is not None and named.undo != UndoState.DONE:
            raise Damaged(f"effect {key}", f"it is in scope {named.scope!r}, not in its own")
        return row

    statements = [Statement("effect_at", place), Statement("effect_by_key", {"key": key})]
    return Op("effect", statements, result)


def find(key: str) -> Op[EffectRow | None]:
    return Op("effect", [Statement("effect_by_key", {"key": key})], _effect)


def find_all(keys: Iterable[str]) -> Op[list[EffectRow]]:
    """The effects with these keys."""
    statements = [Statement("effects_by_keys", params) for params in names_in_pieces(keys)]
    return Op("effects_by_keys", statements, _effects)


def of_run(run_id: str) -> Op[list[EffectRow]]:
    """Every effect of a run, in the order of its intents."""
    return Op("effects_of_run", [Statement("effects_of_run", {"id": run_id})], _effects)


def unknown_of_runs(run_ids: Iterable[str]) -> Op[dict[str, list[str]]]:
    """Names of the effects of these runs with an unknown outcome, by run."""

    def result(rows: Rows) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for run_id, name in (row for some in rows for row in some):
            names.setdefault(run_id, []).append(name)
        return names

    pieces = names_in_pieces(run_ids)
    return Op("unknown_of_runs", [Statement("unknown_of_runs", one) for one in pieces], result)


def page(
    *, thread_id: str | None, state: str | None, after: tuple[int, str] | None, count: int
) -> Op[list[EffectRow]]:
    """Effects, oldest first."""
    at, key = after or (FIRST_MS, "")
    params = {"thread_id": thread_id, "state": state, "count": count}
    params |= {"after": at, "after_key": key}
    unknown = thread_id is None and state == EffectState.UNKNOWN
    name = "unknown_effects" if unknown else "effects_after"
    return Op("effects", [Statement(name, params)], _effects)


def mark_undone(owner: Owner, row: EffectRow, now: int) -> Op[None]:
    """Store that the compensation of an effect was made."""
    return owner.fenced(Statement("note_compensated", {**row.place, "now": now}))


def to_record(serializer: Serializer, row: EffectRow) -> EffectRecord:
    """An effect as its users see it. One that cannot be read has `damaged`."""
    record = EffectRecord(
        key=row.key,
        name=row.name,
        state=EffectState(row.state) if row.state in STATES else EffectState.UNKNOWN,
        run_id=row.run_id,
        thread_id=row.thread_id,
        attempts=row.attempts,
        arguments={},
        result=None,
        error=None,
        created_at=moment(row.created_at),
        updated_at=moment(row.updated_at),
        due_at=maybe_moment(row.due_at),
        undone=row.undo == UndoState.DONE,
    )
    try:
        row.check(serializer)
        record = replace(record, arguments=row.load_arguments(serializer))
        if row.outcome is None:
            return record
        outcome = row.load_outcome(serializer)
    except UNREADABLE as error:
        return replace(record, arguments={}, damaged=str(error))
    if row.state == EffectState.DONE:
        return replace(record, result=outcome[0])
    texts = (str(outcome.get(name, "")) for name in ("kind", "message", "traceback"))
    return replace(record, error=RunError(*texts))


def compensation_task(run_id: str, key: str) -> str:
    """The task of the compensation of an effect."""
    return f"{COMPENSATION}{run_id} {key}"


def is_compensation(row: EffectRow) -> bool:
    return row.task.startswith(COMPENSATION)


def report(rows: Iterable[EffectRow]) -> dict[str, Any]:
    """Keys of the effects of a cancelled run: undone, not undoable, of unknown outcome."""
    mine = [row for row in rows if not is_compensation(row)]
    done = [row for row in mine if row.state == EffectState.DONE]
    unsettled = (EffectState.OPEN, EffectState.UNKNOWN)
    keys = {
        "undone": [row.key for row in done if row.undo == UndoState.DONE],
        "kept": [row.key for row in done if row.undo == UndoState.NONE],
        "unknown": [row.key for row in mine if row.state in unsettled],
    }
    return {name: some for name, some in keys.items() if some}


LAST_ID = "\U0010ffff"


class EffectPosition(NamedTuple):
    """A position in a list of effects: a run, and an effect of it."""

    run_at: int = LAST_MS
    run_id: str = LAST_ID
    at: int = 0
    key: str = ""


class EffectHead(NamedTuple):
    """An effect without its large columns, or a run that has no effect."""

    run_at: int
    run_id: str
    run_thread: str
    graph: str
    at: int | None
    key: str | None
    name: str | None
    state: str | None

    @property
    def position(self) -> EffectPosition:
        return EffectPosition(self.run_at, self.run_id, self.at or 0, self.key or "")


def newest(behind: EffectPosition, count: int) -> Op[list[EffectHead]]:
    """Effects behind a position, newest run first."""
    params = {"before": behind.run_at, "before_id": behind.run_id, "count": count}
    params |= {"at": behind.at, "key": behind.key}
    return read_op("newest_effects", params, lambda rows: [EffectHead(*row) for row in rows[0]])


SETTLED_BY = "settled by"
"""Begins the error of an effect that a person settled as failed."""
