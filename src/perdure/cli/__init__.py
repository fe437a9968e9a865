"""The command line.

Exit codes:

    0    success
    1    the command found a problem: `doctor`, `check`, `migrate --check`, `crashtest`,
         `d1 doctor`, `evaluate --at-least`, or `start --wait` when the run did not end done
    2    wrong use, or not found: an unknown id, no journal, a run in the wrong state, a module of
         yours that raised while it was imported
    130  interrupted

This file is the table of contents: a module per command, or per kind of commands. Modules of
commands are light to import; what they work with is imported when they are called, so that `--help`
and listings answer at once. Only commands that drive graphs load LangGraph.

    target          --at: the journal, Runtime or project that a command works on
    langgraph_json  reads a langgraph.json; graph_loading imports its graphs
    parsing         values of arguments; output prints, and has commands to paste
    run_lookup      runs by the beginning of their ids, with everything that belongs to them

What commands show is worded in `perdure.views`.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from perdure.cli import (
    check,
    control,
    crashtest,
    d1_commands,
    demo,
    dev,
    effects,
    evaluate,
    export,
    inbox,
    maintenance,
    reflections,
    runs,
    schedules,
    serve,
    start,
    thread_import,
    tokens,
    worker,
    workers,
)
from perdure.cli.command_group import Command, CommandGroup
from perdure.cli.log_output import guard_stderr
from perdure.errors import Error
from perdure.serde.redaction import hide_in_url
from perdure.text import printable

EXIT_CODES = (
    "Exit codes: 0 success; 1 a problem was found; 2 wrong use, or not found; 130 interrupted."
)
app = typer.Typer(
    name="perdure",
    cls=CommandGroup,
    help="Durable runs of LangGraph agents.",
    epilog=EXIT_CODES,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _add(section: str, *commands: Any) -> None:
    for command in commands:
        app.command(command.__name__.rstrip("_"), cls=Command, rich_help_panel=section)(command)


_add("Drive", demo.demo, dev.dev, serve.serve, worker.worker, worker.tick)
_add("Drive", workers.workers, workers.drain)
_add("Start and inspect", start.start, runs.runs, runs.show)
_add("People and messages", inbox.inbox, inbox.answer, inbox.withdraw, inbox.link, inbox.signal)
_add("Change the course of a run", control.pause, control.resume)
_add("Change the course of a run", control.wake, control.cancel, control.retry, control.fork)
_add("Effects, schedules, memories", effects.effects, effects.settle)
_add("Effects, schedules, memories", schedules.schedules, reflections.reflections)
_add("Look after a journal", maintenance.prune, maintenance.erase)
_add("Look after a journal", maintenance.doctor, maintenance.migrate)
_add("Look after a journal", export.export, thread_import.import_)
_add("Test an agent", check.check, crashtest.crashtest, evaluate.evaluate)

token = typer.Typer(name="tokens", cls=CommandGroup, help="Tokens of the HTTP API.")
token.command("create", cls=Command)(tokens.create)
token.command("list", cls=Command)(tokens.list_)
token.command("revoke", cls=Command)(tokens.revoke)
app.add_typer(token, rich_help_panel="Serve")

d1 = typer.Typer(name="d1", cls=CommandGroup, help="Set up and check a journal on Cloudflare D1.")
d1.command("init", cls=Command)(d1_commands.init)
d1.command("doctor", cls=Command)(d1_commands.doctor)
app.add_typer(d1, rich_help_panel="Cloudflare")


def _print_version(wanted: bool) -> None:
    if wanted:
        from perdure import __version__

        print(f"perdure {__version__}")
        raise typer.Exit()


@app.callback()
def _perdure(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Durable runs of LangGraph agents."""


def _only(names: list[str]) -> typer.Typer:
    """The app with only the command that is called. Building every command would slow a listing by
    about 10 %."""
    narrowed = copy.copy(app)
    narrowed.registered_commands = [one for one in app.registered_commands if one.name in names]
    narrowed.registered_groups = [one for one in app.registered_groups if one.name in names]
    return narrowed if narrowed.registered_commands or narrowed.registered_groups else app


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    guard_stderr()
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = typer.main.get_command(_only(arguments[:1]))
    try:
        code = command.main(arguments or ["--help"], prog_name="perdure", standalone_mode=False)
    except Error as error:
        from perdure.cli.output import print_error

        print_error(error)
        return 2
    except typer.Abort:
        print("perdure: aborted; nothing was changed.", file=sys.stderr)
        return 130
    except Exception as error:
        format_message = getattr(error, "format_message", None)  # wrong use, found by Typer
        if format_message is None:
            raise
        path = getattr(getattr(error, "ctx", None), "command_path", "perdure")
        message = " ".join(hide_in_url(format_message()).split())  # of an argument, perhaps
        message += "" if message.endswith((".", "?", "!")) else "."
        print(f"perdure: {printable(message)} See `{path} --help`.", file=sys.stderr)
        return 2
    return code if isinstance(code, int) else 0
