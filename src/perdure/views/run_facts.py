"""The facts of a run in words, for the header of its page and of `perdure show`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from perdure.times import utc_time
from perdure.types import Event, EventKind, Run, State
from perdure.views.event_wording import FormatTime
from perdure.views.formatting import age, count


def crashes(events: Iterable[Event]) -> str:
    """How many workers the run lost. Empty if there were none."""
    lost = sum(one.kind == EventKind.RECOVERED for one in events)
    return str(lost) if lost else ""


def due(run: Run, now: datetime, format_time: FormatTime = utc_time) -> str:
    """When a run is due, or, if it is driven, when its lease ends. Empty if it is not due."""
    if run.due_at is None:
        return ""
    over = "ended" if run.state is State.RUNNING else "for"
    since = "" if run.due_at > now else f"{over} "
    ago = " ago" if since == "ended " else ""
    return f"{format_time(run.due_at)}, {since}{age(run.due_at, now)}{ago}"


def saved(run: Run) -> str:
    """What was not done again: `2 steps  3 effects  1 model call`. Empty if there is nothing."""
    return "  ".join(
        count(number, name.replace("_", " ").removesuffix("s"))
        for name, number in run.saved.items()
        if number
    )
