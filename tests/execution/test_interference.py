"""What others do at the worst moment changes nothing that was promised.

A reply that gets lost, a run that is pruned while a driver sleeps, a database that answers late,
other applications on the same journal: each of these once broke something.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.commands import claims, starting
from perdure.commands.claims import LeaseTimes, SegmentEnd
from perdure.errors import LeaseLost, ThreadBusy
from perdure.execution.segment import KEY, Segment
from perdure.execution.segment_end import end_segment
from perdure.journal.clock import JournalClock, journal_time
from perdure.journal.operation import Ambiguous, Op
from perdure.saver import Saver
from perdure.types import EventKind, State
from tests.support.agents import chain, driven, history, opened
from tests.support.entries import faulty
from tests.support.raw import execute


def said(*texts: Any) -> dict[str, Any]:
    return {"log": list(texts)}


def echo(state: Any) -> Any:
    return said("echo")


def hears(state: Any) -> Any:
    return {"log": [perdure.wait_for("go")]}


@pytest.mark.parametrize("lost", ["before it was committed", "after it was committed"])
async def test_a_lost_reply_is_not_settled_by_the_run_of_an_earlier_start(
    url: str, lost: str
) -> None:
    async with opened(url) as rt:
        run = await driven(rt, chain(("hears", hears)), said("a"), thread_id="t", key="k")
        backend = faulty(rt.journal)
        getattr(backend, lost.partition(" ")[0]).append(Ambiguous("the connection is gone"))
        again, kept = await asyncio.gather(
            rt.start("g", said("a"), thread_id="t", key="k"), rt.signal("t", "go", 7)
        )
        assert (again.id, kept) == (run.id, True)
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", 7)


async def test_an_answer_that_was_sent_twice_is_accepted_and_told_once(url: str) -> None:
    def asks(state: Any) -> Any:
        return {"log": [perdure.ask("ok?")]}

    async with opened(url) as rt:
        run = await driven(rt, chain(("asks", asks)), said("a"), thread_id="t")
        [wait] = await rt.waits()
        backend = faulty(rt.journal)
        # The first is committed and its reply is lost; so is the reading that would have told.
        backend.after.append(Ambiguous("the connection is gone"))
        read, first = backend.read, True

        def blind(statements: Any) -> Any:
            nonlocal first
            if first and statements[0].name == "find_event":
                first = False
                return [[] for _ in statements]
            return read(statements)

        backend.read = blind  # type: ignore[method-assign]
        await rt.answer(wait.id, "yes", by="ana")
        assert (await history(rt, run)).count("answer") == 1
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", "yes")


async def test_a_driver_whose_run_was_pruned_writes_nothing(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(("echo", echo)), name="g")
        await rt.start("g", said("a"), thread_id="t")
        driver, keeper = rt.engine, rt.engine.keeper
        claim = claims.claim(
            driver.serializer, keeper.worker, LeaseTimes(driver.clock.now(), 0), ["g@"], 1
        )
        [row] = rt.journal.do(claim)
        segment = Segment(row, rt.saver, driver.clock, durability="sync")
        rt.journal.run(
            end_segment(driver, row, SegmentEnd(State.CANCELLED, EventKind.CANCELLED, {}))
        )
        rt.clock.advance(timedelta(days=1))
        assert await rt.prune(older_than=timedelta(hours=1)) == 1
        later = await rt.start("g", said("b"), thread_id="t")
        await rt.tick()
        config: Any = {"configurable": {"thread_id": "t", KEY: segment.name}}
        graph = chain(("echo", echo)).compile(checkpointer=rt.saver)
        with pytest.raises(LeaseLost):
            await graph.ainvoke(said("zombie"), config, durability="sync")
        assert (await rt.get(later.id)).output == said("b", "echo")
        state = graph.get_state({"configurable": {"thread_id": "t"}}).values
        assert state == said("b", "echo")


async def test_the_time_is_never_ahead_however_late_the_database_answers(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("perdure.journal.clock.time.monotonic", lambda: now[0])
    with Saver(sqlite_url) as saver:
        peek: Callable[[Op[Any]], Any] = saver.journal.read_committed

        def slowly(op: Op[Any]) -> Any:
            now[0] += 8.0  # it answers at the end of a stall
            return peek(op)

        monkeypatch.setattr(saver.journal, "read_committed", slowly)
        told = peek(journal_time())
        assert JournalClock(saver.journal).now() - told < 6000


async def test_a_run_that_is_retried_while_it_is_pruned_keeps_its_history(url: str) -> None:
    def fails(state: Any) -> Any:
        raise ValueError("no luck")

    async with opened(url) as rt, opened(url) as other:
        for one in (rt, other):
            one.register(chain(("fails", fails)), name="g", retry=perdure.Retry(attempts=1))
        run = await rt.start("g", said("a"))
        await rt.tick()
        rt.clock.advance(timedelta(days=1))
        ado = rt.journal.ado

        async def meanwhile(op: Op[Any]) -> Any:
            if op.name == "delete_run":
                await other.retry(run.id)
            return await ado(op)

        rt.journal.ado = meanwhile  # type: ignore[method-assign]
        await rt.prune(older_than=timedelta(hours=1))
        rt.journal.ado = ado  # type: ignore[method-assign]
        assert (await history(rt, run))[0] == "started"
        assert (await rt.get(run.id)).state is State.PENDING


@dataclass
class Mine:
    """A type that only one application knows."""

    n: int


async def test_a_schedule_of_another_application_disturbs_nobody(url: str) -> None:
    async with opened(url, allow=[Mine]) as theirs, opened(url) as rt:
        theirs.register(chain(("echo", echo)), name="theirs")
        await theirs.schedule("nightly", "theirs", cron="* * * * *", input={"log": [Mine(1)]})
        rt.register(chain(("echo", echo)), name="mine")
        run = await rt.start("mine", said("a"))
        rt.clock.advance(timedelta(seconds=90))
        theirs.clock.advance(timedelta(seconds=90))
        assert (await rt.tick()).scheduled == 0
        assert (await rt.get(run.id)).state is State.DONE
        assert (await theirs.tick()).scheduled == 1


async def test_a_bound_graph_leaves_the_runs_of_other_graphs_alone(sqlite_url: str) -> None:
    def asks(state: Any) -> Any:
        return {"log": [perdure.ask("ok?")]}

    async with opened(sqlite_url) as rt:
        rt.register(chain(("asks", asks)), name="one")
        other = rt.register(chain(("echo", echo)), name="other")
        run = await rt.start("one", said("a"), thread_id="t")
        await rt.tick()
        with pytest.raises(ThreadBusy, match="of the graph 'one'"):
            await other.ainvoke(None, {"configurable": {"thread_id": "t"}})
        assert (await rt.get(run.id)).state is State.WAITING


async def test_a_call_whose_process_died_does_not_block_the_next_one(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        graph = rt.register(chain(("echo", echo)), name="g")
        setup = {"input": said("a"), "inline": True}
        accepted = rt.journal.run(starting.accept(rt.engine, ("g", ""), "t", setup, "interrupt"))
        now, serializer = rt.clock.now(), rt.saver.serializer
        rt.journal.do(
            claims.claim_run(serializer, "gone:1:ab", LeaseTimes(now, now), "t", accepted.id)
        )
        rt.clock.advance(timedelta(minutes=1))  # and nobody works here
        got = await graph.ainvoke(said("b"), {"configurable": {"thread_id": "t"}})
        assert got["log"][-1] == "echo"
        left = await rt.get(accepted.id)
        assert left.state is State.CANCELLED
        assert "its caller died" in str(left.reason)


async def test_what_cannot_be_begun_is_held_and_says_why(sqlite_url: str) -> None:
    def asks(state: Any) -> Any:
        return {"log": [perdure.ask("ok?")]}

    async with opened(sqlite_url, allow=[Mine]) as knows, opened(sqlite_url) as rt:
        for one in (knows, rt):
            one.register(chain(("asks", asks)), name="g")
        run = await rt.start("g", said("a"))
        await rt.tick()
        [wait] = await rt.waits()
        await knows.answer(wait.id, Mine(1))
        await rt.tick()
        found = await rt.get(run.id)
        assert found.state is State.HELD
        assert "Mine is not allowed" in str(found.reason)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_a_loop_of_its_own(sqlite_url: str) -> None:
    with perdure.Runtime(sqlite_url) as rt:
        rt.register(chain(("echo", echo)), name="g")
        rt.blocking.start("g", said("a"))
        if (pid := os.fork()) == 0:
            signal.alarm(60)
            rt.blocking.start("g", said("b"))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(rt.blocking.runs()) == 2
        assert execute(sqlite_url, "SELECT count(*) FROM perdure_runs") == [(2,)]
