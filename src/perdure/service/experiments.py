"""Plans about the results of experiments: one `Result` per example and repetition.

Everything is read from the journal: the settings, the runs of the target, their scores, and the
runs that judged them. So any client can read an experiment, in progress or after a crash.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from perdure.journal import Plan
from perdure.operations import scores
from perdure.operations.runs import RunRow
from perdure.serde.serializer import Serializer
from perdure.service.datasets import DatasetService
from perdure.service.runs import RunService
from perdure.types import ENDED, Example, ExperimentInfo, Run, Score, State

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
    """The result of one example in one repetition."""

    example: Example
    """The example."""
    repetition: int
    """The number of the repetition, from 1."""
    run_id: str = ""
    """The run of the target; empty if it was not started yet."""
    thread_id: str = ""
    """The thread of that run."""
    state: State | None = None
    """The state of that run. If it is held or paused, a person must act; then evaluate again."""
    output: Any = None
    """What the target returned."""
    error: str | None = None
    """Why the run failed, or is held."""
    scores: Mapping[str, Score] = field(default_factory=dict)
    """The scores of the whole run, by name."""
    evaluator_errors: Mapping[str, str] = field(default_factory=dict)
    """Errors of evaluators that raised and gave no score, by name."""
    is_judged: bool = False
    """Whether every evaluator has been asked."""
    began_at: datetime | None = None
    """When the run was accepted."""
    ended_at: datetime | None = None
    """When the run ended."""

    @property
    def is_over(self) -> bool:
        """Whether it is judged, or its run failed or was cancelled."""
        return self.is_judged or (self.state in ENDED and self.state is not State.DONE)

    @property
    def took(self) -> timedelta | None:
        """From when the run was accepted to its end."""
        if self.began_at is None or self.ended_at is None:
            return None
        return self.ended_at - self.began_at


@dataclass(frozen=True)
class ExperimentResults:
    """An experiment as it was read: its settings, and its results in the order of the dataset."""

    info: ExperimentInfo
    results: tuple[Result, ...]


class ExperimentService:
    """Plans about the experiments of a journal."""

    def __init__(self, serializer: Serializer, datasets: DatasetService, runs: RunService) -> None:
        self._serializer, self._datasets, self._runs = serializer, datasets, runs

    def load(self, name: str) -> Plan[ExperimentResults]:
        """Read an experiment. Raises `NotFound`."""
        info, _ = yield from self._datasets.settings(name)
        examples = yield from self._datasets.examples(info.dataset, info.version)
        cases = [*cases_of(name, examples, info.repetitions)]
        keys = {case.thread_id(role): case.key(role) for case in cases for role in (TARGET, JUDGE)}
        rows = yield from self._datasets.runs(keys)
        results = []
        for case in cases:
            target, judge = rows.get(case.key(TARGET)), rows.get(case.key(JUDGE))
            example = examples[case.example]
            results.append((yield from self._result(example, case.repetition, target, judge)))
        return ExperimentResults(info, tuple(results))

    def _result(
        self, example: Example, repetition: int, target: RunRow | None, judge: RunRow | None
    ) -> Plan[Result]:
        if target is None:
            return Result(example, repetition)
        run: Run = yield from self._runs.show(target)
        given: list[tuple[Score, int]]
        given = yield scores.of_run(self._serializer, run.thread_id, run.id)
        errors: Mapping[str, str] = {}
        is_judged = False
        if judge is not None:
            judged: Run = yield from self._runs.show(judge)
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
