"""The command line.

Exit codes:

    0    fine
    1    the command looked and found a problem: `doctor`, `migrate --check`, `crashtest`, or the
         run that `start --wait` waited for did not end done
    2    wrong use, or nothing there: an unknown id, no journal, a state in which it cannot be done,
         a module of yours that raised while it was imported
    130  interrupted

This file is the table of contents. A command's module is light to import; what it works with is
imported when it is called, so that `--help` and listings answer at once. LangGraph is loaded only
by what drives graphs.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from perdure.cli import (
    control,
    crashtest,
    demo,
    dev,
    drive,
    effects,
    export,
    inbox,
    reflections,
    runs,
    schedules,
    show,
    start,
    upkeep,
)
from perdure.cli.group import Command, Group
from perdure.errors import Error

EXIT_CODES = (
    "Exit codes: 0 fine; 1 it looked and found a problem; 2 wrong use, or nothing there; "
    "130 interrupted."
)
app = typer.Typer(
    name="perdure",
    cls=Group,
    help="Durable runs of LangGraph agents.",
    epilog=EXIT_CODES,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _add(section: str, **commands: Any) -> None:
    for name, function in commands.items():
        app.command(name, cls=Command, rich_help_panel=section)(function)


_add("Drive", demo=demo.demo, dev=dev.dev, worker=drive.worker, tick=drive.tick)
_add("Start and look", start=start.start, runs=runs.runs, show=show.show)
_add("People and messages", inbox=inbox.inbox, answer=inbox.answer, signal=inbox.signal)
_add(
    "Change the course of a run",
    pause=control.pause,
    resume=control.resume,
    cancel=control.cancel,
    retry=control.retry,
    fork=control.fork,
)
_add(
    "Effects, schedules, memories",
    effects=effects.effects,
    settle=effects.settle,
    schedules=schedules.schedules,
    reflections=reflections.reflections,
)
_add(
    "Look after a journal",
    prune=upkeep.prune,
    doctor=upkeep.doctor,
    migrate=upkeep.migrate,
    export=export.export,
)
_add("Test an agent", crashtest=crashtest.crashtest)


def _version(asked: bool) -> None:
    if asked:
        from perdure import __version__

        print(f"perdure {__version__}")
        raise typer.Exit()


@app.callback()
def _perdure(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Tell which one this is."),
    ] = False,
) -> None:
    """Durable runs of LangGraph agents."""


def _narrowed(names: list[str]) -> typer.Typer:
    """Only the command that is called, if it is one: making all of them takes a tenth of the time
    that a listing takes."""
    chosen = [one for one in app.registered_commands if one.name in names]
    if not chosen:
        return app
    narrowed = copy.copy(app)
    narrowed.registered_commands = chosen
    return narrowed


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and give its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    command = typer.main.get_command(_narrowed(given[:1]))
    try:
        code = command.main(given or ["--help"], prog_name="perdure", standalone_mode=False)
    except Error as error:
        from perdure.cli.tell import sentence

        print(f"perdure: {sentence(error)}", file=sys.stderr)
        return 2
    except typer.Abort:
        print("perdure: stopped; nothing was done.", file=sys.stderr)
        return 130
    except Exception as error:
        wrong_use = getattr(error, "format_message", None)
        if wrong_use is None:
            raise
        path = getattr(getattr(error, "ctx", None), "command_path", "perdure")
        told = " ".join(wrong_use().split())
        told += "" if told.endswith((".", "?", "!")) else "."
        print(f"perdure: {told} See `{path} --help`.", file=sys.stderr)
        return 2
    return code if isinstance(code, int) else 0
