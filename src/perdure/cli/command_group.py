"""How commands are listed and their arguments converted.

Typer converts every argument with Pydantic, whose import takes as long as everything else that a
listing needs. Texts, numbers, flags and choices are converted without it.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

NOUNS = {bool: "yes or no", str: "a text", int: "a whole number", float: "a number"}


class Command(TyperCommand):
    """A command whose simple arguments are converted without Pydantic."""

    def get_params(self, ctx: Any) -> Any:
        return _without_pydantic(super().get_params(ctx))


def _without_pydantic(params: list[Any]) -> list[Any]:
    for param in params:
        kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
        if get_origin(kind) is list:
            [kind] = get_args(kind)
        if getattr(param, "param_type_name", "") == "argument":
            _name_argument(param)
        if (kind in NOUNS or get_origin(kind) is Literal) and hasattr(param, "_runtime_param"):
            param._runtime_param = _Converter(kind)  # noqa: SLF001  Typer has no other hook
    return params


def _name_argument(param: Any) -> None:
    """Name an argument in the help as our docs do: RUN, [RUN], RUN..., and without its type."""
    name = f"{param.metavar or param.name.upper()}{'...' if param.nargs == -1 else ''}"
    usage = name if param.required else f"[{name}]"
    param.display_type_rich = lambda ctx: None
    param._usage_display_name = lambda: usage  # noqa: SLF001  Typer has no other hook
    param._rich_display_name = lambda: name  # noqa: SLF001  the same


class _Converter:
    """Converts an argument for Typer."""

    def __init__(self, kind: Any) -> None:
        self._kind, self._choices = kind, get_args(kind)

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        many = param.multiple or param.nargs == -1
        if value is None:
            return [] if many else None
        try:
            return [self._convert(one) for one in value] if many else self._convert(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None

    def _convert(self, value: Any) -> Any:
        if self._choices:
            if value not in self._choices:
                raise ValueError(f"{value!r} is not one of {', '.join(self._choices)}.")
            return value
        try:
            return self._kind(value)
        except ValueError:
            raise ValueError(f"{value!r} is not {NOUNS[self._kind]}.") from None


class CommandGroup(TyperGroup):
    """The commands, listed in their sections."""

    def get_params(self, ctx: Any) -> Any:
        return _without_pydantic(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        width = max(map(len, self.commands))
        for name, command in self.commands.items():
            text = command.get_short_help_str(formatter.width - width - 6)
            section = getattr(command, "rich_help_panel", None) or "Commands"
            sections.setdefault(section, []).append((name.ljust(width), text))
        for section, commands in sections.items():
            with formatter.section(section):
                formatter.write_dl(commands)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:  # such as `perdure runs | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
