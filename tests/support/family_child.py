"""A family of runs whose processes are killed: children of `tests.support.fork_server`.

The parent starts two children and a listener, in a plain node or in a coroutine, sends the listener
a signal, and joins all three. Or it starts children that ask a person, and is cancelled meanwhile.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import perdure
from perdure.testing import Clock, set_commit_interval
from tests.support.agents import Log, chain
from tests.support.fork_server import Tell
from tests.support.runtime_child import BEGIN, NEVER, killed_at


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


async def play(rt: perdure.Runtime, clock: Clock, order: dict[str, Any], tell: Tell) -> None:
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
            await play(rt, clock, order, tell)
        await look_back(rt, order, tell)
    tell("points", dict(counts))
