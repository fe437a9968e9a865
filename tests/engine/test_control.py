"""Runs can be paused, resumed, cancelled, retried, forked and pruned, each in the states for it.

A run that is driven stops at its next step, or in the middle of one when that takes too long. A
segment that fails is driven again after a pause that survives the process; a step that never ends
is bounded by its timeout, and what a driver does after it lost its run is not stored.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure import runs
from perdure.errors import BadArgument, NotFound, WaitClosed, WrongState
from perdure.journal import probe
from perdure.runtime import Runtime
from perdure.testing import Clock
from perdure.types import ENDED, Retry, Run, State
from tests.support.agents import (
    NOON,
    Calls,
    Log,
    chain,
    checkpoints,
    driving,
    gate,
    history,
    opened,
    reaches,
    told_to_stop,
    until,
)

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
SOON = timedelta(seconds=0.5)
"""A timeout of a step that is to be exceeded."""
AT_ONCE = Retry(attempts=3, first=timedelta(0))


def said(*texts: str) -> dict[str, Any]:
    return {"log": list(texts)}


def echo(state: Log) -> Any:
    return {"log": ["echo"]}


def nap(state: Log) -> Any:
    perdure.sleep(HOUR)
    return {"log": ["nap"]}


def approve(state: Log) -> Any:
    return {"log": [f"approved {perdure.ask('go on?')}"]}


def fail(state: Log) -> Any:
    raise ValueError("no luck")


def bring_to(state: State) -> StateGraph[Any]:
    """A graph whose runs come to rest in this state, with the help of `resting`."""
    return chain({State.WAITING: approve, State.FAILED: fail}.get(state, echo))


async def resting(rt: Runtime, state: State, thread_id: str = "t") -> Run:
    """A run of "g" in a state in which nobody drives it."""
    run = await rt.start("g", said("a"), thread_id=thread_id)
    if state in (State.WAITING, State.DONE, State.FAILED):
        await rt.tick()
    elif state == State.PAUSED:
        await rt.pause(run.id)
    elif state == State.CANCELLED:
        await rt.cancel(run.id)
    found = await rt.get(run.id)
    assert found.state == state
    return found


ONCE = Retry(attempts=1)
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
        rt.register(chain(nap), name="g")
        run = await rt.start("g", said("a"))
        await rt.tick()
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
        rt.register(chain(nap), name="g")
        run = await rt.start("g", said("a"))
        await rt.tick()
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


async def test_a_queued_run_that_was_paused_and_resumed_waits_for_its_turn(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(approve), name="g")
        first = await resting(rt, State.WAITING)
        second = await rt.start("g", said("b"), thread_id="t")
        await rt.pause(second.id)
        await rt.resume(second.id)
        assert (await rt.tick()).claimed == 0
        await rt.cancel(first.id)
        assert (await rt.tick()).waiting == 1
        assert (await rt.get(second.id)).state == State.WAITING


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


async def test_a_paused_run_keeps_its_place_before_the_next_one(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(echo), name="g")
        first, second = [await rt.start("g", said(n), thread_id="t") for n in "ab"]
        await rt.pause(first.id)
        assert (await rt.tick()).claimed == 0
        await rt.resume(first.id)
        await rt.tick()
        assert (await rt.get(second.id)).output == said("a", "echo", "b", "echo")


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


def standing(calls: Calls, closed: Any, color: str) -> StateGraph[Any]:
    """A graph that stands still in its second node, the first time it comes there."""
    first = threading.Event()

    def stand(state: Log) -> None:
        if not first.is_set():
            first.set()
            closed.block()

    async def stand_in_loop(state: Log) -> None:
        if not first.is_set():
            first.set()
            await closed.wait()

    if color == "thread":
        nodes = [calls.node("one"), calls.node("stand", stand), calls.node("two")]
    else:
        nodes = [
            calls.coroutine("one"),
            calls.coroutine("stand", stand_in_loop),
            calls.coroutine("two"),
        ]
    return chain(*nodes)


COLORS = pytest.mark.parametrize("color", ["thread", "loop"])


@COLORS
async def test_a_driven_run_is_cancelled_after_the_step_it_is_in(url: str, color: str) -> None:
    calls = Calls()
    with gate() as closed:
        async with opened(url) as rt, opened(url) as another:
            rt.register(standing(calls, closed, color), name="g")
            run = await rt.start("g", said("a"), thread_id="t")
            async with driving(rt):
                await closed.reached()
                asked = await another.cancel(run.id, reason="enough")  # not by who drives it
                assert asked.state == State.RUNNING
                await told_to_stop(rt, run)
                closed.open()
                ended = await reaches(rt, run, State.CANCELLED, State.DONE)
            assert (ended.state, ended.reason, ended.output) == (State.CANCELLED, "enough", None)
            assert calls == ["one", "stand"]
            assert (await history(rt, run))[-2:] == ["step", "cancelled"]
            assert "cancelling" in await history(rt, run)
            # The step it was in is kept.
            [latest, *_] = await checkpoints(rt, "t")
            assert latest.checkpoint["channel_values"]["log"] == ["a", "one", "stand"]


@COLORS
async def test_a_driven_run_is_paused_after_its_step_and_goes_on_behind_it(
    url: str, color: str
) -> None:
    calls = Calls()
    with gate() as closed:
        async with opened(url) as rt:
            rt.register(standing(calls, closed, color), name="g")
            run = await rt.start("g", said("a"))
            async with driving(rt):
                await closed.reached()
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
    with gate() as closed:
        async with opened(url) as rt:
            rt.register(standing(calls, closed, "loop"), name="g")
            run = await rt.start("g", said("a"))
            async with driving(rt):
                await closed.reached()
                await rt.cancel(run.id, reason="no longer needed")
                await rt.cancel(run.id)
                closed.open()
                ended = await reaches(rt, run, State.CANCELLED)
            assert ended.reason == "no longer needed"


async def test_join_waits_for_the_end_and_not_longer_than_it_may(url: str) -> None:
    calls = Calls()
    with gate() as closed:
        async with opened(url) as rt:
            rt.register(standing(calls, closed, "loop"), name="g")
            run = await rt.start("g", said("a"))
            async with driving(rt):
                await closed.reached()
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
        assert "runs of 'typo' are due" in caplog.text


async def test_a_pause_can_be_taken_back_while_the_step_still_goes_on(url: str) -> None:
    calls = Calls()
    with gate() as closed:
        async with opened(url) as rt:
            rt.register(standing(calls, closed, "loop"), name="g")
            run = await rt.start("g", said("a"))
            async with driving(rt):
                await closed.reached()
                await rt.pause(run.id)
                await told_to_stop(rt, run)
                await rt.resume(run.id)
                closed.open()
                ended = await reaches(rt, run, State.DONE, State.PAUSED)
            assert ended.state is State.DONE
            assert calls == ["one", "stand", "two"]
            assert "resumed" in await history(rt, run)


@COLORS
@pytest.mark.parametrize("verb", ["cancel", "pause"])
async def test_a_step_that_does_not_end_is_stopped_after_the_grace(
    url: str, color: str, verb: str
) -> None:
    calls = Calls()
    with gate() as closed:
        async with opened(url) as rt:
            rt.register(standing(calls, closed, color), name="g")
            run = await rt.start("g", said("a"), thread_id="t")
            work = asyncio.create_task(rt.tick())
            await closed.reached()
            await getattr(rt, verb)(run.id, grace=timedelta(0))
            counts = await work  # it does not wait for the node
            state = State.CANCELLED if verb == "cancel" else State.PAUSED
            assert (await rt.get(run.id)).state == state
            assert getattr(counts, state.value) == 1
            last = (await rt.events(run.id))[-1]
            assert (last.kind, last.data) == (state.value, {"forced": True})
            before = await history(rt, run), await checkpoints(rt, "t")
            closed.open()  # what the node still does is not stored
            await until(lambda: closed.left)
            assert (await history(rt, run), await checkpoints(rt, "t")) == before
            assert calls == ["one", "stand"]
            if verb == "pause":
                await rt.resume(run.id)
                await rt.tick()
                assert (await rt.get(run.id)).output == said("a", "one", "stand", "two")
                assert calls == ["one", "stand", "stand", "two"]


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
        op = runs.claim(rt.saver.box, "elsewhere:1:gone", clock.now(), until, ["g@"], 10)
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


# -- retry


class Broken:
    """A node that raises until it is repaired."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error: BaseException | None = error or ValueError("no luck")

    def repair(self) -> None:
        self.error = None

    def __call__(self, state: Any) -> None:
        if self.error is not None:
            raise self.error


async def test_a_failed_run_that_is_retried_goes_on_behind_its_last_step(url: str) -> None:
    calls, broken = Calls(), Broken()
    async with opened(url) as rt:
        nodes = calls.node("one"), calls.node("two", broken), calls.node("three")
        rt.register(chain(*nodes), name="g", retry=ONCE)
        run = await rt.start("g", said("a"))
        assert (await rt.tick()).failed == 1
        assert (await rt.get(run.id)).state == State.FAILED
        assert (await rt.tick()).claimed == 0
        broken.repair()
        again = await rt.retry(run.id)
        assert (again.state, again.error) == (State.PENDING, None)
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", "one", "two", "three")
        assert calls == ["one", "two", "two", "three"]
        assert (await history(rt, run))[-6:-3] == ["failed", "retried", "claimed"]


async def test_only_the_branch_that_failed_runs_again(url: str) -> None:
    calls, broken = Calls(), Broken()
    place: Any = {"configurable": {"thread_id": "t"}}

    def fail_after_good(state: Log) -> None:
        deadline = time.monotonic() + 30.0
        written: list[Any] = []  # or else LangGraph stops the good one with it
        while ["good"] not in written:
            assert time.monotonic() < deadline
            at: Any = rt.saver.get_tuple(place)
            written = [value for _, _, value in at.pending_writes]
        broken(state)

    builder: StateGraph[Any] = StateGraph(Log)
    for name, node in (calls.node("good"), calls.node("bad", fail_after_good)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    builder.add_node(*calls.node("last"))
    builder.add_edge(["good", "bad"], "last")
    async with opened(url) as rt:
        rt.register(builder, name="g", retry=ONCE)
        run = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
        broken.repair()
        await rt.retry(run.id)
        await rt.tick()
        assert sorted(calls) == ["bad", "bad", "good", "last"]
        assert sorted((await rt.get(run.id)).output["log"]) == ["a", "bad", "good", "last"]


async def test_a_retried_run_has_all_its_attempts_again(sqlite_url: str) -> None:
    calls, clock = Calls(), Clock(NOON)
    async with opened(sqlite_url, clock) as rt:
        rt.register(chain(calls.node("one", Broken())), name="g", retry=AT_ONCE)
        run = await rt.start("g", said("a"))
        await rt.tick()
        assert len(calls) == 3
        await rt.retry(run.id)
        await rt.tick()
        assert len(calls) == 6
        assert (await rt.get(run.id)).state == State.FAILED


async def test_retry_is_refused_when_a_later_run_of_the_thread_has_begun(url: str) -> None:
    broken = Broken()
    async with opened(url) as rt:
        rt.register(chain(("one", broken)), name="g", retry=ONCE)
        failed = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
        broken.repair()
        await rt.start("g", said("b"), thread_id="t")
        await rt.tick()
        with pytest.raises(WrongState, match="later run"):
            await rt.retry(failed.id)
        assert (await rt.get(failed.id)).state == State.FAILED


async def test_a_retried_run_goes_before_a_later_one_that_has_not_begun(url: str) -> None:
    calls, broken = Calls(), Broken()
    async with opened(url) as rt:
        rt.register(chain(calls.node("one", broken)), name="g", retry=ONCE)
        failed = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
        later = await rt.start("g", said("b"), thread_id="t")
        broken.repair()
        await rt.retry(failed.id)
        assert (await rt.get(later.id)).due_at is None
        await rt.tick()
        assert (await rt.get(failed.id)).output == said("a", "one")
        assert (await rt.get(later.id)).output == said("a", "one", "b", "one")


# -- segments that fail


async def test_a_failed_segment_is_driven_again_after_a_pause_that_survives_the_process(
    url: str,
) -> None:
    calls, clock = Calls(), Clock(NOON)
    policy = Retry(attempts=4, first=timedelta(minutes=1), factor=3.0, longest=HOUR / 10)
    run: Run | None = None
    for minutes in (1, 3, 6):
        async with opened(url, clock) as rt:
            rt.register(chain(calls.node("one", Broken())), name="g", retry=policy)
            run = run or await rt.start("g", said("a"))
            await rt.tick()
            found = await rt.get(run.id)
            assert found.state == State.PENDING
            assert found.due_at == clock.time + timedelta(minutes=minutes)
            assert found.error is not None
            assert found.error.message == "no luck"
            clock.advance(timedelta(minutes=minutes) - SECOND)
            assert (await rt.tick()).claimed == 0
            clock.advance(SECOND)
    assert run is not None
    async with opened(url, clock) as rt:
        rt.register(chain(calls.node("one", Broken())), name="g", retry=policy)
        assert (await rt.tick()).failed == 1
        assert (await rt.get(run.id)).state == State.FAILED
        assert len(calls) == 4
        assert (await history(rt, run)).count("failed") == 4


async def test_a_step_in_between_gives_a_run_all_its_attempts_again(sqlite_url: str) -> None:
    calls = Calls()

    def now_and_then(state: Any) -> None:
        if calls.count(calls[-1]) < 3:
            raise ValueError("not yet")

    async with opened(sqlite_url) as rt:
        names = [f"n{n}" for n in range(4)]
        nodes = [calls.node(name, now_and_then) for name in names]
        rt.register(chain(*nodes), name="g", retry=AT_ONCE)
        run = await rt.start("g", said("a"))
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", *names)
        assert calls == [name for name in names for _ in range(3)]


class Boom(Exception):
    """An error of an agent's own."""


async def test_the_error_of_a_failed_run_says_what_happened_and_where(url: str) -> None:
    def explode(state: Log) -> Any:
        raise Boom("the boiler is dry")

    async with opened(url) as rt:
        rt.register(chain(explode), name="g", retry=ONCE)
        run = await rt.start("g", said("a"))
        await rt.tick()
        async with opened(url) as another:
            found = await another.get(run.id)
        assert found.state == State.FAILED
        assert found.output is None
        assert found.error is not None
        assert found.error.kind == f"{__name__}.Boom"
        assert found.error.message == "the boiler is dry"
        assert "in explode" in found.error.traceback
        assert str(found.error) == f"{__name__}.Boom: the boiler is dry"
        last = (await rt.events(run.id))[-1]
        assert (last.kind, last.data["message"]) == ("failed", "the boiler is dry")


class Mute(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    "error",
    [Mute(), ValueError("\ud800 \x00"), ValueError("x" * 1_000_000)],
    ids=["mute", "surrogate", "long"],
)
async def test_a_run_fails_cleanly_whatever_its_error_looks_like(
    url: str, error: Exception
) -> None:
    async with opened(url) as rt:
        rt.register(chain(("one", Broken(error))), name="g", retry=ONCE)
        run = await rt.start("g", said("a"))
        assert (await rt.tick()).failed == 1
        found = await rt.get(run.id)
        assert found.state == State.FAILED
        assert found.error is not None
        assert len(found.error.traceback) <= 100_000


@pytest.mark.parametrize("way", ["exit", "cancel", "cancel in a coroutine"])
async def test_a_node_that_raises_what_is_no_exception_counts_as_failed(
    sqlite_url: str, way: str
) -> None:
    calls = Calls()
    error = SystemExit(3) if way == "exit" else asyncio.CancelledError()

    async def one(state: Any) -> None:
        raise error

    plain = calls.node("one", Broken(error))
    node = calls.coroutine("one", one) if "coroutine" in way else plain
    async with opened(sqlite_url) as rt:
        rt.register(chain(node), name="g", retry=AT_ONCE)
        run = await rt.start("g", said("a"))
        counts = await rt.tick(limit=10)
        assert (await rt.get(run.id)).state == State.FAILED
        assert counts.claimed == len(calls) == 3


async def test_an_error_that_would_only_come_again_fails_the_run_at_once(url: str) -> None:
    calls = Calls()

    def unstorable(state: Any) -> Any:
        return {"value": threading.Lock()}

    def of_nothing(state: Any) -> Any:
        return {"nobody": 1}

    def in_circles() -> StateGraph[Any]:
        builder = chain(calls.node("circle"))
        return builder.add_edge("circle", "circle")

    graphs: dict[str, tuple[StateGraph[Any], Any, str]] = {
        "unstorable": (chain(calls.node("one", unstorable)), said("a"), "Unserializable"),
        "circle": (in_circles(), said("a"), "GraphRecursionError"),
        "empty": (chain(calls.node("one")), None, "EmptyInputError"),
        "conflict": (_conflict(), said("a"), "InvalidUpdateError"),
    }
    async with opened(url) as rt:
        for name, (graph, input, kind) in graphs.items():
            rt.register(graph, name=name)
            run = await rt.start(name, input, config={"recursion_limit": 5})
            await rt.tick()
            found = await rt.get(run.id)
            assert (name, found.state) == (name, State.FAILED)
            assert found.error is not None
            assert found.error.kind.endswith(kind)
        assert calls.count("one") == 1


def _conflict() -> StateGraph[Any]:
    """Two branches that write the same."""
    builder: StateGraph[Any] = StateGraph(Log)
    for name in ("left", "right"):
        builder.add_node(name, lambda state: {"value": 1})
        builder.add_edge(START, name)
    return builder


async def test_a_failed_run_lets_the_next_one_of_its_thread_go(url: str) -> None:
    broken = Broken()
    async with opened(url) as rt:
        rt.register(chain(("one", broken), echo), name="g", retry=ONCE)
        failed = await rt.start("g", said("a"), thread_id="t")
        queued = await rt.start("g", said("b"), thread_id="t", after=HOUR)
        await rt.tick()
        broken.repair()
        assert (await rt.get(failed.id)).state == State.FAILED
        assert (await rt.get(queued.id)).due_at == NOON + HOUR


# -- steps that do not return


@COLORS
async def test_a_step_that_never_returns_fails_by_its_timeout_and_is_tried_again(
    url: str, color: str
) -> None:
    calls = Calls()
    with gate() as closed:
        async with opened(url) as rt:
            graph = standing(calls, closed, color)
            rt.register(graph, name="g", timeout=SOON, retry=AT_ONCE)
            run = await rt.start("g", said("a"), thread_id="t")
            await rt.tick()  # returns although the first node is still there
            found = await rt.get(run.id)
            assert (found.state, found.output) == (State.DONE, said("a", "one", "stand", "two"))
            assert calls == ["one", "stand", "stand", "two"]
            [told] = [event for event in await rt.events(run.id) if event.kind == "failed"]
            assert told.data["kind"] == "perdure.errors.StepTimeout"
            before = await history(rt, run), await checkpoints(rt, "t")
            closed.open()
            await until(lambda: closed.left)
            assert (await history(rt, run), await checkpoints(rt, "t")) == before


async def test_a_step_that_never_returns_fails_the_run_in_the_end(sqlite_url: str) -> None:
    with gate() as closed:
        async with opened(sqlite_url) as rt:
            policy = Retry(attempts=2, first=timedelta(0))
            rt.register(chain(("stand", closed.wait)), name="g", timeout=SOON, retry=policy)
            run = await rt.start("g", said("a"))
            counts = await rt.tick()
            found = await rt.get(run.id)
            assert found.state == State.FAILED
            assert found.error is not None
            assert found.error.kind == "perdure.errors.StepTimeout"
            assert str(SOON) in found.error.message
            assert (counts.claimed, counts.failed) == (2, 1)


async def test_the_timeout_bounds_a_step_and_not_the_run(sqlite_url: str) -> None:
    async def take_a_while(state: Log) -> Any:
        await asyncio.sleep(0.3)
        return {"log": ["."]}

    async with opened(sqlite_url) as rt:
        nodes = [(f"n{n}", take_a_while) for n in range(4)]
        rt.register(chain(*nodes), name="g", timeout=2 * SOON, retry=ONCE)
        run = await rt.start("g", said("a"))
        await rt.tick()
        assert (await rt.get(run.id)).state == State.DONE


@pytest.mark.parametrize("bound", ["timeout", "lease"])
async def test_a_coroutine_that_blocks_its_event_loop_loses_its_run_to_another_worker(
    url: str, bound: str
) -> None:
    calls = Calls()

    def graph(node: Any) -> StateGraph[Any]:
        return chain(calls.coroutine("one"), calls.coroutine("two", node), calls.coroutine("three"))

    async def go(state: Any) -> None:
        return None

    timeout = SOON if bound == "timeout" else HOUR
    with gate() as closed, Runtime(url, lease=SOON) as stuck, Runtime(url, lease=SOON) as healthy:
        stuck.register(graph(closed.freeze), name="g", timeout=timeout, retry=AT_ONCE)
        healthy.register(graph(go), name="g", timeout=timeout, retry=AT_ONCE)
        run = await stuck.start("g", said("a"), thread_id="t")
        frozen = asyncio.create_task(asyncio.to_thread(stuck.blocking.tick))
        await closed.reached()
        async with driving(healthy):
            done = await reaches(healthy, run, State.DONE)
        assert done.output == said("a", "one", "two", "three")
        before = await history(healthy, run), await checkpoints(healthy, "t")
        assert ("failed" if bound == "timeout" else "recovered") in before[0]
        closed.open()
        await frozen
        assert (await history(healthy, run), await checkpoints(healthy, "t")) == before
        assert calls == ["one", "two", "two", "three"]


# -- fork


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


async def test_a_fork_of_a_finished_run_is_finished_too(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(echo), name="g")
        old = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
        new = await rt.fork(old.id)
        await rt.tick()
        assert (await rt.get(new.id)).output == said("a", "echo")


async def test_a_fork_of_a_failed_run_is_a_way_past_the_step_that_fails(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(echo, fail, ("last", echo)), name="g", retry=ONCE)
        old = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
        new = await rt.fork(old.id, update=said("by hand"), as_node="fail")
        await rt.tick()
        assert (await rt.get(new.id)).output == said("a", "echo", "by hand", "echo")
        assert (await rt.get(old.id)).state == State.FAILED


async def test_a_fork_refuses_a_thread_and_a_checkpoint_that_do_not_fit(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(echo), name="g")
        old = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
        with pytest.raises(BadArgument, match="'t' has runs already"):
            await rt.fork(old.id, thread_id="t")
        with pytest.raises(NotFound, match="nothing"):
            await rt.fork(old.id, at="nothing")
        assert [run.id for run in await rt.runs()] == [old.id]


async def test_a_fork_keeps_its_steps_when_the_old_run_is_rolled_back_or_pruned(url: str) -> None:
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        rt.register(chain(echo, approve), name="g")
        old = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
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
    claiming, go_on = threading.Event(), threading.Event()

    def hook(point: str) -> None:
        if point.startswith("claim."):
            claiming.set()
            go_on.wait(10)

    async with opened(url) as rt:
        calls = Calls()
        rt.register(chain(calls.node("one")), name="g")
        run = await rt.start("g", said("a"))
        monkeypatch.setattr(probe, "hook", hook)
        working = asyncio.create_task(rt.work(signals=False, grace=timedelta(0)))
        assert await asyncio.to_thread(claiming.wait, 10)
        working.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert (await rt.get(run.id)).state in (State.PENDING, State.DONE)
