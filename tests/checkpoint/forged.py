"""Stored values that somebody changed, with a checksum that is right."""

from __future__ import annotations

from collections.abc import Callable

from perdure.checkpoint.rows import (
    checkpoint_columns,
    checkpoint_location,
    value_location,
    writes_location,
)
from perdure.checkpoint.values import RowKind, ValueRef
from perdure.serde.encryption import ChecksumEnvelope
from tests.support.raw import execute


def forge_value(url: str, data: bytes, kind: int = RowKind.WHOLE) -> None:
    """Make `data` every value that has a row, with a checksum that is right."""
    columns = "thread_id, ns, channel, chain, seq, step"
    rows = execute(url, f"SELECT {columns} FROM perdure_values")
    assert rows
    for thread_id, ns, *ref in rows:
        sealed = ChecksumEnvelope().seal(
            bytes([kind]) + data, value_location(thread_id, ns, ValueRef(*ref))
        )
        execute(
            url,
            "UPDATE perdure_values SET body = ? WHERE thread_id = ? AND channel = ? AND seq = ?",
            *(sealed, thread_id, ref[0], ref[2]),
        )


def forge_state(url: str, change: Callable[[bytes], bytes]) -> None:
    """Change what is inside the checkpoints' own rows, with a checksum that is right."""
    columns = "thread_id, ns, id, state, parent_id, run_id, step, refs"
    for thread_id, ns, id, state, *others in execute(
        url, f"SELECT {columns} FROM perdure_checkpoints"
    ):
        where, beside = checkpoint_location(thread_id, ns, id), checkpoint_columns(*others)
        opened = ChecksumEnvelope().unseal(bytes(state), where, beside)
        sealed = ChecksumEnvelope().seal(change(opened), where, beside)
        execute(url, "UPDATE perdure_checkpoints SET state = ? WHERE id = ?", sealed, id)


def forge_writes(url: str, change: Callable[[bytes], bytes]) -> None:
    """The same for what tasks wrote."""
    for *key, body in execute(
        url, "SELECT thread_id, ns, checkpoint_id, task_id, stamp, body FROM perdure_writes"
    ):
        where = writes_location(*key)
        sealed = ChecksumEnvelope().seal(
            change(ChecksumEnvelope().unseal(bytes(body), where)), where
        )
        execute(url, "UPDATE perdure_writes SET body = ? WHERE stamp = ?", sealed, key[-1])
