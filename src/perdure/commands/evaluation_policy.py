"""The policy of a run that an evaluation started: nothing it does leaves the process.

It is in the setup of the run, under `evaluation`, so it holds for every driver, and for a fork or a
retry of the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

ANY = "*"  # the rule for every effect that has none of its own
REFUSE, RECORDED, REAL, VALUE, FUNCTION = "refuse", "recorded", "real", "value", "function"
MODES = (REFUSE, RECORDED, REAL)

# By the name of an effect: a mode, `[VALUE, value]`, or `[FUNCTION]`.
Rules = Mapping[str, Sequence[Any]]
# By evaluation, the functions that simulate effects, for each evaluation in this process.
SIMULATIONS: dict[str, list[Mapping[str, Callable[..., Any]]]] = {}
JUDGING: ContextVar[bool] = ContextVar("perdure_judging", default=False)


@dataclass(frozen=True)
class EvaluationPolicy:
    """What a run of an evaluation does instead of what would leave the process."""

    experiment: str
    effects: Rules
    answers: Sequence[Any]
    """What people answer, in the order in which they are asked."""
    signals: Mapping[str, Any]
    origin: str | None
    """The run whose recorded outcomes are taken."""

    def rule(self, name: str, *, reads: bool) -> Sequence[Any]:
        """The rule for an effect. Calls that only read, such as model calls, are made unless a rule
        names them."""
        if name in self.effects:
            return self.effects[name]
        return (REAL,) if reads else self.effects.get(ANY, (REFUSE,))


def evaluation_of(setup: Mapping[str, Any]) -> EvaluationPolicy | None:
    """The policy in the setup of a run, if an evaluation started it."""
    stored = setup.get("evaluation")
    return None if stored is None else EvaluationPolicy(**stored)


@contextlib.contextmanager
def simulating(experiment: str, functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """While this process has the functions that simulate the effects of an evaluation."""
    known = SIMULATIONS.setdefault(experiment, [])
    known.append(functions)
    try:
        yield
    finally:
        del known[next(n for n, one in enumerate(known) if one is functions)]
        if not known:
            del SIMULATIONS[experiment]


@contextlib.contextmanager
def judging() -> Iterator[None]:
    """While an evaluator is asked: it calls no effect, and changes no run."""
    token = JUDGING.set(True)
    try:
        yield
    finally:
        JUDGING.reset(token)
