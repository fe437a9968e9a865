"""What a runtime asks of its database: on one that is paid by the request, that is its cost.

Each figure is exact: a read or a commit more is found here, and not on a bill.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from langchain_core.runnables import RunnableConfig

import perdure
from perdure.execution import lease
from perdure.execution.worker import Worker
from perdure.journal import Poll, group_commit
from perdure.runtime import Runtime
from perdure.types import Message, State
from tests.execution.counting import Counting, Request, count_requests
from tests.support.agents import Calls, Log, chain, driving, gate
from tests.support.polling import auntil

HOUR = timedelta(hours=1)


@asynccontextmanager
async def counted(
    url: str, monkeypatch: pytest.MonkeyPatch, *, poll: float = 3600.0, lease: timedelta = HOUR
) -> AsyncIterator[tuple[Runtime, Counting]]:
    """A runtime that is open, and has had its first tick. However slow this machine is: it looks
    again when a segment ended, leases need no renewal, and what is deferred waits for a commit."""
    monkeypatch.setattr(group_commit, "HOLD", 60.0)
    backend = count_requests(url, monkeypatch, poll)
    async with Runtime(url, lease=lease) as rt:
        rt.journal.set_interval(60.0)
        calls = Calls()
        for steps in (1, 3):
            rt.register(chain(*(calls.node(f"step {n}") for n in range(steps))), name=f"{steps}")
        rt.register(chain(nap), name="nap")
        rt.register(chain(mail), name="mail")
        rt.register(chain(question), name="question")
        for graph in ("1", "3", "nap", "mail", "question"):  # a graph is stored with its first run
            await rt.start(graph, {"log": []})
        await rt.tick()
        backend.take()
        yield rt, backend


def nap(state: Log) -> Log:
    perdure.sleep(HOUR)
    return {"log": ["nap"]}


def question(state: Log) -> Log:
    return {"log": [perdure.ask("sure?")]}


def mail(state: Log) -> Log:
    return {"log": [send("ada")]}


@perdure.effect(name="send of test_requests")
def send(to: str) -> str:
    return to


def kinds(requests: list[Request]) -> str:
    """Reads and commits in order: `rwwr`."""
    return "".join("w" if one.writes else "r" for one in requests)


async def test_a_tick_with_nothing_due_is_one_request(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted(url, monkeypatch) as (rt, backend):
        for n in range(5):
            await rt.start("nap", {"log": []}, thread_id=f"asleep {n}")
        await rt.tick()
        await rt.schedule("yearly", "1", cron="0 0 1 1 *")
        backend.take()
        assert (await rt.tick()).claimed == 0
        assert kinds(backend.take()) == "r"

        def deliver(message: Message) -> None: ...

        rt.deliver("news", deliver)
        assert (await rt.tick()).claimed == 0
        assert kinds(backend.take()) == "r"


@pytest.mark.parametrize(("graph", "asked"), [("1", "rwwr"), ("3", "rwwr"), ("mail", "rwwwwr")])
async def test_a_run_of_a_tick_is_a_look_a_claim_its_commits_and_a_look(
    url: str, monkeypatch: pytest.MonkeyPatch, graph: str, asked: str
) -> None:
    async with counted(url, monkeypatch) as (rt, backend):
        run = await rt.start(graph, {"log": []}, thread_id="t")
        assert kinds(backend.take()) == "w"
        await rt.tick()
        assert kinds(found := backend.take()) == asked, found
        assert (await rt.get(run.id)).state is State.DONE


async def test_a_run_that_was_answered_goes_on_with_nine_requests(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted(url, monkeypatch) as (rt, backend):
        run = await rt.start("question", {"log": []})
        await rt.tick()
        [wait] = await rt.waits(run_id=run.id)
        backend.take()
        await rt.answer(wait.id, "yes")
        assert kinds(backend.take()) == "rw"
        await rt.tick()
        found = backend.take()
        assert kinds(found) == "rwrwrwrwr", found
        assert found[2].statements == ("waits_of_run", "signals_of_run")
        assert (await rt.get(run.id)).output == {"log": ["yes"]}


async def test_runs_that_a_tick_drives_at_once_share_their_requests(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted(sqlite_url, monkeypatch) as (rt, backend):
        for n in range(25):
            await rt.start("3", {"log": []}, thread_id=f"{n}")
        backend.take()
        assert (await rt.tick()).done == 25
        assert len(backend.take()) < 50, "each alone takes four"


async def test_a_due_run_that_a_worker_cannot_drive_is_not_claimed_at_every_look(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted(sqlite_url, monkeypatch) as (rt, backend):
        await rt.start("3", {"log": []})
        backend.take()
        assert (await rt.work(graphs=["1"], until_idle=True)).claimed == 0
        assert kinds(backend.take()) == "r"


async def test_an_idle_worker_asks_once_per_poll_and_for_everything(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests = 0
    real = Worker._rest

    async def rest(self: Worker, soon_at: int | None) -> None:
        nonlocal rests
        rests += 1
        await real(self, soon_at)

    monkeypatch.setattr(lease, "SOON", 3600.0)
    async with counted(url, monkeypatch, poll=0.01) as (rt, backend):
        await rt.start("nap", {"log": []})
        await rt.tick()
        await rt.schedule("yearly", "1", cron="0 0 1 1 *")
        monkeypatch.setattr(Worker, "_rest", rest)
        backend.take()
        async with driving(rt):
            await auntil(lambda: rests >= 50, "a worker that looked 50 times")
        found = backend.take()
        assert rests <= len(found) <= rests + 1  # it may have been stopped right after a look
        assert kinds(found) == "r" * len(found)
        asked = {one for request in found for one in request.statements}
        assert asked - {"journal_time"} == {  # the time too, on a slow machine: every two seconds
            "leased_workers",
            "next_due",
            "claimable",
            "due_schedules",
            "oldest_kept",
            "next_message",
        }


async def test_a_worker_announces_itself_with_one_commit_and_leaves_with_another(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SOON", 0.0)
    async with counted(url, monkeypatch) as (rt, backend):
        async with driving(rt):
            await auntil(lambda: any(one.writes for one in backend.requests))
        commits = [one.statements for one in backend.take() if one.writes]
        announced = ("announced", "announce_worker", "delete_workers")
        assert commits == [announced, ("delete_workers",)]


async def test_leases_are_renewed_by_one_commit_and_no_read(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = timedelta(seconds=1)
    async with counted(url, monkeypatch, lease=lease) as (rt, backend):
        with gate() as closed:
            rt.register(chain(("wait", closed.wait)), name="closed")
            await rt.start("closed", {"log": []})
            async with driving(rt):
                await closed.reached()
                backend.take()
                await auntil(lambda: len(backend.requests) >= 3, "three renewals")
                found = backend.take()
                closed.open()  # a worker that ends waits for its runs
                assert {one.statements[:2] for one in found} == {("renew", "leases")}


async def test_a_call_that_waits_for_its_turn_asks_once_per_poll(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted(url, monkeypatch, poll=0.01) as (rt, backend):
        with gate() as closed:
            graph = rt.register(chain(("wait", closed.wait)), name="closed")
            on_thread: RunnableConfig = {"configurable": {"thread_id": "t"}}
            first = asyncio.create_task(graph.ainvoke({"log": []}, on_thread))
            await closed.reached()
            backend.take()
            second = asyncio.create_task(graph.ainvoke({"log": []}, on_thread))
            await auntil(lambda: len(backend.requests) >= 10, "a call that waits")
            accepted, claimed, *looks = backend.take()
            assert "insert_run" in accepted.statements
            assert "claim_run" in claimed.statements
            assert {one.statements for one in looks} == {("run_by_id", "head_of_thread")}
            closed.open()
            await asyncio.gather(first, second)


async def test_a_call_whose_turn_comes_in_its_own_process_does_not_wait_for_the_poll(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Poll, "next_rest", lambda self, poll: poll)  # an hour, from the first on
    async with counted(sqlite_url, monkeypatch) as (rt, backend):
        with gate() as closed:
            graph = rt.register(chain(("wait", closed.wait)), name="closed")
            on_thread: RunnableConfig = {"configurable": {"thread_id": "t"}}
            first = asyncio.create_task(graph.ainvoke({"log": []}, on_thread))
            await closed.reached()
            second = asyncio.create_task(graph.ainvoke({"log": []}, on_thread))
            found = await auntil(lambda: rt.runs(thread_id="t", state=State.PENDING))
            joined = asyncio.create_task(rt.join(found[0].id))
            looked = ("run_by_id", "head_of_thread")
            await auntil(lambda: looked in [one.statements for one in backend.requests])
            closed.open()
            await asyncio.gather(first, second)
            assert (await joined).state is State.DONE
