"""The facts of a run in words, for the header of its page and of `perdure show`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from perdure.service.views.event_wording import FormatTime
from perdure.service.views.formatting import age, count, duration, utc_time
from perdure.service.views.saved_work import Recovery
from perdure.types import Run, State


def crashes(found: Iterable[Recovery]) -> str:
    """The crashes of a run. Empty if there were none."""
    every = list(found)
    if not every:
        return ""
    lost = duration(sum((one.lost for one in every), timedelta(0)))
    again = sum(len(one.called_again) for one in every)
    called = f", {count(again, 'effect')} called again" if again else ""
    return f"{len(every)}, {lost} lost{called}"


def due(run: Run, now: datetime, format_time: FormatTime = utc_time) -> str:
    """When a run is due, or, if it is driven, when its lease ends. Empty if it is not due."""
    if run.due_at is None:
        return ""
    over = "ended" if run.state is State.RUNNING else "for"
    since = "" if run.due_at > now else f"{over} "
    ago = " ago" if since == "ended " else ""
    return f"{format_time(run.due_at)}, {since}{age(run.due_at, now)}{ago}"


def saved(run: Run) -> str:
    """What recovery did not repeat: `3 effects  1 model call`. Empty if there is nothing."""
    return "  ".join(
        count(number, name.replace("_", " ").removesuffix("s"))
        for name, number in run.saved.items()
        if number
    )
