"""A business key guards across runs and threads: what it names is done once, by who comes first.

Who comes second gets the outcome, waits for it, or is held when the first left it open.
"""

from __future__ import annotations

import sys
import types
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.effects import call
from perdure.effects.decorator import ATTRIBUTE, EFFECTS
from perdure.errors import BadArgument
from perdure.testing import Clock
from perdure.types import Retry, State
from tests.contract.test_business_keys import sends
from tests.support.agents import NOON, Log, chain, driving, gate, opened, reaches
from tests.support.effects import AT_ONCE, Boom, started
from tests.support.polling import auntil

HOUR = timedelta(hours=1)


async def test_with_the_saver_alone_another_thread_gets_the_outcome_too(url: str) -> None:
    calls: list[str] = []

    @perdure.effect(name="keys of saver", key=lambda to: to)
    def send(to: str) -> str:
        calls.append(to)
        return f"sent {to}"

    def node(state: Log) -> Log:
        return {"log": [send("ana")]}

    for thread in ("one", "two"):
        with perdure.Saver(url) as saver:
            graph = chain(node).compile(checkpointer=saver)
            output = graph.invoke({"log": []}, {"configurable": {"thread_id": thread}})
            assert output["log"] == ["sent ana"]
    assert calls == ["ana"]


@pytest.mark.parametrize("processes", [1, 2])
async def test_the_second_waits_for_the_first_that_is_on_its_way(url: str, processes: int) -> None:
    calls: list[str] = []
    with gate() as stands:

        @perdure.effect(name=f"keys wait {processes}", key=lambda to: to)
        async def send(to: str) -> str:
            calls.append(to)
            await stands.wait()
            return f"sent {to}"

        clock = Clock()
        clock.advance(HOUR)
        async with opened(url, clock) as rt, opened(url, clock) as other:
            rts = [rt, other if processes == 2 else rt]
            for one in {id(one): one for one in rts}.values():
                one.register(sends(send, "ana"), name="agent")
            first = await rt.start("agent", {"log": []}, thread_id="one")
            async with driving(rt):
                await stands.reached()
                second = await rt.start("agent", {"log": []}, thread_id="two")
                async with driving(rts[1]):
                    await reaches(rt, second, State.RUNNING)
                    await auntil(
                        lambda: any(
                            drive.row.id == second.id and drive.is_busy
                            for runtime in rts
                            for drive in runtime.engine.keeper.driven
                        ),
                        "the second run's call",
                    )
                    assert calls == ["ana"]
                    stands.open()
                    first = await reaches(rt, first, State.DONE)
                    second = await reaches(rt, second, State.DONE)
            assert first.output["log"] == second.output["log"] == ["sent ana"]
            assert calls == ["ana"]


async def test_one_that_the_first_waits_to_try_again_is_waited_for_by_the_clock(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "MAX_PAUSE", 0.5)
    calls: list[str] = []

    @perdure.effect(
        name="keys postponed", key=lambda to: to, retry=Retry(attempts=3, first=HOUR, longest=HOUR)
    )
    async def send(to: str) -> str:
        calls.append(to)
        if len(calls) == 1:
            raise Boom("busy")
        return f"sent {to}"

    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        first = await started(rt, sends(send, "ana"), thread="one")
        assert first.state is State.WAITING
        second = await rt.start("agent", {"log": []}, thread_id="two")
        async with driving(rt):
            second = await reaches(rt, second, State.WAITING)
        for _ in range(5):
            clock.advance(HOUR)
            await rt.tick()
        outputs = [(await rt.get(run.id)).output["log"] for run in (first, second)]
        assert outputs == [["sent ana"], ["sent ana"]]
        assert len(calls) == 2


@pytest.mark.parametrize("ended", ["failed", "cancelled"])
async def test_one_that_an_ended_run_left_open_holds_the_second(url: str, ended: str) -> None:
    calls: list[str] = []

    class Ends(BaseException):
        pass

    @perdure.effect(name=f"keys left {ended}", key=lambda to: to)
    async def send(to: str) -> str:
        calls.append(to)
        raise Ends

    async with opened(url) as rt:
        first = await started(rt, sends(send, "ana"), thread="one", retry=Retry(attempts=1))
        if ended == "cancelled" and not first.ended:
            await rt.cancel(first.id)
        first = await rt.get(first.id)
        assert first.ended
        second = await rt.start("agent", {"log": []}, thread_id="two")
        await rt.tick()
        second = await rt.get(second.id)
        assert second.state is State.HELD
        assert "'one'" in str(second.reason)
        [effect] = await rt.effects(state="unknown")
        assert calls == ["ana"]
        await rt.settle(effect.key, "done", "it had been sent")
        await rt.tick()
        assert (await rt.get(second.id)).output["log"] == ["it had been sent"]


async def test_a_failure_for_good_is_the_outcome_for_all(url: str) -> None:
    calls: list[str] = []

    @perdure.effect(name="keys failed", key=lambda to: to, retry=None)
    async def send(to: str) -> str:
        calls.append(to)
        raise ValueError("no such address")

    async with opened(url) as rt:
        first = await started(rt, sends(send, "ana"), thread="one", retry=Retry(attempts=1))
        second = await rt.start("agent", {"log": []}, thread_id="two")
        await rt.tick()
        second = await rt.get(second.id)
        for run in (first, second):
            assert run.state is State.FAILED
            assert run.error is not None
            assert run.error.kind == "ValueError"
        assert calls == ["ana"]


def _module(name: str, source: str) -> types.ModuleType:
    made = types.ModuleType(name)
    sys.modules[name] = made
    exec(source, vars(made))
    return made


def test_two_effects_with_keys_and_one_name_in_different_modules_are_refused() -> None:
    source = """
import perdure

@perdure.effect(key=lambda to: to)
def keyed_twice(to):
    return to
"""
    try:
        _module("keys_one", source)
        _module("keys_one", source)  # imported again: the same one
        with pytest.raises(BadArgument, match=r"keys_one\.keyed_twice"):
            _module("keys_two", source)
        _module("keys_two", source.replace("key=lambda", "name='another name', key=lambda"))
    finally:
        sys.modules.pop("keys_one", None)
        sys.modules.pop("keys_two", None)


def test_a_compensation_is_never_that_of_another_effect_of_its_name() -> None:
    source = """
import perdure

def undo(result, to):
    return None

@perdure.effect(compensate=undo)
def undone_once(to):
    return to
"""
    try:
        one = _module("undo_one", source)
        _module("undo_three", source.replace("compensate=undo", "retry=None"))
        assert EFFECTS["undone_once"] is getattr(one.undone_once, ATTRIBUTE)
        with pytest.raises(BadArgument, match=r"undo_one\.undone_once"):
            _module("undo_two", source)
    finally:
        for name in ("undo_one", "undo_two", "undo_three"):
            sys.modules.pop(name, None)


async def test_keys_of_other_types_than_text_are_told_apart(url: str) -> None:
    calls: list[Any] = []

    @perdure.effect(name="keys typed", key=lambda what: what)
    async def send(what: Any) -> str:
        calls.append(what)
        return repr(what)

    async def node(state: Log) -> Log:
        return {"log": [await send(what) for what in (1, 2, [1, 2], (1, "a"), {"a": 1}, 1)]}

    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.output["log"] == ["1", "2", "[1, 2]", "(1, 'a')", "{'a': 1}", "1"]
        assert len(calls) == 5
