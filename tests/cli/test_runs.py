"""`perdure runs`: what it lists, how it is narrowed down, how it looks; and the filters of
`Client.runs` beneath it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta

import pytest

from perdure.client import Client
from perdure.errors import BadArgument
from perdure.testing import Clock
from perdure.types import Run, State
from tests.support.commands import Command, commands_at, in_terminal

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A journal whose clock the test moves."""
    with Client(url, clock=Clock(NOON)) as made:
        yield made


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], url: str) -> Command:
    return commands_at(capsys, url)


def accept(client: Client, graph: str = "g", **given: object) -> Run:
    """A run that is accepted a minute after the one before it."""
    clock = client.engine.clock
    assert isinstance(clock, Clock)
    clock.advance(timedelta(minutes=1))
    return client.blocking.start(graph, None, **given)  # type: ignore[arg-type]


def ids(found: list[Run]) -> list[str]:
    return [run.id for run in found]


# -- the filters


def test_several_states_can_be_asked_for(client: Client) -> None:
    one, two, three = (accept(client) for _ in range(3))
    client.blocking.cancel(one.id)
    client.blocking.pause(two.id)
    ask = client.blocking.runs
    assert ids(ask(state=[State.CANCELLED, "pending"])) == [three.id, one.id]
    assert ids(ask(state="paused")) == [two.id]
    assert ids(ask(state=State.PAUSED, thread_id=two.thread_id)) == [two.id]
    assert ids(ask(state=["paused"], thread_id=one.thread_id)) == []
    assert len(ask()) == 3
    with pytest.raises(BadArgument, match="'over' is not a state"):
        ask(state=["paused", "over"])


def test_metadata_is_looked_for_beyond_the_first_page(client: Client) -> None:
    wanted = {"campaign": 7, "contact": {"name": "Ana"}}
    first, second = (accept(client, metadata=wanted | {"n": n}) for n in range(2))
    for n in range(5):
        accept(client, metadata={"campaign": 7, "n": n})
    ask = client.blocking.runs
    assert ids(ask(metadata=wanted, limit=1)) == [second.id]
    assert ids(ask(metadata=wanted, limit=1, after=second)) == [first.id]
    assert ids(ask(metadata=wanted)) == [second.id, first.id]
    assert len(ask(metadata={"campaign": 7})) == 7
    assert ask(metadata={"campaign": "7"}) == []
    assert ask(metadata={"nothing": None}) == []


def test_since_is_within_and_until_is_beyond(client: Client) -> None:
    one, two, three = (accept(client) for _ in range(3))
    ask = client.blocking.runs
    assert ids(ask(since=two.created_at)) == [three.id, two.id]
    assert ids(ask(until=two.created_at)) == [one.id]
    assert ids(ask(since=two.created_at, until=three.created_at)) == [two.id]
    assert ids(ask(since=two.created_at, after=three)) == [two.id]
    assert ids(ask(until=three.created_at, after=two)) == [one.id]
    assert ids(ask(thread_id=two.thread_id, since=two.created_at)) == [two.id]
    assert ids(ask(thread_id=one.thread_id, since=two.created_at)) == []
    with pytest.raises(BadArgument, match="since must be a datetime with a time zone"):
        ask(since=datetime(2030, 1, 1))  # noqa: DTZ001


# -- what is listed


def test_a_journal_without_runs_is_told_so(client: Client, command: Command) -> None:
    client.setup()
    assert command("runs").done.out == "There is no run yet.\n"
    assert command("runs", "--json").done.out == ""
    assert command("runs", "--state", "done").done.out == "No run matches.\n"


def test_it_lists_runs_newest_first_with_whole_ids_and_why_they_rest(
    client: Client, command: Command
) -> None:
    first = accept(client, "campaign", thread_id="campaign-7-12")
    behind = accept(client, "campaign", thread_id="campaign-7-12")
    over = accept(client, "campaign")
    client.blocking.cancel(over.id, reason="no longer wanted")
    header, *rows = command("runs").done.out.splitlines()
    assert header.split() == ["RUN", "STATE", "GRAPH", "THREAD", "AGE", "NOTE"]
    assert [row.split()[0] for row in rows] == [over.id, behind.id, first.id]
    assert "cancelled" in rows[0]
    assert rows[0].endswith("no longer wanted")
    assert rows[1].endswith(f"its turn: after run {first.id}")
    assert "campaign-7-12" in rows[2]
    assert "the clock, " in rows[2]


def test_as_json_it_has_the_fields_of_a_run_but_its_output(
    client: Client, command: Command
) -> None:
    run = accept(client, thread_id="t", key="k", metadata={"n": 1}, tags=["x"])
    [told] = command("runs", "--json").done.json
    assert set(told) == {field.name for field in fields(Run)} - {"output"}
    assert told["id"] == run.id
    assert (told["state"], told["thread_id"], told["key"]) == ("pending", "t", "k")
    assert (told["metadata"], told["tags"]) == ({"n": 1}, ["x"])
    assert told["created_at"] == "2030-01-01T12:01:00+00:00"


def test_it_is_narrowed_down_by_each_of_its_options(client: Client, command: Command) -> None:
    one = accept(client, "a", thread_id="t", metadata={"campaign": 7, "name": "Ana"})
    two = accept(client, "b", metadata={"campaign": 8})
    client.blocking.cancel(two.id)

    def found(*options: str) -> list[str]:
        return [told["id"] for told in command("runs", "--json", *options).done.json]

    assert found() == [two.id, one.id]
    assert found("--state", "cancelled") == [two.id]
    assert found("--state", "cancelled", "--state", "pending") == [two.id, one.id]
    assert found("--graph", "a") == found("--thread", "t") == [one.id]
    assert found("--metadata", "campaign=7", "--metadata", "name=Ana") == [one.id]
    assert found("--metadata", 'name="Ana"') == [one.id]
    assert found("--metadata", 'campaign="7"') == []
    assert found("--since", two.created_at.isoformat()) == [two.id]
    assert found("--until", two.created_at.isoformat()) == [one.id]
    assert found("--limit", "1") == [two.id]


def test_an_age_may_be_given_instead_of_a_time(url: str, command: Command) -> None:
    now = datetime.now(UTC)
    with Client(url, clock=Clock(now - timedelta(days=3))) as client:
        old = accept(client)
        clock = client.engine.clock
        assert isinstance(clock, Clock)
        clock.move_to(now - timedelta(hours=1))
        new = accept(client)
    assert [told["id"] for told in command("runs", "--json", "--since", "1d").json] == [new.id]
    assert [told["id"] for told in command("runs", "--json", "--until", "1d12h").json] == [old.id]


def test_json_goes_on_beyond_a_page_and_a_table_says_that_there_is_more(
    client: Client, command: Command
) -> None:
    for _ in range(205):
        client.blocking.start("g", None)
    found = command("runs", "--json", "--limit", "1000").done.json
    assert len({told["id"] for told in found}) == 205
    table = command("runs", "--limit", "3").done.out
    assert len(table.splitlines()) == 5
    assert table.endswith("There are more than 3; see --limit.\n")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--state", "over"], "'over' is not one of 'pending', 'running'"),
        (["--metadata", "campaign"], "is not a pair: write key=value"),
        (["--since", "soon"], "neither a duration, such as 3d, nor a time"),
        (["--limit", "0"], "is not a whole number of at least 1"),
    ],
    ids=lambda given: "".join(given[:1]) if isinstance(given, list) else "",
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(
    client: Client, command: Command, options: list[str], sentence: str
) -> None:
    client.setup()
    assert sentence in command("runs", *options).refused


# -- how it looks


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_in_a_terminal_no_line_is_wider_than_it_and_every_id_is_whole(
    sqlite_url: str, columns: int
) -> None:
    with Client(sqlite_url) as client:
        made = [
            client.blocking.start("a-graph-with-a-rather-long-name", thread_id=f"{name}-{n}")
            for n, name in enumerate(["t" * 60, "名前" * 30, "short"])
        ]
        client.blocking.cancel(made[0].id, reason="because of this, that and the other " * 5)
    told = in_terminal("runs", "--at", sqlite_url, columns=columns)
    assert told.code == 0
    bare = re.sub(r"\x1b\[\d+m", "", told.out)
    assert bare != told.out
    for line in bare.splitlines():
        wide = sum(one in "名前" for one in line)
        assert len(line) + wide <= columns
    assert all(run.id in bare for run in made)


def test_there_is_no_colour_with_no_color_and_none_without_a_terminal(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(sqlite_url) as client:
        client.blocking.start("g")
    assert "\x1b[34mpending" in in_terminal("runs", "--at", sqlite_url).out
    assert "\x1b" not in in_terminal("runs", "--at", sqlite_url, NO_COLOR="1").out
    assert "\x1b" not in in_terminal("runs", "--at", sqlite_url, TERM="dumb").out
    assert "\x1b" not in commands_at(capsys, sqlite_url)("runs").done.out
