"""Compares the ledger with the journal that is left: pure functions, without a database."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Line = Mapping[str, Any]


@dataclass
class Change:
    """One change of the primary, and what was found."""

    kind: str
    route: str
    strict: bool
    since: float = 0.0
    """When the cluster was whole before it: what is acknowledged from then on belongs to it."""
    at: float = 0.0
    """When the fault was made."""
    writes: float | None = None
    """Seconds until a plain client could commit on a new timeline, through the same route."""
    progress: float | None = None
    """Seconds from then until the first run ended."""
    acknowledged: int = 0
    lost: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    """What is lost or repeated, of runs that no log and no `doctor` names."""
    exited: list[str] = field(default_factory=list)
    """Processes that ended by themselves."""
    stranded: list[str] = field(default_factory=list)
    """Runs that did not end as `done`."""

    @property
    def replication(self) -> str:
        return "strict" if self.strict else "asynchronous"

    @property
    def findings(self) -> list[str]:
        """What breaks a promise. Asynchronous replication may lose what is named."""
        if self.strict:
            found = [f"lost: {one}" for one in self.lost]
            found += [f"repeated: {one}" for one in self.repeated]
        else:
            found = [f"unnamed: {one}" for one in self.unnamed]
        found += [f"exited: {one}" for one in self.exited]
        found += [f"stranded: {one}" for one in (self.stranded if self.strict else ())]
        if self.writes is None:
            found.append("late: the database took no writes")
        elif self.progress is None or self.progress > 10:
            after = "never" if self.progress is None else f"after {self.progress:.1f} s"
            found.append(f"late: the first run ended {after}")
        return found


@dataclass(frozen=True)
class Left:
    """A run as the journal has it at the end."""

    state: str
    output: Mapping[str, Any]
    ended: float
    """When it changed last."""


def judge(
    changes: Sequence[Change], lines: Sequence[Line], runs: Mapping[str, Left], said: str
) -> None:
    """Write into each change what was lost, repeated and stranded in its time.

    Args:
        changes: The changes that one journal went through, in order.
        lines: The ledger.
        runs: Every run of the journal, by id.
        said: What every process logged, and `doctor` found.
    """
    numbers = {line["run"]: line["number"] for line in lines if line["what"] == "start"}
    run_ids = {number: run for run, number in numbers.items()}
    named = set(re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", said))
    for line in lines:
        if line["what"] in ("start", "signal", "answer"):
            change = _change_at(changes, line["t"])
            change.acknowledged += 1
            if is_lost(line, runs):
                change.lost.append(f"{line['what']} {line['number']} {line['run']}")
                if line["run"] not in named:
                    change.unnamed.append(change.lost[-1])
    for line, text in repeats(lines):
        change, run_id = _change_at(changes, line["t"]), run_ids.get(line["number"], "")
        change.repeated.append(f"{text} {run_id}")
        if run_id not in named:
            change.unnamed.append(change.repeated[-1])
    starts = {line["run"]: line["t"] for line in lines if line["what"] == "start"}
    for run, left in runs.items():
        if left.state != "done":
            change = _change_at(changes, starts.get(run, left.ended))
            change.stranded.append(f"{numbers.get(run, '')} {run} {left.state}")
    for change in changes:
        if change.writes is not None:
            begin = change.at + change.writes
            ends = [left.ended for left in runs.values() if left.state == "done"]
            change.progress = min((end - begin for end in ends if end >= begin), default=None)


def is_lost(line: Line, runs: Mapping[str, Left]) -> bool:
    """Whether the journal lacks what was acknowledged by this line of the ledger."""
    left = runs.get(line["run"])
    if left is None:
        return True
    if left.state != "done":  # it is stranded; if it waits, for what it should have
        return left.state == "waiting" and line["what"] != "start"
    wanted = {"start": "number", "signal": "collected", "answer": "approved"}[line["what"]]
    value = line["number"] if line["what"] == "start" else line["word"]
    return bool(left.output.get(wanted) != value)


def repeats(lines: Iterable[Line]) -> list[tuple[Line, str]]:
    """Calls of effects that the journal had recorded, and calls under a second key."""
    recorded: set[tuple[str, str]] = set()
    keys: dict[tuple[str, str], str | None] = {}
    found: list[tuple[Line, str]] = []
    for line in lines:
        if line["what"] not in ("call", "recorded"):
            continue
        place = (line["effect"], line["number"])
        if line["what"] == "recorded":
            recorded.add(place)
        elif place in recorded:
            found.append((line, f"{' '.join(place)} was recorded"))
        elif line["key"] != keys.setdefault(place, line["key"]):
            found.append((line, f"{' '.join(place)} under another key"))
    return found


def first_commit(lines: Iterable[Line], after: float, timeline: int) -> float | None:
    """When a probe's commit on a newer timeline was acknowledged first."""
    times = [
        line["t"]
        for line in lines
        if line["what"] == "commit" and line["t"] > after and line["timeline"] > timeline
    ]
    return min(times, default=None)


def _change_at(changes: Sequence[Change], moment: float) -> Change:
    begun = [change for change in changes if change.since <= moment]
    return begun[-1] if begun else changes[0]
