"""The world outside: a file to which things that happened are appended, line by line.

No crash of a process takes a line back. What kind of far side it is decides what counts as twice:
`keyed` knows an order by its key, and does it once; every other kind does each order that it gets.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple


class Event(NamedTuple):
    """Something that happened."""

    kind: str
    """`keyed`, `asked` (it can be asked with the key), `held`, `delivered`, `tried`."""
    what: str
    key: str


class World:
    """The file. `events` is what happened so far."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def happen(self, kind: str, what: str, key: str) -> None:
        """Do something. It has happened as soon as the line is written."""
        line = json.dumps(Event(kind, what, key)).encode() + b"\n"
        file = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        try:
            os.write(file, line)
            os.fsync(file)
        finally:
            os.close(file)

    def events(self) -> list[Event]:
        if not self.path.exists():
            return []
        return [Event(*json.loads(line)) for line in self.path.read_text().splitlines()]

    def knows(self, key: str) -> bool:
        """Whether something happened under this key."""
        return any(event.key == key for event in self.events() if event.kind != "tried")


_here: World | None = None


def enter(path: str | Path) -> World:
    """The world of this process from now on."""
    global _here
    _here = World(path)
    return _here


def here() -> World:
    assert _here is not None, "this process has entered no world"
    return _here
