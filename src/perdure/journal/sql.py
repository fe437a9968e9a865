"""Named statements from one `queries.sql`, rendered for a dialect.

A statement starts at a line `-- name: some_name`, and a text that several share at a line
`-- fragment: some_name`; parameters are `:name`; `{fragment}` is one of these, or one of the
dialect's few. One with `{table}` in its name is a statement for each table of its next line,
`-- for reads (task, n), stream (n)`; `{key}` is what is in parentheses, `{columns}` without these.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

EVENT = "thread_id, run_id, n, at, kind"
_BEGIN = re.compile(r"^-- (name|fragment): ([\w{}]+)$", re.MULTILINE)
_FOR = re.compile(r"(\w+) \(([^)]*)\)")


@cache
def _parts(kind: str) -> Mapping[str, str]:
    _, *split = _BEGIN.split((files("perdure.journal") / "queries.sql").read_text())
    parts = {}
    for one, name, text in zip(split[::3], split[1::3], split[2::3], strict=True):
        if one == kind and "{table}" not in name:
            parts[name] = _body(text)
        elif one == kind:
            tables = text.strip().splitlines()[0]
            for table, columns in _FOR.findall(tables):
                each = _body(text).replace("{table}", table).replace("{columns}", columns)
                parts[name.replace("{table}", table)] = each.replace("{key}", f"({columns})")
    return parts


def templates() -> Mapping[str, str]:
    """Every statement by its name, as written."""
    return _parts("name")


@cache
def parameters() -> Mapping[str, tuple[str, ...]]:
    """The names of the parameters of each statement."""
    sql = _filled(defaultdict(str, names=":names"))  # no other fragment of a dialect has any
    return {name: tuple(sorted({*positional(text)[1]})) for name, text in sql.items()}


def render(fragments: Mapping[str, str], *, has_listener: bool = False) -> dict[str, str]:
    """Every statement by its name, with the dialect's fragments filled in. Those that store events
    return the run and the number of each; `has_listener`: all of it, for a listener."""
    returning = f"RETURNING {EVENT if has_listener else 'thread_id, run_id, n'}"
    return _filled(dict(fragments, returning_event=returning))


def _filled(fragments: dict[str, str]) -> dict[str, str]:
    for name, text in _parts("fragment").items():  # each is after those that it uses
        fragments[name] = fill(text, fragments)
    return {name: fill(text, fragments) for name, text in templates().items()}


def fill(text: str, fragments: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: fragments[match[1]], text)


def positional(sql: str) -> tuple[str, tuple[str, ...]]:
    """A statement with `?` for its parameters, and their names in order."""
    return re.sub(r":(\w+)", "?", sql), tuple(re.findall(r":(\w+)", sql))


def has_rows(sql: str) -> bool:
    """Whether a statement gives rows."""
    return sql.startswith(("SELECT", "WITH RECURSIVE")) or "RETURNING" in sql


_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))"""
    r"""|(?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])"""
    r"""|(?P<parameter>\?\d*|[:@$][A-Za-z_]\w*)|(?P<word>\w[\w$]*)|(?P<mark>.)""",
    re.DOTALL,
)


class Token(NamedTuple):
    """A part of a statement: `space`, comments among it, `quoted`, `parameter`, `word`, `mark`."""

    kind: str
    text: str
    start: int
    end: int
    depth: int
    """In how many parentheses it is."""


def tokens(sql: str) -> Iterator[Token]:
    """The parts of a statement in SQLite's dialect, the user's own among them."""
    depth = 0
    for found in _TOKEN.finditer(sql):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        yield Token(found.lastgroup or "", found[0], *found.span(), depth)


def split(script: str) -> list[str]:
    """The statements of a migration, which end at a semicolon at the end of a line."""
    return [
        part for part in (_body(part) for part in re.split(r";\s*$", script, flags=re.M)) if part
    ]


def _body(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines).strip().removesuffix(";")
