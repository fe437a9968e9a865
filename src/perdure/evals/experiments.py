"""The result of an evaluation: an `Experiment` with one `Result` per example and repetition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from perdure.client import Client
from perdure.evals.checks import check
from perdure.service.experiments import Result
from perdure.service.validation import check_limit, check_name
from perdure.service.views.intervals import Estimate, estimate
from perdure.types import ExperimentInfo, Score, ScoreKind


@dataclass(frozen=True)
class ScoreSummary:
    """The scores of one name in an experiment."""

    name: str
    estimate: Estimate | None
    """Mean or share of the numbers, with its interval. Each example counts once: its repetitions
    are averaged. None: there are no numbers."""
    labels: Mapping[str, int]
    """How often each category was given."""


@dataclass(frozen=True)
class Experiment:
    """The settings and results of an experiment, as read from the journal. It does not change.

    experiment = await Experiment.load(client, "prompt-b")
    print(experiment.summary["correct"].estimate)
    """

    info: ExperimentInfo
    results: tuple[Result, ...]
    """In the order of the dataset, then by repetition."""

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do."""
        return all(result.is_over for result in self.results)

    @cached_property
    def score_names(self) -> tuple[str, ...]:
        """The names of the scores, by first appearance."""
        return tuple(dict.fromkeys(name for result in self.results for name in result.scores))

    @cached_property
    def summary(self) -> Mapping[str, ScoreSummary]:
        """Mean and interval of each score, by name."""
        return {name: self._summary(name) for name in self.score_names}

    def _summary(self, name: str) -> ScoreSummary:
        labels: dict[str, int] = {}
        for result in self.results:
            label = label_of(result.scores.get(name))
            if label is not None:
                labels[label] = labels.get(label, 0) + 1
        return ScoreSummary(name, estimate(self.numbers(name).values()), labels)

    def numbers(self, name: str) -> dict[str, float]:
        """The numbers of a score by example id: the mean over its repetitions."""
        found: dict[str, list[float]] = {}
        for result in self.results:
            value = number_of(result.scores.get(name))
            if value is not None:
                found.setdefault(result.example.id, []).append(value)
        return {id: sum(values) / len(values) for id, values in found.items()}

    check = check
    """Raise `AssertionError` unless a score passes: see `checks`."""

    @classmethod
    async def load(cls, client: Client, name: str) -> Experiment:
        """An experiment as it is now. Reads only. Raises `NotFound`."""
        plan = client.services.experiments.load(check_name("name", name))
        found = await client.journal.arun(plan)
        return cls(found.info, found.results)

    @staticmethod
    async def all(
        client: Client, *, dataset: str | None = None, limit: int = 100
    ) -> list[ExperimentInfo]:
        """Experiments, newest first: of one dataset, or all."""
        plan = client.services.datasets.experiments(dataset, check_limit(limit))
        return await client.journal.arun(plan)


def number_of(score: Score | None) -> float | None:
    """The number of a score; None for a category or a text."""
    if score is None or score.damaged or score.kind is not ScoreKind.NUMBER:
        return None
    return score.value


def label_of(score: Score | None) -> str | None:
    """The category of a score."""
    return None if score is None or score.damaged else score.label
