"""Operations on checkpoints, their values and their writes: pure, no I/O, no colour."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from perdure.checkpoint.value_chain import ValueRef
from perdure.journal import Op, Row, Statement

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


class WritesRow(NamedTuple):
    thread_id: str
    ns: str
    checkpoint_id: str
    task_id: str
    stamp: int
    body: bytes


class ValueRow(NamedTuple):
    channel: str
    chain: int
    seq: int
    step: int
    body: bytes


def checkpoint_at(
    thread_id: str, ns: str, at: str | None
) -> Op[tuple[CheckpointRow | None, list[WritesRow]]]:
    """The checkpoint `at`, or the newest, with its writes."""
    params = {"thread_id": thread_id, "ns": ns, "at": at or LAST}

    def result(
        rows: Sequence[Sequence[Row]],
    ) -> tuple[CheckpointRow | None, list[WritesRow]]:
        found = [CheckpointRow(*row) for row in rows[0]]
        if not found or (at and found[0].id != at):
            return None, []
        return found[0], [WritesRow(*row) for row in rows[1]]

    return Op(
        "checkpoint_at",
        [Statement("checkpoint_at", params), Statement("writes_at", params)],
        result,
    )


def chains(thread_id: str, ns: str, refs: Iterable[ValueRef]) -> Op[list[ValueRow]]:
    """The rows of whole chains, each up to its ref."""
    return _values("chain_of", thread_id, ns, refs)


def values_at(thread_id: str, ns: str, refs: Iterable[ValueRef]) -> Op[list[ValueRow]]:
    """Single rows."""
    return _values("value_at", thread_id, ns, refs)


def _values(name: str, thread_id: str, ns: str, refs: Iterable[ValueRef]) -> Op[list[ValueRow]]:
    return Op(
        name,
        [Statement(name, {"thread_id": thread_id, "ns": ns, **ref._asdict()}) for ref in refs],
        lambda rows: [ValueRow(*row) for some in rows for row in some],
    )


def writes_of(checkpoints: Iterable[CheckpointRow]) -> Op[list[WritesRow]]:
    return Op(
        "writes_of",
        [
            Statement(
                "writes_of", {"thread_id": row.thread_id, "ns": row.ns, "checkpoint_id": row.id}
            )
            for row in checkpoints
        ],
        lambda rows: [WritesRow(*row) for some in rows for row in some],
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
    return Op(name, [Statement(name, params)], lambda rows: [CheckpointRow(*r) for r in rows[0]])


def ancestors(thread_id: str, ns: str, id: str, count: int) -> Op[list[CheckpointRow]]:
    params = {"thread_id": thread_id, "ns": ns, "id": id, "count": count}
    return Op(
        "ancestors",
        [Statement("ancestors", params)],
        lambda rows: [CheckpointRow(*row) for row in rows[0]],
    )


class CheckpointOutline(NamedTuple):
    """A checkpoint without its values."""

    ns: str
    id: str
    parent_id: str | None
    run_id: str | None
    step: int
    created_at: int
    refs: str
    state: bytes


def outline(thread_id: str) -> Op[list[CheckpointOutline]]:
    """Every checkpoint of a thread, oldest first in its namespace, without values."""
    return Op(
        "outline_of_thread",
        [Statement("outline_of_thread", {"thread_id": thread_id})],
        lambda rows: [CheckpointOutline(*row) for row in rows[0]],
    )


def threads() -> Op[list[str]]:
    return Op("threads", [Statement("threads", {})], lambda rows: [row[0] for row in rows[0]])


def threads_of_runs(run_ids: Iterable[str]) -> Op[list[str]]:
    return Op(
        "threads_of_runs",
        [Statement("threads_of_run", {"run_id": run_id}) for run_id in run_ids],
        lambda rows: sorted({row[0] for some in rows for row in some}),
    )


def delete_thread(thread_id: str) -> Op[None]:
    params = {"thread_id": thread_id}
    return Op(
        "delete_thread",
        [
            Statement("delete_thread_checkpoints", params),
            Statement("delete_thread_writes", params),
            Statement("delete_thread_values", params),
            Statement("delete_thread_effects", params),
        ],
        lambda rows: None,
        write=True,
    )


def delete_checkpoints(thread_id: str, checkpoints: Iterable[tuple[str, str]]) -> Op[None]:
    """Delete checkpoints given as (namespace, id), their writes, and effects no task needs."""
    statements = []
    for ns, id in checkpoints:
        params = {"thread_id": thread_id, "ns": ns, "id": id}
        statements += [Statement("delete_checkpoint", params), Statement("delete_writes", params)]
    statements.append(Statement("delete_old_effects", {"thread_id": thread_id}))
    return Op("delete_checkpoints", statements, lambda rows: None, write=True)


class ValueKey(NamedTuple):
    ns: str
    ref: ValueRef
    base: int | None


def value_keys(thread_id: str) -> Op[tuple[list[ValueKey], list[tuple[str, ValueRef]]]]:
    """The keys of all values of a thread, and the (namespace, ref) of those in use."""
    params = {"thread_id": thread_id}
    names = ("value_keys", "checkpoint_refs", "writes_refs")

    def result(rows: Sequence[Sequence[Row]]) -> tuple[list[ValueKey], list[tuple[str, ValueRef]]]:
        keys = [ValueKey(row[0], ValueRef(*row[1:5]), row[5]) for row in rows[0]]
        used = [
            (ns, ValueRef(*ref)) for ns, refs in (*rows[1], *rows[2]) for ref in json.loads(refs)
        ]
        return keys, used

    return Op("value_keys", [Statement(name, params) for name in names], result)


def delete_values(thread_id: str, values: Iterable[tuple[str, ValueRef]]) -> Op[None]:
    statements = [
        Statement("delete_value", {"thread_id": thread_id, "ns": ns, **ref._asdict()})
        for ns, ref in values
    ]
    return Op("delete_values", statements, lambda rows: None, write=True)


def whole_thread(thread_id: str) -> Op[Sequence[Sequence[Row]]]:
    params = {"thread_id": thread_id}
    names = ("outline_of_thread", "all_values", "all_writes")
    return Op("copy_thread", [Statement(name, params) for name in names], lambda rows: rows)
