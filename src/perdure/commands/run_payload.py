"""The serialised parts of a run's row: its setup, labels, output and error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from perdure.commands.runs import RunRow
from perdure.errors import Damaged
from perdure.journal import Plan
from perdure.serde import places
from perdure.serde.places import Place
from perdure.serde.serializer import Serializer
from perdure.types import Control, RunError, State

_STATES = frozenset(State)

_OF_SETUP = frozenset(
    {"metadata", "config", "command", "place", "at", "durability", "version", "inline", "fork"}
    | {"interrupt_before", "interrupt_after", "evaluation", "stream", "webhook", "updates"}
)
"""Parts of a setup that are ids and settings, or are redacted in a way of their own."""

_BY_NAME = ("effects", "signals")
"""Parts of the policy of an evaluation whose keys are names, by which they are found."""


def place(row: RunRow, column: str) -> Place:
    """Where the labels, the output or the error of a run belong."""
    return places.of_run(column, row.thread_id, row.id)


def setup_place(row: RunRow) -> Place:
    return places.of_setup(row.thread_id, row.id, row.graph, row.version, row.key, row.created_at)


def load_setup(serializer: Serializer, row: RunRow) -> dict[str, Any]:
    """What the run was started with, and the last command that continued it."""
    setup: dict[str, Any] = serializer.loads(row.setup, setup_place(row), dict)
    return setup


def dump_setup(serializer: Serializer, row: RunRow, setup: Mapping[str, Any]) -> bytes:
    return serializer.dumps(
        redacted_setup(serializer, setup), setup_place(row), "the command", own=True
    )


def redacted_setup(serializer: Serializer, setup: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is started with, as it is stored."""
    if not serializer.redacts:
        return dict(setup)
    made = dict(serializer.redacted_values(setup, _OF_SETUP))
    if made.get("metadata"):
        made["metadata"] = serializer.redacted_entries(made["metadata"])
    if (config := made.get("config")) and (given := config.get("configurable")):
        made["config"] = {**config, "configurable": serializer.redacted_entries(given)}
    if policy := made.get("evaluation"):
        parts = {part: serializer.redacted_values(policy[part], ()) for part in _BY_NAME}
        answers = serializer.redacted_values({"": policy["answers"]}, ())[""]
        made["evaluation"] = {**policy, **parts, "answers": answers}
    if command := made.get("command"):
        made["command"] = serializer.redacted_values(command, command.keys() - {"input"})
    return made


def load_labels(serializer: Serializer, row: RunRow) -> dict[str, Any]:
    """The labels the agent has given its run so far."""
    if row.labels is None:
        return {}
    labels: dict[str, Any] = serializer.loads(row.labels, place(row, "labels"), dict)
    return labels


def load_error(serializer: Serializer, row: RunRow) -> RunError | None:
    """The exception that ended the run or its last segment."""
    if row.error is None:
        return None
    stored = serializer.loads(row.error, place(row, "error"), dict)
    return RunError(*(str(stored.get(field.name, "")) for field in fields(RunError)))


def check_state(row: RunRow) -> None:
    """Raise `Damaged` if the run is in no state, or was asked to do something unknown."""
    if row.state not in _STATES or row.was not in (None, *_STATES):
        raise Damaged(f"run {row.id}", f"its state is {row.state!r}, and was {row.was!r}")
    if row.control not in (None, *Control):
        raise Damaged(f"run {row.id}", f"it was asked to {row.control!r}")


def state_of(row: RunRow) -> State:
    """The state of a run. One that is damaged needs a person."""
    return State(row.state) if row.state in _STATES else State.HELD


def maybe_control(stored: str | None) -> Control | None:
    """What a run was asked to do after its current step. Of a damaged row: nothing."""
    return next((one for one in Control if one == stored), None)


def stored_output(serializer: Serializer, row: RunRow) -> list[Any]:
    """The output as `dump_output` stored it."""
    stored: list[Any] = serializer.loads(row.output, place(row, "output"), list)
    return stored


StateAt = Callable[[str, str], Plan[Mapping[str, Any] | None]]
"""The state of a thread at a checkpoint."""


def load_output(serializer: Serializer, row: RunRow, state_at: StateAt) -> Plan[Any]:
    """What the run returned; None if it is in a checkpoint that was pruned."""
    if row.output is None:
        return None
    stored = stored_output(serializer, row)
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
    if len(output) == 1:
        return serializer.dumps(output, place(row, "output"), "the output")
    stored = [*output[:2], serializer.codec.redacted(output[2], "the output")]
    return serializer.dumps(stored, place(row, "output"), "the output", own=True)


def dump_error(serializer: Serializer, row: RunRow, described: Mapping[str, Any]) -> bytes:
    stored = dict(serializer.redacted_values(described, ("kind",)))
    return serializer.dumps(stored, place(row, "error"), own=True)
