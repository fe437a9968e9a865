"""DBOS, with the graph of two branches: killed around each of its steps, and started again.

`python -m matrix.dbos_trials FOLDER [POINT]` is the process that is killed: its effects are DBOS
steps, a file in the folder is the ledger, another the database. With a POINT ("left 1.after") it
dies there by SIGKILL, once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from matrix import graphs

STEPS = [f"{branch} {n}" for branch in ("left", "right", "end") for n in (1, 2)]
POINTS = [f"{step}.{side}" for step in STEPS for side in ("before", "after")]
EXPECTED = [
    line
    for branch in ("left", "right", "end")
    for line in (f"{branch} 1: done", f"{branch} 2 after {branch} 1: done: done")
]
DEADLINE = 60


def counts(rounds: int, jobs: int) -> dict[str, int]:
    """In how many trials what was found, as for the others."""
    trials = [point for point in POINTS for _ in range(rounds)]
    found: Counter[str] = Counter()
    with ThreadPoolExecutor(jobs) as pool:
        for problems in pool.map(_trial, trials):
            found.update(problems)
    return {"points": len(POINTS), "trials": len(trials), **found}


def _trial(point: str) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="perdure-") as folder:
        _live(folder, point)
        out = _live(folder)
        calls = Counter((Path(folder) / "ledger").read_text().splitlines())
        problems = []
        if out is None:
            problems.append("unrecoverable")
        elif out != EXPECTED:
            problems.append("different")
        # A step that was killed in the middle is called again by any engine: that is not counted.
        begun = point.removesuffix(".before").removesuffix(".after")
        again = [line for line, n in calls.items() if n > 1 and line.endswith(".after")]
        if any(line != f"{begun}.after" for line in again):
            problems.append("duplicated")
        if point.endswith(".after") and f"{begun}.after" in again:
            problems.append("again")
        if out is not None and any(f"{step}.after" not in calls for step in STEPS):
            problems.append("lost")
        return problems


def _live(folder: str, *point: str) -> list[str] | None:
    """One process, to its end or to its point. Gives what it printed, if it came to an end."""
    command = [sys.executable, "-m", "matrix.dbos_trials", folder, *point]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        return None
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        return None
    result: list[str] = json.loads(lines[-1])
    return result


# -- the process that is killed


async def play(folder: Path, point: str | None) -> list[str]:
    from dbos import DBOS, SetWorkflowID

    def note(line: str) -> None:
        file = os.open(folder / "ledger", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        os.write(file, f"{line}\n".encode())
        os.fsync(file)
        os.close(file)
        if line == point:
            os.kill(os.getpid(), signal.SIGKILL)

    @DBOS.step()
    async def fetch(what: str) -> str:
        short = what.partition(" after ")[0]
        note(f"{short}.before")
        await asyncio.sleep(random.uniform(0, graphs.LONGEST))
        note(f"{short}.after")
        return f"{what}: done"

    @DBOS.workflow()
    async def agent() -> list[str]:
        done = await graphs.branches().compile().ainvoke({"log": []})
        log: list[str] = done["log"]
        return log

    graphs.fetch = fetch
    DBOS(
        config={
            "name": "matrix",
            "system_database_url": f"sqlite:///{folder}/dbos.sqlite",
            "application_version": "1",
        }
    )
    DBOS.launch()
    if (folder / "started").exists():  # DBOS recovers it
        handle: Any = await DBOS.retrieve_workflow_async("only")
    else:
        (folder / "started").touch()
        with SetWorkflowID("only"):
            handle = await DBOS.start_workflow_async(agent)
    log: list[str] = await handle.get_result()
    DBOS.destroy()
    return log


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    where, kill = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    print(json.dumps(asyncio.run(play(where, kill))))
