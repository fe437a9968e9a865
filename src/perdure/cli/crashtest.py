"""`perdure crashtest`: kill an agent everywhere, and see what becomes of it.

Exit codes: 0 the same result every time and nothing duplicated or lost, 1 something was found,
2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from perdure.cli.given import read_json
from perdure.errors import BadArgument

if TYPE_CHECKING:
    from perdure.testing.crashtest import Report, Trial

INTERRUPTED = 130


def crashtest(
    graph: Annotated[
        str,
        typer.Argument(metavar="GRAPH", help="A graph, or a function that makes one: module:name."),
    ],
    input: Annotated[
        str, typer.Option(metavar="JSON|@FILE", help="What it is started with.")
    ] = "{}",
    answer: Annotated[
        str, typer.Option(metavar="JSON|@FILE", help="To whatever a person is asked.")
    ] = '{"ok": true}',
    context: Annotated[
        str, typer.Option(metavar="JSON|@FILE", help="LangGraph's context of the run.")
    ] = "null",
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="postgresql://… of a server to make databases in; default: SQLite files.",
        ),
    ] = None,
    stock: Annotated[
        bool, typer.Option("--stock", help="Drive it with LangGraph's own saver, to compare.")
    ] = False,
    resume: Annotated[
        Literal["none", "input"] | None,
        typer.Option(help="With --stock: resume with invoke(None), the default, or invoke(input)."),
    ] = None,
    recovery: Annotated[
        str, typer.Option(metavar="N|all", help="Second kills in each recovery.")
    ] = "1",
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Kill at N points, evenly spread.")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY", help="A key or path of the result that may differ; repeatable."
        ),
    ] = None,
    harmless: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE", help="FILE, FILE:LINE or 'effect NAME' that may repeat; repeatable."
        ),
    ] = None,
    deadline: Annotated[float, typer.Option(metavar="SECONDS", help="Of a process.")] = 60,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Trials at once; default: the CPUs.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write everything there; - is stdout.")
    ] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write a page there.")] = None,
) -> None:
    """Kill an agent everywhere, and judge what it did."""
    from rich.console import Console

    from perdure.testing.crashtest import CrashTest
    from perdure.testing.crashtest.text import show

    if resume and not stock:
        raise BadArgument("--resume is for --stock: perdure knows by itself where a run stands.")
    sys.path.insert(0, str(Path.cwd()))
    with _Progress() as progress:
        test = CrashTest(
            graph,
            read_json("--input", input),
            url=url,
            stock=stock,
            resume=resume or "none",
            answer=read_json("--answer", answer),
            context=read_json("--context", context),
            recovery=_recovery(recovery),
            limit=limit,
            ignore=ignore or [],
            harmless=harmless or [],
            deadline=deadline,
            jobs=jobs,
            progress=progress,
        )
        report = test.run()
    _write(report, json, html)
    if json != "-":
        show(report, Console())
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
    if not report.ok:
        raise typer.Exit(1)


class _Progress:
    """A bar on stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            Remaining(),
            TextColumn("{task.fields[bad]}", style="red"),
        )
        console = Console(stderr=True)
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("starting", total=None, bad="")
        self._bad = 0

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, what: str, done: int, planned: int, trial: Trial | None) -> None:
        self._bad += trial is not None and bool(trial.findings)
        bad = f"{self._bad} with findings" if self._bad else ""
        self._bar.update(
            self._task, description=what, completed=done, total=planned or None, bad=bad
        )


def _write(report: Report, to_json: str | None, to_html: str | None) -> None:
    if to_json is not None:
        text = json.dumps(report.to_json(), indent=2)
        if to_json == "-":
            print(text)
        else:
            Path(to_json).write_text(text + "\n", encoding="utf-8")
    if to_html is not None:
        Path(to_html).write_text(report.to_html(), encoding="utf-8")


def _recovery(text: str) -> int | Literal["all"]:
    if text == "all":
        return "all"
    if not text.isdecimal():
        raise BadArgument(f"--recovery {text!r} is neither a number nor all.")
    return int(text)
