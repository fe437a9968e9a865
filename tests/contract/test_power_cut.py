"""What was acknowledged is on disk when the power goes."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Saver
from perdure.types import Durability
from tests.support.crash_child import Told, converse, open_saver
from tests.support.disk import Disk, Event, SqliteOutOfReach, surviving
from tests.support.sweep import examples

pytestmark = pytest.mark.slow


CUTS = examples(200, 80)


SEED = 4711


@pytest.fixture
def disk() -> Iterator[Disk]:
    try:
        disk = Disk.install()
    except SqliteOutOfReach as reason:
        pytest.skip(str(reason))
    yield disk
    disk.uninstall()


class Marks(Told):
    """Acknowledgements go into the log of the disk, at the moment they are made."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(None)
        self.disk, self.thread = disk, ""

    def __call__(self, *fact: Any) -> None:
        self.disk.mark(json.dumps([self.thread, *fact]))


def record(disk: Disk, path: Path, mode: Durability, query: str = "") -> list[Event]:
    """The log of conversations on several threads, with WAL checkpoints among them."""
    disk.record(True)
    saver = open_saver(f"sqlite:///{path}{query}", mode)
    writer = saver.journal._backend.open()._writer  # type: ignore[attr-defined]
    writer.execute("PRAGMA wal_autocheckpoint = 20")
    saver.told = marks = Marks(disk)
    for n in range(3):
        marks.thread = f"thread-{n}"
        converse(saver, marks.thread, marks)
    saver.journal.close()
    disk.record(False)
    synced = Counter(event.kind for event in disk.log if event.path == str(path))["sync"]
    assert query or synced > 3, "there were WAL checkpoints"
    return list(disk.log)


def verdict(path: Path, marks: list[str]) -> str:
    """'kept' or 'lost'; anything worse fails the test."""
    if not path.exists() or not path.stat().st_size:
        return "lost" if marks else "kept"
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()
    saver = Saver(f"sqlite:///{path}?synchronous=normal")  # a throw-away copy
    found = {}
    for one in saver.list(None):  # loads each of them whole, or raises Damaged
        place = one.config["configurable"]
        found[place["thread_id"], place["checkpoint_ns"], place["checkpoint_id"]] = one
    for (thread, ns, _), one in found.items():
        if one.parent_config is not None:
            parent = one.parent_config["configurable"]["checkpoint_id"]
            assert (thread, ns, parent) in found, "a checkpoint without its parent"
    saver.close()
    for mark in marks:
        thread, kind, *fact = json.loads(mark)
        ns, id = ("", fact[0]) if kind == "returned" else fact
        if (thread, ns, id) not in found:
            return "lost"
        if kind == "returned" and fact[1]:
            writes = found[thread, ns, id].pending_writes or ()
            waits = [write for write in writes if write[1] == "__interrupt__"]
            if not waits:
                return "lost"
    return "kept"


def verdicts(log: list[Event], tmp_path: Path) -> Counter[str]:
    """The verdicts of many random cuts, each with its own seed, named if it is not good."""
    counts: Counter[str] = Counter()
    for seed in range(SEED, SEED + CUTS):
        rng = random.Random(seed)
        cut = rng.randrange(len(log) + 1)
        after = tmp_path / "after"
        marks = surviving(log, cut, rng, after)
        try:
            outcome = verdict(after / "a.db", marks)
        except BaseException:
            print(f"seed {seed}, cut {cut} of {len(log)}, {len(marks)} marks")
            raise
        counts[outcome] += 1
        shutil.rmtree(after)
    return counts


@pytest.mark.parametrize("mode", ["sync", "auto", "exit"])
def test_nothing_acknowledged_is_lost_when_power_is(
    disk: Disk, tmp_path: Path, mode: Durability
) -> None:
    (tmp_path / "disk").mkdir()
    log = record(disk, tmp_path / "disk" / "a.db", mode)
    disk.uninstall()
    assert verdicts(log, tmp_path) == {"kept": CUTS}


def test_with_normal_sync_acknowledged_work_is_lost_so_this_test_can_fail(
    disk: Disk, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    log = record(disk, tmp_path / "disk" / "a.db", "sync", "?synchronous=normal")
    disk.uninstall()
    assert verdicts(log, tmp_path)["lost"] > CUTS // 10
