"""An open question in any dialect, as people see it. Pure.

What the agent wants to do comes from the stored value: the tool and its arguments as they will be
called. The agent's own words about it are kept apart, so that a page can mark them as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from perdure.commands.answer_dialects import dialect_of
from perdure.commands.inbox import SOON
from perdure.types import Wait
from perdure.views.tool_calls import (
    Action,
    Decision,
    inbox_items,
    reviewed_calls,
    single_call,
    without,
)

WORDS = ("question", "description", "instructions")
"""Fields of a question in which an agent speaks to the person."""

TITLES = ("title", "subject", "name", "kind")
"""Fields of a question that may say what it is about."""

LONGEST_TITLE = 90


class Dialect(StrEnum):
    """The dialect of a question, which decides how it is answered."""

    REVIEW = "review"
    """`HumanInTheLoopMiddleware`: several tool calls at once."""
    CALL = "call"
    """`HumanInTheLoopMiddleware`: one tool call."""
    AGENT_INBOX = "agent inbox"
    """`HumanInterrupt` of the Agent Inbox, alone or in a list."""
    FORM = "form"
    """A `response_schema`."""
    BREAKPOINT = "breakpoint"
    """`interrupt_before` or `interrupt_after`: any answer continues the run."""
    PLAIN = "plain"
    """A value without any hint of valid answers."""


@dataclass(frozen=True)
class Question:
    """An open question to a person."""

    id: str
    run_id: str
    thread_id: str
    dialect: Dialect
    actions: tuple[Action, ...]
    """The tool calls to decide. If empty, the answer is about `shown`."""
    shown: Any
    """What else the question shows, without the agent's words."""
    words: str
    """The agent's words to the person."""
    schema: Mapping[str, Any] | None
    asked_at: datetime
    expires_at: datetime | None
    unless: str | None
    """The signal that withdraws the question."""
    holder: str | None = None
    """The assignee. None if it is unassigned."""
    graph: str = ""
    damaged: str | None = None
    """Why it cannot be read, and so cannot be answered."""

    def expires_soon(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at - now <= SOON

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def can_all(self, decision: Decision) -> bool:
        """Whether each of its actions allows this decision."""
        return bool(self.actions) and all(decision in one.allowed for one in self.actions)


def headline(question: Question) -> str:
    """The subject of a question, in one line."""
    if question.damaged is not None:
        return "A question that cannot be read"
    if question.actions:
        tools = ", ".join(dict.fromkeys(one.tool for one in question.actions))
        many = f"{len(question.actions)} calls: " if len(question.actions) > 1 else ""
        return _line(f"{many}{tools}")
    if question.dialect is Dialect.BREAKPOINT:
        return f"Stopped at {', '.join(map(str, question.shown['breakpoint']))}"
    words = next(iter(question.words.strip().splitlines()), "")
    if not words and isinstance(question.shown, Mapping):
        named = (question.shown.get(name) for name in TITLES)
        words = next((one for one in named if isinstance(one, str) and one.strip()), "")
    if not words and question.schema is not None:
        about = question.schema.get("description")
        words = next(iter(about.strip().splitlines()), "") if isinstance(about, str) else ""
    if not words and isinstance(question.shown, Mapping):
        fields = ((name, one) for name, one in question.shown.items() if isinstance(one, str | int))
        words = next((f"{name}: {one}" for name, one in fields if str(one).strip()), "")
    return _line(" ".join(words.split()))


def _line(text: str) -> str:
    return text if len(text) <= LONGEST_TITLE else f"{text[:LONGEST_TITLE].rstrip()}…"


def question_of(wait: Wait) -> Question:
    """A question from its wait. One that cannot be read has no actions, and says why."""
    value, schema = wait.value, wait.response_schema
    if wait.damaged is not None:
        return _question(wait, Dialect.PLAIN)
    if schema is not None:
        call = single_call(value, schema)
        if call is None:
            return _question(wait, Dialect.FORM, rest=value)
        rest = without(value, "type", "tool_call_id", "name", "args", "description")
        return _question(wait, Dialect.CALL, [call], rest)
    if (known := dialect_of(value)) is not None:
        allowed = [tuple(part.allowed) for part in known.parts]
        if known.field is None:
            return _question(wait, Dialect.AGENT_INBOX, *inbox_items(value, allowed))
        rest = without(value, "action_requests", "review_configs")
        return _question(wait, Dialect.REVIEW, reviewed_calls(value, allowed), rest)
    if _is_breakpoint(value):
        return _question(wait, Dialect.BREAKPOINT, rest=value)
    return _question(wait, Dialect.PLAIN, rest=value)


def _question(
    wait: Wait, dialect: Dialect, actions: Sequence[Action] = (), rest: Any = None
) -> Question:
    words, shown = _apart(rest)
    return Question(
        id=wait.id,
        run_id=wait.run_id,
        thread_id=wait.thread_id,
        dialect=dialect,
        actions=tuple(actions),
        shown=shown,
        words=words,
        schema=wait.response_schema,
        asked_at=wait.created_at,
        expires_at=wait.expires_at,
        unless=wait.name,
        holder=wait.assignee,
        graph=wait.graph,
        damaged=wait.damaged,
    )


def _apart(value: Any) -> tuple[str, Any]:
    """The agent's words to the person, and the rest of a value. Plain text is all words."""
    if isinstance(value, str):
        return value, None
    if not isinstance(value, Mapping):
        return "", value
    names = [name for name in WORDS if isinstance(value.get(name), str)]
    return "\n\n".join(value[name] for name in names), without(value, *names)


def _is_breakpoint(value: Any) -> bool:
    is_one = isinstance(value, Mapping) and [*value] == ["breakpoint"]
    return is_one and isinstance(value["breakpoint"], list)
