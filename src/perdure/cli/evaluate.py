"""`perdure evaluate`: a graph on examples, compared with an earlier evaluation."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from perdure.cli.options import At
from perdure.cli.parsing import parse_pairs
from perdure.cli.target import import_object, runtime_at
from perdure.errors import BadArgument
from perdure.text import printable, printable_lines
from perdure.times import utc_time

if TYPE_CHECKING:
    from perdure.runtime import Runtime


def evaluate(
    target: Annotated[
        str, Argument(help="A registered graph, or MODULE:NAME of a graph or a function.")
    ],
    examples: Annotated[
        str,
        Argument(help="A JSON Lines file, or langsmith:NAME, which needs LANGSMITH_API_KEY."),
    ],
    evaluator: Annotated[
        list[str], Option(metavar="MODULE:FUNCTION", help="Function that judges; repeatable.")
    ],
    name: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Name of the evaluation. One that was interrupted continues.",
            show_default="the target and the time",
        ),
    ] = None,
    at: At = None,
    effects: Annotated[
        str,
        Option(
            metavar="RULE", help="What replaces effects: refuse, recorded, or MODULE:DICT of rules."
        ),
    ] = "refuse",
    repetitions: Annotated[int, Option(metavar="N", help="Runs of each example.")] = 1,
    to: Annotated[
        str | None, Option(metavar="FILE", help="Write the results to FILE, as JSON Lines.")
    ] = None,
    baseline: Annotated[
        str | None, Option(metavar="FILE", help="Compare with the results in FILE.")
    ] = None,
    at_least: Annotated[
        list[str] | None,
        Option(
            metavar="SCORE=NUMBER",
            help="Exit with 1 if the mean of the score is lower, or an example lacks it; "
            "repeatable.",
        ),
    ] = None,
) -> None:
    """Evaluate a graph on examples.

    Each example is a durable run whose effects stay in the process, and each result of an evaluator
    a score of that run. Prints the scores with their 95 % confidence intervals.
    """
    from perdure import evals

    pairs = parse_pairs("--at-least", at_least or [])
    bounds = {score: _number(score, value) for score, value in pairs.items()}
    judges = [import_object(one) for one in evaluator]
    rules: Any = import_object(effects) if ":" in effects else effects
    before = None if baseline is None else evals.Evaluation.read(baseline)
    what = import_object(target) if ":" in target else target
    with _runtime(at) as runtime:
        ask = runtime.blocking
        found = ask.run(
            evals.evaluate(
                what,
                examples,
                judges,
                name=name or f"{target} {utc_time(ask.now())}",
                runtime=runtime,
                effects=rules,
                repetitions=repetitions,
            )
        )
    if to is not None:
        found.write(to)
    print(printable_lines(found.table(before)))
    ids = {one.example for one in found.results}
    failed = False
    for score, least in bounds.items():
        numbers = found.numbers(score)
        if missing := len(ids - numbers.keys()):
            why = f"{missing} of {len(ids)} examples have no {score}"
        elif (mean := found.mean(score)) < least:
            why = f"{score} is {mean:.3g}, less than {least:g}"
        else:
            continue
        failed = True
        print(f"perdure: {printable(why)}.", file=sys.stderr)
    if failed:
        raise Exit(1)


def _number(score: str, value: Any) -> float:
    if not isinstance(value, (int, float)):
        raise BadArgument(f"--at-least {score}={value} is not a bound: write correct=0.9.")
    return float(value)


def _runtime(at: str | None) -> Runtime:
    """The runtime of a target. A journal alone is enough for a target that is not registered."""
    place = at or os.environ.get("PERDURE_URL", "")
    if "://" not in place:
        return runtime_at(at)
    from perdure.runtime import Runtime

    return Runtime(place)
