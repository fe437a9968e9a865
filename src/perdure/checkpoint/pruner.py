"""Deleting and copying checkpoints.

What a remaining checkpoint needs is never deleted: the rows its values are made of are found by
the statement that deletes, and the ancestors of an unfinished `DeltaChannel` are spared here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

from perdure.checkpoint import operations
from perdure.checkpoint.cache import Lanes
from perdure.checkpoint.row_format import (
    Rows,
    beside_state,
    where_checkpoint,
    where_value,
    where_writes,
)
from perdure.checkpoint.value_diff import Ref
from perdure.errors import Error
from perdure.journal import Op, Plan, Row, Statement


class Pruner:
    """Plans that delete and copy."""

    def __init__(self, rows: Rows, lanes: Lanes) -> None:
        self._rows, self._lanes = rows, lanes

    def forget(self, thread_id: str) -> None:
        """What this process remembers of a thread may be gone."""
        self._lanes.forget(thread_id)

    def delete_thread(self, thread_id: str) -> Plan[None]:
        yield operations.delete_thread(thread_id)
        self._lanes.forget(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str], only: str | None = None) -> Plan[None]:
        """Delete what runs left, on one thread only if it is named: forks have copies of it."""
        runs = {str(run_id) for run_id in run_ids}
        threads = (yield operations.threads_of_runs(sorted(runs))) if only is None else [only]
        for thread_id in threads:
            lines = yield operations.outline(thread_id)
            doomed = {(line.ns, line.id) for line in lines if line.run_id in runs}
            yield from self._delete(thread_id, self._spare(thread_id, lines, doomed))

    def prune(
        self, thread_ids: Sequence[str] | None, strategy: str, older_than: timedelta | None
    ) -> Plan[None]:
        if strategy not in ("keep_latest", "delete"):
            raise Error(f"prune: strategy={strategy!r}; use 'keep_latest' or 'delete'.")
        if thread_ids is None and older_than is None:
            raise Error("prune: name the threads, or pass older_than= to prune all of them by age.")
        now = time.time_ns() // 1_000_000
        limit = now + 1 if older_than is None else now - older_than // timedelta(milliseconds=1)
        for thread_id in (yield operations.threads()) if thread_ids is None else thread_ids:
            if strategy == "delete" and older_than is None:
                yield from self.delete_thread(thread_id)
                continue
            lines = yield operations.outline(thread_id)
            doomed = {(line.ns, line.id) for line in lines if line.created_at < limit}
            if strategy == "keep_latest":
                doomed -= {line[:2] for line in {line.ns: line for line in lines}.values()}
                doomed = self._spare(thread_id, lines, doomed)
            yield from self._delete(thread_id, doomed)

    def _delete(self, thread_id: str, doomed: set[tuple[str, str]]) -> Plan[None]:
        """Delete checkpoints, then the values that nothing leads to any more.

        In this order nothing in use can be lost: once they are gone, no checkpoint can build on
        them, and whatever was built before is seen by the look at what is in use. A crash in
        between leaves values that the next deletion finds.
        """
        if not doomed:
            return
        yield operations.delete_checkpoints(thread_id, doomed)
        self._lanes.forget(thread_id)
        keys, used = yield operations.value_keys(thread_id)
        bases = {(key.ns, key.ref): key.base for key in keys}
        reached: set[tuple[str, Ref]] = set()
        for ns, ref in used:
            at: Ref | None = ref
            while at is not None and (ns, at) not in reached:
                reached.add((ns, at))
                base = bases.get((ns, at))
                at = None if base is None else at._replace(seq=at.seq - 1, step=base)
        if garbage := bases.keys() - reached:
            yield operations.delete_values(thread_id, garbage)

    def _spare(
        self, thread_id: str, lines: Sequence[operations.Outline], doomed: set[tuple[str, str]]
    ) -> set[tuple[str, str]]:
        """`doomed` without the checkpoints a remaining one is rebuilt from.

        A LangGraph `DeltaChannel` without a value of its own is the sum of its ancestors'
        writes back to the last one that has a value.
        """
        by_id = {line[:2]: line for line in lines}
        spared: dict[tuple[str, str], set[str]] = {}
        for line in lines:
            if line[:2] in doomed:
                continue
            unfinished = self._unfinished(thread_id, line)
            above = by_id.get((line.ns, line.parent_id or ""))
            while unfinished and above is not None:
                known = spared.setdefault(above[:2], set())
                if unfinished <= known:
                    break  # from here on up it is spared for these channels already
                known |= unfinished
                unfinished &= self._unfinished(thread_id, above)
                above = by_id.get((above.ns, above.parent_id or ""))
        return doomed - spared.keys()

    def _unfinished(self, thread_id: str, line: operations.Outline) -> set[str]:
        where = where_checkpoint(thread_id, line.ns, line.id)
        beside = beside_state(line.parent_id, line.run_id, line.step, line.refs)
        return set(self._rows.open_state(line.state, where, beside).unfinished)

    def copy_thread(self, source: str, target: str) -> Plan[None]:
        """Copy a thread whole, to one that does not exist yet."""
        if source == target:
            raise Error(f"copy_thread: source and target are both {source!r}.")
        if (yield operations.outline(target)):
            raise Error(f"copy_thread: there is a thread {target!r} already; delete it first.")
        checkpoints, values, writes = yield operations.whole_thread(source)
        statements = [self._copied_value(row, source, target) for row in values]
        statements += [self._copied_writes(row, source, target) for row in writes]
        statements += [self._copied_checkpoint(row, source, target) for row in checkpoints]
        yield Op(f"copy_thread {source!r}", statements, lambda rows: None, write=True)
        self._lanes.forget(target)

    def _copied_value(self, row: Row, source: str, target: str) -> Statement:
        ns, base, body = row[0], row[5], row[6]
        ref = Ref(*row[1:5])
        body = self._moved(body, where_value(source, ns, ref), where_value(target, ns, ref))
        params = {"thread_id": target, "ns": ns, **ref._asdict(), "base": base, "body": body}
        return Statement("insert_value", params)

    def _copied_writes(self, row: Row, source: str, target: str) -> Statement:
        ns, checkpoint_id, task_id, stamp, refs, body = row
        key = (ns, checkpoint_id, task_id, stamp)
        params = {
            "thread_id": target,
            "ns": ns,
            "checkpoint_id": checkpoint_id,
            "task_id": task_id,
            "stamp": stamp,
            "refs": refs,
            "body": self._moved(body, where_writes(source, *key), where_writes(target, *key)),
        }
        return Statement("insert_writes", {**params, "run_id": None, "token": None})

    def _copied_checkpoint(self, row: Row, source: str, target: str) -> Statement:
        ns, id, parent_id, run_id, step, created_at, refs, state = row
        params = {
            "thread_id": target,
            "ns": ns,
            "id": id,
            "parent_id": parent_id,
            "run_id": run_id,
            "step": step,
            "base": None,
            "base_step": None,
            "created_at": created_at,
            "refs": refs,
            "state": self._moved(
                state,
                where_checkpoint(source, ns, id),
                where_checkpoint(target, ns, id),
                beside_state(parent_id, run_id, step, refs),
            ),
        }
        return Statement("insert_checkpoint", {**params, "lease_of": None})

    def _moved(self, sealed: bytes, source: str, target: str, beside: str = "") -> bytes:
        """A blob sealed anew: a seal is bound to its row's own key."""
        envelope = self._rows.envelope
        return envelope.wrap(envelope.unwrap(bytes(sealed), source, beside), target, beside)
