"""`command`: the campaign's command line in this process, with a person at a terminal or not."""

from __future__ import annotations

import io
import sys
from dataclasses import fields
from typing import Protocol

import pytest

from examples.campaign.__main__ import main
from tests.support.campaigns import World
from tests.support.campaigns import sqlite_office as sqlite_office


class Command(Protocol):
    """Say something to `python -m examples.campaign`. Gives its exit code and what it printed. With
    `typed` somebody is at its terminal, and types that."""

    def __call__(self, *words: str, typed: str | None = None) -> tuple[int, str]: ...


class Terminal(io.StringIO):
    """What somebody types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def command(
    sqlite_office: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    for one in fields(sqlite_office.app.settings):
        value = str(getattr(sqlite_office.app.settings, one.name))
        monkeypatch.setenv(f"CAMPAIGN_{one.name.upper()}", value)

    def run(*words: str, typed: str | None = None) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["campaign", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO() if typed is None else Terminal(typed))
        try:
            code = main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        told = capsys.readouterr()
        return code, told.out + told.err

    return run
