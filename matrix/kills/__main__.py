"""`python -m matrix.kills`: kill agents at single I/O operations, for docs/evidence.md."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from matrix.evidence import PAGE, machine, write_section
from matrix.kills.io_stops import is_supported
from matrix.kills.judge import Database, Judge, PostgresDatabases, SqliteFiles, Trial
from matrix.kills.process import ForkServer
from matrix.kills.scenarios import SCENARIOS
from perdure.testing.postgres import local_postgres

HASH_SEEDS = 3
"""Orders of sets that processes have."""


def main() -> None:
    arguments = _arguments()
    if not is_supported():
        sys.exit("Kills at single I/O operations need Linux 5.5 or newer, on x86-64 or ARM64.")
    begun = time.monotonic()
    trials: list[Trial] = []
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        slots = stack.enter_context(fork_servers(os.cpu_count() or 1, HASH_SEEDS))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-kills-"))
        files = SqliteFiles(Path(folder))
        server = PostgresDatabases(stack.enter_context(local_postgres(fsync=False)))
        for database, wanted in ((files, arguments.sqlite), (server, arguments.postgres)):
            for scenario in SCENARIOS:
                kills = wanted // len(SCENARIOS)
                kill(scenario, database, kills, slots, arguments.seed, trials)
    table = "\n".join(_table(trials))
    print(f"\n{table}\n")
    bad = [trial for trial in trials if trial.findings]
    if arguments.write:
        write_section("kills", render(trials, arguments.seed, time.monotonic() - begun))
        print(f"{PAGE.name} is written.")
    sys.exit(f"{len(bad)} trials with findings" if bad else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m matrix.kills", description=__doc__)
    parser.add_argument("--sqlite", type=int, default=2000, metavar="N", help="kills on SQLite")
    parser.add_argument("--postgres", type=int, default=300, metavar="N", help="on PostgreSQL")
    parser.add_argument("--seed", default="1", help="of the draw of operations; any text")
    parser.add_argument("--write", action="store_true", help="write the section")
    return parser.parse_args()


@contextlib.contextmanager
def fork_servers(jobs: int, hash_seeds: int) -> Iterator[list[list[ForkServer]]]:
    """Fork servers for so many threads; the servers of a thread have different hash seeds."""
    slots = [[ForkServer(n + 1) for n in range(hash_seeds)] for _ in range(jobs)]
    try:
        yield slots
    finally:
        for server in (server for servers in slots for server in servers):
            server.close()


def kill(
    scenario: str,
    database: Database,
    wanted: int,
    slots: Sequence[Sequence[ForkServer]],
    seed: str,
    into: list[Trial] | None = None,
) -> list[Trial]:
    """Play a scenario until there were that many kills, or until Ctrl-C. Each trial that is over is
    also appended to `into`."""
    judge, lock = Judge(scenario, database), threading.Lock()
    baseline = judge.begin(slots[0][0])
    trials: list[Trial] = []
    every = [] if into is None else into
    if baseline.findings:
        print("without a kill:", baseline, baseline.printed, sep="\n", flush=True)
        every.append(baseline)
        return [baseline]
    number, stopped = 0, False

    def loop(servers: Sequence[ForkServer]) -> None:
        nonlocal number
        while True:
            with lock:
                if stopped or sum(len(trial.kills) for trial in trials) >= wanted:
                    return
                number += 1
                drawn = f"{seed}/{number}"
            trial = judge.trial(drawn, servers)
            with lock:
                trials.append(trial)
                every.append(trial)
                if trial.findings:
                    print(trial, trial.printed[-3000:], sep="\n", flush=True)

    with ThreadPoolExecutor(len(slots)) as threads:
        try:
            for done in [threads.submit(loop, servers) for servers in slots]:
                done.result()
        finally:
            stopped = True
    return trials


def _table(trials: Sequence[Trial]) -> Iterator[str]:
    names = ["agent", "database", "trials", "kills", "kills by operation"]
    names += ["silent duplicates", "lost", "stranded", "different"]
    names += ["settled by a person", "again, with the key"]
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"
    for scenario, database in dict.fromkeys((one.scenario, one.database) for one in trials):
        some = [one for one in trials if (one.scenario, one.database) == (scenario, database)]
        kinds = Counter(kill.split()[0] for one in some for kill in one.kills)
        cells: list[Any] = [scenario, database, len(some), sum(kinds.values())]
        cells.append(", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items())))
        kinds_found = ("duplicated", "lost", "stranded", "different")
        cells += [sum(bool(getattr(one, kind)) for one in some) for kind in kinds_found]
        cells += [sum(one.settled for one in some), sum(one.again for one in some)]
        yield f"| {' | '.join(map(str, cells))} |"


def render(trials: Sequence[Trial], seed: str, seconds: float) -> str:
    """The figures of the section."""
    killed = sum(len(one.kills) for one in trials)
    kinds = {"duplicated": "silent duplicates", "lost": "lost", "stranded": "stranded"}
    kinds["different"] = "different results"
    found = [
        f"{sum(bool(getattr(one, kind)) for one in trials)} {name}" for kind, name in kinds.items()
    ]
    run = machine(seconds, "langgraph", "langchain")
    made = f"`make kills`, {run}, and seed {seed}."
    sentence = f"**{killed:,} kills in {len(trials):,} trials: {', '.join(found)}.**"
    table = "\n".join(_table(trials))
    parts = [sentence, table, made]
    return "\n\n".join(part.strip() for part in parts)


if __name__ == "__main__":
    main()
