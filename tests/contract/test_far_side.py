"""Whatever the far side does, nothing is twice or lost in silence."""

from __future__ import annotations

import asyncio
import operator
import random
import time
from collections import Counter
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure.types import EffectRecord, EffectState, Run, State
from tests.contract.far_side import ANY, TIMEOUT, FarSide, far_side
from tests.support.fork_server import ForkServer, Tell
from tests.support.raw import execute

OFTEN = perdure.Retry(attempts=8, first=timedelta(milliseconds=20), factor=1.5)
ORDERS = 3
"""Per run."""
TABLE = "CREATE TABLE orders (name TEXT, receipt TEXT)"
"""Where the transactional kind orders: in the journal's own database."""


class NoAnswer(Exception):
    """Nobody knows what became of it."""


def _order(kind: str, port: int, order: str, begun: float) -> str:
    if time.monotonic() - begun > TIMEOUT:
        raise NoAnswer("given up before it was sent")  # by a machine that was too busy
    status, text = FarSide(port).order(kind, order, perdure.key())
    if 400 <= status < 500:
        raise perdure.NotDone(f"{status} {text}")
    if status != 200:
        raise NoAnswer(f"{status} {text}")
    return text


def _look_up(port: int, order: str) -> str | None:
    status, text = FarSide(port).look_up(order, perdure.key())
    if status == 200:
        return text
    if status == 404:
        return None
    raise NoAnswer(f"{status} {text}")


@perdure.effect(timeout=TIMEOUT, retry=OFTEN)
def keyed(port: int, order: str) -> str:
    return _order("keyed", port, order, time.monotonic())


@perdure.effect(timeout=TIMEOUT, retry=OFTEN, verify=_look_up)
def verify(port: int, order: str) -> str:
    return _order("verify", port, order, time.monotonic())


@perdure.effect(timeout=TIMEOUT, retry=OFTEN, unknown="hold")
def hold(port: int, order: str) -> str:
    return _order("hold", port, order, time.monotonic())


@perdure.effect(retry=OFTEN, transactional=True)
def transactional(port: int, order: str) -> str:
    connection = perdure.transaction()
    mark = "%s" if hasattr(connection, "pgconn") else "?"
    receipt = f"receipt of {order}"
    sql = f"INSERT INTO orders VALUES ({mark}, {mark})"
    connection.execute(sql, (order, receipt))
    return receipt


KINDS: dict[str, Any] = {
    "keyed": keyed,
    "verify": verify,
    "hold": hold,
    "transactional": transactional,
}


class Orders(TypedDict, total=False):
    kind: str
    port: int
    name: str
    receipts: Annotated[list[str], operator.add]


def orders(state: Orders) -> Orders:
    send = KINDS[state["kind"]]
    wanted = [f"{state['name']}-{n}" for n in range(ORDERS)]
    return {"receipts": [send(state["port"], order) for order in wanted]}


def runtime(url: str) -> perdure.Runtime:
    rt = perdure.Runtime(url, lease=timedelta(seconds=2))
    graph = StateGraph(Orders)
    graph.add_node("orders", orders)
    graph.add_edge(START, "orders")
    rt.register(graph, name="orders", deaths=1000)
    return rt


async def work(order: dict[str, Any], tell: Tell) -> None:
    async with runtime(order["url"]) as rt:
        await rt.work(concurrency=20)


pytestmark = pytest.mark.slow


RUNS = 6
"""Of each kind."""


KILLS = 12
"""Of workers that still had something to do."""


async def all_runs(rt: perdure.Runtime) -> list[Run]:
    return await rt.runs(limit=1000)


async def at_rest(rt: perdure.Runtime) -> list[Run]:
    """All runs, if each is over or needs a person."""
    found = await all_runs(rt)
    return found if all(run.ended or run.state is State.HELD for run in found) else []


async def unknown(rt: perdure.Runtime) -> list[EffectRecord]:
    return await rt.effects(state=EffectState.UNKNOWN, limit=1000)


async def judged(rt: perdure.Runtime, url: str, shop: FarSide) -> str:
    """Nothing is wrong in silence. Gives the counts."""
    ledger, runs = shop.ledger(), await all_runs(rt)
    doubtful = {effect.arguments["order"]: effect for effect in await unknown(rt)}
    times = Counter(one["order"] for one in ledger["did"])
    booked = Counter(name for name, _ in execute(url, "SELECT name, receipt FROM orders"))
    receipts = {one["receipt"] for one in ledger["did"]}
    twice = [order for order, n in (times + booked).items() if n > 1]
    lost, wrong = [], []
    for run in runs:
        if run.state is not State.DONE:
            continue
        for n, receipt in enumerate(run.output["receipts"]):
            order = f"{run.thread_id}-{n}"
            if not times[order] + booked[order]:
                lost.append(order)
            if not receipt.endswith(f"of {order}") or (times[order] and receipt not in receipts):
                wrong.append((order, receipt))
    held = [run for run in runs if run.state is State.HELD]
    hidden = [
        run.thread_id
        for run in held
        if not any(order.rpartition("-")[0] == run.thread_id for order in doubtful)
    ]
    failed = [(run.thread_id, run.error) for run in runs if run.state is State.FAILED]
    counts = (
        f"{sum(times.values())} orders done by the far side and {sum(booked.values())} in the "
        f"journal's database, {len(held)} of {len(runs)} runs held, {len(doubtful)} in doubt, "
        f"manners {ledger['manners']}; silent duplicates {twice}, silent losses {lost}, wrong "
        f"receipts {wrong}, held without a reason to see {hidden}, failed {failed}"
    )
    assert [twice, lost, wrong, hidden, failed] == [[]] * 5, counts
    # Whoever is in doubt is of a kind that asks, and its run waits for the answer.
    assert {effect.name for effect in doubtful.values()} <= {"hold", "verify"}, counts
    waiting = {run.id for run in held}
    assert all(effect.run_id in waiting for effect in doubtful.values()), counts
    return counts


async def settle(rt: perdure.Runtime, shop: FarSide) -> int:
    """Say of every doubtful effect what the far side's own ledger says. Gives how many."""
    did = {one["key"]: one["receipt"] for one in shop.ledger()["did"]}
    found = await unknown(rt)
    for effect in found:
        if effect.key in did:
            await rt.settle(effect.key, "done", did[effect.key], by="whoever asked the shop")
        else:
            await rt.settle(effect.key, "retry", by="whoever asked the shop")
    return len(found)


async def work_until_rest(
    rt: perdure.Runtime, fork_server: ForkServer, url: str, rng: random.Random, kills: int
) -> int:
    """Workers one after the other, killed at any moment, the last one not. Gives the kills."""
    for killed in range(kills + 1):
        with fork_server.child(work, url=url):
            until = time.monotonic() + (rng.uniform(0.03, 0.25) if killed < kills else 60.0)
            while time.monotonic() < until:
                if await at_rest(rt):
                    return killed
                await asyncio.sleep(0.01)
    raise AssertionError("it did not come to rest")


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_twice_or_lost_in_silence_whatever_the_far_side_does(
    url: str, fork_server: ForkServer, seed: int
) -> None:
    rng = random.Random(seed)
    execute(url, TABLE)
    with far_side(seed) as shop:
        async with runtime(url) as rt:
            for n in range(RUNS):
                for kind in KINDS:
                    name = f"{kind}-{n}"
                    given: dict[str, Any] = {"kind": kind, "port": shop.port, "name": name}
                    await rt.start("orders", {**given, "receipts": []}, thread_id=name)
            kills = await work_until_rest(rt, fork_server, url, rng, KILLS)
            counts = f"{kills} kills, {await judged(rt, url, shop)}"
            assert kills > KILLS // 3, counts
            assert await unknown(rt), counts
            assert {*ANY, "twice"} <= shop.ledger()["manners"].keys(), counts
            rounds = 0
            while await settle(rt, shop):
                await work_until_rest(rt, fork_server, url, rng, 1)
                counts = await judged(rt, url, shop)
                rounds += 1
                assert rounds < 30, counts
            runs = await all_runs(rt)
            assert {run.state for run in runs} == {State.DONE}, counts
            times = Counter(one["order"] for one in shop.ledger()["did"])
            times += Counter(name for name, _ in execute(url, "SELECT name, receipt FROM orders"))
            assert times == {f"{run.thread_id}-{n}": 1 for run in runs for n in range(ORDERS)}
            assert not (await rt.doctor()).findings
