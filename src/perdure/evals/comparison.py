"""`compare`: two experiments on the same examples, paired by example."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.errors import BadArgument
from perdure.evals.experiments import Experiment
from perdure.service.views.intervals import Estimate, estimate, paired_difference
from perdure.types import Example


@dataclass(frozen=True)
class ChangedExample:
    """An example whose score differs between two experiments."""

    example: Example
    """The example."""
    a: float
    """Its score in the first experiment."""
    b: float
    """Its score in the second experiment."""

    @property
    def difference(self) -> float:
        """`b` minus `a`."""
        return self.b - self.a


@dataclass(frozen=True)
class ScoreComparison:
    """One score in two experiments, for the examples that have it in both."""

    name: str
    """The name of the score."""
    a: Estimate
    """The score in the first experiment."""
    b: Estimate
    """The score in the second experiment."""
    difference: Estimate
    """`b` minus `a`, paired by example. If its interval excludes zero, it is more than chance."""
    wins: int
    """Examples with the higher score in `b`."""
    losses: int
    """Examples with the lower score in `b`."""
    ties: int
    """Examples with the same score in both."""
    changed: tuple[ChangedExample, ...]
    """Examples that differ, the largest difference first."""


@dataclass(frozen=True)
class Comparison:
    """Experiment `b` against experiment `a`."""

    a: Experiment
    """The first experiment."""
    b: Experiment
    """The second experiment."""
    scores: tuple[ScoreComparison, ...]
    """The scores that both have, in the order of `a`."""
    only_a: tuple[str, ...]
    """The ids of examples that `b` does not have."""
    only_b: tuple[str, ...]
    """The ids of examples that `a` does not have."""


def compare(a: Experiment, b: Experiment) -> Comparison:
    """Compare experiment `b` with experiment `a`, example by example.

    Repetitions of an example are averaged, so each example counts once. If an example lacks a
    score in one of them because its run failed, it is left out of that score's comparison.

        for score in compare(old, new).scores:
            print(score.name, score.difference.low, score.difference.high)

    Args:
        a: The experiment to compare with.
        b: The new experiment.

    Raises:
        BadArgument: An argument is not an `Experiment`.
    """
    for one in (a, b):
        if not isinstance(one, Experiment):
            raise BadArgument(f"compare() takes two experiments, not {one!r}.")
    in_a = {result.example.id: result.example for result in a.results}
    in_b = {result.example.id: result.example for result in b.results}
    names = [name for name in a.score_names if name in b.score_names]
    found = (_compare(name, a, b, in_b) for name in names)
    return Comparison(
        a,
        b,
        tuple(one for one in found if one is not None),
        tuple(id for id in in_a if id not in in_b),
        tuple(id for id in in_b if id not in in_a),
    )


def _compare(
    name: str, a: Experiment, b: Experiment, examples: dict[str, Example]
) -> ScoreComparison | None:
    of_a, of_b = a.numbers(name), b.numbers(name)
    pairs = [(id, of_a[id], of_b[id]) for id in of_a if id in of_b]
    before, after = [one for _, one, _ in pairs], [one for _, _, one in pairs]
    first, second, difference = (
        estimate(before),
        estimate(after),
        paired_difference(before, after),
    )
    if first is None or second is None or difference is None:
        return None
    changed = [ChangedExample(examples[id], x, y) for id, x, y in pairs if x != y]
    wins = sum(one.b > one.a for one in changed)
    return ScoreComparison(
        name,
        first,
        second,
        difference,
        wins,
        len(changed) - wins,
        len(pairs) - len(changed),
        tuple(sorted(changed, key=lambda one: -abs(one.difference))),
    )
