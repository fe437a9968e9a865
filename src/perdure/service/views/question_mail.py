"""The mail about a new question, or about a run that needs a person.

The call as stored comes first; the agent's own words are below, in a marked box. There is one link,
and opening it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from perdure.service.views.formatting import count
from perdure.service.views.mail_text import (
    Block,
    Box,
    Link,
    MailText,
    Paragraph,
    foreign,
    subject_line,
)
from perdure.service.views.question import Question, headline, question_of
from perdure.service.views.tool_calls import Action
from perdure.service.views.value_text import value_text
from perdure.types import State, Wait

DECIDE = "Open and decide"
MOST_ACTIONS = 10
"""Maximum number of tool calls that a mail shows."""
MOST_FIELDS = 20
"""Maximum number of fields shown of each call."""
_SAYS = {
    State.HELD: "is held until a person decides",
    State.FAILED: "has failed",
    State.DONE: "is done",
}


def question_mail(
    wait: Wait, to: str, url: str, url_expires: datetime, *, content: bool
) -> MailText:
    """The mail about a question, or with `content=False` only its link."""
    question = question_of(wait)
    last = "" if wait.expires_at is None else f" The question expires {_utc(wait.expires_at)}."
    blocks: list[Block] = [
        Paragraph(f"{foreign(wait.graph)} is waiting for a decision.{last}"),
        *(_shown(question) if content else ()),
        Link(DECIDE, url),
        Paragraph(
            f"Opening the link decides nothing. It is for {to} only: answers through it are "
            f"recorded under this name, so do not forward it. It works once, until "
            f"{_utc(url_expires)}.",
            quiet=True,
        ),
        *(_words(question) if content else ()),
    ]
    asks = f"asks: {_summary(question)}" if content else "asks you to decide"
    return MailText(subject_line(f"[perdure] {wait.graph} {asks}"), blocks)


def run_mail(graph: str, state: str, reason: str, url: str, *, content: bool) -> MailText:
    """The mail about the state of a run. Without `content` it does not say why."""
    says = _SAYS.get(State(state), f"is {state}")
    why = [Box("Reason", [("", reason)])] if content and reason else []
    said = Paragraph(f"A run of {foreign(graph)} {says}.")
    subject = subject_line(f"[perdure] {graph}: a run {says}")
    return MailText(subject, [said, *why, Link("Open run", url)])


def _shown(question: Question) -> list[Block]:
    """What is to be decided, as stored."""
    shown: list[Block] = [
        Box(f"{_tool(one)} runs if you approve", _fields(one.arguments))
        for one in question.actions[:MOST_ACTIONS]
    ]
    if (more := len(question.actions) - MOST_ACTIONS) > 0:
        shown.append(Paragraph(f"And {count(more, 'more call')}, on the page."))
    if question.shown is not None:
        shown.append(Box("For your decision", _fields(question.shown)))
    return shown


def _words(question: Question) -> list[Block]:
    said = [question.words, *(one.words for one in question.actions[:MOST_ACTIONS])]
    words = [("", one) for one in said if one]
    return [Box("The agent's own words, unchecked", words, quoted=True)] if words else []


def _fields(value: Any) -> list[tuple[str, str]]:
    """The fields of an object; any other value is one field without a name."""
    if not isinstance(value, Mapping):
        return [("", value_text(value))]
    found = [(str(name), value_text(one)) for name, one in [*value.items()][:MOST_FIELDS]]
    more = len(value) - len(found)
    return [*found, *([("", f"and {more} more, on the page")] if more else [])] or [
        ("", "no arguments")
    ]


def _summary(question: Question) -> str:
    title = headline(question) or value_text(question.shown)
    only = question.actions[0] if len(question.actions) == 1 else None
    return title if only is None else f"{title} {value_text(only.arguments)}"


def _tool(action: Action) -> str:
    return foreign(subject_line(action.tool))


def _utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
