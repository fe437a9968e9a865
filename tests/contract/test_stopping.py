"""Runs that are stopped, and workers that are asked to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import perdure
from perdure.types import Run, State
from tests.support.agents import (
    Calls,
    checkpoints,
    driving,
    gate,
    history,
    opened,
    reaches,
    told_to_stop,
)
from tests.support.cli_process import CliProcess
from tests.support.controls import COLORS, said, standing
from tests.support.fork_server import ForkServer
from tests.support.polling import auntil, until


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
            await auntil(lambda: closed.left)
            assert (await history(rt, run), await checkpoints(rt, "t")) == before
            assert calls == ["one", "stand"]
            if verb == "pause":
                await rt.resume(run.id)
                await rt.tick()
                assert (await rt.get(run.id)).output == said("a", "one", "stand", "two")
                assert calls == ["one", "stand", "stand", "two"]


AGENTS = '''
"""A runtime as users write it, in a module of their own."""
import operator, os, time
from pathlib import Path
from typing import Annotated, TypedDict

import perdure
from langgraph.graph import START, StateGraph

class Log(TypedDict, total=False):
    log: Annotated[list, operator.add]

def quick(state):
    return {"log": ["quick"]}

def first(state):
    with open("calls", "a") as calls:
        calls.write("first\\n")
    while not Path("go").exists():
        time.sleep(0.01)
    return {"log": ["first"]}

def never(state):
    with open("calls", "a") as calls:
        calls.write("never\\n")
    time.sleep(600)

def graph(**nodes):
    builder = StateGraph(Log)
    builder.add_sequence(list(nodes.items()))
    builder.add_edge(START, next(iter(nodes)))
    return builder

rt = perdure.Runtime(os.environ["JOURNAL"])
rt.register(graph(quick=quick), name="quick")
rt.register(graph(first=first, second=quick), name="steps")
rt.register(graph(never=never), name="never")

class Held:
    rt = rt

number = 7
'''


Start = Callable[..., CliProcess]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "project"
    found.mkdir()
    (found / "agents.py").write_text(AGENTS)
    return found


@pytest.fixture
def cli(folder: Path, fork_server: ForkServer) -> Iterator[Start]:
    """Starts `perdure` in the folder of the agents."""
    children: list[CliProcess] = []

    def start(*arguments: str, url: str | None = None) -> CliProcess:
        children.append(CliProcess(fork_server, folder, *arguments, apart=True, JOURNAL=url))
        return children[-1]

    yield start
    for child in children:
        child.close()


def ended(child: CliProcess) -> tuple[int, str, str]:
    code = child.ends()
    return code, child.text, child.err


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []


def read(url: str, run: Run) -> Run:
    with perdure.Runtime(url) as rt:
        return rt.blocking.get(run.id)


def accept(url: str, graph: str, count: int = 1) -> list[Run]:
    with perdure.Runtime(url) as rt:
        return [rt.blocking.start(graph, {"log": ["in"]}) for _ in range(count)]


@pytest.mark.slow
def test_a_worker_in_the_middle_of_a_step_finishes_it_and_another_finishes_the_run(
    url: str, folder: Path, cli: Start
) -> None:
    number = signal.SIGTERM if url.startswith("sqlite:") else signal.SIGINT
    [run] = accept(url, "steps")
    worker = cli("worker", "agents:rt", url=url)
    until(lambda: calls(folder))
    worker.send(number)
    worker.says("draining")
    [other] = accept(url, "quick")
    (folder / "go").touch()
    code, _, err = ended(worker)
    assert code == 0
    assert "Traceback" not in err
    with perdure.Runtime(url) as rt:
        assert rt.blocking.get(run.id).state is State.PENDING
        assert rt.blocking.get(other.id).state is State.PENDING  # nothing new was claimed
        assert rt.blocking.events(run.id)[-1].kind == "released"
    assert ended(cli("worker", "agents:rt", "--until-idle", url=url))[0] == 0
    assert read(url, run).output == {"log": ["in", "first", "quick"]}
    assert calls(folder) == ["first"]


@pytest.mark.slow
def test_a_worker_with_a_step_that_never_returns_exits_after_its_grace(
    url: str, folder: Path, cli: Start
) -> None:
    [run] = accept(url, "never")
    worker = cli("worker", "agents:rt", "--grace", "0.5", url=url)
    until(lambda: calls(folder))
    worker.send(signal.SIGTERM)
    code, _, err = ended(worker)
    assert code == 0
    assert "Traceback" not in err
    with perdure.Runtime(url) as rt:
        assert rt.blocking.get(run.id).state is State.PENDING
        assert rt.blocking.events(run.id)[-1].kind == "released"
