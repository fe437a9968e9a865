"""One damaged row hides no other, raises only perdure's own errors, and is never executed."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perdure import Runtime
from tests.support import sealed_journal
from tests.support.commands import commands_at
from tests.support.sealed_journal import KEYS, opened

MODES = {"encrypted": KEYS, "checksum": None}


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
