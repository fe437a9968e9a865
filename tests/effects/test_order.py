"""When a node makes its calls in another order than before, no recorded effect is repeated and none
is skipped: the node is left, and run again with each record given to its own call. Only where that
cannot be told is the run held."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import perdure
from perdure.types import Run, State
from tests.support.agents import Log, chain, opened
from tests.support.effects import FOREVER, Cut

NAMES = "abcd"
ORDERS = list(itertools.permutations(NAMES))

Send = Callable[[str], Any]


class Desk:
    """A far side that counts, and dies when it is told to."""

    def __init__(self) -> None:
        self.sent: dict[str, list[str]] = {}
        self.keys: dict[str, set[str]] = {}
        self.dies: set[tuple[str, str]] = set()

    def post(self, thread: str, to: str, key: str | None = None) -> str:
        if key is None or key not in self.keys.setdefault(thread, set()):
            self.sent.setdefault(thread, []).append(to)
        if key is not None:
            self.keys[thread].add(key)
        if (thread, to) in self.dies:
            self.dies.discard((thread, to))
            raise Cut
        return f"accepted for {to}"


def plain(desk: Desk) -> Any:
    @perdure.effect
    def send(thread: str, to: str) -> str:
        return desk.post(thread, to)

    return send


def keyed(desk: Desk) -> Any:
    @perdure.effect
    def send(thread: str, to: str) -> str:
        return desk.post(thread, to, perdure.key())

    return send


def verified(desk: Desk) -> Any:
    def find(thread: str, to: str) -> str | None:
        return f"accepted for {to}" if to in desk.sent.get(thread, ()) else None

    @perdure.effect(verify=find)
    def send(thread: str, to: str) -> str:
        return desk.post(thread, to)

    return send


def careful(desk: Desk) -> Any:
    @perdure.effect(unknown="hold")
    def send(thread: str, to: str) -> str:
        return desk.post(thread, to)

    return send


KINDS = [plain, keyed, verified, careful]


def loop(send: Any, orders: dict[str, Iterator[tuple[str, ...]]], stops: dict[str, int]) -> Any:
    """A node that mails everybody, each time in the next order, and dies once after so many."""

    def node(state: Log) -> Log:
        thread, log = state["value"], []
        for n, to in enumerate(next(orders[thread])):
            if stops.get(thread) == n:
                del stops[thread]
                raise Cut
            log.append(send(thread, to))
        return {"log": log}

    return node


async def settle_all(rt: perdure.Runtime, desk: Desk) -> None:
    """What a person would do: look whether the mail is there."""
    for effect in await rt.effects(state="unknown"):
        thread, to = effect.arguments["thread"], effect.arguments["to"]
        if to in desk.sent.get(thread, ()):
            await rt.settle(effect.key, "done", f"accepted for {to}")
        else:
            await rt.settle(effect.key, "retry")


async def runs_of(rt: perdure.Runtime, threads: list[str]) -> dict[str, Run]:
    for thread in threads:
        await rt.start("agent", {"log": [], "value": thread}, thread_id=thread)
    await rt.tick(limit=1000)
    return {run.thread_id: run for run in await rt.runs(limit=1000)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("done", [1, 2, 3])
async def test_a_set_in_any_order_is_mailed_once_each(
    sqlite_url: str, kind: Any, done: int
) -> None:
    desk = Desk()
    orders = {f"{n}": itertools.chain([ORDERS[0]], itertools.repeat(ORDERS[n])) for n in range(24)}
    stops = dict.fromkeys(orders, done)
    async with opened(sqlite_url) as rt:
        rt.register(chain(loop(kind(desk), orders, stops)), name="agent", retry=FOREVER)
        found = await runs_of(rt, list(orders))
        for thread, run in found.items():
            assert run.state is State.DONE, (thread, run.reason, run.error)
            order = ORDERS[int(thread)]
            assert Counter(desk.sent[thread]) == Counter(NAMES), (order, desk.sent[thread])
            assert run.output["log"] == [f"accepted for {to}" for to in order]


@pytest.mark.parametrize("kind", [keyed, verified, careful])
@pytest.mark.parametrize("done", [1, 2, 3])
async def test_so_is_one_that_is_killed_in_the_middle_of_a_call(
    sqlite_url: str, kind: Any, done: int
) -> None:
    desk = Desk()
    orders = {f"{n}": itertools.chain([ORDERS[0]], itertools.repeat(ORDERS[n])) for n in range(24)}
    desk.dies = {(thread, NAMES[done - 1]) for thread in orders}
    async with opened(sqlite_url) as rt:
        rt.register(chain(loop(kind(desk), orders, {})), name="agent", retry=FOREVER)
        await runs_of(rt, list(orders))
        if kind is careful:
            assert {one.arguments["to"] for one in await rt.effects(state="unknown")} == {
                NAMES[done - 1]
            }
        await settle_all(rt, desk)
        await rt.tick(limit=1000)
        for run in await rt.runs(limit=1000):
            order = ORDERS[int(run.thread_id)]
            assert run.state is State.DONE, (order, run.reason, run.error)
            assert Counter(desk.sent[run.thread_id]) == Counter(NAMES), order
            assert run.output["log"] == [f"accepted for {to}" for to in order]
