"""What a disk may hold after power was lost: pure functions over a log of file events.

The log comes from `tests.support.disk.Disk`; nothing here touches SQLite.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

SECTOR = 512  # the unit a disk writes as a whole

# How likely a write without a sync is (kept, lost, torn). Drawn per file, so that a cut may well
# keep all of the database and nothing of its WAL.
_MOODS = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1), (8, 1, 1))


class Event(NamedTuple):
    """One thing that happened to a file, or a mark."""

    kind: Literal["write", "truncate", "sync", "delete", "mark"]
    path: str  # of a mark: its label
    offset: int = 0  # where a write begins; of a truncate: the new length
    data: bytes = b""
    durable: bool = False  # of a delete: SQLite had the directory synced as well


def surviving(log: Sequence[Event], cut: int, rng: random.Random, into: Path) -> list[str]:
    """Build in the directory `into` what a disk may hold when power is lost after `cut` events, and
    return the labels marked until then.

    - What a file was given before its last sync is there.
    - Each later write is kept, lost or torn at sectors, in any combination; each later truncate
      happened or not. A torn write may grow the file: what did not arrive reads as zeros.
    - A delete happened or not, unless the directory was synced with it. An undone delete brings the
      old file back; old and new content under one name never mix.
    - A new file's name is durable once the file was synced, and with it all deletes before it in
      that directory. (SQLite syncs the directory with a new journal or WAL; for a new database
      file we trust the file system to do so, as ext4, XFS, btrfs and APFS do.)
    - The `-shm` file is never there: it is memory.

    Files keep their places relative to their common directory. The same log, cut and `rng` state
    give the same files. Raises FileExistsError when `into` holds something already: an old WAL
    beside a new database would prove nothing.
    """
    into.mkdir(parents=True, exist_ok=True)
    if any(into.iterdir()):
        raise FileExistsError(f"{into} is not empty; give surviving() a fresh directory")
    files: dict[str, _File] = {}
    for event in log[:cut]:
        if event.kind != "mark":
            _happen(files, event)
    top = os.path.commonpath([os.path.dirname(e.path) for e in log if e.kind != "mark"] or ["/"])
    for path, file in files.items():
        if (content := file.after_power_loss(rng)) is not None:
            target = into / os.path.relpath(path, top)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    return [event.path for event in log[:cut] if event.kind == "mark"]


class _File:
    """A name in a directory: what is durable under it, and what happened since. Each inner list of
    `lives` belongs to one file under that name: a delete begins the next."""

    def __init__(self) -> None:
        self.durable: bytearray | None = None
        self.lives: list[list[Event]] = [[]]

    def forget_deleted(self) -> None:
        if len(self.lives) > 1:
            self.durable, self.lives = None, self.lives[-1:]

    def after_power_loss(self, rng: random.Random) -> bytearray | None:
        life = rng.randrange(len(self.lives))
        content = self.durable if life == 0 else None
        if content is None and (not self.lives[life] or rng.random() < 0.5):
            return None  # deleted, or its creation never reached the disk
        content = bytearray(content or b"")
        mood = rng.choice(_MOODS)
        for event in self.lives[life]:
            fate = rng.choices(("kept", "lost", "torn"), mood)[0]
            if fate == "kept":
                _apply(content, event)
            elif fate == "torn" and event.kind == "write":
                _grow(content, event.offset + len(event.data))
                for part in _sectors(event):
                    if rng.random() < 0.5:
                        _apply(content, part)
        return content


def _happen(files: dict[str, _File], event: Event) -> None:
    file = files.setdefault(event.path, _File())
    if event.kind == "delete":
        file.lives.append([])
        if event.durable:
            file.forget_deleted()
    elif event.kind == "sync":
        file.forget_deleted()
        if file.durable is None:
            file.durable = bytearray()
            for path, other in files.items():
                if os.path.dirname(path) == os.path.dirname(event.path):
                    other.forget_deleted()
        for pending in file.lives[0]:
            _apply(file.durable, pending)
        file.lives = [[]]
    else:
        file.lives[-1].append(event)


def _apply(content: bytearray, event: Event) -> None:
    _grow(content, event.offset)
    if event.kind == "truncate":
        del content[event.offset :]
    else:
        content[event.offset : event.offset + len(event.data)] = event.data


def _grow(content: bytearray, size: int) -> None:
    content.extend(bytes(max(0, size - len(content))))


def _sectors(event: Event) -> Iterator[Event]:
    at, end = event.offset, event.offset + len(event.data)
    while at < end:
        until = min(end, at - at % SECTOR + SECTOR)
        data = event.data[at - event.offset : until - event.offset]
        yield Event("write", event.path, at, data)
        at = until
