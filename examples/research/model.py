"""The chat model: scripted, so that the example needs no key and no network.

It reads what it is sent and answers by a fixed rule, slowly, as a model would. Each call leaves a
line in a file before it is answered, with the key of the effect it is in: what a provider would
put on the bill.
"""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

import perdure

Script = Callable[[Sequence[BaseMessage]], AIMessage]


class ScriptedModel(BaseChatModel):
    """A chat model that answers with what `script` makes of the messages."""

    script: Script
    bill: str
    """The file that has a line for each call."""
    seconds: float = 0.0

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self._charge()
        await asyncio.sleep(self.seconds)
        return self._generate(messages)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.script(messages))])

    def _charge(self) -> None:
        with Path(self.bill).open("a") as bill:
            bill.write(f"{perdure.key()}\n")

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self  # the script knows its tools by heart

    @property
    def _llm_type(self) -> str:
        return "scripted"


# -- the scripts


def plans(messages: Sequence[BaseMessage]) -> AIMessage:
    """Search, then hand in a plan of what was found: one step per page, a chapter per coast."""
    found = messages[-1]
    if not isinstance(found, ToolMessage):
        return _calls("search", {"word": "lighthouse"})
    steps = [
        {
            "id": f"{number:02}",
            "chapter": page["url"].split("/")[-2].title() + " coast",
            "url": page["url"],
        }
        for number, page in enumerate(json.loads(found.text), 1)
    ]
    return _calls("Plan", {"steps": steps})


def _calls(tool: str, arguments: dict[str, Any]) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"call-{tool}"}])


def summarises(messages: Sequence[BaseMessage]) -> AIMessage:
    """One sentence of a page."""
    page = messages[-1].text
    name, year, tall, far = re.findall(
        r"(.+) stands on .* first lit in (\d+)\. .* is (\d+) metres tall .* for (\d+) miles", page
    )[0]
    return AIMessage(f"{name}, lit in {year}, is {tall} m tall and seen for {far} miles.")


def writes(messages: Sequence[BaseMessage]) -> AIMessage:
    """A chapter of what was noted about its pages."""
    notes = re.findall(r"(.+), lit in (\d+), is (\d+) m tall .* for (\d+) miles", messages[-1].text)
    oldest = min(notes, key=lambda note: int(note[1]))
    tallest = max(notes, key=lambda note: int(note[2]))
    return AIMessage(
        f"Of its {len(notes)} lighthouses {oldest[0]} is the oldest, lit in {oldest[1]}. The "
        f"tallest is {tallest[0]} with {tallest[2]} metres. They are seen for "
        f"{sum(int(far) for *_, far in notes) / len(notes):.0f} miles on average."
    )
