"""An open question in any dialect, as people see it, and why one no longer takes an answer. Pure.

What the agent wants to do comes from the stored value: the tool and its arguments as they will be
called. The agent's own words about it are kept apart, so that a page can mark them as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from perdure.commands.answer_dialects import DECISIONS, dialect_of
from perdure.commands.inbox import SOON
from perdure.serde.redaction import HIDDEN
from perdure.types import ENDED, State, Wait, WaitRecord, WaitState
from perdure.views.schema_words import alternatives


class End(StrEnum):
    """How a question ended."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    TAKEN_BACK = "taken back"
    CHANGED = "changed"
    RUN_ENDED = "run ended"


@dataclass(frozen=True)
class QuestionEnd:
    """How a question ended, in words."""

    end: End
    title: str
    text: str


def question_end(
    record: WaitRecord, state: State | None, now: datetime, *, asks_again: bool, viewer: str = ""
) -> QuestionEnd:
    """How a question ended. `state` is that of its run; None if it was deleted. `asks_again`: the
    run has another open question. `viewer` is who is told."""
    late = record.expires_at is not None and record.expires_at <= now
    if record.state == WaitState.OPEN and not late:
        return QuestionEnd(End.OPEN, "Open", "It waits for an answer.")
    if record.state == WaitState.CLOSED:
        return _closed(state, asks_again)
    expired = record.expires_at is not None and (
        record.answered_at is None or record.answered_at >= record.expires_at
    )
    if record.answered_by == "clock" or (late and expired):
        text = "No answer came in time, so the agent continued without one."
        return QuestionEnd(End.EXPIRED, "This question has expired", text)
    if record.answered_by == "signal":
        text = f"The signal {record.name} came first, so the agent continued without an answer."
        return QuestionEnd(End.TAKEN_BACK, "The agent withdrew this question", text)
    who = record.answered_by or "Someone"
    who = "You" if viewer and who == viewer else who
    return QuestionEnd(End.ANSWERED, f"{who} answered this question", "The first answer counts.")


def _closed(state: State | None, asks_again: bool) -> QuestionEnd:
    if state is None:
        return QuestionEnd(End.RUN_ENDED, "The run is gone", "Its run was deleted.")
    if state in ENDED:
        text = f"Its run is {state}, so no answer is needed."
        return QuestionEnd(End.RUN_ENDED, f"The run is {state}", text)
    text = "The agent now wants to do something else, so this question takes no answer."
    if asks_again:
        text += " Answer the new question instead."
    return QuestionEnd(End.CHANGED, "This question has changed", text)


PREFIX = "Tool execution requires approval"
"""The default description of `HumanInTheLoopMiddleware`."""
DEEPEST = 50


class Decision(StrEnum):
    """What a person can decide about an action."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"
    """Answer the agent in words; the call does not run."""
    SKIP = "skip"
    """The call does not run, without a reason."""


OF_THE_AGENT_INBOX: Mapping[str, Decision] = {
    "accept": Decision.APPROVE,
    "edit": Decision.EDIT,
    "response": Decision.RESPOND,
    "ignore": Decision.SKIP,
}
"""Responses of the Agent Inbox as decisions."""


@dataclass(frozen=True)
class Action:
    """A tool call that an agent asks about."""

    tool: str
    arguments: Mapping[str, Any]
    """As stored: the arguments of the call if it is approved."""
    words: str
    """What the agent says about it."""
    allowed: tuple[Decision, ...]
    schema: Mapping[str, Any] | None = None
    """The schema of edited arguments, if the question has one."""
    note: str = ""
    """Why a decision that the agent accepts is not offered."""


def without(value: Mapping[str, Any], *names: str) -> Any:
    """A value without some of its fields. None if nothing is left."""
    return {key: one for key, one in value.items() if key not in names} or None


def _action(
    tool: Any,
    arguments: Any,
    words: Any,
    allowed: Sequence[Decision],
    schema: Mapping[str, Any] | None = None,
) -> Action:
    """An action. Arguments that are not an object are shown under the name `arguments`."""
    given = {} if arguments is None else arguments
    is_object = isinstance(given, Mapping) and all(isinstance(key, str) for key in given)
    found = dict(given) if is_object else {"arguments": given}
    can, note = [one for one in Decision if one in allowed], ""
    if Decision.EDIT in can and (_is_redacted(found) or not is_object):
        can.remove(Decision.EDIT)
        why = "its arguments have no names" if not is_object else f"a secret is stored as {HIDDEN}"
        note = f"This call cannot be edited here: {why}."
    said = words.strip() if isinstance(words, str) else ""
    said = said.removesuffix(f"Tool: {tool}\nArgs: {given}").strip()
    return Action(str(tool), found, "" if said == PREFIX else said, tuple(can), schema, note)


def _is_redacted(value: Any, depth: int = 0) -> bool:
    """Whether a secret in a value was replaced when it was stored."""
    if isinstance(value, str):
        return HIDDEN in value
    if not isinstance(value, (Mapping, list, tuple)) or depth > DEEPEST:
        return False
    inside = value.values() if isinstance(value, Mapping) else value
    return any(_is_redacted(one, depth + 1) for one in inside)


def reviewed_calls(value: Mapping[str, Any], allowed: Sequence[Sequence[str]]) -> list[Action]:
    """The calls of a `HITLRequest`, each with the decisions that are allowed."""
    return [
        _action(one.get("name"), one.get("args"), one.get("description"), [*map(Decision, names)])
        for one, names in zip(value["action_requests"], allowed, strict=True)
    ]


def inbox_items(value: Any, allowed: Sequence[Sequence[str]]) -> tuple[list[Action], Any]:
    """The items of an Agent Inbox as actions, and what else they say."""
    items = [value] if isinstance(value, Mapping) else value
    actions = [
        _action(
            one["action_request"].get("action"),
            one["action_request"].get("args"),
            one.get("description"),
            [OF_THE_AGENT_INBOX[name] for name in names],
        )
        for one, names in zip(items, allowed, strict=True)
    ]
    rest = [without(one, "action_request", "config", "description") for one in items]
    return actions, (rest[0] if len(rest) == 1 else rest) if any(rest) else None


def single_call(value: Any, schema: Mapping[str, Any]) -> Action | None:
    """The call of a question about one, if its schema is as the middleware makes it."""
    if not isinstance(value, Mapping) or value.get("type") != "tool_approval":
        return None
    parts = {_const(part): part for part in alternatives(schema, schema)}
    if not parts or not parts.keys() <= DECISIONS.keys() or "name" not in value:
        return None
    allowed = [Decision(str(name)) for name in parts]
    edit = _property(_property(parts.get("edit"), "edited_action", schema), "args", schema)
    edit = None if edit is None else {**edit, "$defs": schema.get("$defs", {})}
    return _action(value["name"], value.get("args"), value.get("description"), allowed, edit)


def _const(part: Mapping[str, Any]) -> Any:
    """The `type` of the answers that fit this part of a schema."""
    kind = (part.get("properties") or {}).get("type")
    return kind.get("const") if isinstance(kind, Mapping) else None


def _property(
    part: Mapping[str, Any] | None, name: str, schema: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    found = ((part or {}).get("properties") or {}).get(name)
    return next(alternatives(found, schema), None)


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
