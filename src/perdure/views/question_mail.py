"""The mail about a new question, or about a run that needs a person.

The call as stored comes first; the agent's own words are below, in a marked box. There is one link,
and opening it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from perdure.types import State, Wait
from perdure.views.formatting import count
from perdure.views.mail_text import (
    Block,
    Box,
    Link,
    MailText,
    Paragraph,
    foreign,
    subject_line,
)
from perdure.views.question import Dialect, Question, headline, question_of
from perdure.views.tool_calls import Action
from perdure.views.value_text import value_text

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
        Paragraph(f"The agent {foreign(wait.graph)} asks for your decision.{last}"),
        *(_shown(question) if content else ()),
        Link(DECIDE, url),
        Paragraph(
            f"Opening the link decides nothing; open it as often as you like. It takes one "
            f"decision, until {_utc(url_expires)}. The decision is recorded under {to}, so do not "
            "forward this mail.",
            quiet=True,
        ),
        *(_words(question) if content else ()),
    ]
    asks = _subject(question) if content else ""
    subject = f"Please decide: {asks} ({wait.graph})" if asks else f"Please decide: {wait.graph}"
    return MailText(subject_line(subject), blocks)


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
    if not shown and question.words:
        shown.append(Box("The agent asks", [("", question.words)], quoted=True))
    return shown


def _words(question: Question) -> list[Block]:
    if not question.actions and question.shown is None:
        return []  # they are the question itself
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


def _subject(question: Question) -> str:
    """What a question is about, without what it shows: a locked phone shows subjects."""
    is_breakpoint = question.dialect is Dialect.BREAKPOINT
    return headline(question if is_breakpoint else replace(question, shown=None))


def _tool(action: Action) -> str:
    return foreign(subject_line(action.tool))


def _utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
