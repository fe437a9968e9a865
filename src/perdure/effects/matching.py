"""Which record is a call's own, and where in its task the call is made.

A call finds its record by task and name: first one with equal arguments, so that parallel calls
(gather, a ToolNode) find their own in any order; then, for calls a node makes one after the other,
the one with the most equal arguments, and of several the one at the same position, so that a model
that words its arguments differently gets the recorded outcome. Calls of a ToolNode, of `gather` and
of threads that the node starts may come in any order when it runs again: new arguments make a new
record.

A match with other arguments is provisional. If a later call of the same attempt has more arguments
in common with the record, the calls come in another order than before (a set, in a process with
another hash seed). Then the attempt is abandoned, and from now on (`min_equal`, on disk) a record
of this name matches only calls with more equal arguments than the one that wrongly matched it. Each
abandoned attempt raises `min_equal`, so there are at most as many repetitions as arguments.

A call that is made for the first time after a provisional match may have arguments that come from a
wrong outcome: it is unconfirmed. If the attempt is abandoned and a new call of that name equals
none that was made, it may be the unconfirmed one with its right arguments: a person decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from perdure.commands.effects import EffectRow, Unconfirmed
from perdure.errors import BadArgument
from perdure.langgraph_port import call_stack, task_interrupts
from perdure.types import EffectState


def configurable() -> dict[str, Any]:
    """The `configurable` of the node this is called in, or nothing."""
    if "langgraph" not in sys.modules:
        return {}
    from langgraph.config import get_config

    try:
        return get_config().get("configurable") or {}
    except RuntimeError:
        return {}


class CallPosition:
    """How a call came about: the attempt at its task, and whether its turn identifies it."""

    def __init__(
        self, attempt: int, *, is_parallel: bool | None = None, instance: Any = None
    ) -> None:
        """`is_parallel`: whether other calls may come before it, if the caller knows. `instance`:
        the object whose method is called."""
        self.attempt, self.instance = attempt, instance
        self._counter = task_interrupts.interrupt_counter(configurable())
        self._caller: asyncio.Task[Any] | None = None
        if is_parallel is None:
            with contextlib.suppress(RuntimeError):
                self._caller = asyncio.current_task()
            is_parallel = call_stack.is_parallel_call(self._caller is None)
        self._is_parallel = is_parallel

    def interrupts_so_far(self) -> int:
        """How many interrupts the task has come to."""
        return task_interrupts.interrupts_so_far(self._counter)

    def skip_interrupts(self, count: int) -> None:
        """Count the interrupts of a recorded call, which does not come to them again."""
        if self._counter is not None:
            for _ in range(count):
                self._counter()

    def is_in_turn(self) -> bool:
        """Whether the node itself calls, and not something it runs in parallel."""
        if self._is_parallel or self._caller is None:
            return not self._is_parallel
        return call_stack.is_of_node(self._caller)


ALL = 1 << 30
"""The count of equal arguments if none differs."""


class Match(NamedTuple):
    """What a call found.

    Attributes:
        n: Its number in the task.
        row: Its record, if it has one.
        min_equal: Set if the record is its own and another call of this attempt matched it: how
            many arguments must be equal from now on.
        equal: How many of its arguments equal the recorded ones.
        unconfirmed: Whether this attempt had a provisional match before.
        other: What may be this call, made with wrong arguments in an abandoned attempt.
    """

    n: int
    row: EffectRow | None
    min_equal: int = 0
    equal: int = ALL
    unconfirmed: bool = False
    other: EffectRow | None = None


class TaskRecords:
    """The effect records of one task, and those the calls of each attempt at it have matched."""

    def __init__(self) -> None:
        self.is_loaded = False
        self._rows: dict[str, dict[int, EffectRow]] = {}  # by name and number
        # By attempt and name: the numbers that are matched, and how many arguments were equal.
        self._matched: dict[tuple[int, str], dict[int, int]] = {}
        self._provisional: set[int] = set()  # attempts with a provisional match
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
            self._matched.get((position.attempt, row.name), {}).pop(row.n, None)

    def match_record(
        self,
        name: str,
        digest: str,
        equal_arguments: Callable[[EffectRow], int],
        position: CallPosition,
        *,
        match_open: bool,
        shares_withdrawn: bool,
    ) -> Match:
        """The record of a call. `equal_arguments` counts those it shares with a record, `ALL` if
        none differs; less than 0 if it cannot be one of this call.

        `match_open`: an interrupted call holds its run, so the next call matches it, whatever its
        arguments, rather than risk a second call. `shares_withdrawn`: the record of a call that
        raised is anybody's.
        """
        with self._lock:
            rows = self._rows.setdefault(name, {})
            self._check_instance(name, digest, position)
            matched = self._matched.setdefault((position.attempt, name), {})
            free = sorted(rows.keys() - matched.keys())
            equal = [n for n in free if rows[n].digest == digest]
            counts = {n: ALL if equal else equal_arguments(rows[n]) for n in equal or free}
            provisional = {n: count for n, count in matched.items() if count < ALL}
            if provisional and ALL not in counts.values():
                own = {n: equal_arguments(rows[n]) for n in provisional}
                wrong = self._find_wrong_match(provisional, own, counts, position)
                if wrong is not None:
                    return Match(wrong, rows[wrong], min_equal=matched[wrong] + 1)
            n = self._choose(rows, counts, len(matched), position)
            if n is None and match_open:
                n = next((n for n in free if rows[n].state == EffectState.OPEN), None)
            unconfirmed = position.attempt in self._provisional
            if n is None:
                other = self._find_unconfirmed(rows, free, digest, counts)
                n = len(matched)
                while n in rows or n in matched:
                    n += 1
                matched[n] = ALL
                return Match(n, None, unconfirmed=unconfirmed, other=other)
            withdrawn = shares_withdrawn and rows[n].state == EffectState.AGAIN
            matched[n] = ALL if withdrawn else counts[n]
            if matched[n] < ALL:
                self._provisional.add(position.attempt)
            return Match(n, rows[n], equal=matched[n], unconfirmed=unconfirmed)

    def _choose(
        self, rows: dict[int, EffectRow], counts: dict[int, int], turn: int, position: CallPosition
    ) -> int | None:
        """Of the free records the one with equal arguments; in turn, that with the most."""
        least = max((row.min_equal for row in rows.values()), default=0)
        most = max(counts.values(), default=-1)
        if most < least or (most < ALL and not position.is_in_turn()):
            return None
        best = [
            n
            for n, count in counts.items()
            if count == most and (most == ALL or not (rows[n].unconfirmed and self._order_changed))
        ]
        return turn if most < ALL and turn in best else next(iter(best), None)

    def _find_wrong_match(
        self,
        provisional: dict[int, int],
        own: dict[int, int],
        free: dict[int, int],
        position: CallPosition,
    ) -> int | None:
        """The provisional match that this call has more in common with than the call that has it,
        and than with any free record."""
        least = max(free.values(), default=-1)
        if not position.is_in_turn():
            least = ALL - 1
        claims = {n: count for n, count in own.items() if count > max(provisional[n], least)}
        return max(claims, key=lambda n: claims[n]) if claims else None

    @property
    def _order_changed(self) -> bool:
        """Whether an attempt was abandoned because of its order of calls."""
        return any(row.min_equal for rows in self._rows.values() for row in rows.values())

    def _find_unconfirmed(
        self, rows: dict[int, EffectRow], free: list[int], digest: str, counts: dict[int, int]
    ) -> EffectRow | None:
        """A record that may be of this call, made with wrong arguments in an abandoned attempt."""
        unconfirmed = [n for n in free if rows[n].unconfirmed == Unconfirmed.YES]
        if not unconfirmed or not self._order_changed:
            return None
        if any(digest in row.provisional_digests.split() for row in rows.values()):
            return None  # that attempt has made this very call
        return rows[max(unconfirmed, key=lambda n: counts.get(n, 0))]

    def _check_instance(self, name: str, digest: str, position: CallPosition) -> None:
        call = (position.attempt, name, digest)
        instance = self._instances.setdefault(call, position.instance)
        if instance is not position.instance and not position.is_in_turn():
            raise BadArgument(
                f"{name} is called in parallel on two objects with equal arguments: after a crash "
                "the calls could not be told apart. Give it an argument, or a key=, that differs."
            )
