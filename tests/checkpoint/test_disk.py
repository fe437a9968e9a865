"""The power-cut simulator is worth its name only if it can fail: these tests show that SQLite loses
what it may lose, and nothing else. perdure's own promises are tested elsewhere, with this tool."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.disk import VFS, Disk, Event, SqliteOutOfReach, surviving

pytestmark = pytest.mark.slow

SEED = 20250
CUTS = 250
COMMITS = 40


@pytest.fixture
def disk() -> Iterator[Disk]:
    try:
        disk = Disk.install(default=False)
    except SqliteOutOfReach as reason:
        pytest.skip(str(reason))
    yield disk
    disk.uninstall()


def connect(path: Path, **pragmas: object) -> sqlite3.Connection:
    db = sqlite3.connect(f"file:{path}?vfs={VFS}", uri=True, isolation_level=None)
    for name, value in pragmas.items():
        db.execute(f"PRAGMA {name} = {value}")
    return db


def commit(db: sqlite3.Connection, disk: Disk, numbers: range) -> None:
    """Each commit touches several pages, so that half of one would show, and is then marked."""
    for n in numbers:
        with db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("CREATE TABLE IF NOT EXISTS entry (n INTEGER PRIMARY KEY, body BLOB)")
            db.execute("CREATE TABLE IF NOT EXISTS latest (n)")
            db.execute("INSERT INTO entry VALUES (?, ?)", (n, bytes([n % 256]) * (700 * (n % 9))))
            db.execute("DELETE FROM latest")
            db.execute("INSERT INTO latest VALUES (?)", (n,))
        disk.mark(str(n))


def record(
    disk: Disk, path: Path, *, checkpoint_every: int | None = None, **pragmas: object
) -> list[Event]:
    """The log of a new database with COMMITS commits, until its connection is closed."""
    path.parent.mkdir(exist_ok=True)
    disk.record(True)
    db = connect(path, **pragmas)
    for start in range(0, COMMITS, checkpoint_every or COMMITS):
        commit(db, disk, range(start, min(COMMITS, start + (checkpoint_every or COMMITS))))
        if checkpoint_every:
            mode = ("PASSIVE", "FULL", "RESTART", "TRUNCATE")[start // checkpoint_every % 4]
            db.execute(f"PRAGMA wal_checkpoint({mode})")
    db.close()
    disk.record(False)
    return list(disk.log)


def verdict(directory: Path, marks: Sequence[str]) -> str:
    """'kept', 'lost' (a whole number of marked commits is gone) or 'corrupt'."""
    db = sqlite3.connect(directory / "a.db", isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = OFF")  # a throw-away copy need not reach the disk
        if db.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            return "corrupt"
        if not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            return "lost" if marks else "kept"
        found = db.execute("SELECT n, body FROM entry ORDER BY n").fetchall()
        latest = db.execute("SELECT n FROM latest").fetchall()
    except sqlite3.DatabaseError:
        return "corrupt"
    finally:
        db.close()
    whole = [(n, bytes([n % 256]) * (700 * (n % 9))) for n in range(len(found))]
    if found != whole or latest != [(len(found) - 1,)]:
        return "corrupt"
    return "kept" if len(found) >= len(marks) else "lost"


def verdicts(log: list[Event], tmp_path: Path, cuts: int = CUTS) -> Counter[str]:
    """The verdicts of many random cuts, each with its own seed, named if the test fails."""
    counts: Counter[str] = Counter()
    for seed in range(SEED, SEED + cuts):
        rng = random.Random(seed)
        cut = rng.randrange(len(log) + 1)
        after = tmp_path / "after"
        marks = surviving(log, cut, rng, after)
        outcome = verdict(after, marks)
        counts[outcome] += 1
        if outcome != "kept" and counts[outcome] == 1:
            print(f"{outcome}: seed {seed}, cut {cut} of {len(log)}, {len(marks)} marks")
        shutil.rmtree(after)
    print(dict(counts))
    return counts


@pytest.mark.parametrize("checkpoint_every", [None, 3])
def test_a_wal_with_full_sync_loses_nothing_that_was_marked(
    disk: Disk, tmp_path: Path, checkpoint_every: int | None
) -> None:
    log = record(
        disk,
        tmp_path / "a.db",
        checkpoint_every=checkpoint_every,
        journal_mode="WAL",
        synchronous="FULL",
    )
    assert verdicts(log, tmp_path) == {"kept": CUTS}


@pytest.mark.parametrize("checkpoint_every", [None, 3])
def test_a_wal_with_normal_sync_loses_marked_commits_but_is_never_corrupt(
    disk: Disk, tmp_path: Path, checkpoint_every: int | None
) -> None:
    log = record(
        disk,
        tmp_path / "a.db",
        checkpoint_every=checkpoint_every,
        journal_mode="WAL",
        synchronous="NORMAL",
    )
    counts = verdicts(log, tmp_path)
    assert counts["lost"] > CUTS // 10
    assert counts["corrupt"] == 0


def test_without_sync_a_checkpoint_corrupts_the_database(disk: Disk, tmp_path: Path) -> None:
    log = record(disk, tmp_path / "a.db", checkpoint_every=3, journal_mode="WAL", synchronous="OFF")
    counts = verdicts(log, tmp_path)
    assert counts["corrupt"] > CUTS // 10
    assert counts["lost"] > 0
