"""What Cloudflare D1 is asked for: requests, rows and bytes, beside the public saver for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, Literal

from langgraph_checkpoint_cloudflare_d1 import AsyncCloudflareD1Saver, CloudflareD1Saver

import perdure
from bench.agents import Saver, growing_loop, on, texts
from bench.contenders import aready, asettle, ready, settle
from bench.d1_meter import Meter, Used
from bench.hands import effects, graphs, sleeper
from bench.report import Table, times
from bench.rounds import Bench, say
from perdure.testing import d1 as testing
from perdure.testing.d1 import Workerd, find_node, local_d1

DUE = 25

START = "start of a run"
NOTHING_DUE = "tick, nothing due"
ALONE = "tick with one run of 1 step"
STEP = "… each further step"
EFFECT = "… each further effect"
TOGETHER = f"{DUE} runs of 3 steps in one tick, per run"
IDLE = "worker, idle, per minute"

SETTLING = 3
"""Seconds after which a worker that finds nothing has slowed down."""


@dataclass(frozen=True, slots=True)
class Way:
    """One saver on one database."""

    name: str
    open: Callable[[], AbstractContextManager[Saver]]
    aopen: Callable[[], AbstractAsyncContextManager[Saver]]
    durability: Literal["sync", "async"]


def d1(bench: Bench) -> list[Table]:
    if missing := _missing():
        say(f"d1   not measured: {missing}")
        return []
    steps, rounds = bench.pick(50, 10), bench.pick(7, 2)
    watched = bench.pick(60, 5)
    with local_d1(databases=8) as server, Meter(server) as meter:
        beside = _beside(_ways(server, meter), meter, steps)
        used = asyncio.run(_runtime(meter.through(server.url(6)), meter, rounds, watched))
    return [_beside_table(beside), _runtime_table(used), _prices(used)]


def _missing() -> str:
    """Why it cannot be measured here, if so."""
    try:
        testing._miniflare()
        find_node()
    except RuntimeError as error:
        return str(error)
    return ""


# Beside the public saver.


def _ways(server: Workerd, meter: Meter) -> list[Way]:
    return [
        _public(server, meter, 0),
        _perdure("perdure `sync`", meter.through(server.url(1)), "sync"),
        _perdure("perdure `auto`", meter.through(server.url(2)), "async"),
    ]


PUBLIC = "public saver"


def _public(server: Workerd, meter: Meter, database: int) -> Way:
    named = ("A", f"DB{database}", server.secret)

    def moved(saver: Any) -> Any:
        near = f"http://127.0.0.1:{meter.port}"
        saver.base_url = saver.base_url.replace("https://api.cloudflare.com", near)
        return saver

    @contextmanager
    def opened() -> Iterator[Saver]:
        yield moved(CloudflareD1Saver(*named))

    @asynccontextmanager
    async def aopened() -> AsyncIterator[Saver]:
        async with AsyncCloudflareD1Saver.from_connection_params(*named) as saver:
            yield moved(saver)

    return Way(PUBLIC, opened, aopened, "sync")


def _perdure(name: str, url: str, durability: Literal["sync", "async"]) -> Way:
    def ours() -> Any:
        return perdure.Saver(url, durability="sync" if durability == "sync" else "auto")

    return Way(name, ours, ours, durability)


def _beside(ways: list[Way], meter: Meter, steps: int) -> dict[tuple[str, str], Used]:
    """What one step costs each of them, by the blocking and the asynchronous methods."""
    found = {}
    for way in ways:
        found[way.name, "sync API"] = _loop(way, meter, steps).times(1 / steps)
        found[way.name, "async API"] = asyncio.run(_aloop(way, meter, steps)).times(1 / steps)
        for api in ("sync API", "async API"):
            say(f"d1   {way.name}, {api}: {found[way.name, api].requests:.2f} requests per step")
    return found


def _loop(way: Way, meter: Meter, steps: int) -> Used:
    begin = {"n": 0, "until": steps, "log": []}
    with way.open() as saver:
        graph = growing_loop(saver, texts(steps))
        ready(saver)
        before = meter.used
        graph.invoke(begin, on("blocking", steps=steps), durability=way.durability)
        settle(saver)
        used = meter.used - before
    with way.open() as saver:
        found = saver.get_tuple(on("blocking"))
        assert found is not None
        assert found.checkpoint["channel_values"]["log"] == texts(steps), f"{way.name} lost steps"
    return used


async def _aloop(way: Way, meter: Meter, steps: int) -> Used:
    begin = {"n": 0, "until": steps, "log": []}
    async with way.aopen() as saver:
        graph = growing_loop(saver, texts(steps))
        await aready(saver)
        before = meter.used
        await graph.ainvoke(begin, on("awaited", steps=steps), durability=way.durability)
        await asettle(saver)
        used = meter.used - before
        found = await saver.aget_tuple(on("awaited"))
        assert found is not None
        assert found.checkpoint["channel_values"]["log"] == texts(steps), f"{way.name} lost steps"
    return used


def _beside_table(found: dict[tuple[str, str], Used]) -> Table:
    rows = [
        [
            f"{name}, {api}",
            times(used.requests / found[PUBLIC, api].requests),
            *_figures(used, digits=2),
        ]
        for (name, api), used in found.items()
    ]
    return Table(["", "× requests", *HEAD], rows, "Per super-step, next to the public saver")


HEAD = ["requests", "rows read", "rows written", "KB sent", "KB received"]


def _figures(used: Used, digits: int = 1) -> list[str]:
    kilobytes = [used.sent / 1000, used.received / 1000]
    return [
        f"{used.requests:.2f}",
        *(f"{rows:,.{digits}f}" for rows in (used.read, used.written)),
        *(f"{size:.2f}" for size in kilobytes),
    ]


def _runtime_table(found: dict[str, Used]) -> Table:
    rows = [[name, *_figures(used)] for name, used in found.items()]
    return Table(["", *HEAD], rows, "The runtime")


# The runtime.


async def _runtime(url: str, meter: Meter, rounds: int, watched: int) -> dict[str, Used]:
    """What each of them costs, by name."""
    async with perdure.Runtime(url) as runtime:
        for name, graph in {**graphs(), **effects(), "sleeper": sleeper()}.items():
            runtime.register(graph, name=name)
            await runtime.start(name, {"n": 0, "until": 1})
        await runtime.tick()
        measure = _Measure(runtime, meter, rounds)
        used = await measure.alone()
        used |= {TOGETHER: await measure.together(), NOTHING_DUE: await measure.tick()}
        return used | {IDLE: await measure.idle(watched)}


class _Measure:
    """One runtime, which works in this process, and the meter it is seen through."""

    def __init__(self, runtime: perdure.Runtime, meter: Meter, rounds: int) -> None:
        self._runtime, self._meter, self._rounds = runtime, meter, rounds

    async def alone(self) -> dict[str, Used]:
        """A run by itself in its tick."""
        run = {
            (graph, n): await self.tick((graph, n))
            for graph in ("steps", "effects", "effects-unkeyed")
            for n in (1, 10)
        }
        further = {
            graph: (run[graph, 10] - run[graph, 1]).times(1 / 9)
            for graph in ("steps", "effects", "effects-unkeyed")
        }
        return {
            START: await self._start(),
            ALONE: run["steps", 1],
            STEP: further["steps"],
            f"{ALONE}, 1 effect": run["effects", 1],
            EFFECT: further["effects"],
            f"{EFFECT} that does not ask for its key": further["effects-unkeyed"],
            "tick with one run, which goes to sleep": await self.tick(("sleeper", 1)),
        }

    async def together(self) -> Used:
        """A run among others in its tick."""
        return (await self.tick(*[("steps", 3)] * DUE)).times(1 / DUE)

    async def idle(self, seconds: int) -> Used:
        """A minute of a worker that has nothing to do."""
        work = asyncio.create_task(self._runtime.work(handle_signals=False))
        await asyncio.sleep(SETTLING)
        before = self._meter.used
        await asyncio.sleep(seconds)
        used = self._meter.used - before
        work.cancel()
        await asyncio.wait([work])
        say(f"d1   worker, idle: {used.requests / seconds:.2f} requests per second")
        return used.times(60 / seconds)

    async def tick(self, *runs: tuple[str, int]) -> Used:
        """A tick in which these runs are due: their graph, and how far it goes."""
        found = []
        for _ in range(self._rounds):
            await asyncio.gather(
                *(self._runtime.start(graph, {"n": 0, "until": until}) for graph, until in runs)
            )
            before = self._meter.used
            counts = await self._runtime.tick()
            found.append(self._meter.used - before)
            assert counts.claimed == len(runs), f"a tick drove {counts.claimed} of {len(runs)} runs"
        what = f"{len(runs)} of {runs[0]}" if runs else "nothing"
        used = _median(found)
        say(f"d1   tick, due: {what}: {used.requests:.1f} requests")
        return used

    async def _start(self) -> Used:
        found = []
        for _ in range(self._rounds):
            before = self._meter.used
            await self._runtime.start("steps", {"n": 0, "until": 1})
            found.append(self._meter.used - before)
        await self._runtime.tick()
        return _median(found)


def _median(found: list[Used]) -> Used:
    """Each figure by itself."""
    return Used(*(median(getattr(one, f.name) for one in found) for f in fields(Used)))


# Cloudflare's published prices.

REQUESTS, READ, WRITTEN = 0.30, 0.001, 1.00
"""Dollars per million: requests to a Worker, rows read, rows written."""
INCLUDED = Used(requests=10e6, read=25e9, written=50e6)
"""In a month of the paid plan."""
MINUTES = 30 * 24 * 60


def _prices(used: Mapping[str, Used]) -> Table:
    million = 1e6
    bills = {
        "a month of ticks, one a minute, nothing due": used[NOTHING_DUE].times(MINUTES),
        "a month of one idle worker": used[IDLE].times(MINUTES),
        "a million runs of 1 step, each alone": (used[START] + used[ALONE]).times(million),
        "a million runs of 3 steps, 25 to a tick": (used[START] + used[TOGETHER]).times(million),
        "a million further steps, alone": used[STEP].times(million),
        "a million further effects, alone": used[EFFECT].times(million),
    }
    head = ["", "requests", "rows read", "rows written", "of the included amount", "at list price"]
    rows = [
        [
            what,
            *(f"{n / million:,.2f} M" for n in (bill.requests, bill.read, bill.written)),
            f"{_share(bill):.1%}",
            f"${_dollars(bill):,.2f}",
        ]
        for what, bill in bills.items()
    ]
    return Table(head, rows, "At Cloudflare's published prices")


def _share(bill: Used) -> float:
    """Of the included amount that is used up first."""
    return max(
        bill.requests / INCLUDED.requests,
        bill.read / INCLUDED.read,
        bill.written / INCLUDED.written,
    )


def _dollars(bill: Used) -> float:
    """As if nothing were included."""
    return (bill.requests * REQUESTS + bill.read * READ + bill.written * WRITTEN) / 1e6
