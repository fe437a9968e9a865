"""Log lines for changes that are in no run's history: schedules, messages."""

from __future__ import annotations

import logging

from perdure.server.ui.page import Ui

log = logging.getLogger("perdure")


def note_change(ui: Ui, what: str) -> None:
    """Log who changed something in the browser: `ana, from 10.0.0.7, disabled a schedule: 'daily'`.
    `what` has the names that people chose as `repr`, so a line stays one line."""
    who = ui.actor
    address = f", from {who.address}," if who.address else ""
    log.info("%s%s %s", repr(str(who))[1:-1] or "somebody", address, what)
