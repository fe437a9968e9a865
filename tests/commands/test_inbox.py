"""What needs a person is one list, oldest first, read by pages; filters read a bounded number."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from langgraph.types import interrupt

import perdure
import perdure.testing
from perdure.commands import inbox
from perdure.commands.inbox import InboxEntry, InboxKind, InboxPage, InboxQuery
from perdure.commands.run_search import Position
from perdure.testing import TemporaryRuntime
from tests.support.reviewed_agents import asking


@perdure.effect(unknown="hold")
def charge() -> str:
    raise ConnectionResetError("lost")


def breaks() -> Any:
    raise ValueError("no")


ONCE = perdure.Retry(attempts=1)


def fill(rt: TemporaryRuntime) -> None:
    """A question, an unknown effect, a held run, a failed reflection, two more questions."""
    rt.register(asking(lambda: interrupt("Go?")), name="ask")
    rt.register(asking(lambda: perdure.ask("Soon?", expires=timedelta(hours=2))), name="soon")
    rt.register(asking(charge), name="pay")
    rt.register(asking(breaks), name="stock", hold=True, retry=ONCE)
    rt.register(asking(breaks), name="reflection:memory", hold=True, retry=ONCE)
    for name in ("ask", "pay", "stock", "reflection:memory", "soon", "ask"):
        metadata = {"team": "blue" if name == "ask" else "red", "n": 1}
        rt.blocking.start(name, {}, metadata=metadata, thread_id=f"{name}-{rt.clock.now()}")
        rt.blocking.tick()
        rt.clock.advance(timedelta(minutes=1))


def page(
    rt: TemporaryRuntime, after: Position | None = None, limit: int = 25, **query: Any
) -> InboxPage:
    found: InboxPage = rt.journal.run(inbox.page(rt.engine, InboxQuery(**query), after, limit))
    return found


def kinds(found: InboxPage) -> list[str]:
    return [one.kind.value for one in found.entries]


@pytest.fixture
def rt(url: str) -> Any:
    with perdure.testing.runtime(url) as runtime:
        fill(runtime)
        yield runtime


EVERYTHING = ["question", "effect", "held", "reflection", "question", "question"]


def test_everything_that_needs_a_person_is_listed_once_oldest_first(rt: TemporaryRuntime) -> None:
    found = page(rt)
    assert kinds(found) == EVERYTHING
    assert found.after is None
    assert [one.since for one in found.entries] == sorted(one.since for one in found.entries)
    assert [one.run.graph for one in found.entries if one.run] == [
        *("ask", "pay", "stock", "reflection:memory", "soon", "ask")
    ]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_pages_list_every_item_once(rt: TemporaryRuntime, size: int) -> None:
    entries: list[InboxEntry] = []
    after = None
    while True:
        found = page(rt, after, size)
        assert len(found.entries) <= size
        entries += found.entries
        after = found.after
        if after is None:
            break
    assert [one.kind for one in entries] == EVERYTHING
    assert len({one.id for one in entries}) == len(entries)


def test_filters_select_by_kind_graph_label_age_expiry_and_person(rt: TemporaryRuntime) -> None:
    assert kinds(page(rt, kinds=[InboxKind.HELD])) == ["held"]
    assert kinds(page(rt, kinds=[InboxKind.REFLECTION])) == ["reflection"]
    assert kinds(page(rt, graph="pay")) == ["effect"]
    assert kinds(page(rt, graph="ask")) == ["question"] * 2
    assert kinds(page(rt, labels=(("team", "blue"),))) == ["question"] * 2
    assert kinds(page(rt, labels=(("team", "red"), ("n", "1")))) == EVERYTHING[1:5]
    assert kinds(page(rt, labels=(("n", ""),))) == EVERYTHING
    assert kinds(page(rt, labels=(("n", "2"),))) == []
    now = rt.blocking.run(rt.now())
    assert kinds(page(rt, until=now - timedelta(minutes=5))) == EVERYTHING[:2]
    [soon] = page(rt, soon=now).entries
    assert soon.run is not None
    assert soon.run.graph == "soon"
    assert page(rt, soon=now - timedelta(days=2)).entries == []
    rt.blocking.assign(soon.id, "ana", by="ana")
    assert [one.id for one in page(rt, assignee="ana").entries] == [soon.id]
    assert kinds(page(rt, assignee="")) == ["question"] * 2
    assert kinds(page(rt, assignee="", graph="ask", labels=(("team", "blue"),))) == ["question"] * 2
    assert kinds(page(rt, kinds=[InboxKind.EFFECT], assignee="ana")) == []


def test_decided_items_leave_the_list(rt: TemporaryRuntime) -> None:
    question, effect, held, *_ = page(rt).entries
    rt.blocking.answer(question.id, "yes")
    rt.blocking.settle(effect.id, "done", "paid")
    rt.blocking.cancel(held.id)
    assert kinds(page(rt)) == EVERYTHING[3:]
    runs = [one.run.id for one in (question, effect, held) if one.run]
    assert rt.journal.run(inbox.of_runs(rt.engine, runs)) == []


def test_what_a_run_needs_is_found_by_the_run(rt: TemporaryRuntime) -> None:
    entries = page(rt).entries
    runs = [one.run.id for one in entries if one.run]
    found = rt.journal.run(inbox.of_runs(rt.engine, runs))
    assert {(one.kind, one.id) for one in found} == {(one.kind, one.id) for one in entries}
    now = rt.blocking.run(rt.now())
    for query in (
        InboxQuery(graph="ask"),
        InboxQuery(assignee="ana"),
        InboxQuery(kinds=[InboxKind.HELD]),
        InboxQuery(labels=(("team", "red"),), until=now - timedelta(minutes=4)),
    ):
        some = rt.journal.run(inbox.of_runs(rt.engine, runs, query))
        listed = rt.journal.run(inbox.page(rt.engine, query, None, 25)).entries
        assert {one.id for one in some} == {one.id for one in listed}


def test_a_filter_that_finds_nothing_stops_and_says_where(
    rt: TemporaryRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MOST_READ", 2)
    monkeypatch.setattr(inbox, "CHUNK", 1)
    found, steps = page(rt, labels=(("team", "green"),)), 1
    while found.after is not None:
        assert found.is_cut
        assert not found.entries
        found, steps = page(rt, found.after, labels=(("team", "green"),)), steps + 1
    assert 2 <= steps <= 6
