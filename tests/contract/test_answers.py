"""A question is answered once, by an answer that fits, and for what was shown."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

import perdure
from perdure import Runtime, errors
from perdure.types import Run
from tests.support.polling import auntil
from tests.support.waiters import (
    Log,
    asking,
    begin,
    chain,
    data_of,
    drive,
    healthy,
    log_of,
    only_wait,
    side_by_side,
)


class Decision(BaseModel):
    action: Literal["send", "drop"]
    note: str = ""
    count: int = Field(default=1, ge=1)


class Review(TypedDict):
    action: str
    score: int


@dataclass
class Vote:
    ok: bool
    by: str = "nobody"


JSON = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


async def everything(rt: Runtime, run: Run) -> tuple[Any, ...]:
    """All that an answer could change."""
    found = await rt.get(run.id)
    return found, await rt.events(run.id), await rt.waits()


async def test_a_second_answer_is_refused_before_and_after_the_first_was_used(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(rt, chain(asking("q"), asking("r", "again")))
        wait = await only_wait(rt, run)
        await rt.answer(wait.id, 1, by="ana")
        for _ in range(3):
            before = await everything(rt, run)
            with pytest.raises(errors.AlreadyAnswered, match="ana answered it at") as raised:
                await rt.answer(wait.id, 2, by="ben")
            assert raised.value.wait_id == wait.id
            assert await everything(rt, run) == before
            await drive(rt)
        await rt.answer((await only_wait(rt, run)).id, 3)
        await drive(rt)
        assert await log_of(rt, run) == [("q", 1), ("r", 3)]


@pytest.mark.smoke
async def test_of_twenty_answers_at_once_from_two_runtimes_exactly_one_wins(url: str) -> None:
    async with healthy(url) as rt, healthy(url, clock=rt.clock) as other:
        run = await begin(rt, chain(asking("q")))
        wait = await only_wait(rt, run)
        ways = [(rt, other)[n % 2].answer(wait.id, n, by=str(n)) for n in range(20)]
        told = await asyncio.gather(*ways, return_exceptions=True)
        [winner] = [n for n, error in enumerate(told) if error is None]
        refused = [error for error in told if error is not None]
        assert {type(error) for error in refused} == {errors.AlreadyAnswered}
        await drive(rt)
        assert await log_of(rt, run) == [("q", winner)]
        assert [data["by"] for data in data_of(await rt.events(run.id), "answer")] == [str(winner)]


async def test_answers_race_with_drivers_and_none_is_lost(url: str) -> None:
    """Twelve questions side by side, answered while two runtimes drive: each is used once."""
    nodes = [asking(n, f"n{n}") for n in range(12)]
    async with healthy(url) as rt, healthy(url, clock=rt.clock) as other:
        other.register(side_by_side(*nodes), name="g")
        run = await begin(rt, side_by_side(*nodes))
        for wait in await rt.waits():
            await asyncio.gather(
                rt.answer(wait.id, wait.value + 100), rt.tick(limit=1), other.tick(limit=1)
            )

        async def ended() -> bool:
            await asyncio.gather(drive(rt), drive(other))
            return (await rt.get(run.id)).ended

        await auntil(ended)
        assert sorted(await log_of(rt, run)) == [(n, n + 100) for n in range(12)]


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        (Decision, {"action": "sell"}),
        (Decision, {}),
        (Decision, {"action": "send", "count": 0}),
        (Decision, None),
        (Decision, "send"),
        (Review, {"action": "a"}),
        (Review, {"action": "a", "score": "many"}),
        (Vote, {"ok": "perhaps"}),
        (JSON, {"ok": 1}),
        (JSON, {"ok": True, "more": 1}),
        (int, "7x"),
        (list[int], [1, "x"]),
    ],
    ids=str,
)
async def test_an_answer_that_does_not_fit_is_refused_and_changes_nothing(
    schema: Any, answer: Any
) -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(asking("q", response_schema=schema)))
        wait = await only_wait(rt, run)
        before = await everything(rt, run)
        with pytest.raises(errors.BadAnswer, match="response_schema"):
            await rt.answer(wait.id, answer)
        assert await everything(rt, run) == before


async def test_an_answer_to_what_is_no_longer_shown_is_refused(url: str) -> None:
    drafts = iter(["first draft", "second draft", "third draft"])

    def changes(state: Log) -> Log:
        return {"log": [perdure.ask(next(drafts))]}

    async with healthy(url) as rt:
        run = await begin(rt, side_by_side(changes, asking("other")))
        by_value = {wait.value: wait for wait in await rt.waits()}
        await rt.answer(by_value["other"].id, 1)
        await drive(rt)
        now = await only_wait(rt, run)
        assert now.value == "second draft"
        before = await everything(rt, run)
        with pytest.raises(errors.WaitClosed, match="asks something else"):
            await rt.answer(by_value["first draft"].id, "fine")
        assert await everything(rt, run) == before


@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
async def test_an_answer_given_while_its_question_changes_is_not_taken_for_the_new_one(
    early: bool,
) -> None:
    drafts: list[str] = []
    at, go = threading.Event(), threading.Event()

    def changes(state: Log) -> Log:
        if early and len(drafts) > 1:
            at.set()
            assert go.wait(30)
        return {"log": [perdure.ask(drafts[-1])]}

    def slow(state: Log) -> Log:
        answer = perdure.ask("slow")
        if not early:
            at.set()
            assert go.wait(30)
        return {"log": [answer]}

    for n in range(4):  # which of the two has the smaller id must not matter
        at.clear()
        go.clear()
        drafts[:] = [f"first {n}"]
        async with healthy() as rt:
            run = await begin(rt, side_by_side(changes, slow))
            by_value = {wait.value: wait for wait in await rt.waits()}
            await rt.answer(by_value["slow"].id, 1)
            drafts.append(f"second {n}")
            driving = asyncio.create_task(rt.tick())
            await auntil(at.is_set)
            if early:
                await rt.answer(by_value[f"first {n}"].id, "fine")
            go.set()
            await driving
            wait = await only_wait(rt, run)
            assert wait.value == f"second {n}"
            with pytest.raises(errors.WaitClosed):
                await rt.answer(by_value[f"first {n}"].id, "fine")
            await rt.answer(wait.id, "fine too")
            await drive(rt)
            assert sorted(map(str, await log_of(rt, run))) == ["1", "fine too"]
