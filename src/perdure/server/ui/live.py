"""Live updates: one poll of the journal per process, for all open tabs.

While at least one tab follows, one task polls once a second for followed runs that changed and for
the newest runs and questions: a few indexed reads for any number of tabs and runs. A tab learns
only which runs changed, and renders those that it shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from perdure.commands.streams import Glance, glance, new_ids

INTERVAL = 1.0
"""Seconds between two polls, unless the database is polled less often."""
MOST_RUNS = 1000
"""Maximum number of runs that one tab follows."""


@dataclass(frozen=True)
class Change:
    """What changed since the last poll."""

    changed: frozenset[str] = frozenset()
    """Followed runs that changed, or were deleted."""
    new_runs: tuple[str, ...] = ()
    """New runs, oldest first."""
    new_questions: tuple[str, ...] = ()
    """The ids of new questions, oldest first."""
    asking_runs: frozenset[str] = frozenset()
    """The runs that asked them."""
    at: float = field(default=0.0, compare=False)
    """When it was seen, by the monotonic clock: what was read before may be older."""

    def __bool__(self) -> bool:
        return bool(self.changed or self.new_runs or self.new_questions)

    @property
    def questions(self) -> bool:
        """Whether new questions were asked."""
        return bool(self.new_questions)

    def joined(self, later: Change) -> Change:
        """This change and a later one as one."""
        return Change(
            self.changed | later.changed,
            self.new_runs + later.new_runs,
            self.new_questions + later.new_questions,
            self.asking_runs | later.asking_runs,
            max(self.at, later.at),
        )

    def within(self, run_ids: frozenset[str]) -> Change:
        """The part that concerns a tab following these runs."""
        return replace(self, changed=self.changed & run_ids)


@dataclass(eq=False)
class Follower:
    """One tab. Changes that it has not consumed yet are merged.

    async with live.follow(run_ids) as changes:
        async for change in changes:
            ...
    """

    feed: LiveFeed
    run_ids: frozenset[str]
    _waiting: Change = field(default_factory=Change)
    _has_some: asyncio.Event = field(default_factory=asyncio.Event)

    def give(self, change: Change) -> None:
        if seen := change.within(self.run_ids):
            self._waiting = self._waiting.joined(seen)
            self._has_some.set()

    async def __aenter__(self) -> AsyncIterator[Change]:
        """Once this returns, no change is missed. For what happened since the page was rendered,
        all its runs count as changed."""
        self.feed.add(self)
        try:
            await self.feed.has_looked()
        except BaseException:
            self.feed.remove(self)
            raise
        self.give(Change(self.run_ids, at=time.monotonic()))
        return self._changes()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.feed.remove(self)

    async def _changes(self) -> AsyncIterator[Change]:
        while True:
            await self._has_some.wait()
            self._has_some.clear()
            change, self._waiting = self._waiting, Change()
            yield change


class LiveFeed:
    """The followers in one server process, and the task that polls for them."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal
        self._followers: set[Follower] = set()
        self._followed: Counter[str] = Counter()
        self._looking: asyncio.Task[None] | None = None
        self._has_looked = asyncio.Event()

    def follow(self, run_ids: Iterable[str] = ()) -> Follower:
        """Follow these runs, and what is new."""
        return Follower(self, frozenset(list(run_ids)[:MOST_RUNS]))

    def add(self, follower: Follower) -> None:
        self._followers.add(follower)
        self._followed.update(follower.run_ids)
        if self._looking is None or self._looking.done():
            self._has_looked = asyncio.Event()
            self._looking = asyncio.get_running_loop().create_task(self._look(self._has_looked))

    async def has_looked(self) -> None:
        """Wait for the first poll; later ones see what has changed since then."""
        await self._has_looked.wait()

    def remove(self, follower: Follower) -> None:
        self._followers.discard(follower)
        self._followed.subtract(follower.run_ids)
        self._followed = +self._followed
        if not self._followers and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self, has_looked: asyncio.Event) -> None:
        before: Glance | None = None
        while True:
            with contextlib.suppress(Exception):  # its next request says what is wrong
                now: Glance = await self._journal.ado(glance(self._followed))
                if before is not None:
                    self._give(_difference(before, now))
                before = now
            has_looked.set()
            await asyncio.sleep(max(INTERVAL, self._journal.capabilities.poll))

    def _give(self, change: Change) -> None:
        if change:
            for follower in list(self._followers):
                follower.give(change)


def _difference(before: Glance, now: Glance) -> Change:
    """What one poll saw that the previous one did not."""
    both = before.versions.keys() & now.versions.keys()
    changed = {id for id in both if before.versions[id] != now.versions[id]}
    changed |= now.versions.keys() ^ before.versions.keys()  # followed since, or deleted
    asked = new_ids(before.questions, now.questions)
    return Change(
        frozenset(changed),
        tuple(new_ids(before.runs, now.runs)),
        tuple(asked),
        frozenset(now.asking[id] for id in asked),
        time.monotonic(),
    )
