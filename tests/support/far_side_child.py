"""Workers whose effects order from a far side: `python -m tests.support.far_side_child`."""

from __future__ import annotations

import operator
import time
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

import perdure
from tests.support.far_side import TIMEOUT, FarSide
from tests.support.fork_server import Tell

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
