"""`python -m matrix`: kill every agent everywhere, and write the figures of docs/evidence.md."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from matrix import dbos_trials
from matrix.evidence import PAGE, machine, write_section
from matrix.graphs import INPUTS
from perdure.testing.crashtest import CrashTest, counts
from perdure.testing.postgres import local_postgres

SHAPES = {
    "chain": "three nodes in a row, two effects each",
    "branches": "two parallel branches, two effects each, and a node after them",
    "gathered": "three concurrent coroutines in one node (`asyncio.gather`), two effects each",
    "fan_out": "four tasks created by `Send`, and a node that joins them",
    "subgraph": "a graph inside a graph, effects in both",
    "loop": "a loop of two turns: effect, question to a person (`interrupt`), effect, in one node",
    "functional": "`@entrypoint` with `@task`s in sequence and in parallel",
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m matrix", description=__doc__)
    parser.add_argument("--limit", type=int, metavar="N", help="print N points of each; write none")
    limit: int | None = parser.parse_args().limit
    lines: list[Line] = []
    begun = time.monotonic()
    with local_postgres() as server:
        urls = {"SQLite": None, "PostgreSQL": server.database()}
        for shape in SHAPES:
            for database, url in urls.items():
                for driver, options in DRIVERS.items():
                    if options.get("resume") == "input" and shape == "loop":
                        continue  # the input again is a new run, which asks again: no comparison
                    lines.append(_test(shape, database, url, driver, options, limit))
                if shape == "branches" and database == "SQLite":
                    found = dbos_trials.counts(1 if limit else 3, os.cpu_count() or 1)
                    lines.append(Line(shape, database, f"DBOS {version('dbos')}", found))
    text = render(lines, time.monotonic() - begun, limit)
    if limit:
        print(text)
    else:
        write_section("crash matrix", text)
        print(f"{PAGE.name} is written.")


def _test(
    shape: str,
    database: str,
    url: str | None,
    driver: str,
    options: dict[str, Any],
    limit: int | None,
) -> Line:
    agent, given = f"matrix.graphs:{shape}", INPUTS[shape]
    report = CrashTest(agent, given, url=url, limit=limit, **options).run()
    found = counts(report.trials)  # of those killed in recovery too
    found |= {"trials": len(report.trials), "points": len(report.points)}
    print(f"{shape}, {database}, {driver}: {found}", *report.findings, sep="\n  ", flush=True)
    if driver == "perdure" and not report.ok:
        print(report)
    return Line(shape, database, driver, found)


def render(lines: list[Line], seconds: float, limit: int | None = None) -> str:
    """The figures: a row for each agent, with the counts of all databases together."""
    ours = [line.counts for line in lines if line.driver == "perdure"]
    stock = [line.counts for line in lines if line.driver.startswith("LangGraph")]
    drivers = list(dict.fromkeys(line.driver for line in lines))
    rows = [f"| agent | {' | '.join(drivers)} |", "|---" * (len(drivers) + 1) + "|"]
    for shape in dict.fromkeys(line.shape for line in lines):
        cells = [
            _cell([line.counts for line in lines if (line.shape, line.driver) == (shape, driver)])
            for driver in drivers
        ]
        rows.append(f"| {SHAPES[shape]} | {' | '.join(cells)} |")
    points = "all points" if limit is None else f"{limit} points of each, evenly chosen,"
    databases = " and ".join(dict.fromkeys(line.database for line in lines))
    run = machine(seconds, "langgraph", "langchain", "dbos")
    made = f"`make crash-matrix`, {run}: {points} on {databases}."
    parts = [_sentence(ours, stock), "\n".join(rows), made]
    return "\n\n".join(part.strip() for part in parts)


def _cell(found: list[dict[str, int]]) -> str:
    """What went wrong, and of how many kills."""
    if not found:
        return "–"
    wrong = {name: sum(counts.get(name, 0) for counts in found) for name in PROBLEMS}
    told = ", ".join(f"{n} {name}" for name, n in wrong.items() if n) or "**0**"
    return f"{told} of {sum(counts['trials'] for counts in found)}"


def _sentence(ours: list[dict[str, int]], stock: list[dict[str, int]]) -> str:
    def total(of: list[dict[str, int]], name: str) -> int:
        return sum(counts.get(name, 0) for counts in of)

    bad = ", ".join(f"{total(ours, name)} {name}" for name in PROBLEMS)
    share = total(stock, "duplicated") / max(1, total(stock, "trials"))
    return (
        f"**perdure: {total(ours, 'trials'):,} kills at {total(ours, 'points'):,} points: {bad}.** "
        f"With LangGraph's own saver, something was duplicated after {share:.0%} of "
        f"{total(stock, 'trials'):,} kills."
    )


if __name__ == "__main__":
    main()
