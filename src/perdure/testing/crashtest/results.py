"""The results of a crash test, and what follows from them: findings, counts, a verdict."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from perdure.testing.crashtest.judge import Tally
from perdure.testing.crashtest.model import Finding, Outcome, Point, Problem, Trial
from perdure.views.formatting import count

_BAD = ("unrecoverable", "different", "lost", "duplicated", "models_repeated")


@dataclass(frozen=True)
class FindingGroup:
    """One kind of finding, and its trials."""

    finding: Finding
    """What is wrong."""
    trials: tuple[Trial, ...]
    """The trials that show it."""

    @property
    def points(self) -> list[Point]:
        """Where one kill is enough to see it, or where the first of two kills was."""
        once = [trial.kills[0] for trial in self.trials if len(trial.kills) == 1]
        return once or list(dict.fromkeys(trial.kills[0] for trial in self.trials))


@dataclass
class Results:
    """The fields of a `Report`."""

    place: str
    """The graph, as `module:name`."""
    driver: str
    """What drove the graph: perdure, or LangGraph."""
    database: str
    """The database of the trials."""
    state: str = ""
    """How the run ends without a kill."""
    result: Any = None
    """The result without a kill."""
    tally: Tally = field(default_factory=Tally)
    """What happens without a kill."""
    reached: int = 0
    """How many points that run reached."""
    points: list[Point] = field(default_factory=list)
    """The points of the kills: all of them, unless there was a limit."""
    trials: list[Trial] = field(default_factory=list)
    """Every trial, in the order of the points; first those with one kill, then those with a second
    kill during recovery."""
    findings: tuple[Finding, ...] = ()
    """What is wrong without a kill."""
    printed: str = ""
    """What the agent printed, if the run without a kill did not end."""
    interrupted: bool = False
    """Whether the test was ended early."""
    seconds: float = 0.0
    """How long the test took."""

    @property
    def ok(self) -> bool:
        """Whether every result is equal, and nothing was duplicated or lost. A held run is fine."""
        return not self.interrupted and not self.groups()

    @property
    def first(self) -> list[Trial]:
        """The trials with one kill."""
        return [trial for trial in self.trials if len(trial.kills) == 1]

    @property
    def second(self) -> list[Trial]:
        """The trials that were killed again while they recovered."""
        return [trial for trial in self.trials if len(trial.kills) > 1]

    @property
    def counts(self) -> dict[str, int]:
        """How many points have each kind of finding. A point counts once for each kind."""
        return counts(self.first)

    def groups(self) -> list[FindingGroup]:
        """The findings, each once, the worst first."""
        found: dict[tuple[str, str, str], tuple[Finding, list[Trial]]] = {}
        for one in self.findings:
            found[one.problem, one.what, one.where] = (one, [])
        for trial in self.trials:
            for one in trial.findings:  # which are all different in one trial
                key = (one.problem, one.what, one.where)
                found.setdefault(key, (one, []))[1].append(trial)
        groups = [FindingGroup(one, tuple(trials)) for one, trials in found.values()]
        order = list(Problem)
        return sorted(groups, key=lambda group: order.index(group.finding.problem))

    def verdict(self) -> str:
        """One sentence."""
        if not self.points and self.findings:
            return f"It was not killed: {self.findings[0].what}."
        trials, points = len(self.trials), len(self.points)
        kills = f"{count(trials, 'trial')}, killed at {count(points, 'point')}"
        if len(self.points) < self.reached:
            kills += f" (of {self.reached}, those around what leaves the process first)"
        if self.interrupted:
            kills = f"Interrupted after {kills}"
        if groups := self.groups():
            found = {one: n for one, n in self.counts.items() if n and one in _BAD}
            at = ", ".join(f"{one.replace('_', ' ')} at {n}" for one, n in found.items())
            return f"{kills}: {count(len(groups), 'finding')}{at and f' ({at} of them)'}."
        tally = Counter(trial.outcome for trial in self.trials)
        notes = [
            f"{tally[outcome]} {words}"
            for outcome, words in (
                (Outcome.AGAIN, f"called again with the same key{self._whose()}"),
                (Outcome.HELD, "held for a person"),
                (Outcome.UNREACHED, "not reached"),
            )
            if tally[outcome]
        ]
        note = f" ({', '.join(notes)})" if notes else ""
        each = "whenever it ended" if tally[Outcome.HELD] else "every time"
        return f"{kills}: the same result {each}, nothing duplicated, nothing lost{note}."

    def _whose(self) -> str:
        """The effects called again: right only if their far sides honour the key."""
        names = sorted({n for t in self.trials for n, calls in t.effects.items() if calls.again})
        return f": right if the far side of {', '.join(names)} honours it" if names else ""

    def seen(self) -> str:
        """What was observed without a kill: if that is nothing, nothing is tested."""
        calls = sum(calls.total() for calls in self.tally.effects.values())
        counted = (
            (calls, "call", "of effects"),
            (self.tally.actions.total(), "outward action", "outside of effects"),
            (self.tally.models.total(), "model call", "outside of effects"),
            (self.tally.outside.total(), "report", "by outside()"),
        )
        seen = [f"{count(n, what)} {where}" for n, what, where in counted if n]
        return f"Seen when left alone: {', '.join(seen) or 'nothing that leaves the process'}."


def counts(trials: Iterable[Trial]) -> dict[str, int]:
    """How many of these trials have each kind of finding."""
    trials = list(trials)
    found = Counter(problem for t in trials for problem in {one.problem for one in t.findings})
    return {
        "points": len(trials),
        "duplicated": found[Problem.DUPLICATED],
        "lost": found[Problem.LOST],
        "different": found[Problem.DIFFERENT],
        "unrecoverable": found[Problem.UNRECOVERABLE],
        "models_repeated": found[Problem.MODEL],
        "held": sum(trial.state == "held" for trial in trials),
        "again_with_key": sum(trial.called_again for trial in trials),
        "not_reached": sum(not trial.reached for trial in trials),
    }


def source_line(where: str) -> str:
    """The line of code that `file:line` names."""
    file, _, number = where.rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdigit() else ""
