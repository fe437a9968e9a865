"""LangChain agents whose model calls and tool calls are effects, without a change to their tools.

`Durable()` is middleware for `create_agent` and deepagents; `tool_node` makes a `ToolNode` of your
own durable. In a run, under the runtime or with only the saver, each call is an effect:

model  found again by its turn in its task. Only a hash of the prompt is stored; a prompt that
       differs when the node runs again gets the recorded answer, and an event says so
tool   found again by the id of its tool call. Hints (`readOnlyHint`, `idempotentHint`,
       `destructiveHint`) or a mapping say what to do about an unknown outcome; reads are not
       recorded. If nothing is said, a call that was cut off holds the run

An exception of either means that the call is still to be made: LangChain's or the runtime's retry
calls again with the same key. Outside of a run everything is called plainly.

    middleware      Durable and tool_node
    calls           one model call or tool call, as an effect; how a tool's calls settle
"""

try:
    import langchain.agents.middleware  # noqa: F401
except ImportError as error:
    raise ImportError("perdure.langchain needs langchain, 1.3 or newer: install it.") from error

from perdure.langchain.calls import Policy
from perdure.langchain.middleware import Durable, tool_node

__all__ = ["Durable", "Policy", "tool_node"]
