"""The items of the inbox that the viewer may see, as its list shows them, and its filter.

?kind=question&graph=campaign&label=team=blue&assignee=me&age=1d&expires=soon
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from perdure.commands import inbox
from perdure.commands.inbox import InboxEntry, InboxKind, InboxPage, InboxQuery
from perdure.commands.run_search import Position, labels_in
from perdure.server.perdure_api.requests import ThreadFilter
from perdure.server.ui.lists import from_cursor
from perdure.server.ui.page import Ui
from perdure.types import EffectRecord, Run, Wait
from perdure.views.answer_form import QuickAnswer, quick_answers
from perdure.views.formatting import is_brief
from perdure.views.markup import Html
from perdure.views.question import Question, headline, question_of

ME, FREE = "me", "unassigned"
"""Special values of `assignee`; any other value is a name."""
KINDS: Mapping[InboxKind, str] = {
    InboxKind.QUESTION: "Questions",
    InboxKind.EFFECT: "Unknown effects",
    InboxKind.HELD: "Held runs",
    InboxKind.REFLECTION: "Failed reflections",
}
AGES: Mapping[str, tuple[timedelta, str]] = {
    "1h": (timedelta(hours=1), "over an hour"),
    "1d": (timedelta(days=1), "over a day"),
    "7d": (timedelta(days=7), "over a week"),
    "30d": (timedelta(days=30), "over 30 days"),
}
"""Values of `age`: waiting for at least that long."""
LONGEST = 500


@dataclass(frozen=True)
class InboxFilter:
    """A filter of the inbox. Empty fields match everything."""

    kind: str = ""
    graph: str = ""
    label: str = ""
    assignee: str = ""
    age: str = ""
    expires: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> InboxFilter:
        """The filter in an address. Invalid values are ignored."""
        found = {one.name: query.get(one.name, "").strip()[:LONGEST] for one in fields(cls)}
        kind = found["kind"] if found["kind"] in [*InboxKind] else ""
        age = found["age"] if found["age"] in AGES else ""
        expires = "soon" if found["expires"] == "soon" else ""
        return cls(**{**found, "kind": kind, "age": age, "expires": expires})

    @property
    def written(self) -> dict[str, str]:
        """The parameters of an address."""
        return {name: text for name, text in vars(self).items() if text}

    def query(self, ui: Ui) -> InboxQuery:
        """The query for this viewer."""
        names = {"": None, ME: ui.actor, FREE: ""}
        return InboxQuery(
            kinds=(InboxKind(self.kind),) if self.kind else (),
            graph=self.graph,
            labels=labels_in([self.label]) if self.label else (),
            assignee=names.get(self.assignee, self.assignee),
            until=ui.now - AGES[self.age][0] if self.age else None,
            soon=ui.now if self.expires else None,
        )


PAGE = 25
"""Items of one page."""


async def read_page(ui: Ui, filters: InboxFilter, after: Position | None, limit: int) -> InboxPage:
    """A page of the items that the viewer may see."""
    seen = await ThreadFilter.of(ui.api)
    visible = None if seen.sees_all else seen.visible
    plan = inbox.page(ui.runtime.engine, filters.query(ui), after, limit, visible)
    found: InboxPage = await ui.runtime.journal.arun(plan)
    return found


async def next_question(ui: Ui, filters: InboxFilter, after: Position | None) -> InboxEntry | None:
    """The next open question after a position, or else the first one."""
    only = InboxFilter(**{**filters.written, "kind": InboxKind.QUESTION})
    for place in (after, None):
        page = await read_page(ui, only, place, 1)
        if page.entries:
            return page.entries[0]
    return None


def read_position(text: str | None) -> Position | None:
    """The position that a parameter names. Raises `ApiError`."""
    found = from_cursor(text or "", int, str)
    return None if found is None else (found[0], found[1])


MOST_LABELS = 6
"""Maximum number of labels shown with an item."""


@dataclass(frozen=True)
class Item:
    """What the template of an item gets."""

    entry: InboxEntry
    title: str
    question: Question | None = None
    is_brief: bool = False
    """Whether the list shows it in full: only then can it be decided there."""
    quick: Sequence[QuickAnswer] = ()
    shown: Any = None
    """The arguments of an effect, or the reason of a held run."""

    @property
    def kind(self) -> InboxKind:
        return self.entry.kind

    @property
    def dom_id(self) -> str:
        return dom_id(self.entry.kind, self.entry.id)

    @property
    def labels(self) -> list[tuple[str, Any]]:
        """The short labels of its run."""
        found = {} if self.entry.run is None else self.entry.run.metadata
        plain = [(name, one) for name, one in found.items() if isinstance(one, str | int | float)]
        return [(name, one) for name, one in plain if len(str(one)) <= 40][:MOST_LABELS]


def dom_id(kind: str, id: str) -> str:
    """The id of an item's element, which is also the name of its live event."""
    return f"item-{hashlib.blake2b(f'{kind}:{id}'.encode(), digest_size=8).hexdigest()}"


def make_item(entry: InboxEntry) -> Item:
    """An item of the inbox, ready to render."""
    record = entry.record
    if isinstance(record, Wait):
        return _question(entry, question_of(record))
    if isinstance(record, EffectRecord):
        error = record.damaged or (str(record.error) if record.error else None)
        shown = {**record.arguments, **({"error": error} if error else {})}
        return Item(entry, record.name, shown=shown, is_brief=is_brief(shown))
    return Item(entry, _held_title(record), shown=record.reason or str(record.error or ""))


def _question(entry: InboxEntry, question: Question) -> Item:
    texts = [question.shown, question.words]
    for action in question.actions:
        texts += [action.tool, dict(action.arguments), action.words]
    brief = is_brief([one for one in texts if one])
    title = headline(question) or f"A question from {entry.run.graph if entry.run else 'a run'}"
    return Item(entry, title, question, brief, tuple(quick_answers(question)) if brief else ())


def _held_title(run: Run) -> str:
    is_reflection = run.graph.startswith("reflection:")
    name = run.graph.removeprefix("reflection:")
    return f"Reflection of {name} failed" if is_reflection else f"{run.graph} is held"


def render_item(ui: Ui, item: Item, **context: Any) -> Html:
    """An item as HTML."""
    return ui.fragment("parts/inbox_item.html", item=item, **context)
