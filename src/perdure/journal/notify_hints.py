"""Hints of PostgreSQL: LISTEN on a connection of its own, NOTIFY in the transaction that changes.

A hint may be lost: behind a pooler that gives a connection per transaction, or while this process
connects again. Readers see what changed at the next look then.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

import psycopg

CHANNEL = "perdure"
LONGEST = 7_900
"""Bytes of a payload; PostgreSQL takes 8,000."""
OURS = os.urandom(8).hex()
"""How this process recognises its own notifications: it has told its readers already."""


def payload(run_ids: Iterable[str]) -> str:
    """The payload of a notification: who sends it, and which runs changed if that fits."""
    text = " ".join([OURS, *sorted(run_ids)])
    return text if len(text) < LONGEST and text.isascii() else OURS


class NotifyHints:
    """Notifications of other processes."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(
            url, autocommit=True, connect_timeout=5, application_name="perdure changes"
        )
        try:
            self._connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            self._connection.close()
            raise

    def wait(self, seconds: float) -> Collection[str] | None:
        found: set[str] = set()
        for notice in self._connection.notifies(timeout=seconds, stop_after=1):
            sender, *run_ids = notice.payload.split(" ")
            if sender == OURS:
                continue
            if not run_ids:
                return None
            found.update(run_ids)
        return found

    def close(self) -> None:
        self._connection.close()
