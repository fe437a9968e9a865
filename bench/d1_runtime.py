"""What the runtime asks D1 for: a start, a step, an effect, a run, a tick, an idle worker."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from statistics import median

import perdure
from bench.d1_meter import Meter, Used
from bench.hands import effects, graphs, sleeper
from bench.rounds import say
from perdure.d1 import Client

ASLEEP = 10_000
DUE = 25

START = "start of a run"
NOTHING_DUE = "tick, nothing due"
NOTHING_DUE_CROWD = f"tick, nothing due, {ASLEEP:,} asleep"
ALONE = "tick with one run of 1 step"
STEP = "… each further step"
EFFECT = "… each further effect"
TOGETHER = f"{DUE} runs of 3 steps in one tick, per run"
TOGETHER_CROWD = f"{TOGETHER}, {ASLEEP:,} asleep"
IDLE = "worker, idle, per minute"

SETTLING = 3
"""Seconds after which a worker that finds nothing has slowed down."""


async def runtime(url: str, meter: Meter, rounds: int, watched: int) -> dict[str, Used]:
    """What each of them costs, by name."""
    async with perdure.Runtime(url) as runtime:
        for name, graph in {**graphs(), **effects(), "sleeper": sleeper()}.items():
            runtime.register(graph, name=name)
            await runtime.start(name, {"n": 0, "until": 1})
        await runtime.tick()
        measure = _Measure(runtime, meter, rounds)
        used = await measure.alone()
        used |= {TOGETHER: await measure.together(), NOTHING_DUE: await measure.tick()}
        await asyncio.to_thread(_copy_sleeper, url)
        used |= {TOGETHER_CROWD: await measure.together(), NOTHING_DUE_CROWD: await measure.tick()}
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


def _copy_sleeper(url: str) -> None:
    """Copy the row of a run that sleeps, a thousand at a time."""
    other = {
        "thread_id": "'thread-' || i",
        "id": "'sleeper-' || i",
        "due_at": "due_at + i",
        "created_at": "created_at + i",
        "change": "i",
    }
    client = Client(url)
    [rows] = client.batch([("PRAGMA table_info(perdure_runs)", ())], idempotent=True)
    columns = [row[1] for row in rows]
    picked = ", ".join(other.get(column, column) for column in columns)
    one = "(SELECT * FROM perdure_runs WHERE state = 'waiting' LIMIT 1) AS one"
    for first in range(0, ASLEEP, 1000):
        numbers = f"SELECT {first} AS i UNION ALL SELECT i + 1 FROM numbers WHERE i < {first + 999}"
        copy = (
            f"WITH RECURSIVE numbers AS ({numbers}) INSERT INTO perdure_runs "
            f"({', '.join(columns)}) SELECT {picked} FROM {one}, numbers"
        )
        client.batch([(copy, ())])
    client.close()
    say(f"d1   {ASLEEP:,} asleep")
