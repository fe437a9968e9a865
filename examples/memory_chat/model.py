"""The chat model: scripted by default, so the example needs no key and no network.

It understands four facts that a user may state. In a chat it answers with the memories in its
prompt. When LangMem binds its memory tool, it calls that tool with the new facts.
"""

import re
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult

FACTS = {
    r"(?:my name is|I am called) (\w+)": "The user is called {}.",
    r"allergic to (\w+)": "The user is allergic to {}.",
    r"I (?:moved to|live in) (\w+)": "The user lives in {}.",
    r"I (?:like|love) (\w+)": "The user likes {}.",
}


def facts_in(text: str) -> list[str]:
    """Return the facts a user states, each worded as a memory."""
    return [
        memory.format(found)
        for pattern, memory in FACTS.items()
        for found in dict.fromkeys(re.findall(pattern, text, re.IGNORECASE))
    ]


class ScriptedModel(BaseChatModel):
    """A chat model that follows a script."""

    makes_memories: bool = False

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return ScriptedModel(makes_memories=True)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        known = " ".join(one.text for one in messages if isinstance(one, SystemMessage))
        said = [one.text for one in messages if isinstance(one, HumanMessage)]
        if self.makes_memories:
            fresh = [fact for fact in facts_in(" ".join(said)) if fact not in known]
            answer = AIMessage("", tool_calls=[_remember(fact) for fact in fresh])
        else:
            answer = AIMessage(_reply(said[-1], known))
        return ChatResult(generations=[ChatGeneration(message=answer)])

    @property
    def _llm_type(self) -> str:
        return "scripted"


def _remember(fact: str) -> Any:
    return {"name": "Memory", "args": {"content": fact}, "id": fact}


def _reply(text: str, known: str) -> str:
    if facts_in(text):
        return "Good to know."
    if not (memories := re.findall(r"The user ([^.]+)\.", known)):
        return "I know nothing about you. Tell me something!"
    return f"Of course! You {', you '.join(map(_second_person, memories))}."


def _second_person(memory: str) -> str:
    verb, _, rest = memory.partition(" ")
    return f"{'are' if verb == 'is' else verb.removesuffix('s')} {rest}"
