"""The actions possible on a run now, each with its consequence in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from perdure.commands.run_control import RunAction, Stakes
from perdure.times import utc_time
from perdure.types import Kind, Run, State, WaitRecord, WaitState
from perdure.views.consequences import Consequence, consequence
from perdure.views.event_wording import FormatTime
from perdure.views.formatting import age


class Offered(StrEnum):
    """An action on a run. The values are in the addresses of its forms."""

    RESUME = "resume"
    RETRY = "retry"
    WAKE = "wake"
    PAUSE = "pause"
    SIGNAL = "signal"
    FORK = "fork"
    CANCEL = "cancel"


TITLES = {
    Offered.RESUME: "Resume",
    Offered.RETRY: "Retry",
    Offered.WAKE: "Wake now",
    Offered.PAUSE: "Pause",
    Offered.SIGNAL: "Send a signal",
    Offered.FORK: "Fork",
    Offered.CANCEL: "Cancel",
}
ACTIONS = {
    Offered.RESUME: RunAction.RESUME,
    Offered.RETRY: RunAction.RETRY,
    Offered.PAUSE: RunAction.PAUSE,
    Offered.CANCEL: RunAction.CANCEL,
}


@dataclass(frozen=True)
class Offer:
    """An action that is possible now."""

    what: Offered
    text: str
    """What it will do, as a sentence."""
    also: tuple[str, ...] = ()
    """What else will happen."""
    names: tuple[str, ...] = ()
    """The signals that the run is waiting for."""

    @property
    def title(self) -> str:
        return TITLES[self.what]


def offers(
    run: Run,
    stakes: Stakes,
    waits: Iterable[WaitRecord],
    now: datetime,
    grace: timedelta,
    *,
    can_fork: bool,
    format_time: FormatTime = utc_time,
) -> list[Offer]:
    """The actions possible on a run now. `can_fork`: it has a checkpoint and a known graph."""
    still_open = [one for one in waits if one.state == WaitState.OPEN and not run.ended]
    found = {
        what: _offer(what, consequence(run, action, stakes, grace))
        for what, action in ACTIONS.items()
    }
    found[Offered.WAKE] = _wake(run, still_open, now, format_time)
    found[Offered.SIGNAL] = _signal(run, still_open)
    found[Offered.FORK] = FORK if can_fork else None
    return [offer for what in Offered if (offer := found.get(what)) is not None]


def _offer(what: Offered, found: Consequence) -> Offer | None:
    if not found.happens:
        return None
    also = tuple(f"It also {one}." if one.startswith(VERBS) else f"{one}." for one in found.also)
    return Offer(what, f"The run is {found.text}.", also)


VERBS = ("undoes ", "cancels ", "calls ")


def _wake(
    run: Run, waits: Iterable[WaitRecord], now: datetime, format_time: FormatTime
) -> Offer | None:
    """Waking a sleeping run. Not possible while it is held or paused."""
    asleep = [one.wake_at for one in waits if one.kind is Kind.CLOCK and one.wake_at]
    if run.state is not State.WAITING or not asleep:
        return None
    until = min(asleep)
    when = f"{format_time(until)} ({age(until, now)})"
    return Offer(Offered.WAKE, f"The run wakes now instead of at {when}.")


def _signal(run: Run, waits: Iterable[WaitRecord]) -> Offer | None:
    if run.ended:
        return None
    names = tuple(dict.fromkeys(_signal_names(waits)))
    if not names:
        text = "The run is not waiting for a signal. Yours is kept until it does."
        return Offer(Offered.SIGNAL, text)
    text = f"The run is waiting for {' and '.join(names)} and continues with the value you send."
    return Offer(Offered.SIGNAL, text, names=names)


def _signal_names(waits: Iterable[WaitRecord]) -> Iterator[str]:
    for one in waits:
        if one.name:  # a question that a signal withdraws has one, too
            yield one.name


FORK = Offer(
    Offered.FORK,
    "Starts a new run on a new thread, from a step of this one, with a state you can edit.",
    ("This run and its thread do not change.", "The new run makes its own effect calls."),
)
