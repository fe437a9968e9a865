"""The policy of a run that an evaluation started: nothing it does leaves the process.

It is in the setup of the run, under `evaluation`, so it holds for every driver, and for a fork or a
retry of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ANY = "*"
"""The rule for every effect that has none of its own."""
REFUSE, RECORDED, REAL, VALUE, FUNCTION = "refuse", "recorded", "real", "value", "function"
MODES = (REFUSE, RECORDED, REAL)

Rules = Mapping[str, Sequence[Any]]
"""By the name of an effect: a mode, `[VALUE, value]`, or `[FUNCTION]`."""


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
