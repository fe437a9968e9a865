"""What a node asks of a client is an effect: it happens once, however often the node runs again."""

from __future__ import annotations

from datetime import timedelta

import pytest

import perdure
from perdure.types import Retry, State
from tests.support.agents import Log, chain, opened
from tests.support.effects import AT_ONCE, Times

TWICE = Retry(attempts=2, first=timedelta(0))


def nothing(state: Log) -> Log:
    return {"log": ["did nothing"]}


def waits(state: Log) -> Log:
    return {"log": [str(perdure.ask("ok?"))]}


def naps(state: Log) -> Log:
    perdure.sleep(timedelta(hours=1))
    return {"log": ["slept"]}


@pytest.mark.parametrize("colour", ["blocking", "awaited"])
async def test_a_run_started_in_a_node_is_started_once(url: str, colour: str) -> None:
    fails = Times(1)

    def plain(state: Log) -> Log:
        child = rt.blocking.start("child", {"log": []})
        fails("after the start")
        return {"log": [child.id]}

    async def coroutine(state: Log) -> Log:
        child = await rt.start("child", {"log": []})
        fails("after the start")
        return {"log": [child.id]}

    async with opened(url) as rt:
        rt.register(chain(nothing), name="child")
        node = plain if colour == "blocking" else coroutine
        rt.register(chain(("node", node)), name="parent", retry=AT_ONCE)
        run = await rt.start("parent", {"log": []})
        await rt.tick()
        [child] = await rt.runs(graph="child")
        assert (child.state, child.parent_id) == (State.DONE, run.id)
        assert (await rt.get(run.id)).output["log"] == [child.id]


@pytest.mark.parametrize("colour", ["blocking", "awaited"])
async def test_a_signal_sent_in_a_node_is_sent_once(url: str, colour: str) -> None:
    fails, sent = Times(1), []

    def listens(state: Log) -> Log:
        first = perdure.wait_for("news")
        second = perdure.wait_for("news", timeout=timedelta(hours=1), default="nothing more")
        return {"log": [first, second]}

    def plain(state: Log) -> Log:
        sent.append(rt.blocking.signal("listener", "news", "hello"))
        fails("after the signal")
        return {}

    async def coroutine(state: Log) -> Log:
        sent.append(await rt.signal("listener", "news", "hello"))
        fails("after the signal")
        return {}

    async with opened(url) as rt:
        rt.register(chain(listens), name="listener")
        node = plain if colour == "blocking" else coroutine
        rt.register(chain(("node", node)), name="sender", retry=AT_ONCE)
        listener = await rt.start("listener", {"log": []}, thread_id="listener")
        await rt.start("sender", {"log": []})
        await rt.tick()
        rt.clock.advance(timedelta(hours=2))
        await rt.tick()
        assert (await rt.get(listener.id)).output["log"] == ["hello", "nothing more"]
        assert sent == [True, True]
