"""The chat model that writes the drafts, behind LangChain's interface.

The scripted one is the default: it needs no network, and gives the same answer to the same prompt.
Each touch keeps the version of its prompt, a hash of its text: the prompt decides what it earns.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

PROMPT = """\
You write e-mail number {step} of {steps} of a campaign to one person. Be short, plain and friendly;
refer to the mails before if there were any. Answer with the subject on the first line, as
"Subject: ...", an empty line, and the text. Do not sign it.

The campaign: {brief}
The person: {person}
{comment}"""
PROMPT_VERSION = hashlib.sha256(PROMPT.encode()).hexdigest()[:12]
NAMELESS = 'their name is not known; begin with "Hello,"'
OPENINGS = (
    "I would like to show you",
    "did you have a moment to look at",
    "one of our customers asked me about",
    "here is a short story about",
    "perhaps now is a better time for",
    "this is my last note about",
)


def prompt_for(
    *, step: int, steps: int, brief: str, name: str, company: str, comment: str = ""
) -> str:
    wish = f"A person read your last draft and wants another one: {comment}\n" if comment else ""
    person = ", ".join(filter(None, (name or NAMELESS, company)))
    return PROMPT.format(step=step, steps=steps, brief=brief, person=person, comment=wish)


def parse(text: str) -> tuple[str, str]:
    """The subject and the text of a draft. Whatever the model says, a subject is one line."""
    text = "".join(one for one in text if one in "\n\t" or unicodedata.category(one) != "Cc")
    first, _, rest = text.strip().partition("\n")
    subject = first.partition(":")[2] if first.lower().startswith("subject:") else ""
    body = rest.strip() if subject else text.strip()
    return " ".join(subject.split()) or "A short question", body or "Hello"


class Scripted(BaseChatModel):
    """A model with six fixed openings."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: Sequence[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        lines = str(messages[-1].content).splitlines()
        step = int(lines[0].partition("number ")[2].partition(" ")[0])
        brief, person = (
            next(line.removeprefix(word) for line in lines if line.startswith(word))
            for word in ("The campaign: ", "The person: ")
        )
        hello = "Hello" if person.startswith(NAMELESS) else f"Hello {person.partition(',')[0]}"
        opening = OPENINGS[(step - 1) % len(OPENINGS)]
        if any(line.startswith("A person read") for line in lines):
            opening = f"In short: {opening}"
        text = f"Subject: {brief} ({step})\n\n{hello},\n\n{opening} {brief}."
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


def model_for(name: str) -> BaseChatModel:
    """The model that the settings name."""
    if not name:
        return Scripted()
    from langchain.chat_models import init_chat_model

    model: BaseChatModel = init_chat_model(name)
    return model
