"""`perdure crashtest`: kill an agent everywhere, and see what becomes of it.

Exit codes: 0 the same result every time and nothing duplicated or lost, 1 something was found,
2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from perdure.errors import BadArgument

if TYPE_CHECKING:
    from perdure.testing.crashtest import Report, Trial

INTERRUPTED = 130


def add(commands: Any) -> None:
    """The sub-command, for argparse's subparsers."""
    parser = commands.add_parser(
        "crashtest", help="kill an agent everywhere, and judge what it did"
    )
    parser.add_argument("graph", help="a graph, or a function that makes one: module:name")
    parser.add_argument(
        "--input", default="{}", metavar="JSON|@FILE", help="what it is started with; default {}"
    )
    parser.add_argument(
        "--answer",
        default='{"ok": true}',
        metavar="JSON|@FILE",
        help="to whatever a person is asked",
    )
    parser.add_argument(
        "--context", default="null", metavar="JSON|@FILE", help="LangGraph's context of the run"
    )
    parser.add_argument(
        "--url", help="postgresql://… of a server to make databases in; default: SQLite files"
    )
    parser.add_argument(
        "--stock", action="store_true", help="drive it with LangGraph's own saver, to compare"
    )
    parser.add_argument(
        "--resume",
        choices=("none", "input"),
        help="with --stock: resume with invoke(None), the default, or invoke(input)",
    )
    parser.add_argument(
        "--recovery",
        type=_recovery,
        default=1,
        metavar="N|all",
        help="second kills in each recovery; default 1",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="kill at N points, evenly spread")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="KEY",
        help="a key or path of the result that may differ; repeatable",
    )
    parser.add_argument(
        "--harmless",
        action="append",
        default=[],
        metavar="PLACE",
        help="FILE, FILE:LINE or 'effect NAME' that may repeat; repeatable",
    )
    parser.add_argument(
        "--deadline", type=float, default=60, metavar="SECONDS", help="of a process; default 60"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="trials at once; default: the CPUs")
    parser.add_argument("--json", metavar="FILE", help="write everything there; - is stdout")
    parser.add_argument("--html", metavar="FILE", help="write a page there")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from perdure.testing.crashtest import CrashTest
    from perdure.testing.crashtest.terminal import show

    if arguments.resume and not arguments.stock:
        raise BadArgument("--resume is for --stock: perdure knows by itself where a run stands.")
    sys.path.insert(0, str(Path.cwd()))
    with _Progress() as progress:
        test = CrashTest(
            arguments.graph,
            _read("--input", arguments.input),
            url=arguments.url,
            stock=arguments.stock,
            resume=arguments.resume or "none",
            answer=_read("--answer", arguments.answer),
            context=_read("--context", arguments.context),
            recovery=arguments.recovery,
            limit=arguments.limit,
            ignore=arguments.ignore,
            harmless=arguments.harmless,
            deadline=arguments.deadline,
            jobs=arguments.jobs,
            progress=progress,
        )
        try:
            report = test.run()
        except KeyboardInterrupt:
            return INTERRUPTED
    _write(report, arguments)
    if arguments.json != "-":
        show(report, Console())
    if report.interrupted:
        return INTERRUPTED
    return 0 if report.ok else 1


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


def _write(report: Report, arguments: argparse.Namespace) -> None:
    if arguments.json is not None:
        text = json.dumps(report.to_json(), indent=2)
        if arguments.json == "-":
            print(text)
        else:
            Path(arguments.json).write_text(text + "\n", encoding="utf-8")
    if arguments.html is not None:
        Path(arguments.html).write_text(report.to_html(), encoding="utf-8")


def _recovery(text: str) -> int | Literal["all"]:
    return "all" if text == "all" else int(text)


def _read(option: str, given: str) -> Any:
    """JSON, or what is in the file behind an @."""
    try:
        text = Path(given[1:]).read_text(encoding="utf-8") if given.startswith("@") else given
        return json.loads(text)
    except OSError as error:
        raise BadArgument(f"{option} {given}: {error.strerror or error}.") from error
    except ValueError as error:
        raise BadArgument(
            f"{option} {given} is no JSON: {error}. Quote it for the shell: "
            f"{option} '{{\"contact\": 7}}'."
        ) from error
