"""What a code change would do to unfinished runs, for `perdure check` and the page.

Runs that would be held for the same reason form a group, with what to do about it. An unregistered
graph with unfinished runs is listed with the likely cause.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from perdure.errors import did_you_mean
from perdure.types import State
from perdure.views.formatting import count, graph_title


class LostRunLike(Protocol):
    """A `LostRun` of `execution/code_changes.py`."""

    @property
    def run_id(self) -> str: ...
    @property
    def thread_id(self) -> str: ...
    @property
    def graph(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def state(self) -> State: ...
    @property
    def lost(self) -> tuple[str, ...]: ...
    @property
    def reason(self) -> str: ...


class MissingLike(Protocol):
    """A `MissingGraph` of `execution/code_changes.py`."""

    @property
    def graph(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def runs(self) -> int: ...


@dataclass(frozen=True)
class HeldGroup:
    """Runs of a graph that would be held for the same reason."""

    graph: str
    """The name, with the version if there is one."""
    reason: str
    """What changed, and what to do."""
    lost: tuple[str, ...]
    """The missing nodes at which they would continue."""
    runs: Sequence[LostRunLike]

    @property
    def headline(self) -> str:
        return f"{self.graph}: {count(len(self.runs), 'run')} would be held"


@dataclass(frozen=True)
class Unregistered:
    """A graph that has unfinished runs and is not registered here."""

    name: str
    graph: str
    """Its name with its version, if it has one."""
    runs: int
    has_other_version: bool
    """Whether another version of it is registered."""
    hint: str
    """The likely cause, as a sentence; may be empty."""

    @property
    def headline(self) -> str:
        return f"{self.graph}: {count(self.runs, 'run')} would not be driven"


@dataclass(frozen=True)
class CodeChanges:
    """What the registered graphs would do to unfinished runs."""

    checked: int
    """Number of unfinished runs."""
    held: tuple[HeldGroup, ...]
    unregistered: tuple[Unregistered, ...]
    elsewhere: int = 0
    """Runs of graphs declared to be registered elsewhere; not checked."""

    @property
    def is_fine(self) -> bool:
        """Whether every checked run can continue."""
        return not self.held and not self.unregistered

    @property
    def summary(self) -> str:
        lost = sum(len(group.runs) for group in self.held)
        undriven = sum(one.runs for one in self.unregistered)
        sums = [f"{lost:,} would be held" if lost else "none would be held"]
        sums += [f"{undriven:,} would not be driven"] if undriven else []
        sums += [f"{self.elsewhere:,} of other processes not checked"] if self.elsewhere else []
        return f"{count(self.checked, 'unfinished run')}: {', '.join(sums)}."


def code_changes(
    checked: int,
    lost: Sequence[LostRunLike],
    missing: Sequence[MissingLike],
    graphs: Collection[str],
    elsewhere: int = 0,
) -> CodeChanges:
    """The view of a check of runs against the registered `graphs`."""
    groups: dict[tuple[str, str], list[LostRunLike]] = {}
    for run in lost:
        groups.setdefault((graph_title(run.graph, run.version), run.reason), []).append(run)
    held = [
        HeldGroup(graph, reason, tuple(dict.fromkeys(n for one in runs for n in one.lost)), runs)
        for (graph, reason), runs in groups.items()
    ]
    return CodeChanges(
        checked, tuple(held), tuple(_unregistered(one, graphs) for one in missing), elsewhere
    )


def _unregistered(one: MissingLike, graphs: Collection[str]) -> Unregistered:
    other = one.graph in graphs
    hint = did_you_mean(one.graph, graphs).strip()
    if other:
        hint = "Another version is, but a run keeps the version it was started with."
    return Unregistered(one.graph, graph_title(one.graph, one.version), one.runs, other, hint)
