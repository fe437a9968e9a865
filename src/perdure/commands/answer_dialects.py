"""The well-known shapes of questions, and the answers that fit each.

LangChain's `HumanInTheLoopMiddleware` and the Agent Inbox ask with values of their own, without a
schema. Their code raises on any other answer, so that is refused before it is stored. A question of
another shape takes any answer; one with a `response_schema` what that says.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perdure.commands.answer_schema import as_json, check_answer, problems_of
from perdure.errors import BadAnswer

Schema = dict[str, Any]

DECISIONS: Mapping[str, Schema] = {
    "approve": {"properties": {"type": {"const": "approve"}}},
    "edit": {
        "properties": {
            "type": {"const": "edit"},
            "edited_action": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "args": {"type": "object"}},
                "required": ["name", "args"],
            },
        },
        "required": ["type", "edited_action"],
    },
    "reject": {"properties": {"type": {"const": "reject"}, "message": {"type": "string"}}},
    "respond": {
        "properties": {"type": {"const": "respond"}, "message": {"type": "string"}},
        "required": ["type", "message"],
    },
}
"""Decisions about an action of a `HITLRequest`."""

SHAPES = {
    "edit": '{"type": "edit", "edited_action": {"name": ..., "args": {...}}}',
    "respond": '{"type": "respond", "message": "..."}',
}
"""Decisions that need more than their type."""

RESPONSES: Mapping[str, Schema] = {
    "accept": {"properties": {"type": {"const": "accept"}}},
    "ignore": {"properties": {"type": {"const": "ignore"}}},
    "response": {
        "properties": {"type": {"const": "response"}, "args": {"type": "string"}},
        "required": ["type", "args"],
    },
    "edit": {
        "properties": {"type": {"const": "edit"}, "args": {"type": "object"}},
        "required": ["type", "args"],
    },
}
"""Responses to a `HumanInterrupt` of the Agent Inbox."""

ALLOWED_BY = {
    "accept": "allow_accept",
    "ignore": "allow_ignore",
    "response": "allow_respond",
    "edit": "allow_edit",
}

SHOWN = 60
"""How many characters of an answer its error quotes."""


class Part(NamedTuple):
    """An action that a question asks about."""

    action: str
    allowed: Mapping[str, Schema]
    """The types of decisions that are allowed, each with its schema."""


class Dialect(NamedTuple):
    """How a question of a well-known shape is answered.

    Attributes:
        parts: What it asks about: the answer has a decision for each, in this order.
        word: What the dialect calls such a decision.
        field: The field of the answer with the list of decisions. None: the answer is the list.
        is_list: Whether a single decision must be in a list, too.
        example: An answer that fits: the first that is allowed.
        summary: The answers that fit, in a line.
    """

    name: str
    parts: Sequence[Part]
    word: str
    field: str | None
    is_list: bool
    example: Any
    summary: str


def dialect_of(value: Any) -> Dialect | None:
    """The dialect of a question, by the value that is shown. None: any answer fits."""
    if _is_review(value):
        return _review(value)
    items = [value] if isinstance(value, Mapping) else value
    if isinstance(items, list) and items and all(map(_is_inbox_item, items)):
        return _inbox(items, is_list=isinstance(value, list))
    return None


def check_fits(wait_id: str, value: Any, schema: Mapping[str, Any] | None, answer: Any) -> None:
    """Raise `BadAnswer` if an answer does not fit its question."""
    dialect = None if schema is not None else dialect_of(value)
    if dialect is None:
        if schema is not None:
            check_answer(wait_id, schema, answer)
        return
    if problem := _problem(dialect, as_json(answer)):
        example = shlex.quote(json.dumps(dialect.example, ensure_ascii=False, default=str))
        raise BadAnswer(
            wait_id,
            f"{problem}. {dialect.name} takes {dialect.summary}. For example: "
            f"perdure answer {wait_id} {example}",
        )


def _problem(dialect: Dialect, answer: Any) -> str | None:
    """What is wrong with an answer."""
    parts, word, decisions = dialect.parts, dialect.word, answer
    if dialect.field is not None:
        if not isinstance(answer, dict) or dialect.field not in answer:
            return f'it is {_shown(answer)}, not an object with "{dialect.field}"'
        decisions = answer[dialect.field]
    if not dialect.is_list and isinstance(decisions, dict):
        decisions = [decisions]
    if not isinstance(decisions, list):
        what = "it" if dialect.field is None else f'"{dialect.field}"'
        return f"{what} is {_shown(decisions)}, not a list of {word}s"
    if len(decisions) != len(parts):
        return f"it has {_count(decisions, word)} for {_count(parts, 'action')}"
    reasons = (_problem_of_one(part, one) for part, one in zip(parts, decisions, strict=True))
    wrong = [f"{word} {n} ({parts[n - 1].action}) {why}" for n, why in enumerate(reasons, 1) if why]
    return "; ".join(wrong[:5]) or None


def _problem_of_one(part: Part, decision: Any) -> str | None:
    if not isinstance(decision, dict) or "type" not in decision:
        return f'is {_shown(decision)}, not an object with a "type"'
    schema = part.allowed.get(decision["type"]) if isinstance(decision["type"], str) else None
    if schema is None:
        allowed = " or ".join(json.dumps(name) for name in part.allowed)
        return f"has the type {_shown(decision['type'])}, not {allowed}"
    problems = problems_of(schema, decision)
    return f"does not fit its type: {', '.join(problems)}" if problems else None


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _count(items: Sequence[Any], word: str) -> str:
    return f"{len(items)} {word}{'' if len(items) == 1 else 's'}"


# -- HumanInTheLoopMiddleware


def _is_review(value: Any) -> bool:
    if not isinstance(value, Mapping) or not {"action_requests", "review_configs"} <= value.keys():
        return False
    actions, configs = value["action_requests"], value["review_configs"]
    lists = isinstance(actions, list) and isinstance(configs, list)
    return lists and bool(actions) and all(isinstance(one, Mapping) for one in actions + configs)


def _review(value: Mapping[str, Any]) -> Dialect:
    actions = value["action_requests"]
    allowed = [_allowed(value["review_configs"], n, one) for n, one in enumerate(actions)]
    parts = [
        Part(str(action.get("name")), {name: DECISIONS[name] for name in names})
        for action, names in zip(actions, allowed, strict=True)
    ]
    choices = "; ".join(f"{part.action}: {' | '.join(part.allowed)}" for part in parts)
    first = [_decision(names[0], action) for names, action in zip(allowed, actions, strict=True)]
    shapes = [shape for name, shape in SHAPES.items() if any(name in names for names in allowed)]
    more = f", such as {' or '.join(shapes)}" if shapes else ""
    summary = f'{{"decisions": [...]}} with a decision for each action ({choices}){more}'
    example = {"decisions": first}
    return Dialect(
        "HumanInTheLoopMiddleware", parts, "decision", "decisions", True, example, summary
    )


def _allowed(configs: Sequence[Mapping[str, Any]], n: int, action: Mapping[str, Any]) -> list[str]:
    """The decisions that are allowed for the n-th action."""
    own = [one for one in configs if one.get("action_name") == action.get("name")]
    config = configs[n] if len(configs) > n else own[0] if own else {}
    names = [one for one in config.get("allowed_decisions") or () if one in DECISIONS]
    return names or list(DECISIONS)


def _decision(name: str, action: Mapping[str, Any]) -> Schema:
    if name == "edit":
        edited = {"name": action.get("name"), "args": action.get("args") or {}}
        return {"type": name, "edited_action": edited}
    return {"type": name, "message": "..."} if name == "respond" else {"type": name}


# -- the Agent Inbox


def _is_inbox_item(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("action_request"), Mapping)
        and isinstance(value.get("config"), Mapping)
        and any(name in value["config"] for name in ALLOWED_BY.values())
    )


def _inbox(items: Sequence[Mapping[str, Any]], is_list: bool) -> Dialect:
    allowed = [
        [name for name, key in ALLOWED_BY.items() if one["config"].get(key)] or list(RESPONSES)
        for one in items
    ]
    requests = [one["action_request"] for one in items]
    parts = [
        Part(str(one.get("action")), {name: RESPONSES[name] for name in names})
        for one, names in zip(requests, allowed, strict=True)
    ]
    first = [_response(names[0], one) for names, one in zip(allowed, requests, strict=True)]
    choices = "; ".join(" | ".join(names) for names in allowed)
    # A single item may be answered alone; the Agent Inbox's own page always sends a list.
    shape = "a list of responses" if is_list else "a response, alone or in a list"
    summary = f"{shape} ({choices})"
    return Dialect("The Agent Inbox", parts, "response", None, is_list, first, summary)


def _response(name: str, request: Mapping[str, Any]) -> Schema:
    args: Any = {"edit": dict(request), "response": "..."}.get(name)
    return {"type": name, "args": args}
