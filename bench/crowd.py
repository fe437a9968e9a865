"""Throughput of 50 threads at once in one process: super-steps per second, all together."""

import asyncio
from time import perf_counter

from bench.agents import Graph, fixed_loop, on, texts
from bench.contenders import (
    Contender,
    memory,
    no_checkpointer,
    perdure,
    stock_postgres,
    stock_sqlite,
    stores_nothing,
)
from bench.report import Bar, Section, Series, Table, times
from bench.rounds import Bench
from bench.savers import aready, asettle, stored_values
from bench.texts import TEXTS

_NONE, _SQLITE, _POSTGRES = "no checkpointer", "stock SQLite sync", "stock PostgreSQL pool sync"


def crowd(bench: Bench) -> Section:
    threads, steps = 50, bench.pick(20, 5)
    field = bench.field(
        no_checkpointer(),
        stores_nothing("sync"),
        memory("sync"),
        stock_sqlite("sync"),
        perdure("sqlite", "sync"),
        perdure("sqlite", "auto"),
        stock_postgres("sync", pool=True),
        perdure("postgres", "sync"),
        perdure("postgres", "auto"),
    )

    def trial(who: Contender, url: str, thread: str) -> float:
        names = [f"{thread}-{n}" for n in range(threads)]
        took = asyncio.run(_all_at_once(who, url, names, steps))
        _check(who, url, names, steps)
        return threads * steps / took

    found = bench.interleave("concurrent", field, bench.pick(7, 1), trial, unit="steps/s")
    table = Table(
        ["", "× stock", "× no checkpointer", "steps per second", "spread"], _rows(field, found)
    )
    return TEXTS["concurrent"].section([table], _bars(found), threads=threads, steps=steps)


async def _all_at_once(who: Contender, url: str, threads: list[str], steps: int) -> float:
    payloads = texts(16, 100)

    async def one(graph: Graph, name: str) -> None:
        await graph.ainvoke({"n": 0, "until": steps}, on(name, steps=steps), **who.told)

    async with who.aopen(url) as saver:
        graph = fixed_loop(saver, payloads)
        await aready(saver)
        start = perf_counter()
        await asyncio.gather(*(one(graph, thread) for thread in threads))
        await asettle(saver)
        return perf_counter() - start


def _check(who: Contender, url: str, threads: list[str], steps: int) -> None:
    for thread in threads if who.database else ():
        assert stored_values(who, url, thread)["n"] == steps, f"{who.name} lost steps"


def _rows(field: list[Contender], found: Series) -> list[list[str]]:
    stock = {"sqlite": _SQLITE, "postgres": _POSTGRES, None: ""}
    return [
        [
            who.name,
            times(found.ratio(who.name, stock[who.database])),
            times(found.ratio(who.name, _NONE)),
            f"{found.median(who.name):,.0f}",
            found.spread(who.name),
        ]
        for who in field
    ]


def _bars(found: Series) -> list[Bar]:
    return [
        Bar(
            f"throughput of 50 threads against stock, {ours}",
            limit,
            found.ratio(ours, stock),
            at_most=False,
        )
        for stock, limit, label in ((_SQLITE, 2.5, "SQLite"), (_POSTGRES, 3, "PostgreSQL"))
        for ours in (f"perdure {label} sync", f"perdure {label} auto")
    ]
