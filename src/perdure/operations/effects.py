"""Operations on effects. Pure, no I/O, no colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perdure.journal import Op, Row, Statement
from perdure.journal.ids import random_number
from perdure.operations.events import change
from perdure.serde.serializer import Serializer, where_effect
from perdure.types import EffectRecord, EffectState, RunError, maybe_moment, moment

UNDO = "undo "
"""How the task of a compensation begins, before the key of what it undoes: it is of no node."""


class EffectRow(NamedTuple):
    """An effect as it is stored."""

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
    settled: int
    due_at: int | None
    created_at: int
    updated_at: int
    arguments: bytes
    outcome: bytes | None

    @property
    def place(self) -> dict[str, Any]:
        return {"scope": self.scope, "task": self.task, "name": self.name, "n": self.n}


class Owner(NamedTuple):
    """Whose effects these are: a run with its lease, or, with only the saver, a thread."""

    thread_id: str
    run_id: str = ""
    token: int = 0

    @property
    def fence(self) -> list[Statement]:
        """Refuses the batch it is in when the lease is lost."""
        if not self.run_id:
            return []
        params = {"thread_id": self.thread_id, "id": self.run_id, "token": self.token}
        return [Statement("fence", params)]


def new_intent() -> int:
    return random_number()


def _effects(rows: Sequence[Sequence[Row]]) -> list[EffectRow]:
    return [EffectRow(*row) for row in rows[0]]


def _is_stored(rows: Sequence[Sequence[Row]]) -> bool:
    return bool(rows[0])


def _last(rows: Sequence[Sequence[Row]]) -> EffectRow:
    return EffectRow(*rows[-1][0])


def insert(owner: Owner, row: EffectRow) -> Statement:
    """Stores an intent, unless there is one. Refuses the batch when the lease is lost."""
    return Statement("insert_effect", {**row._asdict(), "token": owner.token})


def intend(owner: Owner, row: EffectRow) -> Op[bool]:
    """Store an intent. False if there is one already, of the same place or business key."""
    stored = insert(owner, row)
    key = Statement("find_intent", stored.params)
    name = f"the intent of effect {row.name!r}"
    return Op(name, [stored], _is_stored, write=True, key=key)


def take(owner: Owner, row: EffectRow, intent: int, attempts: int, now: int) -> Op[EffectRow]:
    """Be the one who calls now. Gives the row that is there: ours, if its intent is."""
    params = {
        **row.place,
        "seen": row.intent,
        "intent": intent,
        "attempts": attempts,
        "thread_id": owner.thread_id,
        "run_id": owner.run_id,
        "now": now,
    }
    at = Statement("effect_at", row.place)
    return Op(
        f"the intent of effect {row.name!r}",
        [*owner.fence, Statement("take_effect", params), at],
        _last,
        write=True,
        key=at,
        proof=Statement("find_intent", params),
    )


def write(
    owner: Owner,
    row: EffectRow,
    now: int,
    *,
    event: tuple[Serializer, dict[str, Any]] | None = None,
) -> Op[bool]:
    """Store how far a call is, as `row` says, with an event of its run. False: it is no longer
    ours, but of another process, which without a runtime nobody keeps away."""
    made = change(owner.thread_id, owner.run_id, now)
    params = {
        **row.place,
        "intent": row.intent,
        "state": row.state,
        "outcome": row.outcome,
        "attempts": row.attempts,
        "due_at": row.due_at,
        "mark": row.mark,
        "now": now,
    }
    statements = [Statement("write_effect", params)]
    if event is not None and owner.run_id:
        serializer, data = event
        settled = row.state in (EffectState.DONE, EffectState.FAILED)
        count = {**made.params, "token": owner.token, "progress": int(settled)}
        told = {"name": row.name, "key": row.key, "state": row.state, **data}
        statements = [
            Statement("count_effect", count),
            *statements,
            made.event(serializer, "effect", told),
        ]
    else:
        statements = [*owner.fence, *statements]
    name = f"the outcome of effect {row.name!r}"
    at = next(n for n, one in enumerate(statements) if one.name == "write_effect")
    return Op(
        name,
        statements,
        lambda rows: bool(rows[at] if len(rows) > 1 else rows[0]),
        write=True,
        key=Statement("find_outcome", params),
        proof=made.key if event is not None and owner.run_id else None,
    )


def abandon(owner: Owner, now: int) -> Op[None]:
    """What is open will not be called again by its run: a person has to say what became of it."""
    params = {"id": owner.run_id, "now": now}
    statements = [*owner.fence, Statement("abandon_effects", params)]
    return Op("abandon_effects", statements, lambda rows: None, write=True)


def note(
    owner: Owner, serializer: Serializer, now: int, kind: str, data: dict[str, Any]
) -> Op[None]:
    """An event about an effect that changes nothing."""
    made = change(owner.thread_id, owner.run_id, now)
    count = {**made.params, "token": owner.token, "progress": 0}
    statements = [Statement("count_effect", count), made.event(serializer, kind, data)]
    return Op(kind, statements, lambda rows: None, write=True, key=made.key)


def saved(owner: Owner, calls: int, tokens: int) -> Op[None]:
    """Count what was returned from the record."""
    params = {
        "thread_id": owner.thread_id,
        "id": owner.run_id,
        "token": owner.token,
        "calls": calls,
        "tokens": tokens,
    }
    return Op("saved", [Statement("count_saved", params)], lambda rows: None, write=True)


def of_task(thread_id: str, task: str) -> Op[list[EffectRow]]:
    params = {"thread_id": thread_id, "task": task}
    return Op("effects_of_task", [Statement("effects_of_task", params)], _effects)


def at(scope: str, task: str, name: str, n: int) -> Op[EffectRow | None]:
    params = {"scope": scope, "task": task, "name": name, "n": n}
    return Op(
        "effect",
        [Statement("effect_at", params)],
        lambda rows: EffectRow(*rows[0][0]) if rows[0] else None,
    )


def find(key: str) -> Op[EffectRow | None]:
    return Op(
        "effect",
        [Statement("effect_by_key", {"key": key})],
        lambda rows: EffectRow(*rows[0][0]) if rows[0] else None,
    )


def of_run(run_id: str) -> Op[list[EffectRow]]:
    """Every effect of a run, in the order of their intents."""
    return Op("effects_of_run", [Statement("effects_of_run", {"id": run_id})], _effects)


def page(
    *, thread_id: str | None, state: str | None, after: tuple[int, str] | None, count: int
) -> Op[list[EffectRow]]:
    """Effects, oldest first."""
    at, key = after or (-1, "")
    params = {
        "thread_id": thread_id,
        "state": state,
        "after": at,
        "after_key": key,
        "count": count,
    }
    unknown = thread_id is None and state == EffectState.UNKNOWN
    name = "unknown_effects" if unknown else "effects_after"
    return Op("effects", [Statement(name, params)], _effects)


def decide(
    serializer: Serializer,
    row: EffectRow,
    state: str,
    outcome: bytes | None,
    by: str | None,
    now: int,
) -> Op[bool]:
    """A person says what became of an effect. False if it is none that a person can settle."""
    made = change(row.thread_id, row.run_id, now)
    params = {
        **made.params,
        "key": row.key,
        "state": state,
        "outcome": outcome,
        "attempts": row.attempts,
    }
    data = {"name": row.name, "key": row.key, "state": state} | ({"by": by} if by else {})
    return Op(
        f"settle {row.key}",
        [
            Statement("lock_run", params),
            Statement("decide_effect", params),
            Statement("count_decision", params),
            made.event(serializer, "settled", data),
        ],
        lambda rows: bool(rows[1] if len(rows) > 1 else rows[0]),
        write=True,
        key=Statement("find_decision", params),
    )


def undone(owner: Owner, row: EffectRow, now: int) -> Op[None]:
    """Note that a compensation was made."""
    statements = [*owner.fence, Statement("undone_effect", {**row.place, "now": now})]
    return Op("undone_effect", statements, lambda rows: None, write=True)


def to_record(serializer: Serializer, row: EffectRow) -> EffectRecord:
    """An effect as its users see it."""
    arguments = serializer.loads(row.arguments, where_effect("arguments", row.key))
    result = error = None
    if row.outcome is not None:
        outcome = serializer.loads(row.outcome, where_effect("outcome", row.key))
        if row.state == EffectState.DONE:
            result = outcome[0]
        else:
            error = RunError(outcome["kind"], outcome["message"], outcome["traceback"])
    return replace(to_bare_record(row), arguments=arguments, result=result, error=error)


def to_bare_record(row: EffectRow) -> EffectRecord:
    """The same without what is sealed."""
    return EffectRecord(
        key=row.key,
        name=row.name,
        state=EffectState(row.state),
        run_id=row.run_id,
        thread_id=row.thread_id,
        attempts=row.attempts,
        arguments={},
        result=None,
        error=None,
        created_at=moment(row.created_at),
        updated_at=moment(row.updated_at),
        due_at=maybe_moment(row.due_at),
        undone=row.undo == 2,
    )


def is_undo(row: EffectRow) -> bool:
    return row.task.startswith(UNDO)


def report(found: Iterable[EffectRow]) -> dict[str, Any]:
    """What was undone, what was not because it cannot be, and what nobody knows."""
    mine = [one for one in found if not is_undo(one)]
    done = [one for one in mine if one.state == EffectState.DONE]
    told = {
        "undone": [one.key for one in done if one.undo == 2],
        "kept": [one.key for one in done if one.undo == 0],
        "unknown": [
            one.key for one in mine if one.state in (EffectState.OPEN, EffectState.UNKNOWN)
        ],
    }
    return {name: keys for name, keys in told.items() if keys}
