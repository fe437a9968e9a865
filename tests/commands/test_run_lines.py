"""Lists of runs are read with what each run waits for, in a constant number of reads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import perdure
from perdure.commands import run_search
from perdure.commands.run_search import RunLine
from perdure.types import Run, State
from perdure.views.waiting_for import line_note
from tests.support.effects import Cut, Times
from tests.support.waiters import (
    DAY,
    MINUTE,
    asking,
    chain,
    drive,
    healthy,
    listening,
    side_by_side,
    sleeping,
)


async def lines(rt: Any) -> dict[str, RunLine]:
    found = await rt.runs(limit=100, output=False)
    read = await rt.journal.arun(run_search.lines_of(rt.engine, found))
    return {line.run.id: line for line in read}


async def begin(rt: Any, graph: Any) -> Run:
    """Start a run of a graph on a thread of its own, and drive it until it rests."""
    name = f"g{len(rt.graphs)}"
    rt.register(graph, name)
    run = await rt.start(name, {"log": []})
    await drive(rt)
    return await rt.get(run.id)  # type: ignore[no-any-return]


async def test_each_run_has_its_own_waits_turn_and_unknown_effects(url: str) -> None:
    cut = Times(1, Cut)

    @perdure.effect(unknown="hold")
    def charge() -> str:
        cut()
        return "charged"

    def pay(state: Any) -> Any:
        return {"log": [charge()]}

    async with healthy(url) as rt:
        asked = await begin(rt, chain(asking("Go?")))
        heard = await begin(rt, chain(listening("reply", timeout=2 * DAY)))
        asleep = await begin(rt, chain(sleeping(3 * DAY)))
        behind = await rt.start(asleep.graph, {"log": []}, thread_id=asleep.thread_id)
        held = await begin(rt, chain(pay))  # cut off in the call
        rt.clock.advance(MINUTE)
        await drive(rt)
        await rt.pause(heard.id)
        paused = heard
        now = rt.clock.now()
        found = await lines(rt)
        notes = {id: line_note(line, perdure.times.moment(now)) for id, line in found.items()}
        assert notes[asked.id] == "a person, to answer “Go?”"
        assert notes[paused.id] == "a person: paused"
        assert notes[asleep.id].endswith("(in 2d 23h)")
        assert notes[behind.id] == f"its turn: after run {asleep.id}"
        assert found[held.id].run.state is State.HELD
        assert notes[held.id] == "a person: held, the outcome of charge is unknown"
        await rt.resume(paused.id)
        await drive(rt)
        told = line_note((await lines(rt))[paused.id], perdure.times.moment(now))
        assert told.startswith("the signal reply, until ")


async def test_only_the_first_waits_of_a_run_are_read_and_all_are_counted(url: str) -> None:
    async with healthy(url) as rt:
        nodes = [asking(f"q{n}", f"n{n}") for n in range(5)]
        run = await begin(rt, side_by_side(sleeping(timedelta(hours=1)), *nodes))
        line = (await lines(rt))[run.id]
        assert len(line.waits) == 3
        assert {wait.kind for wait in line.waits} == {"human"}
        assert line.open_waits == 6


async def test_a_hundred_runs_need_no_more_reads_than_one(sqlite_url: str) -> None:
    async with healthy(sqlite_url) as rt:
        graph = chain(asking("Go?"))
        rt.register(graph, "asks")
        for number in range(40):
            await rt.start("asks", {"log": []}, thread_id=f"t{number}")
        await drive(rt)
        found: list[Run] = await rt.runs(limit=100, output=False)
        assert _reads(rt, found) == _reads(rt, found[:1]) == 2


def _reads(rt: Any, found: list[Run]) -> int:
    plan, count, sent = run_search.lines_of(rt.engine, found), 0, None
    do: Callable[[Any], Any] = rt.journal.do
    while True:
        try:
            op = plan.send(sent)
        except StopIteration as end:
            return count if len(end.value) == len(found) else -1
        sent, count = do(op), count + 1
