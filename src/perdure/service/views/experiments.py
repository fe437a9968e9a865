"""Experiments beside each other: figures with intervals, differences, examples that changed.

One view serves an experiment alone and a comparison of several. The first one is what the others
are compared with, example by example. Repetitions of an example are averaged before anything is
counted, so that n is always a number of examples. Whether a higher score is better is for the
reader to say: the view says higher and lower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any, Protocol

from perdure.service.views.intervals import Estimate, are_hits, estimate, mean, paired_difference
from perdure.types import ENDED, Example, ExperimentInfo, Score, State

SECONDS, TOKENS = "seconds", "tokens"
"""What is measured beside the scores."""


class ResultLike(Protocol):
    """A `perdure.evals.Result`."""

    @property
    def example(self) -> Example: ...
    @property
    def run_id(self) -> str: ...
    @property
    def state(self) -> State | None: ...
    @property
    def output(self) -> Any: ...
    @property
    def error(self) -> str | None: ...
    @property
    def scores(self) -> Mapping[str, Score]: ...
    @property
    def evaluator_errors(self) -> Mapping[str, str]: ...
    @property
    def took(self) -> timedelta | None: ...


class ExperimentLike(Protocol):
    """A `perdure.evals.Experiment`."""

    @property
    def info(self) -> ExperimentInfo: ...
    @property
    def results(self) -> Sequence[ResultLike]: ...


@dataclass(frozen=True)
class ExperimentColumn:
    """One of the experiments."""

    name: str
    dataset: str
    version: int
    target: str
    created_at: datetime
    metadata: Mapping[str, Any]
    examples: int
    failed: int
    """Examples with a run that did not end done, or with an evaluator that raised."""
    unfinished: int
    """Examples whose run has not ended."""


@dataclass(frozen=True)
class Outcome:
    """One example in one experiment; more than one run if it was repeated."""

    run_ids: tuple[str, ...]
    states: tuple[str, ...]
    outputs: tuple[Any, ...]
    scores: Mapping[str, float | str]
    """Numbers, and categories as texts."""
    measures: Mapping[str, float]
    """Seconds and tokens."""
    comments: Mapping[str, str]
    errors: tuple[str, ...]
    """Of the runs and of the evaluators."""

    @property
    def failed(self) -> bool:
        return bool(self.errors)


@dataclass(frozen=True)
class ExampleRow:
    """One example in all experiments."""

    id: str
    input: Any
    expected: Any
    metadata: Mapping[str, Any]
    outcomes: tuple[Outcome | None, ...]
    """In the order of the experiments; None: it is not in that one's version of the dataset."""

    @property
    def failed(self) -> bool:
        return any(one is not None and one.failed for one in self.outcomes)

    @property
    def changes(self) -> Mapping[str, tuple[float | str | None, ...]]:
        """Scores that are not the same everywhere, in the order of the experiments."""
        names = dict.fromkeys(name for one in self.outcomes if one for name in one.scores)
        rows = {name: tuple(_score(one, name) for one in self.outcomes) for name in names}
        return {name: row for name, row in rows.items() if len(set(row)) > 1}

    @property
    def total(self) -> float:
        """The sum of its scores, for sorting."""
        found = [score for one in self.outcomes if one for score in one.scores.values()]
        return sum(score for score in found if not isinstance(score, str))

    @property
    def total_change(self) -> float:
        """How much its scores differ, for sorting; a category that changed counts as 1."""
        return sum(_distance(row) for row in self.changes.values())


@dataclass(frozen=True)
class ScoreRow:
    """One score, or measure, in all experiments."""

    name: str
    values: tuple[Sequence[float], ...]
    """Of every example, by experiment."""
    estimates: tuple[Estimate | None, ...]
    labels: tuple[Mapping[str, int], ...]
    """How often each category was given, by experiment; empty if the score is a number."""
    differences: tuple[Estimate | None, ...]
    """To the first experiment, over the examples that both have; None for the first itself."""
    higher: tuple[int, ...]
    """Examples with a higher score than in the first experiment."""
    lower: tuple[int, ...]

    @property
    def is_category(self) -> bool:
        return any(self.labels)


@dataclass(frozen=True)
class ExperimentsView:
    """Experiments beside each other; the first is what the others are compared with."""

    columns: tuple[ExperimentColumn, ...]
    scores: tuple[ScoreRow, ...]
    measures: tuple[ScoreRow, ...]
    """Seconds and tokens per example, as far as they are known."""
    examples: tuple[ExampleRow, ...]

    @property
    def is_comparison(self) -> bool:
        return len(self.columns) > 1

    @property
    def changed(self) -> list[ExampleRow]:
        """Examples whose scores are not the same everywhere, the largest changes first."""
        found = [one for one in self.examples if one.changes]
        return sorted(found, key=lambda one: -one.total_change)

    @property
    def failed(self) -> list[ExampleRow]:
        return [one for one in self.examples if one.failed]


def view(*experiments: ExperimentLike) -> ExperimentsView:
    """The view of one experiment, or of several beside each other."""
    found, ranks = [_by_example(one.results) for one in experiments], _ranks(experiments)
    outcomes = [{id: _outcome(results, ranks) for id, results in one.items()} for one in found]
    examples = {id: results[0].example for one in found for id, results in one.items()}
    rows = tuple(
        ExampleRow(
            id,
            one.input,
            one.expected,
            one.metadata,
            tuple(known.get(id) for known in outcomes),
        )
        for id, one in examples.items()
    )
    scores = _score_rows(rows, len(experiments), lambda one: one.scores, is_score=True)
    return ExperimentsView(
        tuple(_column(*pair) for pair in zip(experiments, outcomes, strict=True)),
        tuple(sorted(scores, key=lambda row: (ranks[row.name], row.name))),
        _score_rows(rows, len(experiments), lambda one: one.measures, is_score=False),
        rows,
    )


def _ranks(experiments: Iterable[ExperimentLike]) -> dict[str, int]:
    """The place of each score: that of its evaluator in the call. Others are last."""
    evaluators = list(dict.fromkeys(name for one in experiments for name in one.info.evaluators))
    ranks: dict[str, int] = {}
    for experiment in experiments:
        for result in experiment.results:
            for name, score in result.scores.items():
                known = score.by in evaluators
                ranks[name] = evaluators.index(score.by or "") if known else len(evaluators)
    return ranks


def _by_example(results: Iterable[ResultLike]) -> dict[str, list[ResultLike]]:
    found: dict[str, list[ResultLike]] = {}
    for result in results:
        found.setdefault(result.example.id, []).append(result)
    return found


def _column(experiment: ExperimentLike, outcomes: Mapping[str, Outcome]) -> ExperimentColumn:
    info = experiment.info
    return ExperimentColumn(
        info.name,
        info.dataset,
        info.version,
        info.target,
        info.created_at,
        info.metadata,
        len(outcomes),
        sum(one.failed for one in outcomes.values()),
        sum(any(state not in ENDED for state in one.states) for one in outcomes.values()),
    )


def _outcome(results: Sequence[ResultLike], ranks: Mapping[str, int]) -> Outcome:
    given: dict[str, list[float | str]] = {}
    measured: dict[str, list[float]] = {}
    comments: dict[str, str] = {}
    errors: list[str] = []
    for result in results:
        for name in sorted(result.scores, key=lambda name: (ranks[name], name)):
            score = result.scores[name]
            if score.damaged:
                errors.append(f"{name}: {score.damaged}")
                continue
            value = score.value if score.label is None else score.label
            if value is not None:
                given.setdefault(name, []).append(value)
            if score.comment:
                comments.setdefault(name, score.comment)
        if result.took is not None:
            measured.setdefault(SECONDS, []).append(result.took.total_seconds())
        used = tokens_in(result.output)
        if used is not None:
            measured.setdefault(TOKENS, []).append(used)
        errors += _errors(result)
    return Outcome(
        tuple(one.run_id for one in results),
        tuple("not started" if one.state is None else str(one.state) for one in results),
        tuple(one.output for one in results),
        {name: _overall(values) for name, values in given.items()},
        {name: fmean(values) for name, values in measured.items()},
        comments,
        tuple(errors),
    )


def _overall(values: Sequence[float | str]) -> float | str:
    """The mean of the repetitions, or their most frequent category."""
    numbers = [float(one) for one in values if not isinstance(one, str)]
    return fmean(numbers) if numbers else Counter(values).most_common(1)[0][0]


def _errors(result: ResultLike) -> Iterable[str]:
    if result.error:
        yield result.error
    elif result.state in (State.FAILED, State.CANCELLED, State.HELD, State.PAUSED):
        yield f"The run is {result.state}."
    for name, error in result.evaluator_errors.items():
        yield f"{name}: {error}"


Scores = Callable[[Outcome], Mapping[str, float | str]]


def _score_rows(
    rows: Sequence[ExampleRow], n: int, of: Scores, *, is_score: bool
) -> tuple[ScoreRow, ...]:
    known = [[(row.id, of(one)) for row in rows if (one := row.outcomes[at])] for at in range(n)]
    names = dict.fromkeys(name for column in known for _, scores in column for name in scores)
    return tuple(
        _score_row(
            name,
            [{id: one[name] for id, one in column if name in one} for column in known],
            is_score=is_score,
        )
        for name in names
    )


def _score_row(
    name: str, columns: Sequence[Mapping[str, float | str]], *, is_score: bool
) -> ScoreRow:
    numbers = [{id: v for id, v in one.items() if not isinstance(v, str)} for one in columns]
    labels = [Counter(v for v in one.values() if isinstance(v, str)) for one in columns]
    is_share = are_hits(value for one in numbers for value in one.values()) and is_score
    first, differences, higher, lower = numbers[0], [], [], []
    for at, column in enumerate(numbers):
        both = [(first[id], column[id]) for id in first if id in column]
        differences.append(_difference(both, is_share) if at and both else None)
        higher.append(sum(b > a for a, b in both))
        lower.append(sum(b < a for a, b in both))
    return ScoreRow(
        name,
        tuple(list(column.values()) for column in numbers),
        tuple(_estimate([*column.values()], is_share) for column in numbers),
        tuple(labels),
        tuple(differences),
        tuple(higher),
        tuple(lower),
    )


def _estimate(values: Sequence[float], is_share: bool) -> Estimate | None:
    """A score is a share in all experiments, or a mean in all of them."""
    return None if not values else estimate(values) if is_share else mean(values)


def _difference(pairs: Sequence[tuple[float, float]], is_share: bool) -> Estimate | None:
    if is_share:
        return paired_difference(*zip(*pairs, strict=True))
    return mean(b - a for a, b in pairs)


def _score(one: Outcome | None, name: str) -> float | str | None:
    return None if one is None else one.scores.get(name)


def _distance(row: Sequence[float | str | None]) -> float:
    numbers = [one for one in row if isinstance(one, (int, float))]
    if len(numbers) == len(row):
        return max(numbers) - min(numbers)
    return 1.0


def tokens_in(output: Any) -> float | None:
    """The tokens that the messages of an output report; None if they report none."""
    messages = output.get("messages") if isinstance(output, Mapping) else output
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        return None
    usages = [getattr(one, "usage_metadata", None) for one in messages]
    counts = [usage["total_tokens"] for usage in usages if usage and "total_tokens" in usage]
    return float(sum(counts)) if counts else None
