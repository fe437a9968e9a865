"""Commands to paste: the next step that a view offers, as it is typed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.service.views.events import Action


def at_option(at: str | None) -> str:
    """The --at of a command that follows this one."""
    return f" --at {shlex.quote(at)}" if at else ""


def command_for(action: Action, at: str | None) -> str:
    """The command of an action. Pasted into a shell it neither pipes nor redirects."""
    ids = " ".join(map(shlex.quote, action.ids))
    value = action.example if action.example == "JSON" else shlex.quote(action.example)
    values = {"answer": f" {value}", "signal": f" {value}", "settle": " done --result JSON"}
    choice = "  (or retry, or fail)" if action.verb == "settle" else ""
    return f"perdure {action.verb} {ids}{values.get(action.verb, '')}{at_option(at)}{choice}"
