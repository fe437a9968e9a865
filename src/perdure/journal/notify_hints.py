"""Hints from PostgreSQL: LISTEN on a separate connection, NOTIFY in the transaction that changes.

A hint may be lost, behind a transaction-mode connection pooler or while this process reconnects.
Then readers see the change at the next poll.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

import psycopg

from perdure.journal.postgres_pool import parameters_of

CHANNEL = "perdure"
LONGEST = 7_900
"""Maximum bytes of a payload; PostgreSQL allows fewer than 8,000."""


def payload(sender: str, names: Iterable[str]) -> str:
    """The payload of a notification: its sender, and the names of what changed if they fit."""
    text = " ".join([sender, *sorted(names)])
    return text if len(text) < LONGEST and text.isascii() else sender


class NotifyHints:
    """Notifications from other journals. Those of `sender` are skipped: it woke its own readers."""

    def __init__(self, url: str, sender: str) -> None:
        self._sender = sender
        self._connection = psycopg.connect(
            url,
            autocommit=True,
            **parameters_of(url, connect_timeout=5, name="perdure changes"),
        )
        try:
            self._connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            self._connection.close()
            raise

    def wait(self, seconds: float) -> Collection[str] | None:
        end, found = time.monotonic() + seconds, set[str]()
        while not found and (left := end - time.monotonic()) > 0:
            for notice in self._connection.notifies(timeout=left, stop_after=1):
                sender, *names = notice.payload.split(" ")
                if sender == self._sender:
                    continue
                if not names:
                    return None
                found.update(names)
        return found

    def close(self) -> None:
        self._connection.close()
