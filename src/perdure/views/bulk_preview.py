"""A preview of an action on several runs: what it will do, grouped and counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from perdure.commands.run_control import RunAction, Stakes
from perdure.types import Run
from perdure.views.consequences import Consequence, consequence
from perdure.views.formatting import count


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
