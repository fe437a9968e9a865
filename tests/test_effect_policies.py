"""What is not known is settled by the policy of its effect, and never hidden.

An intent without an outcome is verified, called again with what was recorded, or held for a person.
An exception is retried by policy, over restarts and without a process in long pauses, and is an
outcome when it is final. What is cut off in the middle goes on, and is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy

import perdure
from perdure.cli import main
from perdure.errors import BadArgument, EffectFailed, EffectHeld, NotFound, NotSettled
from perdure.testing import Clock
from perdure.types import Done, Kind, Retry, State
from tests.agents import NOON, Log, chain, driving, gate, history, opened, reaches, until
from tests.effects import (
    AT_ONCE,
    Boom,
    Cut,
    Mortals,
    Pair,
    Times,
    colour,
    drive,
    held,
    mortals,
    settled,
    started,
    states,
)
from tests.runtime_child import Ledger

HOUR = timedelta(hours=1)
ONCE = Retry(attempts=1)
WAYS = ["runtime", "runtime-async", "saver", "saver-async"]
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(scope="module")
def children() -> Iterator[Mortals]:
    with mortals() as made:
        yield made


def one(function: Any, *args: Any) -> StateGraph[Any]:
    """A graph of one node that makes one call."""

    async def node(state: Log) -> Log:
        return {"log": [await function(*args)]}

    return chain(node)


# -- an intent without an outcome


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


@every_way
async def test_a_careful_effect_that_was_cut_off_holds_until_a_person_says(
    url: str, way: str
) -> None:
    calls: list[str] = []
    cuts = Times(1, Cut)

    def send(to: str) -> str:
        calls.append(to)
        cuts()
        return f"sent {to}"

    effect = Pair(way, send, unknown="hold")

    async def node(state: Log) -> Log:
        return {"log": [await effect("ana")]}

    builder = chain(colour(way, node))
    if way.startswith("runtime"):
        async with opened(url) as rt:
            run, found = await held(rt, builder, retry=AT_ONCE)
            assert found.arguments == {"to": "ana"}
            assert found.key in str(run.reason)
            await rt.settle(found.key, "done", "sent by hand", by="ana")
            await rt.tick()
            run = await rt.get(run.id)
            assert run.output["log"] == ["sent by hand"]
            [event] = await settled(rt, run, "settled")
            assert event.data == {
                "name": "send",
                "key": found.key,
                "state": "done",
                "by": "ana",
            }
            assert await rt.effects(state="unknown") == []
            await history(rt, run)
    else:
        with pytest.raises(EffectHeld) as raised:
            await drive(url, way, builder)
        config: Any = {"configurable": {"thread_id": "t"}}

        async def go_on() -> Any:
            with perdure.Saver(url) as saver:
                graph = builder.compile(checkpointer=saver)
                if way == "saver":
                    return await asyncio.to_thread(graph.invoke, None, config)
                return await graph.ainvoke(None, config)

        with pytest.raises(EffectHeld):  # and again, until somebody says
            await go_on()
        assert main(["settle", "--at", url, raised.value.key, "done", "--result", '"by hand"']) == 0
        assert (await go_on())["log"] == ["by hand"]
    assert calls == ["ana"]


@pytest.mark.parametrize("point", ["effect mail.before", "effect mail.after", "write_effect.after"])
async def test_a_process_that_is_killed_around_the_call_leaves_it_to_the_next(
    url: str, point: str, children: Mortals, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    assert children.live("mails", url, str(tmp_path / "ledger"), point) == -signal.SIGKILL
    assert states(url) == ["open"]
    assert children.live("mails", url, str(tmp_path / "ledger")) == 0
    assert len(set(ledger.lines())) == 1  # with one key, however often
    assert len(ledger.lines()) == (1 if point == "effect mail.before" else 2)
    async with opened(url) as rt:
        [run] = await rt.runs()
        assert run.output["log"] == ["sent ana", "second"]


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


# -- a person settles


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


# -- exceptions


@every_way
async def test_an_exception_is_retried_as_the_policy_says(sqlite_url: str, way: str) -> None:
    calls: list[str] = []
    fails = Times(2)

    def send(to: str) -> str:
        calls.append(perdure.key())
        fails()
        return f"sent {to}"

    effect = Pair(way, send, retry=Retry(attempts=3, first=timedelta(milliseconds=1)))

    async def node(state: Log) -> Log:
        return {"log": [await effect("ana")]}

    output = await drive(sqlite_url, way, chain(colour(way, node)))
    assert output["log"] == ["sent ana"]
    assert len(calls) == 3
    assert len(set(calls)) == 1


class OfUser(Exception):
    """With arguments of its own."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code


@every_way
@pytest.mark.parametrize(
    ("error", "args"),
    [(ValueError("wrong", 7), ("wrong", 7)), (OfUser(404, why="gone"), ("404: gone",))],
    ids=["builtin", "user"],
)
async def test_a_final_exception_is_raised_again_of_its_type_and_nothing_is_called(
    sqlite_url: str, way: str, error: Exception, args: tuple[Any, ...]
) -> None:
    calls: list[str] = []
    fails = Times(2)

    def send(to: str) -> str:
        calls.append(to)
        raise error

    effect = Pair(way, send, retry=None)

    async def node(state: Log) -> Log:
        with pytest.raises(type(error)) as raised:
            await effect("ana")
        assert raised.value.args == args
        fails()
        return {"log": ["caught"]}

    output = await drive(sqlite_url, way, chain(colour(way, node)))
    assert output["log"] == ["caught"]
    assert calls == ["ana"]


async def test_an_exception_whose_class_is_gone_becomes_one_of_ours(sqlite_url: str) -> None:
    calls: list[str] = []
    fails = Times(1)

    @perdure.effect(retry=None)
    async def send(to: str) -> str:
        class Gone(Exception):
            pass

        calls.append(to)
        raise Gone("who knows me?")

    async def node(state: Log) -> Log:
        try:
            await send("ana")
        except Exception as error:
            fails()
            return {"log": [type(error).__name__, str(error)]}
        raise AssertionError

    async with opened(sqlite_url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.output["log"][0] == "EffectFailed"
        assert "Gone: who knows me?" in run.output["log"][1]
        assert calls == ["ana"]


async def test_only_not_done_is_retried_by_a_careful_effect(sqlite_url: str) -> None:
    calls: list[str] = []
    errors: list[Exception] = [perdure.NotDone("refused"), perdure.NotDone("again"), Boom("?")]

    @perdure.effect(unknown="hold", retry=Retry(attempts=5, first=timedelta(0)))
    async def send(to: str) -> str:
        calls.append(to)
        raise errors[len(calls) - 1]

    async with opened(sqlite_url) as rt:
        _, effect = await held(rt, one(send, "ana"))
        assert calls == ["ana"] * 3
        assert effect.attempts == 3
        assert "Boom" in str(effect.error)


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


async def test_a_careful_effect_between_two_attempts_is_known_to_have_failed(
    sqlite_url: str,
) -> None:
    calls: list[str] = []

    @perdure.effect(unknown="hold", retry=Retry(attempts=2, first=HOUR))
    async def send(to: str) -> str:
        calls.append(to)
        if len(calls) == 1:
            raise perdure.NotDone("busy")
        return f"sent {to}"

    clock = Clock(NOON)
    async with opened(sqlite_url, clock) as rt:
        run = await started(rt, one(send, "ana"))
        assert run.state is State.WAITING
        clock.advance(HOUR)
        await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["sent ana"]


async def test_a_pause_loses_no_answer_and_closes_no_question_of_other_branches(url: str) -> None:
    calls: list[str] = []

    @perdure.effect(retry=Retry(attempts=5, first=HOUR, factor=1))
    async def send(to: str) -> str:
        calls.append(to)
        if len(calls) < 3:
            raise Boom("busy")
        return f"sent {to}"

    async def sends(state: Log) -> Log:
        return {"log": [await send("ana")]}

    async def asks(state: Log) -> Log:
        first = perdure.ask("first?")
        return {"log": [f"{first} {perdure.ask('second?')}"]}

    builder: StateGraph[Any] = StateGraph(Log)
    for node in (sends, asks):
        builder.add_node(node)
        builder.add_edge(START, node.__name__)
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        run = await started(rt, builder)
        assert run.state is State.WAITING
        kinds = {wait.kind for wait in await rt.waits(run_id=run.id)}
        assert Kind.CLOCK in kinds
        for n in (1, 2):
            found = await rt.waits(run_id=run.id, kind="human")
            if found:
                await rt.answer(found[0].id, f"answer {n}")
            await rt.tick()
            clock.advance(HOUR)
            await rt.tick()
        for _ in range(3):
            for wait in await rt.waits(run_id=run.id, kind="human"):
                await rt.answer(wait.id, "a last one")
            clock.advance(HOUR)
            await rt.tick()
        run = await rt.get(run.id)
        assert run.state is State.DONE
        assert len(calls) == 3
        assert any("answer 1" in text for text in run.output["log"]), run.output
        await history(rt, run)


async def test_for_a_caller_who_waits_the_pause_is_slept(sqlite_url: str) -> None:
    """A bound graph's own invoke: nothing is retried behind his back, and no wait is left."""
    fails = Times(1)

    @perdure.effect(retry=Retry(attempts=2, first=timedelta(milliseconds=5)))
    async def send(to: str) -> str:
        fails()
        return f"sent {to}"

    async with opened(sqlite_url) as rt:
        graph = rt.register(one(send, "ana"), name="agent")
        output = await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "t"}})
        assert output["log"] == ["sent ana"]
        assert await rt.waits() == []


# -- timeouts and cancellation


@pytest.mark.parametrize("way", ["runtime", "runtime-async"])
@pytest.mark.parametrize("unknown", ["retry", "hold"])
async def test_a_timeout_leaves_what_the_policy_says(
    sqlite_url: str, way: str, unknown: Any
) -> None:
    calls: list[str] = []
    go = threading.Event()

    if way == "runtime":

        @perdure.effect(name="send", unknown=unknown, timeout=0.05, retry=AT_ONCE)
        def send(to: str) -> str:
            calls.append(perdure.key())
            if len(calls) == 1:
                go.wait(20)
            return f"sent {to}"

        def node(state: Log) -> Log:
            return {"log": [send("ana")]}

        builder = chain(node)
    else:

        @perdure.effect(name="send", unknown=unknown, timeout=0.05, retry=AT_ONCE)
        async def asend(to: str) -> str:
            calls.append(perdure.key())
            if len(calls) == 1:
                await asyncio.sleep(20)
            return f"sent {to}"

        builder = one(asend, "ana")
    async with opened(sqlite_url) as rt:
        try:
            run = await started(rt, builder)
        finally:
            go.set()
        if unknown == "retry":
            assert run.output["log"] == ["sent ana"]
            assert len(calls) == 2
            assert len(set(calls)) == 1
        else:
            assert run.state is State.HELD
            [effect] = await rt.effects(state="unknown")
            assert "EffectTimeout" in str(effect.error)
            assert len(calls) == 1


@pytest.mark.parametrize("how", ["sibling", "timeout"])
async def test_an_effect_of_a_node_that_is_cancelled_goes_on_and_is_recorded(
    sqlite_url: str, how: str
) -> None:
    calls: list[str] = []
    fails = Times(1)
    with gate() as stands:

        @perdure.effect
        async def send(to: str) -> str:
            calls.append(to)
            await stands.wait()
            return f"sent {to}"

        async def node(state: Log) -> Log:
            return {"log": [await send("ana")]}

        async def sibling(state: Log) -> Log:
            if how == "sibling":
                await stands.reached()
                fails()
            return {"log": []}

        builder: StateGraph[Any] = StateGraph(Log)
        builder.add_node("node", node, timeout=0.1 if how == "timeout" else None)
        builder.add_node("sibling", sibling)
        builder.add_edge(START, "node")
        builder.add_edge(START, "sibling")
        async with opened(sqlite_url) as rt:
            rt.register(builder, name="agent", retry=Retry(attempts=9, first=timedelta(0)))
            run = await rt.start("agent", {"log": []})
            async with driving(rt):
                await stands.reached()
                await asyncio.sleep(0.3)  # time for what must not happen
                assert (await rt.get(run.id)).state is State.RUNNING
                stands.open()
                run = await reaches(rt, run, State.DONE, State.FAILED)
            assert run.output["log"] == ["sent ana"]
            assert calls == ["ana"]


@pytest.mark.parametrize("way", ["runtime", "saver"])
async def test_a_retry_of_the_node_waits_for_the_call_that_is_on_its_way(
    sqlite_url: str, way: str
) -> None:
    calls: list[str] = []
    fails = Times(1)
    with gate() as stands:

        @perdure.effect
        async def send(to: str) -> str:
            calls.append(to)
            await stands.wait()
            return f"sent {to}"

        async def node(state: Log) -> Log:
            task = asyncio.ensure_future(send("ana"))
            await stands.reached()
            if fails.n:
                task.cancel()
                fails()
            asyncio.get_running_loop().call_later(0.1, stands.open)
            return {"log": [await task]}

        builder: StateGraph[Any] = StateGraph(Log)
        policy = RetryPolicy(initial_interval=0.001, jitter=False, retry_on=Boom)
        builder.add_node("node", node, retry_policy=policy)
        builder.add_edge(START, "node")
        if way == "runtime":
            async with opened(sqlite_url) as rt:
                output = (await started(rt, builder)).output
        else:
            with perdure.Saver(sqlite_url) as saver:
                graph = builder.compile(checkpointer=saver)
                output = await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "t"}})
        assert output["log"] == ["sent ana"]
        assert calls == ["ana"]


async def test_a_second_invoke_with_the_saver_alone_waits_for_the_call_on_its_way(
    sqlite_url: str,
) -> None:
    calls: list[str] = []
    fails = Times(1)
    with gate() as stands:

        @perdure.effect
        async def send(to: str) -> str:
            calls.append(to)
            await stands.wait()
            return f"sent {to}"

        async def node(state: Log) -> Log:
            task = asyncio.ensure_future(send("ana"))
            await stands.reached()
            if fails.n:
                task.cancel()
                fails()
            asyncio.get_running_loop().call_later(0.1, stands.open)
            return {"log": [await task]}

        config: Any = {"configurable": {"thread_id": "t"}}
        with perdure.Saver(sqlite_url) as saver:
            graph = chain(node).compile(checkpointer=saver)
            with pytest.raises(Boom):
                await graph.ainvoke({"log": []}, config)
            output = await graph.ainvoke(None, config)
        assert output["log"] == ["sent ana"]
        assert calls == ["ana"]


@pytest.mark.parametrize("grace", [HOUR, timedelta(0)])
async def test_cancel_waits_for_an_effect_or_tells_that_nobody_knows(
    sqlite_url: str, grace: timedelta
) -> None:
    with gate() as stands:

        @perdure.effect
        async def send(to: str) -> str:
            await stands.wait()
            return f"sent {to}"

        async def later(state: Log) -> Log:
            raise AssertionError("it was cancelled")

        async with opened(sqlite_url, lease=timedelta(seconds=0.4)) as rt:
            rt.register(chain(("node", one(send, "ana").nodes["node"].runnable), later), name="a")
            run = await rt.start("a", {"log": []})
            async with driving(rt):
                await stands.reached()
                await rt.cancel(run.id, grace=grace)
                await asyncio.sleep(0.5)  # time for what must not happen
                stands.open()
                run = await reaches(rt, run, State.CANCELLED)
            [effect] = await rt.effects(run.id)
            assert (await history(rt, run))[-1] == "cancelled"
            last = (await rt.events(run.id))[-1]
            if grace:
                assert effect.result == "sent ana"
                assert list(last.data["kept"]) == [effect.key]
            else:  # it was not waited for any longer, and that is said
                assert effect.state == "open"
                assert list(last.data["unknown"]) == [effect.key]


async def test_a_journal_that_goes_away_in_the_middle_does_not_leave_the_run_hanging(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its intent could not be stored: the effect is over, and nobody waits for it."""
    fails = Times(1)
    calls: list[str] = []

    @perdure.effect
    async def send(to: str) -> str:
        calls.append(to)
        return f"sent {to}"

    async with opened(sqlite_url) as rt:
        rt.register(one(send, "ana"), name="agent")
        run = await rt.start("agent", {"log": []})
        commit = rt.journal._backend.commit

        def breaks(statements: Any) -> Any:
            if fails.n and any("insert_effect" in str(one) for one in statements):
                fails.n -= 1
                raise perdure.Unavailable("the disk is full")
            return commit(statements)

        monkeypatch.setattr(rt.journal._backend, "commit", breaks)
        async with asyncio.timeout(20):
            await rt.tick()
            await until(lambda: _done(rt, run))
        assert calls == ["ana"]


async def _done(rt: Any, run: Any) -> bool:
    await rt.tick()
    return bool((await rt.get(run.id)).ended)


async def test_effects_are_listed_page_by_page_and_by_what_is_asked_for(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @perdure.effect(retry=None)
    async def send(to: str) -> str:
        if to == "c":
            raise Boom("no such address")
        return f"sent {to}"

    async def node(state: Log) -> Log:
        for to in "abcde":
            with contextlib.suppress(Boom):
                await send(to)
        return {"log": []}

    async with opened(url) as rt:
        first = await started(rt, chain(node), thread="one")
        await started(rt, chain(node), thread="two", name="other")
        whole = await rt.effects()
        pages, after = [], None
        while page := await rt.effects(after=after, limit=3):
            pages += page
            after = page[-1]
        assert pages == whole
        assert len(whole) == 10
        mine = await rt.effects(first.id)
        assert sorted(effect.arguments["to"] for effect in mine) == list("abcde")
        assert [e.arguments["to"] for e in await rt.effects(first.id, state="failed")] == ["c"]
        found = await rt.effects(thread_id="two", state="done")
        assert {effect.thread_id for effect in found} == {"two"}
        assert len(found) == 4

        async def told(*arguments: str) -> str:
            capsys.readouterr()
            assert await asyncio.to_thread(main, ["effects", "--at", url, *arguments]) == 0
            return capsys.readouterr().out

        assert "No effect waits for a person" in await told()
        shown = await told("--run", first.id)
        assert shown.count("send(to=") == 5
        assert "no such address" in shown
        assert (await told("--thread", "two", "--state", "failed")).count("send(to='c')") == 1
        assert len((await told("--state", "all", "--json", "--limit", "7")).splitlines()) == 7
