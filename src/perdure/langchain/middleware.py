"""`Durable`, the middleware, and `tool_node`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest

from perdure.effects import simulation
from perdure.effects.decorator import aperform, is_effect_tool, perform
from perdure.langchain.calls import ModelCall, ToolCall, ToolResult
from perdure.langchain.policy import (
    Policy,
    changes_only_state,
    policy_by_hints,
    policy_of,
)


class Durable(AgentMiddleware[Any, Any, Any]):
    """Middleware that makes every model call and every tool call of an agent an effect.

    `tools` gives policies by tool name, in place of a tool's own hints: "read" (not recorded),
    "retry" (called again with the same key), "hold" (a person settles it), or a `Policy`. A call
    of a tool that has neither hints nor a policy holds the run if its process dies in the middle.
    Put `Durable` last, so that middleware that retries and falls back sees each call.
    """

    def __init__(self, tools: Mapping[str, str | Policy] | None = None) -> None:
        super().__init__()
        self.tools = []
        self._policies = {name: policy_of(name, policy) for name, policy in (tools or {}).items()}

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        call = ModelCall(request, handler)
        calling = call.calling(lambda **_: call.pack(handler(request)))
        return call.unpack(perform(*calling))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        call = ModelCall(request, handler)

        async def function(**_: Any) -> dict[str, Any]:
            return call.pack(await handler(request))

        return call.unpack(await aperform(*call.calling(function)))

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]
    ) -> ToolResult:
        policy = self.policy(request)
        if policy is None:
            with simulation.harmless_tool(request.tool_call["name"]):
                return handler(request)
        call = ToolCall(request, policy)
        calling = call.calling(lambda **arguments: handler(call.request(arguments)))
        return call.unpack(perform(*calling))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        policy = self.policy(request)
        if policy is None:
            with simulation.harmless_tool(request.tool_call["name"]):
                return await handler(request)
        call = ToolCall(request, policy)

        async def function(**arguments: Any) -> ToolResult:
            return await handler(call.request(arguments))

        return call.unpack(await aperform(*call.calling(function)))

    def policy(self, request: ToolCallRequest) -> Policy | None:
        """How a call settles. None: it is not recorded, or the tool is an effect itself."""
        if is_effect_tool(request.tool):
            return None
        name = request.tool_call["name"]
        known = name in self._policies
        policy = self._policies[name] if known else policy_by_hints(request.tool)
        if policy is None and simulation.is_named(f"tool {name}"):  # an evaluation simulates a read
            return policy_of(name, "retry")
        if changes_only_state(request.tool) and simulation.is_evaluated():
            return None
        return policy


def tool_node(
    tools: Sequence[BaseTool | Callable[..., Any]], durable: Durable | None = None, **options: Any
) -> ToolNode:
    """A `ToolNode` whose calls are effects. `options` are those of `ToolNode`."""
    wraps = durable or Durable()
    return ToolNode(
        tools,
        wrap_tool_call=wraps.wrap_tool_call,
        awrap_tool_call=wraps.awrap_tool_call,
        **options,
    )
