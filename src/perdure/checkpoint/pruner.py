"""Deleting and copying checkpoints.

What a remaining checkpoint needs is never deleted: neither the rows its values are made of, nor the
ancestors of an unfinished `DeltaChannel`. What grows with the thread is split into batches of a
bounded size, in an order in which each batch leaves every remaining checkpoint readable.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from perdure.checkpoint import rows
from perdure.checkpoint.cache import CheckpointCache
from perdure.checkpoint.rows import (
    CheckpointRow,
    checkpoint_location,
    value_location,
    writes_location,
)
from perdure.checkpoint.values import ValueRef
from perdure.errors import Error
from perdure.journal import Capabilities, Op, Plan, Row, Statement, in_pieces, no_result
from perdure.journal.names import check_text
from perdure.serde.serializer import Serializer

T = TypeVar("T")

PER_BATCH = 1000
"""Statements of one batch, where the database sets no lower limit."""


class Pruner:
    """Plans that delete and copy."""

    def __init__(
        self, serializer: Serializer, cache: CheckpointCache, capabilities: Capabilities
    ) -> None:
        self._serializer, self._cache = serializer, cache
        self._capabilities = capabilities
        self._per_batch = capabilities.statements_per_batch or PER_BATCH

    def delete_thread(self, thread_id: str) -> Plan[None]:
        """Delete a thread. Its checkpoints go first and at once, so a crash in between leaves rows
        that nothing refers to: deleting again deletes them."""
        check_text("thread_id", thread_id)
        yield from in_pieces(rows.delete_thread(thread_id, self._capabilities.delete_count))
        self._cache.forget(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str], only: str | None = None) -> Plan[None]:
        """Delete the checkpoints of runs; with `only`, on that thread alone: forks have copies."""
        runs = {*_check_texts("run_id", run_ids)}
        threads = (yield rows.threads_of_runs(runs)) if only is None else [only]
        for thread_id in sorted({*threads}):
            checkpoints = yield rows.checkpoints_of(thread_id)
            doomed = {row[1:3] for row in checkpoints if row.run_id in runs}
            if doomed := self._spare(checkpoints, doomed):
                yield from self._delete(thread_id, doomed)

    def prune(
        self, thread_ids: Sequence[str] | None, strategy: str, older_than: timedelta | None
    ) -> Plan[None]:
        if strategy not in ("keep_latest", "delete"):
            raise Error(f"prune: strategy={strategy!r}; use 'keep_latest' or 'delete'.")
        if thread_ids is None and older_than is None:
            raise Error("prune: name the threads, or pass older_than= to prune all of them by age.")
        threads = None if thread_ids is None else _check_texts("thread_id", thread_ids)
        now = time.time_ns() // 1_000_000
        limit = now + 1 if older_than is None else now - older_than // timedelta(milliseconds=1)
        for thread_id in (yield rows.threads_of_runs([None])) if threads is None else threads:
            if strategy == "delete" and older_than is None:
                yield from self.delete_thread(thread_id)
                continue
            checkpoints = yield rows.checkpoints_of(thread_id)
            doomed = {row[1:3] for row in checkpoints if row.created_at < limit}
            if strategy == "keep_latest":
                newest = {row.ns: row.id for row in checkpoints}
                doomed = self._spare(checkpoints, doomed - newest.items())
            if doomed or threads is not None:  # what is asked for by name may be half done
                yield from self._delete(thread_id, doomed)

    def _delete(self, thread_id: str, doomed: set[tuple[str, str]]) -> Plan[None]:
        """Delete checkpoints, newest first, then the effects and values that none refers to.

        In this order nothing in use can be lost: once they are gone, no checkpoint can build on
        them, and what was built before shows among the values in use. A crash in between leaves
        checkpoints, effects and values that the next deletion in this thread finds.
        """
        newest_first = sorted(doomed, key=lambda one: one[1], reverse=True)
        for some in _chunks(newest_first, max(1, self._per_batch // 2)):
            yield rows.delete_checkpoints(thread_id, some)
        self._cache.forget(thread_id)
        count = self._capabilities.delete_count
        yield from in_pieces(rows.delete_old_effects(thread_id, count))
        bases, used = yield rows.value_bases(thread_id)
        reached: set[tuple[str, ValueRef]] = set()
        for ns, ref in used:
            at: ValueRef | None = ref
            while at is not None and (ns, at) not in reached:
                reached.add((ns, at))
                base = bases.get((ns, at))
                at = None if base is None else at._replace(seq=at.seq - 1, step=base)
        for garbage in _chunks(sorted(bases.keys() - reached), self._per_batch):
            yield rows.delete_values(thread_id, garbage)

    def _spare(
        self, checkpoints: Sequence[CheckpointRow], doomed: set[tuple[str, str]]
    ) -> set[tuple[str, str]]:
        """`doomed` without the checkpoints a remaining one is rebuilt from.

        A LangGraph `DeltaChannel` without a value of its own is the sum of its ancestors'
        writes back to the last one that has a value.
        """
        by_id = {row[1:3]: row for row in checkpoints}
        spared: dict[tuple[str, str], set[str]] = {}
        for row in checkpoints:
            if row[1:3] in doomed:
                continue
            unfinished = set(rows.load_state(self._serializer, row).unfinished)
            above = by_id.get((row.ns, row.parent_id or ""))
            while unfinished and above is not None:
                known = spared.setdefault(above[1:3], set())
                if unfinished <= known:
                    break  # from here on up it is spared for these channels already
                known |= unfinished
                unfinished.intersection_update(rows.load_state(self._serializer, above).unfinished)
                above = by_id.get((above.ns, above.parent_id or ""))
        return doomed - spared.keys()

    def copy_thread(self, source: str, target: str) -> Plan[None]:
        """Copy a thread whole, to one that does not exist yet.

        The checkpoints are copied last and in one batch, so that the copy is there whole or not at
        all. A crash before that leaves rows that no checkpoint refers to: copying again uses them,
        `delete_thread` deletes them.
        """
        for thread_id in (source, target):
            check_text("thread_id", thread_id)
        if source == target:
            raise Error(f"copy_thread: source and target are both {source!r}.")
        if (yield rows.checkpoints_of(target)):
            raise Error(f"copy_thread: there is a thread {target!r} already; delete it first.")
        checkpoints, values, writes = yield rows.whole_thread(source)
        name, database = f"copy_thread {source!r}", self._capabilities
        parts = [self._copied_value(row, source, target) for row in values]
        parts += [self._copied_writes(row, source, target) for row in writes]
        last = [self._copied_checkpoint(row, target) for row in checkpoints]
        database.check(name, last)
        batches = [*database.batches(parts, self._per_batch)]
        if len(parts) + len(last) <= self._per_batch and database.holds(
            database.size(parts + last)
        ):
            batches, last = [], parts + last
        for some in [*batches, last]:
            yield Op(name, some, no_result, write=True)
        self._cache.forget(target)

    def _copied_value(self, row: Row, source: str, target: str) -> Statement:
        ns, ref, base, body = row[0], ValueRef(*row[1:5]), row[5], row[6]
        body = self._moved(body, value_location(source, ns, ref), value_location(target, ns, ref))
        return rows.insert_value(target, ns, ref, base, body)

    def _copied_writes(self, row: Row, source: str, target: str) -> Statement:
        key = row[:4]
        body = self._moved(row[5], writes_location(source, *key), writes_location(target, *key))
        names = ("thread_id", "ns", "checkpoint_id", "task_id", "stamp", "refs", "body")
        params = dict(zip(names, (target, *row[:5], body), strict=True))
        return Statement("insert_writes", {**params, "run_id": None, "token": None})

    def _copied_checkpoint(self, row: CheckpointRow, target: str) -> Statement:
        places = row.location, checkpoint_location(target, *row[1:3])
        state = self._moved(row.state, *places, row.columns)
        params = row._replace(thread_id=target, state=state)._asdict()
        unguarded = {"base": None, "base_step": None, "lease_of": None}
        return Statement("insert_checkpoint", {**params, **unguarded})

    def _moved(self, blob: bytes, source: str, target: str, columns: str = "") -> bytes:
        """A blob in a new envelope: an envelope is bound to the location of its row."""
        envelope = self._serializer.envelope
        return envelope.seal(envelope.unseal(blob, source, columns), target, columns)


def _check_texts(name: str, values: Iterable[Any]) -> list[str]:
    if isinstance(values, str):
        raise Error(f"Pass a list of {name}s, not the single string {values!r}.")
    return [check_text(name, str(value)) for value in values]


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
