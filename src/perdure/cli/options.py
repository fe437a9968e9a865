"""What a command takes, read from a function or a verb: its types, defaults, and docstring.

A parameter before the `*` is an argument, one after it an option; its type says how it is read, and
the `Args` of the docstring say what it is for. `Annotated[type, Parameter(...)]` says what neither
can. A positional `at` may be named by an argument too. `**filters` stands for the options that
select runs, named as `Client.runs` has them.
"""

from __future__ import annotations

import functools
import inspect
import json
import operator
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from perdure.commands.run_reads import list_runs
from perdure.errors import BadArgument
from perdure.types import Actor, State, Strategy
from perdure.verbs import Verb
from perdure.views.formatting import duration, hide_in_url

SECONDS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)([wdhms])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")


# -- values


class Value(click.ParamType[Any]):
    """A value that a function reads from an option's name and text."""

    def __init__(self, read: Callable[[str, str], Any]) -> None:
        self.name, self._read = read.__name__, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # the default
        name = "value" if param is None else param.opts[0]
        return self._read(name if isinstance(param, click.Option) else f"The {name}", value)


def parse_json(option: str, text: str) -> Any:
    """JSON as it is, from the file behind an @, or from stdin for a -."""
    try:
        if text == "-":
            return json.loads(sys.stdin.read())
        if text.startswith("@"):
            return json.loads(Path(text[1:]).read_text(encoding="utf-8"))
        return json.loads(text)
    except OSError as error:
        raise BadArgument(f"{option} {text}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        name = f"{option} " if option.startswith("--") else ""
        raise BadArgument(
            f"{option} {text} is not JSON: {error}. Quote names and texts inside it, and all of it "
            f"for the shell: {name}'{{\"contact\": 7}}'. A text is {shlex.quote(json.dumps(text))}."
        ) from error


def parse_scalar(option: str, text: str) -> Any:
    """A number, true or false; anything else is a text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def parse_pair(option: str, text: str) -> tuple[str, Any]:
    """`key=value`; a value that is not JSON is a text."""
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise BadArgument(f"{option} {text!r} is not a pair: write key=value.")
    return key, parse_scalar(option, value)


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


def actor(name: str | None) -> Actor:
    """Who runs the command, for the record."""
    return Actor(name or "", via="command line")


# -- what parameters have in common


@dataclass(frozen=True)
class Parameter:
    """What the type of a parameter does not say."""

    help: str | None = None
    metavar: str | None = None
    names: tuple[str, ...] = ()
    """Of an option; by default that of the parameter."""
    read: Callable[[str, str], Any] | None = None
    more: Mapping[str, Any] | None = None
    """Settings of click."""


TYPES: dict[Any, tuple[str, Any]] = {
    Any: ("JSON|@FILE|-", Value(parse_json)),
    Mapping[str, Any]: ("JSON|@FILE|-", Value(parse_json)),
    timedelta: ("DURATION", Value(parse_duration)),
    timedelta | datetime: ("DURATION|TIME", Value(parse_delay)),
    datetime: ("DURATION|TIME", Value(parse_past)),
    float | str: ("VALUE", Value(parse_scalar)),
    int: ("N", int),
    float: ("SECONDS", float),
    Path: ("", Path),
    str: ("", str),
}
"""How values of a type are called and read."""
ID_HELP = "Id, or at least its first 4 characters."
IDS_HELP = "Ids, or at least the first 4 characters of each."

At = Annotated[
    str | None,
    Parameter(
        "The journal: a URL, module:name of a Runtime, or a folder with a langgraph.json. An "
        "encrypted journal, or one with types of your own, needs the Runtime.",
        "PLACE",
        ("--at", "-a"),
        more={"show_default": "PERDURE_URL, or the project here"},
    ),
]
RuntimeAt = Annotated[
    str | None,
    Parameter(
        "The Runtime, as module:name, or a folder with a langgraph.json.",
        "PLACE",
        ("--at", "-a"),
        more={"show_default": "PERDURE_URL if it names a Runtime, or the project here"},
    ),
]
By = Annotated[
    str | None,
    Parameter("Your name, for the record.", "NAME", more={"envvar": "USER", "show_envvar": True}),
]
Count = Annotated[int, Parameter(read=parse_count)]
Limit = Annotated[int, Parameter("List at most N.", read=parse_count)]
Pairs = Annotated[
    tuple[tuple[str, Any], ...],
    Parameter(
        metavar="KEY=VALUE",
        read=parse_pair,
        more={"callback": lambda ctx, param, pairs: dict(pairs)},
    ),
]
"""A repeatable option. The command gets a dict."""
States = Annotated[
    tuple[State, ...],
    Parameter(metavar="STATE", more={"callback": lambda ctx, param, found: [*found] or None}),
]
Lines = Annotated[bool, Parameter("Print one JSON object per line.")]
RunId = Annotated[str, Parameter(ID_HELP)]
RunIds = Annotated[tuple[str, ...], Parameter(IDS_HELP)]
OfThread = Annotated[str | None, Parameter("Only this thread.", "ID")]
Yes = Annotated[bool, Parameter("Do not ask. Required without a terminal.", names=("--yes", "-y"))]
DryRun = Annotated[bool, Parameter("List them, and change nothing.")]

ABSENT: Any = object()
"""In place of a value that was not given, where null is one."""
SHARED: dict[str, Any] = {
    "by": By,
    "run_id": RunId,
    "wait_id": Annotated[str, Parameter(f"From `perdure inbox`. {ID_HELP}")],
    "state": States,
    "metadata": Pairs,
    "multitask_strategy": Annotated[Strategy, Parameter(names=("--strategy",))],
    "key": Annotated[
        str, Parameter("Key from `perdure effects`, or at least its first 4 characters.")
    ],
    "worker_id": Annotated[
        str, Parameter("From `perdure workers`: host:pid, the pid, or the beginning of the id.")
    ],
}
"""Parameters of verbs that are written in another way than in Python."""


IDS = {"run_id": "run", "wait_id": "wait", "key": "effect", "worker_id": "worker"}
"""What a positional parameter names by its id, which may be shortened."""


# -- commands


def command(function: Callable[..., Any]) -> click.Command:
    """The command of a function."""
    types, explained = get_type_hints(function, include_extras=True), helps(function.__doc__)
    params: list[click.Parameter] = []
    accepts_place = False
    for one in inspect.signature(function).parameters.values():
        if one.kind is one.VAR_KEYWORD:
            params += selecting()
            continue
        params.append(parameter(one, types[one.name], explained.get(one.name)))
        accepts_place |= one.name == "at" and one.kind is one.POSITIONAL_OR_KEYWORD
    callback = function
    if accepts_place:
        help = "The same as --at."
        params.insert(0, click.Argument(["place"], required=False, metavar="[PLACE]", help=help))

        def callback(place: str | None, at: str | None, **values: Any) -> Any:
            if place is not None and at is not None:
                raise BadArgument(hide_in_url(f"Name one place: {place}, or --at {at}; not both."))
            return function(place if at is None else at, **values)

    return build(function.__name__.rstrip("_"), callback, params, function.__doc__)


def build(
    name: str, callback: Any, params: list[click.Parameter], doc: str | None
) -> click.Command:
    """A command, whose help is what a docstring says above its first example or section."""
    text = re.split(r"\n(?=    |(?:Args|Returns|Raises):\n)", inspect.cleandoc(doc or ""))[0]
    paragraphs = text.rstrip().split("\n\n")
    short = " ".join(paragraphs[0].split())
    if len(short) > LONGEST_SUMMARY:
        short = f"{re.split(r'[.,:;](?= )', short)[0].rstrip('.')}."
    return click.Command(
        name, callback=callback, params=params, help="\n\n".join(paragraphs), short_help=short
    )


LONGEST_SUMMARY = 60


def of_verb(
    verb: Verb[..., Any], names: Collection[str] | None = None, options: Collection[str] = ()
) -> list[click.Parameter]:
    """The arguments and options of a verb, all or those of these names. A positional parameter in
    `options` is an option, which is `ABSENT` without a value."""
    explained, params = helps(verb.__doc__), []
    for one in verb.parameters:
        if names is not None and one.name not in names:
            continue
        kind = verb.types[one.name]
        if one.kind is not one.KEYWORD_ONLY or one.name not in IDS:
            kind = SHARED.get(one.name, kind)
        if one.name in options:
            one = one.replace(kind=one.KEYWORD_ONLY, default=None)
        param = parameter(one, kind, explained.get(one.name))
        if one.name in options:
            param.default = ABSENT
        params.append(param)
    return params


def selecting() -> list[click.Parameter]:
    """The options that select runs."""
    return of_verb(list_runs, ("state", "graph", "thread_id", "metadata", "since", "until"))


def helps(doc: str | None) -> dict[str, str]:
    """What the `Args` of a docstring say about each parameter."""
    _, _, section = inspect.cleandoc(doc or "").partition("\nArgs:\n")
    lines = re.split(r"\n(?=\S)", section)[0]
    found = re.findall(r"(?m)^    (\w+): (.*(?:\n {8}.*)*)", lines)
    return {name: " ".join(text.split()) for name, text in found}


def parameter(one: inspect.Parameter, kind: Any, help: str | None = None) -> click.Parameter:
    """The argument or option of a parameter of this type."""
    extra = Parameter()
    if get_origin(kind) is Annotated:
        kind, extra = get_args(kind)
    parts = [part for part in get_args(kind) if part is not NoneType]
    is_optional = NoneType in get_args(kind)
    if is_optional:
        kind = functools.reduce(operator.or_, parts)
    name = one.name.removesuffix("_id").removesuffix("s" if get_origin(kind) is Iterable else "")
    is_many = get_origin(kind) in (tuple, Iterable)
    if is_many:
        kind = get_args(kind)[0]
    metavar, reader = _reading(kind)
    has_default = one.default is not one.empty
    settings: dict[str, Any] = {"help": extra.help or help, **(extra.more or {})}
    settings["type"] = reader if extra.read is None else Value(extra.read)
    metavar = extra.metavar or metavar or name.upper()
    if one.kind is not one.KEYWORD_ONLY and one.name != "at":
        settings["nargs"] = -1 if is_many else 1
        settings |= {"default": one.default} if has_default and not is_many else {}
        required = not has_default and not is_optional
        metavar += "..." if is_many else ""
        settings["metavar"] = metavar if required else f"[{metavar}]"
        return click.Argument([one.name], required=required, **settings)
    option = f"--{name.replace('_', '-')}"
    is_said = not one.default or "default" in (settings["help"] or "")
    settings = {"show_default": not is_said, "metavar": metavar, **settings}
    if kind is bool:
        del settings["metavar"], settings["type"]
        settings["show_default"] = bool(one.default)
        names = extra.names or (f"{option}/--no-{option[2:]}" if one.default else option,)
        return click.Option([one.name, *names], is_flag=True, default=one.default, **settings)
    if is_many:
        settings |= {"multiple": True, "show_default": False}
        if "repeatable" not in (settings["help"] or ""):
            settings["help"] = f"{settings['help'] or ''} Repeatable.".strip()
    elif has_default:
        settings["default"] = one.default
    if isinstance(one.default, timedelta) and not is_said:
        settings["show_default"] = duration(one.default)
    settings["required"] = not has_default
    return click.Option([one.name, *(extra.names or (option,))], **settings)


def _reading(kind: Any) -> tuple[str, Any]:
    """What a value of a type is called, and how it is read."""
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind)), click.Choice(get_args(kind))
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    for part in parts:
        if inspect.isclass(part) and issubclass(part, StrEnum):
            return "", click.Choice([*map(str, part)])
    return TYPES.get(kind, ("", str))
