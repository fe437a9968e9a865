"""A list of effects walks over the newest runs: each row once, newest run first, in pieces."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import perdure
from perdure.commands import effects
from perdure.commands.effects import EffectPosition
from perdure.testing import TemporaryRuntime
from tests.support.agents import Log, chain, opened


@perdure.effect
def send(to: str) -> str:
    return f"sent to {to}"


def busy(state: Log) -> Any:
    return {"log": [send(f"{name}") for name in state["log"]]}


async def begin(rt: TemporaryRuntime, *names: str) -> str:
    run = await rt.start("busy", {"log": list(names)})
    await rt.tick()
    return run.id


async def listed_effects(rt: TemporaryRuntime, count: int) -> list[tuple[str, str | None]]:
    """All effects, read in pieces of so many rows: their runs and states."""
    found: list[tuple[str, str | None]] = []
    behind = EffectPosition()
    while True:
        page = await rt.journal.ado(effects.newest(behind, count))
        assert len(page) <= count
        found += [(one.run_id, one.key) for one in page if one.key]
        if len(page) < count:
            return found
        behind = page[-1].position


async def test_effects_are_listed_once_newest_run_first_in_pieces_of_any_size(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(busy), name="busy")
        runs = []
        for names in (["ada", "bob", "cleo"], [], ["dan"], [], []):
            runs.append(await begin(rt, *names))
            rt.clock.advance(timedelta(seconds=1))
        [first, _, third, *_] = runs
        whole = await listed_effects(rt, 100)
        assert [run for run, _ in whole] == [third, first, first, first]
        assert len({key for _, key in whole}) == 4
        for count in (2, 3, 5):
            assert await listed_effects(rt, count) == whole
