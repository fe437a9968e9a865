"""`command`: the campaign's command line in this process, with a person at a terminal or not.

`die_in` has a process change a campaign, and be killed on the way.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Protocol

import pytest

from examples.campaign import control
from examples.campaign.__main__ import main
from examples.campaign.app import App
from examples.campaign.settings import Settings
from perdure.testing import Clock
from tests.support.campaigns import World
from tests.support.campaigns import sqlite_office as sqlite_office
from tests.support.fork_server import ForkServer, Tell


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


def switch_and_die(asked: dict[str, Any], tell: Tell) -> None:
    """Pause, resume, stop or edit a campaign, and be killed before a thread is woken: for
    `tests.support.fork_server`."""
    woken = 0

    def wake(*_: object) -> None:
        nonlocal woken
        if woken == asked["wakes"]:
            os.kill(os.getpid(), signal.SIGKILL)
        woken += 1
        plain(*_)  # type: ignore[arg-type]

    plain = App.wake
    App.wake = wake  # type: ignore[assignment, method-assign]
    clock = Clock(datetime.fromisoformat(asked["at"]))
    with App(Settings(**asked["settings"]), clock=clock) as app:
        changes = control.Changes(gaps=tuple(asked["gaps"]))
        more = (changes,) if asked["verb"] == "edit" else ()
        getattr(control, asked["verb"])(app, 1, *more)


def die_in(server: ForkServer, world: World, verb: str, *, wakes: int, gaps: Any = (0,)) -> None:
    """Have a process do this to campaign 1, and die when it has woken so many threads."""
    asked: dict[str, Any] = {
        "settings": asdict(world.app.settings),
        "at": world.clock.time.isoformat(),
    }
    child = server.start(
        "campaign_commands:switch_and_die", verb=verb, wakes=wakes, gaps=gaps, **asked
    )
    assert child.wait(60) == -signal.SIGKILL
