"""Runs are paused, resumed and cancelled, at rest and while driven, each in the states for it.

A run that is driven stops at its next step, or in the middle of one when that takes too long.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from langgraph.graph import StateGraph

from perdure.commands import claims
from perdure.commands.claims import LeaseTimes
from perdure.errors import WaitClosed, WrongState
from perdure.testing import Clock
from perdure.types import ENDED, Retry, Run, State
from tests.support.agents import (
    NOON,
    Calls,
    chain,
    driven,
    driving,
    gate,
    history,
    opened,
    reaches,
    told_to_stop,
)
from tests.support.controls import (
    COLORS,
    HOUR,
    ONCE,
    SECOND,
    approve,
    echo,
    fail,
    in_a_step,
    nap,
    resting,
    said,
    standing,
)


def bring_to(state: State) -> StateGraph[Any]:
    """A graph whose runs come to rest in this state, with the help of `resting`."""
    return chain({State.WAITING: approve, State.FAILED: fail}.get(state, echo))


RESTING = [State.PENDING, State.WAITING, State.PAUSED]
OVER = sorted(ENDED)

# -- pause, resume, cancel: at rest


@pytest.mark.parametrize("state", RESTING)
async def test_a_run_at_rest_is_cancelled_at_once(url: str, state: State) -> None:
    async with opened(url) as rt:
        rt.register(bring_to(state), name="g", retry=ONCE)
        run = await resting(rt, state)
        waits = await rt.waits()
        ended = await rt.cancel(run.id, reason="not needed", by="ana")
        assert (ended.state, ended.reason, ended.due_at) == (State.CANCELLED, "not needed", None)
        last = (await rt.events(run.id))[-1]
        assert (last.kind, last.data) == ("cancelled", {"reason": "not needed", "by": "ana"})
        assert await rt.waits() == []
        for wait in waits:
            with pytest.raises(WaitClosed):
                await rt.answer(wait.id, "late")
        assert (await rt.tick()).claimed == 0


@pytest.mark.parametrize("state", [State.PENDING, State.WAITING])
async def test_a_run_at_rest_is_paused_at_once_and_goes_on_when_resumed(
    url: str, state: State
) -> None:
    async with opened(url) as rt:
        rt.register(bring_to(state), name="g", retry=ONCE)
        run = await resting(rt, state)
        assert (await rt.pause(run.id, by="ana")).state == State.PAUSED
        assert (await rt.events(run.id))[-1].data == {"by": "ana"}
        assert (await rt.tick()).claimed == 0
        assert (await rt.resume(run.id)).state == State.PENDING
        await rt.tick()
        for wait in await rt.waits():
            await rt.answer(wait.id, "yes")
        await rt.tick()
        assert (await rt.get(run.id)).state == State.DONE
        assert {"paused", "resumed"} <= set(await history(rt, run))


async def test_a_paused_run_takes_answers_and_uses_them_when_it_is_resumed(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(approve), name="g")
        run = await resting(rt, State.WAITING)
        await rt.pause(run.id)
        [wait] = await rt.waits()
        await rt.answer(wait.id, "yes")
        assert (await rt.tick()).claimed == 0
        await rt.resume(run.id)
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", "approved yes")


async def test_a_paused_run_does_not_wake_until_it_is_resumed(url: str) -> None:
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        run = await driven(rt, chain(nap), said("a"))
        await rt.pause(run.id)
        clock.advance(2 * HOUR)
        assert (await rt.tick()).claimed == 0
        await rt.resume(run.id)
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", "nap")


async def test_a_sleeping_run_that_was_paused_and_resumed_sleeps_as_long_as_before(
    url: str,
) -> None:
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        run = await driven(rt, chain(nap), said("a"))
        clock.advance(HOUR / 2)
        await rt.pause(run.id)
        await rt.resume(run.id)
        await rt.tick()
        assert (await rt.get(run.id)).due_at == NOON + HOUR
        clock.advance(HOUR / 2)
        assert (await rt.tick()).done == 1


async def test_a_delayed_run_that_was_paused_and_resumed_is_not_early(url: str) -> None:
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        rt.register(chain(echo), name="g")
        run = await rt.start("g", said("a"), after=HOUR)
        await rt.pause(run.id)
        assert (await rt.resume(run.id)).due_at == NOON + HOUR
        assert (await rt.tick()).claimed == 0
        clock.advance(HOUR)
        assert (await rt.tick()).done == 1


@pytest.mark.parametrize("position", [0, 1])
async def test_cancelling_a_queued_run_lets_the_next_one_go(url: str, position: int) -> None:
    async with opened(url) as rt:
        rt.register(chain(echo), name="g")
        queue = [await rt.start("g", said(str(n)), thread_id="t") for n in range(3)]
        await rt.cancel(queue[position].id)
        await rt.tick()
        kept = [str(n) for n in range(3) if n != position]
        assert (await rt.get(queue[2].id)).output == said(
            *(text for n in kept for text in (n, "echo"))
        )


# -- in the wrong state


WRONG = [
    *((verb, state) for verb in ("pause", "cancel") for state in OVER if state != "cancelled"),
    ("pause", State.CANCELLED),
    *(("resume", state) for state in (State.PENDING, State.WAITING, *OVER)),
    *(("retry", state) for state in (*RESTING, State.DONE, State.CANCELLED)),
]


@pytest.mark.parametrize(("verb", "state"), WRONG, ids=[f"{v}-{s}" for v, s in WRONG])
async def test_what_cannot_be_done_in_a_state_is_told_and_changes_nothing(
    sqlite_url: str, verb: str, state: State
) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(bring_to(state), name="g", retry=ONCE)
        run = await resting(rt, state)
        kinds = await history(rt, run)
        with pytest.raises(WrongState, match=f"{run.id} is {state}") as told:
            await getattr(rt, verb)(run.id)
        assert (told.value.run_id, told.value.state) == (run.id, state)
        assert await rt.get(run.id) == run
        assert await history(rt, run) == kinds


@pytest.mark.parametrize(("verb", "state"), [("cancel", "cancelled"), ("pause", "paused")])
async def test_asking_again_for_what_is_already_so_is_fine(
    sqlite_url: str, verb: str, state: str
) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(echo), name="g")
        run = await rt.start("g", said("a"))
        for _ in range(2):
            assert (await getattr(rt, verb)(run.id)).state == state
        assert await history(rt, run) == ["started", state]


# -- pause, cancel: while it is driven


@COLORS
async def test_a_driven_run_is_paused_after_its_step_and_goes_on_behind_it(
    url: str, color: str
) -> None:
    calls = Calls()
    async with in_a_step(url, calls, color) as (rt, run, closed):
        assert (await rt.pause(run.id)).state == State.RUNNING
        await told_to_stop(rt, run)
        closed.open()
        await reaches(rt, run, State.PAUSED)
        assert calls == ["one", "stand"]
        await rt.resume(run.id)
        done = await reaches(rt, run, State.DONE)
    assert calls == ["one", "stand", "two"]
    assert done.output == said("a", "one", "stand", "two")


async def test_cancelling_again_keeps_the_reason(url: str) -> None:
    calls = Calls()
    async with in_a_step(url, calls) as (rt, run, closed):
        await rt.cancel(run.id, reason="no longer needed")
        await rt.cancel(run.id)
        closed.open()
        ended = await reaches(rt, run, State.CANCELLED)
    assert ended.reason == "no longer needed"


async def test_join_waits_for_the_end_and_not_longer_than_it_may(url: str) -> None:
    calls = Calls()
    async with in_a_step(url, calls) as (rt, run, closed):
        with pytest.raises(TimeoutError):
            await rt.join(run.id, timeout=timedelta(seconds=0.05))
        closed.open()
        assert (await rt.join(run.id)).output == said("a", "one", "stand", "two")


async def test_what_fails_and_why_is_in_the_log(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(fail), name="g", retry=Retry(attempts=2, first=timedelta(seconds=1)))
        run = await rt.start("g", said("a"), thread_id="t")
        for _ in range(2):
            await rt.tick()
            rt.clock.advance(timedelta(minutes=1))
        told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        place = f"run {run.id} of 'g' on thread 't' failed"
        assert [line.startswith(place) for line in told] == [True, True]
        assert "is retried at" in told[0]
        assert told[1] == f"{place}: ValueError: no luck"


async def test_a_worker_names_the_graphs_that_it_should_know(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(sqlite_url) as front, opened(sqlite_url) as rt:
        rt.register(chain(echo), name="g")
        await front.start("typo", said("a"))
        assert (await rt.tick()).claimed == 0
        assert "graph 'typo' has due runs" in caplog.text


async def test_a_pause_can_be_taken_back_while_the_step_still_goes_on(url: str) -> None:
    calls = Calls()
    async with in_a_step(url, calls) as (rt, run, closed):
        await rt.pause(run.id)
        await told_to_stop(rt, run)
        await rt.resume(run.id)
        closed.open()
        ended = await reaches(rt, run, State.DONE, State.PAUSED)
        assert "resumed" in await history(rt, run)
    assert ended.state is State.DONE
    assert calls == ["one", "stand", "two"]


async def test_the_grace_is_measured_by_the_clock_of_the_journal(sqlite_url: str) -> None:
    clock = Clock(NOON)
    with gate() as closed:
        async with opened(sqlite_url, clock) as rt:
            rt.register(standing(Calls(), closed, "loop"), name="g")
            run = await rt.start("g", said("a"))
            work = asyncio.create_task(rt.tick(limit=1))
            await closed.reached()
            await rt.cancel(run.id, grace=HOUR)
            await told_to_stop(rt, run)
            assert (await rt.get(run.id)).state == State.RUNNING
            clock.advance(HOUR)
            assert (await work).cancelled == 1
            closed.open()


async def test_a_cancel_stays_one_when_somebody_pauses_the_run_after_it(url: str) -> None:
    with gate() as closed:
        async with opened(url) as rt, opened(url) as another:
            rt.register(standing(Calls(), closed, "loop"), name="g")
            run = await rt.start("g", said("a"))
            async with driving(rt):
                await closed.reached()
                await another.cancel(run.id, reason="enough")
                with pytest.raises(WrongState, match="paused"):
                    await another.pause(run.id)
                await told_to_stop(rt, run)
                closed.open()
                ended = await reaches(rt, run, State.CANCELLED, State.PAUSED, State.DONE)
            assert (ended.state, ended.reason) == (State.CANCELLED, "enough")


async def test_a_run_whose_worker_is_gone_is_stopped_by_the_next_one(url: str) -> None:
    clock, calls = Clock(NOON), Calls()
    async with opened(url, clock) as rt:
        rt.register(chain(calls.node("one")), name="g")
        cancelled, paused = [await rt.start("g", said("a")) for _ in range(2)]
        until = clock.now() + 3000
        times = LeaseTimes(clock.now(), until)
        op = claims.claim(rt.saver.serializer, "elsewhere:1:gone", times, ["g@"], 10)
        claimed = await rt.journal.ado(op)
        assert len(claimed) == 2
        assert (await rt.cancel(cancelled.id)).state == State.RUNNING
        assert (await rt.pause(paused.id)).state == State.RUNNING
        assert (await rt.tick()).claimed == 0
        clock.advance(3 * SECOND)
        counts = await rt.tick()
        assert (counts.cancelled, counts.paused, calls) == (1, 1, [])
        assert (await history(rt, cancelled))[-2:] == ["recovered", "cancelled"]
        await rt.resume(paused.id)
        await rt.tick()
        assert (await rt.get(paused.id)).state == State.DONE


async def test_a_cancel_that_races_with_the_end_has_one_outcome(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(echo), name="g")
        for n in range(15):
            run = await rt.start("g", said("a"), thread_id=f"t{n}")
            follower = await rt.start("g", said("b"), thread_id=f"t{n}")

            async def cancel(run: Run = run, n: int = n) -> bool:
                for _ in range(n):
                    await asyncio.sleep(0.001)
                try:
                    await rt.cancel(run.id)
                except WrongState as refused:
                    return refused.state != State.DONE
                return True

            accepted, _ = await asyncio.gather(cancel(), rt.tick())
            ended = await rt.get(run.id)
            kinds = await history(rt, run)
            assert ended.state in (State.DONE, State.CANCELLED)
            assert kinds.count("done") + kinds.count("cancelled") == 1
            assert kinds[-1] == ended.state
            if ended.state == State.CANCELLED:
                assert accepted
                assert ended.output is None
            else:
                assert ended.output == said("a", "echo")
            assert (await rt.get(follower.id)).state == State.DONE
