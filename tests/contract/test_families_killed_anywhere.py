"""A family of runs whose process is killed with SIGKILL at any named point comes to the same end:
each child was started once, the signal was sent once, no parent sleeps for ever, and a cancelled
parent leaves no child behind."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.testing import Clock, set_commit_interval
from tests.contract.test_killed_anywhere import kills
from tests.support.agents import Log, chain
from tests.support.fork_server import Ended, ForkServer, Tell
from tests.support.runtime_child import BEGIN, NEVER, killed_at
from tests.support.sweep import parts, sample


def work(state: Log) -> Log:
    return {"value": f"{state['value']} done"}


def listen(state: Log) -> Log:
    heard = [perdure.wait_for("news")]
    heard.append(perdure.wait_for("news", timeout=timedelta(hours=2), default="no more"))
    return {"value": heard}


def ask(state: Log) -> Log:
    return {"value": perdure.ask("may I?")}


def joins(state: Log) -> Log:
    return {"value": [one["value"] for one in perdure.join(state["log"])]}


def register(rt: perdure.Runtime) -> None:
    def plain(state: Log) -> Log:
        make = rt.blocking.start
        made = [make("work", {"value": name}) for name in ("ana", "ben")]
        listener = make("listen", {"value": None})
        rt.blocking.signal(listener.thread_id, "news", "hello")
        return {"log": [*(one.id for one in made), listener.id]}

    async def coroutine(state: Log) -> Log:
        made = [await rt.start("work", {"value": name}) for name in ("ana", "ben")]
        listener = await rt.start("listen", {"value": None})
        await rt.signal(listener.thread_id, "news", "hello")
        return {"log": [*(one.id for one in made), listener.id]}

    async def asks(state: Log) -> Log:
        return {"log": [(await rt.start(one, {"log": []})).id for one in ("ask", "middle")]}

    async def middle(state: Log) -> Log:
        return {"log": [(await rt.start("ask", {"log": []})).id]}

    for node in (work, listen, ask):
        rt.register(chain(node), name=node.__name__)
    for start in (plain, coroutine, asks, middle):
        rt.register(chain(("start", start), joins), name=start.__name__)


async def play_out(rt: perdure.Runtime, clock: Clock, order: dict[str, Any], tell: Tell) -> None:
    name, thread = order["graph"], order["thread"]
    run = await rt.start(name, {"log": []}, thread_id=thread, key="the one", tags=[thread])
    tell("started", run.id)
    while not (run := await rt.get(run.id)).ended:
        await rt.tick()
        if name == "asks" and (await rt.get(run.id)).state == "waiting":
            await rt.cancel(run.id)
            tell("cancelled")
        assert clock.time < BEGIN + timedelta(days=30), f"it does not end: {run}"
        clock.advance(timedelta(minutes=30))
    await rt.tick()


async def look_back(rt: perdure.Runtime, order: dict[str, Any], tell: Tell) -> None:
    [run] = await rt.runs(thread_id=order["thread"])
    tell("ended", run.state, (run.output or {}).get("value"))
    below, family = [run], []
    while below:
        children = await rt.runs(parent_id=below.pop().id)
        below += children
        family += [[one.graph, one.state] for one in children]
    tell("family", sorted(family))
    tell("findings", [str(finding) for finding in (await rt.doctor()).findings])


async def live(order: dict[str, Any], tell: Tell) -> None:
    clock = Clock(BEGIN + timedelta(days=1 if order["again"] else 0))
    rt = perdure.Runtime(order["url"], clock=clock)
    register(rt)
    async with rt:
        set_commit_interval(rt, NEVER)
        with killed_at(order["kill"]) as counts:
            await play_out(rt, clock, order, tell)
        await look_back(rt, order, tell)
    tell("points", dict(counts))


pytestmark = pytest.mark.slow

PARTS = parts(4)

FAMILIES: dict[str, tuple[list[Any], list[list[str]]]] = {
    "plain": (
        ["done", ["ana done", "ben done", ["hello", "no more"]]],
        [["listen", "done"], ["work", "done"], ["work", "done"]],
    ),
    "coroutine": (
        ["done", ["ana done", "ben done", ["hello", "no more"]]],
        [["listen", "done"], ["work", "done"], ["work", "done"]],
    ),
    "asks": (
        ["cancelled", None],
        [["ask", "cancelled"], ["ask", "cancelled"], ["middle", "cancelled"]],
    ),
}
"""How each family ends: the parent with its value, and its descendants."""


def play(server: ForkServer, url: str, graph: str, thread: str, **order: Any) -> Ended:
    asked = {"kill": None, "again": False, **order}
    ended = server.run(live, url=url, graph=graph, thread=thread, **asked)
    assert ended.status in (0, -signal.SIGKILL), f"{thread}: a child ended by itself"
    return ended


def check(ended: Ended, graph: str) -> None:
    parent, family = FAMILIES[graph]
    assert ended.one("ended") == parent
    assert ended.one("family") == family
    assert ended.one("findings") == []


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("story", ["joined", "cancelled"])
def test_a_family_killed_at_any_point_comes_to_the_same_end(
    fork_server: ForkServer, url: str, story: str, part: int
) -> None:
    # Coroutines on the one database, plain functions on the other: what is written is the same.
    starts = "coroutine" if url.startswith("postgresql") else "plain"
    graph = "asks" if story == "cancelled" else starts
    whole = play(fork_server, url, graph, "whole")
    check(whole, graph)
    points = kills(whole.one("points"))
    assert {"insert_run", "insert_join", "wake_joiners", "end_segment"} <= {
        point.partition(".")[0] for point, _ in points
    }
    wanted = sample(points, 7, lambda point: point[0])[part :: len(PARTS)]
    for number, (point, n) in enumerate(wanted):
        play(fork_server, url, graph, f"{number}", kill=(point, n))
        try:
            check(play(fork_server, url, graph, f"{number}", again=True), graph)
        except AssertionError as error:
            raise AssertionError(f"killed at {point}, time {n}: {error}") from error
