"""A value to the blob of one row, and back: codec and envelope in one."""

from __future__ import annotations

from typing import Any

from perdure.serde.codec import Codec
from perdure.serde.encryption import Envelope


class Serializer:
    """Turns values into blobs, each bound to the location of its row."""

    def __init__(self, codec: Codec, envelope: Envelope, limit: int = 256 * 1024 * 1024) -> None:
        self.codec, self.envelope, self.limit = codec, envelope, limit

    def dumps(self, value: Any, location: str, name: str | None = None) -> bytes:
        """The blob of a value. An error calls the value `name`, or by its location."""
        return self.envelope.wrap(self.codec.encode(value, name or location), location)

    def loads(self, blob: bytes, location: str) -> Any:
        return self.codec.decode(self.envelope.unwrap(bytes(blob), location), location)


def where_run(column: str, run_id: str) -> str:
    return f"{column} of run {run_id}"


def where_score(run_id: str, name: str, about: str) -> str:
    return f"score {name!r} of {about!r} of run {run_id}"


def where_wait(column: str, wait_id: str) -> str:
    return f"{column} of wait {wait_id}"


def where_signal(signal_id: str) -> str:
    return f"signal {signal_id}"


def where_event(change: int) -> str:
    return f"event {change}"


def where_read(run_id: str, task: str, n: int) -> str:
    return f"read {n} of task {task!r} of run {run_id}"


def where_schedule(name: str) -> str:
    return f"schedule {name!r}"


def where_effect(column: str, key: str) -> str:
    return f"{column} of effect {key}"


def where_message(id: str) -> str:
    return f"message {id}"
