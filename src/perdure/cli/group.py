"""What all commands share: how they are listed, how their arguments are read, how they fail.

Typer reads every argument with Pydantic, which takes as long to import as everything else that a
listing needs. A text, a number, a flag or a choice does not need it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

Read = Callable[[Any], Any]


class Command(TyperCommand):
    """A command that reads what it can without Pydantic."""

    def get_params(self, ctx: Any) -> Any:
        return _plainly(super().get_params(ctx))


def _plainly(params: list[Any]) -> list[Any]:
    for param in params:
        described = getattr(param, "type_descriptor", None)
        read = _reader(getattr(described, "annotation", None))
        if read is not None and hasattr(param, "_runtime_param"):
            param._runtime_param = _Plain(read)
    return params


class _Plain:
    """What Typer asks to make a value of what was typed."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        many = param.multiple or param.nargs == -1
        if value is None:
            return [] if many else None
        try:
            return [self._read(one) for one in value] if many else self._read(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None


def _reader(annotation: Any) -> Read | None:
    """How an argument of this type is read; None: by Typer."""
    if get_origin(annotation) is list:
        [annotation] = get_args(annotation)
    if get_origin(annotation) is Literal:
        return lambda given: _choice(given, get_args(annotation))
    kinds: dict[Any, str] = {
        bool: "yes or no",
        str: "a text",
        int: "a whole number",
        float: "a number",
    }
    if annotation not in kinds:
        return None
    return lambda given: _made(annotation, given, kinds[annotation])


def _choice(given: Any, choices: tuple[Any, ...]) -> Any:
    if given not in choices:
        raise ValueError(f"{given!r} is none of {', '.join(map(str, choices))}.")
    return given


def _made(kind: Read, given: Any, what: str) -> Any:
    try:
        return kind(given)
    except ValueError:
        raise ValueError(f"{given!r} is not {what}.") from None


class Group(TyperGroup):
    """The commands, listed in the sections they were registered in."""

    def get_params(self, ctx: Any) -> Any:
        return _plainly(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        width = max(map(len, self.commands))
        for name, command in self.commands.items():
            told = command.get_short_help_str(formatter.width - width - 6)
            section = getattr(command, "rich_help_panel", None) or "Commands"
            sections.setdefault(section, []).append((name.ljust(width), told))
        for section, commands in sections.items():
            with formatter.section(section):
                formatter.write_dl(commands)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:  # whoever reads it has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
