"""The crash test itself: a run that nobody kills, then one for each point at which it can be.

`CrashTest` is the whole of it for Python; the command line and `perdure.testing.crashtest` only
make one. Trials are independent: each has its own database and its own processes, so they run side
by side and in any order, and the report has them in the order of the points.
"""

from __future__ import annotations

import json
import os
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any, Literal

from perdure.errors import BadArgument
from perdure.testing.crashtest.databases import Databases, databases
from perdure.testing.crashtest.judge import Clean, end_of, judge, told, usual
from perdure.testing.crashtest.lanes import Lane, Life, Nursery, ProcessLost
from perdure.testing.crashtest.report import Report
from perdure.testing.crashtest.values import differences
from perdure.testing.crashtest.words import KEEPER, Finding, Point, Problem, Trial

Progress = Callable[[str, int, int, "Trial | None"], None]
"""Called with what is done now, how many trials are over, how many there are, and the last one."""
ATTEMPTS = 3
"""How often a point is tried that a process comes to only by chance."""


class CrashTest:
    """One agent on one database: killed everywhere, and judged.

    `place` is `module:name`; the module is imported by another process. `recovery` is how many
    points of each recovery are killed at too, or "all". `limit` takes that many points, evenly
    spread. `ignore` names keys of the result that are not compared, `harmless` lines or files whose
    outward actions may repeat. `deadline` is in seconds, for each process. With `stock` the graph
    is driven with LangGraph's own saver, and resumed with `None` or with the `input`.
    """

    def __init__(
        self,
        place: str,
        input: Any = None,
        *,
        url: str | None = None,
        stock: bool = False,
        resume: Literal["none", "input"] = "none",
        answer: Any = None,
        context: Any = None,
        recovery: int | Literal["all"] = 1,
        limit: int | None = None,
        ignore: Iterable[str] = (),
        harmless: Iterable[str] = (),
        deadline: float = 60.0,
        jobs: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        module, _, name = place.partition(":")
        if not module or not name or module.endswith(".py"):
            raise BadArgument(f"{place!r} names no graph: use module:name, such as agents:graph.")
        if resume not in ("none", "input"):
            raise BadArgument(f"resume={resume!r}: use none or input.")
        if recovery != "all" and recovery < 0:
            raise BadArgument(f"recovery={recovery!r}: use a number from 0 on, or all.")
        if limit is not None and limit < 1:
            raise BadArgument(f"limit={limit}: at least 1.")
        if deadline <= 0 or (jobs is not None and jobs < 1):
            raise BadArgument("deadline and jobs are more than 0.")
        self._place, self._url, self._stock, self._resume = place, url, stock, resume
        self._order = {
            "input": _json("input", input),
            "answer": {"ok": True} if answer is None else _json("answer", answer),
            "context": _json("context", context),
            "deadline": deadline,
            "stock": stock,
            "resume": resume,
        }
        self._recovery, self._limit = recovery, limit
        self._ignore, self._harmless = frozenset(ignore), tuple(harmless)
        self._jobs = jobs or max(1, min(8, os.cpu_count() or 1))
        self._progress = progress or (lambda *_: None)
        self._begin = time.time_ns() // 1_000_000

    def run(self) -> Report:
        """Kill it everywhere. Raises `BadArgument` if there is nothing to test; Ctrl-C ends it
        early, with a report of what is known by then."""
        begun = time.monotonic()
        trials: list[Trial] = []
        with databases(self._url) as places:
            self._progress("importing the agent", 0, 0, None)
            nursery = Nursery(self._place, url=places.template, stock=self._stock)
            try:
                report = self._test(nursery, places, trials)
            finally:
                nursery.close()
        report.seconds = time.monotonic() - begun
        return report

    def _test(self, nursery: Nursery, places: Databases, trials: list[Trial]) -> Report:
        report = Report(self._place, self._driver, places.name, trials=trials)
        try:
            lane = nursery.lane()
            self._check(lane.live({**self._order, "role": "prepare", "url": places.template}))
            self._progress("running it without a kill", 0, 0, None)
            lives = self._lives(lane, places, ())
            if lives[0].last("end") is not None:
                lives += self._lives(lane, places, ())
            clean, report.findings = self._clean(lives)
            report.state, report.result = clean.state, clean.result
            report.usual = clean.tally
            reached = list(_points(life_points(lives[0])))
            report.reached = len(reached)
            if any(one.problem is Problem.UNRECOVERABLE for one in report.findings):
                report.printed = end_of(lives[0])[3]
                return report
            report.points = list(_spread(reached, self._limit))
            with _Crew(nursery, self._jobs) as crew:
                self._kill_everywhere(crew, places, clean, report)
        except KeyboardInterrupt:
            report.interrupted = True
        except ProcessLost as lost:
            report.findings = (
                *report.findings,
                Finding(Problem.UNRECOVERABLE, "the test could not go on", "", str(lost)),
            )
        return report

    @property
    def _driver(self) -> str:
        if not self._stock:
            return "perdure"
        return f"LangGraph, invoke({'None' if self._resume == 'none' else 'input'})"

    def _clean(self, lives: Sequence[Life]) -> tuple[Clean, tuple[Finding, ...]]:
        """What the agent does when nobody kills it, and what is wrong with that."""
        for life in lives:
            self._check(life)
        state, result, reason, _ = end_of(lives[0])
        _, other, *_ = end_of(lives[-1])
        findings = []
        if state not in ("done", "waiting"):
            what = f"the run is {state} though nobody killed it"
            findings.append(Finding(Problem.UNRECOVERABLE, what, "", reason))
        varying = differences(result, other, self._ignore)
        findings += told(Problem.VARIES, varying)
        ignore = self._ignore | {path for path, _ in varying}
        return Clean(state, result, usual(lives), ignore, self._harmless), tuple(findings)

    def _check(self, life: Life) -> None:
        if (wrong := life.last("wrong")) is not None:
            raise BadArgument(f"{self._place} cannot be tested. {wrong[0]}")

    def _kill_everywhere(
        self, crew: _Crew, places: Databases, clean: Clean, report: Report
    ) -> None:
        recoveries: dict[Point, list[str]] = {}

        def trial(lane: Lane, kills: tuple[Point, ...]) -> Trial:
            begun = time.monotonic()
            lives = self._lives(lane, places, kills)
            for _ in range(ATTEMPTS - 1):
                if not lives[0].killed:
                    lives = self._lives(lane, places, kills)
            if len(kills) == 1 and lives[0].killed:
                recoveries[kills[0]] = life_points(lives[-1])
            return judge(kills, lives, clean, time.monotonic() - begun)

        singles = [(point,) for point in report.points]
        planned = len(singles) * (1 if self._recovery == 0 else 2)
        self._try(crew, trial, singles, report, planned)
        pairs = list(self._pairs(report.points, recoveries))
        self._try(crew, trial, pairs, report, len(singles) + len(pairs))

    def _try(
        self,
        crew: _Crew,
        trial: Callable[[Lane, tuple[Point, ...]], Trial],
        kills: Sequence[tuple[Point, ...]],
        report: Report,
        planned: int,
    ) -> None:
        begun = len(report.trials)
        order = {one: n for n, one in enumerate(kills)}
        try:
            for done in crew.each(trial, kills):
                report.trials.append(done)
                self._progress("killing it", len(report.trials), planned, done)
        finally:
            report.trials[begun:] = sorted(report.trials[begun:], key=lambda t: order[t.kills])

    def _pairs(
        self, points: Sequence[Point], recoveries: dict[Point, list[str]]
    ) -> Iterator[tuple[Point, Point]]:
        """A second kill for each recovery, at the point that was killed at least until now."""
        hits: Counter[str] = Counter()
        for number, first in enumerate(points):
            second = list(_points(recoveries.get(first, [])))
            if self._recovery == "all":
                yield from ((first, point) for point in second)
                continue
            for _ in range(min(self._recovery, len(second))):
                turned = [*second[number % len(second) :], *second[: number % len(second)]]
                point = min(turned, key=lambda one: hits[one.name])
                hits[point.name] += 1
                second.remove(point)
                yield first, point
                if not second:
                    break

    def _lives(self, lane: Lane, places: Databases, kills: tuple[Point, ...]) -> list[Life]:
        """A run on a fresh database: a process for each kill, and one that brings it to its end."""
        lives: list[Life] = []
        with places.fresh() as url:
            clock = self._begin
            for kill in (*kills, None):
                order = {**self._order, "role": "live", "url": url, "clock": clock}
                order["kill"] = None if kill is None else [kill.name, kill.n]
                order["again"] = bool(lives)
                lives.append(lane.live(order))
                [clock] = lives[-1].last("clock") or [clock]
                if not lives[-1].killed:
                    break
        return lives


class _Crew:
    """Lanes that work side by side."""

    def __init__(self, nursery: Nursery, jobs: int) -> None:
        self._nursery = nursery
        self._lanes: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for _ in range(jobs):
            self._lanes.put(nursery.lane())
        self._threads = ThreadPoolExecutor(jobs, "crashtest")

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if kind is not None:
            self._nursery.stop()  # so that what is under way ends now
        self._threads.shutdown()

    def each(
        self,
        trial: Callable[[Lane, tuple[Point, ...]], Trial],
        kills: Iterable[tuple[Point, ...]],
    ) -> Iterator[Trial]:
        """Trials as they are over."""

        def one(kill: tuple[Point, ...]) -> Trial:
            lane = self._lanes.get()
            try:
                return trial(lane, kill)
            finally:
                self._lanes.put(lane)

        futures: list[Future[Trial]] = [self._threads.submit(one, kill) for kill in kills]
        for future in as_completed(futures):
            yield future.result()


def life_points(life: Life) -> list[str]:
    """The points a life came to, in order."""
    [names] = life.last("points") or [[]]
    return list(names)


def _points(names: Iterable[str]) -> Iterator[Point]:
    counts: Counter[str] = Counter()
    for name in names:
        counts[name] += 1
        if counts[name] == 1 or not name.startswith(KEEPER):
            yield Point(name, counts[name])


def _spread(points: Sequence[Point], limit: int | None) -> Iterator[Point]:
    """All of them, or that many, evenly spread, with the first and the last."""
    if limit is None or limit >= len(points):
        yield from points
    elif limit == 1:
        yield points[len(points) // 2]
    else:
        for n in range(limit):
            yield points[n * (len(points) - 1) // (limit - 1)]


def _json(name: str, value: Any) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise BadArgument(
            f"{name} has to be JSON, since it goes to other processes: {error}. Messages can be "
            '{"role": "user", "content": "..."}.'
        ) from error
    return value
