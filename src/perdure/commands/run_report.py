"""The runs below a run: its children, theirs, and so on, as a tree."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from perdure.commands import run_reads, scores, settling, waits, workers
from perdure.commands.connection import Connection
from perdure.commands.run_reads import Descendant
from perdure.commands.waits import Answer
from perdure.commands.workers import UnknownGraphName
from perdure.errors import UNREADABLE
from perdure.journal import Journal, Plan
from perdure.times import moment
from perdure.types import EffectRecord, EffectState, Event, Run, Score, State, WaitRecord


@dataclass(frozen=True)
class Children:
    """Children of a run."""

    listed: tuple[TreeNode, ...] = ()
    """The oldest, in order."""
    left_out: int = 0
    """How many more there are."""


@dataclass(frozen=True)
class TreeNode:
    """A descendant with its own children."""

    descendant: Descendant
    children: Children

    @property
    def run(self) -> Run:
        return self.descendant.run

    @property
    def joined(self) -> str:
        """What its parent has to do with it, in words."""
        if self.descendant.is_waited_for:
            return "its parent waits for it"
        return "joined" if self.descendant.is_joined else ""


@dataclass(frozen=True)
class TreeLine:
    """One line of a tree that is drawn: a run, or how many children of a run are left out."""

    parent_id: str
    is_last: tuple[bool, ...]
    """From the top down to this line: whether it is the last of its siblings."""
    node: TreeNode | None = None
    left_out: int = 0


def run_tree(root: str, found: Iterable[Descendant]) -> Children:
    """The children of a run, with theirs."""
    by_parent: dict[str | None, list[Descendant]] = {}
    for one in found:
        by_parent.setdefault(one.run.parent_id, []).append(one)

    def below(id: str) -> Children:
        some = by_parent.pop(id, [])
        whole = max((one.siblings for one in some), default=0)
        listed = tuple(TreeNode(one, below(one.run.id)) for one in some)
        return Children(listed, max(0, whole - len(listed)))

    return below(root)


def tree_lines(root: str, children: Children, above: tuple[bool, ...] = ()) -> list[TreeLine]:
    """A tree line by line: each run is followed by what is below it."""
    lines: list[TreeLine] = []
    for number, node in enumerate(children.listed, 1):
        place = (*above, number == len(children.listed) and not children.left_out)
        lines.append(TreeLine(root, place, node))
        lines += tree_lines(node.run.id, node.children, place)
    if children.left_out:
        lines.append(TreeLine(root, (*above, True), left_out=children.left_out))
    return lines


T = TypeVar("T")

MOST_CHILDREN, MOST_BELOW, MOST_LEVELS = 50, 500, 50
"""Maximum number of children of one run, and of all runs, in the tree below a run."""


@dataclass(frozen=True)
class RunReport:
    """A run with everything that belongs to it."""

    run: Run
    events: list[Event]
    waits: list[WaitRecord]
    effects: list[EffectRecord]
    scores: list[Score]
    children: Children
    """The runs that its nodes started, and theirs."""
    tree_is_cut: bool = False
    """Whether the tree of its children may have more runs than are here."""
    unknown_graphs: list[UnknownGraphName] = field(default_factory=list)
    """Graphs without a worker, if that may be why the run waits."""
    answers: dict[str, Answer] = field(default_factory=dict)
    """How each of its questions can be answered again."""
    unreadable: str = ""
    """Why a part could not be read: this process lacks a type or a key."""

    def as_json(self) -> dict[str, Any]:
        whole = {**vars(self), **_children_as_json(self.children)}
        del whole["answers"]
        maybe = ("tree_is_cut", "unreadable", "unknown_graphs")
        return {name: value for name, value in whole.items() if name not in maybe or value}


def _children_as_json(children: Children) -> dict[str, Any]:
    more = {"more_children": children.left_out} if children.left_out else {}
    return {"children": [_child_as_json(one) for one in children.listed], **more}


def _child_as_json(node: TreeNode) -> dict[str, Any]:
    run = node.run
    return {
        "id": run.id,
        "thread_id": run.thread_id,
        "graph": run.graph,
        "version": run.version,
        "state": run.state,
        "joined": node.descendant.is_joined,
        "waited_for": node.descendant.is_waited_for,
        **_children_as_json(node.children),
    }


class RunReporter:
    """Reads the reports of runs. Graphs without a worker are looked up once for all runs, because
    that reads everything that is due."""

    def __init__(self, on: Connection) -> None:
        self._on, self._journal = on, on.journal
        self._unknown: list[UnknownGraphName] | None = None

    async def report(self, run: Run) -> RunReport:
        """Everything that belongs to a run. A part that cannot be read here is left out, with the
        reason."""
        on, unreadable = self._on, _Unreadable(self._journal)
        limits = (MOST_CHILDREN, MOST_BELOW, MOST_LEVELS)
        below, is_cut = await self._journal.arun(run_reads.descendants(on, run.id, *limits))
        return RunReport(
            run,
            events=await unreadable.read(run_reads.read_events(on, run.id, 0, None)),
            waits=await unreadable.read(waits.wait_history.plan(on, run.id)),
            effects=await unreadable.read(self._effects(run, None)),
            scores=await unreadable.read(scores.list_scores.plan(on, run.id)),
            children=run_tree(run.id, below),
            tree_is_cut=is_cut,
            unknown_graphs=await self.unknown_graphs(run),
            answers=await self._journal.arun(waits.answers_of(on, run.id)),
            unreadable=unreadable.words,
        )

    async def brief(self, run: Run, events: list[Event]) -> RunReport:
        """What explains why a run does not continue: its unfinished effects, but neither children
        nor scores."""
        on, unreadable = self._on, _Unreadable(self._journal)
        effects: list[EffectRecord] = []
        for state in (EffectState.OPEN, EffectState.UNKNOWN, EffectState.FAILED):
            effects += await unreadable.read(self._effects(run, state))
        return RunReport(
            run,
            events,
            waits=await unreadable.read(waits.wait_history.plan(on, run.id)),
            effects=effects,
            scores=[],
            children=Children(),
            unknown_graphs=await self.unknown_graphs(run),
            answers=await self._journal.arun(waits.answers_of(on, run.id)),
            unreadable=unreadable.words,
        )

    def _effects(self, run: Run, state: EffectState | None) -> Plan[list[EffectRecord]]:
        of_run: Any = {"run_id": run.id, "thread_id": None, "state": state, "after": None}
        return settling.read_effects(self._on, **of_run, count=sys.maxsize)

    async def unknown_graphs(self, *runs: Run) -> list[UnknownGraphName]:
        """The graphs that no worker has, if one of these runs may be waiting because of that."""
        pending = [run.due_at for run in runs if run.state is State.PENDING and run.due_at]
        if not pending or min(pending) > moment(self._on.clock.now()):
            return []
        if self._unknown is None:
            self._unknown = await self._journal.arun(workers.unknown_graphs(self._on))
        return self._unknown


class _Unreadable:
    """Reads the parts of a run, and collects why some cannot be read."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._problems = journal, list[str]()

    async def read(self, part: Plan[list[T]]) -> list[T]:
        try:
            return await self._journal.arun(part)
        except UNREADABLE as error:
            self._problems.append(str(error))
            return []

    @property
    def words(self) -> str:
        return " ".join(dict.fromkeys(self._problems))
