"""The results of an evaluation: as a table, and in a file of JSON Lines to compare with later."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from perdure.errors import BadArgument
from perdure.text import json_text
from perdure.types import State
from perdure.views.formatting import difference, estimate
from perdure.views.intervals import estimate as estimate_of
from perdure.views.intervals import paired_difference


@dataclass(frozen=True)
class Result:
    """The result of one example in one repetition.

    Attributes:
        example: The id of the example.
        repetition: The number of the repetition, from 1.
        run_id: The run of the target. Its scores are in the journal.
        state: The state of that run. If it is held or paused, a person must act; then evaluate
            again.
        input: The input of the example.
        expected: The output expected for it.
        output: What the target returned.
        error: Why the run failed, or is held.
        scores: The scores of the run by name: numbers and categories.
        comments: The comments of scores, by name.
        evaluator_errors: Errors of evaluators, by name. They are asked again by the next call.
        seconds: From when the run was accepted to its end.
    """

    example: str
    repetition: int
    run_id: str
    state: State
    input: Any = None
    expected: Any = None
    output: Any = None
    error: str | None = None
    scores: Mapping[str, float | str] = field(default_factory=dict)
    comments: Mapping[str, str] = field(default_factory=dict)
    evaluator_errors: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation.

    Attributes:
        name: The name of the evaluation.
        results: One result for each example and repetition, in the order of the examples.
    """

    name: str
    results: tuple[Result, ...]

    @property
    def score_names(self) -> tuple[str, ...]:
        """The names of the scores, by first appearance."""
        return tuple(dict.fromkeys(name for result in self.results for name in result.scores))

    def numbers(self, score: str) -> dict[str, float]:
        """Return the numbers of a score by example id: the mean over the repetitions.

        Args:
            score: The name of the score.
        """
        found: dict[str, list[float]] = {}
        for result in self.results:
            value = result.scores.get(score)
            if isinstance(value, (int, float)):
                found.setdefault(result.example, []).append(value)
        return {id: sum(values) / len(values) for id, values in found.items()}

    def mean(self, score: str) -> float:
        """Return the mean of a score over the examples that have it.

        Args:
            score: The name of the score.

        Raises:
            BadArgument: No example has a number of this name.
        """
        found = self.numbers(score).values()
        if not found:
            names = ", ".join(self.score_names) or "no scores"
            raise BadArgument(f"{self.name} has no numbers named {score!r}; it has {names}.")
        return sum(found) / len(found)

    def table(self, baseline: Evaluation | None = None) -> str:
        """Return the scores as text, with 95 % confidence intervals.

        With a baseline, each score has its difference, paired by example: if its interval excludes
        zero, it is more than chance. Examples that failed are listed below.

        Args:
            baseline: An earlier evaluation to compare with.
        """
        head = ["score", *([baseline.name] if baseline else []), self.name]
        rows = [[*head, *(["difference"] if baseline else [])]]
        rows += [[name, *self._cells(name, baseline)] for name in self.score_names]
        widths = [max(len(row[n]) for row in rows if n < len(row)) for n in range(len(rows[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, *self._problems()])

    def _cells(self, name: str, baseline: Evaluation | None) -> Iterable[str]:
        after = self.numbers(name)
        if not after:
            return [_labels(one, name) for one in (baseline, self) if one is not None]
        if baseline is None:
            return [estimate(estimate_of(after.values()))]
        before = baseline.numbers(name)
        both = [id for id in after if id in before]
        moved = paired_difference([before[id] for id in both], [after[id] for id in both])
        shown = (estimate(estimate_of(one.values()), n=False) for one in (before, after))
        return [*shown, difference(moved)]

    def _problems(self) -> Iterable[str]:
        for one in self.results:
            if one.state is not State.DONE:
                yield f"{one.example} is {one.state.value}: {one.error or ''}".rstrip(": ")
            for name, error in one.evaluator_errors.items():
                yield f"{one.example}: evaluator {name} raised {error}"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the results to a file of JSON Lines: a line for each result.

        Args:
            path: The file.
        """
        lines = (json_text({"evaluation": self.name, **vars(one)}) for one in self.results)
        Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Evaluation:
        """Read the results that `write` wrote.

        Args:
            path: The file.

        Raises:
            BadArgument: The file cannot be read, or is not one of an evaluation.
        """
        name, results = str(path), []
        known = {one.name for one in fields(Result)}
        try:
            for line in Path(path).read_text(encoding="utf-8").splitlines():
                stored = json.loads(line)
                name = stored["evaluation"]
                given = {key: stored[key] for key in stored.keys() & known}
                results.append(Result(**{**given, "state": State(stored["state"])}))
        except OSError as error:
            raise BadArgument(f"{path}: {error.strerror or error}.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadArgument(f"{path} is not a file of an evaluation: {error}.") from error
        return cls(name, tuple(results))


def _labels(found: Evaluation, name: str) -> str:
    """How often each category of a score was given."""
    labels = [str(one.scores[name]) for one in found.results if name in one.scores]
    return ", ".join(f"{labels.count(one)} {one}" for one in sorted({*labels}))
