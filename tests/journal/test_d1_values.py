"""Values on their way to D1 and back: exact, of any size, and gone with their row."""

from __future__ import annotations

import random
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import BadArgument
from perdure.journal import d1_values, sqlite
from perdure.journal.d1_values import CHUNK, INLINE, bind, blobs, quoted, unquoted
from perdure.journal.migrate import migrate
from perdure.journal.sql import has_rows, positional, render, tokens


@pytest.fixture
def empty() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as database:
        migrate(lambda sql: database.execute(sql).fetchall(), sqlite.FRAGMENTS)
        for statement in d1_values.schema():
            database.execute(statement)
        yield database


# -- binding


def test_every_statement_gives_as_many_columns_quoted_as_it_does_plain(
    empty: sqlite3.Connection,
) -> None:
    for name, sql in render(sqlite.FRAGMENTS).items():
        if has_rows(sql):
            _, names = positional(sql)
            params = {**dict.fromkeys(names, 1), "names": "[]", "run_id": ""}
            plain = empty.execute(sql, params).description
            columns = [column[0] for column in empty.execute(quoted(sql), params).description]
            assert columns == [f"c{n}" for n in range(len(plain))], name


def test_no_statement_gives_rows_of_a_second_select_that_are_not_quoted() -> None:
    compound = {
        name
        for name, sql in render(sqlite.FRAGMENTS).items()
        if any(one.text == "UNION" and not one.depth for one in tokens(sql))
    }
    assert compound == {"is_due"}, "its only column is a number, which stays one"


@given(
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(-1e290, 1e290).filter(lambda x: x == 0 or abs(x) > 1e-290)  # SQLite's own limits
    | st.binary()
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
)
def test_any_value_comes_back_as_it_was(value: Any) -> None:
    sql, params = bind("SELECT quote(?)", [value])
    sent = [one.hex() if isinstance(one, bytes) else one for one in params]
    assert all(one is None or isinstance(one, (str, float)) or abs(one) < 2**53 for one in sent)
    with closing(sqlite3.connect(":memory:")) as database:
        database.create_function("unhex", 1, bytes.fromhex)  # SQLite 3.41 has its own
        [[cell]] = database.execute(sql, sent)
    back = unquoted(cell)
    assert (back, type(back)) == (value, type(value))


def test_marks_in_texts_names_and_comments_are_not_parameters() -> None:
    sql = """SELECT '?', "a?b", [c?], `d?`, :x -- ? :y\n, /* ? :z */ :x, @y, a$x /* ?"""
    text, values = bind(sql, {"x": b"1", "y": 2**60})
    assert text == (
        """SELECT '?', "a?b", [c?], `d?`, unhex(?1) -- ? :y\n, """
        """/* ? :z */ unhex(?1), (+CAST(?2 AS INTEGER)), a$x /* ?"""
    )
    assert values == [b"1", str(2**60)]


def test_parameters_are_numbered_as_sqlite_does() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        for sql in (
            "SELECT ?, ?",
            "SELECT ?2, ?1",
            "SELECT ?1, ?",
            "SELECT ?2, ?1, ?",
            "SELECT ?3",
        ):
            values = ["a", "b", "c"][: 3 if "3" in sql or sql.count("?") == 3 else 2]
            assert database.execute(*bind(sql, values)).fetchall() == (
                database.execute(sql, values).fetchall()
            )


def test_a_parameter_that_d1_cannot_take_is_refused_with_its_name() -> None:
    with pytest.raises(BadArgument, match=r"parameter :b of 'SELECT :a, :b'"):
        bind("SELECT :a, :b", {"a": 1})
    with pytest.raises(BadArgument, match="parameter number 2"):
        bind("SELECT ?, ?", [1])
    with pytest.raises(BadArgument, match="3 parameters for the 1"):
        bind("SELECT ?", [1, 2, 3])
    with pytest.raises(BadArgument, match="not object"):
        bind("SELECT ?", [object()])
    with pytest.raises(BadArgument, match="inf"):
        bind("SELECT ?", [float("inf")])
    with pytest.raises(OverflowError, match="64 bits"):
        bind("SELECT ?", [2**63])


# -- large values


def test_every_blob_of_the_schema_can_be_split(empty: sqlite3.Connection) -> None:
    found = empty.execute(
        "SELECT t.name, c.name FROM sqlite_master AS t JOIN pragma_table_info(t.name) AS c "
        "WHERE c.type = 'BLOB' AND t.type = 'table' AND t.name <> 'perdure_chunks'"
    )
    assert {*found} == {(table, one) for table, columns in blobs().items() for one in columns}


def noise(size: int, seed: int = 1) -> bytes:
    return b"\x01" + random.Random(seed).randbytes(size - 1)


def signal(body: bytes, id: str = "s", key: str | None = None) -> dict[str, Any]:
    return {"thread_id": "t", "signal_id": id, "name": "n", "key": key, "now": 1, "body": body}


class Small:
    """A SQLite that stores blobs as D1 does."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        self.sql = render(sqlite.FRAGMENTS)

    def run(self, name: str, params: dict[str, Any]) -> list[Any]:
        stored = d1_values.store(params)
        for call in stored.before:
            self.database.execute(*call)
        rows = self.database.execute(self.sql[name], stored.params).fetchall()
        for call in stored.after:
            self.database.execute(*call)
        [found] = d1_values.load([rows], self.read, last=True)
        return found

    def read(self, calls: Any) -> list[Any]:
        return [self.database.execute(*call).fetchall() for call in calls]

    def bodies(self) -> list[bytes]:
        rows = self.database.execute("SELECT body FROM perdure_signals ORDER BY id").fetchall()
        [found] = d1_values.load([rows], self.read, last=True)
        return [row[0] for row in found]

    def chunks(self) -> list[tuple[int, int]]:
        return self.database.execute("SELECT n, uses FROM perdure_chunks ORDER BY id, n").fetchall()


@pytest.fixture
def small(empty: sqlite3.Connection) -> Small:
    return Small(empty)


@pytest.mark.parametrize(
    ("blob", "chunks"),
    [
        (noise(INLINE), 0),
        (noise(INLINE + 1), 1),
        (b"\x01" + b"same " * 1_000_000, 0),
        (noise(CHUNK), 1),
        (noise(CHUNK + 1), 2),
        (noise(3 * CHUNK), 3),
    ],
    ids=["as it is", "compressed is no less", "compressed", "one chunk", "two", "three"],
)
def test_a_blob_of_any_size_comes_back(small: Small, blob: bytes, chunks: int) -> None:
    small.run("insert_signal", signal(blob))
    assert small.bodies() == [blob]
    assert small.chunks() == [(n, 1) for n in range(chunks)]
    [[longest]] = small.database.execute("SELECT max(length(body)) FROM perdure_signals").fetchall()
    assert longest <= INLINE


def test_chunks_of_a_row_that_was_not_stored_are_dropped(small: Small) -> None:
    small.run("insert_signal", signal(noise(CHUNK), key="k"))
    small.run("insert_signal", signal(noise(CHUNK, seed=2), id="other", key="k"))
    assert small.chunks() == [(0, 1)]
    assert small.bodies() == [noise(CHUNK)]


def test_two_rows_with_the_same_blob_share_its_chunks_until_the_last_is_gone(small: Small) -> None:
    for id in ("a", "b"):
        small.run("insert_signal", signal(noise(CHUNK), id=id))
    assert small.chunks() == [(0, 2)]
    small.database.execute("DELETE FROM perdure_signals WHERE id = 'a'")
    assert (small.chunks(), small.bodies()) == ([(0, 1)], [noise(CHUNK)])
    small.database.execute("DELETE FROM perdure_signals")
    assert small.chunks() == []


def test_hosts_whose_zlib_makes_different_data_of_a_blob_do_not_mix_chunks(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = b"\x01" + random.Random(1).randbytes(2 * CHUNK).translate(bytes(range(16)) * 16)
    compress = zlib.compress
    for id, level in (("a", 0), ("b", 1), ("c", 9)):
        monkeypatch.setattr(zlib, "compress", lambda blob, _, level=level: compress(blob, level))
        small.run("insert_signal", signal(half, id=id))
    assert small.bodies() == [half] * 3
    small.database.execute("DELETE FROM perdure_signals WHERE id <> 'b'")
    assert small.bodies() == [half]
    small.database.execute("DELETE FROM perdure_signals")
    assert small.chunks() == []


def test_a_blob_in_the_place_of_another_takes_its_chunks_away(small: Small) -> None:
    def put(state: bytes) -> None:
        names = ("base", "base_step", "lease_of", "parent_id", "run_id")
        place = {"thread_id": "t", "ns": "", "id": "c", "step": 1, "created_at": 1, "refs": "[]"}
        small.run("insert_checkpoint", {**dict.fromkeys(names), **place, "state": state})

    for blob, chunks in [(noise(CHUNK), 1), (noise(2 * CHUNK, seed=2), 2), (b"\x01small", 0)]:
        put(blob)
        put(blob)
        assert small.chunks() == [(n, 1) for n in range(chunks)]
    put(noise(CHUNK))
    small.run("delete_state", {"thread_id": "t", "only": None, "id": None})
    assert small.chunks() == []


def test_a_damaged_chunk_is_not_taken_for_the_blob(small: Small) -> None:
    small.run("insert_signal", signal(noise(2 * CHUNK)))
    small.database.execute("DELETE FROM perdure_chunks WHERE n = 1")
    [body] = small.bodies()
    assert body[0] == 0xF1  # which no envelope opens
    small.database.execute("UPDATE perdure_signals SET body = X'F0010203'")
    [body] = small.bodies()
    assert body == bytes.fromhex("F0010203")
    cut = b"\xf0" + zlib.compress(noise(1000))[:-100]
    small.database.execute("UPDATE perdure_signals SET body = ?", (cut,))
    assert small.bodies() == [cut]


def test_an_exported_database_is_a_plain_sqlite_journal(small: Small, tmp_path: Path) -> None:
    blobs = {"a": noise(3 * CHUNK), "b": b"\x01" + b"same " * 1_000_000, "c": b"\x01small"}
    for id, blob in blobs.items():
        small.run("insert_signal", signal(blob, id=id))
    small.database.commit()
    path = tmp_path / "export.db"
    with closing(sqlite3.connect(path)) as copy:
        small.database.backup(copy)
    journal = sqlite.SQLite(str(path))
    try:
        with closing(sqlite3.connect(path)) as plain:
            found = dict(plain.execute("SELECT id, body FROM perdure_signals").fetchall())
            left = plain.execute(
                "SELECT name FROM sqlite_master WHERE type = 'trigger' OR name = 'perdure_chunks'"
            ).fetchall()
    finally:
        journal.close()
    assert (found, left) == (blobs, [("perdure_events_stay",)])
