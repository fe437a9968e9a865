"""Drafts that wait for a person, many at a time: read as differences, edited in one file, answered.

A draft is answered by the id of its wait, which is bound to the text that was shown: a draft that
has since been answered, withdrawn or rewritten has another id, and is not answered. After a kill
some drafts are answered and the rest are open; repeating the command answers those.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema

from perdure.errors import AnswerRefused, NotFound
from perdure.types import Wait

from .agent import thread_of

if TYPE_CHECKING:
    from .app import App

PAGE = 500
END = "=== end of drafts ==="
_ESCAPED = ("===", "Subject:", "\\")
"""How lines of a text begin that have a backslash before them in the file."""
_HEAD = re.compile(r"=== draft (\S+) === touch (\d+) to (\S+)")
_WORDS = re.compile(r"\s+|\w+|.", re.DOTALL)
_INTRO = """\
# {count} of the campaign {name}. Change subjects and texts, delete drafts that you do not
# want to answer, and leave the lines that begin with === as they are, also the last one. Then:
#   python -m examples.campaign approve {name} --edits FILE --by YOU
# Below each mail stands how to get no more of them, as `approve` shows it.
"""

Line = list[tuple[str, str]]
"""A line of a difference: unchanged (" "), removed ("-") and added ("+") parts."""


class BadEdits(ValueError):
    """A file of edited drafts that cannot be read. Nothing was answered."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(["Nothing was answered:", *(f"  {one}" for one in problems)]))
        self.problems = problems


@dataclass(frozen=True)
class Draft:
    """A text that waits for a person."""

    wait_id: str
    to: str
    touch: int
    subject: str
    body: str
    since: datetime
    problem: str = ""
    """Why the last text could not be sent."""
    footer: str = ""
    """What follows the text in the mail."""
    schema: Any = None

    @property
    def text(self) -> str:
        return f"Subject: {self.subject}\n\n{_lines(self.body)}"


@dataclass(frozen=True)
class Decision:
    """A draft, and the answer a person gives."""

    draft: Draft
    subject: str
    body: str

    @property
    def is_edited(self) -> bool:
        return (self.subject, self.body) != (self.draft.subject, _lines(self.draft.body))

    @property
    def answer(self) -> dict[str, str]:
        if not self.is_edited:
            return {"action": "approve"}
        return {"action": "edit", "subject": self.subject, "body": self.body}


@dataclass(frozen=True)
class NotAnswered:
    """A draft that could not be answered, and why."""

    wait_id: str
    to: str
    why: str


def waiting(app: App, campaign_id: int | None = None) -> list[Draft]:
    """Open drafts, of a campaign or of all, by touch and then the oldest first."""
    mine = "campaign-" if campaign_id is None else thread_of(campaign_id, 0)[:-1]
    found = [_draft(wait) for wait in _questions(app) if wait.thread_id.startswith(mine)]
    return sorted((one for one in found if one), key=lambda one: (one.touch, one.since, one.to))


def answer(app: App, decisions: Iterable[Decision], by: str | None) -> list[NotAnswered]:
    """Answer each draft. Returns those that were no longer open."""
    missed: list[NotAnswered] = []
    for one in decisions:
        try:
            app.runtime.blocking.answer(one.draft.wait_id, one.answer, by=by)
        except (AnswerRefused, NotFound) as error:
            missed.append(NotAnswered(one.draft.wait_id, one.draft.to, str(error)))
    return missed


def approved(draft: Draft) -> Decision:
    return Decision(draft, draft.subject, _lines(draft.body))


def _questions(app: App) -> Iterator[Wait]:
    last: Wait | None = None
    while True:
        page = app.runtime.blocking.waits(kind="human", after=last, limit=PAGE)
        yield from page
        if len(page) < PAGE:
            return
        last = page[-1]


def _draft(wait: Wait) -> Draft | None:
    value = wait.value
    if not isinstance(value, dict) or value.get("kind", "approval") != "approval":
        return None
    if wait.damaged or not {"to", "touch", "subject", "body"} <= value.keys():
        return None
    texts = {name: value[name] for name in ("to", "touch", "subject", "body")}
    return Draft(
        wait.id,
        **texts,
        since=wait.created_at,
        problem=str(value.get("problem") or ""),
        footer=str(value.get("footer") or ""),
        schema=wait.response_schema,
    )


# -- differences


def difference(before: str, after: str) -> list[Line]:
    """The lines that differ, in words."""
    old, new = before.split("\n"), after.split("\n")
    found: list[Line] = []
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        if kind == "equal":
            continue
        pairs = min(i2 - i1, j2 - j1)
        found += [_words(old[i1 + n], new[j1 + n]) for n in range(pairs)]
        found += [[("-", line)] for line in old[i1 + pairs : i2]]
        found += [[("+", line)] for line in new[j1 + pairs : j2]]
    return found


def _words(before: str, after: str) -> Line:
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    matcher = difflib.SequenceMatcher(None, old, new, False)
    if matcher.ratio() < 0.4:  # another line altogether
        return [(mark, text) for mark, text in (("-", before), ("+", after)) if text]
    line: Line = []
    for kind, i1, i2, j1, j2 in matcher.get_opcodes():
        if kind == "equal":
            line.append((" ", "".join(old[i1:i2])))
            continue
        line += [("-", "".join(old[i1:i2]))] * (i2 > i1) + [("+", "".join(new[j1:j2]))] * (j2 > j1)
    return line


# -- one file for all of them


def write(path: Path, name: str, drafts: list[Draft]) -> None:
    """Write drafts to a new file, for an editor. An existing file is not overwritten."""
    count = f"{len(drafts)} draft{'s' * (len(drafts) != 1)}"
    parts = [_INTRO.format(count=count, name=name)]
    for one in drafts:
        body = "\n".join(
            f"\\{line}" if line.startswith(_ESCAPED) else line
            for line in _lines(one.body).split("\n")
        )
        parts.append(
            f"\n=== draft {one.wait_id} === touch {one.touch} to {one.to}\n"
            f"Subject: {one.subject}\n\n{body}\n"
        )
    parts.append(f"\n{END}\n")
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write("".join(parts))
    except FileExistsError:
        raise ValueError(f"{path} exists. Name another file, or delete it first.") from None


def read(path: Path, drafts: list[Draft]) -> tuple[list[Decision], list[NotAnswered]]:
    """Read an edited file: a decision per draft, and the drafts that are no longer open. Raises
    `BadEdits` with everything that is wrong with the file.

    A draft whose first line was damaged would become a part of the text before it. So a text must
    have no line that begins with `Subject:`, as every draft has, unless it is escaped.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadEdits([f"the file is not UTF-8: byte {error.start}"]) from None
    open_now = {one.wait_id: one for one in drafts}
    decisions: list[Decision] = []
    missed: list[NotAnswered] = []
    problems: list[str] = []
    seen: dict[str, int] = {}
    for number, head, lines in _sections(text.replace("\r\n", "\n").split("\n"), problems):
        wait_id, touch, to = head
        if wait_id in seen:
            problems.append(f"line {number}: this draft is also on line {seen[wait_id]}")
        seen[wait_id] = number
        wrong = len(problems)
        subject, body = _content(number, lines, problems)
        draft = open_now.get(wait_id)
        if draft is None:
            missed.append(NotAnswered(wait_id, to, "it is not an open draft of this campaign"))
            continue
        if (str(draft.touch), draft.to) != (touch, to):
            problems.append(f"line {number}: draft {wait_id} is touch {draft.touch} to {draft.to}")
        made = Decision(draft, subject, body)
        if made.is_edited and draft.schema is not None and len(problems) == wrong:
            rules = jsonschema.Draft202012Validator(draft.schema)
            problems += [
                f"line {number}: {'.'.join(map(str, one.path)) or 'the draft'} has characters that "
                "a mail cannot have, or is empty"
                for one in list(rules.iter_errors(made.answer))[:1]
            ]
        decisions.append(made)
    if problems:
        raise BadEdits(problems)
    return decisions, missed


def _sections(
    lines: list[str], problems: list[str]
) -> Iterator[tuple[int, tuple[str, str, str], list[str]]]:
    """Each draft of a file: the number of its first line, that line's parts, and the rest."""
    starts = [n for n, line in enumerate(lines) if line.startswith("===")]
    for n, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        found = _HEAD.fullmatch(lines[n].rstrip())
        if found:
            yield n + 1, (found[1], found[2], found[3]), lines[n + 1 : end]
        elif lines[n].rstrip() != END:
            problems.append(f"line {n + 1}: {lines[n][:60]!r} does not begin a draft")
        elif any(line.strip() for line in lines[n + 1 :]):
            problems.append(f"line {n + 1}: there is text after the end")
    if not starts or lines[starts[-1]].rstrip() != END:
        problems.append(f"line {len(lines)}: the last line, {END!r}, is missing")
    for n, line in enumerate(lines[: starts[0] if starts else 0]):
        if line.strip() and not line.startswith("#"):
            problems.append(f"line {n + 1}: {line[:60]!r} is before the first draft")


def _content(number: int, lines: list[str], problems: list[str]) -> tuple[str, str]:
    """The subject and the text of a draft that begins on a line."""
    if not lines or not lines[0].startswith("Subject:"):
        problems.append(f"line {number + 1}: 'Subject: …' is missing")
        return "", ""
    if len(lines) < 2 or lines[1].strip():
        problems.append(f"line {number + 2}: an empty line has to follow the subject")
    for n, line in enumerate(lines[2:], number + 3):
        if line.startswith("Subject:"):
            problems.append(
                f"line {n}: another draft seems to begin here, but the line '=== draft …' before "
                "it is damaged; if this belongs to the text, begin it with a backslash"
            )
    subject = lines[0].removeprefix("Subject:").removeprefix(" ")
    if not subject.strip():
        problems.append(f"line {number + 1}: the subject is empty")
    body = _lines("\n".join(line[line.startswith("\\") :] for line in lines[2:]))
    if not body.strip():
        problems.append(f"line {number + 3}: the text is empty; delete the whole draft to skip it")
    return subject, body


def _lines(text: str) -> str:
    """A text with LF line endings, and without empty lines at the end."""
    return text.replace("\r\n", "\n").rstrip("\n")
