"""now, random and uuid are the same when a node runs again."""

from __future__ import annotations

import uuid
from datetime import datetime

import perdure
from tests.support.waiters import (
    DAY,
    HOUR,
    Log,
    begin,
    chain,
    drive,
    healthy,
    log_of,
    named,
    only_wait,
)

Read = tuple[datetime, float, uuid.UUID]


def read() -> Read:
    return perdure.now(), perdure.random(), perdure.uuid()


class Reader:
    """A node that reads before and after it waits, and remembers what it got each time."""

    def __init__(self, *, failures: int = 0, waits: int = 0) -> None:
        self.__name__ = "reads"
        self.failures, self.waits = failures, waits
        self.got: list[list[Read]] = []

    def __call__(self, state: Log) -> Log:
        reads: list[Read] = []
        self.got.append(reads)
        reads.append(read())
        for n in range(self.waits):
            perdure.ask(n)
            reads.append(read())
        if self.failures:
            self.failures -= 1
            raise OSError("not yet")
        reads.append(read())
        return {"log": reads}

    def is_steady(self) -> bool:
        longest = max(self.got, key=len)
        return all(longest[: len(some)] == some for some in self.got)


async def test_reads_are_the_same_after_a_wait_in_the_node(url: str) -> None:
    async with healthy(url) as rt:
        node = Reader(waits=2)
        run = await begin(rt, chain(node))
        for _ in range(2):
            rt.clock.advance(DAY)
            await rt.answer((await only_wait(rt, run)).id, None)
            await drive(rt)
        assert len(node.got) == 3
        assert node.is_steady()
        times = [at for at, _, _ in await log_of(rt, run)]
        assert [at - times[0] for at in times] == [0 * DAY, DAY, 2 * DAY, 2 * DAY]


async def test_reads_are_the_same_for_another_process(url: str) -> None:
    """What another runtime read and then lost is what this one reads."""
    dead, alive = Reader(failures=99), Reader()
    async with healthy(url) as rt:
        await begin(rt, chain(named("before", lambda state: {}), dead))
        rt.clock.advance(HOUR)
        async with healthy(url, clock=rt.clock) as other:
            other.register(chain(named("before", lambda state: {}), alive), name="g")
            await drive(other)
            [run] = await other.runs()
            assert (await log_of(other, run))[0] == dead.got[0][0]
