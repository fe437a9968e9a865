"""With keys, nothing of a value can be read in the database, and no row can be changed, moved or
swapped for plaintext unnoticed; keys can be rotated."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage

from perdure import Saver
from perdure.errors import Damaged, Error, WrongKey
from perdure.serde.encryption import ChecksumEnvelope, EncryptedEnvelope
from tests.support.raw import LONG, config, execute, put, values_of

OLD, NEW = {"2025": b"o" * 32}, {"2026": b"n" * 16}
SECRET = "SECRETsecret"


def fill(saver: Saver) -> None:
    values = {
        "small": SECRET,
        "number": 70368744177664,
        "long": SECRET + LONG,
        "list": [HumanMessage(SECRET + LONG)],
    }
    where = put(saver, values, metadata={"source": "update", "who": SECRET})
    saver.put_writes(where, [("small", SECRET), ("long", [SECRET + LONG])], "task", "path")
    saver.flush()


def test_the_same_value_is_never_the_same_bytes_twice() -> None:
    envelope = EncryptedEnvelope(NEW)
    assert envelope.seal(b"x", "row") != envelope.seal(b"x", "row")


@pytest.mark.parametrize("keys", [None, NEW], ids=["checksum", "encrypted"])
def test_a_checkpoint_cannot_be_pointed_at_other_values_or_none(
    url: str, keys: dict[str, bytes] | None
) -> None:
    with Saver(url, encryption_keys=keys) as saver:
        first = put(saver, {"a": "paid " + LONG})
        put(saver, {"a": "owing " + LONG}, parent=first)
    ((refs,),) = execute(url, "SELECT refs FROM perdure_checkpoints WHERE parent_id IS NULL")
    for forged in (refs, "[]", '[["a", 1, 0, 1]]', "[1]", "garbage", ""):
        execute(url, "UPDATE perdure_checkpoints SET refs = ? WHERE parent_id IS NOT NULL", forged)
        with Saver(url, encryption_keys=keys) as saver, pytest.raises(Damaged, match=r"thread 't'"):
            values_of(saver)


def test_an_encrypted_row_without_keys_says_what_to_do(url: str) -> None:
    with Saver(url, encryption_keys=NEW) as saver:
        fill(saver)
    with (
        Saver(url) as saver,
        pytest.raises(WrongKey, match=r"thread 't'.*encryption_keys=\{id: key\}"),
    ):
        saver.get_tuple(config())


def test_keys_are_rotated_without_losing_what_was_stored(url: str) -> None:
    with Saver(url, encryption_keys=OLD) as saver:
        put(saver, {"a": LONG}, "old")
    with Saver(url, encryption_keys={**NEW, **OLD}) as saver:
        assert values_of(saver, config("old")) == {"a": LONG}
        put(saver, {"a": LONG}, "new")
    with Saver(url, encryption_keys=NEW) as saver:
        assert values_of(saver, config("new")) == {"a": LONG}
        with pytest.raises(
            WrongKey, match=r"thread 'old'.*key '2025', which is not in encryption_keys="
        ):
            saver.get_tuple(config("old"))
    with (
        Saver(url, encryption_keys={"2026": b"x" * 16}) as saver,
        pytest.raises(Damaged, match="'new'"),
    ):
        saver.get_tuple(config("new"))


@pytest.mark.parametrize(
    "keys",
    [{}, {"a": b""}, {"a": b"x" * 15}, {"a": b"x" * 33}, {"a": "x" * 32}, {"": b"x" * 32},
     {"a" * 256: b"x" * 32}, {1: b"x" * 32}, {"ok": b"x" * 32, "b": b"y"}],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_keys_of_a_wrong_size_or_type_are_refused_at_once(keys: Any) -> None:
    with pytest.raises(Error, match=r"16, 24 or 32|1 to 255 bytes"):
        Saver("sqlite:///:memory:", encryption_keys=keys)


def test_without_cryptography_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(Error, match=r"pip install .*cryptography"):
        Saver("sqlite:///:memory:", encryption_keys=NEW)


@settings(max_examples=300)
@given(st.binary(max_size=40), st.data())
def test_any_change_of_a_sealed_row_is_noticed(content: bytes, data: st.DataObject) -> None:
    for envelope in (ChecksumEnvelope(), EncryptedEnvelope(NEW)):
        sealed = bytearray(envelope.seal(content, "row"))
        assert envelope.unseal(bytes(sealed), "row") == content
        with pytest.raises(Damaged):
            envelope.unseal(bytes(sealed), "row 2")
        bit = data.draw(st.integers(0, len(sealed) * 8 - 1))
        sealed[bit // 8] ^= 1 << bit % 8
        with pytest.raises((Damaged, WrongKey)):
            envelope.unseal(bytes(sealed), "row")
        cut = data.draw(st.integers(0, len(sealed) - 1))
        with pytest.raises((Damaged, WrongKey)):
            envelope.unseal(bytes(sealed[:cut]), "row")
