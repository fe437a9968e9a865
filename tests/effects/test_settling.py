"""A person's decision and the release of its run are one commit, whatever the driver does.

What a kill leaves: before the commit nothing of the decision; after it the decision, and the run is
due. `continue_run` decides whether it goes on, `end_segment` looks again when a driver holds it.
"""

from __future__ import annotations

import asyncio

import pytest

import perdure
from perdure.commands.health import INVARIANTS
from perdure.types import State
from tests.support.agents import Log, chain, driving, gate, history, opened, reaches
from tests.support.commands import main
from tests.support.effects import AT_ONCE, Boom, Cut, Times, held, one
from tests.support.polling import auntil
from tests.support.raw import execute


@perdure.effect(name="unsure", unknown="hold")
async def unsure(to: str) -> str:
    raise Boom(to)


async def test_a_decision_that_comes_while_another_branch_works_releases_the_run(url: str) -> None:
    with gate() as stands:

        @perdure.effect
        async def slow(to: str) -> str:
            await stands.wait()
            return f"slow {to}"

        async def left(state: Log) -> Log:
            return {"log": [await unsure("ana")]}

        async def right(state: Log) -> Log:
            return {"log": [await slow("ben")]}

        builder = chain()
        for node in (left, right):
            builder.add_node(node.__name__, node)
            builder.add_edge("__start__", node.__name__)
        async with opened(url) as rt:
            rt.register(builder, name="agent")
            run = await rt.start("agent", {"log": []})
            async with driving(rt):
                await stands.reached()
                [effect] = await auntil(lambda: rt.effects(run.id, state="unknown"))
                await rt.settle(effect.key, "done", "by hand")
                stands.open()
                run = await reaches(rt, run, State.DONE, State.HELD)
            assert sorted(run.output["log"]) == ["by hand", "slow ben"]
            assert "held" not in await history(rt, run)


async def test_a_decision_about_a_run_that_is_being_cancelled_lets_it_be_undone(url: str) -> None:
    undone: list[str] = []

    @perdure.effect(compensate=lambda result, to: undone.append(to))
    async def book(to: str) -> str:
        return to

    async def node(state: Log) -> Log:
        return {"log": [await book("room"), await unsure("ana")]}

    with gate() as stands:

        @perdure.effect
        async def slow() -> None:
            await stands.wait()

        async def beside(state: Log) -> Log:
            await slow()
            return {"log": []}

        builder = chain(node)
        builder.add_node("beside", beside)
        builder.add_edge("__start__", "beside")
        async with opened(url) as rt:
            rt.register(builder, name="agent")
            run = await rt.start("agent", {"log": []})
            async with driving(rt):
                await stands.reached()
                [effect] = await auntil(lambda: rt.effects(run.id, state="unknown"))
                await rt.cancel(run.id)
                await rt.settle(effect.key, "done", "by hand")
                stands.open()
                await reaches(rt, run, State.CANCELLED)
            assert undone == ["room"]


async def test_a_refused_decision_releases_nothing(url: str) -> None:
    async with opened(url) as rt:
        run, effect = await held(rt, one(unsure, "ana"))
        await rt.settle(effect.key, "done", "by hand")
        await rt.tick()
        with pytest.raises(perdure.errors.NotSettled):
            await rt.settle(effect.key, "fail")
        assert (await rt.get(run.id)).state is State.DONE


async def test_a_run_that_an_older_version_left_held_is_found_and_can_be_retried(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened(url) as rt:
        run, effect = await held(rt, one(unsure, "ana"))
        assert not (await rt.doctor()).findings
        await rt.settle(effect.key, "done", "by hand")
        strand(url, run.id)
        [found] = (await rt.doctor()).findings
        assert found.problem == INVARIANTS["doctor_held_settled"]
        assert found.id == run.id
        capsys.readouterr()
        assert await asyncio.to_thread(main, ["doctor", "--at", url]) == 1
        told = capsys.readouterr().out
        assert "perdure retry" in told
        assert run.id in told
        assert await asyncio.to_thread(main, ["retry", "--at", url, run.id]) == 0
        await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["by hand"]


def strand(url: str, run_id: str) -> None:
    """Leave a run as if the release after its last decision had never been committed."""
    execute(url, f"DELETE FROM perdure_events WHERE run_id = '{run_id}' AND kind = 'resumed'")
    execute(
        url,
        "UPDATE perdure_runs SET state = 'held', due_at = NULL, events = events - 1, "
        f"reason = 'The outcome of an effect is unknown' WHERE id = '{run_id}'",
    )


async def test_a_kill_between_giving_an_effect_up_and_holding_the_run_still_holds_it(
    url: str,
) -> None:
    """A run that reaches its end without its cut-off effect is held, also by the next process."""
    cuts = Times(1, Cut)

    @perdure.effect(name="fragile")
    async def fragile(to: str) -> str:
        cuts()
        return to

    async def node(state: Log) -> Log:
        if cuts.n:
            await fragile("ana")
        return {"log": ["went on"]}

    async with opened(url) as rt:
        rt.register(chain(node), name="agent", retry=AT_ONCE)
        run = await rt.start("agent", {"log": []})
        await rt.tick(limit=1)
        assert (await rt.get(run.id)).state is State.PENDING
        execute(url, "UPDATE perdure_effects SET state = 'unknown'")  # given up; then killed
        await rt.tick()
        run = await rt.get(run.id)
        assert run.state is State.HELD
        [effect] = await rt.effects(run.id, state="unknown")
        await rt.settle(effect.key, "fail")
        await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["went on"]
