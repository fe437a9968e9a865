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

from examples.campaign import control, people
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
        monkeypatch.setattr(sys, "stdin", io.StringIO() if typed is None else Terminal(typed))
        return say(monkeypatch, capsys, *words)

    return run


def say(
    patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str]:
    """Run a command of the campaign. Gives its exit code and what it printed."""
    patch.setattr(sys, "argv", ["campaign", *words])
    try:
        code = main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    told = capsys.readouterr()
    return code, told.out + told.err


def switch_and_die(asked: dict[str, Any], tell: Tell) -> None:
    """Resume, stop or edit a campaign, and be killed before a contact is taken back or a thread is
    woken: for `tests.support.fork_server`."""
    done = 0

    def mortal(function: Any) -> Any:
        def call(*given: Any) -> Any:
            nonlocal done
            if done == asked["after"]:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return function(*given)

        return call

    App.wake = mortal(App.wake)  # type: ignore[method-assign]
    people.unbounce = mortal(people.unbounce)
    clock = Clock(datetime.fromisoformat(asked["at"]))
    with App(Settings(**asked["settings"]), clock=clock) as app:
        more = (control.Changes(**asked["changes"]),) if asked["changes"] else ()
        getattr(control, asked["verb"])(app, 1, *more)


def die_in(server: ForkServer, world: World, verb: str, *, after: int, **changes: Any) -> None:
    """Have a process do this to campaign 1, and die when it has taken back so many contacts, or
    woken so many threads. An `edit` has `changes`."""
    asked: dict[str, Any] = {
        "settings": asdict(world.app.settings),
        "at": world.clock.time.isoformat(),
    }
    child = server.start(
        "campaign_commands:switch_and_die", verb=verb, after=after, changes=changes, **asked
    )
    assert child.wait(60) == -signal.SIGKILL
