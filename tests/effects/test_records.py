"""What is kept of an effect: arguments, results and exceptions, without their secrets.

What cannot be stored is refused by its name before the call; a result that cannot be is an outcome
all the same, because the call was made and must not be made again.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

import perdure
from perdure.errors import BadArgument, TooLarge, Unserializable
from perdure.types import Record, Retry, State
from tests.support.agents import Log, chain, opened
from tests.support.effects import AT_ONCE, Boom, Cut, Times, raw, settled, started, states

SECRET = "hunter2-very-secret"


def calls_of(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A node that makes one call, and tells the exception that comes of it."""

    async def node(state: Log) -> Log:
        try:
            return {"log": [await function(*args, **kwargs)]}
        except Exception as error:
            return {"log": [type(error).__name__, str(error)]}

    return chain(node)


async def test_an_argument_that_cannot_be_stored_is_named_before_the_call(url: str) -> None:
    calls: list[Any] = []

    @perdure.effect
    async def send(to: str, lock: Any) -> None:
        calls.append(to)

    async with opened(url) as rt:
        run = await started(rt, calls_of(send, "ana", threading.Lock()))
        kind, told = run.output["log"]
        assert kind == "Unserializable"
        assert "'lock'" in told
        assert "'send'" in told
        assert calls == []
        assert await rt.effects(run.id) == []


@pytest.mark.parametrize("unknown", ["retry", "hold"])
async def test_the_words_of_a_final_exception_have_no_secrets_either(
    url: str, unknown: Any
) -> None:
    @perdure.effect(unknown=unknown, retry=None)
    async def send(to: str, password: str) -> str:
        raise Boom(f"401 for {password}")

    async with opened(url) as rt:
        run = await started(rt, calls_of(send, "ana", SECRET))
        [effect] = await rt.effects(run.id)
        assert effect.error is not None
        assert "401 for ***" in effect.error.message
        if unknown == "hold":
            assert run.state is State.HELD
            assert SECRET not in str(run.reason)
            assert SECRET.encode() not in raw(url)
        for event in await rt.events(run.id):
            assert SECRET not in str(event.data)


async def test_an_exception_that_ends_the_run_is_stored_without_the_secret(url: str) -> None:
    @perdure.effect(retry=None)
    async def send(to: str, password: str) -> str:
        raise Boom(f"401 for {password}")

    async def node(state: Log) -> Log:
        return {"log": [await send("ana", SECRET)]}

    async with opened(url) as rt:
        run = await started(rt, chain(node))
        assert run.state is State.FAILED
        assert run.error is not None
        assert "401 for ***" in run.error.message
        rt.journal.flush()
        assert SECRET.encode() not in raw(url)


@pytest.mark.parametrize(
    ("record", "kept"),
    [
        (["to"], {"to": "ana"}),
        (Record(arguments=["to", "body"]), {"to": "ana", "body": "hello"}),
        (Record(without=["body"]), {"to": "ana", "client": 7}),
    ],
)
async def test_record_says_which_arguments_are_kept(url: str, record: Any, kept: Any) -> None:
    cuts = Times(1, Cut)
    seen: list[Any] = []
    bodies = iter(["hello", "another"])

    @perdure.effect(record=record)
    async def send(to: str, body: str, client: int = 7) -> str:
        seen.append((to, body, client))
        cuts()
        return "sent"

    async def node(state: Log) -> Log:
        return {"log": [await send("ana", next(bodies))]}

    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        [effect] = await rt.effects(run.id)
        assert effect.arguments == kept
        # What is kept is as it was; what is not comes from the present call.
        assert seen == [("ana", "hello", 7), ("ana", "hello" if "body" in kept else "another", 7)]


async def test_record_says_what_of_a_result_is_kept_and_given(url: str) -> None:
    fails = Times(1)
    given: list[Any] = []

    @perdure.effect(record=Record(result=lambda reply: reply["id"]))
    async def send(to: str) -> Any:
        return {"id": 7, "lock": threading.Lock()}

    async def node(state: Log) -> Log:
        given.append(await send("ana"))
        fails()
        return {"log": []}

    async with opened(url) as rt:
        await started(rt, chain(node), retry=AT_ONCE)
        assert given == [7, 7]


async def test_large_results_are_kept_and_too_large_ones_are_an_outcome(url: str) -> None:
    calls: list[int] = []
    fails = Times(1)

    @perdure.effect(retry=Retry(attempts=5, first=AT_ONCE.first))
    async def fetch(size: int) -> bytes:
        calls.append(size)
        return b"x" * size

    async def node(state: Log) -> Log:
        found = len(await fetch(1_000_000))
        try:
            await fetch(3_000_000)
        except TooLarge as error:
            fails()
            return {"log": [str(found), str(error)]}
        raise AssertionError

    async with opened(url, max_bytes=2_000_000) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.state is State.DONE, run.error
        assert run.output["log"][0] == "1000000"
        assert "2000000" in run.output["log"][1].replace(",", "").replace("_", "")
        assert calls == [1_000_000, 3_000_000]
        assert [one.state for one in await rt.effects(run.id)] == ["done", "failed"]


async def test_arguments_over_the_limit_are_refused_before_the_call(url: str) -> None:
    calls: list[int] = []

    @perdure.effect
    async def send(body: bytes) -> None:
        calls.append(len(body))

    async with opened(url, max_bytes=100_000) as rt:
        run = await started(rt, calls_of(send, b"x" * 200_000))
        assert run.output["log"][0] == "TooLarge"
        assert calls == []
        assert await rt.effects(run.id) == []


def test_what_yields_its_result_is_refused_when_it_is_decorated() -> None:
    with pytest.raises(BadArgument, match="in pieces"):

        @perdure.effect
        def pieces(n: int) -> Any:
            yield n

    with pytest.raises(BadArgument, match="in pieces"):

        @perdure.effect
        async def apieces(n: int) -> Any:
            yield n

    with pytest.raises(BadArgument, match="functions and methods"):
        perdure.effect(threading.Lock())  # type: ignore[call-overload]
    with pytest.raises(BadArgument, match="'ask'"):
        perdure.effect(unknown="ask")(len)  # type: ignore[call-overload]
    with pytest.raises(BadArgument, match="timeout"):
        perdure.effect(timeout=0)(print)


async def test_a_result_that_comes_in_pieces_is_refused_and_the_call_not_repeated(
    url: str,
) -> None:
    calls: list[int] = []
    fails = Times(1)

    @perdure.effect
    async def stream(n: int) -> Any:
        calls.append(n)
        return (x for x in range(n))

    async def node(state: Log) -> Log:
        try:
            await stream(3)
        except Unserializable as error:
            fails()
            return {"log": [str(error)]}
        raise AssertionError

    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.state is State.DONE, run.error
        assert "collect it inside the effect" in run.output["log"][0]
        assert calls == [3]
        assert states(url) == ["failed"]


async def test_sets_in_another_order_are_the_same_arguments(url: str) -> None:
    calls: list[Any] = []
    fails = Times(1)
    orders = iter([["one", "two", "three", "four"], ["four", "three", "two", "one"]])

    @perdure.effect
    async def tag(names: set[str], rest: dict[str, int]) -> int:
        calls.append(names)
        return len(names)

    async def node(state: Log) -> Log:
        names = next(orders)
        told = await tag(set(names), dict.fromkeys(names, 1))
        fails()
        return {"log": [str(told)]}

    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.output["log"] == ["4"]
        assert len(calls) == 1
        assert await settled(rt, run, "differs") == []


async def test_results_come_back_as_what_they_were(url: str) -> None:
    fails = Times(1)
    seen: list[Any] = []

    @perdure.effect
    async def fetch() -> Any:
        return {"a": (1, 2), "b": {3}, "c": b"bytes", "d": None}

    async def node(state: Log) -> Log:
        seen.append(await fetch())
        fails()
        return {"log": []}

    async with opened(url) as rt:
        await started(rt, chain(node), retry=AT_ONCE)
        assert seen[0] == seen[1] == {"a": (1, 2), "b": {3}, "c": b"bytes", "d": None}
