"""Runs are found by state, graph, time, label and text, in a bounded number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure import Client
from perdure.commands import run_search
from perdure.commands.run_search import Direct, RunPage, RunQuery, labels_in
from perdure.types import Retry, Run, State
from tests.support.waiters import chain, healthy


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as made:
        yield made


def start(client: Client, graph: str = "campaign", **options: Any) -> Run:
    return client.blocking.start(graph, {"n": 1}, **options)


def search(
    client: Client, query: RunQuery | None = None, limit: int = 50, **places: Any
) -> RunPage:
    plan = run_search.search(client.engine, query or RunQuery(), limit, **places)
    return client.journal.run(plan)


def ids(page: RunPage) -> list[str]:
    return [row.id for row in page.rows]


def test_each_filter_selects_its_runs_newest_first(client: Client) -> None:
    first = start(client, metadata={"team": "blue", "campaign_id": 7}, tags=["mail"])
    second = start(client, "letter", thread_id="letter-9", key="spring")
    third = start(client, metadata={"team": "red", "nested": {"a": [1]}})
    client.blocking.cancel(third.id, reason="unsubscribed from the list")
    child = RunQuery(parent_id=first.id)

    def found(**facts: Any) -> list[str]:
        return ids(search(client, RunQuery(**facts)))

    assert found() == [third.id, second.id, first.id]
    assert found(states=frozenset({State.CANCELLED})) == [third.id]
    assert found(states=frozenset({State.CANCELLED, State.PENDING})) == found()
    assert found(graph="letter") == [second.id]
    assert found(labels=(("team", "blue"),)) == [first.id]
    assert found(labels=(("campaign_id", "7"), ("team", "blue"))) == [first.id]
    assert found(labels=(("nested", '{"a": [1]}'),)) == [third.id]
    assert found(labels=(("team", "BLUE"),)) == []
    assert found(since=first.created_at + timedelta(days=1)) == []
    assert found(until=first.created_at) == []
    assert found(since=first.created_at, until=third.created_at + timedelta(seconds=1)) == found()
    assert found(thread_id="letter-9") == [second.id]
    assert ids(search(client, child)) == []


@pytest.mark.parametrize(
    ("text", "which"),
    [
        ("BLUE", "first"),
        ("team=blue", "first"),
        ("mail 7", "first"),
        ("mail red", ""),
        ("letter", "second"),
        ("spring", "second"),
        ("from the LIST", "third"),
        ("läuft", "third"),
        ("%", ""),
        ("'; DROP TABLE perdure_runs", ""),
    ],
)
def test_words_are_found_in_everything_that_names_a_run(
    client: Client, text: str, which: str
) -> None:
    made = {
        "first": start(client, metadata={"team": "blue", "campaign_id": 7}, tags=["mail"]),
        "second": start(client, "letter", thread_id="letter-9", key="spring"),
        "third": start(client, metadata={"note": "läuft"}),
    }
    client.blocking.cancel(made["third"].id, reason="unsubscribed from the list")
    expected = [made[which].id] if which else []
    assert ids(search(client, RunQuery(text=text))) == expected


async def test_words_are_found_in_the_error_and_in_the_labels_of_the_agent(url: str) -> None:
    def labels(state: Any) -> Any:
        perdure.label(customer="Ada Lovelace")

    def fails(state: Any) -> Any:
        raise ValueError("no such mailbox")

    async with healthy(url) as rt:
        rt.register(chain(labels, fails), "g", retry=Retry(attempts=1))
        run = await rt.start("g", {"log": []})
        await rt.tick()
        for text in ("no such mailbox", "ValueError", "lovelace"):
            plan = run_search.search(rt.engine, RunQuery(text=text), 10)
            assert [row.id for row in (await rt.journal.arun(plan)).rows] == [run.id]
        plan = run_search.search(rt.engine, RunQuery(labels=(("customer", "Ada Lovelace"),)), 10)
        assert [row.id for row in (await rt.journal.arun(plan)).rows] == [run.id]


def test_a_run_and_a_thread_are_found_by_their_ids_without_reading_others(client: Client) -> None:
    first = start(client, thread_id="conversation-7", metadata={"team": "blue"})
    start(client)

    def direct(text: str, **facts: Any) -> Any:
        plan = run_search.find_direct(client.engine, RunQuery(text=text, **facts))
        return client.journal.run(plan)

    kind, query, _ = direct("conversation-7", graph="campaign")
    assert (kind, query.thread_id, query.text) == (Direct.THREAD, "conversation-7", "")
    assert ids(search(client, query)) == [first.id]
    assert direct("conversation-7", graph="letter") is None
    for text in (first.id, f" {first.id} ", first.id[:-2]):
        kind, _, rows = direct(text)
        assert (kind, [row.id for row in rows]) == (Direct.RUN, [first.id])
    assert direct(first.id, labels=(("team", "red"),)) is None
    for text in ("", first.id[:3], "conversation", "x" * 5000):
        assert direct(text) is None


def test_newer_pages_lead_back_to_where_one_came_from(client: Client) -> None:
    made = [start(client, graph="a" if n % 3 else "b").id for n in range(20)][::-1]
    older = search(client, limit=5, before=search(client, limit=5).older)
    assert ids(older) == made[5:10]
    first = older.rows[0]
    back = search(client, limit=5, after=(first.created_at, first.id))
    assert ids(back) == made[:5]
    assert back.newer is None
    assert ids(search(client, limit=5, before=back.older)) == made[5:10]
    last = search(client, limit=50).rows[-1]
    up = search(client, RunQuery(graph="a"), 3, after=(last.created_at, last.id))
    wanted = [row.id for row in search(client, RunQuery(graph="a"), 50).rows][-3:]
    assert ids(up) == wanted
    assert up.newer is not None


def test_a_label_is_written_as_a_pair() -> None:
    assert labels_in(["team=blue", " a = b=c ", "alone", "  "]) == (
        ("team", "blue"),
        ("a", "b=c"),
        ("alone", ""),
    )
