"""The serialised parts of a run's row: its setup, labels, output and error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from perdure.errors import Damaged, TypeNotAllowed, WrongKey
from perdure.journal import Plan
from perdure.operations.runs import RunRow
from perdure.serde.serializer import Serializer, where_run
from perdure.types import RunError

UNREADABLE = (Damaged, WrongKey, TypeNotAllowed)
"""Errors a person has to look at: a retry would raise them again."""


def load_setup(serializer: Serializer, row: RunRow) -> dict[str, Any]:
    """What the run was started with."""
    setup: dict[str, Any] = serializer.loads(row.setup, where_run("setup", row.id))
    return setup


def load_labels(serializer: Serializer, row: RunRow) -> dict[str, Any]:
    """The labels the agent has given its run so far."""
    if row.labels is None:
        return {}
    labels: dict[str, Any] = serializer.loads(row.labels, where_run("labels", row.id))
    return labels


def load_error(serializer: Serializer, row: RunRow) -> RunError | None:
    """The exception that ended the run or its last segment."""
    if row.error is None:
        return None
    stored = serializer.loads(row.error, where_run("error", row.id))
    return RunError(*(stored[field.name] for field in fields(RunError)))


StateAt = Callable[[str, str], Plan[Mapping[str, Any] | None]]
"""The state of a thread at a checkpoint."""


def load_output(serializer: Serializer, row: RunRow, state_at: StateAt) -> Plan[Any]:
    """What the run returned; None if it is in a checkpoint that was pruned."""
    if row.output is None:
        return None
    stored = serializer.loads(row.output, where_run("output", row.id))
    if len(stored) == 1:
        return stored[0]
    checkpoint_id, channels, rest = stored
    values = yield from state_at(row.thread_id, checkpoint_id)
    if values is None:
        return None
    if isinstance(channels, str):
        return values.get(channels)
    return rest | {channel: values[channel] for channel in channels if channel in values}


def tags_of(row: RunRow, setup: Mapping[str, Any]) -> list[str]:
    """The tags a run was started with, and one for what drove it last."""
    return [*(setup.get("tags") or ()), *([f"runtime:{row.driven}"] if row.driven else ())]


def dump_output(serializer: Serializer, row: RunRow, output: list[Any]) -> bytes:
    """A run's output: [value], or [checkpoint, channels, the rest] if it is in a checkpoint."""
    return serializer.dumps(output, where_run("output", row.id), "the output")


def dump_error(serializer: Serializer, row: RunRow, described: Mapping[str, Any]) -> bytes:
    return serializer.dumps(dict(described), where_run("error", row.id))
