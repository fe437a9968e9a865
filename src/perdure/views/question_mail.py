"""The mail about a new question, or about a run that needs a person: subject, plain text and HTML,
made from the same blocks.

The call as stored comes first; the agent's own words are below, in a marked box. Text from models
and strangers is not trusted, so our own link is the only one in a mail, and opening it decides
nothing: web addresses in other text are broken up with invisible spaces, because mail programs turn
them into links. Characters that hide or reorder text are replaced.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from perdure.types import State, Wait
from perdure.views.formatting import count, value_text
from perdure.views.markup import Html, element, join, visible
from perdure.views.question import Action, Dialect, Question, headline, question_of

LONGEST_SUBJECT = 120
LONGEST_TEXT = 4000
"""Maximum number of characters shown of one text."""
_ADDRESS = re.compile(r"(?<=\w)(?::(?=//)|[.\u3002\uff0e\uff61](?=[^\W\d_]))")
_HIDING = re.compile(r"[\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]")
_STYLE = (
    ":root{color-scheme:light dark}"
    "@media (prefers-color-scheme:dark){.page{background:#16181d!important;color:#e6e8ec!important}"
    ".box{background:#20242b!important;border-color:#3a404a!important}"
    ".quiet{color:#a3abb8!important}}"
)
_BUTTON = (
    "display:inline-block;padding:.6rem 1.1rem;border-radius:.4rem;background:#1f5fbf;"
    "color:#ffffff;text-decoration:none;font-weight:600"
)
_BOX = (
    "margin:0;padding:.4rem 1rem .75rem;border:1px solid #d5dae1;border-radius:.4rem;"
    "background:#f6f7f9"
)
_LABEL = "margin-top:.35rem;font-size:14px;color:#5b6472"
_TEXT = "margin-top:.1rem;white-space:pre-wrap;overflow-wrap:anywhere"


@dataclass(frozen=True)
class Paragraph:
    """Our own text."""

    text: str
    quiet: bool = False


@dataclass(frozen=True)
class Box:
    """Untrusted text, under a title of our own."""

    title: str
    fields: Sequence[tuple[str, str]]
    """Names and texts; the name may be empty."""
    quoted: bool = False
    """Whether it is shown as a quotation."""


@dataclass(frozen=True)
class Link:
    """The link of the mail."""

    title: str
    url: str


Block = Paragraph | Box | Link


@dataclass(frozen=True)
class MailText:
    """A mail without its addresses."""

    subject: str
    blocks: Sequence[Block]

    @property
    def plain(self) -> str:
        return "\n\n".join(map(_plain, self.blocks)) + "\n"

    @property
    def html(self) -> str:
        head = join(
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("style", Html(_STYLE)),
        )
        page = element(
            "div",
            *map(_html, self.blocks),
            style="max-width:36rem;margin:0 auto;padding:1.25rem",
        )
        body = element(
            "body",
            page,
            class_="page",
            style="margin:0;background:#ffffff;color:#1c1f24;"
            "font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif",
        )
        return f"<!doctype html>{element('html', element('head', head), body, lang='en')}"


def subject_line(text: str) -> str:
    """A subject in one line, without characters that break or hide it. What begins like an encoded
    word is broken up: it would be decoded, and may hold line ends and so headers."""
    shown = "".join(one if one.isprintable() else " " for one in text[: 2 * LONGEST_SUBJECT])
    line = " ".join(shown.split()).replace("=?", "= ?")
    return line if len(line) <= LONGEST_SUBJECT else f"{line[: LONGEST_SUBJECT - 1].rstrip()}…"


def foreign(text: str) -> str:
    """Untrusted text, safe to show in a mail."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > LONGEST_TEXT:
        more = len(text) - LONGEST_TEXT
        text = f"{text[:LONGEST_TEXT]}…\n({more:,} more characters on the page.)"
    text = _HIDING.sub("\ufffd", visible(text))
    return _ADDRESS.sub(lambda found: f"{found[0]}\u200b", text)


def _plain(block: Block) -> str:
    match block:
        case Paragraph(text):
            return textwrap.fill(text, 76, break_long_words=False, break_on_hyphens=False)
        case Link(title, url):
            return f"{title}:\n{url}"
        case Box(title, fields, quoted):
            mark = "> " if quoted else "    "
            lines = [line for name, text in fields for line in _plain_field(name, text)]
            return "\n".join([f"{title}:", "", *(f"{mark}{line}".rstrip() for line in lines)])


def _plain_field(name: str, text: str) -> list[str]:
    name, lines = foreign(name).replace("\n", " "), foreign(text).split("\n")
    if not name:
        return lines
    return (
        [f"{name}: {lines[0]}"] if len(lines) == 1 else [f"{name}:", *(f"  {one}" for one in lines)]
    )


def _html(block: Block) -> Html:
    match block:
        case Paragraph(text, quiet):
            style = "margin:0 0 1rem" + (";font-size:14px;color:#5b6472" if quiet else "")
            return element("p", text, class_="quiet" if quiet else None, style=style)
        case Link(title, url):
            return element(
                "p", element("a", title, href=url, style=_BUTTON), style="margin:0 0 1rem"
            )
        case Box(title, fields, quoted):
            box = element(
                "blockquote" if quoted else "div",
                *(_html_field(name, text) for name, text in fields),
                class_="box",
                style=_BOX + (";border-left-width:4px" if quoted else ""),
            )
            style = "margin:0 0 .4rem;font-weight:600"
            return element("div", element("p", title, style=style), box, style="margin:0 0 1.25rem")


def _html_field(name: str, text: str) -> Html:
    label = element("div", foreign(name), class_="quiet", style=_LABEL) if name else None
    return join(label, element("div", foreign(text), dir="auto", style=_TEXT))


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
