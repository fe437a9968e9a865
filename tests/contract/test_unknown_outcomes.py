"""Unknown outcomes of effects: verified, called again, or left to a person."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.errors import EffectFailed
from perdure.testing import Clock
from perdure.types import Done, Retry, State
from tests.support.agents import NOON, Log, chain, history, opened
from tests.support.commands import main
from tests.support.effects import (
    AT_ONCE,
    HOUR,
    Boom,
    Cut,
    Mortals,
    Pair,
    Times,
    colour,
    drive,
    every_way,
    held,
    one,
    settled,
    started,
    states,
)
from tests.support.effects import children as children
from tests.support.runtime_child import Ledger


@every_way
async def test_it_is_called_again_with_the_same_key_and_the_recorded_arguments(
    sqlite_url: str, way: str
) -> None:
    calls: list[tuple[str, str]] = []
    cuts = Times(2, Cut)
    words = iter(["Dear Ana", "Hello Ana", "Hi Ana", "Ana!"])

    def send(body: str) -> str:
        calls.append((body, perdure.key()))
        cuts()
        return f"sent {body}"

    effect = Pair(way, send)

    async def node(state: Log) -> Log:
        return {"log": [await effect(next(words))]}

    output = await drive(sqlite_url, way, chain(colour(way, node)))
    assert output["log"] == ["sent Dear Ana"]
    assert [body for body, _ in calls] == ["Dear Ana"] * 3
    assert len({key for _, key in calls}) == 1


@every_way
@pytest.mark.parametrize("found", ["happened", Done("happened"), Done(None), None])
async def test_the_far_side_is_asked_what_became_of_it(
    sqlite_url: str, way: str, found: Any
) -> None:
    calls: list[str] = []
    asked: list[tuple[str, str]] = []
    cuts = Times(1, Cut)

    def send(to: str, body: str = "hello") -> str:
        calls.append(perdure.key())
        cuts()
        return "called"

    def verify(to: str, body: str) -> Any:
        asked.append((to + body, perdure.key()))
        return found

    effect = Pair(way, send, verify=verify, unknown="hold")

    async def node(state: Log) -> Log:
        return {"log": [await effect("ana")]}

    output = await drive(sqlite_url, way, chain(colour(way, node)))
    expected = "called" if found is None else found.result if isinstance(found, Done) else found
    assert output["log"] == [expected]
    assert asked == [("anahello", calls[0])]
    assert len(calls) == (2 if found is None else 1)
    assert len(set(calls)) == 1


async def test_an_exception_is_verified_before_it_is_tried_again(sqlite_url: str) -> None:
    calls: list[str] = []

    def verify(to: str) -> Any:
        return f"{to} has it" if len(calls) > 1 else None

    @perdure.effect(verify=verify, retry=AT_ONCE)
    async def send(to: str) -> str:
        calls.append(to)
        raise ConnectionError("no reply")

    async with opened(sqlite_url) as rt:
        run = await started(rt, one(send, "ana"))
        assert run.output["log"] == ["ana has it"]
        assert calls == ["ana", "ana"]


@pytest.mark.parametrize("point", ["effect mail.before", "effect mail.after"])
async def test_a_process_that_is_killed_in_a_careful_call_leaves_it_to_a_person(
    url: str, point: str, children: Mortals, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    assert children.live("careful", url, str(tmp_path / "ledger"), point) == -signal.SIGKILL
    assert children.live("careful", url, str(tmp_path / "ledger")) == 0
    assert len(ledger.lines()) == (0 if point.endswith("before") else 1)
    async with opened(url) as rt:
        [run] = await rt.runs()
        assert run.state is State.HELD
        [effect] = await rt.effects(state="unknown")
        await rt.settle(effect.key, "retry")
    assert children.live("careful", url, str(tmp_path / "ledger")) == 0
    async with opened(url) as rt:
        [run] = await rt.runs()
        assert run.output["log"] == ["sent ana", "second"]
    assert len(ledger.lines()) == (1 if point.endswith("before") else 2)


@pytest.mark.parametrize("through", ["python", "cli"])
@pytest.mark.parametrize("how", ["done", "retry", "fail"])
async def test_a_person_settles_it_and_the_run_goes_on_by_itself(
    url: str, how: Any, through: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    cuts = Times(1)

    @perdure.effect(unknown="hold")
    async def send(to: str) -> str:
        calls.append(to)
        cuts("no reply")
        return f"sent {to}"

    async def node(state: Log) -> Log:
        try:
            return {"log": [await send("ana")]}
        except EffectFailed as error:
            return {"log": [str(error)]}

    async with opened(url) as rt:
        run, effect = await held(rt, chain(node))
        assert "no reply" in str(effect.error)
        result = "by hand" if how == "done" else None
        reason = "the address is wrong"
        if through == "python":
            await rt.settle(effect.key, how, result, by="ana", reason=reason)
        else:
            capsys.readouterr()
            assert await asyncio.to_thread(main, ["effects", "--at", url, "--json"]) == 0
            told = json.loads(capsys.readouterr().out)
            assert told["key"] == effect.key
            assert told["arguments"] == {"to": "ana"}
            given = [] if result is None else ["--result", json.dumps(result)]
            who = ["--by", "ana", "--reason", reason]
            arguments = ["settle", "--at", url, effect.key, how, *given, *who]
            assert await asyncio.to_thread(main, arguments) == 0
        await rt.tick()
        run = await rt.get(run.id)
        [told] = run.output["log"]
        if how == "fail":
            assert "the address is wrong" in told
        else:
            assert told == ("by hand" if how == "done" else "sent ana")
        assert calls == ["ana"] * (2 if how == "retry" else 1)
        [event] = await settled(rt, run, "settled")
        assert (event.data["by"], event.data["reason"]) == ("ana", reason)
        await history(rt, run)


async def test_a_run_that_never_comes_back_to_what_was_cut_off_is_held(url: str) -> None:
    calls: list[str] = []

    @perdure.effect
    async def pay() -> str:
        calls.append("pay")
        raise Cut

    async def node(state: Log) -> Log:
        return {"log": ["another way"] if calls else [await pay()]}

    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.state is State.HELD
        [effect] = await rt.effects(state="unknown")
        assert effect.name == "pay"
        await rt.settle(effect.key, "fail", reason="it was not made")
        await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["another way"]


@pytest.mark.parametrize(
    "point",
    [
        f"{name}.{side}"
        for name in ("decide_effect", "record_decision", "insert_event", "continue_run")
        for side in ("before", "after")
    ]
    + ["commit.before", "commit.after"],
)
async def test_a_process_that_is_killed_while_a_person_settles_strands_no_run(
    url: str, point: str, children: Mortals, tmp_path: Path
) -> None:
    ledger = str(tmp_path / "ledger")
    cut = children.live("careful", url, ledger, "effect mail.after")
    assert cut == -signal.SIGKILL
    assert children.live("careful", url, ledger) == 0
    async with opened(url) as rt:
        [effect] = await rt.effects(state="unknown")
    died = children.settle(url, effect.key, "by hand", kill=point)
    assert died == -signal.SIGKILL
    async with opened(url) as rt:
        [run] = await rt.runs()
        if point == "commit.after":
            assert run.state is State.PENDING
        else:
            assert (run.state, states(url)) == (State.HELD, ["unknown"])
            await rt.settle(effect.key, "done", "by hand")
    assert children.live("careful", url, ledger) == 0
    async with opened(url) as rt:
        [run] = await rt.runs()
        assert run.output["log"] == ["by hand", "second"]
    assert len(Ledger(ledger).lines()) == 1


async def test_a_long_pause_is_a_wait_for_the_clock_and_attempts_survive_it(url: str) -> None:
    calls: list[str] = []

    @perdure.effect(retry=Retry(attempts=4, first=HOUR, factor=2, longest=timedelta(days=1)))
    async def send(to: str) -> str:
        calls.append(perdure.key())
        if len(calls) < 4:
            raise Boom(f"attempt {len(calls)}")
        return f"sent {to}"

    clock = Clock(NOON)
    for attempt, hours in [(1, 1), (2, 2), (3, 4)]:
        async with opened(url, clock) as rt:  # another process each time
            rt.register(one(send, "ana"), name="agent")
            run = await rt.start("agent", {"log": []}, thread_id="t", key="one")
            await rt.tick()
            run = await rt.get(run.id)
            assert run.state is State.WAITING
            [wait] = await rt.waits(kind="clock")
            assert wait.value["effect"] == "send"
            assert wait.wake_at == clock.time + hours * HOUR
            [effect] = await rt.effects(run.id)
            assert (effect.state, effect.attempts) == ("open", attempt)
            assert effect.due_at == wait.wake_at
            clock.advance(hours * HOUR - timedelta(seconds=1))
            await rt.tick()
            assert len(calls) == attempt
            clock.advance(timedelta(seconds=1))
    async with opened(url, clock) as rt:
        rt.register(one(send, "ana"), name="agent")
        await rt.tick()
        run = await rt.get(run.id)
        assert run.output["log"] == ["sent ana"]
        assert len(calls) == 4
        assert len(set(calls)) == 1
        assert await rt.waits() == []
        kinds = await history(rt, run)
        assert kinds.count("postponed") == 3
        assert kinds.count("effect") == 4
