"""One model call or tool call of an agent, as an effect; and how the calls of a tool settle."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal, cast

from langchain.agents.middleware import ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command
from pydantic import BaseModel

from perdure.effects.call import ModelUsage
from perdure.effects.decorator import Effect
from perdure.effects.spec import (
    ONCE,
    EffectSpec,
    business_key,
    check_unknown,
    record_of,
    seconds_of,
)
from perdure.effects.task import current_task, digest
from perdure.errors import BadArgument
from perdure.langgraph_port import ecosystem
from perdure.types import Record, Retry


@dataclass(frozen=True)
class Policy:
    """How to handle the calls of a tool, for `Durable(tools={name: Policy(…)})`.

    Attributes:
        key: A function of the tool's arguments, by name, that returns a business key. Calls
            with the same key are made once across runs and threads: a second call gets the
            outcome of the first.
        unknown: How to handle a call with an unknown outcome: call it again with the same key
            (`retry`), or hold the run until a person settles it (`hold`). `None`, as for a tool
            without a policy: an interrupted call holds the run, and an exception means that
            nothing happened.
        retry: How often perdure tries a call that raised; the last exception is recorded.
            `None`: an exception is raised at once and not recorded, and retries are left to
            LangChain and to the run.
        timeout: Limit for one attempt, in seconds or as a timedelta.
        record: Which arguments to store: their names, or a `Record`. By default everything
            except secrets.
        trust_errors: With `unknown="hold"`: an exception means that nothing happened, so only a
            call that was cut off holds the run.

    Raises:
        BadArgument: `unknown` or `timeout` is not valid.
    """

    key: Callable[..., Any] | None = None
    unknown: Literal["retry", "hold"] | None = None
    retry: Retry | None = None
    timeout: float | timedelta | None = None
    record: Record | Collection[str] | None = None
    trust_errors: bool = False

    def __post_init__(self) -> None:
        if self.unknown is not None:
            check_unknown(self.unknown)
        seconds_of(self.timeout)

    def spec(self, tool: str) -> EffectSpec:
        """Return the effect that a call of this tool is. Internal."""
        return EffectSpec(
            f"tool {tool}",
            unknown=self.unknown or "hold",
            retry=self.retry or ONCE,
            timeout=seconds_of(self.timeout),
            record=record_of(self.record),
            keeps_errors=self.retry is not None,
            trust_errors=self.trust_errors or self.unknown is None,
        )


NAMED: dict[str, Policy | None] = {
    "read": None,
    "retry": Policy(unknown="retry"),
    "hold": Policy(unknown="hold"),
}
"""Policies by name. None: not recorded, but called every time."""
UNSAID = Policy()
"""For a tool without hints or a mapping. A call that was cut off holds the run, since a second one
may do harm. An exception is left to LangChain."""
ONLY_STATE = frozenset(["langchain.agents.middleware.todo"])
"""Modules of LangChain whose tools change nothing but the state of the graph."""


def policy_of(name: str, policy: Any) -> Policy | None:
    """The policy that `Durable(tools={name: policy})` means."""
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str) or policy not in NAMED:
        names = ", ".join(map(repr, NAMED))
        raise BadArgument(f"tools={{{name!r}: {policy!r}}}: use {names}, or a Policy.")
    return NAMED[policy]


def policy_by_hints(tool: BaseTool | None) -> Policy | None:
    """The policy that a tool's own hints mean."""
    if _has_hint(tool, "readOnlyHint"):
        return NAMED["read"]
    if _has_hint(tool, "idempotentHint") or changes_only_state(tool):
        return NAMED["retry"]
    return NAMED["hold"] if _has_hint(tool, "destructiveHint") else UNSAID


def changes_only_state(tool: BaseTool | None) -> bool:
    """Whether a tool changes nothing but the state of the graph."""
    return getattr(getattr(tool, "func", None), "__module__", "") in ONLY_STATE


def _has_hint(tool: BaseTool | None, hint: str) -> bool:
    """In the tool's metadata, where LangChain's MCP adapters put them, or in its attributes."""
    metadata = getattr(tool, "metadata", None) or {}
    for source in (metadata, metadata.get("annotations"), getattr(tool, "annotations", None), tool):
        value = source.get(hint) if isinstance(source, Mapping) else getattr(source, hint, None)
        if isinstance(value, bool):
            return value
    return False


ToolResult = ToolMessage | Command[Any]

MODEL = EffectSpec("model", retry=ONCE, reads=True, keeps_errors=False)


class ModelCall:
    """A model call. Its outcome is the response, and the commands of middleware below us."""

    def __init__(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> None:
        self.arguments = {"model": model_name(request.model), "prompt": prompt_digest(request)}
        self._commands = ecosystem.middleware_commands(handler)

    def effect(self, function: Callable[..., Any]) -> Effect:
        """The effect that this call is."""
        usage_of = partial(_usage_of, model=self.arguments["model"])
        return Effect(MODEL, function, is_parallel=False, usage_of=usage_of)

    def pack(self, response: ModelResponse[Any] | AIMessage) -> dict[str, Any]:
        """What to store. If that fails the call is still to be made: it changed nothing."""
        if isinstance(response, AIMessage):
            response = ModelResponse(result=[response])
        packed: dict[str, Any] = {"messages": response.result}
        if response.structured_response is not None:
            packed["structured"] = response.structured_response
        if self._commands:
            packed["commands"] = list(self._commands)
        if len(packed) > 1 and (place := current_task()) is not None:
            place[0].serializer.encode(packed, "the response of the model")
        return packed

    def unpack(self, packed: Any) -> ModelResponse[Any]:
        if not isinstance(packed, dict):  # simulated, by what the model would say
            message = packed if isinstance(packed, AIMessage) else AIMessage(str(packed))
            return ModelResponse(result=[message])
        if self._commands is not None:
            self._commands[:] = packed.get("commands", [])
        return ModelResponse(
            result=packed["messages"], structured_response=packed.get("structured")
        )


class ToolCall:
    """A tool call. Its outcome is a message or a command."""

    def __init__(self, request: ToolCallRequest, policy: Policy) -> None:
        self._request, self._policy, call = request, policy, request.tool_call
        self.arguments, self.business_key = call["args"], None
        if policy.key is not None:
            self.business_key = business_key(call["name"], policy.key(**call["args"]))

    def effect(self, function: Callable[..., Any]) -> Effect:
        """The effect that this call is."""
        call = self._request.tool_call
        effect = Effect(self._policy.spec(call["name"]), function, is_parallel=True)
        if self.business_key is None:
            return replace(effect, call_id=call["id"])
        return replace(effect, business_key=self.business_key)

    def request(self, arguments: Mapping[str, Any]) -> ToolCallRequest:
        """The request, with the recorded arguments."""
        call = self._request.tool_call
        if arguments == call["args"]:
            return self._request
        return self._request.override(tool_call={**call, "args": dict(arguments)})

    def unpack(self, result: Any) -> ToolResult:
        """The outcome, for this very call: a business key may give that of another call, and a
        person who settles one gives only the content.
        """
        call = self._request.tool_call
        if not isinstance(result, (ToolMessage, Command, list)):
            text = result if isinstance(result, str) else json.dumps(result, default=str)
            return ToolMessage(text, name=call["name"], tool_call_id=call["id"])
        if self.business_key is not None:
            result = _readdressed(result, call["id"])
        return cast(ToolResult, result)


def _readdressed(result: Any, call_id: str | None) -> Any:
    """The same result for the call of that id."""
    if isinstance(result, ToolMessage):
        if result.tool_call_id == call_id:
            return result
        return result.model_copy(update={"tool_call_id": call_id, "id": None})
    if isinstance(result, list):
        return [_readdressed(one, call_id) for one in result]
    if isinstance(result, Command) and isinstance(result.update, dict):
        update = {
            name: _readdressed(value, call_id) if isinstance(value, list) else value
            for name, value in result.update.items()
        }
        return replace(result, update=update)
    return result


def _usage_of(packed: Any, model: str) -> ModelUsage:
    """What a response cost: one call, and its tokens. A simulated one costs nothing."""
    if not isinstance(packed, dict):
        return ModelUsage(0, 0, model, 0, 0)
    usages = [getattr(message, "usage_metadata", None) or {} for message in packed["messages"]]
    total, input_tokens, output_tokens = (
        sum(usage.get(f"{part}_tokens", 0) for usage in usages)
        for part in ("total", "input", "output")
    )
    return ModelUsage(1, total, model, input_tokens, output_tokens)


def model_name(model: Any) -> str:
    """The name of a model; without one, that of its class."""
    model = getattr(model, "bound", model)
    names = (getattr(model, name, None) for name in ("model_name", "model", "model_id"))
    return next((name for name in names if isinstance(name, str)), type(model).__name__)


def prompt_digest(request: ModelRequest[Any]) -> str:
    """A hash of all that changes the model's answer, the same in every process."""
    prompt = [
        type(request.model).__qualname__,
        ecosystem.model_parameters(request.model),
        request.system_message,
        request.messages,
        request.tools,
        request.tool_choice,
        request.model_settings,
        request.response_format,
    ]
    text = json.dumps(prompt, default=_as_json, skipkeys=True)
    return digest(text.encode(errors="replace"))


_NOT_SENT = {"id", "response_metadata", "usage_metadata", "artifact"}
"""Fields of a message that are not sent to a model."""
_TOOLS: dict[int, tuple[BaseTool, str]] = {}


def _tool_text(tool: BaseTool) -> str:
    """What a model sees of a tool. Cached: LangChain makes its schema anew for each access."""
    known = _TOOLS.get(id(tool))
    if known is None or known[0] is not tool:
        if len(_TOOLS) > 1000:
            _TOOLS.clear()
        seen = [tool.name, tool.description, tool.tool_call_schema]
        known = _TOOLS[id(tool)] = tool, json.dumps(seen, default=_as_json)
    return known[1]


def _as_json(value: Any) -> Any:
    """A value of a type that JSON lacks, in types that it has."""
    if isinstance(value, BaseTool):
        return _tool_text(value)
    if isinstance(value, BaseModel):
        return value.model_dump(exclude=_NOT_SENT, warnings=False)
    if isinstance(value, type):
        schema = getattr(value, "model_json_schema", None)
        return [value.__qualname__, schema() if callable(schema) else None]
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, Mapping):
        return dict(value)
    return type(value).__qualname__
