"""A process that erases a person, and is killed at a statement of the journal or of the tables."""

from __future__ import annotations

import os
import signal
from datetime import datetime
from typing import Any

from examples.campaign import people
from examples.campaign.app import App
from examples.campaign.database import Database, Row, Statement
from examples.campaign.settings import Settings
from perdure.testing import Clock, watch_points
from tests.support.fork_server import Tell


def erase(asked: dict[str, Any], tell: Tell) -> None:
    """Tells how many points there are; is killed at the one that `die_at` names."""
    points = 0
    run = Database._run

    def hook(_: str) -> None:
        nonlocal points
        points += 1
        if points == asked["die_at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def deadly(database: Database, connection: Any, statement: Statement) -> list[Row]:
        hook(statement.text)
        return run(database, connection, statement)

    with App(
        Settings(**asked["settings"]), clock=Clock(datetime.fromisoformat(asked["at"]))
    ) as app:
        watch_points(hook)
        Database._run = deadly  # type: ignore[method-assign, assignment]
        people.erase(app, asked["address"])
        watch_points(None)
        Database._run = run  # type: ignore[method-assign]
    tell("points", points)
