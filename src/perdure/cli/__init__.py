"""The command line.

Exit codes:

    0    success
    1    the command found a problem: `doctor`, `check`, `migrate --check`, `crashtest`, `import`,
         `d1 doctor`, `evaluate --at-least`, or `start --wait` when the run did not end done
    2    wrong use, or not found: an unknown id, no journal, a run in the wrong state, a module of
         yours that raised while it was imported
    130  interrupted

This file is the table of contents. Modules of commands are light to import; clients, graphs and
what else takes time is imported when a command is called, so that `--help` and listings answer at
once. Only commands that drive graphs load LangGraph.

    verb_commands   commands that are verbs; options: what a command takes, from types and docstring
    output          how commands print, and commands to paste
    target          --at: the journal, Runtime or project that a command works on
    project         reads a langgraph.json; graph_loading imports its graphs

What commands show is worded in `perdure.views`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.exceptions import Exit

from perdure.cli import admin, d1, dev, inbox, journal, runs, serving, testing
from perdure.cli import verb_commands as verbs
from perdure.cli.logs import guard_stderr
from perdure.cli.options import command
from perdure.cli.output import print_error
from perdure.errors import Error
from perdure.text import printable
from perdure.views.formatting import hide_in_url


def _group(name: str, help: str, *functions: Any) -> click.Group:
    return click.Group(name, [command(one) for one in functions], help=help)


TOKENS = _group("tokens", "Tokens of the HTTP API.", admin.create, admin.list_, admin.revoke)
D1 = _group("d1", "Set up and check a journal on Cloudflare D1.", d1.init, d1.doctor)
DRIVE: Any = (testing.demo, dev.dev, serving.serve, serving.worker, serving.tick, admin.workers)
JOURNAL: Any = (journal.doctor, journal.migrate, journal.export, journal.import_)
TEST: Any = (testing.check, testing.crashtest, testing.evaluate)
SECTIONS: dict[str, list[click.Command]] = {
    "Drive": [*map(command, DRIVE), verbs.DRAIN],
    "Start and inspect": [runs.START, command(runs.runs), command(runs.show)],
    "People and messages": [
        *(command(inbox.inbox), verbs.ANSWER, verbs.ASSIGN, verbs.WITHDRAW, verbs.LINK),
        *(verbs.SIGNAL, verbs.REDELIVER),
    ],
    "Change the course of a run": [
        *(verbs.PAUSE, verbs.RESUME, verbs.WAKE, verbs.CANCEL, verbs.RETRY, command(runs.fork)),
        *(verbs.COMMENT, verbs.SCORE),
    ],
    "Effects, schedules, memories": [
        *(command(inbox.effects), verbs.SETTLE, command(admin.schedules)),
        *(verbs.SCHEDULE, verbs.ENABLE_SCHEDULE, verbs.UNSCHEDULE, command(admin.reflections)),
    ],
    "Look after a journal": [verbs.PRUNE, verbs.ERASE, *map(command, JOURNAL)],
    "Test an agent": [*map(command, TEST)],
    "Serve": [TOKENS],
    "Cloudflare": [D1],
}


class Commands(click.Group):
    """The commands, listed in their sections."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands))
        limit = formatter.width - width - 6
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{one.name:{width}}", one.get_short_help_str(limit)) for one in commands]
                )

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:  # such as `perdure runs | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise Exit(0) from None


def _print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from perdure import __version__

        print(f"perdure {__version__}")
        ctx.exit()


app = Commands(
    "perdure",
    [one for commands in SECTIONS.values() for one in commands],
    help="Durable runs of LangGraph agents.",
    epilog="Exit codes: 0 success; 1 a problem was found; 2 wrong use, or not found; 130 "
    "interrupted.",
    context_settings={"help_option_names": ["--help", "-h"]},
    params=[
        click.Option(
            ["--version"],
            help="Show the version.",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
        )
    ],
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    guard_stderr()
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        code: Any = app.main(arguments, prog_name="perdure", standalone_mode=False)
    except Error as error:
        print_error(error)
        return 2
    except click.Abort:
        print("perdure: aborted; nothing was changed.", file=sys.stderr)
        return 130
    except click.ClickException as error:
        path = getattr(getattr(error, "ctx", None), "command_path", "perdure")
        message = " ".join(hide_in_url(error.format_message()).split())  # of an argument, perhaps
        message += "" if message.endswith((".", "?", "!")) else "."
        print(f"perdure: {printable(message)} See `{path} --help`.", file=sys.stderr)
        return 2
    return code if isinstance(code, int) else 0
