"""An answer is accepted once, in time, and only if it fits; refused, it changes nothing.

It is bound to what was shown: whoever answers a question that has changed meanwhile is told so.
"""

from __future__ import annotations

from datetime import date
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal

import pytest
from langgraph.types import interrupt
from pydantic import BaseModel, field_validator

import perdure
from perdure import errors
from perdure.times import utc_time
from perdure.types import State
from tests.contract.test_answers import JSON, Decision, Review, Vote, everything
from tests.support.http import serving
from tests.support.waiters import (
    DAY,
    HOUR,
    Log,
    asking,
    begin,
    chain,
    drive,
    healthy,
    listening,
    log_of,
    only_wait,
    side_by_side,
    sleeping,
)

# -- once


@pytest.mark.smoke
async def test_an_answer_is_recorded_with_who_and_when(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(rt, chain(asking("q")))
        wait = await only_wait(rt, run)
        rt.clock.advance(HOUR)
        await rt.answer(wait.id, {"ok": True}, by="ana@example.com")
        [event] = [event for event in await rt.events(run.id) if event.kind == "answer"]
        assert event.at == rt.clock.time
        assert event.data == {"wait": wait.id, "by": "ana@example.com"}
        assert await rt.waits() == []
        assert (await rt.get(run.id)).due_at == rt.clock.time
        await drive(rt)
        assert await log_of(rt, run) == [("q", {"ok": True})]


async def test_who_is_called_clock_or_signal_is_a_person_all_the_same() -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(asking("q"), asking("r", "again")))
        for name in ("clock", "signal"):
            wait = await only_wait(rt, run)
            await rt.answer(wait.id, name, by=name)
            with pytest.raises(errors.AlreadyAnswered):
                await rt.answer(wait.id, 2)
            await drive(rt)
        assert await log_of(rt, run) == [("q", "clock"), ("r", "signal")]


# -- what fits


@pytest.mark.parametrize(
    ("schema", "answer", "given"),
    [
        (Decision, {"action": "send"}, Decision(action="send")),
        (Decision, {"action": "drop", "count": 3}, Decision(action="drop", count=3)),
        (Review, {"action": "a", "score": 1}, {"action": "a", "score": 1}),
        (Vote, {"ok": True}, Vote(True)),
        (JSON, {"ok": False}, {"ok": False}),
        (int, 7, 7),
        (list[int], [1, 2], [1, 2]),
        (bool, False, False),
        (str | None, None, None),
        (Literal["a", "b"], "b", "b"),
        (list[int], (1, 2), [1, 2]),
        (date, date(2030, 1, 2), date(2030, 1, 2)),
        (date, "2030-01-02", date(2030, 1, 2)),
    ],
    ids=str,
)
async def test_a_node_gets_the_answer_as_its_schema_says(
    schema: Any, answer: Any, given: Any
) -> None:
    got: list[Any] = []

    def node(state: Log) -> Log:
        got.append(perdure.ask("q", response_schema=schema))
        return {"log": [repr(got[-1])]}

    async with healthy() as rt:
        run = await begin(rt, chain(node))
        wait = await only_wait(rt, run)
        assert wait.response_schema is not None
        await rt.answer(wait.id, answer)
        await drive(rt)
        assert await log_of(rt, run) == [repr(given)]
        assert got == [given]
        assert type(got[0]) is type(given)


@pytest.mark.parametrize("answer", [Decision(action="send", note="x"), Vote(True, "ana")], ids=str)
async def test_an_answer_may_be_the_object_itself(answer: Any) -> None:
    got: list[Any] = []

    def node(state: Log) -> Log:
        got.append(perdure.ask("q", response_schema=type(answer)))
        return {"log": ["ok"]}

    async with healthy(allow=[Decision, Vote]) as rt:
        run = await begin(rt, chain(node))
        await rt.answer((await only_wait(rt, run)).id, answer)
        await drive(rt)
        assert await log_of(rt, run) == ["ok"]
        assert got == [answer]


async def test_a_plain_interrupt_with_a_schema_is_checked_too() -> None:
    def node(state: Log) -> Log:
        return {"log": [interrupt("q", response_schema=JSON)]}

    async with healthy() as rt:
        run = await begin(rt, chain(node))
        wait = await only_wait(rt, run)
        assert wait.response_schema == JSON
        with pytest.raises(errors.BadAnswer):
            await rt.answer(wait.id, {})
        await rt.answer(wait.id, {"ok": True})
        await drive(rt)
        assert await log_of(rt, run) == [{"ok": True}]


# -- refused


class Unknown:
    pass


@pytest.mark.parametrize("answer", [Unknown(), {"a": [lambda: 1]}, "\ud800", 2**70], ids=type)
async def test_what_cannot_be_stored_is_refused_before_it_is_accepted(answer: Any) -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(asking("q")))
        wait = await only_wait(rt, run)
        before = await everything(rt, run)
        with pytest.raises((errors.Unserializable, errors.TypeNotAllowed), match="answer"):
            await rt.answer(wait.id, answer)
        assert await everything(rt, run) == before
        await rt.answer(wait.id, "plain")
        await drive(rt)
        assert await log_of(rt, run) == [("q", "plain")]


async def test_the_clock_and_signals_take_no_answers_from_people(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(rt, side_by_side(sleeping(DAY), listening("s")))
        for wait in await rt.waits():
            before = await everything(rt, run)
            with pytest.raises(errors.WrongWait, match=wait.kind.value):
                await rt.answer(wait.id, 1)
            assert await everything(rt, run) == before


async def test_a_late_answer_is_refused_before_and_after_its_default_was_used(url: str) -> None:
    async with healthy(url) as rt:
        asks = asking("q", expires=DAY, default="nobody")
        run = await begin(rt, chain(asks, asking("r", "again")))
        wait = await only_wait(rt, run)
        assert wait.expires_at is not None
        rt.clock.advance(DAY)  # and nobody drove it yet
        for _ in range(3):
            before = await everything(rt, run)
            with pytest.raises(
                errors.WaitExpired, match=f"it expired at {utc_time(wait.expires_at)}"
            ):
                await rt.answer(wait.id, 1)
            assert await everything(rt, run) == before
            await drive(rt)
        assert (await only_wait(rt, run)).value == "r"


# -- other ways to answer


async def test_a_run_that_failed_and_is_retried_asks_what_it_had_asked() -> None:
    failing = [True]

    def fails(state: Log) -> Log:
        answer = perdure.ask("fails")
        if failing:
            raise LookupError
        return {"log": [answer]}

    async with healthy() as rt:
        rt.register(side_by_side(fails, asking("q")), name="g", retry=perdure.Retry(attempts=1))
        run = await rt.start("g", {"log": []}, thread_id="t")
        await drive(rt)
        by_value = {wait.value: wait for wait in await rt.waits()}
        await rt.answer(by_value["fails"].id, 1)
        await drive(rt)
        assert (await rt.get(run.id)).state is State.FAILED
        with pytest.raises(errors.WaitClosed):
            await rt.answer(by_value["q"].id, 2)
        failing.clear()
        await rt.retry(run.id)
        await drive(rt)
        wait = await only_wait(rt, run)
        assert wait.id == by_value["q"].id
        await rt.answer(wait.id, 2)
        await drive(rt)
        assert sorted(map(str, await log_of(rt, run))) == ["('q', 2)", "1"]


# -- what a schema can say, and what it cannot


class Payment(BaseModel):
    amount: int
    day: date = date(2026, 1, 1)

    @field_validator("amount")
    @classmethod
    def is_even(cls, amount: int) -> int:
        if amount % 2:
            raise ValueError("must be even")
        return amount


async def test_an_answer_that_only_the_model_refuses_is_asked_for_again(url: str) -> None:
    async with healthy(url, allow=[Payment]) as rt:
        run = await begin(rt, chain(asking("pay?", response_schema=Payment)))
        first = await only_wait(rt, run)
        await rt.answer(first.id, {"amount": 3})
        await drive(rt)
        second = await only_wait(rt, run)
        assert (second.value, second.id != first.id) == ("pay?", True)
        await rt.answer(second.id, {"amount": 4})
        await drive(rt)
        assert await log_of(rt, run) == [("pay?", Payment(amount=4))]


async def test_the_types_of_answers_are_those_of_the_graph_or_allowed() -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(asking("pay?", response_schema=Payment)))
        await rt.answer((await only_wait(rt, run)).id, {"amount": 4})
        await drive(rt)
        found = await rt.get(run.id)
        assert found.state is State.HELD
        assert "Payment is not allowed" in str(found.reason)


async def test_formats_are_checked_before_an_answer_is_accepted() -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(asking("pay?", response_schema=Payment)))
        wait = await only_wait(rt, run)
        with pytest.raises(errors.BadAnswer, match='day: "soon" is not a "date"'):
            await rt.answer(wait.id, {"amount": 2, "day": "soon"})
        assert await rt.waits() == [wait]


async def test_a_schema_that_is_none_is_refused_where_it_is_asked_with() -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(asking("q", response_schema={"type": "integr"})))
        found = await rt.get(run.id)
        assert (found.state, found.attempts) == (State.FAILED, 1)
        assert found.error is not None
        assert "response_schema is not a JSON Schema" in found.error.message


async def test_a_plain_interrupt_with_a_schema_that_is_none_can_be_answered() -> None:
    def asks(state: Log) -> Log:
        return {"log": [interrupt("q", response_schema={"type": "integr"})]}

    async with healthy() as rt:
        run = await begin(rt, chain(asks))
        await rt.answer((await only_wait(rt, run)).id, 7)
        await drive(rt)
        assert await log_of(rt, run) == [7]


LARGE = {"pattern": "^[a-z]{1,100000}$", "type": "string"}


async def test_a_pattern_that_is_too_large_is_refused_where_it_is_asked_with() -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(asking("q", response_schema=LARGE)))
        found = await rt.get(run.id)
        assert found.state is State.FAILED
        assert "has a pattern that is no regular expression, or too large" in str(found.error)


async def test_of_a_schema_with_such_a_pattern_from_elsewhere_the_rest_is_enforced() -> None:
    def node(state: Log) -> Log:
        return {"log": [interrupt("q", response_schema=LARGE)]}

    async with healthy() as rt:
        await begin(rt, chain(node))
        [wait] = await rt.waits()
        with pytest.raises(errors.BadAnswer, match='5 is not of type "string"'):
            await rt.answer(wait.id, 5)
        await rt.answer(wait.id, "7")


async def test_what_a_schema_refers_to_elsewhere_is_not_fetched() -> None:
    """A tool's schema may come from a stranger, and name an address of the server's own network."""
    asked: list[str] = []

    class Inside(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Inside) as address:
        schema = {"type": "object", "properties": {"to": {"$ref": f"{address}/secret.json"}}}
        async with healthy() as rt:
            run = await begin(rt, chain(asking("q", response_schema=schema)))
            await rt.answer((await only_wait(rt, run)).id, {"to": "bo"})
    assert asked == []
