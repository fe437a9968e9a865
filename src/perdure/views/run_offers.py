"""The actions possible on a run now, and what each will do: to one run, or to several, grouped and
counted.

The statements of `journal/queries.sql` decide (`stop_run`, `continue_run`, `stop_descendants`,
`retry_effects`); this predicts what they will do to a run in its current state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from perdure.commands.run_control import RunAction, Stakes, why_not_stopped
from perdure.times import utc_time
from perdure.types import Control, Kind, Run, State, WaitRecord, WaitState
from perdure.views.event_wording import FormatTime
from perdure.views.formatting import age, count, duration


@dataclass(frozen=True)
class Group:
    """Runs with the same consequence."""

    happens: bool
    text: str
    runs: tuple[tuple[Run, Consequence], ...]

    @property
    def title(self) -> str:
        """The number of runs and the consequence: `12 runs: cancelled at once`."""
        return f"{count(len(self.runs), 'run')}: {self.text}"


@dataclass(frozen=True)
class BulkPreview:
    """What an action on several runs will do."""

    action: RunAction
    groups: tuple[Group, ...]
    """Groups that change first, largest first."""
    effects: int
    """Number of effects that will be undone or called again."""
    children: int
    """Number of child runs that will be cancelled."""

    @property
    def changed(self) -> tuple[str, ...]:
        """The ids of the runs that will change."""
        every = (run.id for group in self.groups if group.happens for run, _ in group.runs)
        return tuple(every)

    @property
    def left(self) -> int:
        """Number of runs that stay unchanged."""
        return sum(len(group.runs) for group in self.groups if not group.happens)

    @property
    def sentence(self) -> str:
        """The whole preview in one sentence."""
        if not self.changed:
            return f"None of these runs can be {self.action.done} now."
        said = f"{count(len(self.changed), 'run')} will be {self.action.done}"
        if self.children:
            said += f" with their {count(self.children, 'child run')}"
        if self.effects:
            verb = "undone" if self.action is RunAction.CANCEL else "called again"
            said += f", and {count(self.effects, 'effect')} {verb}"
        said += "."
        return f"{said} {_left(self.left)}" if self.left else said


def _left(number: int) -> str:
    left = count(number, "run")
    return f"{left} stays unchanged." if number == 1 else f"{left} stay unchanged."


def preview(action: RunAction, runs: Iterable[tuple[Run, Stakes]], grace: timedelta) -> BulkPreview:
    """What an action will do to these runs as they are now."""
    found: dict[tuple[bool, str], list[tuple[Run, Consequence]]] = {}
    effects = children = 0
    for run, stakes in runs:
        made = consequence(run, action, stakes, grace)
        found.setdefault((made.happens, made.text), []).append((run, made))
        if made.happens:
            effects += _effects(action, stakes)
            children += stakes.children if action is RunAction.CANCEL else 0
    groups = [Group(happens, text, tuple(some)) for (happens, text), some in found.items()]
    groups.sort(key=lambda group: (not group.happens, -len(group.runs)))
    return BulkPreview(action, tuple(groups), effects, children)


def _effects(action: RunAction, stakes: Stakes) -> int:
    touched: dict[RunAction, Sequence[str]] = {
        RunAction.CANCEL: stakes.undoable,
        RunAction.RETRY: stakes.failed,
    }
    return len(touched.get(action, ()))


NAMED = 3
"""Maximum number of effects named."""


@dataclass(frozen=True)
class Consequence:
    """What an action will do to one run."""

    happens: bool
    text: str
    """The consequence for the run: `cancelled after its current step`; or why there is none."""
    also: tuple[str, ...] = ()
    """What else happens: `undoes 2 effects: charge, mail`."""


def consequence(run: Run, action: RunAction, stakes: Stakes, grace: timedelta) -> Consequence:
    """What an action will do to a run in its current state. The current step has `grace` to end."""
    if why := why_not(run.state, action, stakes):
        return Consequence(False, f"not {action.done}: {why}")
    match action:
        case RunAction.CANCEL:
            return Consequence(True, _stopped(run, action, stakes, grace), _of_cancel(stakes))
        case RunAction.PAUSE:
            return Consequence(True, _stopped(run, action, stakes, grace))
        case RunAction.RETRY:
            return Consequence(True, "retried from its last step", _of_retry(stakes))
    if run.state is State.RUNNING:
        return Consequence(True, "no longer asked to pause after its current step")
    return Consequence(True, "resumed")


def why_not(state: State, action: RunAction, stakes: Stakes) -> str:
    """Why an action has no effect on a run. Empty if it has one."""
    match action:
        case RunAction.RETRY:
            return _why_not_retried(state, stakes)
        case RunAction.RESUME:
            stops = state is State.RUNNING and stakes.control is Control.PAUSE
            return "" if state is State.PAUSED or stops else "it is not paused"
    return why_not_stopped(state, stakes.control, action)


def _why_not_retried(state: State, stakes: Stakes) -> str:
    if state not in (State.FAILED, State.HELD):
        return "it is neither failed nor held"
    if stakes.is_passed and state is State.FAILED:
        return "a later run of the thread began"
    if stakes.unknown:
        return f"it would be held again until a person settles {_names(stakes.unknown)}"
    return ""


def _stopped(run: Run, action: RunAction, stakes: Stakes, grace: timedelta) -> str:
    if run.state is State.RUNNING:
        late = duration(grace)
        return f"{action.done} after its current step, or mid-step after {late}"
    if action is RunAction.CANCEL and stakes.undoable:
        return "cancelled once a worker has undone its effects"
    return f"{action.done} at once"


def _of_cancel(stakes: Stakes) -> tuple[str, ...]:
    said = []
    if stakes.undoable:
        said.append(f"undoes {count(len(stakes.undoable), 'effect')}: {_names(stakes.undoable)}")
    if stakes.unknown:
        said.append(f"the outcome of {_names(stakes.unknown)} stays unknown")
    if stakes.children:
        said.append(f"cancels {count(stakes.children, 'child run')}")
    return tuple(said)


def _of_retry(stakes: Stakes) -> tuple[str, ...]:
    return (f"calls {_names(stakes.failed)} again",) if stakes.failed else ()


def _names(names: Iterable[str]) -> str:
    """A few names, each once: `charge, mail and 2 more`."""
    every = [*dict.fromkeys(names)]
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return f"{', '.join(every[:NAMED])}{more}"


def outcome(action: RunAction, state: State, control: Control | None) -> str:
    """The result of an accepted action on a run."""
    if state is State.RUNNING and control is not None:
        stopped = "cancelled" if control is Control.CANCEL else "paused"
        return f"asked to stop: {stopped} after its current step"
    if action is RunAction.CANCEL and control is Control.CANCEL:
        return "is being cancelled: a worker undoes its effects first"
    if action in (RunAction.RETRY, RunAction.RESUME):
        return f"{action.done}, now {state.value}"
    expected = State.CANCELLED if action is RunAction.CANCEL else State.PAUSED
    return action.done if state is expected else f"{action.done}, now {state.value}"


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
