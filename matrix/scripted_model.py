"""A chat model that follows a script, for the agents of the matrix."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

Turn = Sequence[tuple[str, dict[str, Any]]]
"""The tools that the model asks for at once, with their arguments."""


class Scripted(BaseChatModel):
    """Asks for the tools of its script, turn by turn; then repeats what they said, sorted."""

    script: Sequence[Turn]
    shortest: float = 0.0
    longest: float = 0.0
    """Seconds an answer takes."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **more: Any
    ) -> ChatResult:
        time.sleep(random.uniform(self.shortest, self.longest))
        return self._answer(messages)

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **more: Any
    ) -> ChatResult:
        await asyncio.sleep(random.uniform(self.shortest, self.longest))
        return self._answer(messages)

    def _answer(self, messages: list[BaseMessage]) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        wanted = self.script[turn] if turn < len(self.script) else ()
        calls = [
            {"name": name, "args": args, "id": f"call {turn} {n}"}
            for n, (name, args) in enumerate(wanted)
        ]
        said = sorted(str(one.content) for one in messages if isinstance(one, ToolMessage))
        usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
        answer = AIMessage("" if wanted else " ".join(said), tool_calls=calls, usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=answer)])
