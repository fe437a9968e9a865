"""One item of the inbox as the list shows it: what to decide, and the possible answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.commands.inbox import InboxEntry, InboxKind
from perdure.server.ui.page import Ui
from perdure.types import EffectRecord, Run, Wait
from perdure.views.markup import Html
from perdure.views.question import Question, headline, question_of
from perdure.views.question_answers import QuickAnswer, quick_answers
from perdure.views.whole_value import is_brief

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
