"""Runs are forked from any checkpoint, and pruned once they are over."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from perdure import failpoints
from perdure.errors import BadArgument, NotFound
from perdure.testing import Clock
from perdure.types import State
from tests.support.agents import NOON, Calls, chain, checkpoints, driven, history, opened
from tests.support.controls import HOUR, ONCE, SECOND, approve, echo, fail, nap, resting, said

# -- fork


@pytest.mark.smoke
async def test_a_fork_goes_on_from_the_last_checkpoint_on_a_new_thread(url: str) -> None:
    calls = Calls()
    async with opened(url) as rt:
        nodes = calls.node("one"), ("approve", approve), calls.node("two")
        rt.register(chain(*nodes), name="g")
        old = await rt.start("g", said("a"), thread_id="t", metadata={"m": 1}, tags=["x"])
        await rt.tick()
        before = await rt.get(old.id), await history(rt, old), await checkpoints(rt, "t")
        new = await rt.fork(old.id)
        assert (new.state, new.graph) == (State.PENDING, "g")
        assert new.id != old.id
        assert new.thread_id != "t"
        assert (new.metadata, new.tags) == ({"m": 1}, ("x",))
        await rt.tick()
        [wait] = await rt.waits(run_id=new.id)
        await rt.answer(wait.id, "there")
        await rt.tick()
        assert (await rt.get(new.id)).output == said("a", "one", "approved there", "two")
        assert calls == ["one", "two"]
        # The old one is untouched, and can still be answered otherwise.
        assert (await rt.get(old.id), await history(rt, old), await checkpoints(rt, "t")) == before
        [wait] = await rt.waits(run_id=old.id)
        await rt.answer(wait.id, "here")
        await rt.tick()
        assert (await rt.get(old.id)).output == said("a", "one", "approved here", "two")


async def test_a_fork_goes_on_from_an_earlier_checkpoint_with_another_state(url: str) -> None:
    calls = Calls()
    async with opened(url) as rt:
        rt.register(chain(*map(calls.node, ("one", "two", "three"))), name="g")
        old = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
        at = [found.checkpoint["id"] for found in await checkpoints(rt, "t")]
        calls.clear()
        plain = await rt.fork(old.id, at=at[1])  # behind two
        changed = await rt.fork(old.id, at=at[2], update=said("changed"), thread_id="u")
        named = await rt.fork(old.id, at=at[2], update=said("named"), as_node="two")
        assert changed.thread_id == "u"
        await rt.tick()
        assert (await rt.get(plain.id)).output == said("a", "one", "two", "three")
        assert (await rt.get(changed.id)).output == said("a", "one", "changed", "two", "three")
        assert (await rt.get(named.id)).output == said("a", "one", "named", "three")
        assert sorted(calls) == ["three", "three", "three", "two"]
        assert (await rt.get(old.id)).output == said("a", "one", "two", "three")


async def test_a_fork_refuses_a_thread_and_a_checkpoint_that_do_not_fit(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        old = await driven(rt, chain(echo), said("a"), thread_id="t")
        with pytest.raises(BadArgument, match="'t' has runs already"):
            await rt.fork(old.id, thread_id="t")
        with pytest.raises(NotFound, match="nothing"):
            await rt.fork(old.id, at="nothing")
        assert [run.id for run in await rt.runs()] == [old.id]


async def test_a_fork_keeps_its_steps_when_the_old_run_is_rolled_back_or_pruned(url: str) -> None:
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        old = await driven(rt, chain(echo, approve), said("a"), thread_id="t")
        new = await rt.fork(old.id, thread_id="u")
        await rt.tick()
        before = [found.checkpoint["id"] for found in await checkpoints(rt, "u")]
        over = await rt.start("g", said("b"), thread_id="t", multitask_strategy="rollback")
        await rt.tick()
        await rt.cancel(over.id)
        assert [found.checkpoint["id"] for found in await checkpoints(rt, "u")] == before
        clock.advance(HOUR)
        assert await rt.prune(older_than=HOUR) == 2
        assert await checkpoints(rt, "t") == []
        [wait] = await rt.waits(run_id=new.id)
        await rt.answer(wait.id, "yes")
        await rt.tick()
        assert (await rt.get(new.id)).output == said("a", "echo", "approved yes")


# -- prune


async def test_prune_deletes_runs_by_the_age_of_their_end(url: str) -> None:
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        rt.register(chain(echo), name="g")
        rt.register(chain(nap), name="slow")
        old = await rt.start("g", said("a"), thread_id="old")
        slow = await rt.start("slow", said("a"), thread_id="slow")
        await rt.tick()
        clock.advance(HOUR)
        young = await rt.start("g", said("a"), thread_id="young")
        await rt.tick()  # slow began early and ended now
        clock.advance(HOUR / 2)
        assert await rt.prune(older_than=HOUR) == 1
        assert {run.id for run in await rt.runs()} == {slow.id, young.id}
        with pytest.raises(NotFound):
            await rt.get(old.id)
        with pytest.raises(NotFound):
            await rt.events(old.id)
        assert await checkpoints(rt, "old") == []
        assert await checkpoints(rt, "young") != []
        assert (await rt.get(slow.id)).output == said("a", "nap")
        assert await rt.prune(older_than=HOUR) == 0


async def test_prune_never_touches_what_is_not_over(url: str) -> None:
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        rt.register(chain(approve), name="g")
        waiting = await resting(rt, State.WAITING)
        pending = await rt.start("g", said("b"), thread_id="t")
        paused = await resting(rt, State.PAUSED, "u")
        clock.advance(1000 * HOUR)
        assert await rt.prune(older_than=HOUR) == 0
        assert {run.id for run in await rt.runs()} == {waiting.id, pending.id, paused.id}
        for state in ("waiting", "held", State.PENDING):
            with pytest.raises(BadArgument, match="ended"):
                await rt.prune(older_than=HOUR, states=[state])


async def test_prune_deletes_only_the_states_that_are_asked_for(sqlite_url: str) -> None:
    clock = Clock(NOON)
    async with opened(sqlite_url, clock) as rt:
        rt.register(chain(echo), name="g")
        rt.register(chain(fail), name="bad", retry=ONCE)
        done = await rt.start("g", said("a"))
        failed = await rt.start("bad", said("a"))
        await rt.tick()
        cancelled = await rt.start("g", said("a"))
        await rt.cancel(cancelled.id)
        clock.advance(HOUR)
        assert await rt.prune(older_than=HOUR, states=["done", State.CANCELLED]) == 2
        assert [run.id for run in await rt.runs()] == [failed.id]
        with pytest.raises(NotFound):
            await rt.get(done.id)
        with pytest.raises(BadArgument, match="finished"):
            await rt.prune(older_than=HOUR, states=["finished"])


async def test_a_thread_keeps_its_state_while_one_of_its_runs_is_left(url: str) -> None:
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        rt.register(chain(echo), name="g")
        await rt.start("g", said("a"), thread_id="t", key="k")
        await rt.tick()
        clock.advance(HOUR)
        await rt.start("g", said("b"), thread_id="t")
        await rt.tick()
        assert await rt.prune(older_than=HOUR) == 1
        again = await rt.start("g", said("c"), thread_id="t", key="k")  # its key is free
        await rt.tick()
        assert (await rt.get(again.id)).output == said("a", "echo", "b", "echo", "c", "echo")


async def test_prune_stops_at_its_limit_and_begins_with_the_oldest(sqlite_url: str) -> None:
    clock = Clock(NOON)
    async with opened(sqlite_url, clock) as rt:
        rt.register(chain(echo), name="g")
        old = []
        for _ in range(5):
            old.append(await rt.start("g", said("a")))
            clock.advance(SECOND)
        await rt.tick()
        clock.advance(HOUR)
        assert await rt.prune(older_than=HOUR, limit=3) == 3
        assert {run.id for run in await rt.runs()} == {run.id for run in old[3:]}


async def test_a_run_that_is_claimed_while_its_worker_is_told_to_stop_is_given_back(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claiming, continue_run = threading.Event(), threading.Event()

    def hook(point: str) -> None:
        if point.startswith("claim."):
            claiming.set()
            continue_run.wait(10)

    async with opened(url) as rt:
        calls = Calls()
        rt.register(chain(calls.node("one")), name="g")
        run = await rt.start("g", said("a"))
        monkeypatch.setattr(failpoints, "hook", hook)
        working = asyncio.create_task(rt.work(handle_signals=False, grace=timedelta(0)))
        assert await asyncio.to_thread(claiming.wait, 10)
        working.cancel()
        await asyncio.sleep(0)
        continue_run.set()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert (await rt.get(run.id)).state in (State.PENDING, State.DONE)
