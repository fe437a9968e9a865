"""A cancelled run undoes each of its effects once, the last one first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.types import Retry, Run, State
from tests.support.agents import Log, chain, history, opened
from tests.support.effects import AT_ONCE, Mortals, Times, settled, started
from tests.support.effects import children as children
from tests.support.runtime_child import Ledger


class Agency:
    """Bookings and their undos, in the order in which they are made."""

    def __init__(self, *, fails: Times | None = None, retry: Retry | None = None) -> None:
        self.log: list[str] = []
        self.fails = fails or Times(0)

        def cancel(result: str, what: str) -> None:
            self.log.append(f"cancel {result} {what}")
            self.fails("the line is busy")

        @perdure.effect(name="reserve", compensate=cancel, retry=retry or AT_ONCE)
        async def reserve(what: str) -> str:
            self.log.append(f"reserve {what}")
            return f"no. {len(self.log)}"

        @perdure.effect(name="mail")
        async def mail(what: str) -> str:
            self.log.append(f"mail {what}")
            return what

        self.reserve, self.mail = reserve, mail

    def trip(self, then: Any = None) -> Any:
        async def plan(state: Log) -> Log:
            first = await self.reserve("flight")
            await self.mail("ana")
            return {"log": [first]}

        async def stay(state: Log) -> Log:
            told = [await self.reserve("hotel"), await self.reserve("car")]
            await then() if then is not None else perdure.ask("shall we?")
            return {"log": told}

        return chain(plan, stay, go)


def go(state: Log) -> Log:
    return {"log": ["gone"]}


POINTS = [
    "effect undo reserve.before",
    "effect undo reserve.after",
    "undone_effect.before",
    "undone_effect.after",
    "let_go.before",
]


UNDONE = ["cancel no. 4 car", "cancel no. 3 hotel", "cancel no. 1 flight"]


DONE = ["reserve flight", "mail ana", "reserve hotel", "reserve car"]


async def report(rt: Any, run: Run) -> dict[str, Any]:
    [event] = await settled(rt, run, "cancelled")
    return dict(event.data)


async def check(rt: Any, run: Run) -> None:
    """It is cancelled, and its history says what became of everything."""
    run = await rt.get(run.id)
    assert run.state is State.CANCELLED
    effects = {(one.name, one.arguments.get("what")): one.key for one in await rt.effects(run.id)}
    told = await report(rt, run)
    assert sorted(told["undone"]) == sorted(
        effects["reserve", what] for what in ("flight", "hotel", "car")
    )
    assert list(told["kept"]) == [effects["mail", "ana"]]
    assert (await history(rt, run))[-1] == "cancelled"


@pytest.mark.smoke
async def test_a_run_that_waits_is_undone_in_reverse_order(url: str) -> None:
    agency = Agency()
    async with opened(url) as rt:
        run = await started(rt, agency.trip())
        assert run.state is State.WAITING
        await rt.cancel(run.id)
        await rt.tick()
        assert agency.log == [*DONE, *UNDONE]
        await check(rt, run)
        assert await rt.waits() == []
        await rt.tick()
        assert agency.log == [*DONE, *UNDONE]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
async def test_each_is_undone_once_although_processes_are_killed(
    url: str, point: str, children: Mortals, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    path = str(tmp_path / "ledger")
    assert (
        children.live("trip", url, path, point, n=2 if "let_go" not in point else 1, cancel=1) < 0
    )
    for n in (1, 1):
        children.live("trip", url, path, point, n=n)
    assert children.live("trip", url, path) == 0
    lines = [line for line in ledger.lines() if line.startswith("cancel")]
    order = [line.split()[1] for line in lines]
    assert sorted(set(order), key=order.index) == ["car", "hotel", "flight"]
    # What was called when the process died is called again with the key it had.
    assert len(set(lines)) == 3
    if point != "effect undo reserve.after" and not point.startswith("undone"):
        assert len(lines) == 3
    async with opened(url) as rt:
        [run] = await rt.runs()
        assert run.state is State.CANCELLED
        assert len((await report(rt, run))["undone"]) == 3
