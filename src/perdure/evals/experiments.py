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
    """All scores with one name in an experiment."""

    name: str
    """The name of the scores."""
    estimate: Estimate | None
    """Mean or share of the numbers, with its 95 % interval. Each example counts once: its
    repetitions are averaged. `None` if there are no numbers."""
    labels: Mapping[str, int]
    """How often each category was given."""


@dataclass(frozen=True)
class Experiment:
    """The settings and results of an experiment, as read from the journal. It does not change.

        experiment = await Experiment.load(client, "prompt-b")
        print(experiment.summary["correct"].estimate)

    `evaluate` returns one.
    """

    info: ExperimentInfo
    """The settings, as they were stored when it began."""
    results: tuple[Result, ...]
    """One result for each example and repetition, in the order of the dataset."""

    @property
    def name(self) -> str:
        """The name of the experiment."""
        return self.info.name

    @property
    def is_complete(self) -> bool:
        """Whether every example is judged, or its run failed or was cancelled."""
        return all(result.is_over for result in self.results)

    @cached_property
    def score_names(self) -> tuple[str, ...]:
        """The names of the scores, by first appearance."""
        return tuple(dict.fromkeys(name for result in self.results for name in result.scores))

    @cached_property
    def summary(self) -> Mapping[str, ScoreSummary]:
        """Mean, interval and categories of each score, by name."""
        return {name: self._summary(name) for name in self.score_names}

    def _summary(self, name: str) -> ScoreSummary:
        labels: dict[str, int] = {}
        for result in self.results:
            label = label_of(result.scores.get(name))
            if label is not None:
                labels[label] = labels.get(label, 0) + 1
        return ScoreSummary(name, estimate(self.numbers(name).values()), labels)

    def numbers(self, name: str) -> dict[str, float]:
        """Return the numbers of a score by example id: the mean over the repetitions.

        Args:
            name: The name of the score.
        """
        found: dict[str, list[float]] = {}
        for result in self.results:
            value = number_of(result.scores.get(name))
            if value is not None:
                found.setdefault(result.example.id, []).append(value)
        return {id: sum(values) / len(values) for id, values in found.items()}

    check = check

    @classmethod
    async def load(cls, client: Client, name: str) -> Experiment:
        """Read an experiment as it is now, in progress or complete.

        Args:
            client: A `Client` or `Runtime` on the journal.
            name: The name of the experiment.

        Raises:
            NotFound: The journal has no such experiment.
        """
        plan = client.services.experiments.load(check_name("name", name))
        found = await client.journal.arun(plan)
        return cls(found.info, found.results)

    @staticmethod
    async def all(
        client: Client, *, dataset: str | None = None, limit: int = 100
    ) -> list[ExperimentInfo]:
        """List the settings of experiments, newest first.

        Args:
            client: A `Client` or `Runtime` on the journal.
            dataset: Only experiments on this dataset.
            limit: Maximum number to return.
        """
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
