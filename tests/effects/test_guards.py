"""What decides between two callers of one effect, and what is on disk before a node goes on: for
each guard the test that fails without it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.errors import LeaseLost
from perdure.types import Retry, State
from tests.support.agents import Log, chain, driven, opened
from tests.support.effects import Boom, started
from tests.support.raw import execute


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
