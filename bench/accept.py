"""Time to accept a run: from `start` to its return, when the run is on disk."""

import asyncio
from time import perf_counter

import perdure
from bench.engines import Dbos, Engine, Perdure, client
from bench.hands import QUEUE
from bench.report import Series, Table, millis, times
from bench.rounds import Bench

CROWD = 50


def accept(bench: Bench) -> list[Table]:
    count = bench.pick(300, 50)
    field: list[Engine] = bench.field(
        Perdure("sqlite"), Dbos("sqlite"), Perdure("postgres"), Dbos("postgres")
    )
    crowded = Series()

    def trial(who: Engine, url: str, thread: str) -> float:
        who.prepare(url)
        how = _perdure if isinstance(who, Perdure) else _dbos
        alone, together = asyncio.run(how(url, count))
        crowded.add(who.name, together)
        return alone

    alone = bench.interleave("accept", field, bench.pick(7, 1), trial)
    rows = [
        [
            _short(who),
            times(alone.ratio(who.name, _rival(who).name)),
            millis(alone.median(who.name)),
            times(crowded.ratio(who.name, _rival(who).name)),
            millis(crowded.median(who.name)),
        ]
        for who in field
    ]
    head = ["", "× DBOS", "one after another", f"× DBOS, {CROWD} at once", f"{CROWD} at once"]
    return [Table(head, rows)]


async def _perdure(url: str, count: int) -> tuple[float, float]:
    async with perdure.Runtime(url) as runtime:
        input = {"n": 0, "until": 1}
        await runtime.start("noop", input)
        start = perf_counter()
        for _ in range(count):
            await runtime.start("noop", input)
        alone = perf_counter() - start
        start = perf_counter()
        for _ in range(0, count, CROWD):
            await asyncio.gather(*(runtime.start("noop", input) for _ in range(CROWD)))
        return alone / count, (perf_counter() - start) / count


async def _dbos(url: str, count: int) -> tuple[float, float]:
    with client(url) as dbos:
        options = {"queue_name": QUEUE, "workflow_name": "noop"}
        dbos.enqueue(options, 1)
        start = perf_counter()
        for _ in range(count):
            dbos.enqueue(options, 1)
        alone = perf_counter() - start
        start = perf_counter()
        for _ in range(0, count, CROWD):
            await asyncio.gather(*(dbos.enqueue_async(options, 1) for _ in range(CROWD)))
        return alone / count, (perf_counter() - start) / count


def _rival(who: Engine) -> Engine:
    assert who.database is not None
    return Dbos(who.database)


def _short(who: Engine) -> str:
    return who.name.partition(",")[0]
