"""What commands look up: ids by their beginning, lists page by page, a run with everything that
belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from perdure.client import Client
from perdure.errors import BadArgument, Damaged, NotFound, TypeNotAllowed, WrongKey
from perdure.operations.prefixes import resolve
from perdure.operations.waits import Answer
from perdure.service.runs import UnknownGraphName
from perdure.service.views.run_tree import Children, TreeNode, run_tree
from perdure.types import EffectRecord, Event, Run, Score, State, WaitRecord

T = TypeVar("T")
PAGE = 200
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
    """Graphs that no worker has, if that may be why the run waits."""
    answers: dict[str, Answer] = field(default_factory=dict)
    """How its questions can be answered anew."""
    unreadable: str = ""
    """Why a part is missing: a type or a key that this process does not have."""

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


def find_run(client: Client, prefix: str | None, thread_id: str | None) -> Run:
    """A run by its id or the beginning of it, or the newest run of a thread; without its output."""
    if (prefix is None) == (thread_id is None):
        raise BadArgument("Which run? Give its id, or --thread for the newest run of a thread.")
    if prefix is not None:
        return client.blocking.find(prefix)
    newest = client.blocking.runs(thread_id=thread_id, limit=1, output=False)
    if not newest:
        raise NotFound("run of the thread", str(thread_id))
    return newest[0]


def find_id(client: Client, what: str, prefix: str) -> str:
    """The id of a run or wait, or the key of an effect, by the beginning of it."""
    return client.journal.run(resolve(what, prefix))


def unknown_graphs(client: Client, runs: Iterable[Run]) -> list[UnknownGraphName]:
    """The graphs that no worker has, if one of these runs may be waiting because of that."""
    return UnknownGraphs(client).of(*runs)


class UnknownGraphs:
    """The graphs that no worker has. They are looked up once: that reads what is due."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._found: list[UnknownGraphName] | None = None

    def of(self, *runs: Run) -> list[UnknownGraphName]:
        """All of them, if one of these runs may be waiting because of that."""
        now = datetime.now(UTC)
        if not any(run.state is State.PENDING and run.due_at and run.due_at <= now for run in runs):
            return []
        if self._found is None:
            self._found = self._client.journal.run(self._client.services.runs.unknown_graphs())
        return self._found


def all_pages(page: Callable[[T | None], list[T]]) -> Iterator[T]:
    """Every item, page by page; `page` reads those after an item."""
    last: T | None = None
    while found := page(last):
        yield from found
        last = found[-1]


def report_run(client: Client, run: Run, unknown: UnknownGraphs | None = None) -> RunReport:
    """Everything that belongs to a run. A part that cannot be read here is left out, with why.
    `unknown` spares the look at what is due, for many runs."""
    ask, problems = client.blocking, []

    def read(part: Callable[[], list[T]]) -> list[T]:
        try:
            return part()
        except (Damaged, WrongKey, TypeNotAllowed) as error:
            problems.append(str(error))
            return []

    effects = all_pages(lambda last: ask.effects(run.id, after=last, limit=PAGE))
    limits = (MOST_CHILDREN, MOST_BELOW, MOST_LEVELS)
    below, is_cut = client.journal.run(client.services.runs.descendants(run.id, *limits))
    return RunReport(
        run,
        events=read(lambda: ask.events(run.id)),
        waits=read(lambda: ask.wait_history(run.id)),
        effects=read(lambda: list(effects)),
        scores=read(lambda: ask.scores(run.id)),
        children=run_tree(run.id, below),
        tree_is_cut=is_cut,
        unknown_graphs=(unknown or UnknownGraphs(client)).of(run),
        answers=client.journal.run(client.services.waits.answers(run.id)),
        unreadable=" ".join(problems),
    )
