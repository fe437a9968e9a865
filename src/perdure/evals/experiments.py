"""The result of an evaluation: an `Experiment` with one `Result` per example and repetition.

All of it is read from the journal: the settings, the runs of the target, their scores, and the runs
that judged them. So any client sees an experiment, while it is under way and after a crash.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

from perdure.client import Client
from perdure.evals.checks import check
from perdure.journal import Plan
from perdure.operations import scores
from perdure.operations.runs import RunRow
from perdure.service.validation import check_limit, check_name
from perdure.service.views.intervals import Estimate, estimate
from perdure.types import ENDED, Example, ExperimentInfo, Run, Score, ScoreKind, State

_NAMESPACE = uuid.UUID("3a1f0c52-6f0e-5d5b-9a0e-65766c757065")


class Case(NamedTuple):
    """One example in one repetition. It names the run of the target, and the run that judges it."""

    experiment: str
    example: str
    repetition: int

    def key(self, role: str) -> str:
        """The key of its run of the target, or of the one that judges it."""
        return str(uuid.uuid5(_NAMESPACE, json.dumps([role, *self])))

    def thread_id(self, role: str) -> str:
        return f"evals-{self.key(role)}"


def cases_of(name: str, examples: Iterable[str], repetitions: int) -> Iterator[Case]:
    """Every case of an experiment: in the order of its examples, then by repetition."""
    for id in examples:
        for n in range(1, repetitions + 1):
            yield Case(name, id, n)


TARGET, JUDGE = "target", "judge"


@dataclass(frozen=True)
class Result:
    """How the target did for one example, in one repetition."""

    example: Example
    repetition: int
    """From 1."""
    run_id: str = ""
    """The run of the target; empty if it was not started yet."""
    thread_id: str = ""
    state: State | None = None
    """The state of that run. If it is held or paused, a person must act; then evaluate again."""
    output: Any = None
    error: str | None = None
    """Why the run failed, or is held."""
    scores: Mapping[str, Score] = field(default_factory=dict)
    """The scores of the whole run, by name."""
    evaluator_errors: Mapping[str, str] = field(default_factory=dict)
    """Errors of evaluators that raised and gave no score, by name."""
    is_judged: bool = False
    """Whether every evaluator has been asked."""
    began_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do: it is judged, or its run failed or was cancelled."""
        return self.is_judged or (self.state in ENDED and self.state is not State.DONE)

    @property
    def took(self) -> timedelta | None:
        """From when the run was accepted to its end."""
        if self.began_at is None or self.ended_at is None:
            return None
        return self.ended_at - self.began_at


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
        return await client.journal.arun(load(client, check_name("name", name)))

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


def load(client: Client, name: str) -> Plan[Experiment]:
    """Read an experiment."""
    service = client.services.datasets
    info, _ = yield from service.settings(name)
    examples = yield from service.examples(info.dataset, info.version)
    cases = [*cases_of(name, examples, info.repetitions)]
    keys = {case.thread_id(role): case.key(role) for case in cases for role in (TARGET, JUDGE)}
    rows = yield from service.runs(keys)
    results = []
    for case in cases:
        target, judge = rows.get(case.key(TARGET)), rows.get(case.key(JUDGE))
        example = examples[case.example]
        results.append((yield from _result(client, example, case.repetition, target, judge)))
    return Experiment(info, tuple(results))


def _result(
    client: Client, example: Example, repetition: int, target: RunRow | None, judge: RunRow | None
) -> Plan[Result]:
    if target is None:
        return Result(example, repetition)
    run: Run = yield from client.services.runs.show(target)
    given: list[tuple[Score, int]]
    given = yield scores.of_run(client.engine.serializer, run.thread_id, run.id)
    errors: Mapping[str, str] = {}
    is_judged = False
    if judge is not None:
        judged: Run = yield from client.services.runs.show(judge)
        is_judged = judged.state is State.DONE
        if is_judged:
            found: Any = judged.output["errors"]
            errors = found if isinstance(found, Mapping) else {"": str(found)}  # redacted
        elif judged.error is not None or judged.reason is not None:
            errors = {"": str(judged.error or judged.reason)}
    return Result(
        example,
        repetition,
        run.id,
        run.thread_id,
        run.state,
        run.output,
        str(run.error or run.reason or "") or None if run.state is not State.DONE else None,
        {score.name: score for score, _ in given if not score.about},
        errors,
        is_judged,
        run.created_at,
        run.updated_at if run.ended else None,
    )
