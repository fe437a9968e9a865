"""How commands print text, and ask for confirmation."""

from __future__ import annotations

import os
import sys

import typer


class NotConfirmed(ValueError):
    """There is no terminal to confirm at."""


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if a person says yes, or passed `--yes`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed("Nothing was done: there is no terminal to ask at. Pass --yes.")
    if not typer.confirm(question):
        print("Nothing was done.")
        raise typer.Exit(1)


def printable(text: str) -> str:
    """A text that is safe on a terminal: what would move its cursor or colour it is escaped."""
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode()
        for one in text
    )


def paint(text: str, mark: str) -> str:
    """A part of a difference: in colour on a terminal, else in brackets like `git diff`."""
    if mark == " ":
        return printable(text)
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        return typer.style(
            printable(text), fg="red" if mark == "-" else "green", strikethrough=mark == "-"
        )
    opens, closes = ("[-", "-]") if mark == "-" else ("{+", "+}")
    return f"{opens}{printable(text)}{closes}"
