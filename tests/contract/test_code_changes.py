"""Runs whose code changed under them."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure import Runtime
from perdure.errors import WrongState
from perdure.types import Retry, Run, State
from tests.support.agents import Log, chain, checkpoints, opened


@pytest.fixture
def url(sqlite_url: str) -> str:
    """SQLite: nothing here depends on the database."""
    return sqlite_url


def said(*texts: str) -> dict[str, Any]:
    return {"log": list(texts)}


def approve(state: Log) -> Any:
    return {"log": [f"approved {perdure.ask('go on?')}"]}


def one(state: Log) -> Any:
    return {"log": ["one"]}


def two(state: Log) -> Any:
    return {"log": ["two"]}


def three(state: Log) -> Any:
    return {"log": ["three"]}


async def start(url: str, graph: Any, input: Any = None) -> Run:
    """A run of this graph on thread "t", driven until it rests."""
    async with opened(url) as rt:
        rt.register(graph, name="g", retry=Retry(attempts=1))
        run = await rt.start("g", input or said("a"), thread_id="t")
        assert (await rt.tick()).waiting == 1
        return run


async def answer(rt: Runtime, run: Run, value: Any = "yes") -> Run:
    """Answer what the run asks, and drive it."""
    for wait in await rt.waits(run_id=run.id):
        await rt.answer(wait.id, value)
    await rt.tick()
    return await rt.get(run.id)


async def after(url: str, run: Run, graph: Any) -> Run:
    """The run, answered and driven with another graph of the same name."""
    async with opened(url) as rt:
        rt.register(graph, name="g", retry=Retry(attempts=1))
        return await answer(rt, run)


@pytest.mark.parametrize("way", ["renamed", "removed"])
async def test_a_run_is_held_when_the_node_it_waits_in_is_gone(url: str, way: str) -> None:
    run = await start(url, chain(one, approve, two))
    changed = chain(one, ("confirm", approve), two) if way == "renamed" else chain(one, two)
    async with opened(url) as rt:
        rt.register(changed, name="g")
        before = [found.checkpoint["id"] for found in await checkpoints(rt, "t")]
        held = await answer(rt, run)
        assert (held.state, held.output, held.due_at) == (State.HELD, None, None)
        reason = held.reason or ""
        assert "'g' changed" in reason
        assert "'approve'" in reason
        assert ("added: confirm" if way == "renamed" else "added: none") in reason
        last = (await rt.events(run.id))[-1]
        assert last.kind == "held"
        with pytest.raises(WrongState, match="is held"):  # which would hide why
            await rt.pause(run.id)
        assert last.data["lost"] == ["approve"]
        assert last.data["removed"] == ["approve"]
        assert last.data["added"] == (["confirm"] if way == "renamed" else [])
        assert (await rt.tick()).claimed == 0
        assert [found.checkpoint["id"] for found in await checkpoints(rt, "t")] == before


async def test_versions_side_by_side_let_old_runs_finish_as_they_began(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(approve, two), name="g", version="1")
        old = await rt.start("g", said("a"))
        await rt.tick()
    async with opened(url) as rt:
        rt.register(chain(approve, two), name="g", version="1")
        rt.register(chain(("confirm", approve), three), name="g", version="2")
        new = await rt.start("g", said("b"))
        await rt.tick()
        assert (await answer(rt, old)).output == said("a", "approved yes", "two")
        assert (await answer(rt, new)).output == said("b", "approved yes", "three")


async def test_a_run_whose_graph_is_not_registered_waits_for_a_worker_that_has_it(
    url: str,
) -> None:
    run = await start(url, chain(approve))
    async with opened(url) as rt:
        rt.register(chain(approve), name="other")
        waiting = await answer(rt, run)
        assert waiting.state == State.WAITING
    done = await after(url, run, chain(approve))
    assert done.output == said("a", "approved yes")


def ask(state: Log) -> Any:
    return {"log": [perdure.ask("?")]}


def last(state: Log) -> Any:
    return {"log": ["last"]}


async def begin(url: str, node: str = "nap", number: int = 1) -> list[str]:
    async with opened(url) as rt:
        rt.register(chain((node, ask), last), name="letter")
        rt.register(chain(ask), name="other")
        runs = [await rt.start("letter", {"log": []}, thread_id=f"{n}") for n in range(number)]
        await rt.start("other", {"log": []})
        await rt.tick(100)
        return [run.id for run in runs]


async def test_it_says_exactly_what_the_next_claim_does_and_changes_nothing(url: str) -> None:
    [run_id] = await begin(url)
    async with opened(url) as rt:
        rt.register(chain(("snooze", ask), last), name="letter")
        before = await rt.events(run_id)
        [found] = (await rt.check()).lost
        assert await rt.events(run_id) == before
        assert (await rt.get(run_id)).state == State.WAITING
        [wait] = await rt.waits(run_id=run_id)
        await rt.answer(wait.id, "yes")
        await rt.tick()
        held = await rt.get(run_id)
        assert (held.state, held.reason) == (State.HELD, found.reason)
        [again] = (await rt.check()).lost  # a retry would hold it again
        assert (again.state, again.reason) == (State.HELD, found.reason)
