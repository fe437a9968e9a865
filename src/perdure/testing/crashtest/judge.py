"""The judge: what was told by all processes of a trial, beside a run that nobody killed.

An effect is judged by its key. What happened outside of any effect is judged by how often it
happened: more often than in a run that nobody killed is a duplicate.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

from perdure.testing.crashtest.lanes import Life
from perdure.testing.crashtest.lines import owner
from perdure.testing.crashtest.values import differences
from perdure.testing.crashtest.words import Calls, Finding, Point, Problem, Trial

UNKEYED = (
    "it died in the middle of a call, which was made again; the function never asks for "
    "perdure.key(), so the far side cannot tell. Give it the key, or verify=, or unknown='hold'"
)
MOST = 3
"""Differences of one value that are told."""


@dataclass
class Tally:
    """How often what happened, over all lives of a run."""

    effects: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Calls by the effect's name and key."""
    actions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Outward actions by where they happened and by audit event."""
    words: dict[tuple[str, str], str] = field(default_factory=dict)
    """What such an action is, in words."""
    models: Counter[str] = field(default_factory=Counter)
    """Model calls outside of effects, by where they happened."""
    outside: Counter[str] = field(default_factory=Counter)
    """What the agent itself told, outside of effects."""
    places: dict[str, str] = field(default_factory=dict)
    """Where it told it."""
    asked: set[str] = field(default_factory=set)
    """Keys that effects asked for, to give them to the far side."""
    thinking: set[str] = field(default_factory=set)
    """Keys of effects in which a model is called."""

    def tells(self, name: str) -> bool:
        """Whether an effect gives its key to the far side, or is a question to a model."""
        return any(key in self.asked or key in self.thinking for key in self.effects[name])

    def thinks(self, name: str) -> bool:
        """Whether an effect is a question to a model."""
        return any(key in self.thinking for key in self.effects[name])

    @classmethod
    def of(cls, lives: Iterable[Life]) -> Tally:
        tally = cls()
        for life in lives:
            for kind, *facts in life.facts:
                if note := getattr(tally, f"_{kind}", None):
                    note(*facts)
        return tally

    def _effect(self, name: str, key: str) -> None:
        self.effects[name][key] += 1

    def _asked(self, key: str) -> None:
        self.asked.add(key)

    def _action(self, event: str, what: str, place: str, effect: str | None) -> None:
        if effect is None:
            self.actions[_near(place), event] += 1
            self.words.setdefault((_near(place), event), what)

    def _model(self, name: str, place: str, effect: str | None) -> None:
        if effect is None:
            self.models[_near(place) or name] += 1
        else:
            self.thinking.add(effect)

    def _outside(self, what: str, place: str, effect: str | None) -> None:
        if effect is None:
            self.outside[what] += 1
            self.places.setdefault(what, _near(place))


def _near(place: str) -> str:
    """A place as a path from here, if it is below."""
    here = os.getcwd() + os.sep
    return place.removeprefix(here)


@dataclass(frozen=True)
class Clean:
    """What the agent does when nobody kills it."""

    state: str
    result: Any
    tally: Tally
    ignore: frozenset[str]
    harmless: tuple[str, ...]


def end_of(life: Life) -> tuple[str, Any, str, str]:
    """State, result, reason, and what was printed, of the last life of a run."""
    if (end := life.last("end")) is not None:
        state, result, reason, trace = end
        return state, result, reason, "\n".join(part for part in (life.printed, trace) if part)
    if (wrong := life.last("wrong")) is not None:
        return "stuck", None, wrong[0], life.printed
    if "Timeout (" in life.printed:
        return "stuck", None, f"it did not end in time{_hangs(life.printed)}", life.printed
    last = life.printed.splitlines()[-1:] or ["nothing"]
    return "stuck", None, f"its process ended with status {life.status}: {last[0]}", life.printed


def _hangs(printed: str) -> str:
    """Where, by the last words of a process: the innermost lines of the agent's code."""
    said = re.findall(r'File "(.+)", line (\d+) in (\w+)', printed.rpartition("Timeout (")[2])
    places = [
        f"{_near(file)}:{line} in {name}" for file, line, name in said if owner(file) == "agent"
    ]
    return f"; it was at {places[0]}" if places else ""


def judge(kills: tuple[Point, ...], lives: Sequence[Life], clean: Clean, seconds: float) -> Trial:
    """One trial beside the run that nobody killed."""
    state, result, reason, printed = end_of(lives[-1])
    tally = Tally.of(lives)
    ended = state == clean.state
    findings: list[Finding] = []
    equal: bool | None = None
    if ended:
        found = differences(clean.result, result, clean.ignore)
        equal = not found
        findings += told(Problem.DIFFERENT, found)
    elif state != "held":
        what = f"the run is {state}, not {clean.state}"
        findings.append(Finding(Problem.UNRECOVERABLE, what, "", reason))
    effects, more = _effects(tally, clean.tally, ended)
    findings += more
    findings += _actions(tally, clean)
    findings += _outside(tally, clean.tally, ended)
    models = tally.models - clean.tally.models
    findings += [
        Finding(Problem.MODEL, "a model is called again", place, f"{n} more")
        for place, n in models.items()
    ]
    return Trial(
        kills,
        state,
        tuple(one for one in findings if not _is_harmless(one, clean.harmless)),
        effects,
        sum(models.values()),
        equal,
        reason,
        printed,
        sum(life.killed for life in lives) == len(kills),
        seconds,
    )


def told(problem: Problem, found: Iterable[tuple[str, str]]) -> list[Finding]:
    """Differences of results: one finding for each value of the state, or for the output."""
    values: dict[str, list[str]] = {}
    for path, how in found:
        part, _, inner = path.partition(".")
        if not inner:
            inner = part
        values.setdefault(re.split(r"[.[]", inner)[0], []).append(f"{inner}: {how}")
    return [
        Finding(problem, f"{name!r} of the result", "", "; ".join(list(dict.fromkeys(hows))[:MOST]))
        for name, hows in values.items()
    ]


def _effects(tally: Tally, clean: Tally, ended: bool) -> tuple[dict[str, Calls], list[Finding]]:
    found: dict[str, Calls] = {}
    findings = []
    for name in [*clean.effects, *(name for name in tally.effects if name not in clean.effects)]:
        calls, usual = tally.effects.get(name, Counter()), clean.effects.get(name, Counter())
        keyed = "" not in calls and "" not in usual
        places, expected = (len(calls), len(usual)) if keyed else (calls.total(), usual.total())
        twice = max(0, places - expected)
        again = max(0, calls.total() - usual.total() - twice)
        lost = max(0, expected - places) if ended else 0
        if clean.thinks(name) or tally.thinks(name):
            again, twice = again + twice, 0  # a question is asked again, perhaps by another task
        if again and keyed and not (clean.tells(name) or tally.tells(name)):
            findings.append(Finding(Problem.DUPLICATED, f"effect {name}", "", UNKEYED))
            again, twice = 0, twice + again
            found[name] = Calls(max(0, places - twice), again, twice, lost)
            continue
        found[name] = Calls(max(0, places - twice - again), again, twice, lost)
        if twice:
            detail = f"{places} calls instead of {expected}"
            findings.append(Finding(Problem.DUPLICATED, f"effect {name}", "", detail))
        if lost:
            detail = f"{places} calls instead of {expected}"
            findings.append(Finding(Problem.LOST, f"effect {name}", "", detail))
    return found, findings


def _actions(tally: Tally, clean: Clean) -> list[Finding]:
    """One finding for each line, whatever number of audit events it causes."""
    more: dict[str, list[str]] = defaultdict(list)
    for (place, event), n in (tally.actions - clean.tally.actions).items():
        more[place].append(f"{tally.words[place, event]} ({n} more)")
    return [
        Finding(Problem.DUPLICATED, "an outward action without @effect", place, ", ".join(what))
        for place, what in more.items()
    ]


def _outside(tally: Tally, clean: Tally, ended: bool) -> list[Finding]:
    places = {**clean.places, **tally.places}
    found = [
        Finding(Problem.DUPLICATED, what, places[what], f"{n} more")
        for what, n in (tally.outside - clean.outside).items()
    ]
    if ended:
        found += [
            Finding(Problem.LOST, what, places[what], f"{n} fewer")
            for what, n in (clean.outside - tally.outside).items()
        ]
    return found


def _is_harmless(finding: Finding, patterns: Iterable[str]) -> bool:
    where = finding.where or finding.what
    return any(
        where == one or where.startswith(f"{one}:") or fnmatch(where, one) for one in patterns
    )


def usual(lives: Sequence[Life]) -> Tally:
    """What may happen when nobody kills: the most that happened in any of these lives."""
    first, *others = [Tally.of([life]) for life in lives]
    for other in others:
        first.actions |= other.actions
        first.words |= other.words
        first.models |= other.models
        first.outside |= other.outside
        first.asked |= other.asked
        first.thinking |= other.thinking
        for name, calls in other.effects.items():
            if calls.total() > first.effects[name].total():
                first.effects[name] = calls
    return first
