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

from perdure.errors import BadAnswer
from perdure.operations.answer_schema import check_answer

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


class Dialect(NamedTuple):
    """How a question of a well-known shape is answered."""

    name: str
    schema: Schema
    example: Any
    """An answer that fits: the first that is allowed."""
    summary: str
    """The answers that fit, in a line."""


def dialect_of(value: Any) -> Dialect | None:
    """The dialect of a question, by the value that is shown. None: any answer fits."""
    if _is_review(value):
        return _review(value)
    asked = [value] if isinstance(value, Mapping) else value
    if isinstance(asked, list) and asked and all(map(_is_inbox_item, asked)):
        return _inbox(asked, is_list=isinstance(value, list))
    return None


def check_fits(wait_id: str, value: Any, schema: Mapping[str, Any] | None, answer: Any) -> None:
    """Raise `BadAnswer` if an answer does not fit its question."""
    dialect = None if schema is not None else dialect_of(value)
    if dialect is None:
        if schema is not None:
            check_answer(wait_id, schema, answer)
        return
    try:
        check_answer(wait_id, dialect.schema, answer)
    except BadAnswer as error:
        example = shlex.quote(json.dumps(dialect.example, ensure_ascii=False, default=str))
        raise BadAnswer(
            wait_id,
            f"{dialect.name} takes {dialect.summary}. For example: "
            f"perdure answer {wait_id} {example}",
        ) from error


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
    schema = {
        "type": "object",
        "properties": {"decisions": _array([_one_of(DECISIONS, names) for names in allowed])},
        "required": ["decisions"],
    }
    shown = "; ".join(
        f"{action.get('name')}: {' | '.join(names)}"
        for action, names in zip(actions, allowed, strict=True)
    )
    first = [_decision(names[0], action) for names, action in zip(allowed, actions, strict=True)]
    shapes = [shape for name, shape in SHAPES.items() if any(name in names for names in allowed)]
    more = f", such as {' or '.join(shapes)}" if shapes else ""
    summary = f'{{"decisions": [...]}} with a decision for each action ({shown}){more}'
    return Dialect("HumanInTheLoopMiddleware", schema, {"decisions": first}, summary)


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


def _inbox(asked: Sequence[Mapping[str, Any]], is_list: bool) -> Dialect:
    allowed = [
        [name for name, key in ALLOWED_BY.items() if one["config"].get(key)] or list(RESPONSES)
        for one in asked
    ]
    each = [_one_of(RESPONSES, names) for names in allowed]
    requests = [one["action_request"] for one in asked]
    first = [_response(names[0], one) for names, one in zip(allowed, requests, strict=True)]
    choices = "; ".join(" | ".join(names) for names in allowed)
    if is_list:
        return Dialect("The Agent Inbox", _array(each), first, f"a list of responses ({choices})")
    schema = {"anyOf": [each[0], _array(each)]}  # its own page always sends a list
    return Dialect("The Agent Inbox", schema, first, f"a response, alone or in a list ({choices})")


def _response(name: str, request: Mapping[str, Any]) -> Schema:
    args: Any = {"edit": dict(request), "response": "..."}.get(name)
    return {"type": name, "args": args}


def _array(each: Sequence[Schema]) -> Schema:
    return {"type": "array", "prefixItems": each, "minItems": len(each), "maxItems": len(each)}


def _one_of(kinds: Mapping[str, Schema], names: Sequence[str]) -> Schema:
    return {"oneOf": [{"type": "object", "required": ["type"], **kinds[name]} for name in names]}
