"""The rules of an evaluation for effects: from the argument `effects=` to what each run stores.

The rules are in the setup of each run, so every worker that drives it obeys them
(`segments/evaluation_policy.py`, `effects/simulation.py`). Only functions are not in the journal:
they are known in the processes that evaluate, by the name of the evaluation. A worker without them
refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perdure.errors import BadArgument
from perdure.segments.evaluation_policy import (
    ANY,
    FUNCTION,
    MODES,
    REAL,
    RECORDED,
    REFUSE,
    VALUE,
    Rules,
)
from perdure.service.validation import check_name
from perdure.types import Example


def rules_of(effects: Any) -> tuple[Rules, dict[str, Callable[..., Any]]]:
    """The rules that `effects=` means, by the name of the effect, and the functions among them."""
    if isinstance(effects, str):
        if effects not in (REFUSE, RECORDED):
            raise BadArgument(f"effects={effects!r}: use 'refuse', 'recorded' or a dict.")
        return ({} if effects == REFUSE else {ANY: [effects]}), {}
    if not isinstance(effects, Mapping):
        raise BadArgument(f"effects={effects!r}: use 'refuse', 'recorded' or a dict.")
    rules: dict[str, list[Any]] = {}
    functions: dict[str, Callable[..., Any]] = {}
    for name, rule in effects.items():
        check_name("the name of an effect", name)
        if isinstance(rule, str) and rule in MODES:
            rules[name] = [str(rule)]
        elif callable(rule):
            rules[name], functions[name] = [FUNCTION], rule
        else:
            rules[name] = [VALUE, rule]
        if rules[name] == [REAL] and _is_never_real(name):
            raise BadArgument(
                f"effects={{{name!r}: 'real'}}: this one reaches other runs, whose effects would "
                "not be simulated. Give a value or a function."
            )
    return rules, functions


def _is_never_real(name: str) -> bool:
    return name in (ANY, "outbox") or name.startswith("perdure.")


def policy_for(experiment: str, rules: Rules, example: Example) -> dict[str, Any]:
    """What the run of an example stores."""
    return {
        "experiment": experiment,
        "effects": dict(rules),
        "answers": list(example.answers),
        "signals": dict(example.signals),
        "origin": example.run_id,
    }
