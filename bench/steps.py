"""Time per super-step: a one-node loop, each step appending 1 KB to a list."""

import asyncio
from time import perf_counter
from typing import Any

from bench.agents import growing_loop, on, texts
from bench.contenders import (
    Contender,
    aready,
    asettle,
    no_checkpointer,
    only_syncs,
    perdure,
    ready,
    settle,
    stock_postgres,
    stock_sqlite,
    stored_values,
    stores_nothing,
)
from bench.report import Series, Table, millis, times
from bench.rounds import Bench

CONTENDERS = (
    no_checkpointer(),
    stores_nothing(),
    only_syncs(),
    stock_sqlite("async"),
    stock_sqlite("sync"),
    stock_postgres("async"),
    stock_postgres("sync"),
    perdure("sqlite", "auto"),
    perdure("sqlite", "sync"),
    perdure("postgres", "auto"),
    perdure("postgres", "sync"),
)


def steps(bench: Bench) -> list[Table]:
    count, rounds = bench.pick(200, 50), bench.pick(7, 2)
    field = bench.field(*CONTENDERS)

    def trial(who: Contender, url: str, thread: str) -> float:
        took = loop(who, url, f"blocking-{thread}", count)
        _check(who, url, f"blocking-{thread}", count)
        return took / count

    def atrial(who: Contender, url: str, thread: str) -> float:
        took = asyncio.run(aloop(who, url, f"awaited-{thread}", count))
        _check(who, url, f"awaited-{thread}", count)
        return took / count

    blocking = bench.interleave("steps sync API", field, rounds, trial)
    awaited = bench.interleave("steps async API", field, rounds, atrial)
    return [_table("sync API", field, blocking), _table("async API", field, awaited)]


def loop(who: Contender, url: str, thread: str, steps: int) -> float:
    """Seconds for a whole loop through the sync API."""
    payloads = texts(steps)
    with who.open(url) as saver:
        graph = growing_loop(saver, payloads)
        ready(saver)
        start = perf_counter()
        graph.invoke(_begin(steps), on(thread, steps=steps), **who.told)
        settle(saver)
        return perf_counter() - start


async def aloop(who: Contender, url: str, thread: str, steps: int) -> float:
    """Seconds for a whole loop through the async API."""
    payloads = texts(steps)
    async with who.aopen(url) as saver:
        graph = growing_loop(saver, payloads)
        await aready(saver)
        start = perf_counter()
        await graph.ainvoke(_begin(steps), on(thread, steps=steps), **who.told)
        await asettle(saver)
        return perf_counter() - start


def _check(who: Contender, url: str, thread: str, steps: int) -> None:
    if who.database:
        log = stored_values(who, url, thread)["log"]
        assert log == texts(steps), f"{who.name} lost steps"


def _begin(steps: int) -> dict[str, Any]:
    return {"n": 0, "until": steps, "log": []}


def _table(title: str, field: list[Contender], found: Series) -> Table:
    stock = {"sqlite": "stock SQLite sync", "postgres": "stock PostgreSQL sync", None: ""}
    beside = {who.name: stock[who.database] for who in field}
    beside[only_syncs().name] = stock["sqlite"]
    rows = [
        [
            who.name,
            times(found.ratio(who.name, "no checkpointer")),
            times(found.ratio(who.name, beside[who.name])),
            millis(found.median(who.name)),
            found.spread(who.name),
        ]
        for who in field
    ]
    return Table(["", "× no checkpointer", "× stock", "per step", "spread"], rows, title)
