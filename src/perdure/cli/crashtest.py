"""`perdure crashtest`: kill an agent at every point, and check that it recovers.

Exit codes: 0 the same result every time and nothing duplicated or lost, 1 something was found,
2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from json import dumps as to_json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Exit, Option

from perdure.cli.output import is_terminal
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
    recovery: Annotated[
        str,
        Option(metavar="N|all", help="Second kills during each recovery; all: one at each point."),
    ] = "1",
    limit: Annotated[
        int | None,
        Option(
            metavar="N",
            help="Kill at N points, those around effects and outward actions first.",
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
    html: Annotated[str | None, Option(metavar="FILE", help="Write the report as a page.")] = None,
    verbose: Annotated[
        bool, Option("--verbose", help="Name the journal's statements instead of nodes and phases.")
    ] = False,
) -> None:
    """Kill an agent at every point, and check that it recovers.

    Kills real processes before and after every statement of the journal and around every effect.
    Exits with 0 if the result is the same every time and nothing is duplicated or lost, with 1 if
    something was found, with 130 if it was interrupted.
    """
    from rich.console import Console

    from perdure.testing.crashtest import CrashTest
    from perdure.testing.crashtest.report import WIDTH

    if resume and not stock:
        raise BadArgument("--resume needs --stock: perdure knows where a run has to go on.")
    sys.path.insert(0, str(Path.cwd()))
    with _progress_bar() as progress:
        test = CrashTest(
            graph,
            parse_json("--input", input),
            url=url,
            stock=stock,
            resume=resume or "none",
            answer=None if answer is None else parse_json("--answer", answer),
            context=parse_json("--context", context),
            recovery=_parse_recovery(recovery),
            limit=limit,
            ignore=ignore or [],
            harmless=harmless or [],
            deadline=deadline,
            jobs=jobs,
            progress=progress,
        )
        report = test.run()
    if json == "-":
        print(to_json(report.to_json(), indent=2))
    else:
        width = None if is_terminal() else WIDTH
        report.print(Console(highlight=False, width=width), verbose=verbose)
        if json is not None:
            text = to_json(report.to_json(), indent=2)
            Path(json).write_text(f"{text}\n", encoding="utf-8")
    if html is not None:
        Path(html).write_text(report.to_html(), encoding="utf-8")
    if not report.ok:
        raise Exit(130 if report.interrupted else 1)


@contextlib.contextmanager
def _progress_bar() -> Iterator[Callable[[str, int, int, Trial | None], None]]:
    """A progress bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    text, found = TextColumn("{task.description}"), TextColumn("{task.fields[bad]}", style="red")
    columns = (text, BarColumn(), MofNCompleteColumn(), Remaining(), found)
    console, bad = Console(stderr=True), 0

    def update(what: str, done: int, planned: int, trial: Trial | None) -> None:
        nonlocal bad
        bad += trial is not None and bool(trial.findings)
        findings = f"{bad} with findings" if bad else ""
        bar.update(task, description=what, completed=done, total=planned or None, bad=findings)

    off = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=off) as bar:
        task = bar.add_task("starting", total=None, bad="")
        yield update


def _parse_recovery(text: str) -> int | Literal["all"]:
    if text == "all":
        return "all"
    if not text.isdecimal():
        raise BadArgument(f"--recovery {text!r} is neither a number nor 'all'.")
    return int(text)
