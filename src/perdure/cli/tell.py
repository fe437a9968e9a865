"""What commands print: tables and sentences for people, lines of JSON for programs.

A table fits the terminal; into a file or a pipe it is printed whole. There is colour on a terminal
only, and none with NO_COLOR. A user's text never looks like ours: what cannot be printed is
escaped. Rich takes as long to import as the rest of a listing, so tables are made here.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from perdure.errors import Error, NotFound, Unavailable

STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
OF_STATE = {
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
UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
LISTED = {
    "run": "runs",
    "run of the thread": "runs",
    "wait": "inbox",
    "effect": "effects",
    "schedule": "schedules",
    "reflection": "reflections",
}
SHORTEST = 8
"""What is left of a column that has to shrink."""


# -- for programs


def plain(value: Any) -> Any:
    """What JSON cannot say by itself."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    dump = getattr(value, "model_dump", None)  # of Pydantic, and so of LangChain's messages
    return dump(mode="json") if callable(dump) and not isinstance(value, type) else str(value)


def print_json(value: Any) -> None:
    """One line; of a dataclass, its fields."""
    print(json.dumps(value, default=plain))


# -- for people


def sentence(error: Error) -> str:
    """What is wrong, in one line, and where to look for what is not there."""
    if isinstance(error, Unavailable):
        return " ".join(str(error).split())
    listed = LISTED.get(error.what) if isinstance(error, NotFound) else None
    return f"{error} `perdure {listed}` lists what is there." if listed else str(error)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def width() -> int:
    """How wide a line may be."""
    return shutil.get_terminal_size((100, 24)).columns


def room(indent: int = 0) -> int:
    """How long a line of a value may be: as wide as the terminal, or 200 if there is none."""
    return max(20, width() - indent) if is_terminal() else 200


def paint(text: str, style: str | None) -> str:
    """A text in a colour, where there are colours."""
    if not style or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if is_terminal() else text


def paint_state(state: str, columns: int = 0) -> str:
    return paint(str(state), OF_STATE.get(state)) + " " * (columns - len(state))


def printable(text: str) -> str:
    """A user's text, which must not look like ours."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return len(text) + wide - sum(unicodedata.combining(one) > 0 for one in text)


def fit(text: str, columns: int) -> str:
    """A text in that many columns, cut with an ellipsis."""
    if columns_of(text) <= columns:
        return text
    text = text[:columns]
    while text and columns_of(text) > columns - 1:
        text = text[:-1]
    return f"{text.rstrip()}…"


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    shrinks: Sequence[int] = (),
    styles: Mapping[int, Mapping[str, str]] | None = None,
) -> None:
    print(table(headers, rows, shrinks=shrinks, styles=styles))


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    shrinks: Sequence[int] = (),
    styles: Mapping[int, Mapping[str, str]] | None = None,
) -> str:
    """A table. The columns in `shrinks` give way on a narrow terminal, the last of them first;
    `styles` has the colours of the words in a column."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(columns_of, column)) for column in zip(headers, *cells, strict=True)]
    if is_terminal():
        for at in reversed(shrinks):
            over = sum(widths) + 2 * (len(widths) - 1) - width()
            least = min(widths[at], max(SHORTEST, columns_of(headers[at])))
            widths[at] = max(least, widths[at] - max(0, over))
    lines = [paint(_row(headers, widths, {}), "dim")]
    for row in cells:
        words = {at: looks.get(row[at]) for at, looks in (styles or {}).items()}
        lines.append(_row(row, widths, words))
    return "\n".join(lines)


def _row(cells: Sequence[str], widths: Sequence[int], styles: Mapping[int, str | None]) -> str:
    shown = []
    for at, (cell, columns) in enumerate(zip(cells, widths, strict=True)):
        text = fit(cell, columns)
        shown.append(paint(text, styles.get(at)) + " " * (columns - columns_of(text)))
    return "  ".join(shown).rstrip()


def stamp(at: datetime) -> str:
    """A time to the second, in UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def span(lasted: timedelta) -> str:
    """How long, in two units: 3d 4h, 12m 5s, 0.42s."""
    seconds = max(0.0, lasted.total_seconds())
    if seconds < 10:
        return f"{seconds:.2f}s" if seconds < 1 else f"{seconds:.1f}s"
    left = round(seconds)
    said: list[str] = []
    for unit, size in UNITS:
        number, left = divmod(left, size)
        if number or said:
            said.append(f"{number}{unit}" if number else "")
    return " ".join(filter(None, said[:2]))


def age(at: datetime) -> str:
    """How long ago, in one unit; `in 3d 4h` if it is yet to come."""
    ahead = at - datetime.now(UTC)
    return f"in {span(ahead)}" if ahead > timedelta(0) else _short(-ahead)


def _short(lasted: timedelta) -> str:
    seconds = int(lasted.total_seconds())
    for unit, size in UNITS:
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return "0s"


def shown(value: Any, columns: int = 200) -> str:
    """A value in one line."""
    text = value if isinstance(value, str) else json.dumps(value, default=plain, ensure_ascii=False)
    return fit(printable(text), columns)


def lines_of(value: Any, most: int) -> list[str]:
    """A value in a few lines, as a person reads it; what is left out is counted."""
    named = value if isinstance(value, Mapping) else {"": value}
    lines: list[str] = []
    for name, one in named.items():
        label = f"{name}: " if name != "" else ""
        if isinstance(one, str) and "\n" in one:
            lines += [label.rstrip()] if label else []
            lines += [f"{'  ' if label else ''}{line}" for line in one.splitlines()]
        else:
            lines.append(f"{label}{shown(one, 2000)}")
    room = width() - 6 if is_terminal() else 2000
    kept = [shown(line, room) for line in lines[:most]]
    more = len(lines) - len(kept)
    return [*kept, f"… {count(more, 'line')} more; see --json"] if more else kept


def pairs(values: Mapping[str, Any]) -> str:
    """key=value, as they are typed."""
    return "  ".join(f"{printable(str(key))}={shown(one, 60)}" for key, one in values.items())


def count(number: int, what: str) -> str:
    """3 runs, 1 run."""
    return f"{number:,} {what}{'s' * (number != 1)}"
