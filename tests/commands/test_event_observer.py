"""An observer is called once for each event that was committed: after the commit, never before it,
and whatever it does, it cannot break a commit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest

import perdure
from perdure.commands import claims
from perdure.commands.claims import LeaseTimes
from perdure.errors import Unavailable
from perdure.execution.segment_end import end_segment
from perdure.execution.segment_start import begin_segment
from perdure.journal import Refused, Row, Statement
from perdure.journal.operation import Ambiguous
from perdure.types import EventKind, Run, State
from tests.support.agents import Log, chain, driven, opened
from tests.support.entries import faulty
from tests.support.polling import auntil


class Seen(list[tuple[str, str, str, dict[str, Any], datetime]]):
    def on_event(
        self, kind: str, run_id: str, thread_id: str, data: Mapping[str, Any], at: datetime
    ) -> None:
        self.append((kind, run_id, thread_id, dict(data), at))

    def kinds(self, run: Run) -> list[str]:
        return [kind for kind, run_id, *_ in self if run_id == run.id]


def ask(state: Log) -> Log:
    return {"log": [perdure.ask("go on?")]}


def work(state: Log) -> Log:
    return {"log": ["worked"]}


async def test_every_event_of_a_run_is_told_once_as_it_is_stored(url: str) -> None:
    seen = Seen()
    async with opened(url, observe=seen) as rt:
        run = await driven(rt, chain(work, ask), {"log": []}, thread_id="t", key="k")
        [wait] = await rt.waits()
        await rt.answer(wait.id, "yes", by="ada")
        await rt.tick()
        stored = await rt.events(run.id)
    assert seen.kinds(run)[0] == EventKind.STARTED
    claims = (event.n for event in stored if event.kind == EventKind.CLAIMED)
    told = {n: {"graph": "g", "segment": segment} for segment, n in enumerate(claims, 1)}
    assert [(kind, data, at) for kind, _, _, data, at in seen] == [
        (event.kind, {**event.data, **told.get(event.n, {})}, event.at) for event in stored
    ]
    assert {(run_id, thread_id) for _, run_id, thread_id, _, _ in seen} == {(run.id, "t")}


async def test_an_event_is_on_disk_when_it_is_told(url: str) -> None:
    found: list[bool] = []

    class Looking:
        def on_event(self, kind: str, run_id: str, *rest: Any) -> None:
            with perdure.Client(url) as other:
                events = other.blocking.events(run_id)
            found.append(kind in {event.kind for event in events})

    async with opened(url, observe=Looking()) as rt:
        rt.register(chain(work), name="g")
        await rt.start("g", {"log": []})
        await rt.tick()
    assert found
    assert all(found)


async def test_a_run_that_was_started_before_is_not_told_again(url: str) -> None:
    seen = Seen()
    async with opened(url, observe=seen) as rt:
        first = await rt.start("g", key="k")
        assert (await rt.start("g", key="k")).id == first.id
        with pytest.raises(perdure.ThreadBusy):
            await rt.start("g", thread_id=first.thread_id, multitask_strategy="reject")
    assert [kind for kind, *_ in seen] == [EventKind.STARTED]


async def test_what_a_fenced_driver_would_have_stored_is_not_told(url: str) -> None:
    seen = Seen()
    async with opened(url, observe=seen) as rt:
        run = await driven(rt, chain(ask), {"log": []}, thread_id="t")
        [wait] = await rt.waits()
        driver, graph = rt.engine, rt.engine.graphs.chosen()["g@"]
        now = rt.clock.now()
        rows = []
        for worker, at in (("elsewhere:1:old", now), ("elsewhere:2:new", now + 60_000)):
            times = LeaseTimes(at, at + 3000)
            op = claims.claim_run(driver.serializer, worker, times, "t", run.id)
            rows.append(rt.journal.do(op))
        await rt.answer(wait.id, "yes")
        await auntil(lambda: seen[-1][0] == EventKind.ANSWER)
        told = len(seen)
        assert rows[0] is not None
        with pytest.raises(Refused):
            rt.journal.run(begin_segment(driver, rows[0], graph))
        ended = claims.SegmentEnd(State.DONE, EventKind.DONE, {})
        assert rt.journal.run(end_segment(driver, rows[0], ended)) == "lost"
        assert len(seen) == told
        assert rows[1] is not None
        rt.journal.run(end_segment(driver, rows[1], ended))
    assert seen.kinds(run)[told:] == [EventKind.DONE]


async def test_what_was_rolled_back_is_told_when_it_is_committed_later(sqlite_url: str) -> None:
    seen = Seen()
    async with opened(sqlite_url, observe=seen) as rt:
        faults = faulty(rt.journal)
        faults.before = [Unavailable("gone for a moment")]
        with pytest.raises(Unavailable):
            await rt.start("g", key="k")
        assert seen == []
        run = await rt.start("g", key="k")
    assert seen.kinds(run) == [EventKind.STARTED]


async def test_a_reply_that_was_lost_is_told_once_when_it_is_settled(url: str) -> None:
    seen = Seen()
    async with opened(url, observe=seen) as rt:
        rt.register(chain(work), name="g")
        faults = faulty(rt.journal)
        faults.after = [Ambiguous("no reply")]
        run = await rt.start("g", {"log": []})
        faults.after = [None, Ambiguous("no reply"), Ambiguous("no reply")]
        await rt.tick()
        stored = await rt.events(run.id)
    assert seen.kinds(run) == [event.kind for event in stored]


async def test_the_event_of_a_transactional_effect_is_told(url: str) -> None:
    seen = Seen()

    @perdure.effect(transactional=True)
    def book() -> str:
        return "booked"

    async with opened(url, observe=seen) as rt:
        run = await driven(rt, chain(("book", lambda state: {"log": [book()]})), {"log": []})
        stored = await rt.events(run.id)
    assert seen.kinds(run) == [event.kind for event in stored]
    assert EventKind.EFFECT in seen.kinds(run)


async def test_observers_cost_no_read_unless_a_reply_was_lost(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, read = Seen(), list[str]()
    async with opened(sqlite_url, observe=seen) as rt:
        rt.register(chain(work, ask), name="g")
        rt.setup()
        listener = rt.journal._group.committer.listener
        assert listener is not None
        reads = listener._read

        def counted(statements: Sequence[Statement]) -> list[list[Row]]:
            read.extend(name for name, _ in statements)
            return reads(statements)

        monkeypatch.setattr(listener, "_read", counted)
        first = await rt.start("g", {"log": []}, thread_id="t")
        await rt.tick()
        second = await rt.start("g", {"log": []}, thread_id="t", multitask_strategy="interrupt")
        await rt.cancel(second.id)
        await auntil(lambda: seen.kinds(second)[-1:] == [EventKind.CANCELLED])
        assert EventKind.CANCELLED in seen.kinds(first)
        assert read == []
        faulty(rt.journal).after = [Ambiguous("no reply")]
        third = await rt.start("g")
        await auntil(lambda: seen.kinds(third) == [EventKind.STARTED])
    assert read == ["find_event"]


async def test_an_observer_that_raises_breaks_nothing(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Seen):
        def on_event(self, *event: Any) -> None:
            super().on_event(*event)
            raise RuntimeError("no metrics today")

    seen = Broken()
    async with opened(sqlite_url, observe=seen) as rt:
        rt.register(chain(work), name="g")
        run = await rt.start("g", {"log": []})
        with caplog.at_level(logging.ERROR):
            await rt.tick()
        assert (await rt.get(run.id)).state is State.DONE
        stored = await rt.events(run.id)
    assert seen.kinds(run) == [event.kind for event in stored]
    assert "no metrics today" in caplog.text


async def test_a_client_has_an_observer_too_and_may_use_the_journal_in_it(sqlite_url: str) -> None:
    seen: list[str] = []

    class Asking:
        def on_event(self, kind: str, run_id: str, *rest: Any) -> None:
            if kind == EventKind.STARTED:
                client.blocking.cancel(run_id)
            seen.append(kind)

    async with perdure.Client(sqlite_url, observe=Asking()) as client:
        run = await client.start("g")
        assert (await client.join(run.id)).state is State.CANCELLED
        await auntil(lambda: len(seen) == 2, "an observer whose call has returned")
    assert seen == [EventKind.STARTED, EventKind.CANCELLED]
