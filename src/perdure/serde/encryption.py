"""The envelope around every stored blob: a checksum, or authenticated encryption.

Both are bound to the row's own key (its `location`), so that a row changed, or moved to another
thread, is `Damaged` and never read as something else. With keys given, a row that is not
encrypted is refused; the key's id is stored with the row, so that keys can be rotated: old
rows open with their old key, new ones are written with the first key of the mapping.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from typing import Any, Protocol

from perdure.errors import BadArgument, Damaged, Error, WrongKey, needs_extra


class Envelope(Protocol):
    """Wraps and unwraps one blob.

    `location` names its row, and is authenticated with it; so are `columns`, the row's others.
    """

    def wrap(self, data: bytes, location: str, columns: str = "") -> bytes: ...

    def unwrap(self, data: bytes, location: str, columns: str = "") -> bytes: ...


class ChecksumEnvelope:
    """No secrecy; a flipped bit or a moved row is noticed."""

    def wrap(self, data: bytes, location: str, columns: str = "") -> bytes:
        return b"\x01" + _crc(data, location + columns) + data

    def unwrap(self, data: bytes, location: str, columns: str = "") -> bytes:
        if data[:1] == b"\x02":
            raise WrongKey(location, "it is encrypted; pass Saver(..., encryption_keys={id: key})")
        if data[:1] != b"\x01" or data[1:5] != _crc(data[5:], location + columns):
            raise Damaged(location, "its checksum does not match")
        return data[5:]


class EncryptedEnvelope:
    """AES-GCM with a key id and a random nonce in front of each row."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise Error(needs_extra("Encryption", "encryption")) from error
        if not keys or not isinstance(keys, Mapping):
            raise BadArgument("encryption_keys={} has no key; pass {id: 16, 24 or 32 random bytes}")
        given: Mapping[Any, Any] = keys
        for key_id, key in given.items():
            if not isinstance(key, bytes) or len(key) not in (16, 24, 32):
                raise Error(f"Key {key_id!r} must be 16, 24 or 32 bytes, such as os.urandom(32).")
            if not isinstance(key_id, str) or not 0 < len(key_id.encode(errors="replace")) < 256:
                raise Error(f"A key's id is a text of 1 to 255 bytes, not {key_id!r}.")
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._current = next(iter(keys))

    def wrap(self, data: bytes, location: str, columns: str = "") -> bytes:
        key_id = self._current.encode()
        nonce = os.urandom(12)
        ciphertext = self._ciphers[self._current].encrypt(
            nonce, data, (location + columns).encode()
        )
        return b"\x02" + bytes([len(key_id)]) + key_id + nonce + ciphertext

    def unwrap(self, data: bytes, location: str, columns: str = "") -> bytes:
        from cryptography.exceptions import InvalidTag

        if data[:1] == b"\x01":
            raise WrongKey(
                location, "it is not encrypted, and plaintext is refused when keys are set"
            )
        if data[:1] != b"\x02" or len(data) < 2 or len(data) < 14 + data[1]:
            raise Damaged(location, "it is not a whole encrypted row")
        end = 2 + data[1]
        key_id = data[2:end].decode(errors="replace")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            why = f"it was encrypted with key {key_id!r}, which is not in encryption_keys="
            raise WrongKey(location, why)
        try:
            return cipher.decrypt(
                data[end : end + 12], data[end + 12 :], (location + columns).encode()
            )
        except InvalidTag:
            reason = (
                f"it fails authentication, or key {key_id!r} is not the one it was written with"
            )
            raise Damaged(location, reason) from None


def _crc(data: bytes, location: str) -> bytes:
    return zlib.crc32(data, zlib.crc32(location.encode())).to_bytes(4, "big")
