"""A damaged row is named, and damages no other."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perdure import Runtime
from perdure.errors import UNREADABLE, NotFound
from perdure.types import State
from tests.support import sealed_journal
from tests.support.commands import commands_at
from tests.support.raw import config
from tests.support.sealed_journal import CALLS, KEYS, ROWS, opened
from tests.support.sweep import parts, sample

MODES = {"encrypted": KEYS, "checksum": None}


PARTS = 8


OTHERS = {"abe", "cyd", "dan", "eve", "eve waits", "fay", "fox", "gus", "gus waits"}


class Damage(NamedTuple):
    """One value of one row, and what is stored in its place."""

    table: str
    rowid: str
    column: str
    value: Any

    def __str__(self) -> str:
        return f"{self.table}.{self.column} = {self.value!r:.60} where {self.rowid}"


@pytest.fixture(scope="module", params=MODES)
def journal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    keys = MODES[request.param]
    path = tmp_path_factory.mktemp("sealed") / "journal.db"
    sealed_journal.fill(path, keys)
    return path, keys


def _damages(path: Path) -> Iterator[Damage]:
    """A flipped bit of each byte of each column of a row, then values of other types.

    The row is one of thread `ben`, if the table has one, and never one of `cyd`.
    """
    with closing(sqlite3.connect(path)) as db:
        for table in ROWS:
            columns = [(one[1], one[3]) for one in db.execute(f"PRAGMA table_info({table})")]
            names = [name for name, _ in columns]
            where = (
                "thread_id <> 'cyd' ORDER BY thread_id <> 'ben'" if "thread_id" in names else "1"
            )
            for row in db.execute(f"SELECT * FROM {table} WHERE {where} LIMIT 1").fetchall():
                keys = [
                    f"{name} = {value!r}"
                    for name, value in zip(names, row, strict=True)
                    if isinstance(value, (str, int)) and "'" not in str(value)
                ]
                place = " AND ".join(keys)
                for (name, not_null), value in zip(columns, row, strict=True):
                    for other in _others(value, bool(not_null)):
                        yield Damage(table, place, name, other)


def _others(value: Any, not_null: int) -> Iterator[Any]:
    match value:
        case int():
            for byte in range(8):
                yield value ^ (1 << (9 * byte) % 63)
            yield from (-1 - value, "not a number", b"\x00\xff", 1.5, float("inf"))
        case float():
            yield from (-value, 1e308, float("inf"), "not a number", b"\x00", 7)
        case str():
            data = value.encode()
            for at in range(len(data)):
                yield _Text(bytes([*data[:at], data[at] ^ (1 << at % 8), *data[at + 1 :]]))
            yield from ("", "x" * 5000, data, _Text(b"\xff\xfe"), 2**63 - 1)
        case bytes():
            for at in range(len(value)):
                yield bytes([*value[:at], value[at] ^ (1 << at % 8), *value[at + 1 :]])
            yield from (b"", value[:-1], value + b"\x00", value.hex(), 5, 1.5)
        case None:
            yield from ("text", b"blob", 5, -1)
    if not not_null and value is not None:
        yield None


class _Text(bytes):
    """Bytes that are stored as a text, whether or not they are one."""


def _apply(path: Path, damage: Damage) -> bool:
    """Store the damage. False: the database does not take it."""
    cast = "CAST(? AS TEXT)" if isinstance(damage.value, _Text) else "?"
    value = bytes(damage.value) if isinstance(damage.value, _Text) else damage.value
    sql = f"UPDATE {damage.table} SET {damage.column} = {cast} WHERE {damage.rowid}"
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TRIGGER IF EXISTS perdure_events_stay")
        try:
            with db:
                return db.execute(sql, (value,)).rowcount == 1
        except sqlite3.IntegrityError:
            return False


async def _read_everything(rt: Runtime) -> set[str]:
    """Everything that can be listed, as a desk or an export does. Gives the threads seen."""
    seen = set()
    runs = await rt.runs(limit=1000)
    for run in runs:
        seen.add(run.thread_id)
        try:
            await rt.get(run.id)
            await rt.events(run.id)
            await rt.wait_history(run.id)
            await rt.effects(run.id)
            await rt.scores(run.id)
        except NotFound:  # its id is not a text any more
            assert run.damaged
    await rt.effects()
    await rt.messages()
    await rt.schedules()
    await rt.doctor()
    return seen | {f"{wait.thread_id} waits" for wait in await rt.waits()}


async def _survives(path: Path, keys: dict[str, bytes] | None) -> None:
    CALLS.clear()
    async with opened(path, keys) as rt:
        assert await _read_everything(rt) >= OTHERS | {"cyd waits"}
        await rt.tick()
        assert CALLS == []
        [wait] = await rt.waits(thread_id="cyd", kind="human")
        await rt.answer(wait.id, "yes")
        await rt.tick()
        [cyd] = await rt.runs(thread_id="cyd")
        assert cyd.state is State.DONE
        assert CALLS == [("send", "cyd")]
        for thread in ("ada", "ben"):
            try:
                list(rt.saver.list(config(thread)))
                rt.saver.get_tuple(config(thread))
            except UNREADABLE:
                pass
        assert await _read_everything(rt) >= OTHERS


@pytest.mark.slow
@pytest.mark.parametrize("part", parts(PARTS))
async def test_a_damaged_row_is_never_executed_and_hides_no_other(
    journal: tuple[Path, dict[str, bytes] | None], tmp_path: Path, part: int
) -> None:
    template, keys = journal
    every = list(_damages(template))
    chosen = sample(every, 30)[part :: len(parts(PARTS))]
    tried = 0
    for damage in chosen:
        path = Path(shutil.copy(template, tmp_path / "journal.db"))
        if not _apply(path, damage):
            continue
        tried += 1
        try:
            await _survives(path, keys)
        except Exception as error:
            raise AssertionError(f"{damage}: {error!r}") from error
        finally:
            for file in tmp_path.glob("journal.db*"):
                file.unlink()
    assert tried > len(chosen) // 2
    print(f"{tried} damages of {len(every)} tried")


BEN = "thread_id = 'ben'"


LISTED = {
    "runs": ("perdure_runs", "setup", BEN),
    "waits": ("perdure_waits", "body", BEN),
    "effects": ("perdure_effects", "arguments", BEN),
    "events": ("perdure_events", "body", f"{BEN} AND n = 3"),
    "scores": ("perdure_scores", "body", "thread_id = 'ada'"),
    "schedules": ("perdure_schedules", "body", "name = 'daily'"),
    "messages": ("perdure_outbox", "body", "thread_id = 'ada'"),
}


async def _listings(rt: Runtime) -> dict[str, list[Any]]:
    runs = await rt.runs(limit=1000)
    return {
        "runs": runs,
        "waits": await rt.waits(),
        "effects": await rt.effects(),
        "messages": await rt.messages(),
        "schedules": await rt.schedules(),
        "events": [event for run in runs for event in await rt.events(run.id)],
        "scores": [score for run in runs for score in await rt.scores(run.id)],
    }


@pytest.mark.parametrize("forged", ["a text", b"\x03"], ids=repr)
@pytest.mark.parametrize("listing", LISTED)
async def test_a_damaged_row_is_listed_as_damaged_among_the_others(
    journal: tuple[Path, dict[str, bytes] | None], tmp_path: Path, listing: str, forged: Any
) -> None:
    path, keys = Path(shutil.copy(journal[0], tmp_path)), journal[1]
    async with opened(path, keys) as rt:
        before = await _listings(rt)
    assert not any(one.damaged for found in before.values() for one in found)
    table, column, where = LISTED[listing]
    assert _apply(path, Damage(table, where, column, forged))
    async with opened(path, keys) as rt:
        after = await _listings(rt)
    for name, found in after.items():
        assert len(found) == len(before[name])
        damaged = [one for one in found if one.damaged]
        assert len(damaged) == (name == listing)
        assert all(re.search("is damaged|cannot be opened", one.damaged) for one in damaged)


def test_the_commands_show_a_damaged_row_and_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal.db"
    sealed_journal.fill(path, None)
    for table, column, where in LISTED.values():
        assert _apply(path, Damage(table, where, column, "a text"))
    with closing(sqlite3.connect(path)) as db:
        [[ben]] = db.execute("SELECT id FROM perdure_runs WHERE thread_id = 'ben'")
    run = commands_at(capsys, f"sqlite:///{path}")
    assert "is damaged" in (inbox := run("inbox").done.out)
    assert "cyd" in inbox
    assert "is damaged" in run("show", ben).done.out
    assert "is damaged" in run("show", ben, "--events").done.out
    assert "is damaged" in run("effects", "--run", ben).done.out
    assert "is damaged" in run("schedules").done.out
    assert [one["run"]["thread_id"] for one in run("export").done.json if one["run"]["damaged"]]
    assert len(run("export").done.json) == len(run("runs").done.out.splitlines()) - 1
    assert run("doctor").code == 0
