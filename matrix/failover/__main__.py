"""`python -m matrix.failover`: change the primary under load, for docs/evidence.md."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import multiprocessing.forkserver
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, cycle, groupby
from pathlib import Path

import psycopg

import perdure
from matrix.evidence import PAGE, machine, write_section
from matrix.failover.cluster import (
    ROUTES,
    TIMINGS,
    Cluster,
    enter,
    missing_programs,
    until,
    versions,
)
from matrix.failover.judge import Change, Left, first_commit, judge
from matrix.failover.load import LEDGER, PRELOADED, read, run

ROOT = Path(__file__).parent.parent.parent
KINDS = ("ghost", "cut between the nodes", "kill -9", "SIGSTOP", "network cut", "switchover")
ROUNDS = {"strict": 4, "asynchronous": 3}
"""Changes for each route, of 21 in all."""
WORKERS, CALLERS = 3, 2
STEADY, HELD, PATIENCE = 3.0, 12.0, 60.0
"""Seconds of load before a fault; that a fault lasts after the database takes writes; to wait."""
TEMPTING = ("ghost", "cut between the nodes")
"""Faults under which the old primary still accepts connections: they last that long in any case."""
FORKS = multiprocessing.get_context("forkserver")
Process = multiprocessing.context.ForkServerProcess


def main() -> None:
    arguments = _arguments()
    if missing := missing_programs():
        sys.exit(f"Install what it needs first: {' '.join(missing)}")
    enter("matrix.failover", sys.argv[1:])
    FORKS.set_forkserver_preload(PRELOADED)
    multiprocessing.forkserver.ensure_running()  # it imports while the cluster starts
    begun = time.monotonic()
    changes = plan(arguments)
    done: list[Change] = []
    shared = Path("/dev/shm")  # syncs are made, and cost nothing
    place = shared if shared.is_dir() else None
    with contextlib.ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="perdure-failover-", dir=place)
        home = Path(stack.enter_context(folder))
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        cluster = Cluster(home)
        stack.callback(cluster.close)
        stack.callback(_kill_all)
        print("A cluster of three nodes starts ...", flush=True)
        cluster.start()
        cluster.wait_until_whole(strict=False)
        try:
            for _, group in groupby(changes, lambda one: (one.strict, one.route)):
                _go_through(cluster, home / f"journal{len(done)}", [*group], done, len(changes))
        except Exception:
            traceback.print_exc()  # what was found before is printed below
    table = "\n".join(_table(done))
    print(f"\n{table}\n")
    if arguments.write and done:
        seconds = time.monotonic() - begun
        write_section("failover", render(done, len(changes), arguments.seed, seconds, versions()))
        print(f"{PAGE.name} is written.")
    bad = sum(bool(change.findings) for change in done)
    if len(done) < len(changes):
        sys.exit(f"{len(done)} of {len(changes)} changes were made and judged.")
    sys.exit(f"{bad} changes with findings" if bad else 0)


def _go_through(
    cluster: Cluster, home: Path, changes: list[Change], done: list[Change], planned: int
) -> None:
    """Make the changes of one journal, judge it, and add them to `done`."""
    with Journal(cluster, home, changes) as journal:
        for number, change in enumerate(changes, len(done) + 1):
            journal.go_through(change)
            print(f"{number} of {planned}: {_line(change)}", flush=True)
        journal.judge()
    done += changes
    for change in changes:
        for text in _summary(change):
            print(f"  {text}", flush=True)


def _kill_all() -> None:
    """End workers, callers and probes that an interrupted journal left."""
    for process in multiprocessing.active_children():
        process.kill()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m matrix.failover", description=__doc__)
    parser.add_argument("--changes", type=int, default=21, metavar="N")
    parser.add_argument("--seed", default="1", help="of the order of the faults; any text")
    parser.add_argument("--write", action="store_true", help="write the page")
    return parser.parse_args()


def plan(arguments: argparse.Namespace) -> list[Change]:
    """The changes, those of one journal side by side. The first is always of the first kind."""
    rng = random.Random(arguments.seed)
    orders = {}
    for replication in ROUNDS:
        first, *others = KINDS
        rng.shuffle(others)
        orders[replication] = cycle([first, *others])
    rounds = [
        (replication, route)
        for n in range(max(ROUNDS.values()))
        for replication in ROUNDS
        for route in ROUTES
        if n < ROUNDS[replication]
    ]
    wanted = [place for place, _ in zip(cycle(rounds), range(arguments.changes), strict=False)]
    wanted.sort(key=lambda one: (ROUTES.index(one[1]), [*ROUNDS].index(one[0])))
    return [Change(next(orders[how]), route, how == "strict") for how, route in wanted]


class Journal:
    """A journal with its workers and callers, through one route, while the primary changes."""

    def __init__(self, cluster: Cluster, home: Path, changes: Sequence[Change]) -> None:
        self._cluster, self._home, self._changes = cluster, home, changes
        self._route, self._strict = changes[0].route, changes[0].strict
        self._url = cluster.url(self._route, home.name)
        self._ledger, self._commits = home / "ledger", home / "commits"
        self._numbers = count(1)
        self._workers: list[Process] = []
        self._others: list[Process] = []

    def __enter__(self) -> Journal:
        self._home.mkdir()
        self._cluster.configure(strict=self._strict)
        with psycopg.connect(self._cluster.url("HAProxy", "postgres"), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {self._home.name}")
        with psycopg.connect(self._cluster.url("HAProxy", self._home.name)) as connection:
            connection.execute("CREATE TABLE probe (at timestamptz)")
        asyncio.run(_create(self._direct))
        for _ in range(WORKERS):
            self._start_worker()
        for n in range(CALLERS):
            self._others.append(self._start("caller", self._ledger, self._url, f"order{n}"))
        probed = [self._url]
        if self._route == "multi-host":  # libpq's choice among them is not the database's
            probed = self._cluster.node_urls(self._home.name)
        self._others.append(self._start("probe", self._commits, *probed))
        until(self._has_started, 2 * PATIENCE, lambda: f"no run was started, see {self._home}")
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self._workers, *self._others):
            process.kill()
            process.join()

    def go_through(self, change: Change) -> None:
        """Make the change, and bring the cluster back."""
        self._cluster.wait_until_whole(strict=self._strict)
        change.since = time.time()
        time.sleep(STEADY)
        timeline = self._cluster.timeline()
        change.at = time.time()
        heal = self._cluster.fault(change.kind)
        self._start_worker()  # it opens the journal while there is no primary

        def committed() -> float | None:
            return first_commit(read(self._commits), change.at, timeline)

        with contextlib.suppress(TimeoutError):
            until(committed, PATIENCE)
            until(self._has_shipped, HELD)
            time.sleep(HELD if change.kind in TEMPTING else 2.0)
        heal()
        if moment := committed():
            change.writes = moment - change.at
        self._cluster.wait_until_whole(strict=self._strict)
        change.exited += self._exits()
        self._stop(self._workers.pop(0), change)

    def judge(self) -> None:
        """Let what was begun come to its end, and compare the ledger with the journal."""
        last = self._changes[-1]
        callers = [one for one in self._others if one.name.startswith("caller")]
        for process in callers:
            process.terminate()
        for process in callers:
            process.join(PATIENCE)
        asyncio.run(_ended(self._direct))
        last.exited += self._exits()
        runs = asyncio.run(_runs(self._direct))
        said = "\n".join(file.read_text() for file in self._home.glob("*.log"))
        said += _perdure("doctor", self._direct)
        judge(self._changes, read(self._ledger), runs, said)

    @property
    def _direct(self) -> str:
        """What the judge reads through: Patroni's primary."""
        return self._cluster.url("HAProxy", self._home.name)

    def _start_worker(self) -> None:
        self._workers.append(self._start("worker", self._ledger))

    def _start(self, role: str, ledger: Path, *arguments: str) -> Process:
        environment = {LEDGER: str(ledger), "PERDURE_URL": self._url}
        name = f"{role}{next(self._numbers)}"
        given = (role, list(arguments), environment, str(self._home / f"{name}.log"))
        process = FORKS.Process(target=run, args=given, name=name, daemon=True)
        process.start()
        return process

    def _stop(self, worker: Process, change: Change) -> None:
        """A worker that is told to stop drains, and exits with 0."""
        worker.terminate()
        worker.join(PATIENCE)
        if worker.exitcode is None:
            change.exited.append(f"{worker.name} did not stop when told to")
            worker.kill()
        elif worker.exitcode:
            change.exited.append(self._exit(worker))

    def _exits(self) -> list[str]:
        """Processes that ended without being told to."""
        ended = [one for one in self._workers if one.exitcode is not None]
        for worker in ended:
            self._workers.remove(worker)
            self._start_worker()  # for the changes that follow
        ended += [one for one in self._others if one.exitcode]
        self._others = [one for one in self._others if one.exitcode is None]
        return [self._exit(one) for one in ended]

    def _exit(self, process: Process) -> str:
        said = (self._home / f"{process.name}.log").read_text().splitlines()
        return f"{process.name} with {process.exitcode}: {' / '.join(said[-2:])}"

    def _has_shipped(self) -> bool:
        """Whether a run came to its last node in the last second."""
        return any(
            line["what"] == "call" and line["effect"] == "ship" and line["t"] > time.time() - 1
            for line in read(self._ledger)
        )

    def _has_started(self) -> bool:
        return any(line["what"] == "recorded" for line in read(self._ledger))


async def _create(url: str) -> None:
    async with perdure.Client(url) as client:
        await client.runs(limit=1)


async def _ended(url: str) -> None:
    """Wait until every run has ended, but not for ever."""
    deadline = time.monotonic() + PATIENCE / 2
    async with perdure.Client(url) as client:
        states = ("pending", "running", "waiting")
        while await client.runs(state=states, limit=1, output=False):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.5)


async def _runs(url: str) -> dict[str, Left]:
    found: dict[str, Left] = {}
    async with perdure.Client(url) as client:
        page = await client.runs(limit=500)
        while page:
            for run in page:
                output = run.output if isinstance(run.output, dict) else {}
                found[run.id] = Left(run.state.value, output, run.updated_at.timestamp())
            page = await client.runs(limit=500, after=page[-1])
    return found


def _perdure(*arguments: str) -> str:
    command = [sys.executable, "-m", "perdure", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout + done.stderr


def _line(change: Change) -> str:
    took = "no writes" if change.writes is None else f"writes after {change.writes:.1f} s"
    exits = f", {len(change.exited)} processes exited" if change.exited else ""
    return f"{_place(change)}: {took}{exits}"


def _table(changes: Sequence[Change]) -> Iterator[str]:
    """A row for each replication and fault."""
    names = ["replication", "fault", "changes", "writes after", "first run after that"]
    names += ["acknowledged", "lost", "effects repeated", "unnamed", "exited", "not ended"]
    yield f"| {' | '.join(names)} |"
    yield "|---" * 2 + "|---:" * (len(names) - 2) + "|"
    for how, kind in sorted({(one.replication, one.kind) for one in changes}, reverse=True):
        some = [one for one in changes if (one.replication, one.kind) == (how, kind)]
        times = [_seconds([one.writes for one in some]), _seconds([one.progress for one in some])]
        lists = [(one.lost, one.repeated, one.unnamed, one.exited, one.stranded) for one in some]
        counts = [sum(map(len, found)) for found in zip(*lists, strict=True)]
        cells = [len(some), *times, sum(one.acknowledged for one in some), *counts]
        yield f"| {how} | {kind} | {' | '.join(map(str, cells))} |"


def _seconds(values: Sequence[float | None]) -> str:
    """The shortest and the longest time."""
    found = sorted({f"{value:.1f}" for value in values if value is not None}, key=float)
    never = ", never" if None in values else ""
    return f"{'–'.join(dict.fromkeys([*found[:1], *found[-1:]]))} s{never}"


def render(
    changes: Sequence[Change], planned: int, seed: str, seconds: float, programs: str
) -> str:
    """The figures of the section."""
    timings = ", ".join(f"`{name}: {value}`" for name, value in TIMINGS.items())
    run = f"{machine(seconds, 'langgraph')}, {programs}, seed {seed}"
    made = f"`make failover`, {run}; {timings}; {WORKERS} workers, {CALLERS} callers."
    parts = [f"**{_sentence(changes, planned)}**", "\n".join(_table(changes))]
    if found := [f"- {text}" for change in changes for text in _summary(change)]:
        parts += ["What is not as promised:", "\n".join(found)]
    return "\n\n".join(part.strip() for part in [*parts, made])


def _sentence(changes: Sequence[Change], planned: int) -> str:
    made = (
        f"{planned} changes" if len(changes) == planned else f"{len(changes)} of {planned} changes"
    )
    strict = [one for one in changes if one.strict]
    loose = [one for one in changes if not one.strict]
    lost = [sum(len(one.lost) for one in some) for some in (strict, loose)]
    repeated = [sum(len(one.repeated) for one in some) for some in (strict, loose)]
    acknowledged = [sum(one.acknowledged for one in some) for some in (strict, loose)]
    late = sum(any(text.startswith("late") for text in one.findings) for one in changes)
    return (
        f"{made}. Strict synchronous replication: {lost[0]} of {acknowledged[0]:,} "
        f"acknowledged calls lost, {repeated[0]} recorded effects repeated. Asynchronous: "
        f"{lost[1]} of {acknowledged[1]:,} lost, {repeated[1]} recorded effects repeated, "
        f"{sum(len(one.unnamed) for one in loose)} of both unnamed. "
        f"{sum(len(one.exited) for one in changes)} processes ended by themselves. "
        f"{late} times no run ended within 10 s of the database taking writes."
    )


def _summary(change: Change) -> Iterator[str]:
    """The findings of a change, one line for each kind, with the first of them."""
    kinds = Counter(text.split(":")[0] for text in change.findings)
    for kind, number in kinds.items():
        first = next(text for text in change.findings if text.startswith(f"{kind}:"))
        more = f", and {number - 1} more" if number > 1 else ""
        yield f"{_place(change)}: {first[:300]}{more}"


def _place(change: Change) -> str:
    return f"{change.kind}, {change.replication}, {change.route}"


if __name__ == "__main__":
    main()
