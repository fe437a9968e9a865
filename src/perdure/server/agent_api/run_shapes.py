"""Runs as clients get them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perdure.operations.assistants import default_id
from perdure.operations.run_payload import load_labels, load_setup
from perdure.operations.runs import RunRow
from perdure.serde.serializer import Serializer
from perdure.server.agent_api.statuses import RunStatus
from perdure.times import moment

WIRE = "wire"
"""The part of a run's setup that only the Agent Server API uses: assistant, strategy, command."""
UPDATE = {"source": "update_state"}
"""Metadata of a run that only updates the state of its thread. Clients do not see such runs."""
KWARGS = (
    *("input", "context", "config", "webhook", "interrupt_before", "interrupt_after"),
    *("durability", "place"),
)


def wire_time(at: int) -> str:
    """Format a time in milliseconds as the Agent Server does, always with microseconds."""
    return moment(at).isoformat(timespec="microseconds")


def wire_error(kind: str, message: str) -> dict[str, str]:
    """An error as clients get it: its class name, without the module, and its message."""
    return {"error": kind.rpartition(".")[2], "message": message}


def is_update(setup: Mapping[str, Any]) -> bool:
    """Whether a run only updated the state of its thread."""
    return bool(setup.get("metadata") == UPDATE)


def wire_run(serializer: Serializer, row: RunRow, status: RunStatus) -> dict[str, Any]:
    """A run with its input and settings. Raises one of `UNREADABLE`."""
    setup = load_setup(serializer, row)
    wire: Mapping[str, Any] = setup.get(WIRE) or {}
    kwargs = {name: setup[name] for name in KWARGS if setup.get(name) is not None}
    kwargs["input"] = wire.get("input", setup.get("input"))
    if "place" in kwargs:
        kwargs["checkpoint"] = kwargs.pop("place")
    if stream := setup.get("stream"):
        kwargs |= {"stream_mode": stream["modes"], "subgraphs": stream["subgraphs"]}
    return {
        "run_id": row.id,
        "thread_id": row.thread_id,
        "assistant_id": wire.get("assistant_id") or default_id(row.graph),
        "created_at": wire_time(row.created_at),
        "updated_at": wire_time(row.updated_at),
        "status": status.value,
        "metadata": {**(setup.get("metadata") or {}), **load_labels(serializer, row)},
        "kwargs": {**kwargs, "command": wire.get("command")},
        "multitask_strategy": wire.get("multitask_strategy") or "enqueue",
    }


def selected(run: dict[str, Any], select: Iterable[str]) -> dict[str, Any]:
    """The selected fields of a run; by default all."""
    wanted = list(select)
    return {name: run[name] for name in wanted if name in run} if wanted else run
