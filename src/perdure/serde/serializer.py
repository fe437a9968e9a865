"""A value to the blob of one row, and back: codec and envelope in one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

from perdure.errors import Damaged, Error, TooLarge
from perdure.serde.codec import Codec
from perdure.serde.encryption import Envelope
from perdure.serde.places import Place
from perdure.serde.redaction import is_id

T = TypeVar("T")
Part = tuple[str, int]
"""The name of a part of a value, and its bytes."""
FindPart = Callable[[], Part | None]
"""Finds the largest part of a value that is refused."""


class Serializer:
    """Turns values into blobs, each bound to its place."""

    def __init__(self, codec: Codec, envelope: Envelope, limit: int = 256 * 1024 * 1024) -> None:
        self.codec, self.envelope, self.limit = codec, envelope, limit
        self.redacts = codec.redactor is not None
        self.keep_to(None, None)

    def keep_to(self, largest_blob: int | None, largest_batch: int | None) -> None:
        """Refuse what the journal's database does not take: bytes of one blob, and of one
        transaction. None: it takes any number."""
        self.largest_blob = sys.maxsize if largest_blob is None else largest_blob
        self.largest_batch = sys.maxsize if largest_batch is None else largest_batch

    def dumps(
        self, value: Any, place: Place, name: str | None = None, *, own: bool = False
    ) -> bytes:
        """The blob of a value. An error calls the value `name`, or by its place. `own`: it is made
        of ids and of parts that are redacted already."""
        data = self.codec.encode(value, name or place.name, own=own)
        blob = self.envelope.seal(data, place)
        if len(blob) > self.largest_blob:
            self.check_blob(len(blob), name or place.name, lambda: self.largest_part(value))
        return blob

    # -- redaction, if there is a policy

    def redacted_text(self, text: T) -> T:
        """A text, or None, as it is stored."""
        if self.codec.redactor is None or not isinstance(text, str):
            return text
        return cast(T, self.codec.redactor.text(text))

    def redacted_values(self, ours: Mapping[str, Any], ids: Collection[str]) -> Mapping[str, Any]:
        """A dict whose keys are ours, with its values as they are stored. What is under `ids` is
        identity, and left alone."""
        if not self.redacts:
            return ours
        redacted = self.codec.redacted
        return {k: v if k in ids else redacted(v, k) for k, v in ours.items()}

    def redacted_entries(self, entries: Mapping[str, Any]) -> Mapping[str, Any]:
        """Metadata, or a config, as it is stored. Its ids are left alone."""
        if not self.redacts:
            return entries
        return {
            name: value if is_id(name) else self.codec.redacted({name: value}, name)[name]
            for name, value in entries.items()
        }

    def check_blob(self, size: int, name: str, largest: FindPart = lambda: None) -> None:
        """Raise `TooLarge`, which names the largest part, if the journal's database does not take
        so many bytes in one blob."""
        if size > self.largest_blob:
            raise TooLarge(name, size, self.largest_blob, largest=largest(), in_database=True)

    def check_state(self, size: int, name: str, largest: FindPart) -> None:
        """Raise `TooLarge` for a state over `limit`, or over what the journal's database takes in
        one transaction: sooner or later it is stored whole."""
        if size > min(self.limit, self.largest_batch):
            limit = self.limit if size > self.limit else self.largest_batch
            in_database = size <= self.limit
            raise TooLarge(name, size, limit, largest=largest(), in_database=in_database)

    def largest_part(self, value: Any) -> Part | None:
        """The path to what makes a value of dicts and dataclasses large, and its bytes."""
        largest, path = None, ""
        while parts := _parts(value):
            try:
                sizes = {key: len(self.codec.encode(parts[key], key)) for key in parts}
            except Error:  # it is stored in another way
                break
            key = max(sizes, key=sizes.__getitem__)
            path, value = path + key, parts[key]
            largest = path, sizes[key]
        return largest

    def loads(self, blob: Any, place: Place, of: type | tuple[type, ...] = object) -> Any:
        """The value of a blob, of that type. Raises `Damaged`, `WrongKey` or `TypeNotAllowed`."""
        value = self.codec.decode(self.envelope.unseal(blob, place), place.name)
        if not isinstance(value, of):
            raise Damaged(place.name, f"it holds a {type(value).__name__}")
        return value


def _parts(value: Any) -> dict[str, Any]:
    """The parts of a dict or dataclass, by how they are written behind it."""
    if isinstance(value, Mapping):
        return {f"[{key!r}]": one for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {f".{field.name}": getattr(value, field.name, None) for field in fields(value)}
    return {}
