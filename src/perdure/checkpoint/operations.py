"""Operations on checkpoints, their values and their writes: pure, no I/O, no colour."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from perdure.checkpoint.values import ValueRef
from perdure.errors import Damaged
from perdure.journal import Op, Row, Statement, is_left, with_params

T = TypeVar("T")
LAST = "\U0010ffff"
"""Sorts after every checkpoint id."""


class CheckpointKey(NamedTuple):
    """What LangGraph's config points at; without an id, the newest checkpoint."""

    thread_id: str
    ns: str
    id: str | None


class CheckpointRow(NamedTuple):
    thread_id: str
    ns: str
    id: str
    parent_id: str | None
    run_id: str | None
    step: int
    refs: str
    state: bytes
    created_at: int = 0
    """Only read with a whole thread."""


class WritesRow(NamedTuple):
    thread_id: str
    ns: str
    checkpoint_id: str
    task_id: str
    stamp: int
    body: bytes


def _select(name: str, make: Callable[..., T], every: Iterable[dict[str, Any]]) -> Op[list[T]]:
    """The rows of one statement, run with each of these parameters."""
    return Op(
        name,
        [Statement(name, params) for params in every],
        lambda rows: [make(*row) for some in rows for row in some],
    )


def _delete(name: str, statements: Sequence[Statement]) -> Op[None]:
    return Op(name, statements, lambda rows: None, write=True)


def checkpoint_at(
    thread_id: str, ns: str, at: str | None
) -> Op[tuple[CheckpointRow | None, list[WritesRow]]]:
    """The checkpoint `at`, or the newest, with its writes."""
    params = {"thread_id": thread_id, "ns": ns, "at": at or LAST}

    def result(rows: Sequence[Sequence[Row]]) -> tuple[CheckpointRow | None, list[WritesRow]]:
        found = [CheckpointRow(*row) for row in rows[0]]
        if not found or (at and found[0].id != at):
            return None, []
        return found[0], [WritesRow(*row) for row in rows[1]]

    names = ("checkpoint_at", "writes_at")
    return Op("checkpoint_at", [Statement(name, params) for name in names], result)


def values(
    thread_id: str, ns: str, refs: Iterable[ValueRef], *, chains: bool
) -> Op[list[tuple[ValueRef, bytes]]]:
    """The bodies of the rows at `refs`; with `chains`, of all the rows each is made of."""
    place = {"thread_id": thread_id, "ns": ns}
    every = [{**place, **ref._asdict(), "from": -1 if chains else ref.seq} for ref in refs]
    return _select("chain_of", lambda *row: (ValueRef(*row[:4]), row[4]), every)


def insert_value(
    thread_id: str, ns: str, ref: ValueRef, base: int | None, body: bytes
) -> Statement:
    """One row of a value; `base` is the step of the row it changes."""
    channel, chain, seq, step = ref
    params = {
        "thread_id": thread_id,
        "ns": ns,
        "channel": channel,
        "chain": chain,
        "seq": seq,
        "step": step,
        "base": base if seq else None,
        "body": body,
    }
    return Statement("insert_value", params)


def writes_of(checkpoints: Iterable[CheckpointRow]) -> Op[list[list[WritesRow]]]:
    """The writes of each checkpoint."""
    keys = [
        {"thread_id": row.thread_id, "ns": row.ns, "checkpoint_id": row.id} for row in checkpoints
    ]
    return Op(
        "writes_of",
        [Statement("writes_of", key) for key in keys],
        lambda rows: [[WritesRow(*row) for row in some] for some in rows],
    )


def page(
    thread_id: str | None, ns: str | None, before: tuple[str, str, str], count: int
) -> Op[list[CheckpointRow]]:
    """Checkpoints older than the position `before` = (id, thread, namespace), newest first."""
    params: dict[str, Any] = {"before": before[0], "count": count}
    if thread_id is None:
        name = "list_all"
        params |= {"before_thread": before[1], "before_ns": before[2]}
    elif ns is None:
        name = "list_thread"
        params |= {"thread_id": thread_id, "before_ns": before[2]}
    else:
        name = "list_namespace"
        params |= {"thread_id": thread_id, "ns": ns}
    return _select(name, CheckpointRow, [params])


def ancestors(thread_id: str, ns: str, id: str, count: int) -> Op[list[CheckpointRow]]:
    params = {"thread_id": thread_id, "ns": ns, "id": id, "count": count}
    return _select("ancestors", CheckpointRow, [params])


def checkpoints_of(thread_id: str) -> Op[list[CheckpointRow]]:
    """Every checkpoint of a thread, oldest first in its namespace."""

    def make(*row: Any) -> CheckpointRow:
        return CheckpointRow._make((thread_id, *row[:5], *row[6:], row[5]))

    return _select("outline_of_thread", make, [{"thread_id": thread_id}])


def threads() -> Op[list[str]]:
    return _select("threads_of_run", str, [{"run_id": None}])


def threads_of_runs(run_ids: Iterable[str]) -> Op[list[str]]:
    """The threads of each run; one that has several of these runs comes several times."""
    return _select("threads_of_run", str, [{"run_id": run_id} for run_id in run_ids])


def delete_thread(thread_id: str, count: int) -> Op[bool]:
    """Delete the checkpoints of a thread, and up to `count` of its writes, values and effects each.
    True: rows are left, so it has to be done again."""
    names = (
        "delete_state",
        "delete_state_writes",
        "delete_state_values",
        "delete_effects",
        "is_thread_left",
    )
    params = {"thread_id": thread_id, "count": count, "only": None, "id": None, "old": 0}
    return Op("delete_thread", with_params(params, *names), is_left, write=True)


def delete_checkpoints(thread_id: str, checkpoints: Iterable[tuple[str, str]]) -> Op[None]:
    """Delete checkpoints given as (namespace, id), each with its writes."""
    statements = []
    for ns, id in checkpoints:
        params = {"thread_id": thread_id, "ns": ns, "id": id}
        statements += with_params(params, "delete_checkpoint", "delete_writes")
    return _delete("delete_checkpoints", statements)


def delete_old_effects(thread_id: str, count: int) -> Op[bool]:
    """Delete up to `count` effects whose tasks cannot run again. True: some are left."""
    params = {"thread_id": thread_id, "count": count, "old": 1}
    statements = with_params(params, "delete_effects", "is_thread_left")
    return Op("delete_old_effects", statements, is_left, write=True)


def value_bases(
    thread_id: str,
) -> Op[tuple[dict[tuple[str, ValueRef], int | None], list[tuple[str, ValueRef]]]]:
    """All values of a thread as (namespace, ref) with the base of each, and those in use."""

    def result(rows: Sequence[Sequence[Row]]) -> Any:
        bases = {(row[0], ValueRef(*row[1:5])): row[5] for row in rows[0]}
        used = (*rows[1], *rows[2])
        return bases, [(ns, ref) for ns, refs in used for ref in parse_refs(thread_id, refs)]

    names = ("value_keys", "checkpoint_refs", "writes_refs")
    return Op("value_keys", [Statement(name, {"thread_id": thread_id}) for name in names], result)


def parse_refs(thread_id: str, refs: Any) -> list[ValueRef]:
    try:
        return [ValueRef(*ref) for ref in json.loads(refs)]
    except (TypeError, ValueError, RecursionError) as error:
        where = f"the list of values of a checkpoint, or of a write, of thread {thread_id!r}"
        raise Damaged(where, str(error)) from error


def delete_values(thread_id: str, values: Iterable[tuple[str, ValueRef]]) -> Op[None]:
    every = [{"thread_id": thread_id, "ns": ns, **ref._asdict()} for ns, ref in values]
    return _delete("delete_values", [Statement("delete_value", params) for params in every])


def whole_thread(thread_id: str) -> Op[tuple[list[CheckpointRow], Sequence[Row], Sequence[Row]]]:
    """The checkpoints, values and writes of a thread."""
    checkpoints = checkpoints_of(thread_id)
    names = ("all_values", "all_writes")
    return Op(
        "copy_thread",
        [*checkpoints.render(), *[Statement(name, {"thread_id": thread_id}) for name in names]],
        lambda rows: (checkpoints.result(rows[:1]), rows[1], rows[2]),
    )
