"""Every change is an event that never changes."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.types import Actor, Event, Run, State
from tests.support.agents import chain, opened
from tests.support.controls import ONCE, approve, echo, fail, nap, resting, said
from tests.support.raw import execute


async def test_no_statement_changes_an_event(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(echo), name="g")
        run = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
        before = await rt.events(run.id)
        for change in ("at = 1", "kind = 'answer'", "body = NULL", "n = n + 100"):
            with pytest.raises(Exception, match="an event is never changed"):
                execute(url, f"UPDATE perdure_events SET {change} WHERE thread_id = 't'")
        assert await rt.events(run.id) == before
        assert (await rt.get(run.id)).state is State.DONE
        assert (await rt.erase("t"))["events"] == len(before)


ANA = Actor("ana", via="browser", address="10.0.0.7")


SAID = {"by": "ana", "via": "browser", "from": "10.0.0.7"}


async def last(rt: Any, run: Run, kind: str) -> Event:
    found: list[Event] = [one for one in await rt.events(run.id) if one.kind == kind]
    return found[-1]


def who(event: Event) -> dict[str, Any]:
    return {name: event.data[name] for name in SAID if name in event.data}


async def test_the_event_of_every_decision_says_who_how_and_from_where(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(nap, approve, fail), name="g", retry=ONCE)
        run = await resting(rt, State.WAITING)
        await rt.pause(run.id, by=ANA)
        await rt.resume(run.id, by=ANA)
        await rt.tick()
        await rt.wake(run.id, by=ANA)
        await rt.tick()
        [wait] = await rt.waits()
        await rt.answer(wait.id, {"type": "accept"}, by=ANA)
        await rt.withdraw(wait.id, by=ANA, reason="too soon")
        await rt.answer(wait.id, "yes", by=ANA)
        [_, answered] = await rt.wait_history(run.id)
        assert answered.answered_by == "ana"
        assert type(answered.answered_by) is str
        await rt.tick()
        await rt.retry(run.id, by=ANA)
        await rt.score(run.id, "tone", 1, by=ANA)
        await rt.score(run.id, "tone", 1, by=ANA)
        await rt.cancel(run.id, by=ANA)
        kinds = ("paused", "resumed", "woke", "answer", "withdrawn", "retried", "scored")
        for kind in (*kinds, "cancelled"):
            assert who(await last(rt, run, kind)) == SAID, kind
        [score] = await rt.scores(run.id)
        assert score.by == "ana"
        scored = [one for one in await rt.events(run.id) if one.kind == "scored"]
        assert [one.data["name"] for one in scored] == ["decision", "tone"]
