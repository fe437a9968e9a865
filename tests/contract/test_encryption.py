"""What is stored with keys can be read, moved and forged by nobody without them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage

from perdure import Saver
from perdure.errors import WrongKey
from tests.support.raw import LONG, config, execute, put, rewrite, values_of

OLD, NEW = {"2025": b"o" * 32}, {"2026": b"n" * 16}


SECRET = "SECRETsecret"


SEALED = [("perdure_checkpoints", "state"), ("perdure_values", "body"), ("perdure_writes", "body")]


def everything(url: str) -> bytes:
    """All bytes of the database."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        return b"".join(file.read_bytes() for file in sorted(path.parent.glob(path.name + "*")))
    rows = [execute(url, f"SELECT * FROM {table}") for table, _ in SEALED]
    return b" ".join(
        bytes(cell) if isinstance(cell, bytes) else str(cell).encode()
        for table in rows
        for row in table
        for cell in row
    )


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


def test_nothing_of_a_value_can_be_read_in_the_database(url: str) -> None:
    with Saver(url) as saver:
        fill(saver)
        assert SECRET.encode() in everything(url)  # the test can see it
        saver.delete_thread("t")
    if url.startswith("sqlite"):
        execute(url, "VACUUM")
        execute(url, "PRAGMA wal_checkpoint(TRUNCATE)")
    with Saver(url, encryption_keys=NEW) as saver:
        fill(saver)
        found = everything(url)
        assert SECRET.encode() not in found
        assert (70368744177664).to_bytes(8, "big") not in found
        assert not re.search(rb"update(?!d)", found)  # but for the names of columns and indexes
        assert values_of(saver)["small"] == SECRET
        assert [t.metadata["who"] for t in saver.list(None, filter={"who": SECRET})] == [SECRET]  # type: ignore[typeddict-item]


@pytest.mark.parametrize(("table", "column"), SEALED)
def test_a_row_in_plaintext_is_refused_when_keys_are_set(url: str, table: str, column: str) -> None:
    with Saver(url) as saver:
        fill(saver)
    plain = execute(url, f"SELECT {column} FROM {table}")
    with Saver(url, encryption_keys=NEW) as saver:
        with pytest.raises(WrongKey, match=r"thread 't'.*not encrypted.*plaintext is refused"):
            saver.get_tuple(config())
        saver.delete_thread("t")
        fill(saver)
        assert values_of(saver)["small"] == SECRET
    rewrite(url, table, column, lambda _: bytes(plain[0][0]))
    with (
        Saver(url, encryption_keys=NEW) as saver,
        pytest.raises(WrongKey, match="plaintext is refused"),
    ):
        saver.get_tuple(config())
