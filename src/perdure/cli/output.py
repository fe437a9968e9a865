"""How commands print: tables and sentences for people, lines of JSON for programs.

A table fits the terminal; into a file or a pipe it is printed whole. Colour is used on a terminal
only, and never with NO_COLOR. A user's text cannot imitate ours (`terminal_text`).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from perdure.errors import BadArgument, Error, NotFound, Unavailable
from perdure.text import json_default, json_text, printable, printable_lines
from perdure.views.event_wording import NextStep
from perdure.views.formatting import hide_in_url

T = TypeVar("T")
STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "good": "32",
    "bad": "31",
    "waits": "33",
    "notable": "35",  # tones of a view
}
STATE_STYLES = {
    "pending": "blue",
    "running": "cyan",
    "waiting": "yellow",
    "paused": "magenta",
    "held": "red",
    "done": "green",
    "failed": "red",
    "cancelled": "dim",
    "unknown": "red",
    "open": "cyan",
    "again": "blue",
}
LISTING_COMMANDS = {
    "run": "runs",
    "run of the thread": "runs",
    "wait": "inbox",
    "effect": "effects",
    "schedule": "schedules",
    "reflection": "reflections",
}
NARROWEST_COLUMN = 8
"""Width that a column of a table keeps when it shrinks."""


def print_json(value: Any) -> None:
    """Print a value as one line of JSON; a dataclass as its fields."""
    print(json_text(value))


def print_all(
    found: Sequence[T], show: Callable[[Sequence[T]], None], *, json: bool, none: str
) -> None:
    """Print a list: a line of JSON each, or as `show` prints it, or what to say if it is empty."""
    if json:
        for one in found:
            print_json(one)
    elif found:
        show(found)
    else:
        print(none)


def print_error(error: Error) -> None:
    """Print an error to stderr in one line, with the command that lists what exists."""
    message = " ".join(str(error).split()) if isinstance(error, Unavailable) else str(error)
    hint = ""
    if isinstance(error, NotFound) and not error.service and error.what in LISTING_COMMANDS:
        hint = f" `perdure {LISTING_COMMANDS[error.what]}` lists what is there."
    print(f"perdure: {printable_lines(message)}{hint}", file=sys.stderr)


def print_status(command: str, sentence: str) -> None:
    """Print what a long-running command is doing now."""
    print(paint(f"perdure {command}: {sentence}", "bold"), flush=True)


def confirm_or_abort(question: str, *, yes: bool) -> None:
    """Ask before a change to many rows. Without a terminal there is no one to ask."""
    if not yes and not sys.stdin.isatty():
        raise BadArgument(f"{question} Pass --yes: there is no terminal to ask on.")
    if not yes:
        click.confirm(question, abort=True)


def at_option(at: str | None) -> str:
    """The --at of a command that follows this one, without the password of its URL."""
    return f" --at {shlex.quote(hide_in_url(at))}" if at else ""


def command_for(action: NextStep, at: str | None) -> str:
    """The command of an action, to paste. In a shell it neither pipes nor redirects."""
    ids = " ".join(map(shlex.quote, action.ids))
    if action.verb == "fork":  # needs the graphs
        runtime = "MODULE:RUNTIME" if at is not None and "://" in at else at
        return printable(f"perdure fork {' --checkpoint '.join(action.ids)}{at_option(runtime)}")
    value = action.example if action.example == "JSON" else shlex.quote(action.example)
    takes_value = action.verb in ("answer", "signal", "settle")
    values, choice = f" {value}" if takes_value else "", ""
    if action.verb == "settle" and value == "JSON":
        values, choice = " done --result JSON", "  (or retry, or fail)"
    return printable(f"perdure {action.verb} {ids}{values}{at_option(at)}{choice}")


def is_terminal() -> bool:
    return sys.stdout.isatty()


def terminal_width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def line_width(indent: int = 0) -> int:
    """Columns for a value: the rest of the terminal's line, or 200 without a terminal."""
    return max(20, terminal_width() - indent) if is_terminal() else 200


def paint(text: str, style: str | None) -> str:
    """A text in a style, or in the style of a tone, where colours are shown."""
    code = STYLES.get(style or "")
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not is_terminal()
    return text if plain or code is None else f"\x1b[{code}m{text}\x1b[0m"


def paint_state(state: str, columns: int = 0) -> str:
    return paint(str(state), STATE_STYLES.get(state)) + " " * (columns - len(state))


def display_width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return len(text) + wide - sum(unicodedata.combining(one) > 0 for one in text)


def truncate(text: str, columns: int) -> str:
    """A text in that many columns, cut with an ellipsis."""
    if display_width(text) <= columns:
        return text
    text = text[:columns]
    while text and display_width(text) > columns - 1:
        text = text[:-1]
    return f"{text.rstrip()}…"


def one_line(value: Any, columns: int = 200) -> str:
    """A value in one line: a text as it is, anything else as JSON."""
    text = value
    if not isinstance(value, str):
        text = json.dumps(value, default=_without_empty, ensure_ascii=False)
    return truncate(printable(text), columns)


def _without_empty(value: Any) -> Any:
    """As `json_default`; a LangChain message, or another Pydantic model, without empty fields."""
    found = json_default(value)
    if not hasattr(value, "model_dump") or not isinstance(found, dict):
        return found
    return {name: one for name, one in found.items() if one not in (None, {}, [])}


def value_lines(value: Any, most: int) -> list[str]:
    """A value in at most so many lines, an entry of a dict per line."""
    entries = value if isinstance(value, Mapping) else {"": value}
    lines: list[str] = []
    for name, one in entries.items():
        label = f"{name}: " if name != "" else ""
        if isinstance(one, str) and "\n" in one:
            lines += [label.rstrip()] if label else []
            lines += [f"{'  ' if label else ''}{line}" for line in one.splitlines()]
        else:
            lines.append(f"{label}{one_line(one, 2000)}")
    columns = terminal_width() - 6 if is_terminal() else 2000
    kept = [one_line(line, columns) for line in lines[:most]]
    more = len(lines) - len(kept)
    return [*kept, f"… {more} more line{'s' * (more != 1)}; see --json"] if more else kept


def format_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    shrinks: Sequence[int] = (),
    styles: Mapping[int, Mapping[str, str]] | None = None,
) -> str:
    """A table. The columns in `shrinks` give way on a narrow terminal, the last of them first;
    `styles` maps a column's words to colours."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(display_width, column)) for column in zip(headers, *cells, strict=True)]
    if is_terminal():
        for at in reversed(shrinks):
            over = sum(widths) + 2 * (len(widths) - 1) - terminal_width()
            least = min(widths[at], max(NARROWEST_COLUMN, display_width(headers[at])))
            widths[at] = max(least, widths[at] - max(0, over))
    lines = [paint(_row(headers, widths, {}), "dim")]
    for row in cells:
        row_styles = {at: words.get(row[at]) for at, words in (styles or {}).items()}
        lines.append(_row(row, widths, row_styles))
    return "\n".join(lines)


def _row(cells: Sequence[str], widths: Sequence[int], styles: Mapping[int, str | None]) -> str:
    padded = []
    for at, (cell, columns) in enumerate(zip(cells, widths, strict=True)):
        text = truncate(cell, columns)
        padded.append(paint(text, styles.get(at)) + " " * (columns - display_width(text)))
    return "  ".join(padded).rstrip()
