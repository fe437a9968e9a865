"""What a crash test finds, and its report: the results, and what follows from them, as text."""

from __future__ import annotations

import linecache
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from perdure.text import printable, printable_lines
from perdure.views.formatting import count

# Prefix of points in the lease keeper's thread. They come by the clock: only the first counts.
KEEPER = "keeper: "
PRINTED_LINES = 12  # lines of an agent's output that are shown with a finding


@dataclass(frozen=True, order=True)
class Point:
    """The n-th time that a process reaches a named place.

    Attributes:
        name: The statement, commit, saver call or effect, and the side: `insert_wait.after`.
        n: Which time it is, from 1.
        phase: Where the run is then, in words: `in node mail, after effect send`.
        action: Right after which outward action outside of effects it is, from 1; 0 elsewhere. A
            process is killed there after that action, whatever the name: how many commits come
            before it, and which thread makes them, is a question of timing.
    """

    name: str
    n: int = 1
    phase: str = field(default="", compare=False)
    action: int = field(default=0, compare=False)

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
    """Kinds of findings.

    Attributes:
        UNRECOVERABLE: The run did not end as it does without a kill.
        DIFFERENT: The run ended with a different result.
        LOST: The run ended, and something did not happen.
        DUPLICATED: Something happened more often than without a kill, and the far side has no key
            to detect it.
        MODEL: A model was called again for a question it had answered, or was answering.
        VARIES: Two runs without a kill differ, so a crash's result cannot be compared.
    """

    UNRECOVERABLE = "unrecoverable"
    DIFFERENT = "different"
    LOST = "lost"
    DUPLICATED = "duplicated"
    MODEL = "model call repeated"
    VARIES = "varies"


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
    """Something wrong: what, how, and the line of the agent's code if there is one.

    Attributes:
        problem: The kind of problem.
        what: What happened.
        where: The line of the agent's code, as `FILE:LINE`; empty if it is not known.
        detail: More about it.
    """

    problem: Problem
    what: str
    where: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Trial:
    """One run of the agent, killed at one point, or at a second one while it recovered.

    Attributes:
        kills: The points at which it was killed.
        state: How the run ended: `done`, `held`, `failed`, `waiting`, or `stuck`.
        findings: What is wrong.
        called_again: Effects that were called again with the key of the first call, so the far side
            can detect it.
        reason: Why it is held, or what it failed with.
        printed: What the agent printed.
        reached: Whether a process reached the point.
    """

    kills: tuple[Point, ...]
    state: str
    findings: tuple[Finding, ...] = ()
    called_again: tuple[str, ...] = ()
    reason: str = ""
    printed: str = ""
    reached: bool = True

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


@dataclass
class Tally:
    """What happened and how often, over all processes of a run."""

    # Calls of effects by name and key; the keys that they asked for, to pass them to the far side;
    # the keys of those in which a model is called.
    effects: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    keys_used: set[str] = field(default_factory=set)
    model_keys: set[str] = field(default_factory=set)
    # Outside of effects: outward actions by place and audit event, and their descriptions; model
    # calls by place; what the agent reported with `outside()`, and where.
    actions: Counter[tuple[str, str]] = field(default_factory=Counter)
    descriptions: dict[tuple[str, str], str] = field(default_factory=dict)
    models: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)
    places: dict[str, str] = field(default_factory=dict)

    def note(self, kind: str, *facts: Any) -> None:
        """Count a message of a process."""
        match kind, *facts:
            case "effect", name, key:
                self.effects[name][key] += 1
            case "asked", key:
                self.keys_used.add(key)
            case "model", name, place, None:
                self.models[near(place) or name] += 1
            case "model", name, place, effect:
                self.model_keys.add(effect)
            case "action", event, what, place, None:
                self.actions[near(place), event] += 1
                self.descriptions.setdefault((near(place), event), what)
            case "outside", what, place, None:
                self.outside[what] += 1
                self.places.setdefault(what, near(place))


def near(place: str) -> str:
    """A place as a path from here, if it is below."""
    return place.removeprefix(os.getcwd() + os.sep)


@dataclass(frozen=True)
class FindingGroup:
    """One kind of finding, and its trials.

    Attributes:
        finding: What is wrong.
        trials: The trials that show it.
    """

    finding: Finding
    trials: tuple[Trial, ...]

    @property
    def points(self) -> list[Point]:
        """Where one kill is enough to see it, or where the first of two kills was."""
        once = [trial.kills[0] for trial in self.trials if len(trial.kills) == 1]
        return once or list(dict.fromkeys(trial.kills[0] for trial in self.trials))


@dataclass
class Report:
    """The results of a crash test. `str(report)` shows them as text.

    Attributes:
        place: The graph, as `module:name`.
        driver: What drove the graph: perdure, or LangGraph.
        database: The database of the trials.
        state: How the run ends without a kill.
        result: The result without a kill.
        tally: What happens without a kill.
        reached: How many points that run reached.
        points: The points of the kills: all of them, unless there was a limit.
        trials: Every trial, in the order of the points; first those with one kill, then those with
            a second kill during recovery.
        findings: What is wrong without a kill.
        printed: What the agent printed, if the run without a kill did not end.
        interrupted: Whether the test was ended early.
        seconds: How long the test took.
    """

    place: str
    driver: str
    database: str
    state: str = ""
    result: Any = None
    tally: Tally = field(default_factory=Tally)
    reached: int = 0
    points: list[Point] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    findings: tuple[Finding, ...] = ()
    printed: str = ""
    interrupted: bool = False
    seconds: float = 0.0

    def check(self) -> None:
        """Fail a test if something was found.

        Raises:
            AssertionError: There are findings; they are the message.
        """
        if not self.ok:
            raise AssertionError(f"\n{self}")

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
        """How many of the points have each kind of finding, by one kill there."""
        return counts(self.first)

    def groups(self) -> list[FindingGroup]:
        """Return each finding once, with its trials, the worst first."""
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
        """Return one sentence."""
        if not self.points and self.findings:
            return f"It was not killed: {self.findings[0].what}."
        kills = f"{count(len(self.trials), 'trial')}, killed at {count(len(self.points), 'point')}"
        if len(self.points) < self.reached:
            kills += f" (of {self.reached}, those right after something left the process first)"
        if self.interrupted:
            kills = f"Interrupted after {kills}"
        if groups := self.groups():
            return f"{kills}: {count(len(groups), 'finding')}."
        tally = Counter(trial.outcome for trial in self.trials)
        names = sorted({name for trial in self.trials for name in trial.called_again})
        honours = f": right if the far side of {', '.join(names)} honours it" if names else ""
        notes = [
            f"{tally[outcome]} {words}"
            for outcome, words in (
                (Outcome.AGAIN, f"called again with the same key{honours}"),
                (Outcome.HELD, "held for a person"),
                (Outcome.UNREACHED, "not reached"),
            )
            if tally[outcome]
        ]
        note = f" ({', '.join(notes)})" if notes else ""
        each = "whenever it ended" if tally[Outcome.HELD] else "every time"
        return f"{kills}: the same result {each}, nothing duplicated, nothing lost{note}."

    def seen(self) -> str:
        """Return what was observed without a kill: if that is nothing, nothing is tested."""
        numbers = (
            (sum(calls.total() for calls in self.tally.effects.values()), "call", "of effects"),
            (self.tally.actions.total(), "outward action", "outside of effects"),
            (self.tally.models.total(), "model call", "outside of effects"),
            (self.tally.outside.total(), "report", "by outside()"),
        )
        seen = [f"{count(n, what)} {where}" for n, what, where in numbers if n]
        return f"Seen without a kill: {', '.join(seen) or 'nothing that leaves the process'}."

    def __str__(self) -> str:
        """The phases, the findings and the verdict as text."""
        where = f"driven by {self.driver} on {self.database}, {self.seconds:.0f} s"
        lines = [f"{self.place} {where}", *_table(self.trials)]
        for number, group in enumerate(self.groups(), 1):
            printed = group.trials[0].printed if group.trials else self.printed
            lines += ["", *_finding_lines(number, group, printed)]
        return "\n".join([*lines, self.verdict(), self.seen()])


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
        "again_with_key": sum(bool(trial.called_again) for trial in trials),
        "not_reached": sum(not trial.reached for trial in trials),
    }


def _table(trials: Sequence[Trial]) -> Iterator[str]:
    """A line for each phase, in the order they are first reached."""
    phases: dict[str, list[Trial]] = {}
    for trial in trials:
        phases.setdefault(trial.kills[0].words, []).append(trial)
    width = max(map(len, ("killed", *phases)))
    if phases:
        yield f"{'killed':{width}}  points  kills  outcome"
    for phase, some in phases.items():
        tally = Counter(trial.outcome for trial in some)
        worst_first = sorted(tally, key=SEVERITY.__getitem__, reverse=True)
        outcomes = ", ".join(f"{tally[one]} {one}" for one in worst_first)
        points = len({trial.kills[0] for trial in some})
        yield f"{phase:{width}}  {points:6}  {len(some):5}  {outcomes}"


def _finding_lines(number: int, group: FindingGroup, printed: str) -> Iterator[str]:
    one = group.finding
    where = f"  {one.where}" if one.where else ""
    yield f"{number}. {one.problem}: {printable(one.what)}{where}"
    file, _, line = one.where.rpartition(":")
    if line.isdigit() and (code := linecache.getline(file, int(line)).strip()):
        yield f"     {code}"
    if one.detail:
        yield f"   {printable_lines(one.detail)}"
    if group.trials:
        phases = list(dict.fromkeys(point.words for point in group.points))
        more = f"; and {len(phases) - 3} more" if len(phases) > 3 else ""
        yield f"   in {count(len(group.trials), 'trial')}: killed {'; '.join(phases[:3])}{more}"
    if lines := printed.partition("Timeout (")[0].splitlines()[-PRINTED_LINES:]:
        yield "   the agent printed:"
        yield from (f"   | {printable(text)}" for text in lines)
