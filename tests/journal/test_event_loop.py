"""Nothing that perdure does on an event loop blocks it: not a read, and not the first opening."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from blockbuster import BlockBuster, BlockingError
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

import perdure
from perdure.errors import BadURL, Closed
from perdure.journal import connect
from perdure.saver import Saver
from perdure.testing import Clock
from tests.support.agents import NOON, Log, chain
from tests.support.entries import add, entries


@contextmanager
def nothing_blocks() -> Iterator[None]:
    """Whatever perdure does on an event loop inside of this block must not block it.

    What is found is noted and raised where it happens; the caller may handle what is
    raised, so the block fails at its end, with the places.
    """
    found: list[str] = []

    def note(self: BlockingError, function: str) -> None:
        Exception.__init__(self, f"Blocking call to {function}")
        frames = [one for one in traceback.extract_stack() if "/perdure/" in one.filename]
        places = [f"{one.filename.rpartition('/perdure/')[2]}:{one.lineno}" for one in frames]
        found.append(f"{function} at {' > '.join(places[-4:])}")

    buster = BlockBuster("perdure")
    for name in [name for name in buster.functions if name.startswith("threading.Lock")]:
        # Locks are held for microseconds; whether one is just then is chance.
        del buster.functions[name]
    for function in buster.functions.values():  # the rules of a time zone are read once
        function.can_block_in("perdure/commands/schedules.py", "slots")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockingError, "__init__", note)
        buster.activate()
        try:
            yield
        finally:
            buster.deactivate()
    assert not found, "\n".join(dict.fromkeys(found))


A: RunnableConfig = {"configurable": {"thread_id": "a"}}


@perdure.effect
async def send(text: str) -> str:
    return f"sent {text}"


async def draft(state: Log) -> Any:
    now = perdure.now()
    return {"log": [await send("draft"), str(now.year > 2000)]}


async def review(state: Log) -> Any:
    return {"log": [str(perdure.ask("send it?"))]}


async def nap(state: Log) -> Any:
    perdure.sleep(timedelta(hours=1))
    return {"log": ["slept"]}


def test_a_check_that_finds_nothing_finds_a_read_on_the_loop(sqlite_url: str) -> None:
    journal = connect(sqlite_url)

    async def read() -> None:
        with nothing_blocks():
            journal.do(entries())

    with pytest.raises(BlockingError, match=r"os.stat"):
        asyncio.run(read())
    journal.close()


async def test_neither_the_first_use_of_a_journal_nor_the_next_blocks(url: str) -> None:
    journal = perdure.journal.connect_later(url)
    with nothing_blocks():
        opened = [journal.is_open]
        assert await journal.ado(entries()) == []
        assert [*opened, journal.is_open] == [False, True]
        await journal.ado(add(1))
        assert await asyncio.gather(*[journal.ado(entries()) for _ in range(30)]) == [[1]] * 30
    journal.close()


async def test_nor_does_a_saver(empty_url: str) -> None:
    async with Saver(empty_url) as opened:
        pass
    saver = Saver(empty_url)
    with nothing_blocks():
        graph = chain(("draft", draft), ("review", review)).compile(checkpointer=saver)
        await graph.ainvoke({"log": []}, A)
        done = await graph.ainvoke(Command(resume="yes"), A)
        assert done["log"] == ["sent draft", "True", "yes"]
        past = [one async for one in graph.aget_state_history(A)]
        await graph.aupdate_state(past[2].config, {"log": ["again"]}, as_node="draft")
        await saver.aget_delta_channel_history(config=A, channels=["log"])
        await saver.acopy_thread("a", "b")
        await saver.aprune(["a"])
        await saver.adelete_for_runs(["none"])
        await saver.adelete_thread("b")
        await saver.aflush()
    await asyncio.to_thread(saver.close)
    assert opened is not saver


async def test_nor_do_a_client_and_a_runtime(url: str) -> None:
    rt = perdure.Runtime(url)
    client = perdure.Client(url)
    with nothing_blocks():
        rt.register(chain(("draft", draft), ("review", review), ("nap", nap)), name="g")
        run = await client.start("g", {"log": []}, thread_id="t", metadata={"a": 1})
        await rt.tick()
        [wait] = await client.waits()
        await client.answer(wait.id, "yes", by="ann")
        await rt.tick()
        await client.get(run.id)
        await client.runs(metadata={"a": 1})
        await client.events(run.id)
        await client.effects(run_id=run.id)
        await client.messages()
        await client.score(run.id, "good", 1.0)
        await client.scores(run.id)
        await client.schedule("hourly", "g", cron="0 * * * *")
        await client.schedules()
        await client.unschedule("hourly")
        await client.signal("t", "word", 1)
        await client.now()
        await client.ping()
        await client.doctor()
        forked = await rt.fork(run.id)
        await rt.cancel(forked.id)
        await rt.pause(run.id)
        await rt.resume(run.id)
        await rt.cancel(run.id)
        await rt.work(until_idle=True, handle_signals=False)
        await client.prune(older_than=timedelta(0))
    await asyncio.to_thread(rt.close)
    await asyncio.to_thread(client.close)


async def test_nor_does_a_bound_graph(url: str) -> None:
    rt = perdure.Runtime(url)
    with nothing_blocks():
        graph = rt.register(chain(("draft", draft), ("review", review)), name="g")
        await graph.ainvoke({"log": []}, A)
        parts = [one async for one in graph.astream(Command(resume="yes"), A)]
        assert parts
        assert (await graph.aget_state(A)).values["log"] == ["sent draft", "True", "yes"]
        [*past] = [one async for one in graph.aget_state_history(A)]
        await graph.aupdate_state(A, {"log": ["more"]})
        assert past
    await asyncio.to_thread(rt.close)


async def test_nor_does_asking_a_clock_whose_time_is_old(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.journal.clock.STALE", 0.0)
    async with perdure.Runtime(url) as rt:
        rt.register(chain(("review", review)), name="g")
        with nothing_blocks():
            for n in range(3):
                await rt.start("g", {"log": []}, thread_id=str(n))
            assert (await rt.tick()).waiting == 3


async def test_what_cannot_be_opened_is_named_by_the_first_use() -> None:
    saver = Saver("sqlite:////no/such/folder/journal.db")
    with pytest.raises(BadURL, match="/no/such/folder does not exist"):
        await saver.aget_tuple(A)
    with pytest.raises(BadURL, match="/no/such/folder does not exist"):
        saver.get_tuple(A)
    with pytest.raises(BadURL, match="/no/such/folder does not exist"):
        await perdure.Client("sqlite:////no/such/folder/journal.db").runs()
    assert not saver.is_open


async def test_a_closed_journal_leaves_no_thread_and_no_connection(sqlite_url: str) -> None:
    before = {*threading.enumerate()}
    journal = connect(sqlite_url)
    database = journal._backend.open()  # type: ignore[attr-defined]
    reads = asyncio.gather(*(journal.ado(entries()) for _ in range(20)))
    await asyncio.sleep(0)
    reads.cancel()  # the threads are in the middle of it
    journal.close()
    readers = [one for one in {*threading.enumerate()} - before if one.name == "perdure-read"]
    for one in readers:
        await asyncio.to_thread(one.join, 10)
    assert not any(one.is_alive() for one in readers)
    assert not database._idle
    with pytest.raises(Closed):
        await journal.ado(entries())


async def test_a_clock_of_a_test_is_asked_for_nothing(url: str) -> None:
    async with perdure.Runtime(url, clock=Clock(NOON)) as rt:
        assert await rt.now() == NOON
