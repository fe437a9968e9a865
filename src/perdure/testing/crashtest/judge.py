"""The judge: compares what all processes of a trial reported with the baseline run.

The baseline is a run without a kill. An effect is judged by its key. An action outside of any
effect is judged by its count: more often than in the baseline is a duplicate.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

from perdure.testing.crashtest.findings import Finding, Point, Problem, Trial
from perdure.testing.crashtest.processes import ProcessResult
from perdure.testing.crashtest.values import differences
from perdure.text import is_user_code

UNKEYED = (
    "it died in the middle of a call, which was made again; the function never asks for "
    "perdure.key(), so the far side cannot tell. Give it the key, or verify=, or unknown='hold'"
)
UNRECORDED = "an outward action without @effect"
MOST = 3
"""Differences of one value that a finding names."""


@dataclass
class Tally:
    """What happened and how often, over all processes of a run."""

    effects: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Calls by the effect's name and key."""
    actions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Outward actions by where they happened and by audit event."""
    descriptions: dict[tuple[str, str], str] = field(default_factory=dict)
    """Descriptions of these actions."""
    models: Counter[str] = field(default_factory=Counter)
    """Model calls outside of effects, by where they happened."""
    outside: Counter[str] = field(default_factory=Counter)
    """What the agent itself reported with `outside()`, outside of effects."""
    places: dict[str, str] = field(default_factory=dict)
    """Where it reported it."""
    keys_used: set[str] = field(default_factory=set)
    """Keys that effects asked for, to pass them to the far side."""
    model_keys: set[str] = field(default_factory=set)
    """Keys of effects in which a model is called."""

    def passes_key(self, name: str) -> bool:
        """Whether an effect passes its key to the far side."""
        return not self.keys_used.isdisjoint(self.effects[name])

    def calls_model(self, name: str) -> bool:
        """Whether an effect is a model call."""
        return not self.model_keys.isdisjoint(self.effects[name])

    @classmethod
    def of(cls, processes: Iterable[ProcessResult]) -> Tally:
        tally = cls()
        for process in processes:
            for kind, *facts in process.facts:
                if note := getattr(tally, f"_{kind}", None):
                    note(*facts)
        return tally

    def _effect(self, name: str, key: str) -> None:
        self.effects[name][key] += 1

    def _asked(self, key: str) -> None:
        self.keys_used.add(key)

    def _action(self, event: str, what: str, place: str, effect: str | None) -> None:
        if effect is None:
            self.actions[_near(place), event] += 1
            self.descriptions.setdefault((_near(place), event), what)

    def _model(self, name: str, place: str, effect: str | None) -> None:
        if effect is None:
            self.models[_near(place) or name] += 1
        else:
            self.model_keys.add(effect)

    def _outside(self, what: str, place: str, effect: str | None) -> None:
        if effect is None:
            self.outside[what] += 1
            self.places.setdefault(what, _near(place))


def _near(place: str) -> str:
    """A place as a path from here, if it is below."""
    return place.removeprefix(os.getcwd() + os.sep)


@dataclass(frozen=True)
class Baseline:
    """What the agent does without a kill."""

    state: str
    result: Any
    tally: Tally
    ignore: frozenset[str]
    harmless: tuple[str, ...]


def end_of(process: ProcessResult) -> tuple[str, Any, str, str]:
    """State, result, reason, and what was printed, of the last process of a run."""
    if (end := process.last("end")) is not None:
        state, result, reason, trace = end
        return state, result, reason, "\n".join(part for part in (process.printed, trace) if part)
    if (wrong := process.last("wrong")) is not None:
        return "stuck", None, wrong[0], process.printed
    if "Timeout (" in process.printed:
        return "stuck", None, f"it did not end in time{_hangs(process.printed)}", process.printed
    [last] = process.printed.splitlines()[-1:] or ["nothing"]
    return "stuck", None, f"its process ended: {last}", process.printed


def _hangs(printed: str) -> str:
    """The innermost line of the agent's code in the traceback of a process that hangs."""
    said = re.findall(r'File "(.+)", line (\d+) in (\w+)', printed.rpartition("Timeout (")[2])
    places = [f"{_near(file)}:{line} in {name}" for file, line, name in said if is_user_code(file)]
    return f"; it was at {places[0]}" if places else ""


def judge(
    kills: tuple[Point, ...], processes: Sequence[ProcessResult], baseline: Baseline
) -> Trial:
    """Compare one trial with the baseline."""
    state, result, reason, printed = end_of(processes[-1])
    tally = Tally.of(processes)
    ended = state == baseline.state
    findings: list[Finding] = []
    if ended:
        found = differences(baseline.result, result, baseline.ignore)
        findings += result_findings(Problem.DIFFERENT, found)
    elif state != "held":
        what = f"the run is {state}, not {baseline.state}"
        findings.append(Finding(Problem.UNRECOVERABLE, what, "", reason))
    called_again, more = _effects(tally, baseline.tally, ended)
    findings += more
    findings += _actions(tally, baseline)
    findings += _outside(tally, baseline.tally, ended)
    findings += [
        Finding(Problem.MODEL, "a model is called again", place, f"{n} more")
        for place, n in (tally.models - baseline.tally.models).items()
    ]
    return Trial(
        kills,
        state,
        tuple(one for one in findings if not _is_harmless(one, baseline.harmless)),
        tuple(called_again),
        reason,
        printed,
        sum(process.killed for process in processes) == len(kills),
    )


def repeated(process: ProcessResult, harmless: Iterable[str]) -> list[Finding]:
    """What a node repeated without any kill, because it ran again after a wait."""
    found: dict[tuple[str, str], Finding] = {}
    for kind, what, place, node in (fact[1:] for fact in process.facts if fact[0] == "repeated"):
        problem = Problem.MODEL if kind == "model" else Problem.DUPLICATED
        name = {"model": "a model is called again", "action": UNRECORDED}.get(kind, what)
        action = f" ({what})" if kind == "action" else ""
        detail = (
            f"already without a kill: {node} runs again from its first line after it waited, and "
            f"does this again{action}. Make it an effect, or do it in a node after the wait"
        )
        finding = Finding(problem, name, _near(place), detail)
        found.setdefault((name, place), finding)
    return [one for one in found.values() if not _is_harmless(one, harmless)]


def result_findings(problem: Problem, found: Iterable[tuple[str, str]]) -> list[Finding]:
    """Differences of results: one finding for each value of the state, or for the output."""
    values: dict[str, list[str]] = {}
    for path, how in found:
        part, _, inner = path.partition(".")
        inner = inner or part
        values.setdefault(re.split(r"[.[]", inner)[0], []).append(f"{inner}: {how}")
    return [
        Finding(problem, f"{name!r} of the result", "", "; ".join(list(dict.fromkeys(hows))[:MOST]))
        for name, hows in values.items()
    ]


def _effects(tally: Tally, baseline: Tally, ended: bool) -> tuple[list[str], list[Finding]]:
    """The effects that were called again with their key, and what is wrong with the others."""
    called_again: list[str] = []
    findings = []
    for name in baseline.effects | tally.effects:
        calls, usual = tally.effects.get(name, Counter()), baseline.effects.get(name, Counter())
        keyed = "" not in calls and "" not in usual
        places, expected = (len(calls), len(usual)) if keyed else (calls.total(), usual.total())
        twice = max(0, places - expected)
        again = max(0, calls.total() - usual.total() - twice)
        if model := baseline.calls_model(name) or tally.calls_model(name):
            again, twice = again + twice, 0  # a repeated model call, perhaps by another task
        if again and keyed and not (model or baseline.passes_key(name) or tally.passes_key(name)):
            findings.append(Finding(Problem.DUPLICATED, f"effect {name}", "", UNKEYED))
            continue
        called_again += [name] if again else []
        detail = f"{places} calls instead of {expected}"
        if twice:
            findings.append(Finding(Problem.DUPLICATED, f"effect {name}", "", detail))
        if ended and places < expected:
            findings.append(Finding(Problem.LOST, f"effect {name}", "", detail))
    return called_again, findings


def _actions(tally: Tally, baseline: Baseline) -> list[Finding]:
    """One finding for each line of code, for all its audit events together."""
    more: dict[str, list[str]] = defaultdict(list)
    for (place, event), n in (tally.actions - baseline.tally.actions).items():
        more[place].append(f"{tally.descriptions[place, event]} ({n} more)")
    return [
        Finding(Problem.DUPLICATED, UNRECORDED, place, ", ".join(what))
        for place, what in more.items()
    ]


def _outside(tally: Tally, baseline: Tally, ended: bool) -> list[Finding]:
    places = {**baseline.places, **tally.places}
    found = [
        Finding(Problem.DUPLICATED, what, places[what], f"{n} more")
        for what, n in (tally.outside - baseline.outside).items()
    ]
    if ended:
        found += [
            Finding(Problem.LOST, what, places[what], f"{n} fewer")
            for what, n in (baseline.outside - tally.outside).items()
        ]
    return found


def _is_harmless(finding: Finding, patterns: Iterable[str]) -> bool:
    where = finding.where or finding.what
    return any(
        where == one or where.startswith(f"{one}:") or fnmatch(where, one) for one in patterns
    )


def most_of(processes: Sequence[ProcessResult]) -> Tally:
    """What may happen without a kill: the highest count of any of these processes."""
    first, *others = [Tally.of([process]) for process in processes]
    for other in others:
        first.actions |= other.actions
        first.descriptions |= other.descriptions
        first.models |= other.models
        first.outside |= other.outside
        first.keys_used |= other.keys_used
        first.model_keys |= other.model_keys
        for name, calls in other.effects.items():
            if calls.total() > first.effects[name].total():
                first.effects[name] = calls
    return first
