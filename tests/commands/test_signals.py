"""A signal is a named message to a thread: on disk when it was sent, delivered once, kept if early.

Whoever of a thread's runs waits for that name next gets the oldest that is there.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.graph import END

import perdure
from perdure import errors
from perdure.types import Kind, State
from tests.contract.test_signals import hearing
from tests.support.polling import auntil
from tests.support.waiters import (
    DAY,
    HOUR,
    MS,
    Log,
    asking,
    begin,
    chain,
    drive,
    healthy,
    kinds,
    listening,
    log_of,
    named,
    only_wait,
    side_by_side,
)

# -- delivered


async def test_a_wait_for_a_signal_may_say_what_it_is_about() -> None:
    def hears(state: Log) -> Log:
        return {"log": [perdure.wait_for("s", value={"kind": "cadence"})]}

    async with healthy() as rt:
        run = await begin(rt, chain(hears))
        assert (await only_wait(rt, run)).value == {"signal": "s", "kind": "cadence"}
        await rt.signal("t", "s", 1)
        await drive(rt)
        assert await log_of(rt, run) == [1]
    with pytest.raises(errors.BadArgument, match="the signal's name"):
        perdure.wait_for("s", value={"signal": "t"})


async def test_a_signal_of_another_name_or_thread_wakes_nobody(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(rt, chain(listening("reply")))
        wait = await only_wait(rt, run)
        await rt.signal("t", "bounce", 1)
        await rt.signal("t", "Reply", 1)
        await rt.signal("t2", "reply", 2)
        await drive(rt)
        assert await rt.waits() == [wait]
        assert await kinds(rt, run, "claimed") == ["claimed"]
        await rt.signal("t", "reply", 3)
        await drive(rt)
        assert await log_of(rt, run) == [("reply", 3)]


async def test_only_who_waits_for_it_gets_a_signal_others_stay() -> None:
    async with healthy() as rt:
        run = await begin(rt, side_by_side(listening("a", "a"), listening("b", "b"), asking("q")))
        before = {wait.name or wait.value: wait for wait in await rt.waits()}
        await rt.signal("t", "b", 2)
        await drive(rt)
        del before["b"]
        assert {wait.name or wait.value: wait for wait in await rt.waits()} == before
        await rt.signal("t", "a", 1)
        await rt.answer(before["q"].id, 3)
        await drive(rt)
        assert sorted(await log_of(rt, run)) == [("a", 1), ("b", 2), ("q", 3)]


# -- kept


async def test_several_signals_are_heard_in_the_order_they_were_sent(url: str) -> None:
    async with healthy(url) as rt:
        for n in range(4):
            await rt.signal("t", "s", n)
            rt.clock.advance(MS)
        run = await begin(rt, chain(hearing(7)))
        for n in range(4, 7):
            await rt.signal("t", "s", n)
            await drive(rt)
        assert await log_of(rt, run) == list(range(7))


async def test_several_signals_of_one_millisecond_keep_their_order(url: str) -> None:
    async with healthy(url) as rt:
        for n in range(8):
            await rt.signal("t", "s", n)
        run = await begin(rt, chain(hearing(8)))
        assert await log_of(rt, run) == list(range(8))


async def test_a_signal_nobody_took_is_for_a_later_run_of_the_thread(url: str) -> None:
    async with healthy(url) as rt:
        first = await begin(rt, chain(listening("s")))
        await rt.signal("t", "s", 1)
        await rt.signal("t", "s", 2)
        await drive(rt)
        second = await rt.start("g", {"log": []}, thread_id="t")
        other = await rt.start("g", {"log": []}, thread_id="t2")
        await drive(rt)
        assert await log_of(rt, first) == [("s", 1)]
        assert (await log_of(rt, second))[-1] == ("s", 2)
        assert (await rt.get(other.id)).state is State.WAITING


async def test_a_signal_is_not_used_up_by_a_run_that_was_cancelled_before_it_took_it() -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(listening("s")))
        await rt.cancel(run.id)
        await rt.signal("t", "s", "later")
        second = await rt.start("g", {"log": []}, thread_id="t")
        await drive(rt)
        assert await log_of(rt, second) == [("s", "later")]


async def test_a_queued_run_does_not_take_what_the_one_before_it_waits_for() -> None:
    async with healthy() as rt:
        first = await begin(rt, chain(listening("s")))
        second = await rt.start("g", {"log": []}, thread_id="t")
        await rt.signal("t", "s", 1)
        await drive(rt)
        assert await log_of(rt, first) == [("s", 1)]
        assert (await only_wait(rt, second)).name == "s"


# -- once


async def test_a_key_belongs_to_its_thread_and_name() -> None:
    async with healthy() as rt:
        assert await rt.signal("t", "s", 1, key="k")
        assert await rt.signal("t", "r", 2, key="k")
        assert await rt.signal("t2", "s", 3, key="k")
        assert not await rt.signal("t2", "s", 4, key="k")


# -- while it is driven


async def test_a_node_may_signal_its_own_thread() -> None:
    async with healthy() as rt:

        async def tells(state: Log) -> Log:
            await rt.signal("t", "s", "to myself", key="once")
            return {"log": ["told"]}

        run = await begin(rt, chain(tells, listening("s")))
        assert await log_of(rt, run) == ["told", ("s", "to myself")]


async def test_signals_race_with_two_drivers_and_each_is_heard_once(url: str) -> None:
    count = 15
    builder = chain(hearing(1))
    builder.add_conditional_edges("hears", lambda s: "hears" if len(s["log"]) < count else END)
    async with healthy(url) as rt, healthy(url, clock=rt.clock) as other:
        other.register(builder, name="g")
        run = await begin(rt, builder)
        for n in range(count):
            await asyncio.gather(
                rt.signal("t", "s", n, key=str(n)),
                other.signal("t", "s", n, key=str(n)),
                rt.tick(limit=1),
                other.tick(limit=1),
            )

        async def ended() -> bool:
            await asyncio.gather(drive(rt), drive(other))
            return (await rt.get(run.id)).ended

        await auntil(ended)
        assert sorted(await log_of(rt, run)) == list(range(count))


# -- time limits


@pytest.mark.parametrize("default", [None, False, "nobody"], ids=repr)
async def test_when_the_time_is_up_a_wait_gives_its_default(url: str, default: Any) -> None:
    async with healthy(url) as rt:
        begun = rt.clock.time
        run = await begin(rt, chain(listening("s", timeout=DAY, default=default)))
        wait = await only_wait(rt, run)
        assert (wait.expires_at, wait.wake_at) == (begun + DAY, None)
        rt.clock.advance(DAY - MS)
        await drive(rt)
        assert await rt.waits() == [wait]
        rt.clock.advance(MS)
        await drive(rt)
        assert await log_of(rt, run) == [("s", default)]
        assert await kinds(rt, run, "expired", "signal") == ["expired"]


async def test_a_signal_that_comes_after_the_time_is_kept_for_the_next_wait() -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(listening("s", timeout=DAY), listening("s", "again")))
        rt.clock.advance(DAY)
        await drive(rt)
        await rt.signal("t", "s", "late")
        await drive(rt)
        assert await log_of(rt, run) == [("s", None), ("s", "late")]


async def test_a_signal_in_time_is_heard_though_nobody_drove_the_run_until_after(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(rt, chain(listening("s", timeout=DAY, default="nobody")))
        rt.clock.advance(HOUR)
        await rt.signal("t", "s", "in time")
        rt.clock.advance(2 * DAY)
        await drive(rt)
        assert await log_of(rt, run) == [("s", "in time")]
        assert await kinds(rt, run, "expired", "signal") == ["signal"]


async def test_a_timeout_and_a_signal_at_once_give_one_of_both_and_lose_nothing(url: str) -> None:
    async with healthy(url) as rt, healthy(url, clock=rt.clock) as other:
        rt.register(
            chain(listening("s", timeout=DAY, default="nobody"), listening("s", "again")), name="g"
        )
        runs = [await rt.start("g", {"log": []}, thread_id=f"t{n}") for n in range(10)]
        await drive(rt)
        rt.clock.advance(DAY)
        sends = [other.signal(f"t{n}", "s", n) for n in range(10)]
        await asyncio.gather(rt.tick(limit=1000), *sends)
        await drive(rt)
        for n, run in enumerate(runs):
            if (await rt.get(run.id)).state is State.WAITING:  # the signal was first
                await rt.signal(f"t{n}", "s", "more")
                await drive(rt)
                assert await log_of(rt, run) == [("s", n), ("s", "more")]
            else:
                assert await log_of(rt, run) == [("s", "nobody"), ("s", n)]


async def test_a_timeout_keeps_its_first_time_when_the_node_runs_again() -> None:
    async with healthy() as rt:
        run = await begin(rt, side_by_side(listening("s", timeout=2 * DAY), asking("q")))
        waits = {wait.kind: wait for wait in await rt.waits()}
        rt.clock.advance(DAY)
        await rt.answer(waits[Kind.HUMAN].id, 1)
        await drive(rt)
        assert await only_wait(rt, run) == waits[Kind.SIGNAL]
        rt.clock.advance(DAY)
        await drive(rt)
        assert sorted(await log_of(rt, run), key=str) == [("q", 1), ("s", None)]


# -- refused


async def test_bad_signals_are_refused() -> None:
    async with healthy() as rt:
        for name in ("", None, 5):
            with pytest.raises(errors.BadArgument, match="name"):
                await rt.signal("t", name)  # type: ignore[arg-type]
        with pytest.raises((errors.Unserializable, errors.TypeNotAllowed), match="signal 's'"):
            await rt.signal("t", "s", lambda: 1)
        run = await begin(rt, chain(named("waits", hearing(1))))
        await rt.signal("t", "s", "good")
        await drive(rt)
        assert await log_of(rt, run) == ["good"]


async def test_a_paused_run_hears_what_came_meanwhile_when_it_is_resumed() -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(listening("s")))
        await rt.pause(run.id)
        await rt.signal("t", "s", 1)
        await drive(rt)
        assert (await rt.get(run.id)).state is State.PAUSED
        await rt.resume(run.id)
        await drive(rt)
        assert await log_of(rt, run) == [("s", 1)]
