"""Which record is a call's own.

A call finds its record by task and name: first one with equal arguments, so that parallel calls
(gather, a ToolNode) find their own in any order; then, for calls a node makes one after the other,
the one at the same position, so that a model that words its arguments differently gets the recorded
outcome. For parallel calls the order says nothing: new arguments make a new record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from perdure.effects.call_position import CallPosition
from perdure.errors import BadArgument
from perdure.operations.effects import EffectRow
from perdure.types import EffectState


class TaskRecords:
    """The effect records of one task, and those the calls of each attempt at it have matched."""

    def __init__(self, *, is_loaded: bool = False) -> None:
        self.is_loaded = is_loaded
        self._rows: dict[str, dict[int, EffectRow]] = {}  # by name and number
        self._matched: dict[tuple[int, str], set[int]] = {}  # numbers, by attempt and name
        self._instances: dict[tuple[int, str, str], Any] = {}  # by attempt, name and digest
        self._lock = threading.Lock()

    def load(self, rows: Iterable[EffectRow]) -> None:
        """Add what is stored, once."""
        with self._lock:
            if not self.is_loaded:
                self.is_loaded = True
                for row in rows:
                    self._rows.setdefault(row.name, {})[row.n] = row

    def remember(self, row: EffectRow) -> None:
        """Keep the newest version of a row, for the next attempt at this task."""
        if row.task:
            with self._lock:
                self._rows.setdefault(row.name, {})[row.n] = row

    def release(self, row: EffectRow, position: CallPosition) -> None:
        """Let the next call of the same attempt match the record of a call that was withdrawn."""
        with self._lock:
            self._matched.get((position.attempt, row.name), set()).discard(row.n)

    def match_record(
        self,
        name: str,
        digest: str,
        has_same_arguments: Callable[[EffectRow], bool],
        position: CallPosition,
        *,
        match_open: bool,
    ) -> tuple[int, EffectRow | None]:
        """The number of a call, and its record if it has one.

        `match_open`: an interrupted call holds its run, so the next call matches it, whatever its
        arguments, rather than risk a second call.
        """
        with self._lock:
            rows = self._rows.setdefault(name, {})
            if position.number is not None:
                return position.number, rows.get(position.number)
            self._check_instance(name, digest, position)
            matched = self._matched.setdefault((position.attempt, name), set())
            free = sorted(rows.keys() - matched)
            n = next((n for n in free if rows[n].digest == digest), None)
            if n is None:
                n = next((n for n in free if has_same_arguments(rows[n])), None)
            if n is None and free and position.is_in_turn():
                n = len(matched) if len(matched) in free else free[0]
            if n is None and match_open:
                n = next((n for n in free if rows[n].state == EffectState.OPEN), None)
            if n is None:
                n = len(matched)
                while n in rows or n in matched:
                    n += 1
            matched.add(n)
            return n, rows.get(n)

    def _check_instance(self, name: str, digest: str, position: CallPosition) -> None:
        call = (position.attempt, name, digest)
        instance = self._instances.setdefault(call, position.instance)
        if instance is not position.instance and not position.is_in_turn():
            raise BadArgument(
                f"{name} is called in parallel on two objects with equal arguments: after a crash "
                "the calls could not be told apart. Give it an argument, or a key=, that differs."
            )
