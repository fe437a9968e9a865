"""Checks of an experiment: gates for a build."""

from __future__ import annotations

from typing import NoReturn, Protocol

from perdure.errors import BadArgument
from perdure.service.views import experiment_tables as tables
from perdure.service.views.experiments import ExperimentLike, ExperimentsView, ScoreRow, view
from perdure.service.views.formatting import difference, estimate

SHOWN = 10
"""Examples in the message of a failed check."""


class Checkable(ExperimentLike, Protocol):
    """A `perdure.evals.Experiment`."""

    @property
    def name(self) -> str: ...
    @property
    def is_complete(self) -> bool: ...


def check(
    experiment: Checkable,
    score: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    not_worse_than: Checkable | None = None,
    margin: float | None = None,
) -> None:
    """Raise `AssertionError` unless a score passes. Higher is better.

    Call it as a method: `experiment.check("correct", at_least=0.95)`. An example without the score,
    because its run or its evaluator failed, fails the check too. The message shows the scores and
    the worst examples.

    Args:
        experiment: The experiment.
        score: The name of the score.
        at_least: The mean over all examples must not be lower.
        at_most: The mean over all examples must not be higher.
        not_worse_than: Another experiment, compared example by example. The check fails if the
            score is significantly lower: the interval of the difference lies below zero.
        margin: With `not_worse_than`, the stricter test: it passes only if the interval shows that
            the score is at most this much lower.

    Raises:
        AssertionError: The score does not pass.
        BadArgument: No condition is given, or `margin` without `not_worse_than`.
    """
    if at_least is None and at_most is None and not_worse_than is None:
        raise BadArgument("check() needs at_least, at_most or not_worse_than.")
    if margin is not None and not_worse_than is None:
        raise BadArgument("margin needs not_worse_than: pass both.")
    others = () if not_worse_than is None else (not_worse_than,)
    shown = view(*others, experiment)
    row = next((one for one in shown.scores if one.name == score), None)
    found = None if row is None else row.estimates[-1]
    if row is None or found is None:
        names = ", ".join(one.name for one in shown.scores if one.estimates[-1]) or "none"
        _fail(f"{experiment.name} has no numbers named {score!r}; it has {names}.", shown)
    missing = shown.columns[-1].examples - found.n
    if missing:
        _fail(f"{missing} of {shown.columns[-1].examples} examples have no {score}.", shown)
    if at_least is not None and found.value < at_least:
        _fail(f"{score} is {estimate(found)}, less than {at_least:g}.", shown)
    if at_most is not None and found.value > at_most:
        _fail(f"{score} is {estimate(found)}, more than {at_most:g}.", shown)
    if not_worse_than is not None:
        _compare(row, not_worse_than.name, margin, shown)


def _compare(row: ScoreRow, baseline: str, margin: float | None, shown: ExperimentsView) -> None:
    moved = row.differences[-1]
    if moved is None:
        _fail(f"No example has {row.name} in both experiments.", shown)
    if margin is None:
        if moved.value < 0 and moved.apart_from_zero:
            _fail(f"{row.name} is lower than in {baseline}: {difference(moved)}.", shown)
    elif moved.low is None or moved.low < -margin:
        _fail(
            f"{row.name} may be more than {margin:g} lower than in {baseline}: "
            f"{difference(moved)}.",
            shown,
        )


def _fail(reason: str, shown: ExperimentsView) -> NoReturn:
    parts = [reason, str(tables.score_table(shown))]
    if shown.failed:
        parts.append(str(tables.failure_table(shown, SHOWN)))
    if shown.is_comparison:
        parts.append(str(tables.change_table(shown, shown.changed[:SHOWN])))
    else:
        worst = sorted(shown.examples, key=lambda row: row.total)
        parts.append(str(tables.result_table(shown, worst[:SHOWN])))
    raise AssertionError("\n\n".join(parts))
