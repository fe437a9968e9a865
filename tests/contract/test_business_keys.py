"""A business key guards a call across runs and threads."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import perdure
from perdure.testing import Clock
from tests.support.agents import NOON, Log, chain, opened
from tests.support.effects import started

HOUR = timedelta(hours=1)


def contact_step(contact: int, step: str) -> Any:
    return contact, step


def sends(send: Any, *args: Any) -> Any:
    async def node(state: Log) -> Log:
        return {"log": [await send(*args)]}

    return chain(node)


async def test_two_runs_with_one_key_make_one_call_and_both_get_its_outcome(url: str) -> None:
    calls: list[str] = []

    @perdure.effect(name="keys once", key=contact_step)
    async def send(contact: int, step: str) -> str:
        calls.append(perdure.key())
        return f"sent {len(calls)}"

    async with opened(url) as rt:
        rt.register(sends(send, 7, "first"), name="one")
        rt.register(sends(send, 8, "first"), name="other")
        runs = [
            await rt.start(name, {"log": []}, thread_id=f"{name} {n}")
            for name in ("one", "other")
            for n in range(2)
        ]
        await rt.tick()
        assert len(calls) == len(set(calls)) == 2
        told = [(await rt.get(run.id)).output["log"] for run in runs]
        assert told[0] == told[1]
        assert told[2] == told[3]
        assert told[0] != told[2]
        assert any('[7,"first"]' in key for key in calls)


async def test_the_guard_survives_pruning(url: str) -> None:
    calls: list[str] = []

    @perdure.effect(name="keys pruned", key=lambda to: to)
    async def send(to: str) -> str:
        calls.append(to)
        return f"sent {to}"

    @perdure.effect
    async def other(to: str) -> str:
        return to

    async def node(state: Log) -> Log:
        return {"log": [await send("ana"), await other("ben")]}

    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        run = await started(rt, chain(node), thread="one")
        clock.advance(HOUR)
        assert await rt.prune(older_than=timedelta(minutes=1)) == 1
        assert [effect.name for effect in await rt.effects()] == ["keys pruned"]
        await rt.start("agent", {"log": []}, thread_id="two")
        await rt.tick()
        assert calls == ["ana"]
        assert run.output["log"] == ["sent ana", "ben"]
