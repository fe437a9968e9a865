"""Hints of PostgreSQL: LISTEN on a connection of its own, NOTIFY in the transaction that changes.

A hint may be lost: behind a pooler that gives a connection per transaction, or while this process
connects again. Readers see what changed at the next look then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import psycopg

CHANNEL = "perdure"
LONGEST = 7_900
"""Bytes of a payload; PostgreSQL takes 8,000."""


def payload(sender: str, names: Iterable[str]) -> str:
    """The payload of a notification: who sends it, and what changed if that fits."""
    text = " ".join([sender, *sorted(names)])
    return text if len(text) < LONGEST and text.isascii() else sender


class NotifyHints:
    """Notifications of others. `sender` has told its own readers already."""

    def __init__(self, url: str, sender: str) -> None:
        self._sender = sender
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
            sender, *names = notice.payload.split(" ")
            if sender == self._sender:
                continue
            if not names:
                return None
            found.update(names)
        return found

    def close(self) -> None:
        self._connection.close()
