"""A process that deletes or copies on a database with limits, and is killed at a commit."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from datetime import timedelta
from typing import Any

from perdure import Client, Saver
from perdure.journal.d1 import D1
from perdure.journal.postgres import Postgres
from perdure.journal.sqlite import SQLite
from perdure.testing import watch_points
from tests.support.fork_server import Tell

LIMITS: dict[str, Any] = {
    "statements_per_batch": 20,
    "bytes_per_batch": 1_000_000,
    "largest_text": 100_000,
    "largest_blob": 500_000,
    "rows_per_delete": 4,
}
POINTS = ("commit.before", "commit.after")


def live(order: dict[str, Any], tell: Tell) -> None:
    """Do what is ordered, and be killed at the nth point. Tells how many points there are."""
    for backend in (SQLite, Postgres, D1):
        backend.capabilities = replace(backend.capabilities, **LIMITS)
    passed = 0

    def hook(point: str) -> None:
        nonlocal passed
        if point in POINTS:
            passed += 1
            if passed == order["nth"]:
                os.kill(os.getpid(), signal.SIGKILL)

    def begin(journal: Any) -> None:
        journal.open()
        watch_points(hook)

    url, what, thread = order["url"], order["what"], order["thread"]
    if what in ("runs", "erase"):
        client = Client(url)
        with client:
            begin(client.journal)
            if what == "runs":
                client.blocking.prune(older_than=timedelta(0))
            else:
                client.blocking.erase(thread)
    else:
        with Saver(url) as saver:
            begin(saver.journal)
            if what == "thread":
                saver.delete_thread(thread)
            elif what == "checkpoints":
                saver.prune([thread])
            elif what == "copy":
                saver.copy_thread(thread, f"copy of {thread}")
    tell("points", passed)
