"""The judge: compares what all processes of a trial reported with the baseline run.

The baseline is a run without a kill. An effect is judged by its key. An action outside of any
effect is judged by its count: more often than in the baseline is a duplicate.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from perdure.testing.crashtest.processes import ProcessResult
from perdure.testing.crashtest.report import Finding, Point, Problem, Tally, Trial, near
from perdure.text import any_json, is_user_code, json_default

UNKEYED = (
    "it died in the middle of a call, which was made again; the function never asks for "
    "perdure.key(), so the far side cannot tell. Give it the key, or verify=, or unknown='hold'"
)
UNRECORDED = "an outward action without @effect"
MOST = 3  # differences of one value that a finding names


@dataclass(frozen=True)
class Baseline:
    """What the agent does without a kill."""

    state: str
    result: Any
    tally: Tally
    ignore: frozenset[str]
    harmless: Collection[str]


def _tally(processes: Iterable[ProcessResult]) -> Tally:
    tally = Tally()
    for process in processes:
        for fact in process.facts:
            tally.note(*fact)
    return tally


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
    places = [f"{near(file)}:{line} in {name}" for file, line, name in said if is_user_code(file)]
    return f"; it was at {places[0]}" if places else ""


def judge(
    kills: tuple[Point, ...], processes: Sequence[ProcessResult], baseline: Baseline
) -> Trial:
    """Compare one trial with the baseline."""
    state, result, reason, printed = end_of(processes[-1])
    tally = _tally(processes)
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
        finding = Finding(problem, name, near(place), detail)
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
    findings, both = [], (baseline, tally)
    for name in baseline.effects | tally.effects:
        calls, usual = tally.effects.get(name, Counter()), baseline.effects.get(name, Counter())
        keyed = "" not in calls and "" not in usual
        places, expected = (len(calls), len(usual)) if keyed else (calls.total(), usual.total())
        twice = max(0, places - expected)
        again = max(0, calls.total() - usual.total() - twice)
        is_model = any(not one.model_keys.isdisjoint(one.effects.get(name, ())) for one in both)
        passes_key = any(not one.keys_used.isdisjoint(one.effects.get(name, ())) for one in both)
        if is_model:
            again, twice = again + twice, 0  # a repeated model call, perhaps by another task
        if again and keyed and not (is_model or passes_key):
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
    first, *others = [_tally([process]) for process in processes]
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


# -- results as plain data, and how two of them differ
#
# Ids that are drawn anew in each run (UUIDs, keys, hashes) are compared by where they stand: the
# same id at the same places, whatever it is. So a message that is there twice, or an answer that
# refers to another call, is a difference; a fresh id is not.

_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?<![0-9a-zA-Z])(?=[0-9a-f]*\d)[0-9a-f]{16,}(?![0-9a-zA-Z])",
    re.IGNORECASE,
)
ABSENT = object()
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def plain(value: Any) -> Any:
    """`value` as JSON has it; what JSON has no form for is described."""
    return json.loads(any_json(value, _described), parse_constant=str)


def _described(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes, {hashlib.blake2b(bytes(value), digest_size=8).hexdigest()}"
    if hasattr(value, "tolist"):  # an array
        return value.tolist()
    found = json_default(value)
    return _ADDRESS.sub("", found) if isinstance(found, str) else found


def differences(expected: Any, found: Any, ignore: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Where two plain values differ: the path, and how. `ignore` names keys or whole paths."""
    return list(_Comparison(frozenset(ignore)).compare("", expected, found))


class _Comparison:
    def __init__(self, ignore: frozenset[str]) -> None:
        self._ignore = ignore
        self._there: dict[str, str] = {}
        self._here: dict[str, str] = {}

    def compare(self, path: str, a: Any, b: Any) -> Iterator[tuple[str, str]]:
        if path in self._ignore:
            return
        if isinstance(a, dict) and isinstance(b, dict):
            for key in {**a, **b}:
                if key not in self._ignore:
                    inner = f"{path}.{key}" if path else key
                    yield from self.compare(inner, a.get(key, ABSENT), b.get(key, ABSENT))
        elif isinstance(a, list) and isinstance(b, list):
            for n, (one, other) in enumerate(zip(a, b, strict=False)):
                yield from self.compare(f"{path}[{n}]", one, other)
            if len(a) != len(b):
                yield path, f"{len(a)} items, then {len(b)}"
        elif type(a) is not type(b) or not (self._same_text(a, b) if type(a) is str else a == b):
            yield path, f"{_short(a)}, then {_short(b)}"

    def _same_text(self, a: str, b: str) -> bool:
        if a == b and not _ID.search(a):
            return True
        if _ID.sub("#", a) != _ID.sub("#", b):
            return False
        return all(
            self._there.setdefault(one, other) == other and self._here.setdefault(other, one) == one
            for one, other in zip(_ID.findall(a), _ID.findall(b), strict=True)
        )


def _short(value: Any) -> str:
    text = "nothing" if value is ABSENT else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
