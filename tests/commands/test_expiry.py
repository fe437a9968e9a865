"""A question with a time limit gives its default, or raises in the node, when it is over."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import perdure
from perdure.errors import BadArgument, Expired
from perdure.types import Kind, State
from tests.support.waiters import (
    DAY,
    HOUR,
    MS,
    Log,
    asking,
    begin,
    chain,
    drive,
    healthy,
    kinds,
    log_of,
    only_wait,
)


async def test_a_question_nobody_answers_in_time_gives_its_default(url: str) -> None:
    async with healthy(url) as rt:
        begun = rt.clock.time
        run = await begin(rt, chain(asking("q", expires=DAY, default={"ok": False})))
        wait = await only_wait(rt, run)
        assert (wait.kind, wait.expires_at, wait.wake_at) == (Kind.HUMAN, begun + DAY, None)
        rt.clock.advance(DAY - MS)
        await drive(rt)
        assert await rt.waits() == [wait]
        rt.clock.advance(MS)
        await drive(rt)
        assert await log_of(rt, run) == [("q", {"ok": False})]
        assert await kinds(rt, run, "expired", "woke", "answer") == ["expired"]


@pytest.mark.parametrize("default", [None, False, 0, ""], ids=repr)
async def test_a_default_may_be_nothing(default: Any) -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(asking("q", expires=DAY, default=default)))
        rt.clock.advance(DAY)
        await drive(rt)
        assert await log_of(rt, run) == [("q", default)]


async def test_without_a_default_expiry_raises_in_the_node_and_can_be_caught() -> None:
    def node(state: Log) -> Log:
        try:
            perdure.ask("q", expires=DAY)
        except Expired:
            return {"log": ["too late", perdure.ask("and now?")]}
        return {"log": ["in time"]}

    async with healthy() as rt:
        run = await begin(rt, chain(node))
        rt.clock.advance(DAY)
        await drive(rt)
        wait = await only_wait(rt, run)
        assert wait.value == "and now?"
        await rt.answer(wait.id, "yes")
        await drive(rt)
        assert await log_of(rt, run) == ["too late", "yes"]


async def test_an_expiry_nobody_catches_fails_the_run() -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(asking("q", expires=DAY)))
        rt.clock.advance(DAY)
        for _ in range(5):
            await drive(rt)
            rt.clock.advance(HOUR)
        run = await rt.get(run.id)
        assert run.state is State.FAILED
        assert run.error is not None
        assert run.error.kind == "perdure.errors.Expired"


async def test_an_answer_in_time_stands_though_it_is_used_after_the_expiry() -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(asking("q", expires=DAY, default="nobody")))
        rt.clock.advance(DAY - MS)
        await rt.answer((await only_wait(rt, run)).id, "in time")
        rt.clock.advance(DAY)
        await drive(rt)
        assert await log_of(rt, run) == [("q", "in time")]


async def test_an_expiry_may_be_a_date_and_one_that_has_passed_is_over_at_once() -> None:
    past = datetime(2000, 1, 1, tzinfo=UTC)
    async with healthy() as rt:
        run = await begin(rt, chain(asking("q", expires=past, default="nobody")))
        assert await log_of(rt, run) == [("q", "nobody")]


async def test_bad_time_limits_are_refused() -> None:
    with pytest.raises(BadArgument, match="expires"):
        perdure.ask("q", default=1)
    with pytest.raises(BadArgument, match="time zone"):
        perdure.ask("q", expires=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(BadArgument, match="timeout"):
        perdure.wait_for("s", timeout=5)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="name"):
        perdure.wait_for("")
