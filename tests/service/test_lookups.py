"""What operators look up, on each database: ids by their beginning, graphs that no worker has, runs
that a changed graph would hold."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.errors import BadArgument, NotFound
from perdure.operations.prefixes import resolve
from perdure.testing import Clock
from tests.support.agents import NOON, Log, chain, opened


@perdure.effect(unknown="hold")
def charge(amount: int) -> str:
    raise ConnectionError("no answer")


def ask(state: Log) -> Any:
    return {"log": [perdure.ask("?")]}


def pay(state: Log) -> Any:
    return {"log": [charge(1)]}


@pytest.mark.smoke
async def test_ids_are_found_by_their_beginning(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(ask), name="ask")
        rt.register(chain(pay), name="pay")
        asked, paid = await rt.start("ask", {"log": []}), await rt.start("pay", {"log": []})
        await rt.tick()
        [wait] = await rt.waits(run_id=asked.id)
        [effect] = await rt.effects(paid.id)
        for what, id in (("run", asked.id), ("wait", wait.id), ("effect", effect.key)):
            assert await rt.journal.arun(resolve(what, id)) == id
            assert await rt.journal.arun(resolve(what, id[:-1])) == id
            with pytest.raises(BadArgument, match="at least 4 characters"):
                await rt.journal.arun(resolve(what, id[:3]))
            with pytest.raises(NotFound, match=what):
                await rt.journal.arun(resolve(what, "zzzz"))
        with pytest.raises(BadArgument, match=rf"{asked.id} \(waiting run of ask, thread"):
            await rt.journal.arun(resolve("run", asked.id[:4]))


@pytest.mark.smoke
async def test_a_graph_that_no_worker_ever_drove_is_found(url: str) -> None:
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        rt.register(chain(ask), name="campaign")
        await rt.start("campaign", {"log": []})
        await rt.tick()
    async with perdure.Client(url, clock=clock) as client:
        plans = client.services.runs
        await client.start("campain")
        assert await client.journal.arun(plans.unknown_graphs()) == []  # not late yet
        clock.advance(timedelta(minutes=1))
        [unknown] = await client.journal.arun(plans.unknown_graphs())
        assert (unknown.graph, unknown.runs) == ("campain", 1)
        assert unknown.suggestion == " Did you mean 'campaign'?"
        assert await client.journal.arun(plans.is_misspelt("campaign", "")) is None
        assert await client.journal.arun(plans.is_misspelt("campain", "")) == unknown


@pytest.mark.smoke
async def test_runs_that_a_changed_graph_would_hold_are_found(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(("nap", ask)), name="g")
        runs = [await rt.start("g", {"log": []}) for _ in range(3)]
        await rt.tick()
    async with opened(url) as rt:
        rt.register(chain(("snooze", ask)), name="g")
        result = await rt.check()
        assert {one.run_id for one in result.lost} == {run.id for run in runs}
    async with opened(url) as rt:
        rt.register(chain(("snooze", ask)), name="g", renamed={"nap": "snooze"})
        assert (await rt.check()).lost == ()
