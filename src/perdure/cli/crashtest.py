"""`perdure crashtest`: kill an agent at every point, and check that it recovers.

Exit codes: 0 the same result every time and nothing duplicated or lost, 1 something was found,
2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import sys
from json import dumps as to_json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Exit, Option

from perdure.cli.parsing import parse_json
from perdure.errors import BadArgument

if TYPE_CHECKING:
    from perdure.testing.crashtest import Trial


def crashtest(
    graph: Annotated[
        str,
        Argument(metavar="GRAPH", help="module:name of a graph, or of a function that makes one."),
    ],
    input: Annotated[str, Option(metavar="JSON|@FILE", help="Input of the run.")] = "{}",
    answer: Annotated[
        str | None,
        Option(
            metavar="JSON|@FILE",
            help="Answer to every question.",
            show_default="an approval",
        ),
    ] = None,
    context: Annotated[str, Option(metavar="JSON|@FILE", help="LangGraph's context.")] = "null",
    url: Annotated[
        str | None,
        Option(
            metavar="URL",
            help="A postgresql:// server to create databases in. D1 is not supported.",
            show_default="SQLite files",
        ),
    ] = None,
    stock: Annotated[
        bool, Option("--stock", help="Use LangGraph's own saver, to compare.")
    ] = False,
    resume: Annotated[
        Literal["none", "input"] | None,
        Option(
            help="With --stock: resume with invoke(None), or with the input again.",
            show_default="none",
        ),
    ] = None,
    recovery: Annotated[int, Option(metavar="N", help="Second kills during each recovery.")] = 1,
    limit: Annotated[
        int | None,
        Option(
            metavar="N",
            help="Kill at N points, those right after effects and outward actions first.",
            show_default="all",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        Option(metavar="KEY", help="Key or path of the result that may differ; repeatable."),
    ] = None,
    harmless: Annotated[
        list[str] | None,
        Option(
            metavar="PLACE", help="FILE, FILE:LINE or 'effect NAME' that may repeat; repeatable."
        ),
    ] = None,
    deadline: Annotated[float, Option(metavar="SECONDS", help="Time limit for each process.")] = 60,
    jobs: Annotated[
        int | None,
        Option(metavar="N", help="Trials to run at once.", show_default="number of CPUs"),
    ] = None,
    json: Annotated[
        str | None, Option(metavar="FILE", help="Write the report as JSON; - is stdout.")
    ] = None,
) -> None:
    """Kill an agent at every point, and check that it recovers.

    Kills real processes before and after every statement of the journal and around every effect.
    Exits with 0 if the result is the same every time and nothing is duplicated or lost, with 1 if
    something was found, with 130 if it was interrupted.
    """
    from perdure.testing.crashtest import CrashTest

    if resume and not stock:
        raise BadArgument("--resume needs --stock: perdure knows where a run has to go on.")
    sys.path.insert(0, str(Path.cwd()))
    test = CrashTest(
        graph,
        parse_json("--input", input),
        url=url,
        stock=stock,
        resume=resume or "none",
        answer=None if answer is None else parse_json("--answer", answer),
        context=parse_json("--context", context),
        recovery=recovery,
        limit=limit,
        ignore=ignore or [],
        harmless=harmless or [],
        deadline=deadline,
        jobs=jobs,
        progress=_print_progress if sys.stderr.isatty() else None,
    )
    report = test.run()
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    data = None if json is None else to_json(report.to_json(), indent=2)
    print(data if json == "-" else report)
    if data is not None and json != "-":
        Path(str(json)).write_text(f"{data}\n", encoding="utf-8")
    if not report.ok:
        raise Exit(130 if report.interrupted else 1)


def _print_progress(what: str, done: int, planned: int, trial: Trial | None) -> None:
    """One line on stderr, written over again."""
    trials = f", {done} of {planned} trials" if planned else ""
    print(f"\r\x1b[K{what}{trials}", end="", file=sys.stderr, flush=True)
