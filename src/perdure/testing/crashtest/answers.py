"""The answer of a person who agrees, in the dialect of the question.

LangChain's `HumanInTheLoopMiddleware` and Agent Inbox expect answers of their own shapes; anything
else is a question of the agent's own, for which there is `--answer`.
"""

from __future__ import annotations

from typing import Any

DEFAULT = {"ok": True}


def agreeing_answer(asked: Any) -> Any:
    """The answer that approves: of each tool call, where tool calls are asked about."""
    if isinstance(asked, dict):
        if isinstance(requests := asked.get("action_requests"), list):
            return {"decisions": [{"type": "approve"} for _ in requests]}
        if asked.get("type") == "tool_approval":
            return {"type": "approve"}
        if "action_request" in asked:
            return [_accept(asked)]
    if isinstance(asked, list) and asked and all(_is_inbox_item(one) for one in asked):
        return [_accept(one) for one in asked]
    return DEFAULT


def _is_inbox_item(asked: Any) -> bool:
    return isinstance(asked, dict) and "action_request" in asked


def _accept(asked: dict[str, Any]) -> dict[str, Any]:
    """Agent Inbox: accept it, or if only words are allowed, agree in words."""
    allowed = asked.get("config") or {}
    if not allowed.get("allow_accept", True) and allowed.get("allow_respond"):
        return {"type": "response", "args": "ok"}
    return {"type": "accept", "args": None}
