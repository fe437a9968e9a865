"""The values of a crash test: points, findings, trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

KEEPER = "keeper: "
"""Prefix of points in the lease keeper's thread. They come by the clock: only the first counts."""


@dataclass(frozen=True, order=True)
class Point:
    """The n-th time that a process reaches a named place."""

    name: str
    """The statement, commit, saver call or effect, and the side: `insert_wait.after`."""
    n: int = 1
    """Which time it is, from 1."""
    phase: str = field(default="", compare=False)
    """Where the run is then, in words: `in node mail, after effect send`."""
    near: int = field(default=0, compare=False)
    """How near to something that leaves the process: 2 right after it, 1 around it, 0 elsewhere."""
    action: int = field(default=0, compare=False)
    """Right after which outward action outside of effects it is, from 1; 0 elsewhere. A process is
    killed there after that action, whatever the name: how many commits come before it, and which
    thread makes them, is a question of timing."""

    def __str__(self) -> str:
        return self.name if self.n == 1 else f"{self.name} (time {self.n})"

    @property
    def place(self) -> str:
        """The statement, commit, saver call or effect it is before or after."""
        return self.name.rpartition(".")[0] or self.name

    @property
    def words(self) -> str:
        """Its phase, or its name if that is not known."""
        return self.phase or str(self)


def follows_action(name: str, near: int) -> bool:
    """Whether a point is the first after an outward action outside of effects."""
    return near == 2 and not name.startswith("effect ")


class Problem(StrEnum):
    """Kinds of findings."""

    UNRECOVERABLE = "unrecoverable"
    """The run did not end as it does without a kill."""
    DIFFERENT = "different"
    """The run ended with a different result."""
    LOST = "lost"
    """The run ended, and something did not happen."""
    DUPLICATED = "duplicated"
    """Something happened more often than without a kill, and the far side has no key to detect
    it."""
    MODEL = "model call repeated"
    """A model was called again for a question it had answered, or was answering."""
    VARIES = "varies"
    """Two runs without a kill differ, so a crash's result cannot be compared."""


class Outcome(StrEnum):
    """The verdict on a trial or a point: its worst finding."""

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
    """The kind of problem."""
    what: str
    """What happened."""
    where: str = ""
    """The line of the agent's code, as `FILE:LINE`; empty if it is not known."""
    detail: str = ""
    """More about it."""


@dataclass(frozen=True)
class Calls:
    """Counts of the calls of one effect in a trial."""

    once: int = 0
    """Calls made exactly as often as without a kill."""
    again: int = 0
    """Called again with the key of the first call, so the far side can detect it."""
    twice: int = 0
    """Called more often than without a kill, without a key."""
    lost: int = 0
    """Calls that are missing."""


@dataclass(frozen=True)
class Trial:
    """One run of the agent, killed at one point, or at a second one while it recovered."""

    kills: tuple[Point, ...]
    """The points at which it was killed."""
    state: str
    """How the run ended: `done`, `held`, `failed`, `waiting`, or `stuck`."""
    findings: tuple[Finding, ...] = ()
    """What is wrong."""
    effects: Mapping[str, Calls] = field(default_factory=dict)
    """The calls of each effect, by its name."""
    models: int = 0
    """Model calls beyond those of the baseline."""
    equal: bool | None = None
    """Whether the result equals that of the baseline; None without a result."""
    reason: str = ""
    """Why it is held, or what it failed with."""
    printed: str = ""
    """What the agent printed."""
    reached: bool = True
    """Whether a process reached the point."""
    seconds: float = 0.0
    """How long the trial took."""

    @property
    def called_again(self) -> bool:
        """Whether an effect was called again with its key."""
        return any(calls.again for calls in self.effects.values())

    @property
    def outcome(self) -> Outcome:
        """The worst finding of the trial, or `ok`."""
        found = [Outcome(one.problem.value) for one in self.findings]
        if self.state == "held":
            found.append(Outcome.HELD)
        if self.called_again:
            found.append(Outcome.AGAIN)
        if not self.reached:
            found.append(Outcome.UNREACHED)
        return max(found, key=SEVERITY.__getitem__, default=Outcome.OK)

    def to_json(self) -> dict[str, Any]:
        """Return the trial as JSON data."""
        found = {"outcome": self.outcome, **asdict(self)}
        found["models_repeated"] = found.pop("models")
        found["printed"] = self.printed if self.findings else ""
        found["seconds"] = round(self.seconds, 3)
        return found
