"""A value to the blob of one row, and back: codec and envelope in one."""

from __future__ import annotations

from typing import Any

from perdure.errors import Damaged
from perdure.serde.codec import Codec
from perdure.serde.encryption import Envelope
from perdure.serde.places import Place


class Serializer:
    """Turns values into blobs, each bound to its place."""

    def __init__(self, codec: Codec, envelope: Envelope, limit: int = 256 * 1024 * 1024) -> None:
        self.codec, self.envelope, self.limit = codec, envelope, limit

    def dumps(self, value: Any, place: Place, name: str | None = None) -> bytes:
        """The blob of a value. An error calls the value `name`, or by its place."""
        return self.envelope.seal(self.codec.encode(value, name or place.name), place)

    def loads(self, blob: Any, place: Place, of: type | tuple[type, ...] = object) -> Any:
        """The value of a blob, of that type. Raises `Damaged`, `WrongKey` or `TypeNotAllowed`."""
        value = self.codec.decode(self.envelope.unseal(blob, place), place.name)
        if not isinstance(value, of):
            raise Damaged(place.name, f"it holds a {type(value).__name__}")
        return value
