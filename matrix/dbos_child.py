"""The graph with two branches in a DBOS workflow, its effects being DBOS steps; killed at a point.

`python -m matrix.dbos_child FOLDER [POINT]`: a file in the folder is the ledger, another the
database; with a POINT ("left 1.after") the process dies there by SIGKILL, once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import operator
import os
import random
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

from dbos import DBOS, DBOSConfig, SetWorkflowID
from langgraph.graph import START, StateGraph

LONGEST = 0.004
FOLDER = Path(sys.argv[1])
POINT = sys.argv[2] if len(sys.argv) > 2 else None


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def note(line: str) -> None:
    file = os.open(FOLDER / "ledger", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(file, f"{line}\n".encode())
    os.fsync(file)
    os.close(file)
    if line == POINT:
        os.kill(os.getpid(), signal.SIGKILL)


@DBOS.step()
async def fetch(what: str) -> str:
    short = what.partition(" after ")[0]
    note(f"{short}.before")
    await asyncio.sleep(random.uniform(0, LONGEST))
    note(f"{short}.after")
    return f"{what}: done"


def branch(name: str) -> Any:
    async def node(state: State) -> State:
        await asyncio.sleep(random.uniform(0, LONGEST))
        first = await fetch(f"{name} 1")
        return {"log": [first, await fetch(f"{name} 2 after {first}")]}

    node.__name__ = name
    return node


def graph() -> Any:
    made = StateGraph(State)
    for name in ("left", "right"):
        made.add_node(name, branch(name))
        made.add_edge(START, name)
    made.add_node("end", branch("end"))
    made.add_edge(["left", "right"], "end")
    return made.compile()


@DBOS.workflow()
async def agent() -> list[str]:
    done = await graph().ainvoke({"log": []})
    log: list[str] = done["log"]
    return log


async def main() -> None:
    handle = (
        await DBOS.retrieve_workflow_async("only")
        if (FOLDER / "started").exists()
        else await _start()
    )
    print(json.dumps(await handle.get_result()))


async def _start() -> Any:
    (FOLDER / "started").touch()  # who comes after us finds the workflow recovered by DBOS
    with SetWorkflowID("only"):
        return await DBOS.start_workflow_async(agent)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    config: DBOSConfig = {
        "name": "matrix",
        "system_database_url": f"sqlite:///{FOLDER}/dbos.sqlite",
        "application_version": "1",
    }
    DBOS(config=config)
    DBOS.launch()
    asyncio.run(main())
    DBOS.destroy()
