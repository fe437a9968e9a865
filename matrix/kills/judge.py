"""Plays a scenario in processes that are killed, and judges what happened in the world."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from matrix.kills.orders import TABLE
from matrix.kills.process import ForkServer, Result
from matrix.kills.scenarios import SCENARIOS
from matrix.kills.world import Event, World
from perdure.journal import connect
from perdure.testing.postgres import Server

WEIGHTS = {
    "SQLite": {"journal": 12, "lock": 3, "world": 5},
    "PostgreSQL": {"send": 9, "receive": 6, "world": 5},
}
"""How often each kind of operation is the one to be killed at."""
KILLS = (1, 1, 2, 3)
"""Kills of one trial."""


class Database(Protocol):
    """A database that is copied for each trial."""

    name: str

    def fresh(self, folder: Path) -> contextlib.AbstractContextManager[str]: ...

    def booked(self, url: str) -> list[str]: ...


class SqliteFiles:
    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self._template = folder / "template.db"
        connect(f"sqlite:///{self._template}").close()
        with contextlib.closing(sqlite3.connect(self._template)) as connection:
            connection.execute(TABLE)
            connection.commit()

    @contextlib.contextmanager
    def fresh(self, folder: Path) -> Iterator[str]:
        shutil.copy(self._template, folder / "journal.db")
        yield f"sqlite:///{folder}/journal.db"

    def booked(self, url: str) -> list[str]:
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return [seat for (seat,) in connection.execute("SELECT seat FROM bookings")]


class PostgresDatabases:
    name = "PostgreSQL"

    def __init__(self, server: Server) -> None:
        import psycopg

        self._server, self._template = server, server.database()
        connect(self._template).close()
        with psycopg.connect(self._template, autocommit=True) as connection:
            connection.execute(TABLE)

    @contextlib.contextmanager
    def fresh(self, folder: Path) -> Iterator[str]:
        url = self._server.database(template=self._template)
        try:
            yield url
        finally:
            self._server.drop(url)

    def booked(self, url: str) -> list[str]:
        import psycopg

        with psycopg.connect(url) as connection:
            return [seat for (seat,) in connection.execute("SELECT seat FROM bookings")]


@dataclass
class Trial:
    """One play of a scenario, and what was wrong with it."""

    scenario: str
    database: str
    seed: str
    """Of the draw: the same seed draws the same operations and hash seeds."""
    kills: list[str] = field(default_factory=list)
    again: int = 0
    """Calls made again with their key."""
    settled: int = 0
    """Decisions of the person about unknown outcomes."""
    duplicated: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    stranded: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    seconds: float = 0.0
    printed: str = ""

    @property
    def findings(self) -> list[str]:
        found = {"duplicated": self.duplicated, "lost": self.lost}
        found |= {"stranded": self.stranded, "different": self.different}
        return [f"{kind}: {one}" for kind, some in found.items() for one in some]

    def __str__(self) -> str:
        lines = [f"{self.scenario} on {self.database}, seed {self.seed}"]
        lines += [f"  killed at {kill}" for kill in self.kills]
        lines += [f"  {finding}" for finding in self.findings]
        return "\n".join(lines)


class Judge:
    """Plays one scenario on one database repeatedly, in any number of threads."""

    def __init__(self, scenario: str, database: Database) -> None:
        self._name, self._scenario, self._database = scenario, SCENARIOS[scenario], database
        self._counts: dict[str, int] = {}
        self._result: list[Any] = []

    def begin(self, server: ForkServer) -> Trial:
        """The scenario without a kill: what it gives, and how many operations it makes."""
        trial = Trial(self._name, self._database.name, "none")
        with self._place() as (folder, url):
            result = server.run(self._order(folder, url, None, count=True))
            self._counts, self._result = result.counts, result.reported.get("result") or []
            self._judge(trial, folder, url, result)
        return trial

    def trial(self, seed: str, servers: Sequence[ForkServer]) -> Trial:
        """The scenario with kills, drawn from a seed. Each process is of one of the servers."""
        begun, rng = time.monotonic(), random.Random(seed)
        trial = Trial(self._name, self._database.name, seed)
        weights, left = WEIGHTS[self._database.name], 1.0
        with self._place() as (folder, url):
            [kind] = rng.choices(list(weights), list(weights.values()))
            for _ in range(rng.choice(KILLS)):
                n = rng.randint(1, max(1, round(self._counts.get(kind, 0) * left)))
                result = rng.choice(servers).run(self._order(folder, url, (kind, n)))
                if result.killed is None:
                    break
                trial.kills.append(result.killed)
                left *= 1 - n / max(1, self._counts[kind] * left) / 2
                [kind] = rng.choices(list(weights), list(weights.values()))
            else:
                result = rng.choice(servers).run(self._order(folder, url, None))
            self._judge(trial, folder, url, result)
        trial.seconds = time.monotonic() - begun
        return trial

    @contextlib.contextmanager
    def _place(self) -> Iterator[tuple[Path, str]]:
        shared = Path("/dev/shm")  # syncs are made, and cost nothing
        home = shared if shared.is_dir() else None
        with tempfile.TemporaryDirectory(prefix="perdure-kills-", dir=home) as name:
            folder = Path(name)
            with self._database.fresh(folder) as url:
                yield folder, url

    def _order(
        self, folder: Path, url: str, kill: tuple[str, int] | None, *, count: bool = False
    ) -> dict[str, object]:
        return {
            "scenario": self._name,
            "count": count,
            "url": url,
            "journal": f"{folder}/journal.db",
            "world": f"{folder}/world",
            "clock": f"{folder}/clock",
            "begin": 1_790_000_000_000,
            "kill": kill,
        }

    def _judge(self, trial: Trial, folder: Path, url: str, last: Result) -> None:
        scenario, reported = self._scenario, last.reported
        if last.status != 0 or not reported:
            trial.stranded.append(f"the last process ended with {last.status}")
            trial.printed = last.printed
            return
        trial.settled = reported["settled"]
        trial.stranded += reported["strange"] + [f"doctor: {one}" for one in reported["doctor"]]
        for graph, state, reason in reported["ended"]:
            if state != scenario.ends[graph]:
                trial.stranded.append(f"{graph} is {state}: {reason}")
        events = World(folder / "world").events()
        keyed = [event for event in events if event.kind == "keyed"]
        trial.again = len(keyed) - len(set(keyed))
        self._compare(trial, _happened(events))
        if "booked 12a" in scenario.happens:
            self._compare_bookings(trial, self._database.booked(url))
        if not trial.stranded and reported["result"] != self._result:
            found = [line for line in reported["result"] if line not in self._result]
            missing = [line for line in self._result if line not in reported["result"]]
            trial.different.append(f"{found} instead of {missing}")
        trial.printed = last.printed if trial.findings else ""

    def _compare(self, trial: Trial, happened: Counter[str]) -> None:
        for what in sorted(happened | self._scenario.happens):
            often, wanted = happened[what], self._scenario.happens[what]
            if often > wanted:
                trial.duplicated.append(f"{what}: {often} times instead of {wanted}")
            elif often < wanted and not trial.stranded:
                trial.lost.append(f"{what}: {often} times instead of {wanted}")

    def _compare_bookings(self, trial: Trial, seats: list[str]) -> None:
        if len(seats) > 1:
            trial.duplicated.append(f"booking {seats}")
        elif not seats and not trial.stranded:
            trial.lost.append("booking")


def _happened(events: Sequence[Event]) -> Counter[str]:
    """How often each thing happened: of a far side that knows keys, once for each key."""
    keyed = {event for event in events if event.kind == "keyed"}
    rest = [event for event in events if event.kind in ("asked", "held")]
    return Counter(event.what for event in [*keyed, *rest])
