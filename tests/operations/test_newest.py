"""Lists that walk over the newest runs: each row once, newest run first, in pieces."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import perdure
from perdure.operations import newest
from perdure.operations.newest import EffectPosition, ScorePosition
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


async def effects(rt: TemporaryRuntime, count: int) -> list[tuple[str, str | None]]:
    """All effects, read in pieces of so many rows: their runs and states."""
    found: list[tuple[str, str | None]] = []
    behind = EffectPosition()
    while True:
        page = await rt.journal.ado(newest.recent_effects(behind, count))
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
        whole = await effects(rt, 100)
        assert [run for run, _ in whole] == [third, first, first, first]
        assert len({key for _, key in whole}) == 4
        for count in (2, 3, 5):
            assert await effects(rt, count) == whole


async def scores(rt: TemporaryRuntime, count: int) -> list[tuple[str, str, Any]]:
    found: list[tuple[str, str, Any]] = []
    behind = ScorePosition()
    while True:
        read = newest.recent_scores(behind, count)
        page = await rt.journal.ado(read)
        assert len(page) <= count
        found += [
            (one.run_id, one.score.name, one.score.value or one.score.label)
            for one in page
            if one.score
        ]
        if len(page) < count:
            return found
        behind = page[-1].position


async def test_scores_are_listed_once_newest_run_first_in_pieces_of_any_size(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(busy), name="busy")
        first = await begin(rt)
        rt.clock.advance(timedelta(seconds=1))
        await begin(rt)
        rt.clock.advance(timedelta(seconds=1))
        third = await begin(rt)
        await rt.score(first, "tone", "formal", by="ana")
        await rt.score(first, "replied", 1, about="touch-1")
        await rt.score(first, "replied", 1, about="touch-2")
        await rt.score(third, "length", 3)
        expected = [
            (third, "length", 3.0),
            (first, "replied", 1.0),
            (first, "replied", 1.0),
            (first, "tone", "formal"),
        ]
        for count in (2, 3, 100):
            assert await scores(rt, count) == expected
