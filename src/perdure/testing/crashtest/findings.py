"""What a crash test finds: points, findings, trials."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

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
    action: int = field(default=0, compare=False)
    """Right after which outward action outside of effects it is, from 1; 0 elsewhere. A process is
    killed there after that action, whatever the name: how many commits come before it, and which
    thread makes them, is a question of timing."""

    def __str__(self) -> str:
        return self.name if self.n == 1 else f"{self.name} (time {self.n})"

    @property
    def follows_action(self) -> bool:
        """Whether something left the process right before it."""
        return self.action > 0 or (self.name.startswith("effect ") and self.name.endswith(".after"))

    @property
    def words(self) -> str:
        """Its phase, or its name if that is not known."""
        return self.phase or str(self)


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
class Trial:
    """One run of the agent, killed at one point, or at a second one while it recovered."""

    kills: tuple[Point, ...]
    """The points at which it was killed."""
    state: str
    """How the run ended: `done`, `held`, `failed`, `waiting`, or `stuck`."""
    findings: tuple[Finding, ...] = ()
    """What is wrong."""
    called_again: tuple[str, ...] = ()
    """Effects that were called again with the key of the first call, so the far side can detect
    it."""
    reason: str = ""
    """Why it is held, or what it failed with."""
    printed: str = ""
    """What the agent printed."""
    reached: bool = True
    """Whether a process reached the point."""

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
