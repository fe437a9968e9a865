"""Closing a runtime, or a signal, gives back what it drives. What is closed can be opened again."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.errors import Closed
from perdure.observe.trace_exporter import RunSpans, TraceSink
from perdure.shutdown import drain_on_signals
from perdure.types import State
from tests.support.agents import Calls, chain, gate
from tests.support.polling import auntil, until


class Sink(TraceSink):
    """Keeps the runs whose spans it was given."""

    name, spans = "kept", 100

    def __init__(self) -> None:
        super().__init__()
        self.runs: set[str] = set()

    def give(self, runs: Sequence[RunSpans]) -> bool:
        self.runs |= {run.run_id for run in runs}
        return True


def test_what_was_closed_is_opened_again_with_its_graphs_checkpoints_and_observers(
    url: str,
) -> None:
    sink = Sink()
    rt = perdure.Runtime(url, observe=sink)
    graph = rt.register(chain(Calls().node("a")), name="g")
    config: Any = {"configurable": {"thread_id": "t"}}
    for n in range(1, 4):
        with rt:
            assert graph.invoke({"log": []}, config)["log"] == ["a"] * n
            run = rt.blocking.start("g", {})
            assert rt.blocking.tick().done == 1
        assert run.id in sink.runs
        with pytest.raises(Closed, match="setup"):
            graph.invoke({"log": []}, config)
        with pytest.raises(Closed, match="setup"):
            rt.blocking.tick()
    rt.close()


async def asked_to_stop(rt: perdure.Runtime) -> None:
    await auntil(lambda: all(drive.stop for drive in rt.engine.keeper.driven))


@pytest.mark.parametrize("way", ["from another thread", "in its event loop"])
async def test_closing_gives_back_what_is_driven(sqlite_url: str, way: str) -> None:
    calls = Calls()
    with gate() as door:
        rt = perdure.Runtime(sqlite_url, lease=timedelta(minutes=10))
        rt.register(chain(("a", door.wait), calls.node("b")), name="g")
        run = await rt.start("g", {})
        ticking = asyncio.create_task(rt.tick())
        await door.reached()
        if way == "in its event loop":  # which cannot wait for its own step
            rt.close()
        else:
            closing = asyncio.create_task(asyncio.to_thread(rt.close))
            await asked_to_stop(rt)
            door.open()
            await closing
            assert (await ticking).released == 1
    await asyncio.gather(ticking, return_exceptions=True)
    async with perdure.Client(sqlite_url) as client:
        found = await client.get(run.id)
    assert (found.state, found.attempts, calls) == (State.PENDING, 0, [])


@pytest.mark.parametrize("grace", [0, 600], ids=["after its grace", "when cancelled once more"])
async def test_a_cancelled_worker_gives_back_a_step_that_does_not_end_and_prints_no_error(
    sqlite_url: str, grace: int
) -> None:
    reached, errors = asyncio.Event(), list[dict[str, Any]]()

    async def waits_forever(_: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with perdure.Runtime(sqlite_url, lease=timedelta(minutes=10)) as rt:
        rt.register(chain(waits_forever), name="g")
        run = await rt.start("g", {}, stream=["messages"])
        others = asyncio.all_tasks()
        limits: Any = {"grace": timedelta(seconds=grace), "handle_signals": False}
        working = asyncio.create_task(rt.work(**limits))
        await reached.wait()
        working.cancel()
        if grace:
            await asked_to_stop(rt)
            working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        await asyncio.gather(*asyncio.all_tasks() - others, return_exceptions=True)
        assert (await rt.get(run.id)).state is State.PENDING
    assert errors == []


class ClosesAsOneBegins:
    """Has the runtime closed by another thread when the second of two workers is about to begin."""

    def __init__(self) -> None:
        self.begun = 0
        self.thread = threading.Thread()

    def attach(self, engine: Any) -> None:
        self.engine = engine

    def nudge(self) -> None:
        self.begun += 1
        if self.begun == 2:
            self.thread = threading.Thread(target=self.engine.close)
            self.thread.start()
            until(lambda: self.engine._closed, "that it closes")


async def test_a_worker_that_begins_while_another_is_waited_for_drives_nothing(
    sqlite_url: str,
) -> None:
    closes, calls = ClosesAsOneBegins(), Calls()
    with gate() as door:
        rt = perdure.Runtime(sqlite_url, observe=closes)
        rt.register(chain(("a", door.wait)), name="first")
        rt.register(chain(calls.node("b")), name="second")
        await rt.start("first", {})
        ticking = asyncio.create_task(rt.tick(limit=1))
        await door.reached()
        run = await rt.start("second", {})
        with pytest.raises(Closed, match="This runtime is closed"):
            await rt.tick()
        door.open()
        await ticking
        await asyncio.to_thread(closes.thread.join)
        rt.close()
    async with perdure.Client(sqlite_url) as client:
        found = await client.get(run.id)
    assert (found.state, found.attempts, calls) == (State.PENDING, 0, [])


async def test_a_forked_process_gives_back_nothing_of_its_parent_and_ends_at_a_signal(
    sqlite_url: str,
) -> None:
    with gate() as door:
        async with perdure.Runtime(sqlite_url) as rt:
            rt.register(chain(("a", door.wait)), name="g")
            run = await rt.start("g", {})
            ticking = asyncio.create_task(rt.tick(handle_signals=True))
            await door.reached()
            if (pid := os.fork()) == 0:
                rt.close()
                with drain_on_signals(asyncio.new_event_loop(), lambda: None):
                    pass  # a worker of its own
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(0)
            _, status = await asyncio.to_thread(os.waitpid, pid, 0)
            assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
            assert (await rt.get(run.id)).state is State.RUNNING
            door.open()
            assert (await ticking).done == 1


@pytest.mark.parametrize("way", ["signal", "loop"])
async def test_every_worker_of_a_process_drains_at_a_signal_that_the_application_gets_too(
    sqlite_url: str, way: str
) -> None:
    told: list[int] = []
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)
    if way == "signal":
        signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    else:
        loop.add_signal_handler(signal.SIGTERM, told.append, signal.SIGTERM)
    installed = signal.getsignal(signal.SIGTERM)
    try:
        with gate() as door, gate() as other:
            async with perdure.Runtime(sqlite_url) as rt:
                doors = [door, other]

                async def enter(state: Any) -> Any:
                    await doors[state["value"]].wait()

                rt.register(chain(("a", enter), Calls().node("b")), name="g")
                ticks = []
                for n, each in enumerate(doors):
                    await rt.start("g", {"value": n})
                    one = rt.tick(concurrency=1, handle_signals=True)
                    ticks.append(asyncio.create_task(one))
                    await each.reached()
                await rt.start("g", {"value": 0})  # nobody claims it any more
                os.kill(os.getpid(), signal.SIGTERM)
                await asked_to_stop(rt)
                door.open()
                other.open()
                counts = await asyncio.gather(*ticks)
        assert [(one.claimed, one.released) for one in counts] == [(1, 1), (1, 1)]
        assert told == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) == installed
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
