"""A cancelled run undoes each of its effects once, the last one first."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.testing import Clock
from perdure.types import Retry, Run, State
from tests.support.agents import (
    NOON,
    Log,
    chain,
    driving,
    gate,
    history,
    opened,
    reaches,
    told_to_stop,
)
from tests.support.effects import AT_ONCE, Boom, Cut, Mortals, Times, settled, started
from tests.support.effects import children as children
from tests.support.polling import auntil
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
    "note_compensated.before",
    "note_compensated.after",
    "end_segment.before",
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
        children.live("trip", url, path, point, n=2 if "end_segment" not in point else 1, cancel=1)
        < 0
    )
    for n in (1, 1):
        children.live("trip", url, path, point, n=n)
    assert children.live("trip", url, path) == 0
    lines = [line for line in ledger.lines() if line.startswith("cancel")]
    order = [line.split()[1] for line in lines]
    assert sorted(set(order), key=order.index) == ["car", "hotel", "flight"]
    # What was called when the process died is called again with the key it had.
    assert len(set(lines)) == 3
    if point != "effect undo reserve.after" and not point.startswith("note_compensated"):
        assert len(lines) == 3
    async with opened(url) as rt:
        [run] = await rt.runs()
        assert run.state is State.CANCELLED
        assert len((await report(rt, run))["undone"]) == 3


HOUR = timedelta(hours=1)


ONCE = Retry(attempts=1)


async def test_a_run_that_is_held_is_undone_and_tells_what_nobody_knows(url: str) -> None:
    agency = Agency()

    @perdure.effect(unknown="hold")
    async def pay(amount: int) -> None:
        raise Boom("no reply")

    async with opened(url) as rt:
        run = await started(rt, agency.trip(lambda: pay(7)))
        assert run.state is State.HELD
        [unknown] = await rt.effects(state="unknown")
        await rt.cancel(run.id)
        await rt.tick()
        assert agency.log == [*DONE, *UNDONE]
        await check(rt, run)
        assert list((await report(rt, run))["unknown"]) == [unknown.key]


async def test_a_run_that_is_driven_stops_and_is_undone(url: str) -> None:
    agency = Agency()
    with gate() as stands:
        async with opened(url, lease=timedelta(seconds=0.4)) as rt:
            rt.register(agency.trip(stands.wait), name="agent")
            run = await rt.start("agent", {"log": []}, thread_id="t")
            async with driving(rt):
                await stands.reached()
                await rt.cancel(run.id, grace=HOUR)
                await told_to_stop(rt, run)
                stands.open()
                await reaches(rt, run, State.CANCELLED)
            assert agency.log == [*DONE, *UNDONE]
            await check(rt, run)


async def test_an_undo_that_takes_longer_than_a_lease_is_made_once(url: str) -> None:
    calls: list[str] = []
    with gate() as stands:

        async def cancel(result: str, what: str) -> None:
            calls.append(what)
            await stands.wait()

        @perdure.effect(name="reserve slowly", compensate=cancel)
        async def reserve(what: str) -> str:
            return what

        async def node(state: Log) -> Log:
            await reserve("flight")
            return {"log": [perdure.ask("well?")]}

        lease = timedelta(seconds=0.5)
        async with (
            perdure.Runtime(url, lease=lease) as rt,
            perdure.Runtime(url, lease=lease) as other,
        ):
            for one in (rt, other):
                one.register(chain(node), name="agent")
            run = await rt.start("agent", {"log": []})
            await rt.tick()
            await rt.cancel(run.id)
            async with driving(rt), driving(other):
                await stands.reached()
                first = (await rt.get(run.id)).due_at
                assert first is not None

                async def renewed() -> bool:
                    due = (await rt.get(run.id)).due_at
                    return due is not None and due > first + 2 * lease

                await auntil(renewed, "a lease that is renewed beyond its first end")
                stands.open()
                await reaches(rt, run, State.CANCELLED)
            assert calls == ["flight"]
            assert (await history(rt, run)).count("recovered") == 0


@pytest.mark.parametrize("n", range(3))
async def test_a_worker_that_is_cut_off_leaves_the_rest_to_the_next(url: str, n: int) -> None:
    """Without a key for the far side, what was on its way is called again, and nothing else."""
    agency = Agency()
    count = 0

    def cut(why: str = "") -> None:
        nonlocal count
        count += 1
        if count == n + 1:
            raise Cut

    agency.fails = cut  # type: ignore[assignment]
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        run = await started(rt, agency.trip())
        await rt.cancel(run.id)
        await asyncio.gather(rt.tick(limit=1), return_exceptions=True)
        clock.advance(HOUR)
        await rt.tick()
        await check(rt, run)
    assert agency.log == [*DONE, *UNDONE[: n + 1], *UNDONE[n:]]


async def test_an_undo_that_fails_holds_the_run_and_retry_goes_on_cancelling(url: str) -> None:
    fails = Times(1)
    agency = Agency(fails=fails, retry=ONCE)
    async with opened(url) as rt:
        run = await started(rt, agency.trip())
        await rt.cancel(run.id)
        await rt.tick()
        run = await rt.get(run.id)
        assert run.state is State.HELD
        assert "the line is busy" in str(run.reason)
        assert "cancelled" in str(run.reason)
        assert agency.log == [*DONE, UNDONE[0]]
        await rt.retry(run.id)
        await rt.tick()
        assert agency.log == [*DONE, UNDONE[0], *UNDONE]
        await check(rt, run)


async def test_an_effect_that_is_no_longer_known_holds_the_run(url: str) -> None:
    from perdure.effects import decorator

    agency = Agency()
    async with opened(url) as rt:
        run = await started(rt, agency.trip())
        await rt.cancel(run.id)
        known = decorator.EFFECTS.pop("reserve")
        await rt.tick()
        run = await rt.get(run.id)
        assert run.state is State.HELD
        assert "import the module" in str(run.reason)
        decorator.EFFECTS["reserve"] = known
        await rt.retry(run.id)
        await rt.tick()
        assert agency.log == [*DONE, *UNDONE]
        await check(rt, run)


async def test_a_run_without_effects_is_cancelled_at_once(url: str) -> None:
    def node(state: Log) -> Log:
        return {"log": [perdure.ask("well?")]}

    async with opened(url) as rt:
        run = await started(rt, chain(node))
        run = await rt.cancel(run.id, reason="changed my mind", by="ana")
        assert run.state is State.CANCELLED
        assert await report(rt, run) == {"reason": "changed my mind", "by": "ana"}


async def test_what_a_waiting_run_did_that_cannot_be_undone_is_told(url: str) -> None:
    agency = Agency()

    async def node(state: Log) -> Log:
        await agency.mail("ana")
        return {"log": [perdure.ask("well?")]}

    async with opened(url) as rt:
        run = await started(rt, chain(node))
        await rt.cancel(run.id, by="ana")
        await rt.tick()
        assert (await rt.get(run.id)).state is State.CANCELLED
        [effect] = await rt.effects(run.id)
        assert list((await report(rt, run))["kept"]) == [effect.key]


async def test_what_ended_well_is_not_undone(url: str) -> None:
    agency = Agency()

    async def fine() -> None:
        return None

    async with opened(url) as rt:
        run = await started(rt, agency.trip(fine))
        assert run.state is State.DONE
        with pytest.raises(perdure.Error):
            await rt.cancel(run.id)
        await rt.tick()
        assert agency.log == DONE


async def test_an_undo_can_be_a_coroutine_and_has_a_key_of_its_own(url: str) -> None:
    keys: list[str] = []

    async def cancel(result: str, what: str, seats: int) -> None:
        keys.append(perdure.key())
        assert (result, what, seats) == ("ok", "flight", 2)

    @perdure.effect(name="reserve seats", compensate=cancel)
    def reserve(what: str, seats: int = 2) -> str:
        keys.append(perdure.key())
        return "ok"

    def node(state: Log) -> Log:
        reserve("flight")
        return {"log": [perdure.ask("well?")]}

    async with opened(url) as rt:
        run = await started(rt, chain(node))
        await rt.cancel(run.id)
        await rt.tick()
        assert (await rt.get(run.id)).state is State.CANCELLED
        assert len(keys) == len(set(keys)) == 2
