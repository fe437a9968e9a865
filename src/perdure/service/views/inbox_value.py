"""What needs a person, as a list that notebooks show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from perdure.service.views.attention import InboxItem
from perdure.service.views.event_wording import Verb
from perdure.service.views.formatting import count
from perdure.service.views.markup import Html, element
from perdure.service.views.notebook import notebook_html
from perdure.service.views.value_text import value_text

MOST_SHOWN = 50
"""Maximum number of items in a notebook."""
LONGEST = 1500
"""Maximum length of a question in a notebook."""
STYLE = """
.inbox-list{display:grid;gap:10px}
.inbox-list article{background:var(--panel);border:1px solid var(--line);border-radius:8px;
padding:8px 12px}
.inbox-list .what{font-weight:600}.inbox-list .note{color:var(--quiet);font-size:.88em}
.inbox-list pre{white-space:pre-wrap;overflow-wrap:anywhere;background:none;color:inherit;border:0;
margin:6px 0;padding:0;font:13px/1.45 ui-monospace,monospace}
.inbox-list code{background:none;color:var(--quiet);font:12px ui-monospace,monospace}
"""
CALLS = {
    Verb.ANSWER: "client.blocking.answer({}, {})",
    Verb.SETTLE: 'client.blocking.settle({}, "done" | "retry" | "fail")',
    Verb.RETRY: "client.blocking.retry({})",
}


@dataclass(frozen=True)
class Inbox(Sequence[InboxItem]):
    """What needs a person: questions, effects with an unknown outcome, held runs.

    A sequence of `InboxItem`. Notebooks show each item with the call that acts on it.

        for item in client.blocking.inbox():
            print(item.title, item.shown)
    """

    items: tuple[InboxItem, ...]
    """The items."""

    @overload
    def __getitem__(self, at: int) -> InboxItem: ...
    @overload
    def __getitem__(self, at: slice) -> Inbox: ...
    def __getitem__(self, at: int | slice) -> InboxItem | Inbox:
        return Inbox(self.items[at]) if isinstance(at, slice) else self.items[at]

    def __len__(self) -> int:
        return len(self.items)

    def _repr_html_(self) -> str:
        if not self.items:
            return notebook_html(element("p", "Nothing needs a person."))
        shown = [_article(one) for one in self.items[:MOST_SHOWN]]
        more = len(self.items) - len(shown)
        note = element("p", f"… {count(more, 'item')} more", class_="note") if more else None
        return notebook_html(element("div", *shown, note, class_="inbox-list"), style=STYLE)


def _article(item: InboxItem) -> Html:
    text = value_text(item.shown)
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    accepts = element("p", f"answers: {item.accepts}", class_="note") if item.accepts else None
    return element(
        "article",
        element("span", item.title, class_="what"),
        " ",
        element("span", item.note, class_="note"),
        element("pre", cut),
        accepts,
        element("code", _call(item)),
    )


def _call(item: InboxItem) -> str:
    call = CALLS.get(item.action.verb, "")
    return call.format(json.dumps(item.action.ids[0]), item.action.example)
