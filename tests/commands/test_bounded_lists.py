"""Lists and counts for the pages of operators, on every database: in order, in pieces, bounded."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import perdure
from perdure.commands import health, messages, runs, schedules
from perdure.commands.health import GraphDue
from perdure.commands.messages import NEVER
from perdure.execution.duties import fire_now
from perdure.times import milliseconds
from tests.support.agents import NOON, Log, chain, opened
from tests.support.raw import execute


def tell(state: Log) -> Any:
    for text in state["log"]:
        perdure.outbox("crm", text)
    return {}


async def test_messages_are_listed_by_when_they_are_tried_next(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(tell), name="tell")
        await rt.start("tell", {"log": ["a", "b", "c", "d"]})
        await rt.tick()
        found = sorted(await rt.messages(), key=lambda one: str(one.payload))
        for n, one in enumerate(found[:3]):
            at = milliseconds(NOON) + 1000 * (3 - n)
            execute(url, f"UPDATE perdure_outbox SET due_at = {at} WHERE id = '{one.id}'")
        execute(url, f"UPDATE perdure_outbox SET due_at = {NEVER} WHERE id = '{found[3].id}'")
        serializer = rt.engine.serializer
        first = await rt.journal.ado(messages.page(serializer, given_up=False, after=None, count=2))
        assert [one.payload for one in first] == ["c", "b"]
        last = (milliseconds(first[-1].due_at or NOON), first[-1].id)
        rest = await rt.journal.ado(messages.page(serializer, given_up=False, after=last, count=2))
        assert [one.payload for one in rest] == ["a"]
        gone = await rt.journal.ado(messages.page(serializer, given_up=True, after=None, count=9))
        assert [(one.payload, one.due_at) for one in gone] == [("d", None)]
        after = await rt.journal.ado(
            messages.page(serializer, given_up=True, after=(NEVER, gone[0].id), count=9)
        )
        assert after == []


async def test_signs_count_what_is_late_unknown_and_given_up(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(tell), name="tell")
        await rt.start("tell", {"log": ["a", "b"]})
        await rt.tick()
        await rt.start("tell", {"log": []})
        execute(url, "UPDATE perdure_effects SET state = 'unknown' WHERE n = 0")
        [one, _] = await rt.messages()
        execute(url, f"UPDATE perdure_outbox SET due_at = {NEVER} WHERE id = '{one.id}'")
        now = milliseconds(NOON + timedelta(minutes=1))
        signs = await rt.journal.ado(health.first_signs(now))
        assert signs.due == [GraphDue("tell", 1, 60_000)]
        assert (signs.unknown, signs.unknown_age_ms) == (1, 60_000)
        assert (signs.messages, signs.message_late_ms, signs.given_up) == (1, 60_000, 1)
        assert signs.database_bytes is None or signs.database_bytes > 0
        execute(url, "UPDATE perdure_effects SET state = 'done'")


async def test_unfinished_runs_are_listed_by_thread_without_those_that_ended(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(tell), name="tell")
        for name in ("b", "a", "c"):
            await rt.start("tell", {"log": []}, thread_id=name)
        await rt.tick()
        for name in ("b", "a", "c"):
            await rt.start("tell", {"log": []}, thread_id=name)
        found = []
        after: tuple[str, int] | None = None
        while page := await rt.journal.ado(runs.unfinished_of_threads("", "c", after, 1)):
            found += [(one.thread_id, one.state) for one in page]
            after = (page[-1].thread_id, page[-1].n)
        assert found == [("a", "pending"), ("b", "pending")]


async def test_the_last_runs_of_a_schedule_come_first(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(tell), name="tell")
        for name in ("daily", "daily@x", "weekly"):
            await rt.schedule(name, "tell", cron="0 0 * * *", input={"log": []}, catch_up=True)
        for _ in range(2):
            rt.clock.advance(timedelta(days=1))
            await rt.tick()
        plan = fire_now(rt.engine, "daily", "2030-01-03T12:00:00Z+1", None)
        await rt.journal.arun(plan)
        found = await rt.journal.ado(runs.of_schedule("daily", 9))
        assert [one.key for one in found] == [
            "daily@2030-01-03T12:00:00Z+1",
            "daily@2030-01-03T00:00:00Z",
            "daily@2030-01-02T00:00:00Z",
        ]
        page = await rt.journal.ado(schedules.page("daily", 1))
        assert [one.name for one in page] == ["daily@x"]
