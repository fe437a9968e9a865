"""An intent without an outcome is verified, called again with what was recorded, or held.

What is held, a person settles.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.errors import BadArgument, NotFound, NotSettled
from perdure.types import Retry, State
from tests.support.agents import Log, chain, driving, gate, opened, reaches
from tests.support.effects import (
    AT_ONCE,
    Boom,
    Times,
    held,
    one,
    settled,
    started,
)
from tests.support.effects import children as children

# -- an intent without an outcome


@pytest.mark.smoke
async def test_a_verify_that_cannot_say_holds_the_run(url: str) -> None:
    asked: list[str] = []

    async def verify(to: str) -> Any:
        asked.append(to)
        raise ConnectionError("the far side is away")

    @perdure.effect(verify=verify, retry=AT_ONCE)
    async def send(to: str) -> str:
        raise ConnectionError("no reply")

    async with opened(url) as rt:
        run, effect = await held(rt, one(send, "ana"))
        assert "verify raised" in str((await rt.get(run.id)).reason)
        assert asked == ["ana"] * 3
        await rt.settle(effect.key, "done", "it came")
        await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["it came"]


async def test_nobody_is_asked_about_what_is_known_not_to_have_happened(sqlite_url: str) -> None:
    tries = Times(2, perdure.NotDone)

    @perdure.effect(verify=lambda to: pytest.fail("asked"), retry=AT_ONCE)
    async def send(to: str) -> str:
        tries()
        return f"sent {to}"

    async with opened(sqlite_url) as rt:
        assert (await started(rt, one(send, "ana"))).output["log"] == ["sent ana"]


async def test_a_verify_that_says_nobody_can_tell_holds_at_once(sqlite_url: str) -> None:
    asked: list[str] = []

    def verify(to: str) -> Any:
        asked.append(to)
        raise LookupError("nobody can tell")

    @perdure.effect(verify=verify, retry=Retry(attempts=5, final=(LookupError,)))
    async def send(to: str) -> str:
        raise ConnectionError("no reply")

    async with opened(sqlite_url) as rt:
        await held(rt, one(send, "ana"))
        assert asked == ["ana"]


# -- a person settles


async def test_a_run_with_two_unknown_effects_goes_on_after_the_last(url: str) -> None:
    @perdure.effect(unknown="hold")
    async def send(to: str) -> str:
        raise Boom(to)

    async def node(state: Log) -> Log:
        return {"log": list(await asyncio.gather(send("ana"), send("ben")))}

    async with opened(url) as rt:
        run = await started(rt, chain(node))
        assert run.state is State.HELD
        unknown = await rt.effects(state="unknown")
        assert {effect.run_id for effect in unknown} == {run.id}
        assert sorted(effect.arguments["to"] for effect in unknown) == ["ana", "ben"]
        [event] = await settled(rt, run, "held")
        assert sorted(event.data["effects"]) == sorted(effect.key for effect in unknown)
        await rt.settle(unknown[0].key, "done", "one")
        await rt.tick()
        assert (await rt.get(run.id)).state is State.HELD
        await rt.settle(unknown[1].key, "done", "two")
        await rt.tick()
        assert sorted((await rt.get(run.id)).output["log"]) == ["one", "two"]


async def test_what_nobody_has_to_settle_cannot_be(url: str) -> None:
    @perdure.effect(unknown="hold")
    async def send(to: str) -> str:
        raise Boom(to)

    @perdure.effect
    async def fine(to: str) -> str:
        return to

    async def node(state: Log) -> Log:
        return {"log": [await fine("ben"), await send("ana")]}

    async with opened(url) as rt:
        run, effect = await held(rt, chain(node))
        before = await rt.events(run.id), await rt.effects(run.id)
        [done] = await rt.effects(run.id, state="done")
        with pytest.raises(NotSettled, match="it is done"):
            await rt.settle(done.key, "retry")
        with pytest.raises(NotFound):
            await rt.settle("no such key", "done")
        with pytest.raises(BadArgument, match="'maybe'"):
            await rt.settle(effect.key, "maybe")  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="no result"):
            await rt.settle(effect.key, "retry", "a result")
        with pytest.raises(BadArgument, match="reason="):
            await rt.settle(effect.key, "fail", "the address is wrong")
        with pytest.raises(perdure.Error, match="object"):
            await rt.settle(effect.key, "done", object())
        with pytest.raises(BadArgument):
            await rt.effects(state="nothing")
        assert (await rt.events(run.id), await rt.effects(run.id)) == before
        await rt.settle(effect.key, "done", "fine")
        with pytest.raises(NotSettled):
            await rt.settle(effect.key, "fail")
        await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["ben", "fine"]


async def test_an_effect_that_is_called_just_now_cannot_be_settled(url: str) -> None:
    with gate() as stands:

        @perdure.effect(unknown="hold")
        async def send(to: str) -> str:
            await stands.wait()
            return "called"

        async with opened(url) as rt:
            rt.register(one(send, "ana"), name="agent")
            run = await rt.start("agent", {"log": []})
            async with driving(rt):
                await stands.reached()
                [effect] = await rt.effects(run.id)
                with pytest.raises(NotSettled, match="driven just now"):
                    await rt.settle(effect.key, "done", "by hand")
                stands.open()
                run = await reaches(rt, run, State.DONE)
            assert run.output["log"] == ["called"]
