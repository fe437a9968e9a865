"""The consequences of pausing, cancelling or retrying a run, in words.

The statements of `journal/queries.sql` decide (`stop_run`, `continue_run`, `stop_descendants`,
`retry_effects`); this predicts what they will do to a run in its current state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from perdure.commands.run_control import RunAction, Stakes, why_not_stopped
from perdure.types import Control, Run, State
from perdure.views.formatting import count, duration

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
