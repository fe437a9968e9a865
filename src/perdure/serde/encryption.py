"""The envelope around every stored blob: a checksum, or authenticated encryption.

Both are bound to the place of the blob: the columns of its row that say whose it is and decide what
it does. A blob that was changed, one that was moved to another thread, run or task, or one whose
deciding columns were changed, is `Damaged` and never read as something else. Columns that SQL
computes are not among them; `docs/guides/safe-loading.md` says what that leaves open.

With keys given, a row that is not encrypted is refused; the key's id is stored with the row, so
that keys can be rotated: old rows open with their old key, new ones are written with the first key
of the mapping.

A blob begins with one of these bytes, which says what it is bound to:

    1 checksum, 2 encrypted   the text that names its row, and `columns`
    3 checksum, 4 encrypted   every column of its `Place`

Blobs of checkpoints have always been bound to all of their place, and keep 1 and 2. All others were
bound to an id, which moves with its row, until there were places; `unseal` still opens those.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from perdure.errors import BadArgument, Damaged, Error, WrongKey, needs_extra

bound_text: Callable[[list[Any]], str] = json.JSONEncoder(default=repr).encode
"""The text of `["place", name, *columns]` that an envelope authenticates. It must never change for
a stored row."""
_CHECKSUM, _ENCRYPTED = (1, 3), (2, 4)
"""The first byte of a blob: bound to a text, bound to a place."""


class Place(NamedTuple):
    """Where a blob belongs. The module of each noun says which columns its blobs are bound to."""

    name: str
    """Its name in messages, and all that blobs of older versions are bound to."""
    columns: tuple[Any, ...]


class Unreadable(NamedTuple):
    """In the place of a blob: what is wrong with its row."""

    reason: str


BOUND_TO_PLACE = (b"\x03", b"\x04")
"""First bytes of what was sealed at a `Place`."""


class Envelope:
    """Seals and opens blobs. A place is a `Place`, or the text that names a row of a checkpoint;
    that text is authenticated together with `columns`, the row's others."""

    authenticates = False
    """Whether only those who have a key can make one."""

    def seal(self, data: bytes, place: Place | str, columns: str = "") -> bytes:
        raise NotImplementedError

    def unseal(self, blob: Any, place: Place | str, columns: str = "") -> bytes:
        """What was sealed at this place. Raises `Damaged` or `WrongKey`."""
        name = place if isinstance(place, str) else place.name
        if type(blob) is not bytes:
            blob = as_bytes(blob, name)
        if isinstance(place, str) or blob[:1] not in BOUND_TO_PLACE:
            return self._open(False, blob, name, name + columns)
        return self._open(True, blob, name, bound_text(["place", name, *place.columns]))

    def _open(self, placed: bool, blob: bytes, name: str, bound: str) -> bytes:
        raise NotImplementedError


class ChecksumEnvelope(Envelope):
    """No secrecy. Detects a flipped bit or a moved row; anyone who can write can forge it."""

    def seal(self, data: bytes, place: Place | str, columns: str = "") -> bytes:
        if isinstance(place, str):
            first, bound = b"\x01", place + columns
        else:
            first, bound = b"\x03", bound_text(["place", place.name, *place.columns])
        return first + zlib.crc32(data, zlib.crc32(bound.encode())).to_bytes(4, "big") + data

    def _open(self, placed: bool, blob: bytes, name: str, bound: str) -> bytes:
        if blob[:1] and blob[0] in _ENCRYPTED:
            raise WrongKey(
                name,
                "it is encrypted; pass encryption_keys={id: key}, or name a Runtime that has them "
                "(--at module:name)",
            )
        checksum = zlib.crc32(blob[5:], zlib.crc32(bound.encode())).to_bytes(4, "big")
        if blob[:1] != bytes([_CHECKSUM[placed]]) or blob[1:5] != checksum:
            raise Damaged(name, "its checksum does not match")
        return blob[5:]


class EncryptedEnvelope(Envelope):
    """AES-GCM with a key id and a random nonce in front of each row."""

    authenticates = True

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise Error(needs_extra("Encryption", "encryption")) from error
        if not keys or not isinstance(keys, Mapping):
            raise BadArgument("encryption_keys={} has no key; pass {id: 16, 24 or 32 random bytes}")
        unchecked: Mapping[Any, Any] = keys
        for key_id, key in unchecked.items():
            if not isinstance(key, bytes) or len(key) not in (16, 24, 32):
                raise Error(f"Key {key_id!r} must be 16, 24 or 32 bytes, such as os.urandom(32).")
            if not isinstance(key_id, str) or not 0 < len(key_id.encode(errors="replace")) < 256:
                raise Error(f"A key's id is a text of 1 to 255 bytes, not {key_id!r}.")
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._current = next(iter(keys))

    def seal(self, data: bytes, place: Place | str, columns: str = "") -> bytes:
        if isinstance(place, str):
            first, bound = _ENCRYPTED[False], place + columns
        else:
            first, bound = _ENCRYPTED[True], bound_text(["place", place.name, *place.columns])
        key_id, nonce = self._current.encode(), os.urandom(12)
        ciphertext = self._ciphers[self._current].encrypt(nonce, data, bound.encode())
        return bytes([first, len(key_id)]) + key_id + nonce + ciphertext

    def _open(self, placed: bool, blob: bytes, name: str, bound: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        if blob[:1] and blob[0] in _CHECKSUM:
            raise WrongKey(name, "it is not encrypted, and plaintext is refused when keys are set")
        whole = blob[:1] == bytes([_ENCRYPTED[placed]]) and len(blob) >= 2
        if not whole or len(blob) < 14 + blob[1]:
            raise Damaged(name, "it is not a whole encrypted row")
        end = 2 + blob[1]
        key_id = blob[2:end].decode(errors="replace")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            why = f"it was encrypted with key {key_id!r}, which is not in encryption_keys="
            raise WrongKey(name, why)
        try:
            return cipher.decrypt(blob[end : end + 12], blob[end + 12 :], bound.encode())
        except InvalidTag:
            reason = (
                f"it fails authentication: it was changed, or moved from another place, or key "
                f"{key_id!r} is not the one it was written with"
            )
            raise Damaged(name, reason) from None


def is_bound_to_place(blob: Any) -> bool:
    """Whether a blob was sealed at a `Place`, and not by a perdure that had none."""
    return isinstance(blob, (bytes, memoryview)) and bytes(blob[:1]) in BOUND_TO_PLACE


def as_bytes(blob: Any, name: str) -> bytes:
    """A blob as it was read. SQLite stores a text or a number in a blob's column as well."""
    if isinstance(blob, (bytes, bytearray, memoryview)):
        return bytes(blob)
    if isinstance(blob, Unreadable):
        raise Damaged(name, blob.reason)
    if blob is None:
        raise Damaged(name, "it is missing")
    raise Damaged(name, f"it is of type {type(blob).__name__}, where bytes are stored")
