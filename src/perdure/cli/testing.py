"""Test an agent: `perdure check`, `crashtest`, `evaluate` and `demo`."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from click.exceptions import Exit

from perdure.cli.options import At, Lines, Parameter, RuntimeAt, parse_pair
from perdure.cli.output import paint, paint_state, print_json
from perdure.cli.target import import_object, runtime_at
from perdure.errors import BadArgument, needs_extra
from perdure.text import printable, printable_lines
from perdure.times import utc_time
from perdure.views.code_changes import HeldGroup, Unregistered, code_changes
from perdure.views.formatting import graph_title

if TYPE_CHECKING:
    from perdure.runtime import Runtime

CONTACTS = range(3, 11)
LISTED = 5
"""Runs that `check` lists for each reason; --json has all."""
DEMOS = ("perdure._demo.campaign", "examples.campaign")
"""The campaign in an installed package, and in the repository."""
REPOSITORY = Path(__file__).parents[3]


def check(
    at: RuntimeAt = None,
    *,
    elsewhere: Annotated[tuple[str, ...], Parameter(metavar="NAME")] = (),
    json: Lines = False,
) -> None:
    """List unfinished runs that the current code would hold.

    Run it before a deploy, with the new code, against the journal that the deploy will use. It
    checks each run as its next claim would, and changes nothing. It also counts runs whose graph is
    not registered here. Exits with 1 if it finds either kind. A journal with an older schema is
    refused, because opening it would migrate it.

    Args:
        elsewhere: Graph that another process registers: NAME or NAME@VERSION, may have a *;
            repeatable. Its runs do not count as a failure.
    """
    rt = runtime_at(at)
    found, newest = rt.schema_version(), rt.newest_schema()
    if found is None:
        raise BadArgument(f"There is no journal at {rt.url}, so there is no run to check.")
    if found < newest:
        raise BadArgument(
            f"The journal has schema {found}, and this version of perdure needs {newest}. "
            "`perdure check` changes nothing: run `perdure migrate` first."
        )
    with rt:
        result = rt.blocking.check()
    missing, others = [], 0
    for one in result.missing:
        names = (one.graph, graph_title(one.graph, one.version))
        if any(fnmatchcase(name, pattern) for name in names for pattern in elsewhere):
            others += one.runs
        else:
            missing.append(one)
    if json:
        for lost in (*result.lost, *missing):
            print_json(lost)
    else:
        changes = code_changes(result.checked, result.lost, missing, rt.graphs, others)
        _print_held(changes.held)
        _print_unregistered(changes.unregistered)
        print(printable(changes.summary))
    if result.lost or missing:
        raise Exit(1)


def _print_held(groups: Iterable[HeldGroup]) -> None:
    for group in groups:
        print(paint(printable(group.headline), "bold"))
        print(f"  {printable(group.reason)}.")
        for one in group.runs[:LISTED]:
            print(f"  {one.run_id}  {paint_state(one.state, 9)}  {printable(one.thread_id)}")
        if len(group.runs) > LISTED:
            print(f"  … {len(group.runs) - LISTED:,} more; see --json")
        print()


def _print_unregistered(graphs: Iterable[Unregistered]) -> None:
    for one in graphs:
        print(paint(printable(one.headline), "bold"))
        # That command would cancel the runs of each version.
        cancel = "RUN" if one.has_other_version else f"--graph {one.name}"
        hint = f" {one.hint}" if one.hint else ""
        print(
            f"  The graph is not registered here.{hint} Keep it registered until its runs have "
            f"ended. If another process registers it, pass --elsewhere "
            f"{printable(shlex.quote(one.graph))}. To give up on its runs: "
            f"{printable(f'perdure cancel {cancel}')}\n"
        )


def crashtest(
    graph: str,
    *,
    input: Any = None,
    answer: Any = None,
    context: Any = None,
    url: str | None = None,
    stock: bool = False,
    resume: Literal["none", "input"] | None = None,
    recovery: int = 1,
    limit: int | None = None,
    ignore: Annotated[tuple[str, ...], Parameter(metavar="KEY")] = (),
    harmless: Annotated[tuple[str, ...], Parameter(metavar="PLACE")] = (),
    deadline: float = 60.0,
    jobs: int | None = None,
) -> None:
    """Kill an agent at every point, and check that it recovers.

    Kills real processes before and after every statement of the journal and around every effect.
    Exits with 0 if the result is the same every time and nothing is duplicated or lost, with 1 if
    something was found, with 130 if it was interrupted.

    Args:
        graph: module:name of a graph, or of a function that makes one.
        input: Input of the run; by default {}.
        answer: Answer to every question; by default an approval.
        context: LangGraph's context.
        url: A postgresql:// server to create databases in; by default SQLite files. D1 is not
            supported.
        stock: Use LangGraph's own saver, to compare.
        resume: With --stock: resume with invoke(None), the default, or with the input again.
        recovery: Second kills during each recovery.
        limit: Kill at N points, those right after effects and outward actions first; by default at
            all.
        ignore: Key or path of the result that may differ; repeatable.
        harmless: FILE, FILE:LINE or 'effect NAME' that may repeat; repeatable.
        deadline: Time limit for each process.
        jobs: Trials to run at once; by default as many as there are CPUs.
    """
    from perdure.testing.crashtest import CrashTest

    if resume and not stock:
        raise BadArgument("--resume needs --stock: perdure resumes runs by itself.")
    sys.path.insert(0, str(Path.cwd()))
    report = CrashTest(
        graph,
        {} if input is None else input,
        url=url,
        stock=stock,
        resume="input" if resume == "input" else "none",
        answer=answer,
        context=context,
        recovery=recovery,
        limit=limit,
        ignore=ignore,
        harmless=harmless,
        deadline=deadline,
        jobs=jobs,
        progress=_print_progress if sys.stderr.isatty() else None,
    ).run()
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    print(report)
    if not report.ok:
        raise Exit(130 if report.interrupted else 1)


def _print_progress(what: str, done: int, planned: int, trial: object) -> None:
    """One line on stderr, written over again."""
    trials = f", {done} of {planned} trials" if planned else ""
    print(f"\r\x1b[K{what}{trials}", end="", file=sys.stderr, flush=True)


def evaluate(
    target: str,
    examples: str,
    *,
    evaluator: Annotated[tuple[str, ...], Parameter(metavar="MODULE:FUNCTION")],
    name: str | None = None,
    at: At = None,
    effects: Annotated[str, Parameter(metavar="RULE")] = "refuse",
    repetitions: int = 1,
    to: Annotated[str | None, Parameter(metavar="FILE")] = None,
    baseline: Annotated[str | None, Parameter(metavar="FILE")] = None,
    at_least: Annotated[
        tuple[tuple[str, Any], ...], Parameter(metavar="SCORE=NUMBER", read=parse_pair)
    ] = (),
) -> None:
    """Evaluate a graph on examples.

    Each example is a durable run whose effects stay in the process, and each result of an evaluator
    a score of that run. Prints the scores with their 95 % confidence intervals.

    Args:
        target: A registered graph, or MODULE:NAME of a graph or a function.
        examples: A JSON Lines file, or langsmith:NAME, which needs LANGSMITH_API_KEY.
        evaluator: Function that judges; repeatable.
        name: Name of the evaluation, by default the target and the time. One that was interrupted
            continues.
        effects: What replaces effects: refuse, recorded, or MODULE:DICT of rules.
        repetitions: Runs of each example.
        to: Write the results to FILE, as JSON Lines.
        baseline: Compare with the results in FILE.
        at_least: Exit with 1 if the mean of the score is lower, or an example lacks it; repeatable.
    """
    from perdure import evals

    bounds: dict[str, Any] = dict(at_least)
    for score, least in bounds.items():
        if not isinstance(least, (int, float)):
            raise BadArgument(f"--at-least {score}={least} is not a bound: write correct=0.9.")
    judges = [import_object(one) for one in evaluator]
    rules: Any = import_object(effects) if ":" in effects else effects
    before = None if baseline is None else evals.Evaluation.read(baseline)
    with _runtime(at) as runtime:
        ask = runtime.blocking
        found = ask.run(
            evals.evaluate(
                import_object(target) if ":" in target else target,
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
    failures = []
    for score, least in bounds.items():
        if missing := len(ids - found.numbers(score).keys()):
            failures.append(f"{missing} of {len(ids)} examples have no {score}")
        elif (mean := found.mean(score)) < least:
            failures.append(f"{score} is {mean:.3g}, less than {least:g}")
    for why in failures:
        print(f"perdure: {printable(why)}.", file=sys.stderr)
    if failures:
        raise Exit(1)


def _runtime(at: str | None) -> Runtime:
    """The runtime of a target. A journal alone is enough for a target that is not registered."""
    place = at or os.environ.get("PERDURE_URL", "")
    if "://" not in place:
        return runtime_at(at)
    from perdure.runtime import Runtime

    return Runtime(place)


def demo(*, contacts: int = 5, seed: int | None = None, plain: bool = False) -> None:
    """Watch a month-long agent survive constant kills.

    Plays a month of an e-mail campaign in about a minute while its workers are killed. Needs the
    packages of the extra `demo`; without them it prints the command that installs them.

    Args:
        contacts: Number of contacts, 3 to 10.
        seed: Seed of replies and failures; by default a random one.
        plain: Print no colours.
    """
    if contacts not in CONTACTS:
        raise BadArgument(f"--contacts {contacts}: use 3 to 10.")
    code = _load_demo().main(contacts=contacts, seed=seed, plain=plain)
    if code:
        raise Exit(code)


def _load_demo() -> Any:
    if (REPOSITORY / "examples" / "campaign").is_dir():
        sys.path.insert(0, str(REPOSITORY))
    for package in DEMOS:
        try:
            return importlib.import_module(f"{package}.demo.play")
        except ModuleNotFoundError as error:
            if f"{package}.demo.play.".startswith(f"{error.name}."):
                continue
            raise BadArgument(needs_extra("The demo", "demo")) from error
    raise BadArgument("This installation has no demo: install perdure from a wheel.")
