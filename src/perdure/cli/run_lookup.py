"""Runs as commands look them up: by the beginning of an id, page by page, or with everything
that belongs to one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from perdure.client import Client
from perdure.errors import BadArgument, Damaged, NotFound, TypeNotAllowed, WrongKey
from perdure.types import EffectRecord, Event, Run, Score, WaitRecord

T = TypeVar("T")
PAGE = 200


@dataclass(frozen=True)
class RunReport:
    """A run with everything that belongs to it."""

    run: Run
    events: list[Event]
    waits: list[WaitRecord]
    effects: list[EffectRecord]
    scores: list[Score]
    children: list[Run]
    """The runs that its nodes started, oldest first, without their outputs."""
    unreadable: str = ""
    """Why a part is missing: a type or a key that this process does not have."""

    def as_json(self) -> dict[str, Any]:
        children = [{"id": one.id, "graph": one.graph, "state": one.state} for one in self.children]
        whole = {**vars(self), "children": children}
        return {name: value for name, value in whole.items() if name != "unreadable" or value}


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


def all_pages(page: Callable[[T | None], list[T]]) -> Iterator[T]:
    """Every item, page by page; `page` reads those after an item."""
    last: T | None = None
    while found := page(last):
        yield from found
        last = found[-1]


def report_run(client: Client, run: Run) -> RunReport:
    """Everything that belongs to a run. A part that cannot be read here is left out, with why."""
    ask, problems = client.blocking, []

    def read(part: Callable[[], list[T]]) -> list[T]:
        try:
            return part()
        except (Damaged, WrongKey, TypeNotAllowed) as error:
            problems.append(str(error))
            return []

    effects = all_pages(lambda last: ask.effects(run.id, after=last, limit=PAGE))
    children = all_pages(
        lambda last: ask.runs(parent_id=run.id, after=last, limit=PAGE, output=False)
    )
    return RunReport(
        run,
        events=read(lambda: ask.events(run.id)),
        waits=read(lambda: ask.wait_history(run.id)),
        effects=read(lambda: list(effects)),
        scores=read(lambda: ask.scores(run.id)),
        children=list(children)[::-1],
        unreadable=" ".join(problems),
    )
