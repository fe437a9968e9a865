"""What operators look up, on each database: ids by their beginning, graphs that no worker has, runs
that a changed graph would hold."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.commands import run_reads, workers
from perdure.commands.runs import Joined, resolve
from perdure.errors import BadArgument, NotFound
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
        await client.start("campain")
        assert (
            await client.journal.arun(workers.unknown_graphs(client.engine)) == []
        )  # not late yet
        clock.advance(timedelta(minutes=1))
        [unknown] = await client.journal.arun(workers.unknown_graphs(client.engine))
        assert (unknown.graph, unknown.runs) == ("campain", 1)
        assert unknown.suggestion == " Did you mean 'campaign'?"
        assert (
            await client.journal.arun(workers.unknown_graph(client.engine, "campaign", "")) is None
        )
        assert (
            await client.journal.arun(workers.unknown_graph(client.engine, "campain", ""))
            == unknown
        )


async def test_a_graph_that_was_driven_before_a_long_queue_is_known(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.commands.workers.LOOKED_BACK", 3)
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        rt.register(chain(ask), name="campaign")
        await rt.start("campaign", {"log": []})
        await rt.tick()
        clock.advance(timedelta(minutes=1))
        for _ in range(5):  # and no worker is there
            await rt.start("campaign", {"log": []})
        clock.advance(timedelta(minutes=1))
        assert await rt.journal.arun(workers.unknown_graphs(rt.engine)) == []
        assert await rt.journal.arun(workers.unknown_graph(rt.engine, "campain", "")) is None
        await rt.tick(100)


@pytest.mark.smoke
async def test_the_runs_below_a_run_are_a_tree(url: str) -> None:
    async def plant(state: Log) -> Any:
        grown = await rt.start("branch", {"log": []})
        await rt.start("leaf", {"log": []})
        return {"log": [perdure.join(grown)]}

    async def grow(state: Log) -> Any:
        return {"log": [perdure.join(await rt.start("leaf", {"log": []}))]}

    async with opened(url) as rt:
        rt.register(chain(plant), name="trunk")
        rt.register(chain(grow), name="branch")
        rt.register(chain(ask), name="leaf")
        run = await rt.start("trunk", {"log": []})
        await rt.tick(100)

        async def below(limit: int = 100) -> list[tuple[str, str, Joined]]:
            found, _ = await rt.journal.arun(run_reads.descendants(rt.engine, run.id, 10, limit, 9))
            return [(one.run.graph, one.run.state.value, one.joined) for one in found]

        assert await below() == [
            ("branch", "waiting", Joined.WAITS),
            ("leaf", "waiting", Joined.NO),
            ("leaf", "waiting", Joined.WAITS),
        ]
        assert await below(2) == (await below())[:2]
        narrow = run_reads.descendants(rt.engine, run.id, 1, 100, 9)
        [oldest, grown], _ = await rt.journal.arun(narrow)
        assert (oldest.run.graph, oldest.siblings) == ("branch", 2)  # and one is left out
        assert (grown.run.parent_id, grown.siblings) == (oldest.run.id, 1)
        for wait in await rt.waits(kind="human"):
            await rt.answer(wait.id, "yes")
        await rt.tick(100)
        assert await below() == [
            ("branch", "done", Joined.YES),
            ("leaf", "done", Joined.NO),
            ("leaf", "done", Joined.YES),
        ]


async def test_a_long_line_of_descendants_is_cut(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(ask), name="ask")
        line = [(await rt.start("ask", {"log": []})).id for _ in range(4)]
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file, file:
            for parent, child in itertools.pairwise(line):
                file.execute("UPDATE perdure_runs SET parent_id = ? WHERE id = ?", [parent, child])
        for levels, is_cut in ((2, True), (3, True), (4, False)):
            below = run_reads.descendants(rt.engine, line[0], 10, 100, levels)
            found, is_found_cut = await rt.journal.arun(below)
            assert [one.run.id for one in found] == line[1 : levels + 1]
            assert is_found_cut == is_cut


async def test_a_run_that_is_its_own_ancestor_is_listed_once(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(ask), name="ask")
        one, other = await rt.start("ask", {"log": []}), await rt.start("ask", {"log": []})
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file, file:
            for child, parent in ((one.id, other.id), (other.id, one.id)):
                file.execute("UPDATE perdure_runs SET parent_id = ? WHERE id = ?", [parent, child])
        [found], _ = await rt.journal.arun(run_reads.descendants(rt.engine, one.id, 10, 100, 9))
        assert found.run.id == other.id
