"""Translates Agent Inbox's answers to questions of `HumanInTheLoopMiddleware`.

Agent Inbox shows such a question but answers it in its own format: a list of responses, each
`{"type": "accept" | "edit" | "response" | "ignore", "args": ...}`. The middleware would raise on
that. Any other answer is passed on unchanged, and checked against the question before it is stored
(`answer_dialects.check_fits`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.execution.pending_command import names_waits
from perdure.operations import waits
from perdure.operations.answer_dialects import ALLOWED_BY, Part, dialect_of
from perdure.operations.waits import WaitRow
from perdure.serde.serializer import Serializer


def translated(serializer: Serializer, open: Sequence[WaitRow], resume: Any) -> Any:
    """A command's answer to these open waits, translated to the format that they expect."""
    if names_waits(resume):
        by_id = {wait.interrupt_id: wait for wait in open}
        return {
            id: value if id not in by_id else _answer(serializer, by_id[id], value)
            for id, value in resume.items()
        }
    return _answer(serializer, open[0], resume) if len(open) == 1 else resume


def _answer(serializer: Serializer, wait: WaitRow, answer: Any) -> Any:
    responses = answer if isinstance(answer, list) else [answer]
    if not responses or not all(map(_is_response, responses)):
        return answer
    if waits.is_to_be_asked_again(serializer, wait):
        return answer
    body = waits.load_body(serializer, wait)
    dialect = None if body.schema is not None else dialect_of(body.value)
    if dialect is None or dialect.field != "decisions" or len(dialect.parts) != len(responses):
        return answer
    decisions = zip(dialect.parts, responses, strict=True)
    return {"decisions": [_decision(part, response) for part, response in decisions]}


def _is_response(one: Any) -> bool:
    return isinstance(one, Mapping) and one.get("type") in ALLOWED_BY and "args" in one


def _decision(part: Part, response: Mapping[str, Any]) -> dict[str, Any]:
    """A response as a decision for the middleware."""
    args = response["args"]
    match response["type"]:
        case "accept":
            return {"type": "approve"}
        case "edit" if isinstance(args, Mapping):
            edited = {"name": args.get("action", part.action), "args": args.get("args")}
            return {"type": "edit", "edited_action": edited}
        case "response":  # becomes the tool's result, or the reason why it was not called
            return {"type": "respond" if "respond" in part.allowed else "reject", "message": args}
        case "ignore":
            return {"type": "reject"}
    return dict(response)
