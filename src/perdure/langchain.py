"""Agents of LangChain whose model calls and tool calls settle, without a change to their tools.

`Durable()` is middleware for `create_agent` and deepagents; `tool_node` makes a `ToolNode` of its
own durable. In a run, under the runtime or with only the saver, each call is an effect:

model  found again by its turn in its task. Of the prompt only a hash is kept; a prompt that differs
       on the way back gets the recorded answer, and an event says so
tool   found again by the id of its tool call. What an unknown outcome means is said by hints
       (`readOnlyHint`, `idempotentHint`, `destructiveHint`) or a mapping; reads are not settled

An exception of either says that the call is still to be made: whoever retries, LangChain or the
runtime, calls again with the same key. Outside of a run everything is called plainly.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from typing import Any, Literal, cast

try:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
except ImportError as error:
    raise ImportError("perdure.langchain needs langchain, 1.0 or newer: install it.") from error
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command
from pydantic import BaseModel

from perdure import langgraph_port
from perdure.effects import context, recording
from perdure.effects.decorator import ONCE, SPEC, aperform, perform
from perdure.effects.filing import Spec
from perdure.effects.identity import Desk, Line
from perdure.effects.invocation import Calling, Functions
from perdure.effects.settlement import Settling
from perdure.errors import BadArgument
from perdure.types import Record, Retry

HINTS = ("readOnlyHint", "idempotentHint", "destructiveHint")
"""What a tool says of itself, in the words of MCP."""

Told = ToolMessage | Command[Any]
"""What a tool call comes to."""


@dataclass(frozen=True)
class Policy:
    """How the calls of a tool settle.

    key      gives a business key from the arguments, by name; it guards across runs and threads
    unknown  what becomes of a call whose outcome nobody knows: "retry" or "hold"
    retry    how often to try before an exception is final and recorded. None: not at all; the
             exception is raised, and whoever retries calls again
    timeout  seconds, or a timedelta, for one attempt
    record   what is kept of the arguments: their names, or a `Record`
    """

    key: Callable[..., Any] | None = None
    unknown: Literal["retry", "hold"] = "retry"
    retry: Retry | None = None
    timeout: float | timedelta | None = None
    record: Record | Collection[str] | None = None

    def __post_init__(self) -> None:
        if self.unknown not in ("retry", "hold"):
            raise BadArgument(f"unknown={self.unknown!r}: use 'retry' or 'hold'.")
        if self.seconds is not None and not self.seconds > 0:
            raise BadArgument(f"timeout={self.timeout!r}: use seconds, more than none.")

    @property
    def seconds(self) -> float | None:
        given = self.timeout
        return given.total_seconds() if isinstance(given, timedelta) else given

    def spec(self, tool: str) -> Spec:
        """The effect that a call of a tool is."""
        kept = self.record
        if not isinstance(kept, Record):
            kept = Record(None if kept is None else tuple(kept))
        return Spec(
            f"tool {tool}",
            unknown=self.unknown,
            retry=self.retry or ONCE,
            timeout=self.seconds,
            record=kept,
            keeps_errors=self.retry is not None,
        )


NAMED: dict[str, Policy | None] = {"read": None, "retry": Policy(), "hold": Policy(unknown="hold")}
"""Policies by name. None: it is not settled, but called every time."""
MODEL = Spec("model", retry=ONCE, reads=True, keeps_errors=False)


class Durable(AgentMiddleware[Any, Any, Any]):
    """Middleware that makes every model call and every tool call of an agent an effect.

    `tools` says what a tool is, by its name, for tools that do not say it themselves: "read" (not
    settled), "retry" (called again with the same key), "hold" (a person decides), or a `Policy`.
    Put it last, so that what retries and falls back sees each call.
    """

    def __init__(self, tools: Mapping[str, str | Policy] | None = None) -> None:
        super().__init__()
        self.tools = []
        self._policies = {name: _policy(name, given) for name, given in (tools or {}).items()}

    # -- models

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        call = _ModelCall(request, handler)

        def function(**_: Any) -> dict[str, Any]:
            return call.pack(handler(request))

        return call.unpack(perform(*call.ways(function)))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        call = _ModelCall(request, handler)

        async def function(**_: Any) -> dict[str, Any]:
            return call.pack(await handler(request))

        return call.unpack(await aperform(*call.ways(function)))

    # -- tools

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Told]
    ) -> Told:
        policy = self.policy(request)
        if policy is None:
            return handler(request)
        call = _ToolCall(request, policy)

        def function(**arguments: Any) -> Told:
            return handler(call.request(arguments))

        return call.unpack(perform(*call.ways(function)))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Told]]
    ) -> Told:
        policy = self.policy(request)
        if policy is None:
            return await handler(request)
        call = _ToolCall(request, policy)

        async def function(**arguments: Any) -> Told:
            return await handler(call.request(arguments))

        return call.unpack(await aperform(*call.ways(function)))

    def policy(self, request: ToolCallRequest) -> Policy | None:
        """How a call settles; None if it does not, or by itself."""
        if _settles_itself(request.tool):
            return None
        name = request.tool_call["name"]
        return self._policies[name] if name in self._policies else _hinted(request.tool)


def tool_node(
    tools: Sequence[BaseTool | Callable[..., Any]], durable: Durable | None = None, **options: Any
) -> ToolNode:
    """A `ToolNode` whose calls settle. `options` are those of `ToolNode`."""
    wraps = durable or Durable()
    return ToolNode(
        tools,
        wrap_tool_call=wraps.wrap_tool_call,
        awrap_tool_call=wraps.awrap_tool_call,
        **options,
    )


# -- what a tool is


def _policy(name: str, given: Any) -> Policy | None:
    if isinstance(given, Policy):
        return given
    if not isinstance(given, str) or given not in NAMED:
        names = ", ".join(map(repr, NAMED))
        raise BadArgument(f"tools={{{name!r}: {given!r}}}: use {names}, or a Policy.")
    return NAMED[given]


def _hinted(tool: BaseTool | None) -> Policy | None:
    """What a tool's own hints say; the first that is true. Without any: called again, same key."""
    hints = _hints(tool)
    if hints.get("readOnlyHint"):
        return NAMED["read"]
    if hints.get("destructiveHint") and not hints.get("idempotentHint"):
        return NAMED["hold"]
    return NAMED["retry"]


def _hints(tool: BaseTool | None) -> dict[str, bool]:
    """From the tool's metadata, where LangChain's MCP adapters put them, or from itself."""
    metadata = getattr(tool, "metadata", None) or {}
    found: dict[str, bool] = {}
    for source in (metadata, metadata.get("annotations"), getattr(tool, "annotations", None), tool):
        for hint in HINTS:
            value = _said(source, hint)
            if isinstance(value, bool):
                found.setdefault(hint, value)
    return found


def _said(source: Any, hint: str) -> Any:
    return source.get(hint) if isinstance(source, Mapping) else getattr(source, hint, None)


def _settles_itself(tool: BaseTool | None) -> bool:
    """Whether the function of a tool is decorated with `@perdure.effect`."""
    functions = [getattr(tool, name, None) for name in ("func", "coroutine")]
    if not any(functions):
        functions = [getattr(type(tool), name, None) for name in ("_run", "_arun")]
        return any(hasattr(function, SPEC) for function in functions)
    return all(hasattr(function, SPEC) for function in functions if function)


# -- one call


@dataclass
class _Call:
    """A call on its way to its handler, for either colour."""

    spec: Spec
    arguments: Mapping[str, Any]
    beside: bool = False
    business: str | None = None
    mark: str | None = None
    weigh: Callable[[Any], tuple[int, int]] | None = None
    desk: Desk | None = None
    """Where it is settled, in a run."""

    def ways(
        self, function: Callable[..., Any]
    ) -> tuple[Callable[[], Calling], Callable[[tuple[Desk, int]], Settling]]:
        """The call as it is outside of a run, and in one."""

        def plain() -> Calling:
            return Calling(self.spec.name, function, (), self.arguments, context.plain())

        def settling(found: tuple[Desk, int]) -> Settling:
            self.desk, attempt = found
            desk = self.desk
            caller = Functions(self.spec, function, None, desk.owner, desk.journal, desk.execution)
            return Settling(
                self.desk,
                self.spec,
                self.arguments,
                Line(attempt, beside=self.beside),
                caller,
                self.business,
                self.mark,
                weigh=self.weigh,
            )

        return plain, settling


class _ModelCall(_Call):
    """A call of a model. Its outcome is what the handler gave, and what came beside that."""

    def __init__(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> None:
        asked = {"model": model_name(request.model), "prompt": digest(request)}
        super().__init__(MODEL, asked, weigh=_weigh)
        self._commands = langgraph_port.middleware_commands(handler)

    def pack(self, response: ModelResponse[Any] | AIMessage) -> dict[str, Any]:
        """What is stored. If it cannot be, the call is still to be made: it changed nothing."""
        if isinstance(response, AIMessage):
            response = ModelResponse(result=[response])
        packed: dict[str, Any] = {"messages": response.result}
        if response.structured_response is not None:
            packed["structured"] = response.structured_response
        if self._commands:
            packed["commands"] = list(self._commands)
        if self.desk is not None and len(packed) > 1:
            self.desk.serializer.codec.encode(packed, "what the model gave")
        return packed

    def unpack(self, packed: dict[str, Any]) -> ModelResponse[Any]:
        if self._commands is not None:
            self._commands[:] = packed.get("commands", [])
        return ModelResponse(
            result=packed["messages"], structured_response=packed.get("structured")
        )


class _ToolCall(_Call):
    """A call of a tool. Its outcome is the message, or the command, that it comes to."""

    def __init__(self, request: ToolCallRequest, policy: Policy) -> None:
        self._request, call = request, request.tool_call
        super().__init__(policy.spec(call["name"]), call["args"], beside=True)
        if policy.key is None:
            self.mark = call["id"]
        else:
            self.business = recording.key_text(call["name"], policy.key(**call["args"]))

    def request(self, arguments: Mapping[str, Any]) -> ToolCallRequest:
        """The request, with the arguments that are recorded."""
        call = self._request.tool_call
        if arguments == call["args"]:
            return self._request
        return self._request.override(tool_call={**call, "args": dict(arguments)})

    def unpack(self, told: Any) -> Told:
        """The outcome for this very call: with a business key, it may be of another one; a person
        who settles one gives the content only.
        """
        call = self._request.tool_call
        if not isinstance(told, (ToolMessage, Command, list)):
            text = told if isinstance(told, str) else json.dumps(told, default=str)
            return ToolMessage(text, name=call["name"], tool_call_id=call["id"])
        if self.business is not None:
            told = _addressed(told, call["id"])
        return cast(Told, told)


def _addressed(told: Any, call_id: str | None) -> Any:
    """The same for the call of that id."""
    if isinstance(told, ToolMessage):
        if told.tool_call_id == call_id:
            return told
        return told.model_copy(update={"tool_call_id": call_id, "id": None})
    if isinstance(told, list):
        return [_addressed(one, call_id) for one in told]
    if isinstance(told, Command) and isinstance(told.update, dict):
        update = {
            name: _addressed(value, call_id) if isinstance(value, list) else value
            for name, value in told.update.items()
        }
        return replace(told, update=update)
    return told


def _weigh(packed: dict[str, Any]) -> tuple[int, int]:
    """What an answer cost: one call, and its tokens."""
    usages = [getattr(message, "usage_metadata", None) or {} for message in packed["messages"]]
    return 1, sum(usage.get("total_tokens", 0) for usage in usages)


# -- what was asked of a model


def model_name(model: Any) -> str:
    """The name of a model, or of its class if it has none."""
    model = getattr(model, "bound", model)
    names = (getattr(model, name, None) for name in ("model_name", "model", "model_id"))
    return next((name for name in names if isinstance(name, str)), type(model).__name__)


def digest(request: ModelRequest[Any]) -> str:
    """What tells prompts apart: all that changes the answer, whatever the process."""
    asked = [
        type(request.model).__qualname__,
        langgraph_port.model_parameters(request.model),
        request.system_message,
        request.messages,
        request.tools,
        request.tool_choice,
        request.model_settings,
        request.response_format,
    ]
    text = json.dumps(asked, default=_plain, skipkeys=True)
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()


_BESIDE = {"id", "response_metadata", "usage_metadata", "artifact"}
"""What a message carries that no model is told."""


_TOOLS: dict[int, tuple[BaseTool, str]] = {}


def _told_of(tool: BaseTool) -> str:
    """What a model is told of a tool. LangChain makes its schema anew each time it is asked."""
    known = _TOOLS.get(id(tool))
    if known is None or known[0] is not tool:
        if len(_TOOLS) > 1000:
            _TOOLS.clear()
        told = json.dumps([tool.name, tool.description, tool.tool_call_schema], default=_plain)
        known = _TOOLS[id(tool)] = tool, told
    return known[1]


def _plain(value: Any) -> Any:
    """Something that JSON has no words for, in terms of what it has."""
    if isinstance(value, BaseTool):
        return _told_of(value)
    if isinstance(value, BaseModel):
        return value.model_dump(exclude=_BESIDE, warnings=False)
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
