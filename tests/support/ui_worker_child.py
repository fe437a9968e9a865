"""A worker that a test kills while somebody looks at its run: a child of `fork_server`."""

from __future__ import annotations

import operator
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

import perdure
from tests.support.fork_server import Tell

NAME = "parcel"


class Parcel(TypedDict, total=False):
    folder: str
    log: Annotated[list[str], operator.add]


@perdure.effect
def print_label(folder: str) -> str:
    return "label"


def pack(state: Parcel) -> Parcel:
    return {"log": [print_label(state["folder"])]}


def load(state: Parcel) -> Parcel:
    """Stands still until the test says `go`."""
    folder = Path(state["folder"])
    (folder / "loading").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    return {"log": ["loaded"]}


def drive_off(state: Parcel) -> Parcel:
    return {"log": ["gone"]}


def graph() -> StateGraph[Any, Any, Any, Any]:
    made: StateGraph[Any, Any, Any, Any] = StateGraph(Parcel)
    made.add_sequence([pack, load, drive_off])
    made.add_edge(START, "pack")
    return made


async def work(order: dict[str, Any], tell: Tell) -> None:
    rt = perdure.Runtime(order["url"], lease=timedelta(seconds=2))
    rt.register(graph(), name=NAME)
    async with rt:
        await rt.work(handle_signals=False)
