"""What Cloudflare D1 is asked for: requests, rows and bytes, beside the public saver for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from typing import Any, Literal

from langgraph_checkpoint_cloudflare_d1 import AsyncCloudflareD1Saver, CloudflareD1Saver

import perdure
from bench.agents import Saver, growing_loop, on, texts
from bench.d1_meter import DISTANCE, Meter, Used, metered
from bench.d1_prices import PRICES, prices
from bench.d1_runtime import (
    ASLEEP,
    DUE,
    IDLE,
    NOTHING_DUE,
    NOTHING_DUE_CROWD,
    TOGETHER,
    TOGETHER_CROWD,
    runtime,
)
from bench.report import Bar, Section, Table, times
from bench.rounds import Bench, say
from bench.savers import aready, asettle, ready, settle
from bench.texts import TEXTS
from perdure.testing import d1 as testing
from perdure.testing.d1 import Workerd, local_d1
from perdure.testing.node import find_node


@dataclass(frozen=True, slots=True)
class Way:
    """One saver on one database."""

    name: str
    open: Callable[[], AbstractContextManager[Saver]]
    aopen: Callable[[], AbstractAsyncContextManager[Saver]]
    durability: Literal["sync", "async"]


def d1(bench: Bench) -> Section:
    if missing := _missing():
        say(f"d1   left out: {missing}")
        return Section(TEXTS["d1"].title, f"Not measured: {missing}", "", [])
    steps, rounds = bench.pick(50, 10), bench.pick(7, 2)
    watched = bench.pick(60, 5)
    with local_d1(databases=8) as server, metered(server.port) as meter:
        beside = _beside(_ways(server, meter), meter, steps)
        used = asyncio.run(runtime(meter.url(server.url(6)), meter, rounds, watched))
    return TEXTS["d1"].section(
        [_beside_table(beside), _runtime_table(used), prices(used)],
        [*_bars(beside), *_runtime_bars(used)],
        version=_version(),
        distance=round(DISTANCE * 1000),
        steps=steps,
        rounds=rounds,
        due=DUE,
        asleep=f"{ASLEEP:,}",
        watched=watched,
        prices=PRICES,
    )


def _missing() -> str:
    """Why it cannot be measured here, if so."""
    try:
        testing._miniflare()
        find_node()
    except RuntimeError as error:
        return str(error)
    return ""


def _version() -> str:
    package = testing._miniflare() / "node_modules" / "workerd" / "package.json"
    return str(json.loads(package.read_text())["version"])


# Beside the public saver.


def _ways(server: Workerd, meter: Meter) -> list[Way]:
    return [
        _public(server, meter, 0),
        _perdure("perdure `sync`", meter.url(server.url(1)), "sync"),
        _perdure("perdure `auto`", meter.url(server.url(2)), "async"),
    ]


PUBLIC = "public saver"
THIRD = 0.333


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


def _bars(found: dict[tuple[str, str], Used]) -> list[Bar]:
    return [
        Bar(
            f"requests per step on D1 against the public saver, {name}, {api}",
            THIRD,
            used.requests / found[PUBLIC, api].requests,
        )
        for (name, api), used in found.items()
        if name != PUBLIC
    ]


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


def _runtime_bars(found: dict[str, Used]) -> list[Bar]:
    none, crowd = found[NOTHING_DUE], found[NOTHING_DUE_CROWD]
    return [
        Bar("requests of a tick with nothing due on D1", 1, none.requests, unit=""),
        Bar(
            f"rows read by a tick with nothing due on D1, {ASLEEP:,} asleep against a few",
            1.0,
            crowd.read / none.read,
        ),
        Bar(
            f"rows read and written by {DUE} runs in a tick on D1, {ASLEEP:,} asleep against a few",
            1.1,
            _rows(found[TOGETHER_CROWD]) / _rows(found[TOGETHER]),
        ),
        Bar("requests of an idle worker on D1", 1, found[IDLE].requests / 60, unit="per second"),
    ]


def _rows(used: Used) -> float:
    return used.read + used.written
