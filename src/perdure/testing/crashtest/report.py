"""What a crash test found: for a program, and in words for a terminal, a page and a failed test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from perdure.testing.crashtest.judge import Tally
from perdure.testing.crashtest.words import (
    Finding,
    Outcome,
    Point,
    Problem,
    Trial,
    finding_json,
)

_BAD = ("unrecoverable", "different", "lost", "duplicated", "models_repeated")


@dataclass(frozen=True)
class Group:
    """One kind of finding, and the trials it was found in."""

    finding: Finding
    trials: tuple[Trial, ...]

    @property
    def points(self) -> list[Point]:
        """Where killing once is enough to see it, or where the first of two kills was."""
        once = [trial.kills[0] for trial in self.trials if len(trial.kills) == 1]
        return once or list(dict.fromkeys(trial.kills[0] for trial in self.trials))


@dataclass
class Report:
    """A crash test that is over. Its `trials` are in the order of the points, first those with one
    kill, then those with a second one during recovery."""

    place: str
    driver: str
    database: str
    state: str = ""
    """How the run ends when nobody kills it."""
    result: Any = None
    usual: Tally = field(default_factory=Tally)
    """What happens when nobody kills it."""
    reached: int = 0
    """How many points that run came to."""
    points: list[Point] = field(default_factory=list)
    """Those that were killed at: all of them, unless there was a limit."""
    trials: list[Trial] = field(default_factory=list)
    findings: tuple[Finding, ...] = ()
    """What is wrong though nobody killed it."""
    printed: str = ""
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Every result is equal, and nothing was duplicated or lost. A held run is none of that."""
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
        """At how many points what was found. A point counts once for each kind."""
        return counts(self.first)

    def groups(self) -> list[Group]:
        """The findings, each once, the worst first."""
        found: dict[tuple[str, str, str], tuple[Finding, list[Trial]]] = {}
        for one in self.findings:
            found[one.problem, one.what, one.where] = (one, [])
        for trial in self.trials:
            for one in trial.findings:  # which are all different in one trial
                key = (one.problem, one.what, one.where)
                found.setdefault(key, (one, []))[1].append(trial)
        groups = [Group(one, tuple(trials)) for one, trials in found.values()]
        order = list(Problem)
        return sorted(groups, key=lambda group: order.index(group.finding.problem))

    def verdict(self) -> str:
        """One sentence."""
        if not self.points and self.findings:
            return f"It was not killed: {self.findings[0].what}."
        kills = f"{len(self.trials)} trials, killed at {len(self.points)} points"
        if len(self.points) < self.reached:
            kills += f" (of {self.reached}, evenly chosen)"
        if self.interrupted:
            kills = f"Interrupted after {kills}"
        if groups := self.groups():
            number = len(groups)
            found = {one: n for one, n in self.counts.items() if n and one in _BAD}
            at = ", ".join(f"{one.replace('_', ' ')} at {n}" for one, n in found.items())
            return f"{kills}: {number} finding{'s' * (number != 1)}{at and f' ({at} of them)'}."
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
        told = f" ({', '.join(notes)})" if notes else ""
        each = "whenever it ended" if tally[Outcome.HELD] else "every time"
        return f"{kills}: the same result {each}, nothing duplicated, nothing lost{told}."

    def _whose(self) -> str:
        """The effects that were called again: right only if their far sides honour the key."""
        names = sorted({n for t in self.trials for n, calls in t.effects.items() if calls.again})
        return f": right if the far side of {', '.join(names)} honours it" if names else ""

    def seen(self) -> str:
        """What was seen of it when nobody killed it: if that is nothing, nothing is tested."""
        calls = sum(calls.total() for calls in self.usual.effects.values())
        told = (
            (calls, "calls of effects"),
            (self.usual.actions.total(), "outward actions outside of them"),
            (self.usual.models.total(), "model calls outside of them"),
            (self.usual.outside.total(), "reports by outside()"),
        )
        seen = [f"{n} {what}" for n, what in told if n]
        return f"Seen when left alone: {', '.join(seen) or 'nothing that leaves the process'}."

    def check(self) -> None:
        """Raises `AssertionError`, with the findings as its message, unless all is well."""
        if not self.ok:
            raise AssertionError(f"\n{self}")

    def __str__(self) -> str:
        from perdure.testing.crashtest.terminal import text

        return text(self)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {
            "place": self.place,
            "driver": self.driver,
            "database": self.database,
            "ok": self.ok,
            "verdict": self.verdict(),
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 1),
            "clean": {
                "state": self.state,
                "result": self.result,
                "effects": {name: calls.total() for name, calls in self.usual.effects.items()},
                "actions": self.usual.actions.total(),
                "model_calls": self.usual.models.total(),
                "findings": [finding_json(one) for one in self.findings],
            },
            "reached": self.reached,
            "points": [{"name": point.name, "n": point.n} for point in self.points],
            "counts": self.counts,
            "counts_in_recovery": counts(self.second),
            "findings": [
                {
                    **finding_json(group.finding),
                    "trials": len(group.trials),
                    "points": [str(point) for point in group.points],
                }
                for group in self.groups()
            ],
            "trials": [trial.to_json() for trial in self.trials],
        }

    def to_html(self) -> str:
        """One page that needs nothing else."""
        from perdure.testing.crashtest.page import page

        return page(self)


def counts(trials: Iterable[Trial]) -> dict[str, int]:
    """In how many of these trials what was found."""
    found: Counter[str] = Counter()
    number = 0
    for trial in trials:
        number += 1
        problems = {one.problem for one in trial.findings}
        found["duplicated"] += Problem.DUPLICATED in problems
        found["lost"] += Problem.LOST in problems
        found["different"] += Problem.DIFFERENT in problems
        found["unrecoverable"] += Problem.UNRECOVERABLE in problems
        found["models_repeated"] += Problem.MODEL in problems
        found["held"] += trial.state == "held"
        found["again_with_key"] += any(calls.again for calls in trial.effects.values())
        found["not_reached"] += not trial.reached
    return {"points": number, **found}
