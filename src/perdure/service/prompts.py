"""Plans about prompt versions: their texts, what read them, and its scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from perdure.journal import Plan
from perdure.operations import prompts
from perdure.operations.prompts import OutcomeRow, PromptRow
from perdure.serde.serializer import Serializer
from perdure.times import moment
from perdure.types import PromptOutcome, PromptRecord, ScoreKind
from perdure.views.intervals import Estimate, Sample, difference_of, estimate_of


class PromptService:
    """Plans about the prompts of a journal."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer

    def prompts(self, name: str | None) -> Plan[list[PromptRecord]]:
        """The versions of a prompt, or of all, oldest first, with their outcomes. The database sums
        up the scores, so the number of runs does not matter."""
        rows, scored = yield prompts.page(name)
        by_version: dict[tuple[str, str], list[OutcomeRow]] = defaultdict(list)
        for one in scored:
            by_version[one.prompt, one.version].append(one)
        found = []
        for row in rows:
            text, damaged = prompts.load_text(self._serializer, row)
            outcomes = tuple(_outcomes(by_version[row.name, row.version]))
            at = moment(row.first_at)
            found.append(PromptRecord(row.name, row.version, text, at, row.runs, outcomes, damaged))
        return found

    def texts(self, after: str, count: int) -> Plan[list[PromptRecord]]:
        """The versions of the prompts behind a name, by name and age, without runs and outcomes:
        it takes no longer if many runs have read them."""
        rows: list[PromptRow] = yield prompts.texts(after, count)
        found = []
        for row in rows:
            text, damaged = prompts.load_text(self._serializer, row)
            at = moment(row.first_at)
            found.append(PromptRecord(row.name, row.version, text, at, 0, (), damaged))
        return found


def _outcomes(rows: Iterable[OutcomeRow]) -> Iterator[PromptOutcome]:
    rows = list(rows)
    chosen: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.kind == ScoreKind.CATEGORY:
            chosen[row.score] += row.n
    for row in rows:
        if row.kind == ScoreKind.CATEGORY:
            n = chosen[row.score]
            sample = Sample(n, row.n / n, 0.0, hits=True)
        else:
            mean = row.total / row.n
            spread = max(0.0, row.squares - row.n * mean * mean)
            variance = spread / (row.n - 1) if row.n > 1 else 0.0
            sample = Sample(row.n, mean, variance, hits=row.hits == row.n)
        found = estimate_of(sample)
        if found is not None:
            yield PromptOutcome(
                row.score,
                row.label,
                found.n,
                found.value,
                found.low,
                found.high,
                found.share,
                sample.variance,
            )


@dataclass(frozen=True)
class OutcomeChange:
    """One outcome of two versions of a prompt."""

    score: str
    label: str | None
    before: Estimate | None
    after: Estimate | None
    difference: Estimate | None
    """How much higher the second is; None if one of them has no such score."""

    @property
    def title(self) -> str:
        return outcome_title(self.score, self.label)


def outcome_title(score: str, label: str | None) -> str:
    """A score by its name, and its category: decision approved."""
    return score if label is None else f"{score} {label}"


def as_estimate(one: PromptOutcome) -> Estimate:
    return Estimate(one.value, one.low, one.high, one.n, one.share)


def compare(before: PromptRecord, after: PromptRecord) -> list[OutcomeChange]:
    """The outcomes of two versions beside each other."""
    first, second = (_samples(record) for record in (before, after))
    changes = []
    for score, label in sorted({*first, *second}, key=lambda key: (key[0], key[1] or "")):
        a, b = (_sample(found, score, label) for found in (first, second))
        old, new = (estimate_of(one) for one in (a, b))
        changes.append(OutcomeChange(score, label, old, new, difference_of(a, b)))
    return changes


NONE = Sample(0, 0.0, 0.0, hits=True)
Samples = dict[tuple[str, str | None], Sample]


def _samples(record: PromptRecord) -> Samples:
    return {
        (one.score, one.label): Sample(one.n, one.value, one.variance, one.share)
        for one in record.outcomes
    }


def _sample(found: Samples, score: str, label: str | None) -> Sample:
    """A category that was never chosen has the share 0."""
    others = [one for (name, other), one in found.items() if name == score and other is not None]
    if label is not None and (score, label) not in found and others:
        return Sample(others[0].n, 0.0, 0.0, hits=True)
    return found.get((score, label), NONE)
