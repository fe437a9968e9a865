"""A crash test for any agent.

    report = perdure.testing.crashtest("agents:campaign", {"contact": 7})
    report.check()

The agent runs in real processes that die by SIGKILL, before and after every statement of the
journal and around every effect; so do the processes that recover. This process is the judge. First
comes a baseline run without a kill, then one trial for each point of that run. Trials are
independent: each has its own database and processes, so they run in parallel and in any order. The
report lists them in the order of the points.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import KW_ONLY, astuple, dataclass
from typing import Any, Literal

from perdure.errors import BadArgument
from perdure.testing.crashtest.databases import PostgreSQLServer, SQLiteFiles, databases
from perdure.testing.crashtest.judge import (
    Baseline,
    differences,
    end_of,
    judge,
    most_of,
    repeated,
    result_findings,
)
from perdure.testing.crashtest.processes import ForkServer, ProcessLost, ProcessResult
from perdure.testing.crashtest.report import (
    KEEPER,
    Finding,
    Outcome,
    Point,
    Problem,
    Report,
    Trial,
    counts,
)

__all__ = [
    "CrashTest",
    "Finding",
    "Outcome",
    "Point",
    "Problem",
    "Report",
    "Trial",
    "counts",
    "crashtest",
]

Databases = SQLiteFiles | PostgreSQLServer
Kills = tuple[Point, ...]
# Name and phase of a point, and how many outward actions were before it, as a process reports.
Reached = Sequence[Any]
# Called with the current activity, the trials done, the trials planned, and the last trial.
Progress = Callable[[str, int, int, "Trial | None"], None]
ATTEMPTS = 3  # attempts at a point that a process does not reach every time


def crashtest(graph: str, input: Any = None, **options: Any) -> Report:
    """Kill an agent at every point, let it recover, and report what was duplicated or lost.

    The agent runs in real processes that die by SIGKILL before and after every statement of the
    journal and around every effect; so do the processes that recover. Each trial has a fresh
    journal. The agent really acts, once per trial: point it at a sandbox.

        report = perdure.testing.crashtest("agents:campaign", {"contact": 7})
        report.check()

    Args:
        graph: The place of the graph, `module:name`: a `StateGraph`, a compiled graph, an
            `@entrypoint`, or a function without arguments that returns one.
        input: The input of the run, as JSON data.
        **options: The keyword arguments of `CrashTest`.

    Returns:
        The results. `report.check()` fails a test with the findings.

    Raises:
        BadArgument: Other processes cannot import the graph, or there is nothing to test.
    """
    return CrashTest(graph, input, **options).run()


@dataclass
class CrashTest:
    """One crash test of one agent on one database. `crashtest` makes and runs it.

    Args:
        place: The graph, as `module:name`; other processes import the module.
        input: The input of the run, as JSON data.
        url: A PostgreSQL server: each trial gets its own database there, which is dropped
            afterwards. By default SQLite files in a temporary folder. Not D1.
        stock: Drive the graph with LangGraph's own saver instead of perdure, to compare.
        resume: With `stock`, how the graph is resumed after a kill: with `None`, or with its
            `input` again.
        answer: The answer to every question to a person. By default an approving answer.
        context: LangGraph's runtime context of the run.
        recovery: How many points of each recovery to kill at as well.
        limit: Kill at this many points: first those right after something left the process, then
            others, evenly spread. By default all.
        ignore: Keys (`created_at`) or paths (`state.messages[0].id`) of the result that are not
            compared.
        harmless: Places whose outward actions may repeat: `FILE`, `FILE:LINE` or `effect NAME`;
            `*` is a wildcard.
        deadline: Seconds that each process may take.
        jobs: How many trials run at once. By default the number of CPUs, at most 8.
        progress: Called with the current activity, the trials done, the trials planned, and the
            last trial.

    Raises:
        BadArgument: An argument is not valid.
    """

    place: str
    input: Any = None
    _: KW_ONLY
    url: str | None = None
    stock: bool = False
    resume: Literal["none", "input"] = "none"
    answer: Any = None
    context: Any = None
    recovery: int = 1
    limit: int | None = None
    ignore: Collection[str] = ()
    harmless: Collection[str] = ()
    deadline: float = 60.0
    jobs: int | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        module, _, name = self.place.partition(":")
        if not module or not name or module.endswith(".py"):
            raise BadArgument(
                f"{self.place!r} names no graph: use module:name, such as agents:graph."
            )
        if self.resume not in ("none", "input"):
            raise BadArgument(f"resume={self.resume!r}: use none or input.")
        if self.recovery < 0:
            raise BadArgument(f"recovery={self.recovery}: at least 0.")
        if self.limit is not None and self.limit < 1:
            raise BadArgument(f"limit={self.limit}: at least 1.")
        if self.deadline <= 0 or (self.jobs is not None and self.jobs < 1):
            raise BadArgument("deadline and jobs are more than 0.")
        names = ("input", "answer", "context", "deadline", "stock", "resume")
        self._order = {name: _json(name, getattr(self, name)) for name in names}
        self._progress = self.progress or (lambda *_: None)
        self._begin = time.time_ns() // 1_000_000

    def run(self) -> Report:
        """Kill the agent at every point, and report. Ctrl-C ends the test early.

        Returns:
            The results; after Ctrl-C, those available so far.

        Raises:
            BadArgument: There is nothing to test.
        """
        begun = time.monotonic()
        with databases(self.url) as places:
            self._progress("importing the agent", 0, 0, None)
            server = ForkServer(self.place, url=places.template, stock=self.stock)
            try:
                report = self._test(server, places)
            finally:
                server.close()
        report.seconds = time.monotonic() - begun
        return report

    def _test(self, server: ForkServer, places: Databases) -> Report:
        report = Report(self.place, self._driver, places.name)
        try:
            self._check(server.run({**self._order, "role": "prepare", "url": places.template}))
            self._progress("running it without a kill", 0, 0, None)
            processes = self._run_with(server, places, ())
            if processes[0].last("end") is not None:
                processes += self._run_with(server, places, ())
            baseline, report.findings = self._baseline(processes)
            report.state, report.result = baseline.state, baseline.result
            report.tally = baseline.tally
            reached = list(_points(_reached(processes[0])))
            report.reached = len(reached)
            if any(one.problem is Problem.UNRECOVERABLE for one in report.findings):
                report.printed = end_of(processes[0])[3]
                return report
            report.points = choose(reached, self.limit)
            self._kill_everywhere(server, places, baseline, report)
        except KeyboardInterrupt:
            report.interrupted = True
        except ProcessLost as lost:
            what = "the test could not go on"
            report.findings += (Finding(Problem.UNRECOVERABLE, what, "", str(lost)),)
        return report

    @property
    def _driver(self) -> str:
        if not self.stock:
            return "perdure"
        return f"LangGraph, invoke({'None' if self.resume == 'none' else 'input'})"

    def _baseline(self, processes: Sequence[ProcessResult]) -> tuple[Baseline, tuple[Finding, ...]]:
        """What the agent does without a kill, and what is wrong with that."""
        for process in processes:
            self._check(process)
        state, result, reason, _ = end_of(processes[0])
        _, other, *_ = end_of(processes[-1])
        findings = []
        if state not in ("done", "waiting"):
            what = f"the run is {state} without a kill"
            findings.append(Finding(Problem.UNRECOVERABLE, what, "", reason))
        varying = differences(result, other, self.ignore)
        findings += result_findings(Problem.VARIES, varying)
        findings += repeated(processes[0], self.harmless)
        ignore = frozenset(self.ignore) | {path for path, _ in varying}
        baseline = Baseline(state, result, most_of(processes), ignore, self.harmless)
        return baseline, tuple(findings)

    def _check(self, process: ProcessResult) -> None:
        if (wrong := process.last("wrong")) is not None:
            raise BadArgument(f"{self.place} cannot be tested. {wrong[0]}")

    def _kill_everywhere(
        self, server: ForkServer, places: Databases, baseline: Baseline, report: Report
    ) -> None:
        recoveries: dict[Point, list[Reached]] = {}

        def trial(kills: Kills) -> Trial:
            processes = self._run_with(server, places, kills)
            for _ in range(ATTEMPTS - 1):
                if not processes[0].killed:
                    processes = self._run_with(server, places, kills)
            if len(kills) == 1 and processes[0].killed:
                recoveries[kills[0]] = _reached(processes[-1])
            return judge(kills, processes, baseline)

        def try_all(kills: Sequence[Kills], planned: int) -> None:
            begun, order = len(report.trials), {one: n for n, one in enumerate(kills)}
            try:
                for done in as_completed([threads.submit(trial, one) for one in kills]):
                    report.trials.append(done.result())
                    self._progress("killing it", len(report.trials), planned, done.result())
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                server.stop()  # so that what is under way ends now
                raise
            finally:
                report.trials[begun:] = sorted(report.trials[begun:], key=lambda t: order[t.kills])

        jobs = self.jobs or max(1, min(8, os.cpu_count() or 1))
        singles = [(point,) for point in report.points]
        with ThreadPoolExecutor(jobs, "crashtest") as threads:
            try_all(singles, len(singles) * (1 if self.recovery == 0 else 2))
            pairs = list(self._pairs(report.points, recoveries))
            try_all(pairs, len(singles) + len(pairs))

    def _pairs(
        self, points: Sequence[Point], recoveries: dict[Point, list[Reached]]
    ) -> Iterator[tuple[Point, Point]]:
        """A second kill for each recovery, at the point with the fewest kills so far."""
        hits: Counter[str] = Counter()
        for number, first in enumerate(points):
            second = list(_points(recoveries.get(first, [])))
            for _ in range(min(self.recovery, len(second))):
                turned = [*second[number % len(second) :], *second[: number % len(second)]]
                point = min(turned, key=lambda one: hits[one.name])
                hits[point.name] += 1
                second.remove(point)
                yield first, point

    def _run_with(self, server: ForkServer, places: Databases, kills: Kills) -> list[ProcessResult]:
        """Run on a fresh database: one process for each kill, and one that finishes the run."""
        processes: list[ProcessResult] = []
        with places.fresh() as url:
            clock = self._begin
            for kill in (*kills, None):
                order = {**self._order, "role": "live", "url": url, "clock": clock}
                order["kill"] = None if kill is None else [*astuple(kill)]
                order["again"] = bool(processes)
                processes.append(server.run(order))
                [clock] = processes[-1].last("clock") or [clock]
                if not processes[-1].killed:
                    break
        return processes


def _reached(process: ProcessResult) -> list[Reached]:
    """The points that a process reached, in order."""
    [found] = process.last("points") or [[]]
    return list(found)


def _points(reached: Iterable[Reached]) -> Iterator[Point]:
    counts: Counter[str] = Counter()
    before = 0
    for name, phase, actions in reached:
        counts[name] += 1
        if counts[name] == 1 or not name.startswith(KEEPER):
            yield Point(name, counts[name], phase, actions if actions > before else 0)
            before = actions


def choose(points: Sequence[Point], limit: int | None) -> list[Point]:
    """All of them, or that many in the order of the run: first those right after something left the
    process, then others, evenly spread."""
    if limit is None or limit >= len(points):
        return list(points)
    after = [n for n, point in enumerate(points) if point.follows_action]
    others = [n for n, point in enumerate(points) if not point.follows_action]
    chosen = _spread(after, limit)
    chosen += _spread(others, limit - len(chosen))
    return [points[n] for n in sorted(chosen)]


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    """So many of them, evenly spread, with the first and the last."""
    if count >= len(numbers):
        return list(numbers)
    if count <= 1:
        return [numbers[len(numbers) // 2]][:count]
    return [numbers[n * (len(numbers) - 1) // (count - 1)] for n in range(count)]


def _json(name: str, value: Any) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise BadArgument(
            f"{name} has to be JSON, since it goes to other processes: {error}. Messages can be "
            '{"role": "user", "content": "..."}.'
        ) from error
    return value
