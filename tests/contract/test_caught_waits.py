"""A wait that a node catches still waits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.types import interrupt

import perdure
from perdure.types import Kind, Run, State
from tests.support.agents import Calls, Log, chain, history, opened

HOUR = timedelta(hours=1)


Wait = Callable[[], Any]


def said(*texts: Any) -> dict[str, Any]:
    return {"log": list(texts)}


def an_exception(wait: Wait) -> Any:
    try:
        return wait()
    except Exception:
        return "skipped"


def everything(wait: Wait) -> Any:
    try:
        return wait()
    except:  # noqa: E722
        return "skipped"


def suppressed(wait: Wait) -> Any:
    with contextlib.suppress(Exception):
        return wait()
    return "skipped"


def returned_in_finally(wait: Wait) -> Any:
    found = "skipped"
    try:
        found = wait()
    finally:
        return found  # noqa: B012


def a_fallback(wait: Wait) -> Any:
    risky = RunnableLambda(lambda _: wait())
    return risky.with_fallbacks([RunnableLambda(lambda _: "skipped")]).invoke(None)


def slept() -> str:
    perdure.sleep(HOUR)
    return "slept"


SWALLOWS = [an_exception, everything, suppressed, returned_in_finally, a_fallback]


WAITS: dict[str, Wait] = {
    "ask": lambda: perdure.ask("ok?"),
    "sleep": slept,
    "wait_for": lambda: perdure.wait_for("reply"),
    "interrupt": lambda: interrupt("ok?"),
}


async def let_go(rt: Any, run: Run, value: Any = "yes") -> Run:
    """The run, after what it waits for has come."""
    for wait in await rt.waits(run_id=run.id):
        if wait.kind is Kind.HUMAN:
            await rt.answer(wait.id, value)
        elif wait.kind is Kind.SIGNAL:
            await rt.signal(run.thread_id, wait.name, value)
    rt.clock.advance(HOUR)
    await rt.tick()
    found: Run = await rt.get(run.id)
    return found


async def waiting(rt: Any, builder: Any, **options: Any) -> Run:
    """A run of this graph, driven until it waits."""
    rt.register(builder, name="g", **options)
    run = await rt.start("g", said(), thread_id="t")
    await rt.tick()
    found: Run = await rt.get(run.id)
    assert found.state is State.WAITING, found
    return found


@pytest.mark.parametrize("colour", ["plain", "coroutine"])
@pytest.mark.parametrize(
    ("url", "swallow"),
    [
        *[("sqlite", swallow) for swallow in SWALLOWS],
        pytest.param("postgres", an_exception, marks=pytest.mark.postgres),
        pytest.param("d1", an_exception, marks=pytest.mark.d1),
    ],
    indirect=["url"],
)
@pytest.mark.parametrize("wait", WAITS)
async def test_the_run_waits_anyway(url: str, wait: str, swallow: Any, colour: str) -> None:
    calls = Calls()

    def plain(state: Log) -> Any:
        return said(swallow(WAITS[wait]))

    async def coroutine(state: Log) -> Any:
        return said(swallow(WAITS[wait]))

    node = plain if colour == "plain" else coroutine
    async with opened(url) as rt:
        run = await waiting(rt, chain(("node", node), calls.node("after")))
        assert calls == []
        [event] = [one for one in await rt.events(run.id) if one.kind == "waiting"]
        assert event.data["caught_in"] == "node"
        run = await let_go(rt, run)
        assert run.output["log"] == ["slept" if wait == "sleep" else "yes", "after"]
        await history(rt, run)


async def test_no_effect_is_called_after_a_question_that_was_caught(url: str) -> None:
    paid: list[str] = []

    @perdure.effect
    def pay(who: str) -> str:
        paid.append(who)
        return f"paid {who}"

    def node(state: Log) -> Any:
        answer = an_exception(lambda: perdure.ask("pay?"))
        with contextlib.suppress(Exception):
            return said(answer, pay("ana"))
        return said(answer, "not paid")

    async with opened(url) as rt:
        run = await waiting(rt, chain(node))
        assert paid == []
        run = await let_go(rt, run)
        assert run.output["log"] == ["yes", "paid ana"]
        assert paid == ["ana"]
