"""What decides between two callers of one effect, and what is on disk before a node goes on: for
each guard the test that fails without it."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure.commands import effects
from perdure.commands.effects import EffectRow, Owner
from perdure.errors import LeaseLost
from perdure.journal.names import random_number
from perdure.types import EffectState, Retry, State
from tests.support.agents import Log, chain, driven, opened
from tests.support.effects import Boom, started
from tests.support.fork_server import ForkServer, Tell
from tests.support.raw import execute
from tests.support.runtime_child import Ledger


async def die_after_a_call(order: dict[str, Any], tell: Tell) -> None:
    """Make one call that has no key, and die in the node before anything else is awaited."""
    ledger = Ledger(Path(order["ledger"]))

    @perdure.effect(name="unkeyed")
    def send() -> str:
        ledger.add("sent")
        return "sent"

    @perdure.effect(name="unkeyed")
    async def asend() -> str:
        ledger.add("sent")
        return "sent"

    def die() -> None:
        if order["dies"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def plain(state: Log) -> Log:
        sent = send()
        die()
        return {"log": [sent]}

    async def coroutine(state: Log) -> Log:
        sent = await asend()
        die()
        return {"log": [sent]}

    graph = StateGraph(Log)
    graph.add_node("node", plain if order["colour"] == "plain" else coroutine)
    graph.add_edge(START, "node")
    if order["way"] == "runtime":
        async with perdure.Runtime(order["url"]) as rt:
            rt.register(graph, name="agent")
            run = await rt.start("agent", {"log": []}, thread_id="t", key="one")
            await rt.work(until_idle=True)
            tell("log", (await rt.get(run.id)).output["log"])
        return
    async with perdure.Saver(order["url"]) as saver:
        compiled: Any = graph.compile(checkpointer=saver)
        config = {"configurable": {"thread_id": "t"}}
        found = await compiled.ainvoke({"log": []} if order["dies"] else None, config)
        tell("log", found["log"])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["runtime", "saver"])
@pytest.mark.parametrize("colour", ["plain", "async"])
def test_a_process_that_dies_right_after_a_call_returned_has_recorded_it(
    fork_server: ForkServer, url: str, tmp_path: Path, way: str, colour: str
) -> None:
    order: dict[str, Any] = {
        "url": url,
        "ledger": str(tmp_path / "ledger"),
        "way": way,
        "colour": colour,
    }
    assert fork_server.run(die_after_a_call, dies=True, **order).status == -9
    ended = fork_server.run(die_after_a_call, dies=False, **order)
    assert ended.one("log") == ["sent"]
    assert Ledger(tmp_path / "ledger").lines() == ["sent"]


@pytest.mark.parametrize("colour", ["plain", "async"])
async def test_a_worker_whose_run_was_claimed_in_the_middle_of_a_node_calls_nothing(
    url: str, colour: str
) -> None:
    """Its checkpoint is stored by then: only the intent asks for the token."""
    calls: list[str] = []
    lost: list[BaseException] = []

    @perdure.effect
    def send() -> None:
        calls.append("plain")

    @perdure.effect
    async def asend() -> None:
        calls.append("async")

    def claimed() -> None:
        execute(url, "UPDATE perdure_runs SET token = token + 1")

    def plain(state: Log) -> Log:
        rt.journal.flush()
        claimed()
        try:
            send()
        except LeaseLost as error:
            lost.append(error)
            raise
        return {"log": []}

    async def coroutine(state: Log) -> Log:
        await rt.journal.aflush()
        claimed()
        try:
            await asend()
        except LeaseLost as error:
            lost.append(error)
            raise
        return {"log": []}

    node = plain if colour == "plain" else coroutine
    async with opened(url) as rt:
        rt.register(chain(("before", lambda state: {"log": []}), ("node", node)), name="agent")
        await rt.start("agent", {"log": []})
        await rt.tick(limit=1)
        assert (calls, len(lost)) == ([], 1)


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_last_attempt_that_happened_although_it_raised_is_done(
    sqlite_url: str, attempts: int
) -> None:
    far: list[str] = []
    calls: list[int] = []

    def find() -> str | None:
        return far[0] if far else None

    @perdure.effect(verify=find, retry=Retry(attempts=attempts, first=timedelta(0)))
    def order() -> str:
        calls.append(1)
        if len(calls) == attempts:
            far.append("ordered")
        raise Boom("the reply was lost")

    def node(state: Log) -> Log:
        return {"log": [order()]}

    async with opened(sqlite_url) as rt:
        run = await started(rt, chain(node), retry=Retry(attempts=1))
        assert run.state is State.DONE, run.error
        assert (run.output["log"], len(calls)) == (["ordered"], attempts)


def row_of(owner: Owner) -> EffectRow:
    return EffectRow(
        scope=owner.thread_id,
        task="task",
        name="send",
        n=0,
        key="key",
        thread_id=owner.thread_id,
        run_id="",
        checkpoint_id="",
        state=EffectState.OPEN.value,
        intent=random_number(),
        attempts=1,
        digest="",
        undo=0,
        mark=0,
    )


def test_of_two_who_take_one_open_effect_only_one_does(url: str) -> None:
    owner = Owner("t")
    with perdure.Saver(url) as saver:
        do, seen = saver.journal.do, row_of(owner)
        assert do(effects.store_intent(owner, seen))
        assert not do(effects.store_intent(owner, seen._replace(intent=random_number())))
        first, second = random_number(), random_number()
        assert do(effects.take_over(owner, seen, first, 1, 0)).intent == first
        assert do(effects.take_over(owner, seen, second, 1, 0)).intent == first
        there = do(effects.at(seen.place))
        assert there is not None
        assert there.intent == first


def test_an_outcome_that_comes_after_a_takeover_is_not_stored(url: str) -> None:
    owner = Owner("t")
    with perdure.Saver(url) as saver:
        do, mine = saver.journal.do, row_of(owner)
        assert do(effects.store_intent(owner, mine))
        taken = do(effects.take_over(owner, mine, random_number(), 1, 0))
        late = mine._replace(state=EffectState.DONE.value, outcome=b"late")
        assert not do(effects.write_state(owner, late, 0))
        there = do(effects.at(mine.place))
        assert there is not None
        assert (there.state, there.outcome) == ("open", None)
        theirs = taken._replace(state=EffectState.DONE.value, outcome=b"theirs")
        assert do(effects.write_state(owner, theirs, 0))
        assert not do(effects.write_state(owner, late, 0))
        there = do(effects.at(mine.place))
        assert there is not None
        assert bytes(there.outcome or b"") == b"theirs"


async def test_a_call_that_another_run_takes_over_is_not_shown_as_damaged(url: str) -> None:
    """How it failed before is bound to the run in which it did."""
    seen: list[str | None] = []
    fails = [True]

    @perdure.effect(key=lambda: "one", retry=None)
    async def send() -> None:
        if fails:
            fails.clear()
            raise Boom
        seen.extend(one.damaged for one in await rt.effects())

    async def node(state: Log) -> Any:
        await send()
        return {"log": ["sent"]}

    async with opened(url) as rt:
        first = await driven(rt, chain(("node", node)), {"log": []}, retry=None)
        assert (await rt.get(first.id)).state == State.FAILED
        await rt.retry(first.id)
        await rt.cancel(first.id)
        second = await rt.start("g", {"log": []})
        await rt.tick()
        assert (await rt.get(second.id)).state == State.DONE
    assert seen == [None]
