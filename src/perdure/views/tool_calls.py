"""The tool calls that a question asks about, in any dialect. Pure.

The tool and its arguments are those of the stored value: what runs if the call is approved. What
the agent says about a call is kept apart from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from perdure.commands.answer_dialects import DECISIONS
from perdure.serde.redaction import HIDDEN
from perdure.views.schema_summary import alternatives

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
