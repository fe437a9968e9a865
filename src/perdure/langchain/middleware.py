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
from perdure.langchain.calls import (
    ModelCall,
    Policy,
    ToolCall,
    ToolResult,
    changes_only_state,
    policy_by_hints,
    policy_of,
)


class Durable(AgentMiddleware[Any, Any, Any]):
    """Middleware that turns every model call and tool call of an agent into an effect.

    In a run, under a runtime or with only a `Saver`, a call that was made is not made again: its
    recorded outcome is returned. A model call is found again by its turn in its task; only a hash
    of the prompt is stored. A tool call is found again by the id of the call. Inside a tool,
    `perdure.key()` is the key of its call. Outside a run, calls are made as usual. Tools that
    are effects themselves are not recorded twice.

        durable = Durable(tools={"search": "read"})
        agent = create_agent(model, tools, middleware=[durable])

    If the process dies in the middle of a model call, the model is called again. In the middle of a
    tool call, the tool's policy decides; by default the policy comes from its MCP hints:
    `readOnlyHint` is `read`, `idempotentHint` is `retry`, `destructiveHint` is `hold`. With neither
    hints nor a policy, the run is held until a person settles the call; exceptions are raised as
    usual.

    Put `Durable` last in the list, so that middleware that retries, falls back or changes the
    prompt sees each call.

    Args:
        tools: Policies by tool name, which take precedence over a tool's hints. `read`: not
            recorded, called every time. `retry`: called again with the same key. `hold`: a person
            settles it, after an exception too. Or a `Policy`.

    Raises:
        BadArgument: A policy is unknown.
    """

    def __init__(self, tools: Mapping[str, str | Policy] | None = None) -> None:
        super().__init__()
        self.tools = []
        self._policies = {name: policy_of(name, policy) for name, policy in (tools or {}).items()}

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Record a model call. LangChain calls it.

        Args:
            request: The call.
            handler: Makes the call.
        """
        call = ModelCall(request, handler)
        effect = call.effect(lambda **_: call.pack(handler(request)))
        return call.unpack(perform(effect, (), call.arguments))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """`wrap_model_call`, without blocking the event loop."""
        call = ModelCall(request, handler)

        async def function(**_: Any) -> dict[str, Any]:
            return call.pack(await handler(request))

        return call.unpack(await aperform(call.effect(function), (), call.arguments))

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]
    ) -> ToolResult:
        """Record a tool call. LangChain calls it; you can pass it to your own `ToolNode`.

        Args:
            request: The call.
            handler: Makes the call.
        """
        policy = self.policy(request)
        if policy is None:
            with simulation.harmless_tool(request.tool_call["name"]):
                return handler(request)
        call = ToolCall(request, policy)
        effect = call.effect(lambda **arguments: handler(call.request(arguments)))
        return call.unpack(perform(effect, (), call.arguments))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        """`wrap_tool_call`, without blocking the event loop."""
        policy = self.policy(request)
        if policy is None:
            with simulation.harmless_tool(request.tool_call["name"]):
                return await handler(request)
        call = ToolCall(request, policy)

        async def function(**arguments: Any) -> ToolResult:
            return await handler(call.request(arguments))

        return call.unpack(await aperform(call.effect(function), (), call.arguments))

    def policy(self, request: ToolCallRequest) -> Policy | None:
        """Return the policy of a tool call, or `None` if it is not recorded here.

        Args:
            request: The call.
        """
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
    """Return a `ToolNode` whose tool calls are effects.

        graph.add_node("tools", tool_node([send], Durable({"send": "hold"})))

    An error that the `ToolNode` handles is a result: the model reads it, and the call counts as
    made.

    Args:
        tools: The tools, as for `ToolNode`.
        durable: The policies of the tools. By default `Durable()`.
        **options: Other arguments of `ToolNode`.
    """
    wraps = durable or Durable()
    return ToolNode(
        tools,
        wrap_tool_call=wraps.wrap_tool_call,
        awrap_tool_call=wraps.awrap_tool_call,
        **options,
    )
