"""A trace that is marked due while it is exported stays due."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import perdure
from perdure.commands import events
from tests.support.agents import Log, chain, driven, opened


class Stub:
    def attach(self, engine: Any) -> None:
        engine.sinks.append("stub")


def ask(state: Log) -> Log:
    return {"log": [perdure.ask("go on?")]}


async def test_a_segment_that_ends_just_when_the_reservation_does_is_still_to_be_exported(
    sqlite_url: str,
) -> None:
    async with opened(sqlite_url, observe=Stub()) as rt:
        rt.register(chain(ask), name="g")
        await rt.start("g", {"log": []})
        await rt.tick()
        serializer, now = rt.engine.serializer, rt.clock.now()
        until = now + 60_000

        def take() -> list[events.Trace]:
            return rt.journal.do(events.take_traces(serializer, "stub", rt.clock.now(), until, 10))

        [taken] = take()
        rt.clock.advance(timedelta(minutes=1))
        [wait] = await rt.waits()
        await rt.answer(wait.id, "yes")
        await rt.tick()
        rt.journal.do(events.note_trace(serializer, taken, 3, {}, rt.clock.now(), more=False))
        [again] = take()
        assert again.n == 3
        rt.journal.do(events.note_trace(serializer, again, 9, {}, rt.clock.now(), more=False))
        assert take() == []


async def test_a_trace_that_is_marked_while_it_is_exported_is_not_given_to_a_second_process(
    sqlite_url: str,
) -> None:
    async with opened(sqlite_url, observe=Stub()) as rt:
        run = await driven(rt, chain(ask), {"log": []})
        serializer, now = rt.engine.serializer, rt.clock.now()

        def take() -> list[events.Trace]:
            return rt.journal.do(events.take_traces(serializer, "stub", now, now + 60_000, 10))

        [taken] = take()
        for value in (1, 2):
            await rt.score(run.id, "good", value)
            assert take() == []
        rt.journal.do(events.note_trace(serializer, taken, 3, {}, now, more=False))
        [again] = take()
        assert again.n == 3
