"""The words of a crash test as values: a point, a finding, a trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

KEEPER = "keeper: "
"""Points of the thread that keeps leases: they come by the clock, so only the first is one."""


@dataclass(frozen=True, order=True)
class Point:
    """The n-th time a process comes to a named place."""

    name: str
    n: int = 1

    def __str__(self) -> str:
        return self.name if self.n == 1 else f"{self.name} (time {self.n})"

    @property
    def place(self) -> str:
        """The statement, commit, saver call or effect it is before or after."""
        return self.name.rpartition(".")[0] or self.name


class Problem(StrEnum):
    """What can be wrong."""

    UNRECOVERABLE = "unrecoverable"
    """The run did not come to the end it comes to when nobody kills it."""
    DIFFERENT = "different"
    """It came to its end with another result."""
    LOST = "lost"
    """It came to its end, and something did not happen."""
    DUPLICATED = "duplicated"
    """Something happened more often than without a crash, and no key tells the far side so."""
    MODEL = "model call repeated"
    """A model was called again for what it had answered, or was answering."""
    VARIES = "varies"
    """Two runs that nobody killed differ: what a crash does to it cannot be told."""


class Outcome(StrEnum):
    """What a trial, or a point, comes to: the worst of what was found."""

    OK = "ok"
    UNREACHED = "not reached"
    AGAIN = "again with its key"
    HELD = "held"
    MODEL = Problem.MODEL.value
    DUPLICATED = Problem.DUPLICATED.value
    LOST = Problem.LOST.value
    DIFFERENT = Problem.DIFFERENT.value
    UNRECOVERABLE = Problem.UNRECOVERABLE.value


SEVERITY = {outcome: n for n, outcome in enumerate(Outcome)}


@dataclass(frozen=True)
class Finding:
    """Something wrong: what, how, and the line of the agent's code if there is one."""

    problem: Problem
    what: str
    where: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Calls:
    """What became of the calls of one effect in a trial."""

    once: int = 0
    again: int = 0
    """Called again with the key of the first call: the far side can tell."""
    twice: int = 0
    """Called more often than without a crash, and no key says so."""
    lost: int = 0


@dataclass(frozen=True)
class Trial:
    """One run of the agent, killed at one point, or at a second one while it recovered."""

    kills: tuple[Point, ...]
    state: str
    """How the run ended: `done`, `held`, `failed`, `waiting`, or `stuck`."""
    findings: tuple[Finding, ...] = ()
    effects: Mapping[str, Calls] = field(default_factory=dict)
    models: int = 0
    """Model calls beyond those of a run that nobody killed."""
    equal: bool | None = None
    """Whether the result is the one of a run that nobody killed; None when there is none."""
    reason: str = ""
    """Why it is held, or what it failed with."""
    printed: str = ""
    reached: bool = True
    seconds: float = 0.0

    @property
    def outcome(self) -> Outcome:
        found = [Outcome(one.problem.value) for one in self.findings]
        if self.state == "held":
            found.append(Outcome.HELD)
        if any(calls.again for calls in self.effects.values()):
            found.append(Outcome.AGAIN)
        if not self.reached:
            found.append(Outcome.UNREACHED)
        return max(found, key=SEVERITY.__getitem__, default=Outcome.OK)

    def to_json(self) -> dict[str, Any]:
        return {
            "kills": [{"name": point.name, "n": point.n} for point in self.kills],
            "outcome": self.outcome.value,
            "state": self.state,
            "equal": self.equal,
            "reason": self.reason,
            "reached": self.reached,
            "effects": {name: vars(calls) for name, calls in self.effects.items()},
            "models_repeated": self.models,
            "findings": [finding_json(one) for one in self.findings],
            "printed": self.printed if self.findings else "",
            "seconds": round(self.seconds, 3),
        }


def finding_json(one: Finding) -> dict[str, str]:
    return {
        "problem": one.problem.value,
        "what": one.what,
        "where": one.where,
        "detail": one.detail,
    }
