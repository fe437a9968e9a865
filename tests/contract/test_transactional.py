"""The writes of a transactional effect and its outcome are one commit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.testing import Clock
from perdure.types import State
from tests.support.agents import NOON, Log, chain, opened
from tests.support.effects import AT_ONCE, Mortals, Times, started, states
from tests.support.effects import children as children
from tests.support.proxy import FaultyProxy, Reply
from tests.support.raw import execute
from tests.support.runtime_child import Ledger


@pytest.fixture
def table(url: str) -> str:
    """A journal with a table of the user's own."""
    with perdure.Saver(url) as saver:
        saver.journal.flush()
    execute(url, "CREATE TABLE booked (what TEXT NOT NULL)")
    return url


def booked(url: str) -> list[str]:
    return [what for (what,) in execute(url, "SELECT what FROM booked ORDER BY what")]


def write(what: str | None) -> None:
    value = "NULL" if what is None else f"'{what}'"
    perdure.transaction().execute(f"INSERT INTO booked VALUES ({value})")


def node_of(function: Any, *args: Any) -> Any:
    def node(state: Log) -> Log:
        return {"log": [function(*args)]}

    return chain(node)


async def test_a_lease_that_is_lost_while_it_is_called_takes_the_writes_back(table: str) -> None:
    lost = Times(1)

    @perdure.effect(transactional=True)
    def book(what: str) -> str:
        write(what)
        if lost.n:
            lost.n = 0
            perdure.transaction().execute("UPDATE perdure_runs SET token = token + 1")
        return what

    clock = Clock(NOON)
    async with opened(table, clock) as rt:
        rt.register(node_of(book, "room"), name="agent")
        run = await rt.start("agent", {"log": []})
        counts = await rt.tick(limit=1)
        assert counts.lost == 1
        assert booked(table) == []
        assert states(table) == []
        clock.advance(timedelta(hours=1))  # its lease, which really is still its own, runs out
        await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["room"]
        assert booked(table) == ["room"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    ["effect book.before", "effect book.after", "commit.before", "commit.after", "insert_effect"],
)
async def test_a_process_that_is_killed_leaves_both_or_none(
    url: str, point: str, children: Mortals, tmp_path: Path
) -> None:
    ledger = str(tmp_path / "ledger")
    points = {"insert_effect": "insert_effect.before"}
    n = 1
    for n in range(1, 30):
        status = children.live("books", url, ledger, points.get(point, point), n=n)
        found = execute(url, "SELECT state, name FROM perdure_effects")
        rows = booked(url) if found else []
        if found:
            assert [state for state, _ in found] == ["done"]
            assert rows == ["room"]
            assert [topic for (topic,) in execute(url, "SELECT topic FROM perdure_outbox")] == [
                "booked"
            ]
        if status == 0 or found:
            break
        assert status == -9
    assert children.live("books", url, ledger) == 0
    assert booked(url) == ["room"]
    assert states(url) == ["done"]
    assert Ledger(ledger).lines() == []
    async with opened(url) as rt:
        [run] = await rt.runs()
        assert run.output["log"] == ["booked room", "second"]


def now_and_then() -> tuple[Any, list[int]]:
    """A graph with a transactional effect that says how often it was called, and its calls."""
    calls: list[int] = []

    @perdure.effect(name="book", transactional=True, retry=AT_ONCE)
    def book(what: str) -> str:
        calls.append(len(calls))
        write(f"{what} {len(calls)}")
        return f"{what} {len(calls)}"

    return node_of(book, "room"), calls


class HoldingProxy(FaultyProxy):
    """Cuts off the sender of the first request that writes to the table. The request itself arrives
    `before` the next one that does so, or when all is over."""

    def __init__(self, url: str, arrives: str) -> None:
        super().__init__(url)
        self._arrives = arrives
        self.held: list[Callable[[], Reply]] = []
        self.arrived = 0

    def forwarded(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        forward = partial(super().forwarded, method, path, headers, body)
        if b"INSERT INTO booked" in body:
            if not self.held:
                self.held.append(forward)
                raise ConnectionAbortedError
            if self._arrives == "before":
                self.arrive()
        return forward()

    def arrive(self) -> None:
        if not self.arrived:
            self.arrived += 1
            self.held[0]()


@pytest.mark.parametrize("arrives", ["before", "later"])
async def test_a_batch_that_arrives_late_is_not_written_twice(d1_url: str, arrives: str) -> None:
    execute(d1_url, "CREATE TABLE booked (what TEXT NOT NULL)")
    with HoldingProxy(d1_url, arrives) as proxy:
        async with opened(proxy.url) as rt:
            graph, calls = now_and_then()
            run = await started(rt, graph)
            assert proxy.held, "no batch was late"
            proxy.arrive()
            assert run.state is State.DONE
            written = booked(d1_url)
            assert run.output["log"] == written
            assert len(written) == 1
            assert 1 <= len(calls) <= 2
            noted = [one.data["state"] for one in await rt.events(run.id) if one.kind == "effect"]
        assert noted == states(d1_url) == ["done"]
