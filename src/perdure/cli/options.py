"""How commands declare what they take, the values they read, and the options that several share.

A command is a function. The default of each parameter declares an argument (`arg`), an option
(`opt`) or a flag; `**filters` stands for the options that select runs, named as `Client.runs` has
them. `command` makes the command of it.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import click

from perdure.errors import BadArgument
from perdure.types import Actor, State

ABSENT: Any = object()
"""In place of a value that was not given, where null is one."""
SECONDS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)([wdhms])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")


class Declared(NamedTuple):
    """An argument or option, in the place of a parameter's default."""

    kind: type[click.Parameter]
    names: tuple[str, ...]
    settings: dict[str, Any]

    def named(self, name: str) -> click.Parameter:
        names = self.names
        if self.kind is click.Option:
            names = (name, *(names or (f"--{name.replace('_', '-')}",)))
        return self.kind(names or (name,), **self.settings)


def arg(metavar: str, help: str, **settings: Any) -> Any:
    """An argument. `nargs=-1` takes any number of them."""
    settings = {"nargs": 1, **settings}
    settings = {"required": settings["nargs"] == 1, **settings}
    metavar += "..." if settings["nargs"] == -1 else ""
    metavar = metavar if settings["required"] else f"[{metavar}]"
    return Declared(click.Argument, (), {"metavar": metavar, "help": help, **settings})


def opt(metavar: str, help: str, *names: str, **settings: Any) -> Any:
    """An option with a value; without names it is called as its parameter is."""
    settings = {"metavar": metavar, "help": help, "show_default": True, **settings}
    return Declared(click.Option, names, settings)


def many(metavar: str, help: str, *names: str, **settings: Any) -> Any:
    """A repeatable option: a tuple, which may be empty."""
    return opt(metavar, help, *names, multiple=True, **settings)


def choice(help: str, choices: Iterable[str], **settings: Any) -> Any:
    """An option with one of a few values."""
    return opt("|".join(choices), help, type=click.Choice([*choices]), **settings)


def flag(help: str, *names: str, default: bool = False) -> Any:
    return Declared(click.Option, names, {"help": help, "is_flag": True, "default": default})


def switch(help: str, name: str) -> Any:
    """A flag that is on, and has a second name that turns it off."""
    settings = {"help": help, "default": True, "show_default": True}
    return Declared(click.Option, (f"--{name}/--no-{name}",), settings)


def command(function: Callable[..., Any]) -> click.Command:
    """The command of a function. Its docstring is the help."""
    params = []
    for name, one in inspect.signature(function).parameters.items():
        if one.kind is one.VAR_KEYWORD:
            params += [declared.named(key) for key, declared in SELECTION.items()]
        else:
            params.append(one.default.named(name))
    name = function.__name__.rstrip("_")
    return click.Command(name, callback=function, params=params, help=function.__doc__)


# -- values


class Json(click.ParamType[Any]):
    """JSON as it is, from the file behind an @, or from stdin for a -. `label` names it in errors,
    and `hint` ends them, with the text as a JSON string where it has {}."""

    name = "json"

    def __init__(self, label: str = "", hint: str = "") -> None:
        self.label, self.hint = label, hint

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # the default
        label = self.label or _option(param)
        try:
            if value == "-":
                return json.loads(sys.stdin.read())
            if value.startswith("@"):
                return json.loads(Path(value[1:]).read_text(encoding="utf-8"))
            return json.loads(value)
        except OSError as error:
            raise BadArgument(f"{label} {value}: {error.strerror or error}.") from error
        except (ValueError, RecursionError) as error:
            name = f"{label} " if label.startswith("--") else ""
            hint = self.hint.format(shlex.quote(json.dumps(value)))
            raise BadArgument(
                f"{label} {value} is not JSON: {error}. Quote names and texts inside it, and all "
                f"of it for the shell: {name}'{{\"contact\": 7}}'.{hint}"
            ) from error


class Value(click.ParamType[Any]):
    """A value that a function reads from an option's name and text."""

    def __init__(self, read: Callable[[str, str], Any]) -> None:
        self.name, self._read = read.__name__, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._read(_option(param), value) if isinstance(value, str) else value


def _option(param: click.Parameter | None) -> str:
    """An option as an error names it, with its other name: --metadata (--label)."""
    first, *others = param.opts if param else ("The value",)
    return f"{first} ({', '.join(others)})" if others else first


def parse_pair(option: str, text: str) -> tuple[str, Any]:
    """`key=value`; a value that is not JSON is a text."""
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise BadArgument(f"{option} {text!r} is not a pair: write key=value.")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value


def parse_duration(option: str, text: str) -> timedelta:
    """A duration such as 3d, 12h, 90m, 45s or 1d12h."""
    if not _DURATION.fullmatch(text):
        raise BadArgument(f"{option} {text!r} is not a duration: write 3d, 12h, 30m, 45s or 1d12h.")
    seconds = sum(float(count) * SECONDS[unit] for count, unit in _PART.findall(text))
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise BadArgument(f"{option} {text!r} is too long a duration.") from None


def parse_delay(option: str, text: str) -> timedelta | datetime:
    """A duration, or a time of ISO 8601, which is local if it has no zone."""
    if _DURATION.fullmatch(text):
        return parse_duration(option, text)
    try:
        at = datetime.fromisoformat(text)
        return at if at.tzinfo is not None else at.astimezone()
    except (ValueError, OverflowError):
        raise BadArgument(
            f"{option} {text!r} is neither a duration, such as 3d, nor a time, such as "
            "2026-03-01T09:00+01:00."
        ) from None


def parse_past(option: str, text: str) -> datetime:
    """A time, or how long ago it was."""
    found = parse_delay(option, text)
    try:
        return found if isinstance(found, datetime) else datetime.now(UTC) - found
    except OverflowError:
        raise BadArgument(f"{option} {text!r} is too long ago.") from None


def parse_count(option: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise BadArgument(f"{option} {text!r} is not a whole number of at least 1.")
    return int(text)


DURATION, DELAY, PAST = Value(parse_duration), Value(parse_delay), Value(parse_past)
PAIR, COUNT = Value(parse_pair), Value(parse_count)


def actor(name: str | None) -> Actor:
    """Who runs the command, for the record."""
    return Actor(name or "", via="command line")


# -- shared options

ID_HELP = "Id, or at least its first 4 characters."
IDS_HELP = "Ids, or at least the first 4 characters of each."

AT = opt(
    "PLACE",
    "The journal: a URL, module:name of a Runtime, or a folder with a langgraph.json. An encrypted "
    "journal, or one with types of your own, needs the Runtime.",
    *("--at", "-a"),
    show_default="PERDURE_URL, or the project here",
)
RUNTIME_AT = opt(
    "PLACE",
    "The Runtime, as module:name, or a folder with a langgraph.json.",
    *("--at", "-a"),
    show_default="PERDURE_URL if it names a Runtime, or the project here",
)
PLACE = arg("PLACE", "The same as --at.", required=False)
BY = opt("NAME", "Your name, for the record.", envvar="USER", show_envvar=True)
REASON = opt("TEXT", "Why, for the record.")
JSON = flag("Print one JSON object per line.", "--json")
LIMIT = opt("N", "List at most N.", default=100, type=COUNT)
THREAD = opt("ID", "Only this thread.")
YES = flag("Do not ask. Required without a terminal.", "--yes", "-y")
DRY_RUN = flag("List them, and change nothing.")
METADATA = ("--metadata", "--label")
JSON_VALUE = "JSON|@FILE|-"

SELECTION = {
    "state": many(
        "STATE",
        "Only runs in this state; repeatable.",
        type=click.Choice([*map(str, State)]),
        callback=lambda ctx, param, states: [*states] or None,
    ),
    "graph": opt("NAME", "Only runs of this graph."),
    "thread_id": opt("ID", "Only this thread.", "--thread"),
    "metadata": many(
        "KEY=VALUE",
        "Only runs with this metadata or label; repeatable. The value is JSON, or else plain text. "
        "SQL cannot search metadata, so runs are read one by one.",
        *METADATA,
        type=PAIR,
        callback=lambda ctx, param, pairs: dict(pairs),
    ),
    "since": opt("3d|TIME", "Only runs accepted since then: a time, or how long ago.", type=PAST),
    "until": opt("3d|TIME", "Only runs accepted before then: a time, or how long ago.", type=PAST),
}
"""The options that select runs."""
