"""Callers of a bound graph that are stopped and killed: children of `tests.support.fork_server`."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from datetime import timedelta
from typing import Any, cast

from langchain_core.runnables import RunnableConfig

import perdure
from perdure.testing import watch_points
from tests.support.bound import Log, sequence
from tests.support.fork_server import Tell
from tests.support.polling import until

LEASE = timedelta(seconds=0.5)


def echo(state: Log) -> Log:
    return {"log": ["echo"]}


def call(order: dict[str, Any], tell: Tell) -> None:
    """Call a graph by its method `how`. At the statement of the number `at`, counted from the call
    to the graph's first node, the process gets the signal `gets`: SIGKILL, or SIGINT, which cancels
    the task of a coroutine. Without a number each statement is told.

    `by` says how signals end it: `default`, or `raises`, as a web server's handler does.
    """
    number = 0
    tasks: list[asyncio.Task[Any]] = []

    def stop(how: signal.Signals) -> None:
        if how == signal.SIGKILL:
            os.kill(os.getpid(), how)
        if tasks:  # what a signal does, once the loop has woken up
            tasks[0].get_loop().call_soon_threadsafe(tasks[0].cancel)
            until(lambda: tasks[0].cancelling() or tasks[0].done(), "its cancellation")
        else:
            signal.pthread_kill(cast(int, threading.main_thread().ident), how)

    def hook(point: str) -> None:
        nonlocal number
        number += 1
        if number == order.get("at"):
            stop(order["gets"])
        if "at" not in order:
            tell("point", point)

    def echoes(state: Log) -> Log:
        watch_points(None)
        tell("begun")
        return echo(state)

    def leave(*_: Any) -> None:
        raise SystemExit(0)

    async def in_task() -> None:
        tasks.append(cast(asyncio.Task[Any], asyncio.current_task()))
        await graph.ainvoke(given, on)

    if order.get("by") == "raises":
        signal.signal(signal.SIGTERM, leave)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with perdure.Runtime(order["url"], lease=LEASE) as rt:
        graph = rt.register(sequence(echo=echoes), name="agent")
        rt.setup()
        if order.get("counts", True):
            watch_points(hook)
        given: Any = {"log": ["given up"]}
        on: RunnableConfig = {"configurable": {"thread_id": order.get("thread", "t")}}
        on["metadata"] = {"call": "given up"}
        match order["how"]:
            case "update_state":
                graph.update_state(on, given, as_node="__start__")
            case "ainvoke":
                asyncio.run(in_task())
            case _:
                tell("returned", graph.invoke(given, on)["log"])
