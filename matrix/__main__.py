"""`python -m matrix`: kill every agent everywhere, and write docs/evidence/crash-matrix.md."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from matrix import dbos_trials
from matrix.graphs import INPUTS
from perdure.testing.crashtest import CrashTest, counts
from perdure.testing.postgres import local_postgres

PAGE = Path(__file__).parent.parent / "docs" / "evidence" / "crash-matrix.md"
SHAPES = {
    "chain": "three nodes in a row, two effects each",
    "branches": "two branches side by side, two effects each, and a node after them",
    "gathered": "three coroutines side by side in one node (`asyncio.gather`), two effects each",
    "fan_out": "four tasks made by `Send`, and a node that joins them",
    "subgraph": "a graph inside a graph, effects in both",
    "loop": "a loop of two turns: effect, question to a person (`interrupt`), effect, in one node",
    "functional": "`@entrypoint` with `@task`s in a row and side by side",
    "agent": "`create_agent` with tools, made durable by the middleware alone",
}
DRIVERS: dict[str, dict[str, Any]] = {
    "perdure": {},
    "LangGraph, invoke(None)": {"stock": True, "resume": "none"},
    "LangGraph, invoke(input)": {"stock": True, "resume": "input"},
}
PROBLEMS = ("duplicated", "lost", "different", "unrecoverable")


@dataclass
class Line:
    """One agent on one database with one driver."""

    shape: str
    database: str
    driver: str
    counts: dict[str, int]

    def cells(self) -> list[str]:
        counts = self.counts
        killed = counts["points"]
        again = counts.get("again_with_key", counts.get("again", 0))
        share = f"{counts.get('duplicated', 0) / max(1, counts['trials']):.0%}"
        found = [str(counts.get(name, 0)) for name in PROBLEMS]
        found[0] = "0" if found[0] == "0" else f"{found[0]} ({share})"
        models = str(counts.get("models_repeated", 0)) if self.shape == "agent" else "–"
        return [self.driver, str(killed), str(counts["trials"]), *found, models, str(again)]


def main() -> None:
    arguments = _arguments()
    console = Console(stderr=True)
    lines: list[Line] = []
    begun = time.monotonic()
    columns = (
        TextColumn("{task.description:50}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with contextlib.ExitStack() as stack:
        urls = stack.enter_context(_databases(arguments.only_sqlite))
        progress = stack.enter_context(Progress(*columns, console=console))
        for shape in arguments.shapes or SHAPES:
            for database, url in urls.items():
                for driver, options in DRIVERS.items():
                    if options.get("resume") == "input" and shape == "loop":
                        continue  # the input again is a new run, which asks again: no comparison
                    lines.append(_test(progress, shape, database, url, driver, options, arguments))
                if shape == "branches" and database == "SQLite":
                    lines.append(_dbos(progress, arguments))
    text = render(lines, time.monotonic() - begun, arguments.limit)
    if (arguments.shapes or arguments.limit or arguments.only_sqlite) and not arguments.write:
        print(text)
    else:
        PAGE.write_text(text)
        console.print(f"{PAGE.name} is written.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m matrix", description=__doc__)
    parser.add_argument("shapes", nargs="*", choices=[*SHAPES, []], help="default: all")
    parser.add_argument("--limit", type=int, metavar="N", help="points of each; default: all")
    parser.add_argument("--write", action="store_true", help="write the page also with a limit")
    parser.add_argument("--only-sqlite", action="store_true", help="leave PostgreSQL out")
    return parser.parse_args()


@contextlib.contextmanager
def _databases(only_sqlite: bool) -> Iterator[dict[str, str | None]]:
    if only_sqlite:
        yield {"SQLite": None}
        return
    with local_postgres() as server:
        yield {"SQLite": None, "PostgreSQL": server.database()}


def _test(
    progress: Progress,
    shape: str,
    database: str,
    url: str | None,
    driver: str,
    options: dict[str, Any],
    arguments: argparse.Namespace,
) -> Line:
    task = progress.add_task(f"{shape}, {database}, {driver}", total=None)

    def tell(what: str, done: int, total: int, _: Any) -> None:
        progress.update(task, completed=done, total=total or None)

    test = CrashTest(
        f"matrix.graphs:{shape}",
        INPUTS[shape],
        url=url,
        limit=arguments.limit,
        progress=tell,
        **options,
    )
    report = test.run()
    progress.remove_task(task)
    found = counts(report.trials)  # of those killed in recovery too
    found |= {"trials": len(report.trials), "points": len(report.points)}
    for finding in report.findings:
        progress.console.print(f"{shape}, {database}, {driver}: {finding}")
    if driver == "perdure" and not report.ok:
        progress.console.print(str(report))
    return Line(shape, database, driver, found)


def _dbos(progress: Progress, arguments: argparse.Namespace) -> Line:
    rounds = 1 if arguments.limit else 3
    task = progress.add_task("branches, SQLite, DBOS", total=rounds * len(dbos_trials.POINTS))
    found = dbos_trials.counts(rounds, os.cpu_count() or 1, lambda: progress.advance(task))
    progress.remove_task(task)
    return Line("branches", "SQLite", f"DBOS {version('dbos')}", found)


def render(lines: list[Line], seconds: float, limit: int | None = None) -> str:
    ours = [line.counts for line in lines if line.driver == "perdure"]
    stock = [line.counts for line in lines if line.driver.startswith("LangGraph")]
    parts = [INTRO.strip(), "", _sentence(ours, stock), ""]
    if limit is not None:
        on = " and ".join(dict.fromkeys(line.database for line in lines))
        told = f"**This page is of {limit} points of each row only, evenly chosen over it, on {on}"
        parts += [f"{told}.** `make crash-matrix` takes all of them, on both databases.", ""]
    shapes = dict.fromkeys(line.shape for line in lines)
    for shape in shapes:
        parts += [
            f"## {shape.replace('_', '-')}",
            "",
            SHAPES[shape][0].upper() + SHAPES[shape][1:] + ".",
        ]
        for database in dict.fromkeys(line.database for line in lines if line.shape == shape):
            parts += ["", f"**{database}**", "", HEAD]
            parts += [
                f"| {' | '.join(line.cells())} |"
                for line in lines
                if (line.shape, line.database) == (shape, database)
            ]
        parts.append("")
    made = MADE.format(**_machine(seconds)).strip()
    parts += ["## How it was made", "", made, ""]
    return "\n".join(parts)


HEAD = (
    "| driver | points | kills | duplicated | lost | different | unrecoverable | model calls "
    "repeated | again, with its key |\n|---|---|---|---|---|---|---|---|---|"
)
INTRO = """
# The crash matrix

Agents of every shape LangGraph has, killed with SIGKILL before and after every statement of the
journal and around every effect, then recovered by a new process, which is killed too; with perdure
and, at the calls of its saver and around the same effects, with LangGraph's own saver
(`durability="sync"`), resumed by `invoke(None)` or by `invoke(input)`. `make crash-matrix` runs it
again and writes this page; it is [`perdure crashtest`](../guides/crash-testing.md) on the agents of
`matrix/graphs.py`, and you can run the same on yours.

What is counted, by a ledger in another process, in how many of the kills:

- **duplicated**: something happened twice, and no key lets the far side know;
- **lost**: the run came to its end, and something did not happen;
- **different**: it ended with another result than when nobody kills it: an answer that went to
  another branch is one;
- **unrecoverable**: it did not come to its end;
- **again, with its key**: the call was made, its outcome was not on disk yet, and it was made again
  with the same key. No engine can know better; a far side that honours the key does it once, and
  with `verify=` or `unknown="hold"` it is not even called ([Nothing twice](../guides/effects.md)).
  The effects here give their key to the far side, so their outcomes ride with the next commit; the
  outcomes of functions that do not ask for their key are waited for: a smaller window.
"""
MADE = """
In {minutes:.0f} minutes on {cores} cores with Python {python}, SQLite {sqlite}, langgraph
{langgraph}, langchain {langchain}, dbos {dbos}. Kills are points and, for perdure and LangGraph, a
second kill at one point of each recovery. DBOS runs the same graph of two branches in a workflow,
its effects as steps, killed around each step, once or several times, and started again with the
same executor; its steps have no key, and one that was killed in the middle and is made again is not
counted as duplicated but as "again". How long anything takes is left to chance, so a row may differ
by a few from one run to the next; the zeros of perdure may not.
"""


def _sentence(ours: list[dict[str, int]], stock: list[dict[str, int]]) -> str:
    def total(of: list[dict[str, int]], name: str) -> int:
        return sum(counts.get(name, 0) for counts in of)

    bad = ", ".join(f"{total(ours, name)} {name}" for name in PROBLEMS)
    share = total(stock, "duplicated") / max(1, total(stock, "trials"))
    return (
        f"**perdure: {total(ours, 'trials'):,} kills at {total(ours, 'points'):,} points: {bad}.** "
        f"LangGraph's own saver: {total(stock, 'trials'):,} kills, something duplicated after "
        f"{share:.0%} of them."
    )


def _machine(seconds: float) -> dict[str, Any]:
    return {
        "minutes": seconds / 60,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{name: version(name) for name in ("langgraph", "langchain", "dbos")},
    }


if __name__ == "__main__":
    main()
