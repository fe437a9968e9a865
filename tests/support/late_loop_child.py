"""A worker whose event loop is made late: a child of `tests.support.fork_server`."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import operator
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

import perdure
from perdure.errors import LeaseLost
from perdure.observe import Metrics
from tests.support.fork_server import Tell
from tests.support.polling import until


class Work(TypedDict, total=False):
    folder: str
    """Where what happened is noted, and the files that let it go on."""
    log: Annotated[list[str], operator.add]


def note(folder: str, word: str) -> None:
    with (Path(folder) / "notes").open("a") as file:
        file.write(f"{word} {os.getpid()}\n")


@perdure.effect
def pay(folder: str) -> str:
    note(folder, "paid")
    return "receipt"


def plain(state: Work) -> Work:
    """Ends, with a call, once there is a file `go`."""
    folder = state["folder"]
    note(folder, "begun")
    until((Path(folder) / "go").exists, "a file `go`")
    try:
        return {"log": [pay(folder)]}
    except LeaseLost:
        note(folder, "refused")
        raise


def last(state: Work) -> Work:
    note(state["folder"], "last")
    return {"log": ["last"]}


def runtime(url: str, lease: float, **options: Any) -> perdure.Runtime:
    rt = perdure.Runtime(url, lease=timedelta(seconds=lease), **options)
    rt.register(StateGraph(Work).add_sequence([plain, last]).add_edge(START, "plain"), name="work")
    return rt


async def work(order: dict[str, Any], tell: Tell) -> None:
    """A worker, beside a coroutine that blocks its event loop while there is a file `block`, or
    computes while there is a file `starve`, at a CPU that others keep busy."""
    logging.basicConfig(level=logging.INFO)
    folder = Path(order["folder"])
    metrics = Metrics(listen="127.0.0.1:0")
    async with runtime(order["url"], order["lease"], observe=metrics) as rt:
        (folder / f"port-{os.getpid()}").write_text(str(metrics.port))
        beside = asyncio.create_task(greedy(folder)) if order.get("greedy") else None
        await rt.work(grace=timedelta(seconds=1))
        if beside is not None:
            beside.cancel()


async def greedy(folder: Path) -> None:
    while True:
        await asyncio.sleep(0.01)
        if (folder / "block").exists():
            block(folder)
        if (folder / "starve").exists():
            with starved():
                compute(folder)


def block(folder: Path) -> None:
    while (folder / "block").exists():
        time.sleep(0.01)


def compute(folder: Path) -> None:
    while (folder / "starve").exists():
        hashlib.sha256(LOAD)


LOAD = bytes(1 << 20)
"""It is hashed without the interpreter's lock, which would keep all threads."""


@contextmanager
def starved() -> Iterator[None]:
    """This thread shares one CPU with busy processes, and is the least of them."""
    cpu = min(os.sched_getaffinity(0))
    os.sched_setaffinity(threading.get_native_id(), {cpu})
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    busy = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile os.getppid() == {os.getpid()}: 0"
    others = [subprocess.Popen([sys.executable, "-S", "-c", busy]) for _ in range(2)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
