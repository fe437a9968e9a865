"""What retention, pruning and erasing delete, and what they leave."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

import perdure
from perdure import Saver
from perdure.errors import NotFound
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import Retention, Run, State
from tests.contract import delete_child
from tests.support.agents import NOON, chain, checkpoints, opened
from tests.support.controls import ONCE, approve, echo, fail, said
from tests.support.fork_server import ForkServer
from tests.support.raw import config, execute
from tests.support.sweep import sample

DAY = timedelta(days=1)


POLICY = Retention(done=30 * DAY, failed=90 * DAY)


def register(rt: TemporaryRuntime) -> None:
    async def parent(state: Any) -> Any:
        await rt.start("done", said("a"), thread_id="child")
        return {"log": []}

    rt.register(chain(echo), name="done")
    rt.register(chain(fail), name="failed", retry=ONCE)
    rt.register(chain(("approve", approve)), name="waiting")
    rt.register(chain(("parent", parent), ("approve", approve)), name="parent")


async def ended(rt: TemporaryRuntime, graph: str, count: int) -> list[Run]:
    made = [await rt.start(graph, said("a"), thread_id=f"{graph}-{n}") for n in range(count)]
    await rt.tick(limit=1000)
    return made


async def left(rt: TemporaryRuntime) -> list[str]:
    return sorted(run.thread_id for run in await rt.runs(limit=1000))


async def test_a_tick_deletes_what_ended_long_enough_ago_and_nothing_else(url: str) -> None:
    clock = Clock(NOON)
    async with opened(url, clock, retention=POLICY) as rt:
        register(rt)
        [done] = await ended(rt, "done", 1)
        [failed] = await ended(rt, "failed", 1)
        await ended(rt, "waiting", 1)
        await ended(rt, "parent", 1)  # its child is done, and kept as long as the parent waits
        await rt.cancel((await rt.start("done", said("a"), thread_id="cancelled", after=DAY)).id)
        await rt.score(done.id, "good", 1)
        clock.advance(29 * DAY)
        assert (await rt.tick()).pruned == 0
        [young] = await ended(rt, "done", 1)
        clock.advance(2 * DAY)
        assert (await rt.tick()).pruned == 1
        everything = ["cancelled", "child", "done-0", "failed-0", "parent-0", "waiting-0"]
        assert await left(rt) == everything  # done-0 is the young one
        with pytest.raises(NotFound):
            await rt.scores(done.id)
        assert (await rt.get(young.id)).state is State.DONE
        await rt.retry(failed.id)
        await rt.tick()
        clock.advance(60 * DAY)  # since it failed again
        assert (await rt.tick()).pruned == 1
        assert "failed-0" in await left(rt)
        clock.advance(31 * DAY)
        await rt.tick()
        assert await left(rt) == ["cancelled", "child", "parent-0", "waiting-0"]
        assert await checkpoints(rt, "done-0") == []


TABLES = (
    *("checkpoints", "values", "writes", "effects", "runs", "events", "reads", "waits"),
    *("signals", "joins", "scores"),
)


class Chat(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    count: int


@perdure.effect
def count(n: int) -> int:
    return n + 1


def chat(saver: Saver) -> Any:
    def reply(state: Chat) -> Any:
        n = state.get("count", 0)
        return {"messages": [("ai", f"reply {n} " * 20)], "count": count(n)}

    return StateGraph(Chat).add_node(reply).add_edge(START, "reply").compile(checkpointer=saver)


def converse(saver: Saver, thread: str, turns: int) -> None:
    graph = chat(saver)
    for n in range(turns):
        graph.invoke({"messages": [("human", f"hello {n} " * 20)]}, config(thread))


def states(saver: Saver, thread: str) -> dict[str, Any]:
    """Every checkpoint of a thread, loaded."""
    found = list(saver.list(config(thread)))
    return {one.checkpoint["id"]: (one.checkpoint, one.pending_writes) for one in found}


def rows(url: str, thread: str) -> dict[str, int]:
    """How many rows a thread has in each table."""
    counts = {}
    for table in TABLES:
        column = "scope" if table == "effects" else "thread_id"
        [(n,)] = execute(url, f"SELECT COUNT(*) FROM perdure_{table} WHERE {column} = ?", thread)
        counts[table] = n
    return {table: n for table, n in counts.items() if n}


def kill_everywhere(
    fork_server: ForkServer,
    url: str,
    what: str,
    make: Callable[[str], Any],
    check: Callable[[str, Any], None],
    few: int = 6,
) -> None:
    """Do something on a new thread, killed at each point; check what is left of the thread."""

    def do(thread: str, nth: int) -> Any:
        child = fork_server.start(delete_child.live, url=url, what=what, thread=thread, nth=nth)
        assert child.wait() == (-9 if nth else 0)
        return child

    made = make("whole")
    [[_, points]] = do("whole", 0).facts
    assert points >= 6, "several transactions"
    check("whole", made)
    for nth in sample(range(1, points + 1), few):
        made = make(f"killed at {nth}")
        do(f"killed at {nth}", nth)
        check(f"killed at {nth}", made)


@pytest.mark.slow
def test_every_checkpoint_that_a_killed_prune_leaves_loads_as_before(
    url: str, fork_server: ForkServer
) -> None:
    def make(thread: str) -> dict[str, Any]:
        with Saver(url) as saver:
            converse(saver, thread, 12)
            return states(saver, thread)

    def check(thread: str, before: dict[str, Any]) -> None:
        with Saver(url) as saver:
            left = states(saver, thread)
            assert left.items() <= before.items()
            assert max(before) in left
            saver.prune([thread])
            assert states(saver, thread) == {max(before): before[max(before)]}
            pruned = rows(url, thread)
            saver.copy_thread(thread, f"copy {thread}")  # it has only what is needed
            assert rows(url, f"copy {thread}")["checkpoints"] == pruned["checkpoints"] == 1
            converse(saver, thread, 1)
            assert len(states(saver, thread)) == 4
        assert pruned.keys() <= {"checkpoints", "values"}, "no writes and effects of lost steps"

    kill_everywhere(fork_server, url, "checkpoints", make, check)
